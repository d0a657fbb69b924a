"""The collector's own cases, carried over from upstream's tests (gc §19.1). Invariants hold after every event."""

from __future__ import annotations

from dataclasses import replace

import pytest
from calico_gc import decide, intake
from calico_gc.decide import Rules
from calico_gc.facts import VirtualMachines
from calico_gc.intake import Change
from calico_gc.options import Options
from calico_gc.suspicion import VM_GONE
from calico_gc.timing import moment
from calico_gc.upstream_metrics import lines
from calico_gc.view import view_of

from calico_ipam.errors import StoreUnavailable
from calico_ipam.model.block import Attribute
from calico_ipam.model.keys import AffinityKey, BlockKey, ResourceKey
from calico_ipam.model.resource import CLUSTER_INFORMATION, IP_POOL, IP_RESERVATION
from tests.faulty import Fault, FaultyStore
from tests.gc_things import (
    NETWORK,
    add_block,
    block_of,
    calico_node,
    cooldown,
    drop,
    has_handle,
    holders,
    pod_attrs,
    pool,
    put,
    ready,
    reservation,
    rows,
    running_pod,
    stored_block,
    tunnel_attrs,
)
from tests.gc_world import World

LONG = Options(rules=Rules(leak_grace=3600.0))
H1, H2 = f"{NETWORK}.aa", f"{NETWORK}.bb"


def held(world: World, cidr: str) -> set[int]:
    return set(holders(world, cidr))


# --- allocations -----------------------------------------------------------------------------------------------


def test_an_allocation_is_in_every_map_and_then_in_none() -> None:
    world = World(options=LONG)
    world.node("n1")
    add_block(world, "10.0.99.0/30", "n1", {0: (H1, pod_attrs("n1", "p"))})
    world.start()
    state, key = world.state, ("10.0.99.0/30", 0)
    assert state.allocation(key) is state.by_node["n1"][key]
    assert state.by_handle[H1] == (key,)
    assert key in state.suspects
    put(world, BlockKey(block_of(world, "10.0.99.0/30").cidr), block_of(world, "10.0.99.0/30", "n1"))
    world.settle()
    assert state.allocation(key) is None
    assert (state.by_node, state.by_handle, state.suspects, state.confirmed) == ({}, {}, {}, {})


def test_a_confirmed_leak_that_somebody_else_releases_is_forgotten() -> None:
    world = World()
    add_block(world, "10.0.99.0/30", "n1", {0: (H1, pod_attrs("n1", "p")), 1: (H1, pod_attrs("n1", "alive"))})
    world.node("n1")
    running_pod(world, "alive", "n1", "10.0.99.1")
    world.start()
    world.run(5)
    assert list(world.state.confirmed) == [("10.0.99.0/30", 0)], "held, because its handle has a living address"
    put(world, BlockKey(block_of(world, "10.0.99.0/30").cidr), block_of(world, "10.0.99.0/30", "n1"))
    world.settle()
    assert world.state.confirmed == {}


def test_same_handle_and_address_assigned_again_begins_anew() -> None:
    world = World(options=LONG)
    world.node("n1")
    before = add_block(world, "10.0.99.0/30", "n1", {0: (H1, pod_attrs("n1", "p"))}, sequence=10)
    world.start()
    first = world.state.suspects["10.0.99.0/30", 0].first
    world.clock.advance(5)
    put(world, BlockKey(before.cidr), replace(before, sequence_for={0: 11}))
    world.settle()
    allocation = world.state.allocation(("10.0.99.0/30", 0))
    assert allocation is not None
    assert allocation.option().sequence_number == 11
    assert world.state.suspects["10.0.99.0/30", 0].first.mono > first.mono


