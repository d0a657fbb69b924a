"""Releasing addresses that were found leaked some time ago, each only if it still is what was found (limit 18.14).

An address that was assigned again, that is free already, or that somebody uses by now is left out with the reason; it
never keeps the others of its block from being released.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from calico_ipam.datastore.api import Delete, Entry
from calico_ipam.engine.release import release_from_block
from calico_ipam.engine.world import Engine, World
from calico_ipam.errors import BadHandle, BadSequenceNumber, Conflict, IPAMError, NotFound, StoreDamaged
from calico_ipam.model.addresses import Address, Network, contains, network_of
from calico_ipam.model.block import Attribute, Block, ReleaseOption
from calico_ipam.model.handle import sanitise_handle
from calico_ipam.model.keys import BlockKey, Blocks, HandleKey
from calico_ipam.model.pool import pool_for

#: keys that one read asks for at most; etcd refuses larger transactions
BATCH = 100
#: handle objects that are deleted at a time
SIDE_BY_SIDE = 8


@dataclass(frozen=True, slots=True)
class Dropped:
    """An address that was not released, and why."""

    address: Address
    reason: str


@dataclass(slots=True)
class LeakOutcome:
    """What became of leaked addresses."""

    released: list[Address] = field(default_factory=list)
    already_free: list[Address] = field(default_factory=list)
    stale: list[Dropped] = field(default_factory=list)  #: somebody else has it now
    kept: list[Dropped] = field(default_factory=list)  #: nobody in particular has it, or somebody uses it
    failed: list[Dropped] = field(default_factory=list)


def release_leaks(
    engine: Engine,
    leaks: Iterable[ReleaseOption],
    *,
    unattributed: bool = False,
    in_use: Mapping[Address, str] | None = None,
) -> LeakOutcome:
    """Release each address whose handle and sequence number, where given, are still those.

    ``unattributed``: also those whose allocation names no handle, pod or type (limit 18.2). ``in_use``: addresses that
    are kept, with who uses them.
    """
    outcome = LeakOutcome()
    wanted = []
    for leak in leaks:
        user = (in_use or {}).get(leak.address)
        if user:
            outcome.kept.append(Dropped(leak.address, f"{user} uses it"))
        else:
            wanted.append(leak)
    by_block, outside = _sorted_by_block(engine, engine.look(), wanted)
    outcome.already_free += outside
    for cidr, group in by_block.items():
        try:
            _release_group(engine, cidr, group, outcome, unattributed=unattributed)
        except IPAMError as error:
            outcome.failed += [Dropped(each.address, str(error)) for each in group]
    return outcome


def _release_group(
    engine: Engine, cidr: Network, group: Sequence[ReleaseOption], outcome: LeakOutcome, *, unattributed: bool
) -> None:
    """Release addresses of one block, deciding again about each whenever one of them changes in between."""
    for _ in engine.retry.tries(f"releasing leaked addresses of block {cidr}"):
        stored = engine.store.read(BlockKey(cidr)).entry(BlockKey(cidr))
        judged = LeakOutcome()
        sure = [
            each
            for each in group
            if _judge(stored.value if stored is not None else None, each, judged, unattributed=unattributed)
        ]
        try:
            free = set(release_from_block(engine, cidr, sure)) if sure else set()
        except (BadSequenceNumber, BadHandle, Conflict):
            continue  # one of them is another's now: look again
        outcome.stale += judged.stale
        outcome.kept += judged.kept
        outcome.already_free += [*judged.already_free, *free]
        outcome.released += [each.address for each in sure if each.address not in free]
        return


def _judge(block: Block | None, leak: ReleaseOption, judged: LeakOutcome, *, unattributed: bool) -> bool:
    attribute = block.attribute(block.ordinal(leak.address)) if block is not None else None
    if block is None or attribute is None or attribute.cold:
        judged.already_free.append(leak.address)
        return False
    number = block.sequence_of(block.ordinal(leak.address))
    if leak.sequence_number is not None and number != leak.sequence_number:
        judged.stale.append(Dropped(leak.address, f"it was assigned again since, to {_holder(attribute)}"))
        return False
    if leak.handle and sanitise_handle(leak.handle) != attribute.clean_handle:
        judged.stale.append(Dropped(leak.address, f"it belongs to {_holder(attribute)}, not to {leak.handle}"))
        return False
    if not unattributed and is_unattributed(attribute):
        judged.kept.append(Dropped(leak.address, "its allocation names no handle, pod or type"))
        return False
    return True


def is_unattributed(attribute: Attribute) -> bool:
    """Tell whether an allocation says of nobody whose it is; Windows hosts keep such addresses for themselves."""
    handle = attribute.handle if not attribute.windows_reserved else None
    return not (handle or attribute.active.get("pod") or attribute.active.get("type"))


def _holder(attribute: Attribute) -> str:
    active = attribute.active
    if active.get("pod"):
        return f"{active.get('namespace', '')}/{active['pod']}"
    return attribute.clean_handle or active.get("type") or "somebody else"


def _sorted_by_block(
    engine: Engine, world: World, leaks: Sequence[ReleaseOption]
) -> tuple[dict[Network, list[ReleaseOption]], list[Address]]:
    """Sort addresses by the block they are in: the one of their pool's block size, else whichever holds them."""
    guesses: dict[Address, Network] = {}
    for leak in leaks:
        pool = pool_for(world.pools, leak.address)
        if pool is not None:
            guesses[leak.address] = pool.block_of(leak.address)
    there = _existing(engine, set(guesses.values()))
    by_block: dict[Network, list[ReleaseOption]] = {}
    outside: list[Address] = []
    every: list[Network] | None = None
    for leak in leaks:
        cidr = guesses.get(leak.address)
        if cidr not in there:
            if every is None:
                every = [entry.value.cidr for entry in engine.store.list(Blocks())]
            host = network_of(leak.address, leak.address.max_prefixlen)
            cidr = next((block for block in every if contains(block, host)), None)
        if cidr is None:
            outside.append(leak.address)
        else:
            by_block.setdefault(cidr, []).append(leak)
    return by_block, outside


