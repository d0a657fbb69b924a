"""What may happen between a look and a write, and who else may be at work: nothing that lives is ever released.

Safety rules of gc.md's introduction, §7 to §11, §18.2; public reports P30 and P31.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from calico_gc import intake, suspicion
from calico_gc.act import Done, GiveBack, Thaw
from calico_gc.assembly import Collector, Place
from calico_gc.decide import Rules
from calico_gc.facts import VirtualMachines, cached_pod
from calico_gc.gate import NotAllowed
from calico_gc.intake import Change
from calico_gc.once import ShiftedClock
from calico_gc.options import Options
from calico_gc.settings import Settings
from calico_gc.suspicion import Moment, leaked, proven
from calico_gc.timing import MOST_FAILURES

from calico_ipam.datastore.api import Create, Damaged, Update
from calico_ipam.datastore.documents import Row
from calico_ipam.errors import StoreUnavailable, Unauthorized
from calico_ipam.model.addresses import parse_network
from calico_ipam.model.block import Attribute
from calico_ipam.model.config import IPAMConfig
from calico_ipam.model.handle import Handle
from calico_ipam.model.keys import BlockKey, HandleKey, ResourceKey
from calico_ipam.model.resource import IP_POOL, NODE, WORKLOAD_ENDPOINT, Resource
from tests.gc_things import (
    add_block,
    calico_node,
    drop,
    holders,
    pod_attrs,
    pool,
    put,
    ready,
    running_pod,
    stored_block,
    tunnel_attrs,
)
from tests.gc_world import GcClock, World
from tests.memory import MemoryStore

CIDR, OTHER = "10.0.0.0/29", "10.0.0.8/29"
GRACE = 60.0


def world_of(*, kubernetes: bool = True) -> World:
    world = World(kubernetes=kubernetes, options=Options(rules=Rules(leak_grace=GRACE)))
    for node in ("n1", "n2"):
        world.node(node)
        if not kubernetes:
            calico_node(world, node, node)
    return world


def leak(world: World, cidr: str, *ordinals: int, node: str = "n1") -> None:
    held = {n: (f"h.{cidr}.{n}", pod_attrs(node, f"p{n}")) for n in ordinals}
    add_block(world, cidr, node, held)


def just_before_the_write(world: World, number: int, act: Callable[[], None]) -> None:
    """Do something after the live look, when the ``number``-th write is about to be made."""
    asked = 0

    def permit() -> None:
        nonlocal asked
        asked += 1
        if asked == 2 * number - 1:  # the gate asks twice for each write
            act()

    world.permit = permit


# --- between look and write -----------------------------------------------------------------------------------------


def assign(world: World, cidr: str, ordinal: int, handle: str, attrs: dict[str, str]) -> None:
    """Somebody releases an address and assigns it again, as another node's plugin would."""
    key = BlockKey(parse_network(cidr))
    entry = world.store.get(key)
    block = entry.value
    position = block.allocations[ordinal]
    attributes = list(block.attributes)
    attributes[position] = Attribute(handle, attrs)
    numbers = {**block.sequence_for, ordinal: block.sequence_number}
    world.store.commit(Update(entry, replace(block, attributes=tuple(attributes), sequence_for=numbers).bumped()))


@pytest.mark.parametrize("handle", ["h.other", f"h.{CIDR}.1"], ids=["another handle", "the same handle"])
def test_an_address_that_is_given_to_another_after_the_look(handle: str) -> None:
    world = world_of()
    leak(world, CIDR, 1, 2)
    world.start()

    def given() -> None:
        running_pod(world, "new", "n1", "10.0.0.1")
        assign(world, CIDR, 1, handle, pod_attrs("n1", "new"))

    just_before_the_write(world, 1, given)
    world.run(4 * GRACE)
    assert holders(world, CIDR) == {1: handle}, "the new holder keeps it, the other leak is released all the same"


def everything(world: World) -> list[str]:
    return [*holders(world, CIDR).values(), *holders(world, OTHER).values()]


