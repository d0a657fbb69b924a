"""Public reports about the collector: P12, P26 (reboot), P30 to P34, at the size they were reported with."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from calico_gc import decide
from calico_gc.decide import NODE_MISMATCH, Rules
from calico_gc.options import HandleOptions, Options

from calico_ipam.datastore.api import Delete
from calico_ipam.errors import Conflict
from calico_ipam.model.handle import Handle
from calico_ipam.model.handle_names import TUNNEL_HANDLES
from calico_ipam.model.keys import BlockKey, HandleKey, Handles
from tests.gc_things import (
    NETWORK,
    add_block,
    block_of,
    has_handle,
    holders,
    pod_attrs,
    pool,
    put,
    rows,
    running_pod,
    stored_block,
    tunnel_attrs,
)
from tests.gc_world import World

CIDR = "10.0.0.0/26"
DEFAULT = Options(rules=Rules(leak_grace=900.0), handles=HandleOptions(rate=0.0))


def unchecked(world: World) -> World:
    """At full size the invariants are looked at once, at the end."""
    world.checked = world.check  # type: ignore[attr-defined]  # of this test's store
    world.check = lambda: None  # type: ignore[method-assign]  # a fake in its place
    return world


# --- P12 -----------------------------------------------------------------------------------------------------------


def test_p12_handles_and_blocks_disagree() -> None:
    world = World(options=DEFAULT)
    world.node("n1")
    running_pod(world, "p2", "n1", "10.0.0.2")
    running_pod(world, "p5", "n1", "10.0.0.5")
    running_pod(world, "p6", "n1", "10.0.0.6")
    add_block(world, CIDR, "n1", {2: ("h2", pod_attrs("n1", "p2")), 5: ("h5", pod_attrs("n1", "p5"))})
    put(world, HandleKey("h1"), Handle("h1", {CIDR: 1}))
    put(world, HandleKey("h2"), Handle("h2", {CIDR: 3}))
    put(world, HandleKey("h3"), Handle("h3", {}))
    put(world, HandleKey("h4"), Handle("h4", {CIDR: 1}, deleted=True))
    world.store.commit(Delete(world.store.get(HandleKey("h5"))))
    world.start()
    world.run(899)
    put(world, HandleKey("h6"), Handle("h6", {CIDR: 1}))  # an ADD that writes its block in a moment
    world.run(0.2)
    world.run(3)
    taken = {2: ("h2", pod_attrs("n1", "p2")), 5: ("h5", pod_attrs("n1", "p5")), 6: ("h6", pod_attrs("n1", "p6"))}
    put(world, BlockKey(block_of(world, CIDR).cidr), block_of(world, CIDR, "n1", taken))
    world.settle()
    found = {e.value.id: dict(e.value.blocks) for e in world.store.list(Handles())}
    assert found == {"h2": {CIDR: 1}, "h5": {CIDR: 1}, "h6": {CIDR: 1}}
    world.run(5000)
    assert {e.value.id: dict(e.value.blocks) for e in world.store.list(Handles())} == found


@pytest.mark.timeout(300)
def test_p12_at_full_size() -> None:
    """30,555 handles without an address beside 537 good ones, 13 addresses without a handle."""
    options = Options(rules=Rules(leak_grace=900.0), handles=HandleOptions(rate=0.0, batch=16_000))
    world = unchecked(World(options=options))
    good = 0
    for number in range(9):
        cidr = f"10.0.{number}.0/26"
        world.kube.nodes[f"n{number}"] = {"metadata": {"name": f"n{number}"}}
        held = {}
        for ordinal in range(min(60, 537 - good)):
            name = f"p{number}-{ordinal}"
            held[ordinal] = (f"{NETWORK}.good{good:05}", pod_attrs(f"n{number}", name))
            ip = f"10.0.{number}.{ordinal}"
            world.kube.pods["default", name] = {
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"nodeName": f"n{number}"},
                "status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]},
            }
            good += 1
        add_block(world, cidr, f"n{number}", held)
    assert good == 537
    missing = [f"{NETWORK}.good{n:05}" for n in range(0, 13 * 40, 40)]
    for handle in missing:
        world.store.commit(Delete(world.store.get(HandleKey(handle))))
    for number in range(30_555):
        put(
            world,
            HandleKey(f"{NETWORK}.orphan{number:05}"),
            Handle(f"{NETWORK}.orphan{number:05}", {"10.42.18.192/26": 1}),
        )
    before = {e.value.id: e.revision for e in world.store.list(Handles()) if "good" in e.value.id}
    world.start()
    last = world.controller.handles.last
    assert last is not None
    assert (last.numbers["orphan"], last.numbers["missing"], last.numbers["good"]) == (30_555, 13, 524)
    world.run(920)
    left = {e.value.id: e.revision for e in world.store.list(Handles())}
    assert set(left) == {*before, *missing}
    assert {h: r for h, r in left.items() if h in before} == before, "good ones were not touched"
    world.checked()  # type: ignore[attr-defined]  # of this test's store


# --- P26 -----------------------------------------------------------------------------------------------------------


def test_p26_a_node_reboots() -> None:
    """Twenty containers are gone without a DEL; pods of the same names run with new ones."""
    world = World(options=DEFAULT)
    world.node("n1")
    held = {}
    for number in range(20):
        held[number] = (f"{NETWORK}.old{number:02}", pod_attrs("n1", f"ds-{number}"))
        held[20 + number] = (f"{NETWORK}.new{number:02}", pod_attrs("n1", f"ds-{number}"))
        running_pod(world, f"ds-{number}", "n1", f"10.0.0.{20 + number}")
    add_block(world, CIDR, "n1", held)
    world.start()
    world.run(880)
    assert len(holders(world, CIDR)) == 40
    world.run(1000)
    assert set(holders(world, CIDR)) == set(range(20, 40))
    assert not any(has_handle(world, f"{NETWORK}.old{n:02}") for n in range(20))


# --- P30 -----------------------------------------------------------------------------------------------------------


def test_p30_a_live_pod_with_a_wrong_node_attribute() -> None:
    world = World(options=DEFAULT)
    world.node("new-name")
    world.node("old-name")
    running_pod(world, "a", "new-name", "10.0.0.4")
    add_block(world, CIDR, "new-name", {4: ("h-x", pod_attrs("old-name", "a"))})
    world.start()
    world.run(10_000)
    assert holders(world, CIDR) == {4: "h-x"}
    world.no_node("old-name")
    world.settle()
    world.run(10_000)
    assert holders(world, CIDR) == {4: "h-x"}, "not even when the wrong node does not exist"
    kinds = {finding.kind for finding in world.controller.record.findings.values()}
    assert NODE_MISMATCH in kinds or "in-use-on-gone-node" in kinds


# --- P31 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TUNNEL_HANDLES)
@pytest.mark.parametrize("seen", ["before the live look", "between look and write"])
def test_p31_a_node_comes_back_under_its_name(kind: str, seen: str) -> None:
    world = World(options=DEFAULT)
    handle = f"{TUNNEL_HANDLES[kind]}n1"
    first = block_of(world, CIDR, "n1", {0: (handle, tunnel_attrs("n1", kind))}, sequence=7)
    second = block_of(world, CIDR, "n1", {0: (handle, tunnel_attrs("n1", kind))}, sequence=9)
    add_block(world, CIDR, "n1", {0: (handle, tunnel_attrs("n1", kind))}, sequence=7)
    assert first.sequence_for[0] == 7

    def come_back() -> None:
        world.kube.nodes["n1"] = {"metadata": {"name": "n1"}}
        put(world, BlockKey(second.cidr), second)

    if seen == "before the live look":
        submit = world.controller.submit

        def first_the_node(action: Any) -> None:
            if "n1" not in world.kube.nodes:
                come_back()
            submit(action)

        world.controller.submit = first_the_node
    else:
        commit = world.store.commit

        def first_the_rival(*writes: Any) -> Any:
            if "n1" not in world.kube.nodes and any(isinstance(write.key, BlockKey) for write in writes):
                world.kube.nodes["n1"] = {"metadata": {"name": "n1"}}
                put(world, BlockKey(second.cidr), second)
                raise Conflict(str(writes[0].key))
            return commit(*writes)

        world.store.commit = first_the_rival  # type: ignore[method-assign]  # a fake in its place
    world.start()
    world.node("n1")
    world.settle()
    world.run(5000)
    assert holders(world, CIDR) == {0: handle}
    after = stored_block(world, CIDR)
    assert after is not None
    assert after.sequence_for[0] == 9
    assert rows(world) == {("n1", CIDR)}


def test_p31_a_pod_of_a_node_that_came_back_has_its_grace() -> None:
    """What was confirmed because the node was gone begins again when the node is there at the live look."""
    world = World(options=DEFAULT)
    add_block(world, CIDR, "n1", {1: (f"{NETWORK}.c", pod_attrs("n1", "p"))})
    submit = world.controller.submit

    def first_the_node(action: Any) -> None:
        world.kube.nodes["n1"] = {"metadata": {"name": "n1"}}
        submit(action)

    world.controller.submit = first_the_node
    world.start()
    world.node("n1")
    world.settle()
    world.run(800)
    assert holders(world, CIDR) == {1: f"{NETWORK}.c"}
    world.run(1000)
    assert holders(world, CIDR) == {}


# --- P32 -----------------------------------------------------------------------------------------------------------


def test_p32_fifty_nodes_went_while_nobody_looked() -> None:
    """n7 holds an address whose release always conflicts, n9 one without attributes."""
    world = World(options=Options(rules=Rules(leak_grace=900.0), handles=HandleOptions(grace=None)))
    for number in range(1, 51):
        cidr = f"10.0.{number}.0/26"
        held = {1: (f"{NETWORK}.c{number}", pod_attrs(f"n{number}", f"p{number}"))}
        if number == 9:
            held[2] = (f"{NETWORK}.bare", {})
        add_block(world, cidr, f"n{number}", held)
    commit = world.store.commit
    stubborn = BlockKey(block_of(world, "10.0.7.0/26").cidr)
    tries: list[float] = []

    def refusing(*writes: Any) -> Any:
        if any(write.key == stubborn for write in writes):
            tries.append(world.clock.mono)
            raise Conflict(str(stubborn))
        return commit(*writes)

    world.store.commit = refusing  # type: ignore[method-assign]  # a fake in its place
    world.start()
    left = {host for host, _ in rows(world)}
    assert left == {"n7", "n9"}, "the first complete look cleans all others"
    assert holders(world, "10.0.9.0/26") == {2: f"{NETWORK}.bare"}
    for _ in range(10):
        world.run(450)
    waits = [b - a for a, b in itertools.pairwise(tries) if b - a > 1]
    assert waits, "it is tried again"
    assert len(tries) < 100 * 200, "with longer and longer waits"
    told = {f.subject: f.kind for f in world.controller.record.findings.values()}
    assert told["n9"] == "node-not-released"
    world.store.commit = commit  # type: ignore[method-assign]  # a fake in its place
    world.run(60)
    assert {host for host, _ in rows(world)} == {"n9"}


def test_p32_node_names_differ() -> None:
    """Calico's name of a node and Kubernetes' are honoured when it goes."""
    from tests.gc_things import calico_node

    world = World(kubernetes=False, options=Options(rules=Rules(leak_grace=900.0), node_deletion=True))
    world.node("ip-10-0-0-7.internal")
    calico_node(world, "worker-7", "ip-10-0-0-7.internal")
    running_pod(world, "p", "ip-10-0-0-7.internal", "10.0.0.1")
    add_block(world, CIDR, "worker-7", {1: (f"{NETWORK}.c", pod_attrs("worker-7", "p"))})
    world.start()
    world.run(3000)
    assert holders(world, CIDR)
    world.no_pod("default", "p")
    world.no_node("ip-10-0-0-7.internal")
    world.settle()
    world.run(5)
    assert rows(world) == set()


# --- P33 -----------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(300)
def test_p33_thousand_nodes_fifty_thousand_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """30 minutes with 1 % churn each: work follows change, nothing is read per address, maps stay as they are."""
    choose = random.Random(33)
    world = unchecked(World(options=DEFAULT))
    pool(world, "pool", "10.0.0.0/8")
    nodes, pods = 1000, 50
    for n in range(nodes):
        world.kube.nodes[f"n{n}"] = {"metadata": {"name": f"n{n}"}}
        held = {}
        for p in range(pods):
            ip = f"10.{n // 250}.{n % 250}.{p}"
            held[p] = (f"{NETWORK}.{n}-{p}-0", pod_attrs(f"n{n}", f"p{n}-{p}"))
            world.kube.pods["default", f"p{n}-{p}"] = _pod(f"p{n}-{p}", f"n{n}", ip)
        made = block_of(world, f"10.{n // 250}.{n % 250}.0/26", f"n{n}", held)
        put(world, BlockKey(made.cidr), made)
    world.controller.options = Options(rules=Rules(leak_grace=900.0), handles=HandleOptions(grace=None))
    world.start()
    assert world.kube.reads == 0
    sizes = _sizes(world)
    looked = [0]
    decide_one = decide.look_at_node

    def counting(*arguments: Any) -> Any:
        looked[0] += 1
        return decide_one(*arguments)

    monkeypatch.setattr(decide, "look_at_node", counting)
    ticks = 0
    for minute in range(30):
        for _ in range(nodes * pods // 100):
            n, p = choose.randrange(nodes), choose.randrange(pods)
            _churn(world, n, p, minute)
        world._take_in()
        before = looked[0]
        world.run(60)
        ticks += looked[0] - before >= nodes
    assert world.kube.reads == 0, "nothing is read per address at rest"
    assert world.state.suspects == {}
    assert _sizes(world) == sizes, "the maps neither grow nor shrink"
    assert ticks <= 5, "all nodes are looked at by the periodic scan only"
    assert looked[0] <= 30 * 500 + 5 * nodes
    world.checked()  # type: ignore[attr-defined]  # of this test's store


def _pod(name: str, node: str, ip: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"nodeName": node},
        "status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]},
    }


def _churn(world: World, n: int, p: int, minute: int) -> None:
    """A pod is replaced by one of the same name: a new container has the address, in one write of the block."""
    from dataclasses import replace

    from calico_gc import intake
    from calico_gc.intake import Change

    from calico_ipam.model.block import Attribute

    tracked = world.state.blocks[f"10.{n // 250}.{n % 250}.0/26"]
    block = tracked.block
    attributes = list(block.attributes)
    attributes[p] = Attribute(f"{NETWORK}.{n}-{p}-{minute + 1}", pod_attrs(f"n{n}", f"p{n}-{p}"))
    numbers = {**block.sequence_for, p: block.sequence_number}
    after = replace(
        block, attributes=tuple(attributes), sequence_for=numbers, sequence_number=block.sequence_number + 1
    )
    world.changed(Change(intake.BLOCK, tracked.cidr, after, f"{block.sequence_number}"))


def _sizes(world: World) -> dict[str, int]:
    state = world.state
    found: dict[str, int] = {}
    for name in (
        "blocks",
        "by_node",
        "by_handle",
        "suspects",
        "owners",
        "owned",
        "empty",
        "empty_since",
        "cold",
        "nodes",
    ):
        found[name] = len(getattr(state, name))
    return found | {"allocations": sum(len(t.allocations) for t in state.blocks.values())}


# --- P34 -----------------------------------------------------------------------------------------------------------


def test_p34_ended_pods() -> None:
    world = World(options=DEFAULT)
    world.node("n1")
    going = {"deletionTimestamp": "2026-08-22T10:00:00Z"}
    pods: dict[str, dict[str, Any]] = {
        "succeeded": {"phase": "Succeeded"},
        "evicted": {"phase": "Failed", "reason": "Evicted"},
        "failed": {"phase": "Failed"},
        "running": {"phase": "Running"},
        "pending": {"phase": "Pending"},
        "unknown": {"phase": "Unknown"},
        "going": {"phase": "Running", **going},
        "torn-down": {"phase": "Succeeded", **going},
    }
    held = {}
    for number, (name, more) in enumerate(pods.items()):
        running_pod(world, name, "n1", f"10.0.0.{number}", **more)
        held[number] = (f"{NETWORK}.{name}", pod_attrs("n1", name))
    add_block(world, CIDR, "n1", held)
    world.start()
    suspected = {world.state.allocation(key).pod[1] for key in world.state.suspects}
    assert suspected == {"succeeded", "evicted", "failed", "torn-down"}
    assert len(holders(world, CIDR)) == 8, "the first look releases nothing"
    world.no_pod("default", "torn-down")
    without = {n: h for n, h in held.items() if "torn-down" not in h[0]}
    put(world, BlockKey(block_of(world, CIDR).cidr), block_of(world, CIDR, "n1", without))  # its DEL came
    world.settle()
    world.run(1900)
    assert {h.rpartition(".")[2] for h in holders(world, CIDR).values()} == {"running", "pending", "unknown", "going"}
