"""What the collector makes of odd answers of the API server: never that something is gone (gc §7, safety rule 1)."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from calico_gc import intake
from calico_gc.decide import UNREADABLE, Standing
from calico_gc.feed import BROKEN, SYNCED, SYNCING, DatastoreSource, KubeSource, KubeVirt, _Relay
from calico_gc.intake import Change
from calico_gc.kinds import INSTANCES, MACHINES, NODES, PODS, Kind
from calico_gc.kube import Cluster, everything

from calico_ipam.datastore.api import Create, Damaged, Listing
from calico_ipam.datastore.kube.api import KubeApi, Request
from calico_ipam.datastore.kube.errors import error_of
from calico_ipam.errors import IPAMError, NotFound, StoreError, StoreUnavailable
from calico_ipam.model.addresses import parse_network
from calico_ipam.model.keys import BlockKey, Blocks, ResourceKey
from calico_ipam.model.resource import NODE, Resource
from tests.bad_api import BadApi, answering, hanging, in_turn
from tests.gc_world import GcClock
from tests.kube_tools import wait_until
from tests.memory import MemoryStore

NO_SUCH_PATH = b"404 page not found\n"


class Api:
    """Answers by path with a document, or with an error; what is not scripted does not exist."""

    def __init__(self, answers: dict[str, Any] | None = None) -> None:
        self.answers = answers or {}
        self.asked: list[str] = []
        self.deadlines: list[Any] = []

    def call(self, request: Request, deadline: Any) -> dict[str, Any]:
        self.asked.append(request.path)
        self.deadlines.append(deadline)
        if request.path not in self.answers:
            raise error_of(request, 404, {}, b'{"kind":"Status","reason":"NotFound"}', "here")
        answer = self.answers[request.path]
        if isinstance(answer, bytes):
            raise error_of(request, 404, {}, answer, "here")
        if isinstance(answer, Exception):
            raise answer
        return dict(answer)


def cluster(answers: dict[str, Any] | None = None, calico: MemoryStore | None = None) -> Cluster:
    return Cluster(Api(answers), GcClock(), calico)  # type: ignore[arg-type]  # a fake in its place


def many(number: int) -> set[tuple[str, str]]:
    return {("d", f"p{n}") for n in range(number)}


# --- live reads -----------------------------------------------------------------------------------------------------


def test_only_the_api_server_itself_can_say_that_a_pod_is_gone() -> None:
    """A wrong program at the address answers "404 page not found" to everything."""
    path = "/api/v1/namespaces/d/pods/p"
    assert cluster().workloads({("d", "p")}).pod(("d", "p")) is None
    assert cluster({path: NO_SUCH_PATH}).workloads({("d", "p")}).pod(("d", "p")) is UNREADABLE
    assert cluster({path: b"<html>"}).workloads({("d", "p")}).pod(("d", "p")) is UNREADABLE


@pytest.mark.parametrize(
    "answer", [{}, {"items": []}, {"kind": "Pod"}, {"kind": "PodList"}, {"kind": "PodList", "items": {}}, NO_SUCH_PATH]
)
def test_what_is_no_list_is_not_an_empty_one(answer: Any) -> None:
    live = cluster({"/api/v1/namespaces/d/pods": answer})
    assert {live.workloads(many(40)).pod(key) for key in many(40)} == {UNREADABLE}


def test_an_empty_list_may_be_null() -> None:
    live = cluster({"/api/v1/namespaces/d/pods": {"kind": "PodList", "metadata": {}, "items": None}})
    assert {live.workloads(many(40)).pod(key) for key in many(40)} == {None}


def test_one_name_that_the_server_does_not_take_says_nothing_of_the_others() -> None:
    odd = "/api/v1/namespaces/d/pods/bad"
    found = cluster({odd: StoreError("400: bad name")}).workloads({("d", "bad"), ("d", "gone")})
    assert found.pod(("d", "bad")) is UNREADABLE
    assert found.pod(("d", "gone")) is None


@pytest.mark.parametrize("name", ["..", ".", "\ud800", "a/b", "a?b", "a#b", "p/status"])
def test_a_name_leads_nowhere_else(name: str) -> None:
    live = cluster({"/api/v1/namespaces/d/pods/p/status": {"kind": "Pod"}, "/api/v1/namespaces/d": {}})
    live.workloads({("d", name), ("d", "other")})
    live.nodes([name, "n"])
    assert all(path.count("/") in (4, 6) for path in live.api.asked), live.api.asked  # type: ignore[attr-defined]  # of the fake


def test_no_request_waits_for_ever() -> None:
    """A server may ask to come back tomorrow."""
    live = cluster({"/api/v1/namespaces/d/pods": {"kind": "PodList", "items": []}})
    live.workloads(many(40) | {("e", "p")})
    live.nodes(["n"])
    assert all(deadline is not None for deadline in live.api.deadlines)  # type: ignore[attr-defined]  # of the fake


def test_only_the_api_server_itself_can_say_that_a_node_is_gone() -> None:
    assert cluster().nodes(["n"])["n"].gone
    for answer in (NO_SUCH_PATH, StoreUnavailable("away"), StoreError("odd")):
        assert cluster({"/api/v1/nodes/n": answer}).nodes(["n"])["n"].standing is Standing.UNKNOWN
        listed = cluster({"/api/v1/nodes": answer}).nodes([f"n{i}" for i in range(40)])
        assert {node.standing for node in listed.values()} == {Standing.UNKNOWN}


def test_one_node_that_cannot_be_read_says_nothing_of_the_others() -> None:
    found = cluster({"/api/v1/nodes/bad": StoreError("odd"), "/api/v1/nodes/there": {}}).nodes(["bad", "there", "gone"])
    assert found["bad"].standing is Standing.UNKNOWN
    assert found["there"].exists
    assert found["gone"].gone


def calico_nodes(*names: str, damaged: str) -> MemoryStore:
    store = MemoryStore()
    for name in (*names, damaged):
        spec = {"orchRefs": [{"nodeName": f"k-{name}", "orchestrator": "k8s"}]}
        store.commit(Create(ResourceKey(NODE, name), Resource.new(NODE, name, spec)))
    path = next(path for path in store._rows if path.endswith(f"/{damaged}"))
    row = store._rows[path]
    store._rows[path] = type(row)(path, "{", row.revision)
    return store


@pytest.mark.parametrize("number", [2, 40], ids=["read by name", "read by list"])
def test_a_calico_node_that_cannot_be_understood_is_not_gone(number: int) -> None:
    """Else the tunnel address of a live node would be given to a pod."""
    names = [f"n{i}" for i in range(number)]
    store = calico_nodes(*names[1:], damaged="n0")
    nodes: dict[str, Any] = {f"/api/v1/nodes/k-{name}": {} for name in names}
    nodes["/api/v1/nodes"] = {"kind": "NodeList", "items": [{"metadata": {"name": f"k-{name}"}} for name in names]}
    found = cluster(nodes, store).nodes([*names, "gone"])
    assert found["n0"].standing is Standing.UNKNOWN
    assert found["n1"].exists, "one damaged node says nothing of the others"
    assert found["gone"].gone


# --- what is followed -----------------------------------------------------------------------------------------------


class Heard:
    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.told = threading.Event()

    def put(self, change: Change) -> None:
        self.changes.append(change)
        self.told.set()

    def kinds(self) -> list[str]:
        return [change.kind for change in self.changes]


class Lists:
    """Answers each list with the next of a script, and ends each watch at once; ends the source after the script."""

    def __init__(self, *script: Any) -> None:
        self.script = list(script)
        self.stop: Callable[[], None] = lambda: None

    def call(self, request: Request, deadline: Any) -> dict[str, Any]:
        answer = self.script.pop(0)
        if not self.script:
            self.stop()
        if isinstance(answer, Exception):
            raise answer
        return dict(answer)

    def open_stream(self, request: Request, seconds: float) -> Any:
        raise StoreUnavailable("watches are not to be had")


def follow(kind: Kind, sink: Any, *script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calico_gc.feed.FIRST_PAUSE", 0.0)
    monkeypatch.setattr("calico_gc.feed.LONGEST_PAUSE", 0.0)
    api = Lists(*script)
    source = KubeSource(api, kind, sink)  # type: ignore[arg-type]  # a fake in its place
    api.stop = source.stop
    source._run_or_tell()


def listed(kind: str, *names: str) -> dict[str, Any]:
    items = [{"metadata": {"namespace": "d", "name": name, "resourceVersion": "1"}} for name in names]
    return {"kind": kind, "metadata": {"resourceVersion": "1"}, "items": items}


def test_a_silent_watch_of_a_server_that_was_restored_ends_in_a_new_list() -> None:
    """It would say nothing until its history is as long as the one it lost (datastore §7)."""
    ahead = {"kind": "Status", "code": 504, "details": {"causes": [{"reason": "ResourceVersionTooLarge"}]}}
    restored = in_turn(
        answering(200, listed("PodList", "a", "b")),
        answering(200, b""),
        answering(504, ahead),
        answering(200, listed("PodList", "b")),
        hanging,
    )
    heard = Heard()
    with BadApi(restored) as bad:
        api = KubeApi(bad.settings())
        source = KubeSource(api, PODS, heard)
        source.start()
        wait_until(lambda: len(bad.requests) == 5, what="the next watch")
        source.stop()
        api.close()
    assert heard.kinds() == [SYNCING, *[intake.POD] * 2, SYNCED, SYNCING, intake.POD, SYNCED]
    assert bad.requests[2].path.endswith("?resourceVersion=1&resourceVersionMatch=NotOlderThan&limit=1")


@pytest.mark.parametrize("kind", [PODS, NODES, MACHINES, INSTANCES], ids=lambda kind: kind.name)
def test_kinds_that_always_exist_do_not_vanish(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do machines, while KubeVirt's definitions are made anew."""
    heard = Heard()
    gone = NotFound(kind.path, "the server could not find the requested resource")
    follow(kind, heard, listed("List", "a"), gone, gone, monkeypatch=monkeypatch)
    assert [change.value for change in heard.changes if change.key == ("d", "a") or change.key == "a"] != [None]
    assert all(c.value is not None for c in heard.changes if c.kind not in ("syncing", "synced"))
    assert heard.kinds().count(SYNCED) == 1


