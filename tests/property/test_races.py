"""Every operation of the library at once with every other: what comes of it is what some order of the two gives.

``RACES=20000 RACES_SEED=7`` runs more of them, and others.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from calico_ipam.datastore.api import Create, Delete, Update
from calico_ipam.engine.client import IPAM
from calico_ipam.engine.owners import OwnerUpdates
from calico_ipam.errors import (
    AlreadyExists,
    BadHandle,
    BadSequenceNumber,
    BlockLimitReached,
    BlockNotEmpty,
    Conflict,
    InvalidInput,
    IPAMError,
    MaxAllocReached,
    NoFreeBlocks,
    NotFound,
    RefusedError,
)
from calico_ipam.model.addresses import Address, parse_address, parse_network
from calico_ipam.model.affinity import HOST, VIRTUAL, BlockOwner
from calico_ipam.model.block import Block, HostReserved, ReleaseOption
from calico_ipam.model.handle_names import load_balancer_handle, vm_handle
from calico_ipam.model.keys import Affinities, Blocks, ResourceKey
from calico_ipam.model.resource import IP_POOL, IP_RESERVATION, Resource
from tests.cluster import Cluster
from tests.memory_kube import MemoryKubeStore
from tests.races import NEVER, STORES, Operation, Race, World

POOL = parse_network("10.0.0.0/28")
NODE_1, NODE_2 = BlockOwner(HOST, "node-1"), BlockOwner(HOST, "node-2")
VM = vm_handle("", "ns", "vm")
SERVICE = load_balancer_handle("web", "shop", "1")
TUNNEL = "vxlan-tunnel-addr-node-1"
RESERVED = HostReserved(1, 1, "windows-reserved-ipam-handle", "windows host rsvd")


# --- worlds: block 10.0.0.0/30 is node-2's and holds the bystander, 10.0.0.8/30 is node-1's first ----------------


def _empty(world: Cluster) -> None:
    inner = world.store.inner
    if isinstance(inner, MemoryKubeStore):
        inner.add_node("node-1", zone="a")
        inner.add_node("node-2", zone="a")
    else:
        world.nodes("node-1", "node-2", labels={"zone": "a"})
    world.pool("p", str(POOL), 30)
    world.pool("p6", "fd00::/124", 126)
    world.pool("lb", "10.9.0.0/29", 30, allowedUses=["LoadBalancer"])
    world.pool("t", "10.8.0.0/29", 30, allowedUses=["Tunnel"], vxlanMode="Always")
    world.auto(2, host="node-2", handle="bystander")
    world.clock.advance(120)


def _usual(world: Cluster) -> None:
    _empty(world)
    world.auto(1, handle="h")
    world.auto(1, handle="k")
    world.clock.advance(120)


def _two_blocks(world: Cluster) -> None:
    _empty(world)
    world.auto(6, handle="h")
    world.auto(1, handle="k")


def _emptied(world: Cluster) -> None:
    _usual(world)
    world.ipam.release_by_handle("h")
    world.ipam.release_by_handle("k")


def _unowned(world: Cluster) -> None:
    _usual(world)
    world.ipam.release_host_affinities(NODE_1, must_be_empty=False)


def _strict(world: Cluster) -> None:
    _usual(world)
    world.configure(strict_affinity=True)


def _cooling(world: Cluster) -> None:
    _usual(world)
    world.configure(cooldown_seconds=30)
    world.auto(2, handle="was")
    world.ipam.release_by_handle("was")
    world.clock.advance(60)


def _half_done(world: Cluster) -> None:
    """Rows that crashes left: marked for deletion, pending without a block."""
    _usual(world)
    for row in list(world.store.inner.list(Affinities(HOST, "node-1"))):
        world.store.inner.commit(Update(row, row.value.with_state("pendingDeletion")))
    world.row("10.0.0.4/30", "node-1", "pending")
    world.row("10.0.0.12/30", "node-2", "pendingDeletion")


def _rowless(world: Cluster) -> None:
    _usual(world)
    for row in list(world.store.inner.list(Affinities(HOST, "node-1"))):
        world.store.inner.commit(Delete(row))


def _machine(world: Cluster) -> None:
    _empty(world)
    world.auto(1, handle=VM, attrs={"pod": "source", "namespace": "ns"})
    world.auto(1, handle="h")
    target = OwnerUpdates(alternate={"pod": "target", "namespace": "ns"})
    world.ipam.set_owner_attributes(world.ipam.ips_by_handle(VM)[0], VM, target)


WORLDS = [
    World(prepare.__name__, prepare)
    for prepare in (
        *(_empty, _usual, _two_blocks, _emptied, _unowned, _strict, _cooling, _half_done, _rowless, _machine),
    )
]


# --- operations ------------------------------------------------------------------------------------------------


def _auto(handle: str, host: str = "node-1", number: int = 1, **more: Any) -> Operation:
    def call(ipam: IPAM) -> object:
        return ipam.auto_assign(use="Workload", num4=number, handle=handle, hostname=host, **more)

    words = "".join(f" {key}={value}" for key, value in more.items())
    # With a cap, and somebody else assigning under the same handle, what is left of the cap may be too little.
    may: tuple[type[IPAMError], ...] = (MaxAllocReached, RefusedError) if "max_per_handle" in more else ()
    if "max_blocks_per_host" in more:
        may = (*may, BlockLimitReached)  # a block that was claimed and taken away again counts in that call
    return Operation(f"auto-assign {number} {handle} on {host}{words}", call, frozenset({handle}), may)


def _assign(handle: str, address: str, host: str = "node-1", cap: int = 0) -> Operation:
    def call(ipam: IPAM) -> None:
        ipam.assign_ip(parse_address(address), handle=handle, hostname=host, max_per_handle=cap)

    name = f"assign {address} {handle} on {host}{f', at most {cap}' if cap else ''}"
    return Operation(name, call, frozenset({handle}), (AlreadyExists, RefusedError))


def _held(ipam: IPAM, handle: str) -> list[tuple[Address, int]]:
    """Return the addresses of a handle with their numbers; looking at them is part of the race."""
    found = []
    for entry in ipam.store.list(Blocks(4)):
        block: Block = entry.value
        found += [(block.address(ordinal), block.sequence_of(ordinal)) for ordinal in block.held_by(handle)]
    return found


def _release(handles: str, *, guarded: bool) -> Operation:
    def call(ipam: IPAM) -> object:
        options = [
            ReleaseOption(address, handle, number if guarded else None)
            for handle in handles.split()
            for address, number in _held(ipam, handle)
        ]
        return ipam.release_ips(options)

    name = f"release {handles}{' by number' if guarded else ''}"
    return Operation(name, call, frozenset(handles.split()), (BadHandle, BadSequenceNumber), releases=True)


def _by_handle(handle: str) -> Operation:
    return Operation(
        f"release by handle {handle}",
        lambda ipam: ipam.release_by_handle(handle),
        frozenset({handle}),
        (NotFound,),
        releases=True,
    )


def _admin(name: str, call: Callable[[IPAM], object], *may: type[IPAMError]) -> Operation:
    return Operation(name, call, may=may)


def _block_affinity(ipam: IPAM) -> None:
    for block in [entry.value for entry in ipam.store.list(Blocks(4)) if entry.value.owned_by(NODE_1)]:
        ipam.release_block_affinity(block, must_be_empty=False)


def _thaw(ipam: IPAM) -> None:
    for entry in ipam.store.list(Blocks()):
        ipam.collect_cold_addresses(entry, ipam.get_config())


def _own_h(ipam: IPAM) -> None:
    for address, _ in _held(ipam, "h")[:1]:
        ipam.set_owner_attributes(address, "h", OwnerUpdates(active={"pod": "b"}))


def _service(*annotations: str) -> dict[str, object]:
    named = {"projectcalico.org/loadBalancerIPs": f'["{annotations[0]}"]'} if annotations else {}
    return {
        "metadata": {"name": "web", "namespace": "shop", "uid": "1", "annotations": named},
        "spec": {"type": "LoadBalancer"},
    }


OPERATIONS = (
    _auto("n"),
    _auto("m", "node-2"),
    _auto("n", number=6),
    _auto("h"),
    _auto("n", num6=1),
    _auto("n", max_per_handle=1),
    _auto(VM, max_per_handle=1),
    _auto("n", "node-2", number=3, max_blocks_per_host=2),
    _assign("n", "10.0.0.10"),
    _assign("m", "10.0.0.10", "node-2"),
    _assign("n", "10.0.0.4"),
    _assign("m", "10.0.0.5", "node-2"),
    _assign("n", "10.0.0.3", cap=1),
    _release("h", guarded=False),
    _release("h", guarded=True),
    _release("h k", guarded=True),
    _by_handle("h"),
    _by_handle("n"),
    _by_handle(VM),
    _admin("claim the pool for node-1", lambda ipam: ipam.claim_affinity(POOL, NODE_1)),
    _admin("claim the pool for node-2", lambda ipam: ipam.claim_affinity(POOL, NODE_2)),
    _admin("claim a block for Services", lambda ipam: ipam.claim_affinity(POOL, BlockOwner(VIRTUAL, "load-balancer"))),
    _admin(
        "release node-1's in the pool",
        lambda ipam: ipam.release_affinity(POOL, NODE_1, must_be_empty=True),
        BlockNotEmpty,
    ),
    _admin("release node-1's", lambda ipam: ipam.release_host_affinities(NODE_1, must_be_empty=False)),
    _admin(
        "release node-2's empty ones",
        lambda ipam: ipam.release_host_affinities(NODE_2, must_be_empty=True),
        BlockNotEmpty,
    ),
    _admin("release the pool's", lambda ipam: ipam.release_pool_affinities(POOL)),
    _admin("release node-1's blocks as read", _block_affinity, Conflict),
    _admin("forget node-1", lambda ipam: ipam.remove_ipam_host(NODE_1)),
    _admin("ensure a block", lambda ipam: ipam.ensure_block(hostname="node-1", host_reserved4=RESERVED), NoFreeBlocks),
    _admin("strict", lambda ipam: ipam.set_config(replace(ipam.get_config(), strict_affinity=True))),
    _admin("cooldown", lambda ipam: ipam.set_config(replace(ipam.get_config(), cooldown_seconds=30))),
    _admin("free what has cooled down", _thaw, Conflict, NotFound),
    _admin("set the owner of h", _own_h, NotFound, InvalidInput),
    _admin(
        "promote the target",
        lambda ipam: ipam.ensure_active_vm_owner("", "ns", "vm", "target"),
        NotFound,
        InvalidInput,
        RefusedError,
    ),
    Operation(
        "tunnel addresses",
        lambda ipam: ipam.reconcile_tunnel_addresses("node-1"),
        frozenset({TUNNEL}),
        (Conflict, RefusedError),
        releases=True,
    ),
    Operation(
        "an address for a Service",
        lambda ipam: ipam.reconcile_service(_service()),
        frozenset({SERVICE}),
        (RefusedError,),
        releases=True,
    ),
    Operation(
        "another address for a Service",
        lambda ipam: ipam.reconcile_service(_service("10.9.0.5")),
        frozenset({SERVICE}),
        (RefusedError, AlreadyExists),
        releases=True,
    ),
)


# --- what others do ----------------------------------------------------------------------------------------------


def _pool_becomes(**spec: object) -> Callable[[IPAM], None]:
    def call(ipam: IPAM) -> None:
        entry = ipam.store.get(ResourceKey(IP_POOL, "p"))
        ipam.store.commit(Update(entry, entry.value.with_spec({**entry.value.spec, **spec})))

    return call


def _pool_goes(ipam: IPAM) -> None:
    ipam.store.commit(Delete(ipam.store.get(ResourceKey(IP_POOL, "p"))))


def _reserve(ipam: IPAM) -> None:
    key = ResourceKey(IP_RESERVATION, "r")
    ipam.store.commit(Create(key, Resource.new(IP_RESERVATION, "r", {"reservedCIDRs": ["10.0.0.8/29"]})))


def _hand_over(ipam: IPAM) -> None:
    """The addresses of h go, and one of them is somebody else's on another node at once."""
    held = _held(ipam, "h")
    ipam.release_ips([ReleaseOption(address, "h") for address, _ in held])
    for address, _ in held[:1]:
        ipam.assign_ip(address, handle="z", hostname="node-2")