def test_the_datastore_is_locked_in_the_middle_of_a_batch() -> None:
    world = world_of()
    leak(world, CIDR, 1)
    leak(world, OTHER, 1, node="n2")
    world.start()

    def locked() -> None:
        raise NotAllowed("the datastore is locked")

    def lock() -> None:
        world.permit = locked
        locked()

    just_before_the_write(world, 3, lock)
    world.run(4 * GRACE)
    assert len(everything(world)) == 1, "what was done is done, the rest waits"
    world.permit = lambda: None
    world.run(GRACE)
    assert everything(world) == []


def test_leadership_is_lost_in_the_middle_of_a_batch() -> None:
    world = world_of()
    leak(world, CIDR, 1)
    leak(world, OTHER, 1, node="n2")
    world.start()

    def not_leading() -> None:
        raise NotAllowed("this instance is not the leader")

    def lose() -> None:
        world.permit = not_leading
        world.controller.step_down()
        not_leading()

    just_before_the_write(world, 3, lose)  # after the first block and its handle
    world.run(2 * GRACE)
    left = everything(world)
    assert len(left) == 1
    assert world.state.suspects == {}, "nothing that was believed counts any more"
    world.run(10 * GRACE)
    assert everything(world) == left, "who does not lead does nothing"
    world.permit = lambda: None
    world.controller.active = True
    world.state.full_scan = True
    world.settle()
    world.run(GRACE - 1)
    assert everything(world) == left, "who leads again begins with a whole grace period"
    world.run(GRACE)
    assert everything(world) == []


def test_the_lock_is_asked_at_every_write() -> None:
    """Thousands of releases may be with the workers when the datastore is locked."""
    place = Place(MemoryStore(), None, host="n", instance="test")
    collector = Collector(place, Settings(), ShiftedClock(GcClock()))
    create = Create(ResourceKey(IP_POOL, "p"), Resource.new(IP_POOL, "p", {"cidr": "10.0.0.0/24"}))
    collector.controller.state.ready = False
    with pytest.raises(NotAllowed, match="locked"):
        collector.engine.store.commit(create)
    collector.controller.state.ready = True
    assert collector.engine.store.commit(create)


def test_a_locked_datastore_is_left_alone_and_taken_up_again() -> None:
    world = world_of()
    leak(world, CIDR, 1)
    ready(world, False)
    world.start()
    world.run(10 * GRACE)
    assert holders(world, CIDR)
    ready(world, True)
    world.settle()
    world.run(4 * GRACE)
    assert holders(world, CIDR) == {}


# --- pods -----------------------------------------------------------------------------------------------------------


def test_a_name_that_another_pod_has_now() -> None:
    """A StatefulSet's pod is made anew under its name: the old address goes once the new pod says it has another."""
    world = world_of()
    running_pod(world, "p1", "n1", "10.0.0.1")
    leak(world, CIDR, 1)
    world.start()
    world.no_pod("default", "p1")
    world.settle()
    running_pod(world, "p1", "n1")  # another UID; it has not said which address it has
    world.settle()
    world.run(4 * GRACE)
    assert holders(world, CIDR), "it may be the one"
    running_pod(world, "p1", "n1", "10.0.0.5")
    world.settle()
    world.run(4 * GRACE)
    assert holders(world, CIDR) == {}


def test_a_pod_that_only_the_live_look_knows() -> None:
    world = world_of()
    running_pod(world, "p1", "n1", "10.0.0.1")
    leak(world, CIDR, 1)
    world.start()
    world.state.drop_pod(("default", "p1"))  # the watch is late, or lies
    world.settle()
    world.run(10 * GRACE)
    assert holders(world, CIDR)


def test_a_server_that_forbids_to_read_pods_keeps_their_addresses() -> None:
    world = world_of()
    leak(world, CIDR, 1, 2)
    world.kube.failing.add(("default", "p1"))
    world.start()
    world.run(10 * GRACE)
    assert set(holders(world, CIDR)) == {1}, "the other one is no worse off"


