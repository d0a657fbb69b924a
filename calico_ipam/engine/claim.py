"""How a host comes to own a block: the affinity protocol (ipam-library §10.1 to 10.4).

absent → pending → confirmed. The block's own ``affinity`` is the truth; the row is an index and a statement of intent.
Where the store commits several writes at once, row and block appear together and no half-claimed state exists; where
it does not, the order of writes is upstream's, so that every crash leaves something the next call completes.
"""

from __future__ import annotations

import logging

from calico_ipam.datastore.api import Create, Delete, Entry, Loss, Snapshot, Update, Write, losing, lost
from calico_ipam.engine.world import Engine
from calico_ipam.errors import (
    AlreadyExists,
    BlockClaimConflict,
    Conflict,
    IPAMError,
    NameTaken,
    NotFound,
    OutcomeUnknown,
    StaleAffinity,
)
from calico_ipam.model.addresses import Network
from calico_ipam.model.affinity import CONFIRMED, PENDING, Affinity, BlockOwner
from calico_ipam.model.block import Block, HostReserved
from calico_ipam.model.keys import AffinityKey, BlockKey, Key

log = logging.getLogger(__name__)

#: a write lost a race: read again and decide again
LOST = (Conflict, AlreadyExists, NotFound)


def claim_block(
    engine: Engine,
    owner: BlockOwner,
    cidr: Network,
    *,
    reserved: HostReserved | None = None,
    known: tuple[Entry | None, Entry | None] | None = None,
) -> Entry:
    """Make ``owner`` the confirmed owner of the block ``cidr`` and return the block.

    ``known`` is what the caller has just read: (affinity row, block); a wrong guess costs one more read.
    Raises BlockClaimConflict when the block is somebody else's or nobody's: an existing block is never adopted.
    """
    for _ in engine.retry.tries(f"claiming block {cidr}"):
        if known is None:
            known = row_and_block(engine, owner, cidr)[:2]
        row, block = known
        known = None
        try:
            if block is None:
                return _create(engine, owner, cidr, row, reserved)
            if not block.value.owned_by(owner):
                drop_row(engine, row)
                raise BlockClaimConflict(str(cidr), block.value.affinity, block)
            return confirm(engine, owner, row, block)
        except NameTaken as error:
            # A host and a virtual owner of one name share the name of their rows on Kubernetes (limit L25).
            raise BlockClaimConflict(str(cidr), error.holder) from error
        except (*LOST, OutcomeUnknown) as error:
            log.debug("claim of %s: %s; looking again", cidr, error)
            known = _somebody_elses(engine, owner, row, error)
    raise AssertionError("tries() never ends quietly")


def row_and_block(
    engine: Engine, owner: BlockOwner, cidr: Network, *more: Key
) -> tuple[Entry | None, Entry | None, Snapshot]:
    """Read an owner's affinity row and its block; the snapshot has ``more`` beside them.

    Where every object is a request of its own, one of the two may be older than the other by a whole claim or release
    of somebody else. When they do not fit together the one that is missing, or not the owner's, is therefore read
    again: concluding from it would take the row from a block that has just been claimed, or leave it without one.
    """
    row_key, block_key = AffinityKey(owner, cidr), BlockKey(cidr)
    snapshot = engine.store.read(row_key, block_key, *more)
    row, block = snapshot.entry(row_key), snapshot.entry(block_key)
    if not engine.store.capabilities.snapshot_reads:
        ours = block is not None and block.value.owned_by(owner)
        if row is not None and not ours:
            block = engine.store.read(block_key).entry(block_key)
        elif row is None and ours:
            row = engine.store.read(row_key).entry(row_key)
    return row, block, snapshot


