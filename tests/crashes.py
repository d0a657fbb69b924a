"""Every public operation, cut at every write, in every world: ``python -m tests.crashes`` prints the table.

A cut is a process that dies (``kill -9``) or an error, before a write or after it. Afterwards the process is started
again, one more call is made, the one a runtime or an operator would make, and everything stored must be in order: the
invariants hold, and nobody's address is lost or doubled.

Two stores: one that commits as a whole (SQLite, etcd), one that commits write by write (the Kubernetes API).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from calico_ipam.datastore.api import Datastore
from calico_ipam.engine.client import IPAM
from calico_ipam.engine.owners import OwnerUpdates
from calico_ipam.errors import IPAMError, NotFound, StoreError
from calico_ipam.model.addresses import Address, Network, blocks_in, parse_address, parse_network
from calico_ipam.model.affinity import HOST, BlockOwner
from calico_ipam.model.block import HostReserved, ReleaseOption
from calico_ipam.model.handle_names import load_balancer_handle
from calico_ipam.model.keys import Blocks
from tests.cluster import Cluster
from tests.faulty import Fault, FaultyStore
from tests.invariants import violations
from tests.memory import MemoryStore
from tests.sequential import SequentialStore

World = Literal["killed before", "killed after", "error before", "answer lost", "conflict"]
WORLDS: tuple[World, ...] = ("killed before", "killed after", "error before", "answer lost", "conflict")

NODE_1, NODE_2 = BlockOwner(HOST, "node-1"), BlockOwner(HOST, "node-2")


class Killed(BaseException):
    """The process is gone: no handler of the library runs."""


SERVICE = load_balancer_handle("web", "shop", "1")


@dataclass(frozen=True)
class Operation:
    """``prepare``: the world before. ``call``: what is cut. ``again``: the one call that comes after the restart."""

    name: str
    prepare: Callable[[Cluster], None]
    call: Callable[[IPAM], object]
    again: Callable[[IPAM], object]
    #: handles -> number of addresses each must hold in the end, whatever happened
    holds: tuple[tuple[str, int], ...] = (("bystander", 2),)


def _basic(world: Cluster) -> None:
    world.nodes("node-1", "node-2")
    world.pool("p", "10.0.0.0/28", 30)
    world.pool("p6", "fd00::/122", 124)
    world.auto(2, host="node-2", handle="bystander")


def _tunnels(world: Cluster) -> None:
    _basic(world)
    world.pool("t", "10.9.0.0/29", 30, vxlanMode="Always")


def _services(world: Cluster) -> None:
    _basic(world)
    world.pool("lb", "10.9.0.0/29", 30, allowedUses=["LoadBalancer"])


def _served(world: Cluster) -> None:
    _services(world)
    world.ipam.reconcile_service(_service("10.9.0.2"))


def _service(*addresses: str) -> dict[str, Any]:
    annotations = {"projectcalico.org/loadBalancerIPs": json.dumps(addresses)} if addresses else {}
    metadata = {"name": "web", "namespace": "shop", "uid": "1", "annotations": annotations}
    return {"metadata": metadata, "spec": {"type": "LoadBalancer"}}


def _own_block(world: Cluster) -> None:
    _basic(world)
    world.auto(1, host="node-1", handle="first")


def _held(world: Cluster) -> None:
    _basic(world)
    world.auto(6, host="node-1", handle="h")  # two blocks


def _held_by_address(world: Cluster) -> None:
    _basic(world)
    world.auto(2, host="node-1", handle="h")


def _full_of_others(world: Cluster) -> None:
    world.nodes("node-1", "node-2")
    world.pool("p", "10.0.0.0/30", 30)
    world.auto(2, host="node-2", handle="bystander")


def _reclaimable(world: Cluster) -> None:
    world.nodes("node-1", "node-2")
    world.pool("p", "10.0.0.0/29", 30)
    world.auto(2, host="node-2", handle="bystander")
    world.ipam.claim_affinity(parse_network("10.0.0.0/29"), NODE_2)
    world.clock.advance(120)


def _unowned(world: Cluster) -> None:
    _basic(world)
    world.auto(1, host="node-1", handle="h")
    world.ipam.release_host_affinities(NODE_1, must_be_empty=False)


def _empty_blocks(world: Cluster) -> None:
    _basic(world)
    world.ipam.claim_affinity(_free_block(world), NODE_1)


def _cold(world: Cluster) -> None:
    _basic(world)
    world.configure(cooldown_seconds=30)
    world.auto(2, host="node-1", handle="h")
    world.ipam.release_by_handle("h")
    world.clock.advance(60)


def _free_block(world: Cluster) -> Network:
    taken = set(world.blocks())
    return next(b for b in blocks_in(parse_network("10.0.0.0/28"), 30) if str(b) not in taken)


def _release(ipam: IPAM) -> None:
    """DEL: what a runtime sends after a failed ADD."""
    try:
        ipam.release_by_handle("h")
    except NotFound:
        return


def _assign(number: int = 1, **more: Any) -> Callable[[IPAM], object]:
    def call(ipam: IPAM) -> object:
        return ipam.auto_assign(use="Workload", num4=number, handle="h", hostname="node-1", **more)

    return call


def _release_addresses(ipam: IPAM) -> object:
    return ipam.release_ips([ReleaseOption(ip, "h") for ip in _addresses(ipam, "h")])


def _addresses(ipam: IPAM, handle: str) -> list[Address]:
    return [
        block.value.address(ordinal) for block in ipam.store.list(Blocks(4)) for ordinal in block.value.held_by(handle)
    ]


def _one_address_of(ipam: IPAM, handle: str) -> Address:
    return _addresses(ipam, handle)[0]


def _cold_blocks(ipam: IPAM) -> None:
    for block in ipam.store.list(Blocks()):
        ipam.collect_cold_addresses(block, ipam.get_config())


def _claim_all(ipam: IPAM) -> object:
    return ipam.claim_affinity(parse_network("10.0.0.0/28"), NODE_1)


def _release_pool(ipam: IPAM) -> None:
    ipam.release_pool_affinities(parse_network("10.0.0.0/28"))


RESERVED = HostReserved(1, 1, "windows-reserved-ipam-handle", "windows host rsvd")

OPERATIONS: tuple[Operation, ...] = (
    Operation("auto-assign: first address of a host", _basic, _assign(), _release),
    Operation("auto-assign: from an own block", _own_block, _assign(), _release),
    Operation("auto-assign: over several blocks", _basic, _assign(6), _release),
    Operation("auto-assign: both families", _basic, _assign(num6=1), _release),
    Operation("auto-assign: borrowed", _full_of_others, _assign(), _release),
    Operation("auto-assign: reclaims an empty block", _reclaimable, _assign(), _release),
    Operation("auto-assign: run again", _basic, _assign(max_per_handle=1), _assign(max_per_handle=1), (("h", 1),)),
    Operation(
        "assign-ip: in a new block",
        _basic,
        lambda ipam: ipam.assign_ip(parse_address("10.0.0.13"), handle="h", hostname="node-1"),
        _release,
    ),
    Operation("release-by-handle: two blocks", _held, _release, _release, (("bystander", 2), ("h", 0))),
    Operation("release-by-handle: last of an un-owned block", _unowned, _release, _release, (("h", 0),)),
    Operation("release-ips", _held_by_address, _release_addresses, _release, (("bystander", 2), ("h", 0))),
    Operation("claim-affinity", _basic, _claim_all, _claim_all),
    Operation(
        "release-affinity: used and empty blocks",
        _held,
        lambda ipam: ipam.release_affinity(parse_network("10.0.0.0/28"), NODE_1, must_be_empty=False),
        lambda ipam: ipam.release_host_affinities(NODE_1, must_be_empty=False),
        (("bystander", 2), ("h", 6)),
    ),
    Operation(
        "release-host-affinities",
        _empty_blocks,
        lambda ipam: ipam.release_host_affinities(NODE_1, must_be_empty=True),
        lambda ipam: ipam.release_host_affinities(NODE_1, must_be_empty=True),
    ),
    Operation("release-pool-affinities", _held, _release_pool, _release_pool, (("bystander", 2), ("h", 6))),
    Operation(
        "remove-ipam-host",
        _held,
        lambda ipam: ipam.remove_ipam_host(NODE_1),
        lambda ipam: ipam.remove_ipam_host(NODE_1),
        (("bystander", 2), ("h", 6)),
    ),
    Operation(
        "ensure-block",
        _basic,
        lambda ipam: ipam.ensure_block(hostname="node-1", host_reserved4=RESERVED),
        lambda ipam: ipam.ensure_block(hostname="node-1", host_reserved4=RESERVED),
    ),
    Operation(
        "set-config",
        _basic,
        lambda ipam: ipam.set_config(replace(ipam.get_config(), strict_affinity=True)),
        lambda ipam: ipam.set_config(replace(ipam.get_config(), strict_affinity=True)),
    ),
    Operation(
        "set-owner-attributes",
        _held_by_address,
        lambda ipam: ipam.set_owner_attributes(_one_address_of(ipam, "h"), "h", OwnerUpdates(active={"pod": "b"})),
        lambda ipam: ipam.set_owner_attributes(_one_address_of(ipam, "h"), "h", OwnerUpdates(active={"pod": "b"})),
        (("bystander", 2), ("h", 2)),
    ),
    Operation("collect-cold-addresses", _cold, _cold_blocks, _cold_blocks),
    Operation(
        "reconcile-tunnel-addresses",
        _tunnels,
        lambda ipam: ipam.reconcile_tunnel_addresses("node-1"),
        lambda ipam: ipam.reconcile_tunnel_addresses("node-1"),
        (("bystander", 2), ("vxlan-tunnel-addr-node-1", 1)),
    ),
    Operation(
        "reconcile-service: an address of the pool",
        _services,
        lambda ipam: ipam.reconcile_service(_service()),
        lambda ipam: ipam.reconcile_service(_service()),
        (("bystander", 2), (SERVICE, 1)),
    ),
    Operation(
        "reconcile-service: another one is wanted",
        _served,
        lambda ipam: ipam.reconcile_service(_service("10.9.0.5")),
        lambda ipam: ipam.reconcile_service(_service("10.9.0.5")),
        (("bystander", 2), (SERVICE, 1)),
    ),
)

STORES: dict[str, Callable[[Datastore], Datastore]] = {"at once": lambda inner: inner, "one by one": SequentialStore}


@dataclass(frozen=True)
class Outcome:
    """What became of one cut."""

    operation: str
    store: str
    write: int
    world: World
    ended: str  #: how the cut call ended
    problems: tuple[str, ...]


def count_writes(operation: Operation, store: str) -> int:
    """Return how many writes the operation makes when nobody disturbs it."""
    world, faulty = _world(operation, store)
    operation.call(world.ipam)
    return faulty.writes


def run(operation: Operation, store: str, write: int, world: World) -> Outcome:
    """Cut one operation at one write, start again, make the one more call, and look at what is stored."""
    made, faulty = _world(operation, store)
    faulty.inject(_fault(world, write))
    try:
        operation.call(made.ipam)
        ended = "done"
    except Killed:
        ended = "killed"
    except IPAMError as error:
        ended = type(error).__name__
    problems = [] if faulty.struck() else [f"write {write} was never made"]
    inner = made.store.inner
    after = IPAM(inner, clock=made.clock)
    try:
        operation.again(after)
    except NotFound:
        pass  # it was done already
    except IPAMError as error:
        problems.append(f"one more call fails: {error}")
    problems += violations(inner)
    problems += _lost_or_doubled(inner, operation)
    return Outcome(operation.name, store, write, world, ended, tuple(problems))


def outcomes() -> Iterator[Outcome]:
    """Yield the whole table."""
    for operation in OPERATIONS:
        for store in STORES:
            for write in range(1, count_writes(operation, store) + 1):
                for world in WORLDS:
                    yield run(operation, store, write, world)


def _world(operation: Operation, store: str) -> tuple[Cluster, FaultyStore]:
    made = Cluster(MemoryStore())
    operation.prepare(made)
    faulty = FaultyStore(made.store.inner)
    cut = STORES[store](faulty)
    made.ipam = IPAM(cut, clock=made.clock)
    return made, faulty


def _fault(world: World, write: int) -> Fault:
    match world:
        case "killed before":
            return Fault("before", write=write, error=Killed)  # type: ignore[arg-type]  # no error of the library
        case "killed after":
            return Fault("lost", write=write, error=Killed)  # type: ignore[arg-type]  # no error of the library
        case "error before":
            return Fault("before", write=write, error=lambda: StoreError("injected failure"))
        case "answer lost":
            return Fault("lost", write=write)
        case "conflict":
            return Fault("conflict", write=write)


def _lost_or_doubled(store: Datastore, operation: Operation) -> Iterator[str]:
    held: Counter[str] = Counter()
    for entry in store.list(Blocks()):
        for _, attribute in entry.value.taken():
            held[attribute.clean_handle] += 1
    for handle, number in operation.holds:
        if held[handle] != number:
            yield f"handle {handle} holds {held[handle]} addresses instead of {number}"


def main() -> int:
    """Print the table: one line for each operation, store and write, one column for each world."""
    bad = 0
    rows: dict[tuple[str, str, int], dict[World, Outcome]] = {}
    for outcome in outcomes():
        rows.setdefault((outcome.operation, outcome.store, outcome.write), {})[outcome.world] = outcome
    print(f"{'operation':46} {'commits':11} {'cut at':7} " + " ".join(f"{w:14}" for w in WORLDS))
    for (name, store, write), found in rows.items():
        cells = []
        for world in WORLDS:
            outcome = found[world]
            bad += bool(outcome.problems)
            cells.append(f"{'WRONG' if outcome.problems else 'healed':14}")
        print(f"{name:46} {store:11} write {write:<2}" + " ".join(cells))
        for outcome in found.values():
            for problem in outcome.problems:
                print(f"    {outcome.world}: {problem}")
    print(f"\n{sum(len(f) for f in rows.values())} cuts, {bad} not healed")
    return bool(bad)


if __name__ == "__main__":
    raise SystemExit(main())
