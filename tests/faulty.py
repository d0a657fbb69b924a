"""A datastore that fails on purpose, and counts what is asked of it.

::

    store = FaultyStore(inner, Fault("lost", write=2))     # the commit that holds the second write of all is done,
                                                           # but its answer is lost
    store = FaultyStore(inner, Fault("before", operation=3))   # the third operation never reaches the store
    store.requests["read"], store.writes                   # what was asked so far

A fault strikes once unless ``times`` says more; :meth:`FaultyStore.struck` tells whether all of them did.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from calico_ipam.datastore.api import (
    Create,
    Datastore,
    Deadline,
    Entry,
    Event,
    Listing,
    Revision,
    Snapshot,
    Update,
    Write,
)
from calico_ipam.datastore.passing import PassingStore
from calico_ipam.errors import DeadlineExceeded, IPAMError, NotFound, OutcomeUnknown, StoreUnavailable
from calico_ipam.model.keys import Key, Scope

T = TypeVar("T")
Verb = Literal["get", "list", "read", "commit"]


def overtake(store: Datastore, write: Write) -> None:
    """Be the rival that was a moment quicker: rewrite the object as it is, or create what is to be created."""
    try:
        entry = store.get(write.key)
    except NotFound:
        if isinstance(write, Create):
            store.commit(Create(write.key, write.value))
        return
    store.commit(Update(entry, entry.value))


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong, and when.

    ``before``: the operation fails with StoreUnavailable and is not done. ``lost``: it is done, but its answer is lost
    (OutcomeUnknown for a commit, StoreUnavailable for a read). ``conflict``: a rival changes the object first, so the
    commit really loses. ``hang``: it is not done; nothing comes back until the caller's deadline.

    ``operation`` counts operations from 1, ``write`` counts single writes (a commit of three counts three); one of the
    two is given. ``verb`` and ``where`` say which operations, or writes, are counted at all.
    """

    kind: Literal["before", "lost", "conflict", "hang"]
    operation: int = 0
    write: int = 0
    times: int = 1
    verb: Verb | None = None
    where: Callable[[Key | Scope], bool] | None = None
    error: Callable[[], IPAMError] | None = None  #: instead of the usual one, for ``before`` and ``lost``
    rival: Callable[[Datastore, Write], object] = overtake

    def __post_init__(self) -> None:
        if (self.operation > 0) == (self.write > 0):
            raise ValueError("a fault strikes either the n-th operation or the n-th write")


@dataclass(slots=True)
class _Armed:
    fault: Fault
    seen: int = 0
    left: int = 0

    def strikes(self, verb: Verb, subjects: tuple[Key | Scope, ...]) -> int | None:
        """Return the position of the subject that is struck, or None."""
        fault = self.fault
        if fault.verb not in (None, verb) or (verb != "commit" and (fault.write or fault.kind == "conflict")):
            return None
        chosen = [i for i, each in enumerate(subjects) if fault.where is None or fault.where(each)]
        if not chosen:
            return None
        wanted, step = (fault.write, len(chosen)) if fault.write else (fault.operation, 1)
        first, self.seen = self.seen + 1, self.seen + step
        hit = max(wanted, first)  # once the count is reached, ``times`` decides
        if self.seen < wanted or self.left == 0:
            return None
        self.left -= 1
        return chosen[hit - first] if fault.write else chosen[0]


@dataclass(slots=True)
class _State:
    armed: list[_Armed]
    lock: threading.Lock = field(default_factory=threading.Lock)
    requests: Counter[str] = field(default_factory=Counter)
    writes: int = 0


class FaultyStore(PassingStore):
    """Passes everything on to ``inner`` except what a fault strikes. Views made by ``within`` count together."""

    def __init__(self, inner: Datastore, *faults: Fault) -> None:
        super().__init__(inner)
        self._deadline: Deadline | None = None
        self._state = _State([])
        self.inject(*faults)

    def inject(self, *faults: Fault) -> None:
        """Add faults; their counts begin now."""
        self._state.armed += [_Armed(fault, left=fault.times) for fault in faults]

    def struck(self) -> bool:
        """Tell whether every fault struck as often as it should."""
        return all(armed.left == 0 for armed in self._state.armed)

    @property
    def requests(self) -> Counter[str]:
        """Operations asked for so far, by verb, those that failed included."""
        return self._state.requests

    @property
    def writes(self) -> int:
        """Single writes asked for so far."""
        return self._state.writes

    def get(self, key: Key) -> Entry:
        return self._do("get", (key,), lambda: self.inner.get(key))

    def list(self, scope: Scope) -> Listing:
        return self._do("list", (scope,), lambda: self.inner.list(scope))

    def read(self, *wanted: Key | Scope) -> Snapshot:
        return self._do("read", wanted, lambda: self.inner.read(*wanted))

    def commit(self, *writes: Write) -> Sequence[Entry]:
        keys = tuple(write.key for write in writes)
        return self._do("commit", keys, lambda: self.inner.commit(*writes), writes)

    def watch(self, scope: Scope, since: Revision) -> Iterator[Event]:
        self._state.requests["watch"] += 1
        return self.inner.watch(scope, since)

    def within(self, deadline: Deadline | None) -> FaultyStore:
        view = object.__new__(FaultyStore)
        view.inner = self.inner.within(deadline)
        view._deadline = deadline
        view._state = self._state
        return view

    def _do(
        self, verb: Verb, subjects: tuple[Key | Scope, ...], action: Callable[[], T], writes: tuple[Write, ...] = ()
    ) -> T:
        with self._state.lock:
            self._state.requests[verb] += 1
            self._state.writes += len(writes)
            struck = [(each.fault, each.strikes(verb, subjects)) for each in self._state.armed]
        due = [(fault, position) for fault, position in struck if position is not None]
        for fault, position in due:
            match fault.kind:
                case "before":
                    raise fault.error() if fault.error else StoreUnavailable(f"injected failure before {verb}")
                case "hang":
                    self._hang(verb)
                case "conflict":
                    fault.rival(self.inner, writes[position])
        answer = action()
        for fault, _ in due:
            if fault.kind == "lost":
                usual = OutcomeUnknown if verb == "commit" else StoreUnavailable
                raise fault.error() if fault.error else usual(f"injected loss of the answer to {verb}")
        return answer

    def _hang(self, verb: Verb) -> None:
        if self._deadline is None:
            raise AssertionError(f"{verb} would hang for ever: the caller set no deadline")
        time.sleep(self._deadline.remaining())
        raise DeadlineExceeded(f"injected silence until the deadline of {verb}")
