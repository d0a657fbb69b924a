"""Long lists of the API: the next page is on its way while the last one is used, and no thread is left behind."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest

from calico_ipam.datastore.kube.api import Request
from calico_ipam.datastore.kube.errors import Expired
from calico_ipam.datastore.kube.pages import all_items
from calico_ipam.datastore.kube.paths import Collection
from calico_ipam.errors import NotFound, StoreUnavailable

THINGS = Collection("Thing", "/things", {"labelSelector": "a=b"})
PATIENCE = 20.0  # seconds


class Server:
    """Answers requests for pages in turn; an exception is raised."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[dict[str, str]] = []
        self.second = threading.Event()

    def __call__(self, request: Request) -> dict[str, Any]:
        assert (request.path, request.verb) == ("/things", "list")
        self.asked.append(dict(request.query))
        if len(self.asked) == 2:
            self.second.set()
        answer = self.answers[len(self.asked) - 1]
        if isinstance(answer, Exception):
            raise answer
        found: dict[str, Any] = answer
        return found


def page(*names: str, token: str = "", revision: str = "5") -> dict[str, Any]:
    return {"metadata": {"continue": token, "resourceVersion": revision}, "items": [{"name": n} for n in names]}


def names(items: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    return (str(item["name"]) for item in items)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    made = set(threading.enumerate()) - before
    assert not [each.name for each in made if each.name.startswith("calico-ipam-page")]


def test_the_next_page_is_fetched_meanwhile() -> None:
    server = Server(page("a", token="t1"), page("b", token="t2"), page("c", revision="7"))

    def make(items: Iterable[Mapping[str, Any]]) -> Iterator[str]:
        assert server.second.wait(PATIENCE), "the second page was not asked for while the first was used"
        return names(items)

    assert all_items(server, THINGS, make=make) == (["a", "b", "c"], "7")
    limited = {"labelSelector": "a=b", "limit": "500"}
    assert server.asked == [limited, {**limited, "continue": "t1"}, {**limited, "continue": "t2"}]


def test_an_expired_continuation_reads_everything_at_once() -> None:
    gone = Expired("too old")
    server = Server(page("a", token="t1"), gone, page("a", "b", "c", revision="9"))
    assert all_items(server, THINGS, make=names) == (["a", "b", "c"], "9")
    assert server.asked[-1] == {"labelSelector": "a=b"}


@pytest.mark.parametrize("at", [0, 1])
def test_what_goes_wrong_is_raised(at: int) -> None:
    answers: list[Any] = [page("a", token="t1"), page("b")]
    answers[at] = StoreUnavailable("away")
    with pytest.raises(StoreUnavailable, match="away"):
        all_items(Server(*answers), THINGS)


@pytest.mark.parametrize("at", [0, 1])
def test_a_definition_that_is_not_there_or_goes_away_means_nothing_is_stored(at: int) -> None:
    answers: list[Any] = [page("a", token="t1"), page("b")]
    answers[at] = NotFound("things")
    assert all_items(Server(*answers), THINGS) == ([], "")


def test_what_goes_wrong_with_a_page_is_raised_after_the_request_under_way() -> None:
    def make(_items: Iterable[Mapping[str, Any]]) -> Iterator[str]:
        raise ValueError("bad page")

    with pytest.raises(ValueError, match="bad page"):
        all_items(Server(page("a", token="t1"), page("b")), THINGS, make=make)


def test_the_cache_is_asked_for_all_at_once() -> None:
    server = Server(page("a"))
    all_items(server, Collection("Thing", "/things", {"resourceVersion": "0"}))
    assert server.asked == [{"resourceVersion": "0"}]
