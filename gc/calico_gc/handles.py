"""Handles against blocks: which of them are orphaned, stuck, wrong or missing (gc §18.1). Pure.

Blocks are the truth, handles an index. Nothing is done to a handle before it was seen to be wrong in exactly the same
way on several looks, over a time that no honest program needs between its two writes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace

from calico_ipam.datastore.api import Entry
from calico_ipam.model.block import Block
from calico_ipam.model.handle import WINDOWS_RESERVED, Handle, sanitise_handle

GOOD, ORPHAN, STUCK, SKEWED, MISSING, UNREADABLE = "good", "orphan", "stuck", "skewed", "missing", "unreadable"
CLASSES = (GOOD, ORPHAN, SKEWED, MISSING, STUCK, UNREADABLE)
#: the order in which they are repaired: what blocks new addresses first
ORDER = (STUCK, ORPHAN, SKEWED, MISSING)

Counts = tuple[tuple[str, int], ...]  #: (block, number), sorted


@dataclass(frozen=True, slots=True)
class Truth:
    """What blocks say of handles. ``cooling``: handles of addresses that have a handle and are cooling down.

    ``unreadable``: blocks that cannot be read; ``blind``: not even which blocks those are is known.
    """

    want: Mapping[str, Counts]
    referenced: Set[str]
    cooling: frozenset[str] = frozenset()
    unreadable: frozenset[str] = frozenset()
    blind: bool = False

    def knows_all_of(self, handle: Handle) -> bool:
        """Tell whether every block that may hold something of the handle could be read."""
        return not self.blind and not any(cidr in self.unreadable for cidr in handle.blocks)


def truth_of(blocks: Iterable[Block], unreadable: Collection[str] = (), *, blind: bool = False) -> Truth:
    """Return what blocks say. Soft-deleted blocks and cooling addresses still refer to their handles."""
    want: dict[str, Counts] = {}
    referenced: set[str] = set()
    cooling: set[str] = set()
    for block in blocks:
        holders = {
            index: sanitise_handle(attribute.handle)
            for index, attribute in enumerate(block.attributes)
            if attribute.handle
        }
        if not holders:
            continue
        counts: dict[str, int] = {}
        for index in block.allocations:
            handle = holders.get(index, "") if index is not None else ""
            if not handle or index is None:
                continue
            referenced.add(handle)
            if block.attributes[index].cold:
                cooling.add(handle)
            elif not block.deleted:
                counts[handle] = counts.get(handle, 0) + 1
        cidr = str(block.cidr)
        for handle, number in counts.items():
            want[handle] = (*want.get(handle, ()), (cidr, number))
    ordered = {handle: counts if len(counts) == 1 else tuple(sorted(counts)) for handle, counts in want.items()}
    return Truth(ordered, referenced, frozenset(cooling), frozenset(unreadable), blind)


@dataclass(frozen=True, slots=True)
class Judged:
    """One handle that is not as it should be."""

    id: str
    kind: str  #: orphan, stuck, skewed, missing
    uid: str
    revision: str
    have: Counts
    want: Counts


@dataclass(frozen=True, slots=True)
class Rules:
    """``keep``: prefixes of handles that are never touched. ``folded``: names differ in case only by accident (KDD)."""

    keep: tuple[str, ...] = ()
    folded: bool = False


def classify(
    entries: Iterable[Entry],
    truth: Truth,
    rules: Rules,
    leaking: Collection[str] = (),
    damaged: Iterable[str] = (),
) -> tuple[dict[str, Judged], dict[str, int]]:
    """Return the handles that are wrong, by ID, and how many there are of each class.

    ``leaking``: handles with a suspected address; their counts are about to change and are left alone. ``damaged``:
    handles that are there and cannot be read; they are not missing.
    """
    fold = _folded if rules.folded else _as_is
    known = {fold(handle): handle for handle in truth.referenced}
    # Two that differ in case alone share one object there: what it has to count nobody can tell.
    shared = {fold(handle) for handle in truth.referenced if known[fold(handle)] != handle}
    numbers = dict.fromkeys(CLASSES, 0)
    wrong: dict[str, Judged] = {}
    present = {*shared, *(fold(handle) for handle in damaged)}
    for entry in entries:
        handle: Handle = entry.value
        if not handle.id:
            numbers[UNREADABLE] += 1
            continue
        name = known.get(fold(handle.id), handle.id)
        judged = None if fold(handle.id) in shared and not handle.deleted else _judge(entry, name, truth, leaking)
        if not handle.deleted:
            present.add(fold(handle.id))
        if judged is None or _spared(handle.id, truth, rules):
            numbers[GOOD] += 1
            continue
        numbers[judged.kind] += 1
        wrong[handle.id] = judged
    for handle_id, want in truth.want.items():
        if fold(handle_id) in present or handle_id in leaking or _spared(handle_id, truth, rules):
            continue
        if handle_id in wrong:
            continue  # an unfinished deletion goes first; then it is missing, with a timer of its own
        numbers[MISSING] += 1
        wrong[handle_id] = Judged(handle_id, MISSING, "", "", (), want)
    return wrong, numbers


def _judge(entry: Entry, name: str, truth: Truth, leaking: Collection[str]) -> Judged | None:
    handle: Handle = entry.value
    have = tuple(sorted(handle.blocks.items()))
    want = truth.want.get(name, ())
    if handle.deleted:
        return Judged(handle.id, STUCK, entry.uid, entry.revision, have, want)
    if not truth.knows_all_of(handle):
        return None  # it may hold something in a block that cannot be read
    if name not in truth.referenced:
        return Judged(handle.id, ORPHAN, entry.uid, entry.revision, have, ())
    if have != want and want and name not in leaking:
        return Judged(handle.id, SKEWED, entry.uid, entry.revision, have, want)
    return None


def _spared(handle: str, truth: Truth, rules: Rules) -> bool:
    return handle.lower() == WINDOWS_RESERVED or handle in truth.cooling or handle.startswith(rules.keep or ("\0",))


def _folded(handle: str) -> str:
    return handle.lower()


def _as_is(handle: str) -> str:
    return handle


# --- observations ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Observed:
    """A wrong handle and how often it was seen to be wrong in exactly this way. Times: monotonic seconds."""

    judged: Judged
    first: float
    last: float
    observations: int = 1

    def confirmed(self, grace: float, least: int) -> bool:
        return self.observations >= max(2, least) and self.last - self.first >= grace


def observe(before: Mapping[str, Observed], wrong: Mapping[str, Judged], now: float) -> dict[str, Observed]:
    """Return the records after another look: same again counts, anything else begins anew, gone is forgotten."""
    after: dict[str, Observed] = {}
    for handle, judged in wrong.items():
        known = before.get(handle)
        if known is not None and known.judged == judged:
            after[handle] = replace(known, last=now, observations=known.observations + 1)
        else:
            after[handle] = Observed(judged, now, now)
    return after


def due(records: Mapping[str, Observed], grace: float, least: int, most: int) -> list[Observed]:
    """Return what may be repaired now, in the order of repair, at most ``most``."""
    chosen = [record for record in records.values() if record.confirmed(grace, least)]
    chosen.sort(key=lambda record: (ORDER.index(record.judged.kind), record.judged.id))
    return chosen[:most]


@dataclass(frozen=True, slots=True)
class HandleLook:
    """The last look at all handles. ``wall``: Unix nanoseconds."""

    wall: int
    numbers: Mapping[str, int]
    records: Mapping[str, Observed] = field(default_factory=dict)
    results: Mapping[str, str] = field(default_factory=dict)  #: handle -> what became of its repair
    total: int = 0
    error: str = ""
