"""Release by address and by handle (ipam-library §13). The block is written before the handle is counted down."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from calico_ipam.datastore.api import Damaged, Delete, Entry, Snapshot, Update, Write, damaged_error, lost
from calico_ipam.engine.affinity_release import release_if_unselected
from calico_ipam.engine.claim import LOST
from calico_ipam.engine.results import ReleaseResult
from calico_ipam.engine.transaction import MOST_ADDRESSES, MOST_WRITES, Holding, count_down_quietly, handle_write
from calico_ipam.engine.world import Engine, World
from calico_ipam.errors import IPAMError, OutcomeUnknown, RetriesExhausted, StoreDamaged
from calico_ipam.model.addresses import WIDTH, Address, Network, contains, network_of
from calico_ipam.model.block import Block, ReleaseOption
from calico_ipam.model.handle import Handle, sanitise_handle
from calico_ipam.model.keys import BlockKey, Blocks, HandleKey
from calico_ipam.model.pool import pool_for

log = logging.getLogger(__name__)


# --- by address ----------------------------------------------------------------------------------------------


def release_ips(engine: Engine, options: Iterable[ReleaseOption]) -> ReleaseResult:
    """Release addresses. A failing block does not stop the others; the first error carries ``partial``."""
    wanted = _sanitised(options)
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
            unallocated += free if free is not None else [option.address for option in group]
            released += group
        by_block = finder.sort(missing)
        free_already = finder.without_block(missing, by_block)
        unallocated += [option.address for option in free_already]
        released += free_already
    failure = failure or next(iter(finder.unreadable.values()), None)
    result = ReleaseResult(tuple(unallocated), tuple(released))
    if failure is not None:
        failure.partial = result
        raise failure
    return result


def release_from_block(engine: Engine, cidr: Network, options: Sequence[ReleaseOption]) -> tuple[Address, ...]:
    """Release addresses of a block that the caller has found, whatever size their pool's blocks have; return those
    that were free already (cli §5.1). Raises as :func:`release_ips`.
    """
    wanted = _sanitised(options)
    free = _release_from_block(engine, engine.look(), cidr, wanted)
    return tuple(o.address for o in wanted) if free is None else free


def _sanitised(options: Iterable[ReleaseOption]) -> list[ReleaseOption]:
    return [replace(option, handle=sanitise_handle(option.handle) or None) for option in options]


class _BlockFinder:
    """Finds the blocks that really hold addresses, whatever their pools say; lists the blocks once, when first asked.

    Needed for addresses in no pool (§13.1 step 2), and where a pool's block size was changed over older blocks.
    ``unreadable``: addresses of blocks that cannot be read, and the first error of one.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._blocks: list[Network] = []
        self._damaged: dict[Network, Damaged] = {}
        self.asked = False
        self.unreadable: dict[Address, IPAMError] = {}

    def sort(self, options: Sequence[ReleaseOption]) -> dict[Network, list[ReleaseOption]]:
        """Return options by the block that holds them; those that no block holds are left out."""
        by_block: dict[Network, list[ReleaseOption]] = {}
        if options and not self.asked:
            self.asked = True
            listing = self._engine.store.list(Blocks())
            self._blocks = [entry.cidr for entry in listing]
            self._damaged = {d.key.cidr: d for d in listing.damaged if isinstance(d.key, BlockKey)}
        for option in options:
            host = network_of(option.address, WIDTH[option.address.version])
            cidr = next((block for block in self._blocks if contains(block, host)), None)
            damaged = next((block for block in self._damaged if contains(block, host)), None)
            if cidr is not None:
                by_block.setdefault(cidr, []).append(option)
            elif damaged is not None:
                self.unreadable[option.address] = damaged_error(self._damaged[damaged])
        return by_block

    def without_block(
        self, options: Sequence[ReleaseOption], found: Mapping[Network, Sequence[ReleaseOption]]
    ) -> list[ReleaseOption]:
        """Return the options whose address no block holds, readable or not."""
        held = {option.address for group in found.values() for option in group} | self.unreadable.keys()
        return [option for option in options if option.address not in held]


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
    return by_block, [option.address for option in finder.without_block(poolless, by_block)]


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
    found = {}
    for handle in handles:
        key = HandleKey(handle)
        try:
            found[handle] = Holding(key, snapshot.entry(key))
        except StoreDamaged as error:
            # A count that cannot be read keeps nobody's address.
            log.warning("handle %s cannot be counted down: %s", handle, error)
            found[handle] = Holding(key, None)
    return found


def _write_release(
    engine: Engine, block: Write, cidr: Network, counts: Mapping[str, int], known: Mapping[str, Holding]
) -> None:
    """Write the block, and count the handles down: in one commit where the store can and as far as it takes them.

    Handles are read before the block is written: those addresses are known to be counted in what was read then.
    """
    together = list(counts)[: MOST_WRITES - 1] if engine.store.capabilities.atomic else []
    unread = [h for h in counts if h not in known]
    holdings = dict(known)
    if unread:
        holdings |= _holdings(engine.store.read(*(HandleKey(h) for h in unread)), unread)
    writes = [block]
    for handle in together:
        holding = holdings[handle]
        if holding.entry is not None:
            left = holding.value.decremented(cidr, counts[handle])
            writes.append(handle_write(holding.key, holding.entry, left))
    engine.store.commit(*writes)
    for handle in list(counts)[len(together) :]:
        entry = holdings[handle].entry
        if entry is not None:
            count_down_quietly(engine, entry, {cidr: counts[handle]})