@pytest.mark.parametrize(
    "status",
    [
        *("{}", "7", '"x"', "[7]", '[{"ips": "10.0.0.1"}]', '[{"ips": {"a": 1}}]', '[{"ips": ["no address"]}]', "[["),
        "[" * 100_000,  # one pod's annotation must not end the collector
    ],
    ids=str.__len__,
)
def test_what_a_further_network_says_and_nobody_understands(status: str) -> None:
    document = {
        "metadata": {"name": "p", "annotations": {"k8s.v1.cni.cncf.io/network-status": status}},
        "status": {"podIP": "10.0.0.9", "podIPs": [{"ip": "10.0.0.9"}]},
    }
    address = parse_network("10.0.0.1/32")[0]
    assert cached_pod(document).has_secondary(address)


# --- nodes ----------------------------------------------------------------------------------------------------------


def test_a_node_that_came_back_has_a_whole_grace_period_before_it() -> None:
    """Also for what had been suspected before it went (public report P31)."""
    before = leaked(None, suspicion.POD_NOT_FOUND, GRACE, Moment(0.0, 0), "n1")
    gone = proven(before, suspicion.NODE_GONE, Moment(50.0, 0), "")
    assert gone.confirmed
    back = leaked(gone, suspicion.POD_NOT_FOUND, GRACE, Moment(100.0, 0), "n1")
    assert not back.confirmed
    assert leaked(back, suspicion.POD_NOT_FOUND, GRACE, Moment(160.0, 0), "n1").confirmed is False
    assert leaked(back, suspicion.POD_NOT_FOUND, GRACE, Moment(160.1, 0), "n1").confirmed is True


@pytest.mark.parametrize("grace", [600.0, 0.0])
def test_a_grace_period_that_is_made_longer_counts_for_what_was_confirmed(grace: float) -> None:
    first = leaked(None, suspicion.POD_NOT_FOUND, GRACE, Moment(0.0, 0), "n1")
    confirmed = leaked(first, suspicion.POD_NOT_FOUND, GRACE, Moment(70.0, 0), "n1")
    assert confirmed.confirmed
    assert not leaked(confirmed, suspicion.POD_NOT_FOUND, grace, Moment(80.0, 0), "n1").confirmed


def test_a_grace_period_that_is_taken_away_clears_what_was_believed() -> None:
    world = world_of()
    leak(world, CIDR, 1)
    world.start()
    world.run(30)
    assert world.state.suspects
    world.controller.options = replace(world.controller.options, rules=Rules(leak_grace=None))
    world.controller.tick()
    world.settle()
    assert world.state.suspects == {}


def test_a_node_that_is_made_again_under_its_name_keeps_its_tunnel() -> None:
    world = world_of()
    add_block(world, CIDR, "n1", {1: ("vxlan-tunnel-addr-n1", tunnel_attrs("n1"))})
    world.start()
    world.no_node("n1")
    world.node("n1")
    world.settle()
    world.run(10 * GRACE)
    assert holders(world, CIDR)


def test_a_node_that_cannot_be_read_is_asked_less_and_less_often() -> None:
    world = world_of(kubernetes=False)
    leak(world, CIDR, 1, node="odd")
    world.kube.failing.add("odd")
    world.start()
    world.kube.reads = 0
    world.run(600)
    assert world.kube.reads < 60
    assert holders(world, CIDR)
    world.kube.failing.clear()
    world.run(60)
    assert holders(world, CIDR) == {}


# --- virtual machines -----------------------------------------------------------------------------------------------

VM = ("default", "vm")


def machine(world: World, node: str = "n1", **attrs: str) -> None:
    add_block(
        world,
        CIDR,
        node,
        {1: ("k8s-pod-network.vmi.default.vm", pod_attrs(node, "virt-launcher-a", **{"vmi-name": "vm", **attrs}))},
    )


