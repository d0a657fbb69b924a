"""Two operations at once: one rests before its n-th request, the other runs up to its m-th, or to its end.

::

    race = Race(WORLDS["usual"], ASSIGN, RELEASE, STORES["kubernetes"], rest=3, other_rests=2)
    race.run()          # one sentence for each thing that no order of the two explains

What must hold afterwards, on every store: the invariants; nobody else's address is touched, and no address is in two
hands; what an operation says it gave is its handle's, unless the other one released that; rows and blocks fit together;
an error is one that either order gives, or one that the operation documents for a lost race.

Four stores: one that commits as a whole (SQLite, etcd), the same beside a process that writes step by step (upstream's
on etcd), and the Kubernetes API, whose requests of one read may come in any order and whose lists may be old.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, cast

from calico_ipam.datastore.api import (
    Datastore,
    Deadline,
    Entry,
    Event,
    Listing,
    Revision,
    Snapshot,
    Write,
)
from calico_ipam.datastore.kube.api import Request
from calico_ipam.datastore.passing import PassingStore
from calico_ipam.engine.client import IPAM
from calico_ipam.engine.results import AutoAssigned
from calico_ipam.errors import IPAMError
from calico_ipam.model.affinity import PENDING_DELETION
from calico_ipam.model.keys import AffinityKey, BlockKey, Key, Scope
from tests.cluster import Cluster, ManualClock
from tests.invariants import entries, new_violations, violations
from tests.memory import MemoryStore
from tests.memory_kube import MemoryApi, MemoryKubeStore
from tests.sequential import SequentialStore

Gate = Callable[[], None]  #: called before each request
NEVER = 1 << 30


# --- stores --------------------------------------------------------------------------------------------------


class GatedStore(PassingStore):
    """Passes everything on, after the gate."""

    def __init__(self, inner: Datastore, gate: Gate) -> None:
        super().__init__(inner)
        self.gate = gate

    def get(self, key: Key) -> Entry:
        self.gate()
        return self.inner.get(key)

    def list(self, scope: Scope) -> Listing:
        self.gate()
        return self.inner.list(scope)

    def read(self, *wanted: Key | Scope) -> Snapshot:
        self.gate()
        return self.inner.read(*wanted)

    def commit(self, *writes: Write) -> Sequence[Entry]:
        self.gate()
        return self.inner.commit(*writes)

    def watch(self, scope: Scope, since: Revision) -> Iterator[Event]:
        raise NotImplementedError

    def within(self, deadline: Deadline | None) -> GatedStore:
        return self

    def close(self) -> None:
        return None


class GatedApi(MemoryApi):
    """The objects of another MemoryApi, each request after the gate; lists from the cache are ``old`` where given."""

    def __init__(self, inner: MemoryApi, gate: Gate, old: MemoryApi | None) -> None:
        super().__init__()
        self.inner, self.gate, self.old = inner, gate, old

    def call(self, request: Request, deadline: Deadline | None = None) -> dict[str, Any]:
        self.gate()
        from_cache = request.method == "GET" and request.query.get("resourceVersion") == "0"
        return (self.old if from_cache and self.old is not None else self.inner).call(request)


class InTurn:
    """Makes the requests of one read one after the other, in this order or the other."""

    def __init__(self, *, backwards: bool) -> None:
        self.backwards = backwards

    def run(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        answers = [call() for call in (reversed(calls) if self.backwards else calls)]
        return answers[::-1] if self.backwards else answers

    def close(self) -> None:
        return None


@dataclass(frozen=True)
class Store:
    """A kind of store: an empty one, a copy of one as it is now, and what one process sees of it."""

    name: str
    kubernetes: bool = False
    backwards: bool = False
    old_lists: bool = False
    step_by_step: str = ""  #: which of the two processes writes one by one: "one", "other"

    def empty(self) -> Datastore:
        return MemoryKubeStore() if self.kubernetes else MemoryStore()

    def copy(self, store: Any) -> Any:
        made: Any = self.empty()
        if self.kubernetes:
            made._api.objects, made._api.revision = copy.deepcopy(store._api.objects), store._api.revision
        else:
            made._rows, made._revision = dict(store._rows), store._revision
        return made

    def view(self, store: Any, before: Any, who: str, gate: Gate) -> Datastore:
        if self.kubernetes:
            seen: Any = MemoryKubeStore()
            seen._api = GatedApi(store._api, gate, before._api if self.old_lists else None)
            seen._abreast = InTurn(backwards=self.backwards)
        else:
            gated = GatedStore(store, gate)
            seen = SequentialStore(gated) if self.step_by_step == who else gated
        return cast(Datastore, seen)


STORES = {
    store.name: store
    for store in (
        Store("whole commits"),
        Store("the other step by step", step_by_step="other"),
        Store("one step by step", step_by_step="one"),
        Store("kubernetes", kubernetes=True),
        Store("kubernetes, backwards", kubernetes=True, backwards=True, old_lists=True),
    )
}


# --- operations and worlds -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operation:
    """``call``: what it does. ``handles``: whose addresses it may touch. ``may``: errors of a lost race it documents.

    ``releases``: it takes addresses back from its handles, so that nobody else may count on having them.
    """

    name: str
    call: Callable[[IPAM], object]
    handles: frozenset[str] = frozenset()
    may: tuple[type[IPAMError], ...] = ()
    releases: bool = False


@dataclass(frozen=True)
class World:
    """How things stand before. ``prepare`` may let time pass."""

    name: str
    prepare: Callable[[Cluster], None]


@dataclass(frozen=True)
class Ended:
    """How an operation ended."""

    error: IPAMError | None = None
    given: tuple[str, ...] = ()  #: addresses that it says its handle has now

    @classmethod
    def of(cls, call: Callable[[], object]) -> Ended:
        try:
            result = call()
        except IPAMError as error:
            return cls(error, _given(getattr(error, "partial", None)))
        return cls(None, _given(result))


def _given(result: object) -> tuple[str, ...]:
    return tuple(str(each.address) for each in result.addresses) if isinstance(result, AutoAssigned) else ()


@dataclass(frozen=True)
class Before:
    """A store with a world in it, never to be written, the time there, and what is known of it."""

    store: Datastore
    at: int
    broken: tuple[str, ...]
    unfitting: frozenset[str]
    held: dict[str, tuple[str, int]]


@cache
def prepared(world: World, kubernetes: bool) -> Before:
    made = Cluster(Store("", kubernetes=kubernetes).empty())
    world.prepare(made)
    store = made.store.inner
    stored = entries(store)
    return Before(store, made.clock.at, tuple(violations(store)), frozenset(unfitting(stored)), allocations(stored))


# --- the race ------------------------------------------------------------------------------------------------


class Race:
    """One way in which two operations may run at once."""

    def __init__(
        self,
        world: World,
        one: Operation,
        other: Operation,
        store: Store,
        *,
        rest: int = NEVER,
        other_rests: int = NEVER,
    ) -> None:
        self.world, self.one, self.other, self.store = world, one, other, store
        self.rest, self.other_rests = rest, other_rests
        self.before = prepared(world, store.kubernetes)
        self.after = store.copy(self.before.store)
        self.clock = ManualClock(self.before.at)
        self.requests = self.other_requests = 0
        self.ends: tuple[Ended, Ended] | None = None
        self._other_end: Ended | None = None
        self._thread: threading.Thread | None = None
        self._rests, self._go_on = threading.Event(), threading.Event()

    def __str__(self) -> str:
        rests = f"rests before request {self.rest}" if self.rest != NEVER else "runs through"
        if self.other_rests != NEVER:
            rests += f", the other before request {self.other_rests}"
        return f"{self.store.name}, world {self.world.name}: {self.one.name!r} and {self.other.name!r}; the one {rests}"

    def run(self) -> list[str]:
        """Run both to their ends, and return what is wrong then."""
        end = Ended.of(lambda: self.one.call(self._process("one", self._gate)))
        if self._thread is None:
            self._begin_other()
        self._go_on.set()
        assert self._thread is not None
        self._thread.join(60)
        assert self._other_end is not None, f"{self.other.name} does not end"
        self.ends = end, self._other_end
        return list(self._problems(*self.ends))

    def _process(self, who: str, gate: Gate) -> IPAM:
        return IPAM(self.store.view(self.after, self.before.store, who, gate), clock=self.clock)

    def _gate(self) -> None:
        self.requests += 1
        if self.requests == self.rest:
            self._begin_other()

    def _other_gate(self) -> None:
        self.other_requests += 1
        if self.other_requests == self.other_rests:
            self._rests.set()
            assert self._go_on.wait(60), f"{self.one.name} does not end"

    def _begin_other(self) -> None:
        def work() -> None:
            try:
                self._other_end = Ended.of(lambda: self.other.call(self._process("other", self._other_gate)))
            finally:
                self._rests.set()

        self._thread = threading.Thread(target=work)
        self._thread.start()
        assert self._rests.wait(60), f"{self.other.name} does not come to rest"

    # --- what must hold -------------------------------------------------------------------------------------

    def _problems(self, one: Ended, other: Ended) -> Iterator[str]:
        contested = self.one.handles & self.other.handles
        for sentence in new_violations(self.before.broken, violations(self.after)):
            # Handle and block are two writes on some stores: who releases a handle while it is assigned under it, or
            # assigns twice under one that may hold one address, may leave a count that the collector corrects.
            subject = sentence.removeprefix("handle ").partition(":")[0]
            if not (self._writes_apart and sentence.startswith("handle ") and subject in contested):
                yield sentence
        stored = entries(self.after)
        yield from sorted(unfitting(stored) - self.before.unfitting)
        holder = allocations(stored)
        for address, (handle, number) in self.before.held.items():
            if handle not in self.one.handles | self.other.handles and holder.get(address) != (handle, number):
                yield f"{address} of {handle} is {holder.get(address)} now"
        for operation, end, rival in ((self.one, one, self.other), (self.other, other, self.one)):
            for address in end.given:
                if not (rival.releases and operation.handles & rival.handles) and (
                    holder.get(address, ("", 0))[0] not in operation.handles
                ):
                    yield f"{operation.name} was given {address}, which is {holder.get(address)} now"
        yield from self._unexplained(one, other)

    @property
    def _writes_apart(self) -> bool:
        return self.store.kubernetes or bool(self.store.step_by_step)

    def _unexplained(self, one: Ended, other: Ended) -> Iterator[str]:
        """Yield the errors that neither order of the two gives, and that are not documented."""
        for operation, rival, error in ((self.one, self.other, one.error), (self.other, self.one, other.error)):
            if error is None or isinstance(error, operation.may):
                continue
            if type(error) not in self._errors_in_turn(operation, rival):
                yield f"{operation.name} ended with {type(error).__name__}: {error}"

    def _errors_in_turn(self, operation: Operation, rival: Operation) -> set[type]:
        found = set()
        for sequence in ((operation,), (rival, operation)):
            store = self.store.copy(self.before.store)
            seen = self.store.view(store, self.before.store, "", lambda: None)
            process = IPAM(seen, clock=ManualClock(self.before.at))
            ends = [Ended.of(partial(each.call, process)) for each in sequence]
            found.add(type(ends[-1].error))
        return found


def allocations(stored: Iterable[Entry]) -> dict[str, tuple[str, int]]:
    """Return address -> (handle, sequence number) of everything that is held."""
    found = {}
    for entry in stored:
        if isinstance(entry.key, BlockKey):
            block = entry.value
            for ordinal, attribute in block.taken():
                if not attribute.cold:
                    found[str(block.address(ordinal))] = attribute.clean_handle, block.sequence_of(ordinal)
    return found


def unfitting(stored: Sequence[Entry]) -> set[str]:
    """Return what an operation that has ended must not leave between affinity rows and blocks.

    A row that is marked for deletion may stay: a release that found its block in use at last leaves it, and the host's
    next use of the block confirms it (ipam-library §24.8).
    """
    blocks = {entry.key.cidr: entry.value for entry in stored if isinstance(entry.key, BlockKey)}
    rows = {(str(e.key.owner), e.key.cidr): e.value.state for e in stored if isinstance(e.key, AffinityKey)}
    found = {
        f"row of {owner} for {cidr} is left {state or 'without a state'}"
        for (owner, cidr), state in rows.items()
        if state not in ("confirmed", PENDING_DELETION)
    }
    found |= {
        f"block {cidr} of {block.affinity} is left without a row"
        for cidr, block in blocks.items()
        if block.affinity and (block.affinity, cidr) not in rows
    }
    return found | {
        f"block {cidr} is left empty and nobody's"
        for cidr, block in blocks.items()
        if block.affinity is None and not list(block.taken())
    }
