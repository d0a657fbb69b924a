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
from calico_ipam.errors import IPAMError, OutcomeUnknown, RetriesExhausted, StoreDamaged
from calico_ipam.model.addresses import WIDTH, Address, Network, contains, network_of, parse_network
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
    finder = _BlockFinder(engine)
    by_block, outside = _group(world, wanted, finder)
    unallocated: list[Address] = list(outside)
    released: list[ReleaseOption] = []
    failure: IPAMError | None = None
    while by_block:
        missing: list[ReleaseOption] = []
        for cidr, group in by_block.items():
            try:
                free = _release_from_block(engine, world, cidr, group)
            except IPAMError as error:
                failure = failure or error
                continue
            if free is None and not finder.asked:
                missing += group
                continue
            unallocated += free if free is not None else dict.fromkeys(o.address for o in group)
            released += group
        by_block = finder.sort(missing)
        found = {option.address for group in by_block.values() for option in group}
        unallocated += dict.fromkeys(o.address for o in missing if o.address not in found)
        released += [o for o in missing if o.address not in found]
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
    free = _release_from_block(engine, engine.look(), cidr, wanted)
    return tuple(o.address for o in wanted) if free is None else free


class _BlockFinder:
    """Finds the blocks that really hold addresses, whatever their pools say; lists the blocks once, when first asked.

    Needed for addresses in no pool (§13.1 step 2), and where a pool's block size was changed over older blocks.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._blocks: list[Network] = []
        self.asked = False

    def sort(self, options: Sequence[ReleaseOption]) -> dict[Network, list[ReleaseOption]]:
        """Return options by the block that holds them; those that no block holds are left out."""
        by_block: dict[Network, list[ReleaseOption]] = {}
        if options and not self.asked:
            self.asked = True
            self._blocks = [entry.value.cidr for entry in self._engine.store.list(Blocks())]
        for option in options:
            host = network_of(option.address, WIDTH[option.address.version])
            cidr = next((block for block in self._blocks if contains(block, host)), None)
            if cidr is not None:
                by_block.setdefault(cidr, []).append(option)
        return by_block


def _group(
    world: World, options: Sequence[ReleaseOption], finder: _BlockFinder
) -> tuple[dict[Network, list[ReleaseOption]], list[Address]]:
    """Sort options by the block that should hold them: a pool decides, without one the list of blocks."""
    by_block: dict[Network, list[ReleaseOption]] = {}
    poolless: list[ReleaseOption] = []
    for option in options:
        pool = pool_for(world.pools, option.address)
        if pool is None:
            poolless.append(option)
        else:
            by_block.setdefault(pool.block_of(option.address), []).append(option)
    for cidr, group in finder.sort(poolless).items():
        by_block.setdefault(cidr, []).extend(group)
    held = {option.address for group in by_block.values() for option in group}
    return by_block, [option.address for option in poolless if option.address not in held]


def _release_from_block(
    engine: Engine, world: World, cidr: Network, options: Sequence[ReleaseOption]
) -> tuple[Address, ...] | None:
    """Release addresses of one block; return those that were free already, None when there is no such block.

    Stale guards are raised, not retried.
    """
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
        if doubtful is not None and not options:
            return free
        if stored is None:
            return None
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
    key = HandleKey(handle)
    world = engine.look(key)  # a handle without a name is refused by every store, in words of its own
    entry = world.snapshot.entry(key)
    if entry is None:
        raise world.snapshot.missing(key)
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
