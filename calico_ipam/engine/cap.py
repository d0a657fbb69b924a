"""A handle that may hold only so many addresses gets back those it holds (KubeVirt; ipam-library §11.6)."""

from __future__ import annotations

import logging

from calico_ipam.datastore.api import Update
from calico_ipam.engine.claim import LOST
from calico_ipam.engine.results import AssignedAddress
from calico_ipam.engine.transaction import Holding, handle_write
from calico_ipam.engine.world import Engine
from calico_ipam.errors import MaxAllocReached, RefusedError, RetriesExhausted
from calico_ipam.model.affinity import BlockOwner
from calico_ipam.model.config import IPAMConfig
from calico_ipam.model.handle import Handle
from calico_ipam.model.keys import BlockKey

log = logging.getLogger(__name__)

#: tries that a concurrent caller gets to finish its second write, about a second in all
WAIT_TRIES = 20


def held_addresses(
    engine: Engine, config: IPAMConfig, handle: Handle, version: int, owner: BlockOwner
) -> list[AssignedAddress]:
    """Return what a handle really holds in a family, with the prefix of the blocks (limit L15)."""
    cidrs = [cidr for cidr in handle.counts() if cidr.version == version]
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
    write, or died there: look again, and after a while correct the handle. Raises RefusedError when nothing helps,
    MaxAllocReached when the cap is too low for ``number`` whatever others do.
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
            if attempt == WAIT_TRIES:
                correct(engine, config, holding, version)
    except RetriesExhausted:
        raise RefusedError(
            f"handle {holding.key.id} has {len(held)} IPs allocated but requires {number} "
            "(concurrent operation in progress)",
            subject=holding.key.id,
            hint=f"It may hold {cap} addresses of a family, and holds some, but fewer than were asked for.",
        ) from None
    raise AssertionError("tries() never ends quietly")


def correct(engine: Engine, config: IPAMConfig, holding: Holding, version: int) -> None:
    """Make a handle count what its blocks hold, after a caller died between its two writes.

    Rewriting a block first takes away the revision that such a caller would need, were it only slow: it then loses,
    looks again, and finds the handle as we leave it. Losing here is fine: somebody else is at work.
    """
    value: Handle = holding.value
    try:
        for cidr, count in value.counts().items():
            entry = engine.store.read(BlockKey(cidr)).entry(BlockKey(cidr)) if cidr.version == version else None
            really = len(engine.fresh(entry.value, config).held_by(holding.key.id)) if entry is not None else 0
            if cidr.version == version and really < count:
                if entry is not None:
                    engine.store.commit(Update(entry, entry.value.bumped()))
                value = value.decremented(cidr, count - really)
        if value != holding.value:
            log.warning("handle %s counted addresses that no block holds; corrected", holding.key.id)
            engine.store.commit(handle_write(holding.key, holding.entry, value))
    except LOST as error:
        log.info("handle %s was not corrected: %s", holding.key.id, error)
