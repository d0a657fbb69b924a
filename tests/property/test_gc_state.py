"""The internal maps hold together after every event, in any order of events (gc §16, §19.6)."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

from calico_gc import intake
from calico_gc.decide import Rules
from calico_gc.facts import KubeNode, Pod, VirtualMachines
from calico_gc.intake import Change
from calico_gc.invariants import broken
from calico_gc.options import Options
from calico_gc.suspicion import Moment, leaked, proven
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calico_ipam.model.addresses import parse_network
from calico_ipam.model.block import Block
from calico_ipam.model.resource import CLUSTER_INFORMATION, IP_POOL, NODE, Resource
from tests.gc_things import block_of
from tests.gc_world import World

CIDRS = ("10.0.0.0/30", "10.0.0.4/30", "10.0.0.0/29", "10.1.0.0/30", "fd00::/126")
HOSTS = ("a", "b", "c")
OWNERS = (None, "a", "b", "virtual:load-balancer")
HANDLES = ("h1", "h2", "h2\r\neth0", "windows-reserved-ipam-handle", "")
POOLS = {"p1": "10.0.0.0/16", "p2": "10.1.0.0/24", "p3": "fd00::/64", "bad": "nonsense"}
#: events of one run; the nightly run asks for 100 000
STEPS = int(os.environ.get("CALICO_IPAM_GC_STEPS", "3000"))


def some_block(world: World, choice: Callable[[Any], Any]) -> Block:
    cidr = choice(CIDRS)
    size = parse_network(cidr).num_addresses
    held = {}
    for ordinal in range(size):
        if choice((True, False)):
            attrs = choice(
                (
                    {"node": choice(HOSTS), "pod": choice(("x", "y")), "namespace": "d"},
                    {"node": choice(HOSTS), "type": "vxlanTunnelAddress"},
                    {"pod": "x", "namespace": "d"},
                    {"node": choice(HOSTS), "vmi-name": "vm", "pod": "x", "namespace": "d"},
                    {},
                )
            )
            held[ordinal] = (choice(HANDLES), attrs)
    cooling = {o: float(choice((1, 100))) for o in range(size) if o not in held and choice((True, False, False))}
    owner = choice(OWNERS)
    kind, _, host = owner.rpartition(":") if owner else ("", "", "")
    return block_of(world, cidr, host or None, held, cooling=cooling, kind=kind or "host", sequence=choice((100, 101)))


def some_change(world: World, choice: Callable[[Any], Any]) -> Change:
    match choice(("block", "block", "block", "gone", "pod", "node", "kube", "pool", "ready", "vm", "damaged")):
        case "block":
            block = some_block(world, choice)
            return Change(intake.BLOCK, str(block.cidr), block, str(world.clock.wall))
        case "gone":
            return Change(intake.BLOCK, choice(CIDRS))
        case "pod":
            key = ("d", choice(("x", "y")))
            pod = Pod(*key, node=choice(HOSTS), phase="Running", ip="10.0.0.1", ips=("10.0.0.1",))
            return Change(intake.POD, key, choice((pod, None)))
        case "node":
            name = choice(HOSTS)
            references = choice(([], [{"nodeName": choice(("a", "b", "k")), "orchestrator": "k8s"}]))
            return Change(NODE, name, choice((None, Resource.new(NODE, name, {"orchRefs": references}))))
        case "kube":
            name = choice(("a", "b", "k"))
            return Change(intake.KUBE_NODE, name, choice((None, KubeNode(name))))
        case "pool":
            name = choice(tuple(POOLS))
            return Change(IP_POOL, name, choice((None, Resource.new(IP_POOL, name, {"cidr": POOLS[name]}))))
        case "ready":
            ready = Resource.new(CLUSTER_INFORMATION, "default", {"datastoreReady": choice((True, None, False))})
            return Change(CLUSTER_INFORMATION, "default", choice((ready, None)))
        case "vm":
            return Change(intake.MACHINES_THERE, "", choice((True, False)))
        case _:
            from calico_ipam.datastore.api import Damaged
            from calico_ipam.model.keys import BlockKey

            cidr = choice(CIDRS)
            return Change(intake.DAMAGED, cidr, Damaged(BlockKey(parse_network(cidr)), cidr, "spoiled"))


def walk(world: World, choice: Callable[[Any], Any], steps: int) -> None:
    """Apply events one by one, now and then a pass of the collector whose actions all fail."""
    state, controller = world.state, world.controller
    controller.submit = lambda action: None
    state.in_sync = True
    for step in range(steps):
        change = some_change(world, choice)
        world.intake.apply(change)
        assert not (problems := broken(state, world.clock.mono)), f"step {step}, {change}: {problems}"
        if choice((True, False, False)):
            world.clock.advance(choice((0.1, 1.0, 30.0)))
            if choice((True, False)):
                controller.tick()
            controller.sync()
            controller.busy.clear()
            assert not (problems := broken(state, world.clock.mono)), f"step {step}, a pass: {problems}"
        if state.blocks and choice((True,) + (False,) * 9):
            tracked = choice(tuple(state.blocks.values()))
            for allocation in tuple(tracked.allocations.values())[:1]:
                state.forget(allocation)
            assert not (problems := broken(state, world.clock.mono)), f"step {step}, forgetting: {problems}"


def fresh(*, kubernetes: bool) -> World:
    world = World(kubernetes=kubernetes, options=Options(rules=Rules(leak_grace=1.0)))
    world.kube.machines = VirtualMachines()
    return world


@given(data=st.data(), kubernetes=st.booleans())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_maps_hold_after_every_event(data: st.DataObject, kubernetes: bool) -> None:
    walk(fresh(kubernetes=kubernetes), lambda options: data.draw(st.sampled_from(options)), 12)


def test_maps_hold_over_a_long_walk() -> None:
    for seed, kubernetes in ((1, True), (2, False)):
        walk(fresh(kubernetes=kubernetes), random.Random(seed).choice, STEPS)


def test_everything_can_be_forgotten() -> None:
    """After all blocks and nodes went, no map holds anything about them (public report P33: memory stays flat)."""
    world = fresh(kubernetes=False)
    walk(world, random.Random(3).choice, 300)
    for cidr in CIDRS:
        world.intake.apply(Change(intake.BLOCK, cidr))
    state = world.state
    left = (state.blocks, state.by_node, state.by_handle, state.suspects, state.confirmed, state.owners, state.owned)
    assert all(not part for part in (*left, state.empty, state.empty_since, state.cold, state.pools.of_block))


# --- suspicion ---------------------------------------------------------------------------------------------------


@given(
    looks=st.lists(st.tuples(st.sampled_from(["leaked", "proven", "alive"]), st.floats(0.001, 100.0)), max_size=20),
    grace=st.sampled_from([0.0, 1.0, 50.0]),
)
def test_nothing_is_confirmed_without_two_looks_or_a_dead_node(looks: list[tuple[str, float]], grace: float) -> None:
    belief, mono, first, node_gone = None, 1000.0, None, False
    for kind, wait in looks:
        mono += wait
        now = Moment(mono, int(mono * 1e9))
        if kind == "alive":
            belief, first, node_gone = None, None, False
        elif kind == "proven":
            belief, node_gone = proven(belief, "node-gone", now, ""), True
        else:
            if belief is None or belief.since is None:
                first, node_gone = mono, False
            belief = leaked(belief, "pod-not-found", grace, now, "k")
        if belief is not None and belief.confirmed and not node_gone:
            assert first is not None
            assert grace > 0
            assert mono - first > grace
            assert belief.observations >= 2