def test_attributes_that_change_alone_are_taken_over_and_move_the_allocation() -> None:
    """Limits U3 and U4: a machine's owner moves to another node without a new sequence number."""
    world = World(options=LONG)
    world.node("n1")
    world.node("n2")
    before = add_block(world, "10.0.99.0/30", "n1", {0: (H1, pod_attrs("n1", "p"))})
    world.start()
    world.clock.advance(5)
    moved = replace(before, attributes=(Attribute(H1, pod_attrs("n2", "p")),))
    put(world, BlockKey(before.cidr), moved)
    world.settle()
    assert set(world.state.by_node) == {"n2"}
    assert world.state.suspects["10.0.99.0/30", 0].first.mono == world.clock.mono, "another owner begins anew"
    remarked = replace(moved, attributes=(Attribute(H1, pod_attrs("n2", "p", timestamp="later")),))
    put(world, BlockKey(before.cidr), remarked)
    world.clock.advance(5)
    world.settle()
    assert world.state.suspects["10.0.99.0/30", 0].first.mono == world.clock.mono - 5, "a remark does not"


def test_a_block_moves_between_owners() -> None:
    """Limit U12: from a host to another, to a virtual owner, to nobody."""
    world = World(options=LONG)
    world.node("a")
    world.node("b")
    add_block(world, "10.0.0.0/30", "a")
    world.start()
    assert world.state.owned == {"a": {"10.0.0.0/30"}}
    for host, kind, owned in (
        ("b", "host", {"b": {"10.0.0.0/30"}}),
        ("load-balancer", "virtual", {}),
        (None, "host", {}),
    ):
        put(world, BlockKey(block_of(world, "10.0.0.0/30").cidr), block_of(world, "10.0.0.0/30", host, kind=kind))
        world.settle()
        assert world.state.owned == owned


def test_a_block_through_its_life() -> None:
    world = World(options=LONG)
    world.node("n1")
    key = BlockKey(block_of(world, "10.0.0.0/30").cidr)
    world.start()
    put(world, key, block_of(world, "10.0.0.0/30", "n1"))
    world.settle()
    assert (world.state.empty, world.state.by_node) == ({"10.0.0.0/30": "n1"}, {})
    put(world, key, block_of(world, "10.0.0.0/30", "n1", {2: (H1, pod_attrs("n1", "p"))}))
    world.settle()
    assert (world.state.empty, set(world.state.by_node)) == ({}, {"n1"})
    put(world, key, block_of(world, "10.0.0.0/30", "n1"))
    world.settle()
    assert (world.state.empty, world.state.by_node) == ({"10.0.0.0/30": "n1"}, {})
    drop(world, key)
    world.settle()
    assert (world.state.empty, world.state.blocks, world.state.owned) == ({}, {}, {})


def test_affinity_goes_and_then_the_address() -> None:
    world = World(options=LONG)
    world.node("c")
    running_pod(world, "p", "c", "10.0.0.1")
    key = BlockKey(block_of(world, "10.0.0.0/30").cidr)
    taken = {1: (H1, pod_attrs("c", "p"))}
    add_block(world, "10.0.0.0/30", "c", taken)
    world.start()
    put(world, key, block_of(world, "10.0.0.0/30", None, taken))
    world.settle()
    assert (set(world.state.by_node), world.state.owned) == ({"c"}, {})
    put(world, key, block_of(world, "10.0.0.0/30"))
    world.settle()
    assert world.state.by_node == {}


# --- pools and reservations ------------------------------------------------------------------------------------


def test_reservations_are_counted_as_their_union() -> None:
    world = World()
    pool(world, "p", "10.0.0.0/24")
    world.start()

    def reserved() -> list[str]:
        return [line for line in lines(view_of(world.controller)) if line.startswith("ipam_ippool_reserved{")]

    assert reserved() == ['ipam_ippool_reserved{ippool="p"} 0']
    reservation(world, "r", "10.0.0.128/28", "10.0.0.128/29")
    world.settle()
    assert reserved() == ['ipam_ippool_reserved{ippool="p"} 16']
    drop(world, ResourceKey(IP_RESERVATION, "r"))
    world.settle()
    assert reserved() == ['ipam_ippool_reserved{ippool="p"} 0']
    drop(world, ResourceKey(IP_POOL, "p"))
    world.settle()
    assert reserved() == []