def _existing(engine: Engine, cidrs: Iterable[Network]) -> set[Network]:
    keys = [BlockKey(cidr) for cidr in cidrs]
    found: set[Network] = set()
    for start in range(0, len(keys), BATCH):
        part = keys[start : start + BATCH]
        snapshot = engine.store.read(*part)
        for key in part:
            try:
                if snapshot.entry(key) is not None:
                    found.add(key.cidr)
            except StoreDamaged:
                continue  # nothing is released from a block that cannot be read
    return found


# --- handles -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stray:
    """A handle object without addresses as it was found. ``uids``: the forms of its UID that count as the same, none
    for any."""

    handle: str
    revision: str
    uids: frozenset[str] = frozenset()


def delete_stray_handles(engine: Engine, strays: Sequence[Stray]) -> Iterator[bool | IPAMError]:
    """Delete handle objects, several at a time, and yield in their order whether each went, or why it could not be."""

    def delete(stray: Stray) -> bool | IPAMError:
        try:
            return delete_stray_handle(engine, stray.handle, stray.revision, stray.uids)
        except IPAMError as error:
            return error

    if len(strays) < SIDE_BY_SIDE:
        yield from map(delete, strays)
        return
    from concurrent.futures import ThreadPoolExecutor

    # Each waits for the server: of 30,000 (public report P35) one at a time would take minutes.
    with ThreadPoolExecutor(SIDE_BY_SIDE) as threads:
        yield from threads.map(delete, strays)


def delete_stray_handle(engine: Engine, handle: str, revision: str, uids: Iterable[str] = ()) -> bool:
    """Delete a handle object if it is still the one that was found without addresses; False when it is gone, or
    another. ``uids``: the forms of its UID that count as the same, none for any."""
    key = HandleKey(handle)
    try:
        entry: Entry | None = engine.store.read(key).entry(key)
    except StoreDamaged:
        return False
    if entry is None or entry.revision != revision or (entry.uid and uids and entry.uid not in uids):
        return False
    try:
        engine.store.commit(Delete(entry))
    except (Conflict, NotFound):
        return False
    return True