# --- by handle -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Batch:
    """What releasing some of a handle's blocks means, as they are now."""

    writes: tuple[Write, ...]  #: the blocks, then the handle
    changed: tuple[Block, ...]  #: blocks that stay
    left: Handle  #: what the handle counts then
    last: bool  #: no more blocks are left to do


def release_by_handle(engine: Engine, handle: str) -> None:
    """Release whatever a handle holds. Raises NotFound when there is no handle object.

    Entries for blocks that are gone, or that hold nothing of this handle, are removed too (limit L10). A block that
    cannot be read does not stop the others; its error is raised at the end.
    """
    handle = sanitise_handle(handle)
    key = HandleKey(handle)
    # A handle without a name is refused by every store, in words of its own.
    world = engine.look(key, *engine.familiar.latest(), pools=False)
    entry = world.snapshot.entry(key)
    if entry is None:
        raise world.snapshot.missing(key)
    unreadable: dict[Network, StoreDamaged] = {}
    try:
        while entry is not None:
            entry = _release_batch(engine, world, entry, unreadable)
    except RetriesExhausted:
        raise RetriesExhausted("Hit max retries") from None
    for error in unreadable.values():
        raise error


def _release_batch(engine: Engine, world: World, entry: Entry, unreadable: dict[Network, StoreDamaged]) -> Entry | None:
    """Release as many blocks of a handle as a commit takes; return the handle as it is then, None when all is done."""
    key, first, gone = entry.key, world.snapshot.entry(entry.key), False
    changed: list[Block] = []
    for attempt in engine.retry.tries(f"releasing {key}"):
        if attempt:
            again = engine.store.read(key).entry(key)
            # Somebody else, or our own write whose answer was lost, has finished it; or has removed the handle alone:
            # what the blocks that it counted still hold is released all the same, as nobody would find it any more.
            gone, entry = again is None, again or entry
        # A handle that did not change is the same entry when it is read again: only the first try may go on a guess.
        guess = world.snapshot if not attempt and entry is first else None
        batch = _batch(engine, world, entry, unreadable, guess)
        if gone and engine.store.read(key).entry(key) is not None:
            continue  # begun anew before the blocks were read: what they hold may be what is counted now
        try:
            # Blocks first, then the handle: a crash in between leaves a handle that counts too many.
            writes = [write for write in batch.writes if not (gone and write.key == key)]
            stored = engine.store.commit(*writes) if writes else (entry,)
        except (*LOST, OutcomeUnknown) as error:
            log.debug("releasing %s: %s; deciding again", key, error)
            loss = lost(error)
            changed += [each.value for each in (loss.applied if loss else ()) if isinstance(each.key, BlockKey)]
            continue
        for block in (*changed, *batch.changed):
            release_if_unselected(engine, world, block)
        if batch.last:
            return None
        return replace(entry, value=batch.left) if gone else stored[-1]
    raise AssertionError("tries() never ends quietly")


def _batch(
    engine: Engine,
    world: World,
    entry: Entry,
    unreadable: dict[Network, StoreDamaged],
    guess: Snapshot | None,
) -> _Batch:
    handle: Handle = entry.value
    todo = [cidr for cidr in handle.counts() if cidr not in unreadable]
    cidrs = _fitting(todo)
    snapshot = guess
    if cidrs and (guess is None or not all(_shows(guess, cidr, handle.id) for cidr in cidrs)):
        snapshot = engine.store.read(*(BlockKey(cidr) for cidr in cidrs))
    left, writes, changed = handle, [], []
    for cidr in cidrs:
        assert snapshot is not None  # noqa: S101  # there are blocks, so they were read
        try:
            stored = snapshot.entry(BlockKey(cidr))
        except StoreDamaged as error:
            unreadable[cidr] = error
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
            writes.append(gone)
            if isinstance(gone, Update):
                changed.append(block)
    if left != handle or left.empty:
        writes.append(handle_write(HandleKey(handle.id), entry, left))
    return _Batch(tuple(writes), tuple(changed), left, len(cidrs) == len(todo))


def _shows(guess: Snapshot, cidr: Network, handle: str) -> bool:
    """Tell whether a block that was read beside the handle, perhaps a moment earlier, shows addresses of it.

    Then it is written, so that what is old about it is found out. That it holds nothing is only believed of a block
    that was read after the handle.
    """
    key = BlockKey(cidr)
    if key not in guess:
        return False
    try:
        stored = guess.entry(key)
    except StoreDamaged:
        return False
    return stored is not None and bool(stored.value.held_by(handle))


def _fitting(cidrs: Sequence[Network]) -> Sequence[Network]:
    """Return the first blocks, at least one, that fit into one commit."""
    addresses = 0
    for position, cidr in enumerate(cidrs[: MOST_WRITES - 1]):
        addresses += cidr.num_addresses
        if position and addresses > MOST_ADDRESSES:
            return cidrs[:position]
    return cidrs[: MOST_WRITES - 1]