def test_blocks_find_their_pools() -> None:
    world = World(options=LONG)
    world.start()
    index = world.state.pools
    add_block(world, "192.168.0.0/30")
    world.settle()
    assert index.blocks == {"no_ippool": {"192.168.0.0/30"}}
    pool(world, "pool-1", "192.168.0.0/24")
    world.settle()
    assert index.blocks == {"pool-1": {"192.168.0.0/30"}}
    pool(world, "pool-2", "10.16.0.0/24")
    add_block(world, "10.16.0.0/30")
    world.settle()
    assert index.of_block["10.16.0.0/30"] == "pool-2"
    drop(world, BlockKey(block_of(world, "10.16.0.0/30").cidr))
    world.settle()
    assert index.blocks == {"pool-1": {"192.168.0.0/30"}, "pool-2": set()}
    drop(world, ResourceKey(IP_POOL, "pool-1"))
    world.settle()
    assert index.blocks == {"no_ippool": {"192.168.0.0/30"}, "pool-2": set()}
    drop(world, BlockKey(block_of(world, "192.168.0.0/30").cidr))
    world.settle()
    assert index.blocks == {"pool-2": set()}


@pytest.mark.parametrize("cidr", ["", "garbage", "10.0.0.0/33"])
def test_a_pool_that_cannot_be_understood_is_left_out(cidr: str, caplog: pytest.LogCaptureFixture) -> None:
    """Limit U13: also its second update is harmless."""
    world = World()
    world.start()
    pool(world, "odd", cidr)
    world.settle()
    pool(world, "odd", cidr)
    world.settle()
    assert world.state.pools.pools == {}
    assert "pool odd has no CIDR that can be read" in caplog.text


# --- nodes and pods ----------------------------------------------------------------------------------------------


def test_nodes_and_their_names() -> None:
    world = World(kubernetes=False)
    world.start()
    calico_node(world, "c", "kname")
    world.settle()
    assert world.state.nodes == {"c": "kname"}
    calico_node(world, "c", "kname2")
    world.settle()
    assert (world.state.nodes, world.state.calico_names) == ({"c": "kname2"}, {"kname2": {"c"}})
    from calico_ipam.model.resource import NODE

    drop(world, ResourceKey(NODE, "c"))
    world.settle()
    assert world.state.nodes == {}
    calico_node(world, "c", "vm", orchestrator="openstack")
    world.settle()
    assert (world.state.nodes, world.state.calico_names) == ({"c": ""}, {})
    drop(world, ResourceKey(NODE, "c"))
    world.settle()
    assert world.state.nodes == {}


def test_a_pod_deletion_marks_calicos_name_of_the_node() -> None:
    """Limit U6."""
    world = World(kubernetes=False, options=LONG)
    world.node("kube-name")
    calico_node(world, "calico-name", "kube-name")
    running_pod(world, "p", "kube-name", "10.0.0.1")
    add_block(world, "10.0.0.0/30", "calico-name", {1: (H1, pod_attrs("calico-name", "p"))})
    world.start()
    assert world.state.suspects == {}
    world.no_pod("default", "p")
    world.settle()
    assert ("10.0.0.0/30", 1) in world.state.suspects
    assert "kube-name" not in world.controller.leaving


def test_a_node_that_never_was_in_kubernetes() -> None:
    world = World(kubernetes=False, options=LONG)
    add_block(world, "10.0.0.0/30", "cnode", {1: (H1, pod_attrs("cnode", "p"))})
    world.start()
    assert holders(world, "10.0.0.0/30") == {}
    assert rows(world) == set()
    assert not has_handle(world, H1)


def test_live_node_missing_pod() -> None:
    world = World()
    world.node("n1")
    add_block(world, "10.0.0.0/30", "n1", {1: (H1, pod_attrs("n1", "p"))})
    world.start()
    world.run(5)
    assert held(world, "10.0.0.0/30") == set()
    assert rows(world) == {("n1", "10.0.0.0/30")}, "the affinity stays"


def test_grace_zero_never_releases() -> None:
    world = World(options=Options(rules=Rules(leak_grace=0.0)))
    world.node("n1")
    add_block(world, "10.0.0.0/30", "n1", {1: (H1, pod_attrs("n1", "p"))})
    add_block(world, "10.0.0.4/30", "n1")
    world.start()
    world.run(3600)
    assert held(world, "10.0.0.0/30") == {1}
    assert len(rows(world)) == 2
    assert list(world.state.suspects) == [("10.0.0.0/30", 1)], "a candidate all the same"


