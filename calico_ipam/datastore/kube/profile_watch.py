"""Following profiles: one watch of the namespaces and one of the service accounts, told as one (datastore §10)."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace

from calico_ipam.datastore.api import Deadline, Event, Revision
from calico_ipam.datastore.kube.profiles import joined, parts_of, split_revision
from calico_ipam.datastore.kube.watch import Watch
from calico_ipam.model.keys import Resources

WAITING = 100  # events that nobody has fetched yet; then the watches wait
LOOK_AGAIN = 0.5  # seconds after which a thread that waits looks whether the watch was closed

_Told = tuple[int, Event | Exception | None]  # which part; None: it has ended


class ProfileWatch(Iterator[Event]):
    """Changes of profiles after a revision; as :class:`Watch`. One thread for each of the two collections.

    Until both have been listed there is no bookmark: behind it everything has been told.
    """

    def __init__(
        self,
        watch_part: Callable[[Resources, Revision], Watch],
        scope: Resources,
        since: Revision,
        deadline: Deadline | None,
    ) -> None:
        self._scope, self._deadline = scope, deadline
        self._revisions = list(split_revision(since))
        self._parts = {
            place: watch_part(part, self._revisions[place])
            for place, part in enumerate(parts_of(scope))
            if part is not None
        }
        self._told: queue.Queue[_Told] = queue.Queue(WAITING)
        self._closed = threading.Event()
        self._begun = False
        self._lock = threading.Lock()
        self._end = weakref.finalize(self, _end, self._closed, list(self._parts.values()))

    def close(self) -> None:
        """End the iteration, also one that waits in another thread."""
        self._end()

    def __next__(self) -> Event:
        self._begin()
        while not self._closed.is_set():
            try:
                place, told = self._told.get(timeout=LOOK_AGAIN)
            except queue.Empty:
                if self._deadline is not None:
                    self._deadline.check(f"watching {self._scope}")
                continue
            event = self._event(place, told)
            if event is not None:
                return event
        raise StopIteration

    def _event(self, place: int, told: Event | Exception | None) -> Event | None:
        if isinstance(told, Exception):
            self.close()
            raise told
        if told is None:
            self.close()
            return None
        if not told.revision:
            return told  # of a list
        self._revisions[place] = told.revision
        if told.kind == "bookmark" and not all(self._revisions[each] for each in self._parts):
            return None
        return replace(told, revision=joined(self._revisions))

    def _begin(self) -> None:
        with self._lock:
            if self._begun:
                return
            self._begun = True
        for place, part in self._parts.items():
            threading.Thread(
                target=_follow, args=(place, part, self._told, self._closed), name="calico-ipam-profiles", daemon=True
            ).start()


def _follow(place: int, part: Watch, told: queue.Queue[_Told], closed: threading.Event) -> None:
    """Hand on what one watch tells, until it ends."""
    last: Exception | None = None
    try:
        for event in part:
            _put(told, (place, event), closed)
    except Exception as error:  # raised where the events are fetched: nobody would hear of it in this thread
        last = error
    _put(told, (place, last), closed)


def _put(told: queue.Queue[_Told], item: _Told, closed: threading.Event) -> None:
    while not closed.is_set():
        try:
            told.put(item, timeout=LOOK_AGAIN)
        except queue.Full:
            continue
        return


def _end(closed: threading.Event, parts: list[Watch]) -> None:
    closed.set()
    for part in parts:
        part.close()
