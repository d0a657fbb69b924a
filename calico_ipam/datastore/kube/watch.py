"""Following changes in the Kubernetes API: resumes, lists again when history is gone, never silent (datastore §7)."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from calico_ipam.datastore.api import Damaged, Entry, Event, Listing, Revision
from calico_ipam.datastore.kube.api import KubeApi, Request
from calico_ipam.datastore.kube.errors import Expired, history_gone
from calico_ipam.datastore.kube.objects import marked_deleted, meta, shown_path, within_scope
from calico_ipam.datastore.kube.pages import check_history
from calico_ipam.datastore.kube.paths import Collection
from calico_ipam.datastore.kube.pods import exposed
from calico_ipam.errors import DeadlineExceeded, IPAMError, NotFound, StoreError, StoreUnavailable
from calico_ipam.model.keys import Affinities, Blocks, Handles, Resources, Scope
from calico_ipam.model.resource import WORKLOAD_ENDPOINT, mapping

if TYPE_CHECKING:
    from calico_ipam.datastore.kube.store import KubernetesStore

log = logging.getLogger(__name__)

#: the server ends a watch after so many seconds and it is made again: a line that died unseen is noticed by then
WATCH_SECONDS = 120.0
#: seconds beyond that before the line counts as dead
GRACE = 15.0
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
#: seconds from one list to the next, and to the next look at a collection whose definition is not installed
RESYNC, POLL = 0.5, 5.0
#: so many errors without progress, and everything is listed again
MOST_ERRORS = 5
#: what a server tells beside errors
KINDS = frozenset({"ADDED", "MODIFIED", "DELETED", "BOOKMARK"})
#: seconds without an answer after which the watch fails
OUTAGE = 600.0


class Watch(Iterator[Event]):
    """Changes of a scope after a revision, for ever; an empty revision begins with what is there.

    What was seen is remembered, so that removals which happened while nobody was looking are told after a new list.
    What a list tells has no revision to go on from; the bookmark behind it has.
    """

    def __init__(
        self,
        store: KubernetesStore,
        api: KubeApi,
        collection: Collection,
        scope: Scope,
        since: Revision,
        store_closed: threading.Event,
    ) -> None:
        self._store = store
        self._api = api
        self._collection = collection
        self._scope = _exact(scope)
        self._revision = since
        self._store_closed = store_closed
        self._closed = threading.Event()
        self._known: dict[str, Entry | Damaged] = {}  # by path
        self._marked: set[str] = set()  # UIDs whose removal has been told when they were marked
        self._queue: deque[Event] = deque()
        self._stream: _Stream | None = None
        self._pause = 0.0
        self._errors = 0
        self._next_list = float("-inf")
        self._contact = time.monotonic()

    def close(self) -> None:
        """End the iteration, also one that waits in another thread."""
        self._closed.set()
        self._leave()

    def __next__(self) -> Event:
        self._contact = time.monotonic()  # the time that somebody took between two events is no silence
        while not self._ended():
            if self._queue:
                return self._queue.popleft()
            self._check_time()
            try:
                self._step()
            except Expired as error:
                log.info("watch of %s: %s; listing again", self._scope, error)
                self._leave()
                self._revision = ""
            except IPAMError as error:
                self._leave()
                self._failed(error)
        self._leave()
        raise StopIteration

    def _failed(self, error: IPAMError) -> None:
        """Wait after an error, longer from one to the next. Raises it when nobody has answered for too long."""
        if self._ended():
            return
        if time.monotonic() - self._contact > OUTAGE:
            raise error
        self._errors += not isinstance(error, StoreUnavailable)  # who does not answer says nothing of the revision
        if self._errors >= MOST_ERRORS:
            self._errors, self._revision = 0, ""
        self._pause = min(LONGEST_PAUSE, self._pause * 2 or FIRST_PAUSE)
        log.warning("watch of %s waits %.1f s: %s", self._scope, self._pause, error)
        self._wait(self._pause)

    def _ended(self) -> bool:
        return self._closed.is_set() or self._store_closed.is_set()

    def _check_time(self) -> None:
        deadline = self._store.deadline
        if deadline is not None and deadline.remaining() <= 0:
            self._leave()
            raise DeadlineExceeded(f"out of time while watching {self._scope}", subject=str(self._scope))

    def _wait(self, seconds: float) -> None:
        deadline = self._store.deadline
        self._closed.wait(seconds if deadline is None else min(seconds, deadline.remaining()))

    def _leave(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.end()

    # --- one step ------------------------------------------------------------------------------------------

    def _step(self) -> None:
        stream = self._stream
        if not self._revision:
            self._list()
        elif stream is None or stream.foreign:
            self._open()
        else:
            line = stream.next_line()
            if line is not None:
                self._told(line)
                return
            self._stream = None  # the server ended it, as it does after a while
            if stream.silent and not self._ended():
                with contextlib.suppress(NotFound):  # the next step finds that out
                    check_history(self._ask, self._collection.path, self._collection.query, self._revision)

    def _ask(self, request: Request) -> dict[str, Any]:
        return self._api.call(request, self._store.deadline)

    def _list(self) -> None:
        self._wait(self._next_list - time.monotonic())
        if self._ended():
            return
        listing = self._store.list_collection(self._scope)
        self._contact = time.monotonic()
        self._next_list = self._contact + (RESYNC if listing.revision else POLL)
        self._queue.extend(self._differences(listing))
        self._marked.clear()
        self._revision = listing.revision
        if self._revision:
            self._queue.append(Event("bookmark", self._revision))

    def _differences(self, listing: Listing) -> Iterator[Event]:
        now = {self._path(found): found for found in (*listing, *listing.damaged)}
        for path in [path for path in self._known if path not in now]:
            yield _event("deleted", "", self._known.pop(path))
        for path, found in now.items():
            before = self._known.get(path)
            self._known[path] = found
            if before is None or before.revision != found.revision:
                yield _event("added" if before is None else "modified", "", found)

    def _path(self, found: Entry | Damaged) -> str:
        return found.path if isinstance(found, Damaged) else shown_path(self._collection.kind, found.origin)

    def _open(self) -> None:
        deadline = self._store.deadline
        seconds = WATCH_SECONDS if deadline is None else max(0.05, min(WATCH_SECONDS, deadline.remaining()))
        query = {
            **self._collection.query,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._revision,
            "timeoutSeconds": str(max(1, int(seconds))),
        }
        wait = seconds if deadline is not None else seconds + GRACE
        try:
            response = self._api.open_stream(Request("GET", self._collection.path, query, verb="watch"), wait)
        except NotFound:
            self._revision = ""  # the definition went away
            return
        self._contact = time.monotonic()
        self._stream = _Stream(response)
        if self._ended():  # closed while it was being opened, and nobody would wake it
            self._leave()

    # --- what the server says ------------------------------------------------------------------------------

    def _told(self, line: bytes) -> None:
        try:
            raw = mapping(json.loads(line))
        except ValueError:
            raise StoreError(
                f"the watch of {self._scope} speaks no JSON: {line[:80].decode(errors='replace')!r}"
            ) from None
        kind, document = str(raw.get("type")), mapping(raw.get("object"))
        if kind == "ERROR":
            text = str(document.get("message") or "no reason given")
            if history_gone(document):
                raise Expired(text)
            raise StoreError(f"the watch of {self._scope} failed: {text}")
        if kind not in KINDS:
            raise StoreError(f"the watch of {self._scope} tells of an event of the unknown type {kind!r}")
        self._pause, self._errors, self._contact = 0.0, 0, time.monotonic()
        self._revision = meta(document, "resourceVersion") or self._revision
        if kind == "BOOKMARK":
            self._queue.append(Event("bookmark", self._revision))
            return
        event = self._change(kind, document)
        if event is not None:
            self._queue.append(event)

    def _change(self, kind: str, document: Mapping[str, Any]) -> Event | None:
        if self._collection.kind == WORKLOAD_ENDPOINT and not exposed(document):
            return None  # not scheduled yet, or in the network of its node
        found = self._store.entry_of(self._collection.kind, document)
        if isinstance(found, Entry) and not within_scope(self._scope, found):
            return None
        path, uid = self._path(found), meta(document, "uid")
        if kind == "DELETED" or (isinstance(found, Entry) and marked_deleted(found)):
            # Marked as deleted is gone (datastore §14.3); the removal that follows says nothing new.
            last = self._known.pop(path, found)
            told = uid in self._marked
            (self._marked.discard if kind == "DELETED" else self._marked.add)(uid)
            return None if told else _event("deleted", self._revision, last)
        new = kind == "ADDED" and path not in self._known
        self._known[path] = found
        return _event("added" if new else "modified", self._revision, found)


def _exact(scope: Scope) -> Scope:
    """Return the scope of whole objects as they are now: what is told is compared with what was told before."""
    match scope:
        case Blocks():
            return replace(scope, recent=False, writable=True)
        case Affinities():
            return replace(scope, recent=False)
        case Handles():
            return replace(scope, writable=True)
        case Resources():
            return replace(scope, only=())


def _event(kind: Literal["added", "modified", "deleted"], revision: Revision, found: Entry | Damaged) -> Event:
    if isinstance(found, Entry):
        return Event(kind, revision, found)
    return Event("deleted" if kind == "deleted" else "damaged", revision, damaged=found)


class _Stream:
    """The lines of one watch request. One thread reads them; any may end it, and whoever comes last closes it."""

    def __init__(self, response: Any) -> None:
        self._response = response
        self._pieces: Iterator[bytes] = response.stream(amt=None)
        self._lines: deque[bytes] = deque()
        self._rest = b""
        self._reading = threading.Lock()
        self._over = False
        self._pid = os.getpid()
        self.silent = True  #: whether it has not had a single line

    @property
    def foreign(self) -> bool:
        """Whether it belongs to the process that forked this one, and reads what is sent to us."""
        return self._pid != os.getpid()

    def next_line(self) -> bytes | None:
        """Return the next line as soon as it is there; None when the answer ends, in whatever way."""
        with self._reading:
            line = None if self._over else self._read()
        if line is None or self._over:
            self.end()
        return line

    def _read(self) -> bytes | None:
        from urllib3.exceptions import HTTPError

        while not self._lines:
            try:
                piece = next(self._pieces, None)
            except (HTTPError, OSError, ValueError) as error:  # ValueError: the socket was closed under it
                log.debug("a watch broke: %s", error)
                piece = None
            if piece is None:
                return None
            *lines, self._rest = (self._rest + piece).split(b"\n")
            self._lines.extend(line for line in lines if line.strip())
        self.silent = False
        return self._lines.popleft()

    def end(self) -> None:
        """End the answer and close its socket; a thread that waits for its next line gets None."""
        self._over = True
        if self.foreign:
            return  # shutting the socket down would end it for the parent
        if self._reading.acquire(blocking=False):
            try:
                self._response.close()
            finally:
                self._reading.release()
            return
        # Somebody reads: he is woken, and closes it. TypeError: urllib3's word for a close in this very moment.
        with contextlib.suppress(OSError, ValueError, RuntimeError, TypeError):
            self._response.shutdown()
