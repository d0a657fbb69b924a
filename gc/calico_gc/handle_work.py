"""Looking at all handles and repairing them, for workers; and when to do so, for the loop (gc §18.1)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from calico_gc import handles
from calico_gc.gate import NotAllowed
from calico_gc.handles import MISSING, ORPHAN, SKEWED, STUCK, HandleLook, Judged, Observed, Rules, Truth
from calico_gc.options import HandleOptions
from calico_gc.timing import Bucket, Clock
from calico_ipam.datastore.api import Create, Datastore, Delete, Entry, Listing, Update
from calico_ipam.errors import AlreadyExists, Conflict, IPAMError, NotFound, OutcomeUnknown, RefusedError
from calico_ipam.model.addresses import parse_network
from calico_ipam.model.block import Block
from calico_ipam.model.handle import Handle
from calico_ipam.model.keys import BlockKey, Blocks, HandleKey, Handles, Key, Scope

log = logging.getLogger(__name__)

#: seconds after which the list of blocks is read again before another write
BLOCKS_FRESH = 30.0
#: while nothing is wrong, a look may be so many periods after the last one
MOST_PERIODS = 4
#: seconds between two chunks of repairs
CHUNK_PAUSE = 1.0
#: lists handles or blocks, those included that are marked as deleted
ListMarked = Callable[[Scope], Listing]


@dataclass(frozen=True, slots=True)
class LookAtHandles:
    """All handles are compared with the blocks as the watch has them."""

    blocks: tuple[Block, ...]
    unreadable: frozenset[str]
    blind: bool
    leaking: frozenset[str]
    rules: Rules

    @property
    def key(self) -> tuple[str, str]:
        return "handles", "look"


@dataclass(frozen=True, slots=True)
class Looked:
    """What a look gave. ``error``: the list could not be read; it neither counts nor resets."""

    wrong: dict[str, Judged] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    total: int = 0
    error: IPAMError | None = None


def look(list_marked: ListMarked, action: LookAtHandles) -> Looked:
    truth = handles.truth_of(action.blocks, action.unreadable, blind=action.blind)
    try:
        listing = list_marked(Handles())
    except IPAMError as error:
        return Looked(error=error)
    damaged = [bad.key.id for bad in listing.damaged if isinstance(bad.key, HandleKey)]
    wrong, numbers = handles.classify(listing, truth, action.rules, action.leaking, damaged)
    numbers[handles.UNREADABLE] += len(listing.damaged)
    return Looked(wrong, numbers, len(listing) + len(listing.damaged))


@dataclass(frozen=True, slots=True)
class RepairHandles:
    """Handles that were wrong long enough, in the order of repair."""

    due: tuple[Observed, ...]
    rules: Rules
    leaking: frozenset[str]

    @property
    def key(self) -> tuple[str, str]:
        return "handles", "repair"


@dataclass(frozen=True, slots=True)
class Repaired:
    """Handle -> what became of it: ``ok``, ``conflict`` (it begins anew), ``gone``, or an error's text."""

    results: dict[str, str] = field(default_factory=dict)
    error: IPAMError | None = None


class Repair:
    """One pass of repairs: a fresh list of handles first, then a fresh list of blocks, then one guarded write each."""

    def __init__(self, store: Datastore, list_marked: ListMarked, clock: Clock, bucket: Bucket) -> None:
        self._store = store
        self._list = list_marked
        self._clock = clock
        self._bucket = bucket
        self._truth: Truth | None = None
        self._read_at = 0.0
        self._by_folded: dict[str, set[str]] = {}

    def run(self, action: RepairHandles) -> Repaired:
        results: dict[str, str] = {}
        try:
            # The revisions come from before the blocks are read: whoever takes an address in between changes them.
            entries = {entry.value.id: entry for entry in self._list(Handles())}
            for record in action.due:
                handle = record.judged.id
                try:
                    results[handle] = self._one(record.judged, entries.get(handle), action)
                except RefusedError as error:  # about this one, as far as anybody can tell
                    if isinstance(error, NotAllowed):
                        raise
                    log.warning("handle %s is not repaired: %s", handle, error)
                    results[handle] = str(error)
        except IPAMError as error:
            return Repaired(results, error)
        return Repaired(results)

    def _fresh_truth(self) -> Truth:
        now = self._clock.monotonic()
        if self._truth is None or now - self._read_at > BLOCKS_FRESH:
            listing = self._list(Blocks())
            self._read_at = now
            self._truth = truth_of_listing(listing)
            self._by_folded = {}
            for name in self._truth.referenced:
                self._by_folded.setdefault(name.lower(), set()).add(name)
        return self._truth

    def _one(self, judged: Judged, entry: Entry | None, action: RepairHandles) -> str:
        truth = self._fresh_truth()
        mine = self._about(truth, judged.id, action.rules)
        now, _ = handles.classify([entry] if entry is not None else [], mine, action.rules, action.leaking)
        if now.get(judged.id) != judged:
            return "conflict"
        self._bucket.take()
        try:
            return self._write(judged, entry)
        except (Conflict, AlreadyExists):
            return "conflict"
        except NotFound:
            return "gone"
        except OutcomeUnknown as error:
            log.warning("repair of handle %s may have happened: %s", judged.id, error)
            return "conflict"

    def _about(self, truth: Truth, handle: str, rules: Rules) -> Truth:
        """Return the part of a truth that concerns one handle."""
        names = self._by_folded.get(handle.lower(), set()) if rules.folded else {handle} & truth.referenced
        want = {name: truth.want[name] for name in names if name in truth.want}
        return replace(truth, want=want, referenced=names)

    def _write(self, judged: Judged, entry: Entry | None) -> str:
        if judged.kind in (ORPHAN, STUCK):
            assert entry is not None  # noqa: S101  # both classes are of objects that were listed
            self._store.commit(Delete(entry))
        elif judged.kind == SKEWED:
            assert entry is not None  # noqa: S101  # as above
            self._store.commit(Update(entry, replace(entry.value, blocks=dict(judged.want))))
        elif judged.kind == MISSING:
            (made,) = self._store.commit(Create(HandleKey(judged.id), Handle(judged.id, dict(judged.want))))
            self._take_back_if_gone(judged, made)
        return "ok"

    def _take_back_if_gone(self, judged: Judged, made: Entry) -> None:
        """Whoever released the addresses meanwhile found no handle to count down: then ours is one too many."""
        keys: list[Key] = [BlockKey(parse_network(cidr)) for cidr, _ in judged.want]
        snapshot = self._store.read(*keys)
        blocks = [entry.value for key in keys if (entry := snapshot.entry(key)) is not None]
        if not any(block.held_by(judged.id) for block in blocks):
            self._store.commit(Delete(made))


