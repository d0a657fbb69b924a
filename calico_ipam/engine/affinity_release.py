"""How a host stops owning a block (ipam-library §10.5, §13.4)."""

from __future__ import annotations

import logging

from calico_ipam.datastore.api import Delete, Entry, Update, Write
from calico_ipam.engine.claim import drop_row, row_and_block
from calico_ipam.engine.world import CONFIG, Engine, World, node_key
from calico_ipam.errors import (
    BlockClaimConflict,
    BlockNotEmpty,
    InvalidInput,
    IPAMError,
    NotFound,
    StaleError,
)
from calico_ipam.model.addresses import Network
from calico_ipam.model.affinity import PENDING_DELETION, BlockOwner
from calico_ipam.model.block import Block
from calico_ipam.model.config import IPAMConfig
from calico_ipam.model.keys import AffinityKey
from calico_ipam.model.pool import pool_for

log = logging.getLogger(__name__)


def release_affinity(
    engine: Engine,
    owner: BlockOwner,
    cidr: Network,
    *,
    must_be_empty: bool,
    sequence_number: int | None = None,
) -> None:
    """Take a block away from ``owner``: an empty one disappears, another becomes nobody's. One attempt.

    Raises NotFound, BlockClaimConflict (somebody else's; our stale row is removed), BlockNotEmpty, StaleError (the
    block changed since ``sequence_number``), Conflict (a race was lost: call again).
    """
    if not owner.host:
        raise InvalidInput("Hostname must be specified to release block affinity")
    row_key = AffinityKey(owner, cidr)
    row, stored, snapshot = row_and_block(engine, owner, cidr, CONFIG)
    if stored is None:
        # After a crash between the two deletes only the row is left: it goes too (limit L8).
        if row is None:
            raise NotFound(str(row_key))
        engine.store.commit(Delete(row))
        return
    config = snapshot.entry(CONFIG)
    block = engine.fresh(stored.value, config.value if config is not None else IPAMConfig())
    if sequence_number is not None and sequence_number != stored.value.sequence_number:
        raise StaleError("IPAM block updated since we last read it", subject=str(cidr))
    if block.affinity is not None and not block.owned_by(owner):
        if row is None:
            raise NotFound(str(row_key))
        drop_row(engine, row)
        raise BlockClaimConflict(str(cidr), block.affinity)
    if row is None and block.affinity is None:
        raise NotFound(str(row_key))
    if must_be_empty and not block.empty:
        raise BlockNotEmpty(str(cidr))
    _write(engine, row, stored, block)


def _write(engine: Engine, row: Entry | None, stored: Entry, block: Block) -> None:
    """Remove the block, or its owner, and the row; as one commit, or in the order that a crash can be healed from."""
    gone: Write = Delete(stored) if block.empty else Update(stored, block.without_owner().bumped())
    if row is None:
        engine.store.commit(gone)  # limit L8: a block whose row is missing can be given back too
    elif engine.store.capabilities.atomic:
        engine.store.commit(gone, Delete(row))
    else:
        # Marking the row first makes a claim in between visible: it changes the row, and the last step then loses.
        marked = engine.store.commit(Update(row, row.value.with_state(PENDING_DELETION)))[0]
        try:
            engine.store.commit(gone)
        except NotFound:
            log.debug("block %s is gone already", stored.key)
        try:
            engine.store.commit(Delete(marked))
        except NotFound:
            log.debug("affinity %s is gone already", row.key)


def release_if_unselected(engine: Engine, world: World, block: Block) -> None:
    """After a release: give the block back if its pool no longer selects its host (§13.4). Nothing surfaces."""
    owner = block.owner
    if owner is None or not block.empty:
        return
    try:
        if not world.shows_pools:
            world = world.with_pools(engine)
        pool = pool_for(world.enabled, block.cidr.network_address)
        if pool is None or pool.node_selector == "all()":
            return
        key = node_key(owner.host)
        node = engine.store.read(key).entry(key)
        if node is None or pool.selects_node(node.value.labels):
            return
        release_affinity(engine, owner, block.cidr, must_be_empty=True)
    except (BlockNotEmpty, BlockClaimConflict, NotFound) as error:
        log.debug("block %s stays with %s: %s", block.cidr, owner, error)
    except IPAMError as error:  # the addresses are free already: what is left to do must not look like a failure
        log.warning("block %s, which no pool selects for %s any more, was not released: %s", block.cidr, owner, error)
