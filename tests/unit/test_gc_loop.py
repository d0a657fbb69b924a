"""The inbox, the loop and the feed, with threads and a real store (gc §3, §18.6; limit U21)."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from calico_gc import intake
from calico_gc.assembly import Collector, Place
from calico_gc.facts import cached_pod
from calico_gc.feed import SYNCED, SYNCING, KubeSource
from calico_gc.inbox import Inbox
from calico_gc.intake import Change
from calico_gc.kinds import PODS, calico_kind
from calico_gc.kube import Cluster, pages
from calico_gc.once import ShiftedClock, run_once
from calico_gc.settings import Settings
from calico_gc.timing import Backoff, Bucket, SystemClock

from calico_ipam.datastore.api import Create
from calico_ipam.datastore.kube.codec import Group
from calico_ipam.datastore.kube.errors import Expired
from calico_ipam.datastore.sqlite import SQLiteStore
from calico_ipam.errors import NotFound, StoreUnavailable, Unauthorized
from calico_ipam.model.keys import ResourceKey, Resources
from calico_ipam.model.resource import IP_POOL, NODE, Resource
from tests.gc_world import GcClock, World

PATIENCE = 60.0


def wait_until(true: Callable[[], Any], what: str) -> None:
    until = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < until, f"waited in vain for {what}"
        time.sleep(0.005)


# --- inbox -------------------------------------------------------------------------------------------------------


def kinds(changes: list[Change]) -> list[tuple[str, Any, bool]]:
    return [(change.kind, change.key, change.value is not None) for change in changes]


def test_only_the_newest_of_an_object_counts() -> None:
    inbox = Inbox(SystemClock())
    for revision in ("1", "2", "3"):
        inbox.put(Change(intake.BLOCK, "c", object(), revision))
    _, changes = inbox.take(time.monotonic() + 1)
    assert [change.revision for change in changes] == ["3"]


def test_a_pod_that_comes_again_is_seen_going() -> None:
    inbox = Inbox(SystemClock())
    pod = object()
    for value in (pod, None, pod):
        inbox.put(Change(intake.POD, ("d", "p"), value))
    assert kinds(inbox.take(time.monotonic() + 1)[1]) == [
        (intake.POD, ("d", "p"), False),
        (intake.POD, ("d", "p"), True),
    ]
    for value in (None, pod, None):
        inbox.put(Change(intake.POD, ("d", "p"), value))
    assert kinds(inbox.take(time.monotonic() + 1)[1])[-1] == (intake.POD, ("d", "p"), False)


def test_calls_are_not_kept_waiting_and_changes_neither() -> None:
    inbox = Inbox(SystemClock())
    inbox.put(Change(intake.BLOCK, "c"))
    inbox.call(lambda: None)
    calls, changes = inbox.take(time.monotonic() + 1)
    assert (len(calls), len(changes)) == (1, 1)
    assert len(inbox) == 0


def test_taking_ends_when_something_is_due() -> None:
    inbox = Inbox(SystemClock())
    assert inbox.take(time.monotonic() + 0.01) == ([], [])


# --- patience -----------------------------------------------------------------------------------------------------


def test_backoff_doubles_to_a_limit_and_forgets() -> None:
    backoff, key = Backoff(longest=0.3, spread=lambda: 1.0), ("node", "n")
    waits = [backoff.failed(key, 0.0) for _ in range(9)]
    assert waits[:4] == [0.005, 0.01, 0.02, 0.04]
    assert waits[-1] == 0.3
    assert not backoff.ready(key, 0.29)
    assert backoff.ready(key, 0.3)
    assert backoff.next_due(0.0) == 0.3
    assert backoff.next_due(0.4) is None, "what is due already needs no timer"
    backoff.next_due(2000.0)
    assert backoff.count(key) == 0
    backoff.failed(key, 0.0)
    backoff.succeeded(key)
    assert backoff.ready(key, 0.0)


def test_what_failed_ten_times_is_parked_until_everything_is_looked_at() -> None:
    """gc §18.6."""
    backoff, key = Backoff(), ("node", "n")
    waits = [backoff.failed(key, 0.0) for _ in range(10)]
    assert waits[-1] is None and not backoff.ready(key, 1e9)
    for expected, wait in zip((0.005 * 2**n for n in range(9)), waits, strict=False):
        assert wait == pytest.approx(expected, rel=0.1)
    assert not backoff.ready(key, 1e9) and backoff.waiting(1e9) == [key]
    assert backoff.next_due(0.0) is None
    backoff.unpark(50.0)
    assert backoff.ready(key, 50.0)
    assert backoff.failed(key, 50.0) is None, "one more failure parks it again"
    backoff.succeeded(key)
    assert backoff.ready(key, 50.0) and backoff.count(key) == 0


def test_five_wishes_to_look_again_are_one_look() -> None:
    """gc §19.1: the retry controller fires once, at the earliest time that was wished for."""
    world = World()
    world.start()
    before = world.passes
    for seconds in (5.0, 1.0, 3.0, 1.0, 2.0):
        world.controller.sleep_until(world.clock.mono + seconds)
    world._next_tick = world.clock.mono + 1000.0
    world.run(0.9)
    assert world.passes == before
    world.run(3.0)
    assert world.passes == before + 1


def test_a_bucket_keeps_its_pace() -> None:
    clock = GcClock()
    bucket = Bucket(clock, 10.0)
    began = clock.mono
    for _ in range(50):
        bucket.take()
    assert clock.mono - began == pytest.approx(4.0)


# --- lists and watches -----------------------------------------------------------------------------------------------


def pod(name: str, revision: int) -> dict[str, Any]:
    return {"metadata": {"namespace": "d", "name": name, "resourceVersion": str(revision)}, "spec": {"nodeName": "n"}}


class FakeApi:
    """Answers lists page by page, and watches with scripted lines; what is missing ends the watch."""

    def __init__(self) -> None:
        self.lists: list[Any] = []
        self.watches: list[list[dict[str, Any]]] = []
        self.asked: list[dict[str, str]] = []

    def call(self, request: Any, deadline: Any) -> dict[str, Any]:
        self.asked.append(dict(request.query))
        answer = self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]
        if isinstance(answer, Exception):
            raise answer
        return dict(answer)

    def open_stream(self, request: Any, seconds: float) -> Any:
        self.asked.append(dict(request.query))
        lines = self.watches.pop(0) if self.watches else None
        return FakeStream(lines)


class FakeStream:
    def __init__(self, lines: list[dict[str, Any]] | None) -> None:
        self._lines = lines
        self._ended = threading.Event()

    def stream(self, amt: Any) -> Iterator[bytes]:
        if self._lines is None:
            self._ended.wait(PATIENCE)
            return
        data = b"".join(json.dumps(line).encode() + b"\n" for line in self._lines)
        yield data[:7]
        yield data[7:]

    def close(self) -> None:
        self._ended.set()

    shutdown = close


def listing(*items: dict[str, Any], revision: str = "10", **metadata: str) -> dict[str, Any]:
    return {"kind": "PodList", "metadata": {"resourceVersion": revision, **metadata}, "items": list(items)}


class Heard:
    def __init__(self) -> None:
        self.changes: list[Change] = []

    def put(self, change: Change) -> None:
        self.changes.append(change)

    def of(self, kind: str) -> list[tuple[Any, bool]]:
        return [(c.key[1], c.value is not None) for c in self.changes if c.kind == kind]


def following(api: FakeApi, heard: Heard) -> KubeSource:
    source = KubeSource(api, PODS, heard)  # type: ignore[arg-type]  # a fake in its place
    source.start()
    return source


def test_a_list_comes_in_pages_and_says_when_it_is_complete() -> None:
    api, heard = FakeApi(), Heard()
    api.lists = [listing(pod("a", 1), **{"continue": "more"}), listing(pod("b", 2))]
    source = following(api, heard)
    wait_until(lambda: SYNCED in [c.kind for c in heard.changes], "the list")
    source.stop()
    assert [c.kind for c in heard.changes] == [SYNCING, intake.POD, intake.POD, SYNCED]
    assert api.asked[1]["continue"] == "more"
    assert heard.changes[1].value == cached_pod(pod("a", 1))


def test_a_continuation_that_expired_begins_again() -> None:
    api = FakeApi()
    api.lists = [listing(pod("a", 1), **{"continue": "more"}), Expired("too old"), listing(pod("a", 1), pod("b", 2))]
    found = [item["metadata"]["name"] for items, _ in pages(api, "/api/v1/pods") for item in items]  # type: ignore[arg-type]  # a fake in its place
    assert found == ["a", "a", "b"]


def test_a_watch_that_expires_tells_what_vanished_meanwhile() -> None:
    api, heard = FakeApi(), Heard()
    api.lists = [listing(pod("a", 1), pod("b", 2)), listing(pod("b", 2), pod("c", 9), revision="20")]
    api.watches = [
        [
            {"type": "ADDED", "object": pod("x", 11)},
            {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "15"}}},
            {"type": "ERROR", "object": {"code": 410, "message": "too old"}},
        ]
    ]
    source = following(api, heard)
    wait_until(lambda: sum("watch" in query for query in api.asked) == 2, "the second watch")
    source.stop()
    assert heard.of(intake.POD) == [("a", True), ("b", True), ("x", True), ("c", True), ("a", False), ("x", False)]
    resumed = [query for query in api.asked if query.get("watch")]
    assert resumed[-1]["resourceVersion"] == "20"


def test_a_watch_that_just_ends_goes_on_where_it_was() -> None:
    api, heard = FakeApi(), Heard()
    api.lists = [listing(pod("a", 1))]
    api.watches = [[{"type": "DELETED", "object": pod("a", 12)}]]
    source = following(api, heard)
    wait_until(lambda: sum("watch" in query for query in api.asked) >= 2, "another watch")
    source.stop()
    assert heard.of(intake.POD) == [("a", True), ("a", False)]
    assert [query["resourceVersion"] for query in api.asked if "watch" in query][:2] == ["10", "12"]
    assert [c.kind for c in heard.changes].count(SYNCING) == 1


@pytest.mark.parametrize("error", [StoreUnavailable("away"), Unauthorized("pods is forbidden")])
def test_what_cannot_be_listed_is_never_in_sync(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    api, heard = FakeApi(), Heard()
    api.lists = [error]
    source = following(api, heard)
    wait_until(lambda: "cannot be followed" in caplog.text, "a complaint")
    source.stop()
    assert {c.kind for c in heard.changes} == {SYNCING}, "however often it was tried"


def test_a_definition_that_does_not_exist_counts_as_listed() -> None:
    api, heard = FakeApi(), Heard()
    api.lists = [NotFound("ippools")]
    kind = calico_kind(Resources(IP_POOL), Group("crd.projectcalico.org/v1"))
    source = KubeSource(api, kind, heard)  # type: ignore[arg-type]  # a fake in its place
    source.start()
    wait_until(lambda: SYNCED in [c.kind for c in heard.changes], "it to count")
    source.stop()


# --- live reads ---------------------------------------------------------------------------------------------------


class Counting:
    """Pods of one namespace; counts single reads and lists."""

    def __init__(self, number: int, error: Exception | None = None) -> None:
        self.pods = {f"p{n}": pod(f"p{n}", n) for n in range(number)}
        self.gets = self.lists = 0
        self.error = error

    def call(self, request: Any, deadline: Any) -> dict[str, Any]:
        if self.error is not None:
            raise self.error
        name = request.path.rpartition("/pods")[2].strip("/")
        if not name:
            self.lists += 1
            return listing(*self.pods.values())
        self.gets += 1
        if name not in self.pods:
            raise NotFound(name)
        return self.pods[name]


def test_many_pods_are_read_by_one_list() -> None:
    api = Counting(100)
    cluster = Cluster(api, GcClock(), None)  # type: ignore[arg-type]  # a fake in its place
    keys = {("d", f"p{n}") for n in range(50, 150)}
    found = cluster.workloads(keys)
    assert (api.gets, api.lists) == (0, 1)
    assert {key for key in keys if found.pod(key) is not None} == {("d", f"p{n}") for n in range(50, 100)}
    cluster.workloads({("d", "p1")})
    assert (api.gets, api.lists) == (0, 1), "a list of this moment serves the next group too"
    cluster.clock.advance(10)  # type: ignore[attr-defined]  # of this test's store
    cluster.workloads({("d", "p1")})
    assert (api.gets, api.lists) == (0, 2), "many are asked for just now"
    cluster.clock.advance(20)  # type: ignore[attr-defined]  # of this test's store
    cluster.workloads({("d", "p1")})
    assert (api.gets, api.lists) == (1, 2)


def test_many_small_groups_are_many_pods_too() -> None:
    api = Counting(100)
    cluster = Cluster(api, GcClock(), None)  # type: ignore[arg-type]  # a fake in its place
    for n in range(100):
        assert cluster.workloads({("d", f"p{n}")}).pod(("d", f"p{n}")) is not None
    assert api.gets <= 16
    assert api.lists == 1


def test_leaks_that_come_for_a_while_cost_lists_and_not_reads() -> None:
    api = Counting(200)
    cluster = Cluster(api, GcClock(), None)  # type: ignore[arg-type]  # a fake in its place
    for n in range(200):
        cluster.workloads({("d", f"p{n}")})
        cluster.clock.advance(0.05)  # type: ignore[attr-defined]  # of this test's store
    assert api.gets <= 20
    assert api.lists <= 4
    cluster.clock.advance(60)  # type: ignore[attr-defined]  # of this test's store
    for n in range(20):
        cluster.workloads({("d", f"p{n}")})
    assert api.gets <= 40
    assert api.lists <= 4, "twenty reads are as cheap as a list of two hundred"


def test_pods_that_cannot_be_read_are_not_absent() -> None:
    from calico_gc.decide import UNREADABLE

    cluster = Cluster(Counting(1, StoreUnavailable("away")), GcClock(), None)  # type: ignore[arg-type]  # a fake in its place
    assert cluster.workloads({("d", "p0")}).pod(("d", "p0")) is UNREADABLE
    assert cluster.workloads(set()).pod(("d", "other")) is UNREADABLE, "what was not asked for is not absent either"


def test_nodes_that_cannot_be_read_are_unknown() -> None:
    from calico_gc.decide import Standing

    cluster = Cluster(Counting(1, StoreUnavailable("away")), GcClock(), None)  # type: ignore[arg-type]  # a fake in its place
    assert cluster.nodes(["n"])["n"].standing is Standing.UNKNOWN


def test_a_name_that_no_store_can_keep_says_nothing_of_other_nodes() -> None:
    """An allocation may name anything; on etcd one of them made every node unknown."""
    from calico_gc.decide import Standing

    from tests.memory import MemoryStore

    cluster = Cluster(Counting(1), GcClock(), MemoryStore())  # type: ignore[arg-type]  # a fake in its place
    for many in (2, 30):
        others = [f"gone-{number}" for number in range(many)]
        found = cluster.nodes(["10.0.0.0/33", *others])
        assert found.pop("10.0.0.0/33").standing is Standing.UNKNOWN
        assert {node.standing for node in found.values()} == {Standing.GONE} and len(found) == many


# --- the loop -------------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(tmp_path / "store" / "ipam.db") as opened:
        opened.commit(Create(ResourceKey(IP_POOL, "p"), Resource.new(IP_POOL, "p", {"cidr": "10.0.0.0/24"})))
        opened.commit(Create(ResourceKey(NODE, "n"), Resource.new(NODE, "n", {})))
        yield opened


def running(store: SQLiteStore, **settings: Any) -> tuple[Collector, threading.Thread]:
    place = Place(store, None, host="n", instance="test")
    collector = Collector(place, Settings(leak_grace=1.0, **settings), ShiftedClock(SystemClock()))
    thread = threading.Thread(target=collector.run)
    thread.start()
    return collector, thread


def test_the_loop_follows_a_store_and_makes_views(store: SQLiteStore) -> None:
    collector, thread = running(store)
    try:
        wait_until(lambda: (view := collector.loop.view()) is not None and view.measured, "a first look")
        assert collector.loop.waiting_for() == []
        assert collector.loop.alive() == ""
        from calico_ipam.engine.client import IPAM

        IPAM(store, hostname="n").auto_assign(use="Workload", num4=1, handle="net.x", attrs={"node": "n"})
        wait_until(lambda: (view := collector.loop.view()) is not None and len(view.blocks) == 1, "the new block")
        assert "ipam_blocks" in collector.metrics.page()
    finally:
        collector.stop()
        thread.join(PATIENCE)
    assert not thread.is_alive()


def test_the_loop_rests_while_something_cannot_be_followed(store: SQLiteStore) -> None:
    """A server that is away for an hour: the scan that is due meanwhile does not keep a core busy until it is back."""
    clock = ShiftedClock(SystemClock())
    loop = Collector(Place(store, None, host="n", instance="test"), Settings(leak_grace=1.0), clock).loop
    names = list(loop._synced)
    for name in names:
        loop._apply(Change(SYNCED, name, True))
    loop._tick()
    assert loop._next_tick is not None
    clock.offset = loop._next_tick - clock.monotonic() + 3600
    assert loop._wake_at() <= clock.monotonic(), "a scan is due"
    loop._apply(Change(SYNCING, names[0]))
    loop.controller.sync()
    assert loop._wake_at() > clock.monotonic()
    loop._apply(Change(SYNCED, names[0], True))
    assert loop._wake_at() > clock.monotonic() or loop._next_tick is None
    assert loop._tick(), "it is made when everything is listed again"


def test_an_error_in_a_decision_ends_the_loop(store: SQLiteStore) -> None:
    place = Place(store, None, host="n", instance="test")
    collector = Collector(place, Settings(leak_grace=1.0), ShiftedClock(SystemClock()))

    def broken() -> None:
        raise ZeroDivisionError

    collector.inbox.call(broken)
    with pytest.raises(ZeroDivisionError):
        collector.run()
    assert "the loop ended" in collector.loop.alive()


def test_once_ends_by_itself(store: SQLiteStore) -> None:
    place = Place(store, None, host="n", instance="test")
    clock = ShiftedClock(SystemClock())
    view = run_once(Collector(place, Settings(leak_grace=1.0, once=True), clock), clock)
    assert view.measured
    assert view.suspects == {}


def test_once_says_when_another_leads(store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    from calico_gc import once

    from calico_ipam.errors import RefusedError

    monkeypatch.setattr(once, "LEASE", 0.2)
    place = Place(store, None, host="n", instance="test")
    clock = ShiftedClock(SystemClock())
    collector = Collector(place, Settings(leak_grace=1.0, once=True), clock)
    collector.controller.active = False
    with pytest.raises(RefusedError, match="another instance leads"):
        run_once(collector, clock)
