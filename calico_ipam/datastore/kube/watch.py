"""Following changes in the Kubernetes API: resumes, lists again when history is gone, never silent (datastore §7)."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from calico_ipam.datastore.api import Damaged, Entry, Event, Listing, Revision
from calico_ipam.datastore.kube.api import KubeApi, Request
from calico_ipam.datastore.kube.errors import Expired
from calico_ipam.datastore.kube.objects import entry_of, marked_deleted, meta, within_scope
from calico_ipam.datastore.kube.paths import Collection
from calico_ipam.errors import DeadlineExceeded, IPAMError, NotFound, StoreError
from calico_ipam.model.keys import Key, Scope
from calico_ipam.model.resource import mapping

if TYPE_CHECKING:
    from calico_ipam.datastore.kube.store import KubernetesStore

log = logging.getLogger(__name__)

#: the server ends a watch after so many seconds and it is made again: a line that died unseen is noticed by then
WATCH_SECONDS = 120.0
#: seconds beyond that before the line counts as dead
GRACE = 15.0
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
#: seconds between looks at a collection whose definition is not installed
POLL = 5.0


class Watch(Iterator[Event]):
    """Changes of a scope after a revision, for ever; an empty revision begins with what is there.

    What was seen is remembered, so that removals which happened while nobody was looking are told after a new list.
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
        self._scope = scope
        self._revision = since
        self._store_closed = store_closed
        self._closed = threading.Event()
        self._known: dict[Key, Entry] = {}
        self._marked: set[str] = set()  # UIDs whose removal has been told when they were marked
        self._queue: deque[Event] = deque()
        self._stream: _Stream | None = None
        self._pause = 0.0

    def close(self) -> None:
        """End the iteration, also one that waits in another thread."""
        self._closed.set()
        stream = self._stream
        if stream is not None:
            stream.end()

    def __next__(self) -> Event:
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
                self._pause = min(LONGEST_PAUSE, self._pause * 2 or FIRST_PAUSE)
                log.warning("watch of %s waits %.1f s: %s", self._scope, self._pause, error)
                self._wait(self._pause)
        self._leave()
        raise StopIteration

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
        if not self._revision:
            self._list()
        elif self._stream is None:
            self._open()
        else:
            line = self._stream.next_line()
            if line is None:
                self._stream = None  # the server ended it, as it does after a while
            else:
                self._told(line)

    def _list(self) -> None:
        listing = self._store.list(self._scope)
        if not listing.revision:
            self._wait(POLL)  # the definition is not installed yet
            return
        self._queue.extend(self._differences(listing))
        self._revision = listing.revision
        self._marked.clear()

    def _differences(self, listing: Listing) -> Iterator[Event]:
        now = {entry.key: entry for entry in listing}
        for key in [key for key in self._known if key not in now]:
            yield Event("deleted", listing.revision, self._known.pop(key))
        for damaged in listing.damaged:
            yield Event("damaged", listing.revision, damaged=damaged)
        for key, entry in now.items():
            before = self._known.get(key)
            self._known[key] = entry
            if before is None or before.revision != entry.revision:
                yield Event("added" if before is None else "modified", listing.revision, entry)

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
            if document.get("code") == 410 or document.get("reason") in ("Expired", "Gone"):
                raise Expired(text)
            raise StoreError(f"the watch of {self._scope} failed: {text}")
        self._pause = 0.0
        self._revision = meta(document, "resourceVersion") or self._revision
        if kind == "BOOKMARK":
            self._queue.append(Event("bookmark", self._revision))
            return
        event = self._event(kind, document)
        if event is not None:
            self._queue.append(event)

    def _event(self, kind: str, document: Mapping[str, Any]) -> Event | None:
        found = entry_of(self._collection.kind, document, self._store.group)
        if isinstance(found, Damaged):
            return None if kind == "DELETED" else Event("damaged", self._revision, damaged=found)
        if not within_scope(self._scope, found):
            return None
        if kind == "DELETED" or marked_deleted(found):
            # Marked as deleted is gone (datastore §14.3); the removal that follows says nothing new.
            last = self._known.pop(found.key, found)
            told = found.uid in self._marked
            (self._marked.discard if kind == "DELETED" else self._marked.add)(found.uid)
            return None if told else Event("deleted", self._revision, last)
        new = kind == "ADDED" and found.key not in self._known
        self._known[found.key] = found
        return Event("added" if new else "modified", self._revision, found)


class _Stream:
    """The lines of one watch request."""

    def __init__(self, response: Any) -> None:
        self._response = response
        self._pieces: Iterator[bytes] = response.stream(amt=None)
        self._lines: deque[bytes] = deque()
        self._rest = b""

    def next_line(self) -> bytes | None:
        """Return the next line as soon as it is there; None when the answer ends, in whatever way."""
        from urllib3.exceptions import HTTPError

        while not self._lines:
            try:
                piece = next(self._pieces, None)
            except (HTTPError, OSError, ValueError) as error:  # ValueError: the socket was closed under it
                log.debug("a watch broke: %s", error)
                piece = None
            if piece is None:
                self._response.close()
                return None
            *lines, self._rest = (self._rest + piece).split(b"\n")
            self._lines.extend(line for line in lines if line.strip())
        return self._lines.popleft()

    def end(self) -> None:
        """End the answer; a thread that waits for its next line gets None."""
        with contextlib.suppress(OSError, ValueError, RuntimeError):  # it has ended already
            self._response.shutdown()
