"""One look at everything the collector knows, as an immutable value: what page, metrics and report are made of.

The loop makes it between two steps; whoever shows it may take any time. Maps are shallow copies of maps of immutable
values, so a view costs milliseconds for thousands of blocks and says the same for ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from calico_gc.facts import Allocation, AllocationKey, Tracked
from calico_gc.handles import HandleLook
from calico_gc.options import Options
from calico_gc.pools import KnownPool, reserved_by
from calico_gc.record import Finding, Happened
from calico_gc.suspicion import Moment, Suspicion
from calico_gc.timing import moment
from calico_ipam.model.reservation import Reservations

if TYPE_CHECKING:
    from calico_gc.controller import Controller

UNKNOWN_NODE = "unknown_node"
NO_AFFINITY = "no_affinity"


@dataclass(frozen=True, slots=True)
class Counts:
    """Counters since the start of the process."""

    reclaimed: Mapping[tuple[str, str], int] = field(default_factory=dict)  #: (pool, node)
    detected: Mapping[str, int] = field(default_factory=dict)  #: reason
    release_errors: Mapping[str, int] = field(default_factory=dict)  #: conflict, sequence, handle, other
    handle_actions: Mapping[tuple[str, str], int] = field(default_factory=dict)  #: (class, result)
    syncs: Mapping[str, int] = field(default_factory=dict)  #: ok, error, skipped
    nodes_released: Mapping[str, int] = field(default_factory=dict)  #: ok, error
    unreadable: Mapping[str, int] = field(default_factory=dict)  #: kind of key
    parked: Mapping[str, int] = field(default_factory=dict)  #: kind of action
    blocks_released: int = 0


@dataclass(frozen=True, slots=True)
class View:
    """``measured``: the collector has seen everything at least once while the datastore was open."""

    at: Moment
    options: Options
    blocks: Mapping[str, Tracked] = field(default_factory=dict)
    pool_of: Mapping[str, str] = field(default_factory=dict)  #: block -> name of its pool, or ``no_ippool``
    pools: Mapping[str, KnownPool] = field(default_factory=dict)
    reservations: Reservations = field(default_factory=Reservations)
    nodes: Mapping[str, str] = field(default_factory=dict)  #: Calico node -> Kubernetes node, or empty
    kube_nodes: frozenset[str] = frozenset()
    suspects: Mapping[AllocationKey, Suspicion] = field(default_factory=dict)
    held: frozenset[AllocationKey] = frozenset()  #: confirmed, but their handle has an address that is in use
    planned: frozenset[tuple[str, str]] = frozenset()  #: what a dry run would do: (kind, block or node)
    busy: frozenset[tuple[str, str]] = frozenset()  #: what workers do at this moment
    failing: Mapping[tuple[str, str], int] = field(default_factory=dict)  #: (kind, subject) -> failures in a row
    empty: Mapping[str, str] = field(default_factory=dict)  #: empty block -> host
    empty_since: Mapping[str, float] = field(default_factory=dict)  #: monotonic seconds
    cold: Mapping[str, int] = field(default_factory=dict)  #: block -> earliest release, Unix nanoseconds
    leaving: frozenset[str] = frozenset()  #: nodes that are gone and use nothing
    dirty: int = 0
    damaged: Mapping[str, str] = field(default_factory=dict)  #: object that cannot be read -> why
    findings: tuple[Finding, ...] = ()
    actions: tuple[Happened, ...] = ()  #: oldest first
    handles: HandleLook | None = None  #: the last look at all handles; None: none yet
    counts: Counts = field(default_factory=Counts)
    measured: bool = False
    ready: bool = True
    in_sync: bool = False
    leader: bool = True
    queue: int = 0
    last_success: int = 0  #: Unix nanoseconds; 0: none yet
    cluster_guid: str = ""
    cluster_type: str = ""
    cluster_revision: str = ""

    def allocation(self, key: AllocationKey) -> Allocation | None:
        tracked = self.blocks.get(key[0])
        return tracked.allocation(key[1]) if tracked is not None else None

    @property
    def nameless(self) -> int:
        """How many addresses have no handle, or lie in a host's block and name no node (limit U26)."""
        return sum(len(t.nameless) + (t.tally.get("", 0) if t.host else 0) for t in self.blocks.values())

    @property
    def candidates(self) -> int:
        return sum(suspicion.candidate for suspicion in self.suspects.values())

    @property
    def confirmed(self) -> int:
        return sum(suspicion.confirmed for suspicion in self.suspects.values())


def view_of(controller: Controller, *, queue: int = 0) -> View:
    """Return a view of a controller; called by the thread that owns it."""
    state, record = controller.state, controller.record
    return View(
        at=moment(controller.clock),
        options=controller.options,
        blocks=dict(state.blocks),
        pool_of=dict(state.pools.of_block),
        pools=dict(state.pools.pools),
        reservations=reserved_by(state.reservations),
        nodes=dict(state.nodes),
        kube_nodes=frozenset(state.kube_nodes),
        suspects=dict(state.suspects),
        held=frozenset(controller.held),
        planned=frozenset(controller.planned),
        busy=frozenset(controller.busy),
        failing=controller.backoff.failures(),
        empty=dict(state.empty),
        empty_since=dict(state.empty_since),
        cold=dict(state.cold),
        leaving=frozenset(controller.leaving),
        dirty=len(state.dirty),
        damaged=dict(state.damaged),
        findings=tuple(record.findings.values()),
        actions=tuple(record.actions),
        handles=controller.handles.last,
        counts=Counts(
            dict(record.reclaimed),
            dict(record.detected),
            dict(record.release_errors),
            dict(record.handle_actions),
            dict(record.syncs),
            dict(record.nodes_released),
            dict(record.unreadable),
            dict(record.parked),
            record.blocks_released,
        ),
        measured=record.last_success > 0,
        ready=state.ready,
        in_sync=state.in_sync,
        leader=controller.active,
        queue=queue,
        last_success=record.last_success,
        cluster_guid=state.cluster_guid,
        cluster_type=state.cluster_type,
        cluster_revision=state.cluster_revision,
    )


@dataclass(frozen=True, slots=True)
class Usage:
    """Allocations and blocks by (pool, node), as upstream counts them (gc §14)."""

    in_use: Mapping[tuple[str, str], int]
    borrowed: Mapping[tuple[str, str], int]
    candidates: Mapping[tuple[str, str], int]
    blocks: Mapping[tuple[str, str], int]


def usage(view: View) -> Usage:
    in_use: Counter[tuple[str, str]] = Counter()
    borrowed: Counter[tuple[str, str]] = Counter()
    blocks: Counter[tuple[str, str]] = Counter()
    for cidr, tracked in view.blocks.items():
        pool, host = view.pool_of[cidr], tracked.host
        blocks[pool, host or NO_AFFINITY] += 1
        for node, number in tracked.tally.items():
            in_use[pool, node or UNKNOWN_NODE] += number
            if node and node != host:
                borrowed[pool, node] += number
    candidates: Counter[tuple[str, str]] = Counter()
    for key in view.suspects:
        allocation = view.allocation(key)
        if allocation is not None:
            candidates[view.pool_of[key[0]], allocation.node or UNKNOWN_NODE] += 1
    return Usage(in_use, borrowed, candidates, blocks)