def test_grace_absent_does_not_even_suspect() -> None:
    world = World(options=Options(rules=Rules(leak_grace=None)))
    world.node("n1")
    add_block(world, "10.0.0.0/30", "n1", {1: (H1, pod_attrs("n1", "p"))})
    world.start()
    world.run(3600)
    assert world.state.suspects == {}


def test_a_node_goes_before_its_pods() -> None:
    world = World(options=LONG)
    for node, base in (("node1", 0), ("node2", 4)):
        world.node(node)
        for number in (1, 2):
            running_pod(world, f"{node}-{number}", node, f"10.0.0.{base + number}")
        taken = {n: (f"{NETWORK}.{node}{n}", pod_attrs(node, f"{node}-{n}")) for n in (1, 2)}
        add_block(world, f"10.0.0.{base}/30", node, taken)
    world.start()
    world.no_node("node1")
    world.settle()
    assert world.state.suspects == {}
    assert held(world, "10.0.0.0/30") == {1, 2}
    world.no_pod("default", "node1-1")
    world.settle()
    assert held(world, "10.0.0.0/30") == {2}, "its pod is gone and its node too"
    world.no_pod("default", "node1-2")
    world.settle()
    assert stored_block(world, "10.0.0.0/30") is None
    assert "node1" not in world.state.by_node
    assert rows(world) == {("node2", "10.0.0.4/30")}
    assert has_handle(world, f"{NETWORK}.node21")
    assert not has_handle(world, f"{NETWORK}.node11")


def test_only_what_changed_is_looked_at() -> None:
    """1000 nodes with five pods each: one is deleted with an event, another without."""
    world = World(options=LONG)
    for n in range(1000):
        node = f"n{n}"
        world.kube.nodes[node] = {"metadata": {"name": node}}
        taken = {}
        for p in range(5):
            ip = f"10.{n // 250}.{n % 250}.{p}"
            name = f"{node}-{p}"
            world.kube.pods["default", name] = {
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"nodeName": node},
                "status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]},
            }
            taken[p] = (f"{NETWORK}.{node}.{p}", pod_attrs(node, name))
        add_block(world, f"10.{n // 250}.{n % 250}.0/29", node, taken)
    world.check = lambda: None  # type: ignore[method-assign]  # 1000 blocks after every event would take minutes
    world.start()
    assert world.state.suspects == {}
    world.no_pod("default", "n7-1")
    world.no_pod("default", "n8-1", quietly=True)
    world.settle()
    assert list(world.state.suspects) == [("10.0.7.0/29", 1)]
    world.controller.tick()
    world.settle()
    assert set(world.state.suspects) == {("10.0.7.0/29", 1), ("10.0.8.0/29", 1)}


def test_a_dead_node_with_one_tunnel_goes_in_one_pass() -> None:
    world = World(options=LONG)
    add_block(world, "10.0.0.0/30", "dead", {0: ("vxlan-tunnel-addr-dead", tunnel_attrs("dead"))})
    world.start()
    assert stored_block(world, "10.0.0.0/30") is None
    assert rows(world) == set()
    assert not has_handle(world, "vxlan-tunnel-addr-dead")


@pytest.mark.parametrize("failing", [("b", "c"), ("a", "b", "c")])
def test_nodes_that_fail_do_not_stop_the_others(failing: tuple[str, ...]) -> None:
    world = World(options=LONG)
    broken = set(failing)
    cidrs = {"a": "10.0.0.0/30", "b": "10.0.0.4/30", "c": "10.0.0.8/30"}
    for node, cidr in cidrs.items():
        add_block(world, cidr, node, {0: (f"vxlan-tunnel-addr-{node}", tunnel_attrs(node))})

    def permit() -> None:
        return None

    world.permit = permit
    commit = world.store.commit

    def refusing(*writes: object) -> object:
        for write in writes:
            key = getattr(write, "key", None)
            if isinstance(key, AffinityKey) and key.owner.host in broken:
                raise StoreUnavailable("no")
        return commit(*writes)  # type: ignore[arg-type]  # a fake in its place

    world.store.commit = refusing  # type: ignore[method-assign,assignment]  # a fake in its place
    world.start()
    world.run(10)
    left = {host for host, _ in rows(world)}
    assert left == broken
    assert len(world.state.dirty) <= 2
    for node in list(broken):
        broken.discard(node)
        world.run(40)
        assert node not in {host for host, _ in rows(world)}
    assert rows(world) == set()


