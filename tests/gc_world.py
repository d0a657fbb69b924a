"""A cluster for tests of the collector: a store, Kubernetes as dictionaries, a clock that the test holds, no threads.

Actions run at once and their answers are taken over after the pass that started them; what the collector writes comes
back to it as changes, as from a watch. :meth:`World.run` lets time pass from one due moment to the next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from calico_gc import intake
from calico_gc.controller import Controller
from calico_gc.decide import UNREADABLE, LiveNode, Rules, Standing, Unreadable
from calico_gc.facts import Allocation, Pod, PodKey, VirtualMachines, cached_pod, kube_node, kubernetes_name, live_pod
from calico_gc.gate import GatedStore, refuse_all
from calico_gc.intake import Change, Intake
from calico_gc.invariants import broken
from calico_gc.options import Options
from calico_gc.state import State
from calico_gc.timing import Bucket
from calico_gc.work import Action, Answer, Worker

from calico_ipam.datastore.api import Capabilities, Datastore, Delete, Entry, Write
from calico_ipam.engine.policy import Retry
from calico_ipam.engine.settings import get_config
from calico_ipam.engine.world import Engine
from calico_ipam.errors import IPAMError
from calico_ipam.model.keys import Blocks, ResourceKey, Resources
from calico_ipam.model.resource import CLUSTER_INFORMATION, IP_POOL, IP_RESERVATION, NODE, Resource
from calico_ipam.model.timestamps import SECOND, parse_time
from tests.memory import MemoryStore

WATCHED = (Blocks(), Resources(NODE), Resources(IP_POOL), Resources(IP_RESERVATION), Resources(CLUSTER_INFORMATION))


@dataclass
class GcClock:
    """Both clocks, moved by the test."""

    wall: int = parse_time("2026-08-22T10:00:00.25Z")
    mono: float = 1000.0

    def now(self) -> int:
        return self.wall

    def monotonic(self) -> float:
        return self.mono

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        self.wall += round(seconds * SECOND)
        self.mono += seconds


class Observed(MemoryStore):
    """A store in memory that says what was written, in order. ``atomic`` False: writes go one by one (Kubernetes)."""

    def __init__(self, *, atomic: bool = True) -> None:
        super().__init__()
        self._atomic = atomic
        self.pending: deque[Change] = deque()
        self.writes: list[tuple[str, Any]] = []

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(atomic=self._atomic)

    def commit(self, *writes: Write) -> list[Entry]:
        if self._atomic or len(writes) == 1:
            return self._committed(writes)
        return [entry for write in writes for entry in self._committed((write,))]

    def _committed(self, writes: Sequence[Write]) -> list[Entry]:
        entries = super().commit(*writes)
        for write, entry in zip(writes, entries, strict=True):
            self.writes.append((type(write).__name__.lower(), write.key))
            change = intake.removed(entry) if isinstance(write, Delete) else intake.stored(entry)
            if change is not None:
                self.pending.append(change)
        return list(entries)


@dataclass
class FakeKubernetes:
    """Nodes, pods and machines by name, as raw documents. ``failing``: what cannot be read."""

    pods: dict[PodKey, Mapping[str, Any]] = field(default_factory=dict)
    nodes: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    machines: VirtualMachines | None = None
    failing: set[Any] = field(default_factory=set)
    reads: int = 0


@dataclass
class FakeLive:
    """Live reads of a :class:`FakeKubernetes`. ``store``: where Calico's nodes are, when they are not Kubernetes'."""

    kube: FakeKubernetes
    store: Datastore | None

    def workloads(self, pods: Collection[PodKey]) -> FakeWorkloads:
        self.kube.reads += len(pods)
        return FakeWorkloads(self.kube)

    def nodes(self, names: Collection[str]) -> dict[str, LiveNode]:
        return {name: self._node(name) for name in names}

    def _node(self, name: str) -> LiveNode:
        self.kube.reads += 1
        if name in self.kube.failing:
            return LiveNode(Standing.UNKNOWN)
        if self.store is None:
            found = name in self.kube.nodes
            return LiveNode(Standing.PRESENT, name, True) if found else LiveNode(Standing.GONE)
        try:
            entry = self.store.read(ResourceKey(NODE, name)).entry(ResourceKey(NODE, name))
        except IPAMError:
            return LiveNode(Standing.UNKNOWN)
        if entry is None:
            return LiveNode(Standing.GONE)
        knode = kubernetes_name(entry.value)
        if not knode:
            return LiveNode(Standing.FOREIGN)
        return LiveNode(Standing.PRESENT, knode, knode in self.kube.nodes)


@dataclass
class FakeWorkloads:
    kube: FakeKubernetes

    def container_gone(self, allocation: Allocation) -> bool:
        return False

    @property
    def machines(self) -> VirtualMachines | None:
        return self.kube.machines

    def pod(self, key: PodKey) -> Pod | Unreadable | None:
        if key in self.kube.failing:
            return UNREADABLE
        document = self.kube.pods.get(key)
        return None if document is None else live_pod(document)


class World:
    """A collector at work. ``kubernetes``: the datastore is the Kubernetes API, so both kinds of node are one."""

    def __init__(
        self, *, kubernetes: bool = True, options: Options | None = None, store: Datastore | None = None
    ) -> None:
        self.clock = GcClock()
        self.store = store if store is not None else Observed(atomic=not kubernetes)
        self.kube = FakeKubernetes()
        self.live = FakeLive(self.kube, None if kubernetes else self.store)
        self.kubernetes = kubernetes
        options = options or Options(rules=Rules(leak_grace=1.0))
        self._answers: deque[tuple[Action, Answer]] = deque()
        self.permit = refuse_all if options.dry_run else (lambda: None)
        gated = GatedStore(self.store, lambda: self.permit(), Bucket(self.clock, 0))
        self.engine = Engine(gated, self.clock, Retry(clock=self.clock))
        self.events: list[tuple[str, str, str]] = []
        self.controller = Controller(
            State(),
            self.live,
            self._submit,
            lambda: get_config(self.engine),
            self.clock,
            options,
            notify=lambda *event: self.events.append(event),
        )
        self.controller.folded_names = kubernetes
        self.controller.backoff.spread = lambda: 1.0
        self.worker = Worker(
            self.engine,
            self.live,
            lambda scope: self.store.list(scope),
            self.clock,
            Bucket(self.clock, options.handles.rate),
            self.controller.progress,
        )
        self.configured: Callable[[Resource | None, str], None] = lambda *_: None
        self.intake = Intake(
            self.controller, kubernetes_nodes=kubernetes, configured=lambda *told: self.configured(*told)
        )
        self.actions: list[Action] = []
        self.passes = 0
        self._next_tick = 0.0

    @property
    def state(self) -> State:
        return self.controller.state

    # --- the world -----------------------------------------------------------------------------------------

    def pod(self, document: Mapping[str, Any]) -> None:
        metadata = document["metadata"]
        key = metadata.get("namespace", "default"), metadata["name"]
        self.kube.pods[key] = document
        self._tell(Change(intake.POD, key, cached_pod(document)))

    def no_pod(self, namespace: str, name: str, *, quietly: bool = False) -> None:
        """A pod goes; ``quietly``: the collector is not told."""
        gone = self.kube.pods.pop((namespace, name))
        del gone
        if quietly:
            self.state.pods.pop((namespace, name), None)
        else:
            self._tell(Change(intake.POD, (namespace, name)))

    def node(self, name: str, labels: Mapping[str, str] | None = None) -> None:
        document = {"metadata": {"name": name, "labels": dict(labels or {})}}
        self.kube.nodes[name] = document
        self._tell(Change(intake.KUBE_NODE, name, kube_node(document)))

    def no_node(self, name: str) -> None:
        self.kube.nodes.pop(name, None)
        self._tell(Change(intake.KUBE_NODE, name))

    def changed(self, change: Change) -> None:
        self._tell(change)

    def _tell(self, change: Change) -> None:
        if isinstance(self.store, Observed):
            self.store.pending.append(change)
        else:
            self.intake.apply(change)

    # --- the collector ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """List everything, and look for the first time."""
        if isinstance(self.store, Observed):
            self.store.pending.clear()
        for scope in WATCHED:
            if self.kubernetes and scope == Resources(NODE):
                continue
            listing = self.store.list(scope)
            for entry in listing:
                change = intake.stored(entry)
                assert change is not None
                self.intake.apply(change)
            for bad in listing.damaged:
                self.intake.apply(intake.damaged(bad))
        for name, document in self.kube.nodes.items():
            self.intake.apply(Change(intake.KUBE_NODE, name, kube_node(document)))
        for key, document in self.kube.pods.items():
            self.intake.apply(Change(intake.POD, key, cached_pod(document)))
        if self.kube.machines is not None:
            self.state.machines = self.kube.machines
        self.state.in_sync = True
        self.state.full_scan = True  # limit U23
        self._next_tick = self.clock.mono + self.controller.options.period
        self.settle()

    def settle(self) -> None:
        """Take changes in and let the collector act until nothing is left to do at this moment."""
        for _ in range(1000):
            self._take_in()
            self.controller.sync()
            self.passes += 1
            self.check()
            worked = bool(self._answers)
            while self._answers:
                self.controller.conclude(*self._answers.popleft())
                self.check()
            if not worked and not self._pending():
                return
        raise AssertionError("the collector does not come to rest")

    def run(self, seconds: float) -> None:
        """Let time pass; the collector looks whenever it is due."""
        end = self.clock.mono + seconds
        while True:
            due = min(self._next_tick, self.controller.wake_at or self._next_tick)
            if due > end:
                self.clock.advance(end - self.clock.mono)
                return
            self.clock.advance(max(0.001, due - self.clock.mono))
            if self.clock.mono >= self._next_tick:
                self.controller.tick()
                self._next_tick += self.controller.options.period
            self.settle()

    def set_options(self, options: Options) -> None:
        """Settings change while the collector runs."""
        self.controller.options = options
        self._next_tick = min(self._next_tick, self.clock.mono + options.period)

    def check(self) -> None:
        problems = broken(self.state, self.clock.mono)
        assert not problems, problems

    def _pending(self) -> bool:
        return isinstance(self.store, Observed) and bool(self.store.pending)

    def _take_in(self) -> None:
        while self._pending():
            assert isinstance(self.store, Observed)
            self.intake.apply(self.store.pending.popleft())
            self.check()

    def _submit(self, action: Action) -> None:
        self.actions.append(action)
        carry_out = self.worker.preview if self.controller.options.dry_run else self.worker.run
        self._answers.append((action, carry_out(action)))