def _create(
    engine: Engine, owner: BlockOwner, cidr: Network, row: Entry | None, reserved: HostReserved | None
) -> Entry:
    """Create the block, and the row beside it. One commit where the store can, upstream's three writes elsewhere."""
    block = Create(BlockKey(cidr), Block.new(cidr, now=engine.clock.now(), owner=owner, reserved=reserved))
    if engine.store.capabilities.atomic:
        return engine.store.commit(_row_write(owner, cidr, row, CONFIRMED), block)[-1]
    # The pending row comes first: a crash after it leaves a row that this host's next call completes, and it takes
    # away the revision that somebody releasing the same block would need.
    pending = engine.store.commit(_row_write(owner, cidr, row, PENDING))[0]
    try:
        created = engine.store.commit(block)[0]
    except AlreadyExists as error:
        loss = lost(error)
        losing(error, Loss(block, (pending,), loss.existing if loss is not None else None))
        raise
    engine.store.commit(Update(pending, pending.value.with_state(CONFIRMED)))
    return created


def _somebody_elses(
    engine: Engine, owner: BlockOwner, row: Entry | None, error: IPAMError
) -> tuple[Entry | None, Entry] | None:
    """Return row and block when the error of a claim shows that somebody else was quicker; None: look at both again.

    Of hosts that claim the same free places at once most lose, some of them several times, and each look is a request.
    ``row`` is what the claim knew; it wrote its own since then where the store takes one write at a time.
    """
    loss = lost(error)
    if loss is None or not isinstance(loss.write, Create) or not isinstance(loss.write.key, BlockKey):
        return None
    block = loss.existing or engine.store.read(loss.write.key).entry(loss.write.key)
    if block is None or block.value.owned_by(owner):
        return None
    return (loss.applied[0] if loss.applied else row), block


def _row_write(owner: BlockOwner, cidr: Network, row: Entry | None, state: str) -> Write:
    if row is None:
        return Create(AffinityKey(owner, cidr), Affinity(state))
    return Update(row, row.value.with_state(state))


def confirm(engine: Engine, owner: BlockOwner, row: Entry | None, block: Entry) -> Entry:
    """Make the row of a block that is already ours say so, and return the block as it is then (§10.4 step 4).

    Rewriting the block unchanged takes away the revision of anybody who is about to delete it. A row without a state
    (data older than 3.0.7) is good enough for who finds it, and gets one when the block is claimed (§10.2).
    Raises Conflict, AlreadyExists or NotFound when something changed underneath.
    """
    if row is not None and row.value.state == CONFIRMED:
        return block
    bump = Update(block, block.value.bumped())
    if engine.store.capabilities.atomic:
        return engine.store.commit(_row_write(owner, block.value.cidr, row, CONFIRMED), bump)[-1]
    pending = engine.store.commit(_row_write(owner, block.value.cidr, row, PENDING))[0]
    bumped = engine.store.commit(bump)[0]
    engine.store.commit(Update(pending, pending.value.with_state(CONFIRMED)))
    return bumped


def block_of_row(engine: Engine, owner: BlockOwner, row: Entry, block: Entry | None) -> Entry:
    """Return the block that one of our affinity rows names, repaired if need be (§10.4).

    A missing block is built again (public report P04); an unconfirmed row is confirmed.
    Raises StaleAffinity, with the row removed, when the block is not ours.
    """
    key = row.key
    assert isinstance(key, AffinityKey)  # noqa: S101  # rows come from affinity lists
    stale = StaleAffinity(f"block {key.cidr} does not belong to {owner}", subject=str(key.cidr))
    for _ in engine.retry.tries(f"looking whose block {key.cidr} is"):
        if block is None or block.value.owned_by(owner):
            break
        if drop_row(engine, row):
            raise stale
        again, block, _ = row_and_block(engine, owner, key.cidr)
        if again is None:
            raise stale
        row = again
    if block is not None and row.value.usable:
        return block
    try:
        return claim_block(engine, owner, key.cidr, known=(row, block))
    except BlockClaimConflict as error:
        raise stale from error


def drop_row(engine: Engine, row: Entry | None) -> bool:
    """Remove a row that lost its block. Failing is no harm: the next use of the row finds it stale again.

    False: somebody changed the row in between, so it may not be stale any more.
    """
    if row is None:
        return True
    try:
        engine.store.commit(Delete(row))
    except Conflict as error:
        log.info("stale affinity %s was changed meanwhile: %s", row.key, error)
        return False
    except NotFound:
        log.debug("stale affinity %s is gone already", row.key)
    except IPAMError as error:
        log.warning("stale affinity %s could not be removed: %s", row.key, error)
    return True
