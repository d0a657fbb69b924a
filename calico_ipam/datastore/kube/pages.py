"""Long lists of the API, page by page (datastore §5): the next page is fetched while the last one is made use of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from calico_ipam.datastore.kube.abreast import begun
from calico_ipam.datastore.kube.api import JSON, Request
from calico_ipam.datastore.kube.errors import Expired
from calico_ipam.errors import NotFound
from calico_ipam.model.resource import mapping

if TYPE_CHECKING:
    from calico_ipam.datastore.api import Revision
    from calico_ipam.datastore.kube.paths import Collection

PAGE = 500

Document = Mapping[str, Any]
Call = Callable[[Request], dict[str, Any]]
Later = Callable[[], Document]


def all_items(
    call: Call, collection: Collection, accept: str = JSON, make: Callable[[Iterable[Document]], Iterable[Any]] = iter
) -> tuple[list[Any], Revision]:
    """Return all items of a list, or what ``make`` makes of each page, so that pages need not be kept, and the list's
    revision; when a continuation expired, the list is read all at once instead."""
    try:
        return _paged(call, collection, accept, make)
    except NotFound:
        return [], ""  # the definition is not installed: nothing is stored
    except _Expired:
        whole = call(Request("GET", collection.path, dict(collection.query), verb="list", accept=accept))
        return list(make(_items(whole))), _revision(whole)


def check_history(call: Call, path: str, query: Mapping[str, str], revision: Revision) -> None:
    """Ask whether the server has come to a revision, after a watch from it that said nothing. Raises Expired if not.

    A server that was restored from a backup would let a watch wait in silence for a revision of another history.
    """
    asked = {**query, "resourceVersion": revision, "resourceVersionMatch": "NotOlderThan", "limit": "1"}
    call(Request("GET", path, asked, verb="list"))


class _Expired(Exception):
    """A continuation is too old."""


def _paged(
    call: Call, collection: Collection, accept: str, make: Callable[[Iterable[Document]], Iterable[Any]]
) -> tuple[list[Any], Revision]:
    query = {**collection.query, "limit": str(PAGE)}
    if query.get("resourceVersion") == "0":
        del query["limit"]  # the cache answers with everything anyway, and some releases would not use it
    page: Document = call(Request("GET", collection.path, query, verb="list", accept=accept))
    found: list[Any] = []
    with _ahead(call) as fetch:
        while token := mapping(page.get("metadata")).get("continue"):
            query = {**collection.query, "limit": str(PAGE), "continue": str(token)}
            after = fetch(Request("GET", collection.path, query, verb="list", accept=accept))
            found += make(_items(page))
            try:
                page = after()
            except Expired:
                raise _Expired from None
        found += make(_items(page))
    return found, _revision(page)


@contextmanager
def _ahead(call: Call) -> Iterator[Callable[[Request], Later]]:
    """Give a function that begins a request and returns how to wait for its answer; the thread is made when needed."""
    threads: list[ThreadPoolExecutor] = []

    def fetch(request: Request) -> Later:
        if not threads:
            threads.append(ThreadPoolExecutor(1, thread_name_prefix="calico-ipam-page"))
        return begun(threads[0], partial(call, request))

    try:
        yield fetch
    finally:
        for each in threads:
            each.shutdown()


def _items(page: Document) -> Iterator[Document]:
    return (mapping(item) for item in page.get("items") or ())


def _revision(page: Document) -> Revision:
    return str(mapping(page.get("metadata")).get("resourceVersion") or "")
