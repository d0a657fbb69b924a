"""Questions about addresses and handles; nothing here writes (ipam-library §4, §15.1)."""

from __future__ import annotations

import logging

from calico_ipam.engine.holder import stored_block
from calico_ipam.engine.results import AssignmentAttributes
from calico_ipam.engine.world import Engine
from calico_ipam.errors import AddressInCooldown, NotFound, StoreDamaged
from calico_ipam.model.addresses import Address
from calico_ipam.model.keys import BlockKey, HandleKey
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
    keys = [BlockKey(cidr) for cidr in entry.value.counts()]
    snapshot = engine.store.read(*keys) if keys else None
    found: list[Address] = []
    for block_key in keys:
        try:
            stored = snapshot.entry(block_key) if snapshot is not None else None
        except StoreDamaged as error:
            log.warning("addresses of handle %s in %s are not known: %s", handle, block_key.cidr, error)
            continue
        if stored is not None:
            block = engine.fresh(stored.value, world.config)
            found += [block.address(ordinal) for ordinal in block.held_by(handle)]
    return found


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