@pytest.mark.parametrize(
    "there", [VirtualMachines(frozenset({VM}), {VM: True}), VirtualMachines(frozenset(), {VM: False})]
)
def test_a_machine_on_its_way_to_another_node(there: VirtualMachines) -> None:
    """Its old pod and even its old node may go before the attributes follow."""
    world = world_of()
    machine(world)
    world.kube.machines = there
    running_pod(world, "virt-launcher-a", "n1", "10.0.0.1")
    running_pod(world, "virt-launcher-b", "n2")
    world.start()
    world.no_pod("default", "virt-launcher-a")
    world.settle()
    world.run(10 * GRACE)
    assert holders(world, CIDR)
    world.no_node("n1")
    world.settle()
    world.run(10 * GRACE)
    assert holders(world, CIDR)


@pytest.mark.parametrize("gone", [False, True], ids=["node there", "node gone"])
def test_an_address_of_a_machine_that_its_attributes_do_not_name(gone: bool) -> None:
    world = world_of()
    world.kube.machines = VirtualMachines(frozenset({VM}))
    add_block(world, CIDR, "n1", {1: ("k8s-pod-network.vmi.default.vm", pod_attrs("n1", "virt-launcher-a"))})
    world.start()
    if gone:
        world.no_node("n1")
        world.settle()
    world.run(20 * GRACE)
    assert holders(world, CIDR), "pods say nothing of a machine"


@pytest.mark.parametrize(("lives", "left"), [(True, {1}), (False, set())])
def test_a_machine_that_lives_keeps_its_address_when_its_calico_node_is_deleted(lives: bool, left: set[int]) -> None:
    world = World(kubernetes=False, options=Options(rules=Rules(leak_grace=GRACE), node_deletion=True))
    world.node("n1")
    calico_node(world, "n1", "n1")
    world.kube.machines = VirtualMachines(frozenset({VM}) if lives else frozenset())
    machine(world)
    spec = {"node": "n1", "orchestrator": "k8s", "ipNetworks": ["10.0.0.1/32"]}
    key = ResourceKey(WORKLOAD_ENDPOINT, "w", "default")
    put(world, key, Resource.new(WORKLOAD_ENDPOINT, "w", spec, namespace="default"))
    world.start()
    world.no_node("n1")
    world.settle()
    world.run(GRACE)
    assert set(holders(world, CIDR)) == left


# --- rights ---------------------------------------------------------------------------------------------------------


def test_a_right_to_write_that_is_missing_stops_only_what_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of()
    leak(world, CIDR, 1)
    leak(world, OTHER, 1, node="n2")
    commit = world.store.commit

    def forbidden(*writes: Any) -> Any:
        if any(write.key == BlockKey(parse_network(CIDR)) for write in writes):
            raise Unauthorized("ipamblocks.crd.projectcalico.org is forbidden")
        return commit(*writes)

    monkeypatch.setattr(world.store, "commit", forbidden)
    world.start()
    world.run(4 * GRACE)
    assert holders(world, OTHER) == {}
    assert holders(world, CIDR)
    assert ("release", CIDR) in world.controller.backoff.failures()
    monkeypatch.undo()
    world.run(GRACE)
    assert holders(world, CIDR) == {}


# --- waiting ----------------------------------------------------------------------------------------------------------


def test_leaks_that_are_held_cost_no_retries() -> None:
    """Limit U8: upstream's sync fails again and again while one address of a handle lives."""
    world = world_of()
    running_pod(world, "dual", "n1", "10.0.0.1")
    add_block(world, CIDR, "n1", {1: ("dual", pod_attrs("n1", "dual")), 2: ("dual", pod_attrs("n1", "dual"))})
    world.start()
    world.run(4 * GRACE)
    assert len(world.controller.held) == 1
    passes, reads = world.passes, world.kube.reads
    world.run(10 * GRACE)
    assert world.passes - passes <= 2 * 10 * 2, "it looks when it is due, and never because of them"
    assert world.kube.reads == reads
    assert world.controller.record.syncs["error"] == 0


def test_who_starts_again_begins_with_whole_grace_periods() -> None:
    """Limit U22: timers are in memory only."""
    world = world_of()
    leak(world, CIDR, 1)
    world.start()
    world.run(GRACE - 1)
    again = World(options=world.controller.options, store=world.store)
    again.kube, again.live.kube = world.kube, world.kube
    again.start()
    again.run(GRACE - 1)
    assert holders(again, CIDR)
    again.run(GRACE)
    assert holders(again, CIDR) == {}


