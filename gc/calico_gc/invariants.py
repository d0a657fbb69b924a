"""What must hold of the state after every event (gc §16); checked by every test, and after syncs at debug level."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from calico_gc.facts import Allocation, AllocationKey
from calico_gc.pools import NO_POOL
from calico_gc.state import State


def broken(state: State, now: float) -> list[str]:
    """Return one sentence for each rule that does not hold. ``now``: monotonic seconds."""
    return [*_blocks(state), *_allocations(state), *_suspicions(state, now), *_pools(state), *_nodes(state)]


def _blocks(state: State) -> Iterator[str]:
    blocks = state.blocks
    for name, keys in (("empty", state.empty), ("cold", state.cold), ("owners", state.owners)):
        yield from (f"{name}: block {cidr} is not known" for cidr in keys if cidr not in blocks)
    yield from (f"empty_since: block {cidr} is not empty" for cidr in state.empty_since if cidr not in state.empty)
    for host, cidrs in state.owned.items():
        if not cidrs:
            yield f"owned: host {host} has an empty set"
        yield from (f"owned: {cidr} is not {host}'s" for cidr in cidrs if state.owners.get(cidr) != host)
    yield from (
        f"owners: {c} is missing from {h}'s set" for c, h in state.owners.items() if c not in state.owned.get(h, ())
    )
    for cidr, tracked in blocks.items():
        if state.owners.get(cidr, "") != tracked.host:
            yield f"owners: {cidr} belongs to {tracked.host or 'nobody'}, not to {state.owners.get(cidr)}"
        if state.cold.get(cidr) != tracked.cold_since:
            yield f"cold: {cidr} has {state.cold.get(cidr)}, its earliest release is {tracked.cold_since}"
        vacant = tracked.used == 0 or (state.windows_empty and tracked.block.empty)
        if (cidr in state.empty) != bool(tracked.host and vacant):
            yield f"empty: {cidr} is {'' if cidr in state.empty else 'not '}there"
        if cidr in state.empty and state.empty[cidr] != tracked.host:
            yield f"empty: {cidr} is noted for {state.empty[cidr]}"


def _allocations(state: State) -> Iterator[str]:
    tracked = {a.key: a for block in state.blocks.values() for a in block.allocations.values()}
    for cidr, block in state.blocks.items():
        for ordinal, allocation in block.allocations.items():
            if allocation.key != (cidr, ordinal):
                yield f"allocation {allocation.id} lies at {cidr} {ordinal} and says {allocation.key}"
            if allocation.node and state.by_node.get(allocation.node, {}).get(allocation.key) is not allocation:
                yield f"by_node: {allocation.id} is missing under {allocation.node}"
            if allocation.key not in state.by_handle.get(allocation.clean_handle, ()):
                yield f"by_handle: {allocation.id} is missing"
    yield from _stale(state, tracked)


def _stale(state: State, tracked: Mapping[AllocationKey, Allocation]) -> Iterator[str]:
    for node, mine in state.by_node.items():
        if not mine or not node:
            yield f"by_node: {node!r} has an empty map, or no name"
        for key, allocation in mine.items():
            if tracked.get(key) is not allocation or allocation.node != node:
                yield f"by_node: {allocation.id} is stale under {node}"
    for handle, keys in state.by_handle.items():
        if not keys or len(set(keys)) != len(keys):
            yield f"by_handle: {handle} has {keys}"
        for key in keys:
            if key not in tracked or tracked[key].clean_handle != handle:
                yield f"by_handle: {key} is stale under {handle}"


def _suspicions(state: State, now: float) -> Iterator[str]:
    for key, suspicion in state.suspects.items():
        if state.allocation(key) is None:
            yield f"suspects: {key} is not tracked"
        if suspicion.since is not None and suspicion.since > now:
            yield f"suspects: {key} is suspected since the future"
        if suspicion.confirmed != (key in state.confirmed):
            yield f"confirmed: {key} disagrees with its flag"
    yield from (f"confirmed: {key} is not suspected" for key in state.confirmed if key not in state.suspects)


def _pools(state: State) -> Iterator[str]:
    index = state.pools
    if set(index.of_block) != set(state.blocks):
        yield "pools: blocks with a pool and blocks that are known differ"
    for name, cidrs in index.blocks.items():
        if name != NO_POOL and name not in index.pools:
            yield f"pools: {name} is gone and still has a set"
        if name == NO_POOL and not cidrs:
            yield "pools: the set of blocks without a pool is empty and still there"
        yield from (f"pools: {cidr} is not {name}'s" for cidr in cidrs if index.of_block.get(cidr) != name)
    yield from (
        f"pools: {c} is missing from {n}" for c, n in index.of_block.items() if c not in index.blocks.get(n, ())
    )
    yield from (f"pools: {name} has no set" for name in index.pools if name not in index.blocks)


def _nodes(state: State) -> Iterator[str]:
    yield from ("dirty: a node without a name" for name in state.dirty if not name)
    for kube, names in state.calico_names.items():
        if not names or not kube:
            yield f"calico_names: {kube!r} has an empty set, or no name"
        yield from (f"calico_names: {name} is stale under {kube}" for name in names if state.nodes.get(name) != kube)
    for name, kube in state.nodes.items():
        if kube and name not in state.calico_names.get(kube, ()):
            yield f"calico_names: {name} is missing under {kube}"