@pytest.mark.parametrize("document", [{}, {"metadata": None}, {"metadata": {"namespace": "d", "name": "a"}, "spec": 7}])
def test_an_object_that_went_is_told_whatever_its_last_state_was(
    document: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """gc §19.1, tombstones: what the API server sends with a deletion may be its last state, an old one, or nothing."""
    heard = Heard()
    source = KubeSource(Lists(), PODS, heard)  # type: ignore[arg-type]  # a fake in its place
    source._told("d/a", listed("PodList", "a")["items"][0])
    source._event(json.dumps({"type": "DELETED", "object": document}).encode())
    assert [change.value is not None for change in heard.changes if change.key in (("d", "a"), ("", ""))] == [
        True,
        False,
    ]
    source._event(json.dumps({"type": "DELETED", "object": None}).encode())
    source._event(b"7")
    source._event(b"null")


def test_machines_are_unknown_while_their_definition_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard()
    relay = _Relay(heard, {INSTANCES.name}, {MACHINES.name, INSTANCES.name})
    follow(MACHINES, relay, listed("List", "vm"), NotFound("virtualmachines"), monkeypatch=monkeypatch)
    there = [change.value for change in heard.changes if change.kind == intake.MACHINES_THERE]
    assert there[-1] is False


def test_an_answer_that_is_no_list_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard()
    follow(PODS, heard, listed("PodList", "a"), {"items": []}, {}, monkeypatch=monkeypatch)
    assert [c.value is not None for c in heard.changes if c.kind == intake.POD] == [True]


def test_a_source_that_breaks_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its picture would grow old while everything else goes on."""
    heard = Heard()
    follow(PODS, heard, RuntimeError("a bug"), monkeypatch=monkeypatch)
    assert heard.kinds()[-1] == BROKEN
    assert str(heard.changes[-1].value) == "a bug"


class Again:
    """A store whose list can be had, and whose watch ends."""

    def __init__(self, store: MemoryStore, between: Callable[[int], None]) -> None:
        self._store, self._between = store, between
        self.lists = 0

    def list(self, scope: Any) -> Listing:
        self.lists += 1
        self._between(self.lists)
        return self._store.list(scope)

    def watch(self, scope: Any, since: str) -> Any:
        return iter(())


def test_a_block_that_is_damaged_or_mended_while_nobody_watched() -> None:
    from tests.gc_things import block_of
    from tests.gc_world import World

    world = World()
    block = block_of(world, "10.0.0.0/30", "n", {0: ("h.1", {"node": "n"})})
    store = MemoryStore()
    store.commit(Create(BlockKey(block.cidr), block))
    (path,) = store._rows
    good = store._rows[path]

    def between(lists: int) -> None:
        if lists == 2:
            store._rows[path] = type(good)(path, "{", "7")
        elif lists == 3:
            store._rows.pop(path)

    heard = Heard()
    source = DatastoreSource(Again(store, between), Blocks(), heard)  # type: ignore[arg-type]  # a fake in its place
    for expected in (
        [(intake.BLOCK, True)],
        [(intake.BLOCK, False), (intake.DAMAGED, True)],
        [(intake.DAMAGED, False)],
    ):
        heard.changes.clear()
        source._list()
        assert [(change.kind, change.value is not None) for change in heard.changes] == expected
    for change in (intake.damaged(Damaged(BlockKey(parse_network("10.0.0.0/30")), path, "odd")),):
        world.intake.apply(change)
    assert world.state.damaged


def test_every_page_is_checked() -> None:
    class Pages(Api):
        def call(self, request: Request, deadline: Any) -> dict[str, Any]:
            if "continue" in request.query:
                return {"code": 200}
            return {"kind": "PodList", "metadata": {"continue": "x"}, "items": [{}]}

    with pytest.raises(StoreError, match="no list of objects"):
        list(everything(Pages(), "/api/v1/pods"))  # type: ignore[arg-type]  # a fake in its place


def test_errors_that_say_not_found_are_told_apart() -> None:
    request = Request("GET", "/api/v1/nodes/n")
    mine = error_of(request, 404, {}, json.dumps({"kind": "Status", "reason": "NotFound"}).encode(), "")
    theirs = error_of(request, 404, {}, NO_SUCH_PATH, "")
    assert type(mine) is NotFound
    assert isinstance(theirs, NotFound)
    assert type(theirs) is not NotFound
    assert isinstance(error_of(request, 404, {}, b"nothing here", ""), IPAMError)


# --- KubeVirt (gc §1.4, §19.5) --------------------------------------------------------------------------------------


class Servers:
    """An API server on which KubeVirt is, is not, or is not to be asked about."""

    def __init__(self, *group: Exception | None) -> None:
        self.group = list(group)  #: one answer after the other; the last one stays

    def call(self, request: Request, deadline: Any) -> dict[str, Any]:
        if request.path == "/apis/kubevirt.io":
            answer = self.group.pop(0) if len(self.group) > 1 else self.group[0]
            if answer is not None:
                raise answer
            return {}
        return listed("List", "vm" if request.path.endswith("virtualmachines") else "vmi")

    def open_stream(self, request: Request, seconds: float) -> Any:
        raise StoreUnavailable("watches are not to be had")


ABSENT, BROKEN_GROUP = NotFound("kubevirt.io"), StoreUnavailable("away")


@pytest.mark.parametrize(
    ("answers", "known"),
    [
        ((None,), True),
        ((ABSENT, ABSENT, None), True),
        ((BROKEN_GROUP, BROKEN_GROUP, None), True),
        ((ABSENT,), False),
        ((BROKEN_GROUP,), False),
    ],
    ids=["there", "appears later", "errors first", "absent", "never told"],
)
def test_kubevirts_machines_are_known_once_they_are_all_listed(
    answers: tuple[Any, ...], known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calico_gc.feed.KUBEVIRT_PAUSE", 0.01)
    heard, looks, last = Heard(), threading.Event(), Servers(*answers)
    count = 0

    def counted(request: Request, deadline: Any, call: Any = last.call) -> dict[str, Any]:
        nonlocal count
        count += 1
        if count > 8:
            looks.set()
        return dict(call(request, deadline))

    monkeypatch.setattr(last, "call", counted)
    source = KubeVirt(last, heard)  # type: ignore[arg-type]  # a fake in its place
    source.start()
    try:
        if known:
            wait_until(
                lambda: [c for c in heard.changes if c.kind == intake.MACHINES_THERE and c.value], what="machines"
            )
        else:
            assert looks.wait(30), "it goes on looking"
    finally:
        source.stop()
    told = [(c.kind, c.value) for c in heard.changes if c.kind in (intake.MACHINES_THERE, SYNCED)]
    assert told[0] == (SYNCED, True), "it counts as listed at once: nothing waits for KubeVirt"
    assert ((intake.MACHINES_THERE, True) in told) is known


def test_kubevirt_that_is_stopped_before_it_was_found_stays_unknown() -> None:
    heard = Heard()
    source = KubeVirt(Servers(None), heard)  # type: ignore[arg-type]  # a fake in its place
    source.stop()
    source._look()
    assert source._inner == []
    assert intake.MACHINES_THERE not in heard.kinds()
