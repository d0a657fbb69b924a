"""Release by address and by handle (ipam-library §13). The block is written before the handle is counted down."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from calico_ipam.datastore.api import Delete, Entry, Snapshot, Update, Write
from calico_ipam.engine.affinity_release import release_if_unselected
from calico_ipam.engine.claim import LOST
from calico_ipam.engine.results import ReleaseResult
from calico_ipam.engine.transaction import Holding, count_down, handle_write
from calico_ipam.engine.world import Engine, World
from calico_ipam.errors import InvalidInput, IPAMError, NotFound, OutcomeUnknown, RetriesExhausted, StoreDamaged
from calico_ipam.model.addresses import Address, Network, contains, network_of, parse_network
from calico_ipam.model.block import Block, ReleaseOption
from calico_ipam.model.handle import Handle, sanitise_handle
from calico_ipam.model.keys import BlockKey, Blocks, HandleKey
from calico_ipam.model.pool import pool_for

log = logging.getLogger(__name__)


# --- by address ----------------------------------------------------------------------------------------------


def release_ips(engine: Engine, options: Iterable[ReleaseOption]) -> ReleaseResult:
    """Release addresses. A failing block does not stop the others; the first error carries ``partial``."""
    wanted = [ReleaseOption(o.address, sanitise_handle(o.handle) or None, o.sequence_number) for o in options]
    if not wanted:
        return ReleaseResult()
    world = engine.look()
    by_block, outside = _group(engine, world, wanted)
    unallocated: list[Address] = list(outside)
    released: list[ReleaseOption] = []
    failure: IPAMError | None = None
    for cidr, group in by_block.items():
        try:
            unallocated += _release_from_block(engine, world, cidr, group)
            released += group
        except IPAMError as error:
            failure = failure or error
    result = ReleaseResult(tuple(unallocated), tuple(released))
    if failure is not None:
        failure.partial = result  # type: ignore[attr-defined]  # documented in client.py
        raise failure
    return result


def release_from_block(engine: Engine, cidr: Network, options: Sequence[ReleaseOption]) -> tuple[Address, ...]:
    """Release addresses of a block that the caller has found, whatever size their pool's blocks have; return those
    that were free already (cli §5.1). Raises as :func:`release_ips`.
    """
    wanted = [ReleaseOption(o.address, sanitise_handle(o.handle) or None, o.sequence_number) for o in options]
    return _release_from_block(engine, engine.look(), cidr, wanted)


def _group(
    engine: Engine, world: World, options: Sequence[ReleaseOption]
) -> tuple[dict[Network, list[ReleaseOption]], list[Address]]:
    """Sort options by the block that holds them; a pool decides, without one the list of blocks (§13.1 step 2)."""
    by_block: dict[Network, list[ReleaseOption]] = {}
    outside: list[Address] = []
    blocks: list[Network] | None = None
    for option in options:
        pool = pool_for(world.pools, option.address)
        cidr = pool.block_of(option.address) if pool is not None else None
        if cidr is None:
            if blocks is None:
                blocks = [entry.value.cidr for entry in engine.store.list(Blocks())]
            host = network_of(option.address, 32 if option.address.version == 4 else 128)
            cidr = next((block for block in blocks if contains(block, host)), None)
        if cidr is None:
            outside.append(option.address)
        else:
            by_block.setdefault(cidr, []).append(option)
    return by_block, outside


def _release_from_block(
    engine: Engine, world: World, cidr: Network, options: Sequence[ReleaseOption]
) -> tuple[Address, ...]:
    """Release addresses of one block; return those that were free already. Stale guards are raised, not retried."""
    key = BlockKey(cidr)
    free: tuple[Address, ...] = ()
    doubtful: Block | None = None  # what a write whose answer was lost had found
    for _ in engine.retry.tries(f"releasing addresses of block {cidr}"):
        handles = sorted({o.handle for o in options if o.handle})
        snapshot = engine.store.read(key, *(HandleKey(h) for h in handles))
        stored = snapshot.entry(key)
        if doubtful is not None:
            # What changed since is done, by us or by others: it must not be released again from a new holder.
            options = [o for o in options if stored is not None and _same(doubtful, stored.value, o.address)]
        if stored is None or not options:
            return free if doubtful is not None else tuple(dict.fromkeys(o.address for o in options))
        fresh = engine.fresh(stored.value, world.config)
        block, outcome = fresh.release(options, cooldown=world.config.cooldown_seconds, now=engine.clock.now())
        free = free if doubtful is not None else outcome.already_free
        if not outcome.changed:
            return free
        gone = _block_write(stored, block)
        try:
            _write_release(engine, gone, cidr, outcome.counts, _holdings(snapshot, handles))
        except LOST as error:
            log.debug("releasing from %s: %s; deciding again", key, error)
            continue
        except OutcomeUnknown as error:
            log.warning("releasing from %s: %s; looking whether it was done", key, error)
            doubtful = stored.value
            continue
        if isinstance(gone, Update):
            release_if_unselected(engine, world, block)
        return free
    raise AssertionError("tries() never ends quietly")


def _same(before: Block, now: Block, address: Address) -> bool:
    """Tell whether an allocation is still the one that was there before."""
    ordinal = before.ordinal(address)
    return before.attribute(ordinal) == now.attribute(ordinal) and before.sequence_of(ordinal) == now.sequence_of(
        ordinal
    )


def _block_write(stored: Entry, block: Block) -> Write:
    """An empty block that nobody owns disappears (§13.5); any other is written back."""
    if block.empty and block.affinity is None:
        return Delete(stored)
    return Update(stored, block.bumped())


def _holdings(snapshot: Snapshot, handles: Iterable[str]) -> dict[str, Holding]:
    return {h: Holding(HandleKey(h), snapshot.entry(HandleKey(h))) for h in handles}


def _write_release(
    engine: Engine, block: Write, cidr: Network, counts: Mapping[str, int], known: Mapping[str, Holding]
) -> None:
    """Write the block, and count the handles down: in one commit where the store can."""
    if not engine.store.capabilities.atomic:
        engine.store.commit(block)
        for handle, number in counts.items():
            _count_down_quietly(engine, HandleKey(handle), {cidr: number})
        return
    unread = [h for h in counts if h not in known]
    holdings = dict(known)
    if unread:
        holdings |= _holdings(engine.store.read(*(HandleKey(h) for h in unread)), unread)
    writes = [block]
    for handle, number in counts.items():
        holding = holdings[handle]
        if holding.entry is not None:
            writes.append(handle_write(holding.key, holding.entry, holding.value.decremented(cidr, number)))
    engine.store.commit(*writes)


def _count_down_quietly(engine: Engine, key: HandleKey, released: Mapping[Network, int]) -> None:
    """The addresses are free already; a handle that counts too many is only untidy, so failing is not an error."""
    try:
        count_down(engine, key, released)
    except IPAMError as error:
        log.warning("handle %s counts too many: it could not be counted down: %s", key.id, error)


# --- by handle -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _HandlePlan:
    """What releasing a handle means for the blocks as they are now."""

    writes: list[Write] = field(default_factory=list)
    changed: list[Block] = field(default_factory=list)
    handle: Handle | None = None  #: what is left of it
    failure: IPAMError | None = None


def release_by_handle(engine: Engine, handle: str) -> None:
    """Release whatever a handle holds. Raises NotFound when there is no handle object.

    Entries for blocks that are gone, or that hold nothing of this handle, are removed too (limit L10). A block that
    cannot be read does not stop the others; its error is raised at the end.
    """
    handle = sanitise_handle(handle)
    if not handle:
        raise InvalidInput("insufficient identifiers, missing ''", hint="Name the handle to release.")
    key = HandleKey(handle)
    world = engine.look(key)
    entry = world.snapshot.entry(key)
    if entry is None:
        raise NotFound(str(key))
    for attempt in engine.retry.tries(f"releasing handle {handle}"):
        if attempt:
            entry = engine.store.read(key).entry(key)
            if entry is None:
                return  # somebody else, or our own write whose answer was lost, finished it
        plan = _plan(engine, world, entry)
        if not plan.writes and plan.failure is not None:
            raise plan.failure
        try:
            # Blocks first, then the handle: a crash in between leaves a handle that counts too many.
            if plan.writes:
                engine.store.commit(*plan.writes)
        except (*LOST, OutcomeUnknown) as error:
            log.debug("releasing handle %s: %s; deciding again", handle, error)
            continue
        for block in plan.changed:
            release_if_unselected(engine, world, block)
        if plan.failure is not None:
            raise plan.failure
        return
    raise RetriesExhausted("Hit max retries")


def _plan(engine: Engine, world: World, entry: Entry) -> _HandlePlan:
    handle: Handle = entry.value
    plan = _HandlePlan()
    left = handle
    cidrs = {text: parse_network(text) for text in handle.blocks}
    snapshot = engine.store.read(*(BlockKey(c) for c in cidrs.values())) if cidrs else None
    for cidr in cidrs.values():
        assert snapshot is not None  # noqa: S101 - there are blocks, so they were read
        try:
            stored = snapshot.entry(BlockKey(cidr))
        except StoreDamaged as error:
            plan.failure = plan.failure or error
            continue
        left = left.without(cidr)
        if stored is None:
            continue
        fresh = engine.fresh(stored.value, world.config)
        block, ordinals = fresh.release_handle(
            handle.id, cooldown=world.config.cooldown_seconds, now=engine.clock.now()
        )
        if ordinals:
            gone = _block_write(stored, block)
            plan.writes.append(gone)
            if isinstance(gone, Update):
                plan.changed.append(block)
    plan.handle = left
    if left != handle or left.empty:
        plan.writes.append(handle_write(HandleKey(handle.id), entry, left))
    return plan