def _born_again(ipam: IPAM) -> None:
    """h is released and begun anew."""
    ipam.release_by_handle("h")
    ipam.auto_assign(use="Workload", num4=2, handle="h", hostname="node-1")


OTHERS = (
    *OPERATIONS,
    _admin("the pool goes", _pool_goes),
    _admin("the pool is disabled", _pool_becomes(disabled=True)),
    _admin("the pool selects no node", _pool_becomes(nodeSelector="zone == 'z'")),
    _admin("addresses are reserved", _reserve),
    Operation("hand over h", _hand_over, frozenset({"h", "z"}), (AlreadyExists, RefusedError), releases=True),
    Operation("h is born again", _born_again, frozenset({"h"}), (NotFound,), releases=True),
)


def _schedules(chance: random.Random, number: int) -> Iterator[Race]:
    while number > 0:
        world, store = chance.choice(WORLDS), chance.choice(list(STORES.values()))
        one, other = chance.choice(OPERATIONS), chance.choice(OTHERS)
        straight = Race(world, one, other, store)
        straight.run()
        for _ in range(min(number, 4)):
            rest = chance.randint(1, straight.requests)
            other_rests = chance.choice([NEVER, chance.randint(1, max(1, straight.other_requests))])
            yield Race(world, one, other, store, rest=rest, other_rests=other_rests)
            number -= 1