def test_full_scan_finds_an_empty_block_of_an_unknown_node() -> None:
    world = World(options=LONG)
    world.start()
    add_block(world, "10.0.0.0/30", "dead-node")
    world.settle()
    world.controller.tick()
    world.settle()
    assert rows(world) == set()
    assert stored_block(world, "10.0.0.0/30") is None


# --- handles -------------------------------------------------------------------------------------------------------


def test_all_of_a_handle_or_nothing() -> None:
    world = World()
    world.node("n1")
    running_pod(world, "p", "n1", "10.0.0.1")
    attrs = pod_attrs("n1", "p")
    add_block(world, "10.0.0.0/30", "n1", {1: (H1, attrs)})
    add_block(world, "fd00::/126", "n1", {1: (H1, attrs)})
    world.start()
    world.run(10)
    assert world.state.suspects["fd00::/126", 1].confirmed
    assert ("10.0.0.0/30", 1) not in world.state.suspects
    assert not world.state.all_confirmed(H1)
    assert world.controller.held == (("fd00::/126", 1),)
    assert (held(world, "10.0.0.0/30"), held(world, "fd00::/126")) == ({1}, {1})
    passes = world.passes
    world.run(10)
    assert world.passes - passes <= 25, "what is held is no reason to look again and again (limit U8)"
    world.no_pod("default", "p")
    world.run(10)
    assert (held(world, "10.0.0.0/30"), held(world, "fd00::/126")) == (set(), set())
    assert H1 not in world.state.by_handle


def test_what_is_held_stays_told_while_its_block_is_worked_on() -> None:
    """A block may be busy with other leaks of it; thousands may wait meanwhile and are passed over."""
    world = World()
    world.node("n1")
    running_pod(world, "dual", "n1", "10.0.0.1")
    held_by = {
        1: ("dual", pod_attrs("n1", "dual")),
        2: ("dual", pod_attrs("n1", "dual")),
        3: (H1, pod_attrs("n1", "p")),
    }
    add_block(world, "10.0.0.0/29", "n1", held_by)
    world.start()
    world.clock.advance(5)
    world.controller.tick()
    world.controller._scan(moment(world.clock))
    groups, held_now = decide.group_leaks(world.state, (), 100)
    assert [[a.address.packed[3] for a in group.allocations] for group in groups] == [[3]]
    assert held_now == [("10.0.0.0/29", 2)]
    assert decide.group_leaks(world.state, {"10.0.0.0/29"}, 100, held_now) == ([], held_now)
    assert decide.group_leaks(world.state, {"10.0.0.0/29"}, 100) == ([], [])


def test_an_unknown_handle_is_not_confirmed() -> None:
    """Limit U20."""
    assert not World().state.all_confirmed("nobody")


# --- empty blocks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("used", [{0: (H1, pod_attrs("n1", "p"))}, {n: (H1, pod_attrs("n1", "p")) for n in range(4)}])
def test_an_empty_block_beside_a_used_one_goes(used: dict[int, tuple[str, dict[str, str]]]) -> None:
    world = World()
    world.node("n1")
    running_pod(world, "p", "n1", *(f"10.0.0.{n}" for n in range(4)))
    add_block(world, "10.0.0.0/30", "n1", used)
    add_block(world, "10.0.0.4/30", "n1")
    world.start()
    world.run(10)
    assert rows(world) == {("n1", "10.0.0.0/30")}


@pytest.mark.parametrize("length", [24, 31])
def test_of_five_empty_blocks_one_stays(length: int) -> None:
    world = World()
    world.node("n1")
    step = 1 << (32 - length)
    for n in range(5):
        add_block(world, f"10.0.{n * step // 256}.{n * step % 256}/{length}", "n1")
    world.start()
    world.run(10)
    assert len(rows(world)) == 1
    assert set(world.state.empty) == {cidr for _, cidr in rows(world)}