@pytest.mark.parametrize("node_deletion", [False, True])
def test_a_node_that_is_gone_in_the_caches_only_is_asked_about_less_and_less_often(node_deletion: bool) -> None:
    """Found by a random life of a cluster: a live look that could not tell was repeated without a pause."""
    options = Options(rules=Rules(leak_grace=GRACE), node_deletion=node_deletion)
    world = World(kubernetes=False, options=options)
    world.node("n1")
    calico_node(world, "n1", "n1")
    add_block(world, CIDR, "n1")
    world.start()
    world.kube.failing.add("n1")
    world.no_node("n1")
    world.settle()
    world.run(600)
    assert len(world.actions) < 100
    assert stored_block(world, CIDR) is not None
    world.kube.failing.clear()
    world.run(60)
    assert stored_block(world, CIDR) is None


@pytest.mark.parametrize("trouble", ["unreadable", "stale"])
def test_what_the_caches_say_and_the_server_does_not_is_tried_less_and_less_often(trouble: str) -> None:
    """A pod of a node that is gone cannot be read, or news of its block are late: no hot loop."""
    world = World(options=Options(rules=Rules(leak_grace=900.0)))
    leak(world, CIDR, 1, node="gone")
    look = world.live.workloads

    def given_anew_meanwhile(pods: Any) -> Any:
        entry = world.store.get(BlockKey(parse_network(CIDR)))
        world.store.commit(Update(entry, replace(entry.value, sequence_for={1: 5000})))
        world.store.pending.clear()  # type: ignore[attr-defined]  # of this test's store
        return look(pods)

    if trouble == "unreadable":
        world.kube.failing.add(("default", "p1"))
    else:
        world.live.workloads = given_anew_meanwhile  # type: ignore[method-assign]  # a fake in its place

    def releases() -> int:
        return sum(action.key == ("release", CIDR) for action in world.actions)

    world.start()
    world.run(60)
    assert releases() == MOST_FAILURES
    assert world.controller.record.parked == {"release": 1}
    assert 1 in holders(world, CIDR)
    reads = world.kube.reads
    world.run(300)
    assert world.kube.reads - reads < 5, "it waits for the next full scan"
    world.kube.failing.clear()
    world.live.workloads = look  # type: ignore[method-assign]  # as it was
    world.state.full_scan = True
    world.settle()
    assert releases() > MOST_FAILURES
    assert (stored_block(world, CIDR) is None) is (trouble == "unreadable")


# --- one bad object -------------------------------------------------------------------------------------------------

SIX = "fd00::/122"


@pytest.mark.parametrize(("damage", "freed"), [("none", False), ("six", False), ("unnamed", False), ("other", True)])
def test_a_handle_with_an_address_in_a_block_that_cannot_be_read_is_not_returned_in_part(
    damage: str, freed: bool
) -> None:
    """A dual-stack pod in a single-stack cluster reports one address and uses both; the block of one is damaged."""
    world = world_of()
    running_pod(world, "p", "n1", "fd00::1")
    add_block(world, CIDR, "n1", {1: ("net.both", pod_attrs("n1", "p")), 2: ("net.dead", pod_attrs("n1", "dead"))})
    add_block(world, SIX, "n1", {1: ("net.both", pod_attrs("n1", "p"))})
    if damage == "other":  # then it is leaked: nothing of its handle is anywhere else
        drop(world, BlockKey(parse_network(SIX)))
        put(world, HandleKey("net.both"), Handle("net.both", {CIDR: 1}))
    world.start()
    key = {"six": BlockKey(parse_network(SIX)), "other": BlockKey(parse_network("10.9.0.0/26"))}.get(damage)
    if damage == "unnamed":
        world.changed(Change(intake.BLOCK, SIX))  # what was known of it is gone, as after a restart
    if damage != "none":
        path = "/calico/ipam/v2/assignment/ipv6/block/x"
        bad = Damaged(key, path, "not JSON", revision="9")
        world.changed(Change(intake.DAMAGED, intake.name_of(bad), bad))
    world.run(10 * GRACE)
    assert (1 not in holders(world, CIDR)) is freed
    assert 2 not in holders(world, CIDR), "others of the same block are no worse off"


