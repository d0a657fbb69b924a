"""Questions about addresses and handles; nothing here writes (ipam-library §4, §15.1)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from calico_ipam.datastore.api import Entry
from calico_ipam.engine.holder import stored_block
from calico_ipam.engine.results import AssignmentAttributes
from calico_ipam.engine.world import Engine, concerns
from calico_ipam.errors import AddressInCooldown, NotFound, StoreDamaged, StoreError
from calico_ipam.model.addresses import Address
from calico_ipam.model.keys import BlockKey, HandleKey
from calico_ipam.model.names import cidr_name
from calico_ipam.model.pool import pool_for

log = logging.getLogger(__name__)


def ips_by_handle(engine: Engine, handle: str) -> list[Address]:
    """Return the addresses a handle holds. Raises NotFound when there is no handle object.

    Blocks that cannot be read are left out with a warning; a handle that counts too many is normal after a crash.
    """
    key = HandleKey(handle)
    world = engine.look(key)
    entry = world.snapshot.entry(key)
    if entry is None:
        raise world.snapshot.missing(key)
    found: list[Address] = []
    for stored in _readable(engine, [BlockKey(cidr) for cidr in entry.value.counts()]):
        block = engine.fresh(stored.value, world.config)
        found += [block.address(ordinal) for ordinal in block.held_by(handle)]
    return found


def _readable(engine: Engine, keys: Sequence[BlockKey]) -> Iterator[Entry]:
    """Yield the blocks that are there and can be read. Raises StoreError when a read fails that names none of them."""
    left, snapshot = list(keys), None
    while left and snapshot is None:
        try:
            snapshot = engine.store.read(*left)
        except StoreError as error:
            bad = next((k for k in left if concerns(error, k, f"/ipamblocks/{cidr_name(k.cidr)}")), None)
            if bad is None:
                raise
            log.warning("what is held in %s is not known: %s", bad.cidr, error)
            left.remove(bad)
    for key in left:
        assert snapshot is not None  # noqa: S101  # something is left, so it was read
        try:
            stored = snapshot.entry(key)
        except StoreDamaged as error:
            log.warning("what is held in %s is not known: %s", key.cidr, error)
            continue
        if stored is not None:
            yield stored


def assignment_attributes(engine: Engine, ip: Address) -> AssignmentAttributes:
    """Return who holds an address, wherever its block is: of another size than its pool's, in a pool that is disabled
    or gone. Raises NotFound (no pool, no block, not assigned) and AddressInCooldown.
    """
    world = engine.look()
    pool = pool_for(world.enabled, ip)
    stored = stored_block(engine, world, ip)
    if stored is None:
        if pool is None:
            raise NotFound(str(ip), "No valid IPPool")
        stored = engine.store.get(BlockKey(pool.block_of(ip)))  # raises in the words of the backend
    block = engine.fresh(stored.value, world.config)
    ordinal = block.ordinal(ip)
    attribute = block.attribute(ordinal)
    if attribute is None:
        raise NotFound(str(ip), "IP is unassigned" if pool is not None else "No valid IPPool")
    if attribute.cold:
        raise AddressInCooldown(str(ip))
    return AssignmentAttributes(
        handle=attribute.clean_handle or None,
        active=dict(attribute.active),
        alternate=dict(attribute.alternate),
        sequence_number=block.sequence_of(ordinal),
    )