def test_the_timer_of_an_empty_block_starts_again_while_it_is_the_only_one() -> None:
    """Limit U19."""
    world = World(options=Options(rules=Rules(leak_grace=100.0)))
    world.node("n1")
    running_pod(world, "p", "n1", "10.0.0.5")
    add_block(world, "10.0.0.0/30", "n1")
    world.start()
    world.run(500)
    assert world.state.empty_since == {}
    add_block(world, "10.0.0.4/30", "n1", {1: (H1, pod_attrs("n1", "p"))})
    world.settle()
    assert len(rows(world)) == 2, "it has been the second one for a moment only"
    world.run(250)
    assert rows(world) == {("n1", "10.0.0.4/30")}


def test_windows_reservations_count_only_when_asked_for() -> None:
    """Limit U14."""
    reserved = {n: ("windows-reserved-ipam-handle", {"note": "windows host rsvd"}) for n in (0, 1, 3)}
    for asked in (False, True):
        world = World()
        world.state.windows_empty = asked
        world.node("n1")
        running_pod(world, "p", "n1", "10.0.0.5")
        add_block(world, "10.0.0.0/30", "n1", reserved)
        add_block(world, "10.0.0.4/30", "n1", {1: (H1, pod_attrs("n1", "p"))})
        world.start()
        world.run(10)
        assert (("n1", "10.0.0.0/30") in rows(world)) is not asked


# --- cooling addresses ----------------------------------------------------------------------------------------------


def test_only_blocks_with_ripe_addresses_are_visited() -> None:
    world = World(options=LONG)
    cooldown(world, 3600)
    world.node("n1")
    running_pod(world, "p", "n1", "10.0.0.9")
    add_block(world, "10.0.0.0/30", "n1", cooling={1: 7200.0})
    add_block(world, "10.0.0.4/30", "n1", cooling={1: 10.0})
    add_block(world, "10.0.0.8/30", "n1", {1: (H1, pod_attrs("n1", "p"))})
    world.start()
    visited = [action.key[1] for action in world.actions if action.key[0] == "thaw"]
    assert visited == ["10.0.0.0/30"]
    assert set(world.state.cold) == {"10.0.0.4/30"}


def test_a_block_whose_cooling_address_is_freed_by_others_is_not_cold() -> None:
    world = World(options=LONG)
    cooldown(world, 3600)
    add_block(world, "10.0.0.0/30", "n1", cooling={1: 10.0})
    world.node("n1")
    world.start()
    put(world, BlockKey(block_of(world, "10.0.0.0/30").cidr), block_of(world, "10.0.0.0/30", "n1"))
    world.settle()
    assert world.state.cold == {}


def test_a_conflict_over_cooling_addresses_stops_nobody() -> None:
    world = World(options=LONG)
    cooldown(world, 30)
    for number, node in enumerate(("a", "b")):
        add_block(world, f"10.0.0.{number * 4}/30", node, cooling={1: 100.0})
    faulty = FaultyStore(world.store, Fault("conflict", write=1))
    world.controller.state.ready = True
    world.engine.store.inner = faulty  # type: ignore[attr-defined]  # of this test's store
    world.start()
    world.run(60)
    assert faulty.struck()
    assert rows(world) == set()


def test_cooling_addresses_are_freed_in_one_write(caplog: pytest.LogCaptureFixture) -> None:
    """gc §19.5: ordinal 31 was released an hour ago, 52 lives, cooldown 30 s; with a longer one nothing is written."""
    for seconds, freed in ((30, True), (1200, False)):
        world = World(options=LONG)
        cooldown(world, seconds)
        world.node("n1")
        running_pod(world, "p", "n1", "10.0.0.52")
        before = add_block(world, "10.0.0.0/26", "n1", {52: (H1, pod_attrs("n1", "p"))}, cooling={31: 600.0})
        writes = world.store.writes  # type: ignore[attr-defined]  # of this test's store
        writes.clear()
        world.start()
        block = stored_block(world, "10.0.0.0/26")
        assert block is not None
        assert (31 in block.unallocated) is freed
        assert len(block.attributes) == (1 if freed else 2)
        assert len(writes) == (1 if freed else 0)
        assert before.attributes[1].cold, "what was read is not changed"


# --- virtual machines ----------------------------------------------------------------------------------------


VM = {"vmi-name": "vm"}