@pytest.mark.parametrize("name", [7, True, ["n1"], {"a": 1}])
def test_a_reference_that_is_no_name_is_not_that_of_a_node_that_is_gone(name: Any) -> None:
    world = World(kubernetes=False, options=Options(rules=Rules(leak_grace=GRACE), node_deletion=True))
    references = [{"orchestrator": "k8s", "nodeName": name}]
    put(world, ResourceKey(NODE, "n1"), Resource.new(NODE, "n1", {"orchRefs": references}))
    add_block(world, CIDR, "n1", {1: ("net.p", pod_attrs("n1", "p"))})
    world.start()
    world.run(5 * GRACE)
    assert 1 in holders(world, CIDR)
    assert world.store.get(ResourceKey(NODE, "n1"))


def test_labels_of_the_others_are_copied_where_a_node_cannot_be_read() -> None:
    world = World(kubernetes=False, options=Options(rules=Rules(leak_grace=GRACE), label_sync=True))
    for node in ("n1", "n2"):
        world.node(node, {"zone": "a"})
        calico_node(world, node, node)
    world.state.link_node("n1", "n1")
    rows = world.store._rows  # type: ignore[attr-defined]  # of this test's store
    [path] = [path for path in rows if path.endswith("/nodes/n1")]
    rows[path] = Row(path, "{", rows[path].revision)
    world.start()
    assert world.store.get(ResourceKey(NODE, "n2")).value.labels == {"zone": "a"}


def test_a_datastore_that_is_away_while_labels_are_copied_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(kubernetes=False, options=Options(rules=Rules(leak_grace=GRACE), label_sync=True))
    world.node("n1", {"zone": "a"})
    calico_node(world, "n1", "n1")
    read = world.store.read

    def away(*keys: Any) -> Any:
        if ResourceKey(NODE, "n1") in keys:
            raise StoreUnavailable("away")
        return read(*keys)

    monkeypatch.setattr(world.store, "read", away)
    world.start()
    world.run(5)
    monkeypatch.undo()
    world.run(700)
    assert world.store.get(ResourceKey(NODE, "n1")).value.labels == {"zone": "a"}


def test_an_answer_that_is_older_than_what_the_watch_told_changes_nothing() -> None:
    world = world_of()
    running_pod(world, "p", "n1", "10.0.0.1")
    add_block(world, CIDR, "n1")
    world.start()
    before = world.state.blocks[CIDR]
    old = world.store.get(BlockKey(parse_network(CIDR)))
    add_block(world, CIDR, "n1", {1: ("net.p", pod_attrs("n1", "p"))})
    world.settle()
    newer = world.state.blocks[CIDR]
    give_back = GiveBack(CIDR, "n1", before.block)
    for action, answer in (
        (give_back, Done(gone=True)),
        (give_back, Done(entry=old, note="no-affinity-row")),
        (Thaw(CIDR, before.revision, IPAMConfig()), Done(gone=True)),
    ):
        world.controller.conclude(action, answer)
        assert world.state.blocks[CIDR] is newer
        world.check()


def test_a_pool_that_comes_again_with_another_cidr() -> None:
    """Of one object only the newest change waits, so its end may never be told."""
    world = world_of()
    add_block(world, CIDR, "n1")
    pool(world, "p", "10.0.0.0/24")
    world.start()
    assert world.state.pools.of_block == {CIDR: "p"}
    for cidr, mine in (("10.1.0.0/24", "no_ippool"), ("nonsense", "no_ippool"), ("10.0.0.0/16", "p")):
        world.changed(Change(IP_POOL, "p", Resource.new(IP_POOL, "p", {"cidr": cidr})))
        world.settle()
        assert world.state.pools.of_block == {CIDR: mine}
    assert str(world.state.pools.pools["p"].cidr) == "10.0.0.0/16"