def truth_of_listing(listing: Listing) -> Truth:
    unreadable = {str(bad.key.cidr) for bad in listing.damaged if isinstance(bad.key, BlockKey)}
    blind = any(not isinstance(bad.key, BlockKey) for bad in listing.damaged)
    return handles.truth_of((entry.value for entry in listing), unreadable, blind=blind)


@dataclass(slots=True)
class HandleKeeper:
    """When handles are looked at, what was seen so far, and what is due. Used by the loop only."""

    records: dict[str, Observed] = field(default_factory=dict)
    last: HandleLook | None = None
    next_at: float = 0.0
    go_on_at: float | None = None  #: when the next chunk of repairs is due
    results: dict[str, str] = field(default_factory=dict)
    clean_looks: int = 0  #: in a row

    def forget(self) -> None:
        """Leadership, sync or readiness was lost: every timer starts again."""
        self.records.clear()
        self.results.clear()

    def looked(self, answer: Looked, now: float, wall: int, period: float) -> None:
        self.clean_looks = 0 if answer.wrong or answer.error is not None else self.clean_looks + 1
        # Reading every handle is the dearest thing there is at rest: while all is well it is done less often.
        self.next_at = now + period * min(MOST_PERIODS, max(1, self.clean_looks))
        if answer.error is not None:
            log.warning("handles cannot be listed, this look does not count: %s", answer.error)
            if self.last is not None:
                self.last = replace(self.last, error=str(answer.error))
            return
        self.records = handles.observe(self.records, answer.wrong, now)
        self.results = {handle: result for handle, result in self.results.items() if handle in self.records}
        self.last = HandleLook(wall, answer.numbers, dict(self.records), dict(self.results), answer.total)

    def due(self, options: HandleOptions) -> tuple[Observed, ...]:
        """Return what may be repaired now, by what is switched on."""
        if options.grace is None:
            return ()
        kinds = set()
        if options.collect == "on":
            kinds |= {ORPHAN, STUCK}
        if options.repair == "on":
            kinds |= {SKEWED, MISSING}
        chosen = {h: r for h, r in self.records.items() if r.judged.kind in kinds and self.results.get(h) != "ok"}
        return tuple(handles.due(chosen, options.grace, options.observations, options.batch))

    def repaired(self, answer: Repaired) -> list[tuple[str, str]]:
        """Take over results; return (class, result) of each for the counters."""
        told = []
        for handle, result in answer.results.items():
            record = self.records.get(handle)
            told.append((record.judged.kind if record is not None else "unknown", _counted(result)))
            self.records.pop(handle, None)  # what was refused begins anew, too
        if self.last is not None:
            gone = sum(result in ("ok", "gone") for result in answer.results.values())
            numbers = dict(self.last.numbers)
            for kind, result in told:
                if result == "ok" and numbers.get(kind, 0) > 0:
                    numbers[kind] -= 1
                    if kind in (SKEWED, MISSING):
                        numbers[handles.GOOD] = numbers.get(handles.GOOD, 0) + 1
            self.last = replace(self.last, numbers=numbers, records=dict(self.records), total=self.last.total - gone)
        if answer.error is not None and not isinstance(answer.error, NotAllowed):
            log.warning("handles are not all repaired: %s", answer.error)
        return told


def _counted(result: str) -> str:
    return "ok" if result in ("ok", "gone") else result if result == "conflict" else "error"