@pytest.mark.parametrize("part", range(4))
def test_what_two_do_at_once_has_an_order(part: int) -> None:
    seed, number = int(os.environ.get("RACES_SEED", "1")), int(os.environ.get("RACES", "1200"))
    wrong = {}
    for race in _schedules(random.Random(f"{seed} {part}"), number // 4):
        problems = race.run()
        if problems:
            wrong[str(race)] = problems
    assert not wrong, f"{len(wrong)} races, seed {seed}: " + "\n".join(f"{k}: {v}" for k, v in list(wrong.items())[:9])


CLAIMS = [o for o in OPERATIONS if o.name in ("claim the pool for node-1", "auto-assign 1 n on node-1")]
RELEASES = [
    o
    for o in OPERATIONS
    if o.name in ("release node-1's in the pool", "release node-1's blocks as read", "release the pool's")
]


@pytest.mark.parametrize("store", ["kubernetes", "kubernetes, backwards"])
def test_a_row_and_its_block_are_read_side_by_side(store: str) -> None:
    """One may be read before somebody else's claim, the other after it: neither is left without the other."""
    wrong = {}
    worlds = [world for world in WORLDS if world.prepare in (_empty, _half_done, _rowless)]
    for world, one, other in product(worlds, RELEASES, CLAIMS):
        straight = Race(world, one, other, STORES[store])
        straight.run()
        for rest in range(2, min(straight.requests, 12) + 1):
            race = Race(world, one, other, STORES[store], rest=rest)
            if problems := race.run():
                wrong[str(race)] = problems
    assert not wrong
