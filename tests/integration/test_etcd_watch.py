"""Watches on etcd: broken connections, servers that come and go, compaction, silence."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from calico_ipam.datastore.api import Create, Datastore, Deadline, Delete, Entry, Event, Update
from calico_ipam.datastore.etcd import EtcdStore, Patience
from calico_ipam.datastore.etcd.calls import Calls
from calico_ipam.datastore.etcd.library import Library
from calico_ipam.datastore.etcd.watching import ROOM
from calico_ipam.datastore.settings import ETCD, Settings
from calico_ipam.errors import DeadlineExceeded, StoreUnavailable
from calico_ipam.model.addresses import parse_network
from calico_ipam.model.affinity import HOST, VIRTUAL, Affinity, BlockOwner
from calico_ipam.model.handle import Handle
from calico_ipam.model.keys import Affinities, AffinityKey, HandleKey, Handles
from tests.clock import SOON, seconds_since
from tests.etcd_tools import Etcd, Weather, proxied, wait_until

#: Servers are waited for; a watch soon finds out that its line is dead.
QUICK = Patience(request=30.0, connect=0.5, pulse=0.3)


@pytest.fixture
def etcd() -> Iterator[Etcd]:
    with Etcd() as running:
        yield running


@pytest.fixture
def store(etcd: Etcd) -> Iterator[EtcdStore]:
    with closing(EtcdStore(etcd.settings())) as opened:
        yield opened


def opened(*endpoints: str, patience: Patience = QUICK) -> closing[EtcdStore]:
    return closing(EtcdStore(Settings(ETCD, etcd_endpoints=endpoints), patience=patience))


def handle(name: str, number: int = 1) -> Create:
    return Create(HandleKey(name), Handle(name, {"10.0.0.0/26": number}))


class Seen:
    """A watch in a thread, and what it has told."""

    def __init__(self, store: Datastore, since: str, scope: Any = None) -> None:
        self.events: list[Event] = []
        self.bookmarks: list[str] = []
        self._watch: Any = store.watch(scope or Handles(), since)
        self._pool = ThreadPoolExecutor(1)
        self.running = self._pool.submit(self._collect)

    def _collect(self) -> None:
        for event in self._watch:
            if event.kind == "bookmark":
                self.bookmarks.append(event.revision)
            else:
                self.events.append(event)

    def told(self) -> list[tuple[str, str]]:
        return [(event.kind, event.entry.key.id) for event in self.events if event.entry is not None]

    def wait(self, number: int) -> list[tuple[str, str]]:
        wait_until(lambda: self.running.done() or len(self.events) >= number, 60, f"{number} events")
        if self.running.done():
            self.running.result()
        return self.told()

    def __enter__(self) -> Seen:
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.close()
        self.running.result(30)
        self._pool.shutdown()


def test_changes_of_one_commit_are_told_so_that_none_is_lost_on_resuming(store: EtcdStore) -> None:
    since = store.list(Handles()).revision
    store.commit(handle("a"), handle("b"), handle("c"))
    watch = store.watch(Handles(), since)
    first = next(watch)
    assert first.entry is not None and first.entry.key == HandleKey("a")
    assert int(first.entry.revision) > int(first.revision)  # whoever goes on from here gets b and c
    again = store.watch(Handles(), first.revision)
    assert [next(again).entry.key.id for _ in range(3)] == ["a", "b", "c"]
    last = [next(watch) for _ in range(2)][-1]
    assert last.entry is not None and last.revision == last.entry.revision


def test_two_ranges_are_told_in_one_order(store: EtcdStore) -> None:
    def row(kind: str, number: int) -> Create:
        return Create(AffinityKey(BlockOwner(kind, "n"), parse_network(f"10.0.{number}.0/26")), Affinity())

    since = store.list(Affinities()).revision
    with Seen(store, since, Affinities()) as seen:
        for number in range(60):
            store.commit(row((HOST, VIRTUAL)[number % 2], number))
            store.commit(handle(f"h{number}"))
        wait_until(lambda: len(seen.events) >= 60)
        assert [str(e.entry.key.cidr) for e in seen.events if e.entry] == [f"10.0.{n}.0/26" for n in range(60)]


def test_a_deletion_tells_what_was_deleted(store: EtcdStore) -> None:
    (entry,) = store.commit(handle("h", 7))
    watch = store.watch(Handles(), entry.revision)
    store.commit(Delete(entry))
    event = next(watch)
    assert (event.kind, event.entry) == ("deleted", entry)
    assert int(event.revision) > int(entry.revision)


@pytest.mark.parametrize("endings", [10])
def test_a_watch_goes_on_when_its_connection_breaks(etcd: Etcd, store: EtcdStore, endings: int) -> None:
    with (
        proxied(etcd) as proxy,
        opened(proxy.endpoint) as watching,
        Seen(watching, store.list(Handles()).revision) as seen,
    ):
        for number in range(endings):
            store.commit(handle(f"h{number}"))
            proxy.cut()
        assert seen.wait(endings) == [("added", f"h{number}") for number in range(endings)]


def test_a_watch_moves_to_the_next_endpoint(etcd: Etcd, store: EtcdStore) -> None:
    with (
        proxied(etcd) as proxy,
        opened(proxy.endpoint, etcd.endpoint) as watching,
        Seen(watching, store.list(Handles()).revision) as seen,
    ):
        store.commit(handle("a"))
        seen.wait(1)
        proxy.weather = Weather(requests=False, answers=False)  # half-open: nothing comes, nothing is told
        store.commit(handle("b"))
        assert seen.wait(2) == [("added", "a"), ("added", "b")]


def test_a_watch_outlives_a_restart(etcd: Etcd, store: EtcdStore) -> None:
    with Seen(store, store.list(Handles()).revision) as seen:
        store.commit(handle("a"))
        seen.wait(1)
        etcd.restart()
        wait_until(lambda: store.list(Handles()))
        store.commit(handle("b"))
        assert seen.wait(2) == [("added", "a"), ("added", "b")]


def test_compaction_behind_the_back_of_a_watch(etcd: Etcd, store: EtcdStore) -> None:
    """What happened while it was cut off, and was then compacted, is found by listing again: also what is gone."""
    kept, changed, gone = store.commit(handle("kept"), handle("changed"), handle("gone"))
    with (
        proxied(etcd) as proxy,
        opened(proxy.endpoint, patience=Patience(connect=0.3, pulse=0.3)) as watching,
        Seen(watching, kept.revision) as seen,
    ):
        store.commit(handle("before"))
        seen.wait(1)
        proxy.weather = Weather(requests=False, answers=False)
        proxy.cut()
        store.commit(Update(changed, Handle("changed", {"10.0.0.0/26": 2})))
        store.commit(Delete(gone))
        store.commit(handle("new"))
        (brief,) = store.commit(handle("brief"))
        store.commit(Delete(brief))
        newest = etcd.compact()
        proxy.weather = Weather()
        assert sorted(seen.wait(4)[1:]) == [("added", "new"), ("deleted", "gone"), ("modified", "changed")]
        wait_until(lambda: str(newest) in seen.bookmarks)
        deleted = next(event for event in seen.events if event.kind == "deleted")
        assert deleted.entry == gone  # its last state, although etcd has forgotten it
        store.commit(handle("after"))
        assert seen.wait(5)[4] == ("added", "after")
        assert len(seen.events) == 5


def test_a_watch_from_a_forgotten_revision_tells_all_there_is(etcd: Etcd, store: EtcdStore) -> None:
    (first,) = store.commit(handle("a"))
    (second,) = store.commit(handle("b"))
    store.commit(Delete(second))
    etcd.compact()
    with Seen(store, first.revision) as seen:
        assert seen.wait(1) == [("added", "a")]
        store.commit(handle("c"))
        assert seen.wait(2)[1] == ("added", "c")


def test_a_watch_from_the_beginning(etcd: Etcd, store: EtcdStore) -> None:
    (entry,) = store.commit(handle("a"))
    store.commit(Delete(entry))
    with Seen(store, "0") as seen:
        assert seen.wait(2) == [("added", "a"), ("deleted", "a")]


def test_a_store_that_was_set_back_is_listed_again(etcd: Etcd) -> None:
    """Restored from a backup, or another cluster under the same address: our revision lies in its future."""
    with Etcd() as other:
        other.put("/calico/ipam/v2/handle/only-there", '{"block":{},"deleted":false}')
        with opened(etcd.endpoint) as store:
            store.commit(handle("only-here"))
            for number in range(20):
                store.commit(handle(f"h{number}"))
            since = store.list(Handles()).revision
        with opened(other.endpoint) as store, Seen(store, since) as seen:
            assert seen.wait(1) == [("added", "only-there")]
            store.commit(handle("next"))
            assert seen.wait(2)[1] == ("added", "next")


def test_an_etcd_that_begins_anew_is_listed_again(etcd: Etcd, store: EtcdStore) -> None:
    """Its data directory was lost while we watched: it would wait in silence for our revision to come."""
    for number in range(20):
        (entry,) = store.commit(handle(f"h{number:02}"))
    with Seen(store, entry.revision) as seen:
        store.commit(handle("seen"))
        seen.wait(1)
        etcd.begin_anew()
        etcd.put("/calico/ipam/v2/handle/new", '{"block":{},"deleted":false}')
        told = seen.wait(23)[1:]
        assert sorted(told) == [("added", "new"), *(("deleted", f"h{n:02}") for n in range(20)), ("deleted", "seen")]
        store.commit(handle("next"))
        assert seen.wait(24)[23] == ("added", "next")


def test_a_quiet_watch_shows_that_it_lives(store: EtcdStore, etcd: Etcd) -> None:
    (entry,) = store.commit(handle("h"))
    with opened(etcd.endpoint) as quick, Seen(quick, entry.revision) as seen:
        wait_until(lambda: len(seen.bookmarks) >= 3)
        assert set(seen.bookmarks) == {entry.revision}
        assert not seen.events


def test_a_frozen_server_is_noticed_and_left(etcd: Etcd, store: EtcdStore) -> None:
    with (
        proxied(etcd) as proxy,
        opened(proxy.endpoint) as watching,
        Seen(watching, store.list(Handles()).revision) as seen,
    ):
        store.commit(handle("a"))
        seen.wait(1)
        connections = proxy.connections
        etcd.freeze()
        try:
            wait_until(lambda: proxy.connections > connections, what="another connection")
        finally:
            etcd.thaw()
        store.commit(handle("b"))
        assert seen.wait(2)[1] == ("added", "b")


def test_a_watch_without_any_contact_fails_in_the_end(etcd: Etcd) -> None:
    with opened(etcd.endpoint) as store:
        watch = store.watch(Handles(), "0")
        store.commit(handle("a"))
        assert next(watch).entry is not None
        etcd.stop()
        store._calls.patience = Patience(request=0.5, connect=0.2, pulse=0.2, outage=1.5)
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match=r"no contact for \d+ s"):
            while True:
                next(watch)
        assert seconds_since(began) < SOON + 1.5


def test_a_deadline_ends_a_watch(store: EtcdStore) -> None:
    bound = store.within(Deadline.after(0.5))
    began = time.monotonic()
    with pytest.raises(DeadlineExceeded, match="out of time while watching etcd://"):
        for _ in bound.watch(Handles(), store.list(Handles()).revision):
            pass
    assert seconds_since(began) < SOON


def threads_since(before: set[threading.Thread]) -> set[threading.Thread]:
    return set(threading.enumerate()) - before


def test_closing_ends_a_watch_that_waits(store: EtcdStore) -> None:
    before = set(threading.enumerate())
    for _ in range(5):
        with Seen(store, store.list(Handles()).revision):
            pass
    wait_until(lambda: not threads_since(before), what="the threads to end")


@pytest.mark.parametrize("given_up", [False, True])
def test_a_store_that_is_closed_ends_its_watches_at_once(etcd: Etcd, given_up: bool) -> None:
    """Also one on a connection that another request gave up meanwhile. By itself it would look up after ten minutes."""
    with opened(etcd.endpoint, patience=Patience(pulse=600.0)) as store, ThreadPoolExecutor(1) as pool:
        store.commit(handle("h"))
        watch = store.watch(Handles(), "0")
        assert next(watch).entry is not None
        waiting = pool.submit(list, watch)
        if given_up:
            with store._links.link() as link:
                store._links.leave(link)
            store.list(Handles())  # on another connection
        store.close()
        assert waiting.result(30) == []


def test_a_watch_that_is_forgotten_ends(store: EtcdStore) -> None:
    store.commit(handle("h"))
    before = set(threading.enumerate())
    watch = store.watch(Handles(), "0")
    assert next(watch).entry is not None
    begun = threads_since(before)
    assert [each.name for each in begun if each.name == "etcd-watch"]
    del watch
    wait_until(lambda: not any(each.is_alive() for each in begun), what="its threads to end")


@pytest.mark.timeout(180)
def test_nothing_is_lost_or_told_twice_in_bad_weather(etcd: Etcd, store: EtcdStore) -> None:
    """A copy of the store, kept by events only, is the store; each state is told once."""
    copy: dict[str, str] = {}
    told: list[tuple[str, str, str]] = []
    with (
        proxied(etcd) as proxy,
        opened(proxy.endpoint) as watching,
        Seen(watching, store.list(Handles()).revision) as seen,
    ):
        entries: dict[str, Entry] = {}
        for number in range(200):
            name = f"h{number % 7}"
            if name in entries:
                entry = entries.pop(name)
                store.commit(Delete(entry))
            else:
                (entries[name],) = store.commit(handle(name, number))
            if number % 20 == 0:
                seen.wait(number + 1)
                proxy.cut()
        (last,) = store.commit(handle("last"))
        wait_until(lambda: ("added", "last") in seen.told(), 60)
        for event in seen.events:
            assert event.entry is not None
            told.append((event.kind, event.entry.key.id, event.entry.revision))
            if event.kind == "deleted":
                del copy[event.entry.key.id]
            else:
                assert event.entry.key.id not in copy
                copy[event.entry.key.id] = event.entry.revision
    assert len(told) == len(set(told)) == 201
    assert proxy.connections > 8
    assert copy == {entry.key.id: entry.revision for entry in (*entries.values(), last)}


# --- its reader ---------------------------------------------------------------------------------------------


def test_a_slow_reader_holds_etcd_up_and_misses_nothing(store: EtcdStore) -> None:
    since = store.list(Handles()).revision
    before = set(threading.enumerate())
    watch: Any = store.watch(Handles(), since)
    store.commit(handle("first"))
    assert next(watch).kind == "added"
    for number in range(3 * ROOM):
        store.commit(handle(f"h{number}"))
    waiting = watch._changes._stream._answers
    wait_until(lambda: waiting.qsize() >= ROOM, 30, "answers that wait")
    assert waiting.qsize() <= ROOM + 1
    told = [next(watch).entry.key.id for _ in range(3 * ROOM)]
    assert told == [f"h{number}" for number in range(3 * ROOM)]
    store.commit(*(handle(f"i{number}") for number in range(100)))
    watch.close()
    wait_until(lambda: not threads_since(before), 30, "its thread")


def test_a_reader_that_was_away_is_no_outage(store: EtcdStore, monkeypatch: pytest.MonkeyPatch) -> None:
    away = 0.0
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + away)
    monkeypatch.setattr("calico_ipam.datastore.etcd.watching.time", clock)
    watch = store.watch(Handles(), store.list(Handles()).revision)
    store.commit(handle("a"), handle("b"))
    assert next(watch).kind == "added"
    assert next(watch).kind == "added"
    away = 2 * store._calls.patience.outage
    store.commit(handle("c"))
    assert next(watch).kind == "added"


@pytest.mark.parametrize("moment", ["before it asks", "before it opens the stream"])
def test_a_store_that_is_closed_in_the_wrong_moment_ends_the_watch(
    store: EtcdStore, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = store.watch(Handles(), store.list(Handles()).revision)
    owner, name = (Calls, "settle") if moment == "before it asks" else (Library, "watch")
    original = getattr(owner, name)

    def closing_first(self: Any, argument: Any) -> Any:
        result = original(self, argument)
        store.close()
        return result

    monkeypatch.setattr(owner, name, closing_first)
    assert list(watch) == []
