"""Writing an assignment: the handle and the block, together where the store can, undone where it cannot.

The order is upstream's: the handle first, so that a crash in between leaves a handle that counts too many, which can
be found and removed, and never an address without a holder (design §3.2).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from calico_ipam.datastore.api import Create, Delete, Entry, Update, Write, lost
from calico_ipam.engine.world import Engine
from calico_ipam.errors import Conflict, IPAMError, NotFound, OutcomeUnknown
from calico_ipam.model.addresses import Network
from calico_ipam.model.block import Block
from calico_ipam.model.handle import Handle
from calico_ipam.model.keys import BlockKey, HandleKey

log = logging.getLogger(__name__)

#: writes of one commit; etcd takes 128 operations in a transaction
MOST_WRITES = 100
#: addresses of the blocks in one commit: a block document has up to 200 bytes for each, and etcd takes 1.5 MiB at once
MOST_ADDRESSES = 4096


def handle_write(key: HandleKey, stored: Entry | None, value: Handle) -> Write:
    """Return the write that makes a handle ``value``: create, replace, or remove once it counts nothing."""
    if stored is None:
        return Create(key, value)
    return Delete(stored) if value.empty else Update(stored, value)


@dataclass(frozen=True, slots=True)
class Holding:
    """A handle as it was last read; ``entry`` is None while it does not exist."""

    key: HandleKey
    entry: Entry | None

    @property
    def value(self) -> Handle:
        return self.entry.value if self.entry is not None else Handle(self.key.id)


@dataclass(frozen=True, slots=True)
class Written:
    """The block, and the handle if one was given, as they are stored now."""

    block: Entry
    holding: Holding | None


def write_assignment(
    engine: Engine,
    block: Entry,
    after: Block,
    ordinals: Sequence[int],
    holding: Holding | None,
    cap: int = 0,
) -> Written:
    """Store ``after`` over ``block`` and count its new ``ordinals`` in the handle.

    Raises MaxAllocReached before anything is written; Conflict, AlreadyExists or NotFound when a race was lost, with
    nothing left behind. A lost answer is looked up: if the write is there, it counts as done (limit L31). Raises
    OutcomeUnknown where that cannot be told.
    """
    update = Update(block, after.bumped())
    writes: list[Write] = [update]
    if holding is not None:
        counted = holding.value.incremented(after.cidr, len(ordinals), cap)
        writes.insert(0, handle_write(holding.key, holding.entry, counted))
    try:
        stored = engine.store.commit(*writes)
    except OutcomeUnknown as error:
        found = _look_up(engine, update, ordinals, holding, error)
        if found is not None:
            return found
        _take_back(engine, holding, {after.cidr: len(ordinals)}, error, capped=cap > 0)
        raise Conflict(str(update.key), "the answer to the write was lost, and it had not been done") from error
    except IPAMError as error:
        _take_back(engine, holding, {after.cidr: len(ordinals)}, error, capped=cap > 0)
        raise
    return Written(stored[-1], Holding(holding.key, stored[0]) if holding is not None else None)


def _look_up(
    engine: Engine, update: Update, ordinals: Sequence[int], holding: Holding | None, error: OutcomeUnknown
) -> Written | None:
    """Find out whether a write whose answer was lost has happened: its ordinals, attributes and numbers tell.

    Returns what is stored, or None when it has not happened. Raises ``error`` again when that cannot be told: the store
    does not answer, or there is no handle, and then the same allocation by somebody else would look like ours.
    """
    keys = [update.key] if holding is None else [update.key, holding.key]
    try:
        snapshot = engine.undoing().store.read(*keys)
        found = snapshot.entry(update.key)
        handle = snapshot.entry(holding.key) if holding is not None else None
    except IPAMError as unread:
        raise error from unread
    wrote = update.value
    assert isinstance(wrote, Block)  # noqa: S101  # update is made of a block above
    if found is None or not all(
        found.value.attribute(o) == wrote.attribute(o) and found.value.sequence_of(o) == wrote.sequence_of(o)
        for o in ordinals
    ):
        return None
    if holding is None:
        raise error
    log.warning("the answer to a write of %s was lost, but it had been done", update.key)
    return Written(found, Holding(holding.key, handle))


def _take_back(
    engine: Engine, before: Holding | None, counted: Mapping[Network, int], error: IPAMError, *, capped: bool
) -> None:
    """Undo a handle that was counted up for a block write that did not happen, if it is known that it was.

    Only the very count that our commit is told to have made is taken back: one whose own answer was lost may be the
    work of somebody else. Where somebody changed the handle since, ours is taken off what it counts now, unless it is
    ``capped``: then it may have been corrected away already (:mod:`cap`). What stays, or when this fails, counts too
    many, and readers, the next release and the collector cope with that.
    """
    loss = lost(error)
    if before is None or loss is None or not loss.applied:
        return
    engine = engine.undoing()
    now = loss.applied[0]
    try:
        engine.store.commit(Delete(now) if before.entry is None else Update(now, before.value))
    except NotFound:
        log.debug("handle %s is gone, and what was counted with it", before.key.id)
    except Conflict as conflict:
        if capped:
            log.info("handle %s was changed meanwhile and may count too many: %s", before.key.id, conflict)
        else:
            count_down_quietly(engine, now, counted)
    except IPAMError as failure:
        log.warning("handle %s counts too many: it could not be undone: %s", before.key.id, failure)


def count_down_quietly(engine: Engine, known: Entry, released: Mapping[Network, int]) -> None:
    """Take addresses off a handle; one that counts too many is only untidy, so failing is not an error."""
    try:
        _count_down(engine, known, released)
    except IPAMError as error:
        log.warning("%s counts too many: it could not be counted down: %s", known.key, error)


def _count_down(engine: Engine, known: Entry, released: Mapping[Network, int]) -> None:
    """Take released addresses off a handle that still counts them as ``known``, by compare-and-swap.

    Where it was changed since, somebody may have taken all of it away, ours included, and begun anew. So nothing is
    taken off another object of that name, nor so much that fewer are left than the block holds: a handle that counts
    too few would lose an address.
    """
    key = known.key
    assert isinstance(key, HandleKey)  # noqa: S101  # what is counted down is a handle
    entry: Entry | None = known
    held: dict[Network, int] = {}
    for attempt in engine.retry.tries(f"counting down {key}"):
        if attempt:
            snapshot = engine.store.read(key, *(BlockKey(cidr) for cidr in released))
            entry = snapshot.entry(key)
            blocks = ((cidr, snapshot.entry(BlockKey(cidr))) for cidr in released)
            held = {cidr: len(block.value.held_by(key.id)) for cidr, block in blocks if block is not None}
        if entry is None or entry.uid != known.uid:
            return
        value: Handle = entry.value
        counts = value.counts()
        for cidr, number in released.items():
            value = value.decremented(cidr, max(0, min(number, counts.get(cidr, 0) - held.get(cidr, 0))))
        if value == entry.value:
            return
        try:
            engine.store.commit(handle_write(key, entry, value))
        except (Conflict, NotFound):
            continue
        return
