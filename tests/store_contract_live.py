"""What every datastore must do while others use it: watches, deadlines, many threads and processes, sudden death.

The second half of tests/store_contract.py; a backend's test class inherits both.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, cast

import pytest

from calico_ipam.datastore.api import Create, Datastore, Deadline, Delete, Entry, Event, Update
from calico_ipam.errors import Conflict, DeadlineExceeded, TransientError
from calico_ipam.model.affinity import VIRTUAL
from calico_ipam.model.keys import Affinities, Blocks, ConfigKey, HandleKey, Handles
from tests.clock import SOON, seconds_since
from tests.store_contract import PATIENCE, Backend, count, counter, handle, row

SPAWN = multiprocessing.get_context("spawn")


class LiveStoreContract:
    """Inherited by one class for each backend, which provides the fixture ``backend``."""

    @pytest.fixture
    def store(self, backend: Backend) -> Iterator[Datastore]:
        with closing(backend.open()) as opened:
            yield opened

    # --- watching ------------------------------------------------------------------------------------------

    def test_a_watch_tells_what_happens(self, store: Datastore, backend: Backend) -> None:
        store.commit(handle("before"))
        since = store.list(Handles()).revision
        with Watching(backend, Handles(), since) as seen:
            (entry,) = store.commit(Create(HandleKey("h"), counter("h")))
            store.commit(row("n", "10.0.0.0/26"))  # not of the scope
            (entry,) = store.commit(Update(entry, counter("h", 1)))
            store.commit(Delete(entry))
            events = seen.wait(3)
        assert [(e.kind, e.entry.key.id, count(e.entry)) for e in events if e.entry] == [
            ("added", "h", 0),
            ("modified", "h", 1),
            ("deleted", "h", 1),
        ]
        revisions = [int(e.revision) for e in events]
        assert revisions == sorted(set(revisions))
        assert revisions[0] > int(since)

    def test_without_a_revision_a_watch_begins_with_what_is_there(self, store: Datastore) -> None:
        (gone,) = store.commit(handle("gone"))
        store.commit(Delete(gone))
        store.commit(handle("a"))
        store.commit(handle("b"))
        events = store.within(Deadline.after(PATIENCE)).watch(Handles(), "")
        first = [next(events) for _ in range(3)]
        assert [(e.kind, e.entry and e.entry.key.id) for e in first] == [
            ("added", "a"),
            ("added", "b"),
            ("bookmark", None),
        ]
        store.commit(handle("c"))
        again = store.within(Deadline.after(PATIENCE)).watch(Handles(), first[-1].revision)
        for watch in (events, again):
            event = next(e for e in watch if e.kind != "bookmark")
            assert (event.kind, event.entry and event.entry.key.id) == ("added", "c")
            cast(Any, watch).close()

    def test_a_watch_resumes_where_it_ended(self, store: Datastore, backend: Backend) -> None:
        since = store.list(Handles()).revision
        for number in range(10):
            store.commit(handle(f"h{number}"))
        told: list[str] = []
        for _ in range(5):
            with Watching(backend, Handles(), since) as seen:
                events = seen.wait(2)[:2]
            told += [e.entry.key.id for e in events if e.entry]
            since = events[-1].revision
        assert told == [f"h{number}" for number in range(10)]

    def test_a_watch_is_of_its_scope_only(self, store: Datastore, backend: Backend) -> None:
        since = store.list(Blocks()).revision
        with Watching(backend, Affinities(None, "worker-1"), since) as seen:
            store.commit(row("worker-10", "10.0.0.0/26"), row("worker-1", "10.0.0.64/26"))
            store.commit(row("worker-1", "10.0.0.128/26", VIRTUAL))
            events = seen.wait(2)
        assert [str(e.entry.key.owner) for e in events if e.entry] == ["host:worker-1", "virtual:worker-1"]

    def test_a_closed_store_ends_its_watches(self, backend: Backend) -> None:
        store = backend.open()
        with ThreadPoolExecutor(1) as pool:
            events = store.watch(Blocks(), "")
            assert next(events).kind == "bookmark"
            watching = pool.submit(lambda: [event for event in events if event.kind != "bookmark"])
            time.sleep(0.2)  # so that it really waits
            store.close()
            assert watching.result(PATIENCE) == []

    def test_a_watch_keeps_the_deadline(self, store: Datastore) -> None:
        started = time.monotonic()
        with pytest.raises(DeadlineExceeded):
            next(store.within(Deadline.after(0.2)).watch(Blocks(), "0"))
        assert seconds_since(started) < SOON

    # --- time ----------------------------------------------------------------------------------------------

    def test_nothing_begins_after_the_deadline(self, store: Datastore) -> None:
        late = store.within(Deadline.after(-1))
        operations: tuple[Callable[[], object], ...] = (
            lambda: late.get(ConfigKey()),
            lambda: late.list(Blocks()),
            lambda: late.read(ConfigKey()),
            lambda: late.commit(handle("h")),
        )
        for operation in operations:
            with pytest.raises(TransientError):
                operation()
        assert len(store.within(Deadline.after(PATIENCE)).list(Handles())) == 0
        assert len(late.within(None).list(Handles())) == 0

    # --- many at once --------------------------------------------------------------------------------------

    def test_threads_share_a_store(self, store: Datastore) -> None:
        store.commit(Create(HandleKey("h"), counter("h")))
        with ThreadPoolExecutor(8) as pool:
            for each in [pool.submit(add, store, 25) for _ in range(8)]:
                each.result(PATIENCE * 2)
        assert count(store.get(HandleKey("h"))) == 200

    @pytest.mark.timeout(180)
    def test_eight_processes_lose_nothing(self, store: Datastore, backend: Backend) -> None:
        store.commit(Create(HandleKey("h"), counter("h")))
        workers = [SPAWN.Process(target=add_elsewhere, args=(backend.open, 15)) for _ in range(8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(PATIENCE * 4)
            assert worker.exitcode == 0
        assert count(store.get(HandleKey("h"))) == 120


class Watching:
    """A watch in a thread of its own; what it tells is collected."""

    def __init__(self, backend: Backend, scope: Any, since: str) -> None:
        self._store = backend.open()
        self._events = self._store.watch(scope, since)
        self._seen: list[Event] = []
        self._pool = ThreadPoolExecutor(1)

    def __enter__(self) -> Watching:
        self._running = self._pool.submit(self._collect)
        return self

    def _collect(self) -> None:
        for event in self._events:
            self._seen.append(event)

    def wait(self, number: int) -> list[Event]:
        """Return what was told, bookmarks aside, as soon as it is ``number`` events."""
        wait_until(lambda: self._running.done() or len(self._told()) >= number)
        return self._told()

    def _told(self) -> list[Event]:
        return [event for event in self._seen if event.kind != "bookmark"]

    def __exit__(self, *_: object) -> None:
        cast(Any, self._events).close()
        self._running.result(PATIENCE)
        self._pool.shutdown()
        self._store.close()


def wait_until(true: Callable[[], bool]) -> None:
    """Wait for a condition; fail after PATIENCE seconds."""
    until = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.002)


def add(store: Datastore, times: int) -> None:
    """Add 1 to the counter ``h`` by compare-and-swap, ``times`` times."""
    for _ in range(times):
        while True:
            entry = store.get(HandleKey("h"))
            with contextlib.suppress(Conflict):
                store.commit(Update(entry, counter("h", count(entry) + 1)))
                break


def add_elsewhere(opener: Callable[[], Datastore], times: int) -> None:
    with closing(opener()) as store:
        add(store, times)


def write_for_ever(opener: Callable[[], Datastore]) -> None:
    """Raise two counters together until somebody kills us."""
    store = opener()
    pair: Sequence[Entry] = [store.get(HandleKey(name)) for name in "ab"]
    number = count(pair[0])
    while True:
        number += 1
        pair = store.commit(*(Update(entry, counter(entry.key.id, number)) for entry in pair))


def _beyond(store: Datastore, reached: int) -> bool:
    return count(store.get(HandleKey("a"))) > reached