@pytest.mark.parametrize(
    ("machines", "attrs", "alive"),
    [
        (VirtualMachines(frozenset({("default", "vm")})), VM, True),
        (VirtualMachines(), VM, False),
        (VirtualMachines(instances={("default", "vm"): False}), VM, True),
        (VirtualMachines(instances={("default", "vm"): True}), VM, False),
        (VirtualMachines(), {"vmi-name": "", "namespace": ""}, True),
        (None, VM, True),
    ],
    ids=["in-cache", "neither", "standalone-instance", "owned-instance", "nameless", "no-kubevirt"],
)
def test_whether_a_machine_lives(machines: VirtualMachines | None, attrs: dict[str, str], alive: bool) -> None:
    world = World(options=LONG)
    world.node("n1")
    world.kube.machines = machines
    add_block(world, "10.0.0.0/30", "n1", {1: (H1, {**pod_attrs("n1", "virt-launcher"), **attrs})})
    world.start()
    assert (world.state.suspects == {}) is alive


@pytest.mark.parametrize(("grace", "released"), [(1.0, True), (3600.0, False)])
def test_a_machines_grace_is_at_least_five_minutes(grace: float, released: bool) -> None:
    world = World(options=Options(rules=Rules(leak_grace=grace)))
    world.node("n1")
    world.kube.machines = VirtualMachines()
    add_block(world, "10.0.0.0/30", "n1", {1: (H1, {**pod_attrs("n1", "launcher"), **VM})})
    world.start()
    world.run(200)
    assert held(world, "10.0.0.0/30") == {1}
    assert world.state.suspects["10.0.0.0/30", 1].reason == VM_GONE
    world.run(200)
    assert (held(world, "10.0.0.0/30") == set()) is released


def test_a_machines_grace_of_zero_turns_it_off() -> None:
    """Limit U28."""
    world = World(options=Options(rules=Rules(leak_grace=0.0, vm_grace=0.0)))
    world.node("n1")
    world.kube.machines = VirtualMachines()
    add_block(world, "10.0.0.0/30", "n1", {1: (H1, {**pod_attrs("n1", "launcher"), **VM})})
    world.start()
    world.run(7200)
    assert held(world, "10.0.0.0/30") == {1}


def test_a_machine_that_appears_clears_the_suspicion() -> None:
    world = World(options=LONG)
    world.node("n1")
    world.kube.machines = VirtualMachines()
    add_block(world, "10.0.0.0/30", "n1", {1: (H1, {**pod_attrs("n1", "launcher"), **VM})})
    world.start()
    assert world.state.suspects
    world.changed(Change(intake.MACHINES_THERE, "", True))
    world.changed(Change(intake.MACHINE, ("default", "vm"), True))
    world.settle()
    world.controller.tick()
    world.settle()
    assert world.state.suspects == {}


def test_handles_of_machines_that_are_gone_are_told() -> None:
    """Limit U5: reported, never released."""
    world = World()
    world.node("n1")
    world.kube.machines = VirtualMachines(frozenset({("default", "kept")}))
    gone, kept = f"{NETWORK}.vmi.default.gone", f"{NETWORK}.vmi.default.kept"
    add_block(world, "10.0.0.0/30", "n1", {0: (gone, {}), 1: (kept, {})})
    world.start()
    world.run(3600)
    assert held(world, "10.0.0.0/30") == {0, 1}
    assert [f.subject for f in world.controller.record.findings.values() if f.kind == "machine-gone"] == [gone]
    assert any(event[0] == "VMHandleOrphaned" for event in world.events)


# --- the datastore is locked ----------------------------------------------------------------------------------


def test_readiness_follows_cluster_information() -> None:
    world = World()
    world.start()
    for value, expected in ((False, False), (True, True), (None, True)):
        ready(world, value)
        world.settle()
        assert world.state.ready is expected
    drop(world, ResourceKey(CLUSTER_INFORMATION, "default"))
    world.settle()
    assert world.state.ready is False


def test_nothing_happens_while_locked() -> None:
    world = World()
    ready(world, False)
    add_block(world, "10.0.0.0/30", "dead", {0: (H1, pod_attrs("dead", "p"))})
    world.start()
    world.run(60)
    assert world.actions == []
    assert [line.partition("{")[0] for line in lines(view_of(world.controller))] == []
    ready(world, True)
    world.settle()
    assert rows(world) == set()
