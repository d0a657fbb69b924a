"""A handle that may hold only so many addresses gets back those it holds (KubeVirt; ipam-library §11.6)."""

from __future__ import annotations

from calico_ipam.engine.results import AssignedAddress
from calico_ipam.engine.transaction import Holding
from calico_ipam.engine.world import Engine
from calico_ipam.errors import MaxAllocReached, RefusedError, RetriesExhausted
from calico_ipam.model.addresses import parse_network
from calico_ipam.model.affinity import BlockOwner
from calico_ipam.model.config import IPAMConfig
from calico_ipam.model.handle import Handle
from calico_ipam.model.keys import BlockKey


def held_addresses(
    engine: Engine, config: IPAMConfig, handle: Handle, version: int, owner: BlockOwner
) -> list[AssignedAddress]:
    """Return what a handle really holds in a family, with the prefix of the blocks (limit L15)."""
    cidrs = [c for c in (parse_network(text) for text in handle.blocks) if c.version == version]
    snapshot = engine.store.read(*(BlockKey(c) for c in cidrs)) if cidrs else None
    found = []
    for cidr in cidrs:
        entry = snapshot.entry(BlockKey(cidr)) if snapshot is not None else None
        if entry is not None:
            block = engine.fresh(entry.value, config)
            borrowed = not block.owned_by(owner)
            found += [AssignedAddress(block.address(o), cidr, borrowed) for o in block.held_by(handle.id)]
    return found


def held_instead(
    engine: Engine, config: IPAMConfig, holding: Holding, version: int, number: int, cap: int, owner: BlockOwner
) -> list[AssignedAddress]:
    """Return ``number`` addresses that the handle holds already, or [] when the cap leaves room for new ones.

    A count that the blocks do not bear out means that a concurrent caller is between its handle write and its block
    write: look again. Raises RefusedError when that does not end, MaxAllocReached when the cap is too low for
    ``number`` whatever others do.
    """
    held: list[AssignedAddress] = []
    try:
        for attempt in engine.retry.tries(f"waiting for the addresses of handle {holding.key.id}"):
            if attempt:
                holding = Holding(holding.key, engine.store.read(holding.key).entry(holding.key))
            if holding.value.count(version) + number <= cap:
                return []
            held = held_addresses(engine, config, holding.value, version, owner)
            if len(held) >= number:
                return held[:number]
            counted = holding.value.count(version)
            if len(held) == counted:
                # Nobody is half-way: what is asked for is more than the cap allows, now and later.
                raise MaxAllocReached(holding.key.id, counted, cap)
    except RetriesExhausted:
        raise RefusedError(
            f"handle {holding.key.id} has {len(held)} IPs allocated but requires {number} "
            "(concurrent operation in progress)",
            subject=holding.key.id,
            hint="The handle counts addresses that no block holds; the collector's handle repair corrects it.",
        ) from None
    raise AssertionError("tries() never ends quietly")
