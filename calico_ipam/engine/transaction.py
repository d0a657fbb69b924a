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
from calico_ipam.errors import AlreadyExists, Conflict, IPAMError, NotFound, OutcomeUnknown
from calico_ipam.model.addresses import Network
from calico_ipam.model.block import Block
from calico_ipam.model.handle import Handle
from calico_ipam.model.keys import HandleKey

log = logging.getLogger(__name__)


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
    nothing left behind. A lost answer is looked up: if the write is there, it counts as done (limit L31).
    """
    update = Update(block, after.bumped())
    counted: Handle | None = None
    writes: list[Write] = [update]
    if holding is not None:
        counted = holding.value.incremented(after.cidr, len(ordinals), cap)
        writes.insert(0, handle_write(holding.key, holding.entry, counted))
    try:
        stored = engine.store.commit(*writes)
    except OutcomeUnknown as error:
        return _look_up(engine, update, ordinals, holding, counted, error)
    except IPAMError as error:
        loss = lost(error)
        if loss is not None and loss.applied and holding is not None:
            _take_back(engine, holding, loss.applied[0], after, len(ordinals))
        raise
    return Written(stored[-1], Holding(holding.key, stored[0]) if holding is not None else None)


def _look_up(
    engine: Engine,
    update: Update,
    ordinals: Sequence[int],
    holding: Holding | None,
    counted: Handle | None,
    error: OutcomeUnknown,
) -> Written:
    """Find out whether a write whose answer was lost has happened: its ordinals, attributes and numbers tell."""
    looking = engine.undoing()
    keys = [update.key] if holding is None else [update.key, holding.key]
    snapshot = looking.store.read(*keys)
    found = snapshot.entry(update.key)
    handle = snapshot.entry(holding.key) if holding is not None else None
    wrote = update.value
    assert isinstance(wrote, Block)  # noqa: S101 - update is made of a block above
    if found is not None and all(
        found.value.attribute(o) == wrote.attribute(o) and found.value.sequence_of(o) == wrote.sequence_of(o)
        for o in ordinals
    ):
        log.warning("the answer to a write of %s was lost, but it had been done", update.key)
        return Written(found, Holding(holding.key, handle) if holding is not None else None)
    if handle is not None and holding is not None and handle.value == counted:
        _take_back(looking, holding, handle, wrote, len(ordinals))
    raise Conflict(str(update.key), "the answer to the write was lost, and it had not been done") from error


def _take_back(engine: Engine, before: Holding, now: Entry, block: Block, number: int) -> None:
    """Undo a handle that was counted up for a block write that did not happen.

    Nothing is lost when this fails: the handle then counts too many, and readers and the collector cope with that.
    """
    engine = engine.undoing()
    undo: Write = Delete(now) if before.entry is None else Update(now, before.value)
    try:
        engine.store.commit(undo)
    except (Conflict, NotFound, AlreadyExists):
        count_down(engine, before.key, {block.cidr: number})
    except IPAMError as error:
        log.warning("handle %s counts %d too many: it could not be undone: %s", before.key.id, number, error)


def count_down(engine: Engine, key: HandleKey, released: Mapping[Network, int]) -> None:
    """Take released addresses off a handle, by compare-and-swap; a handle that is gone is fine."""
    for _ in engine.retry.tries(f"counting down handle {key.id}"):
        entry = engine.store.read(key).entry(key)
        if entry is None:
            return
        value: Handle = entry.value
        for cidr, number in released.items():
            value = value.decremented(cidr, number)
        try:
            engine.store.commit(handle_write(key, entry, value))
        except (Conflict, NotFound):
            continue
        return
