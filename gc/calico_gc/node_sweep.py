"""One sweep of a node: ask who lives, look what is there, remember, report, and remove what may be (gc §18.5).

Reports by default. A leftover is acted on only if its kind was named with ``--apply``, it was seen twice at least ten
minutes apart without having changed, and a last look the moment before still finds nobody behind it.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from calico_gc import report
from calico_gc.sweep import living as sources
from calico_gc.sweep import residue as kinds
from calico_gc.sweep import traces
from calico_gc.sweep.act import Kept, remove
from calico_gc.sweep.judge import Slices, judge
from calico_gc.sweep.living import Asking, Living, NoAnswer, held_addresses
from calico_gc.sweep.residue import REMOVABLE, Seen, document_of, loaded, observe
from calico_gc.sweep.traces import Places, Traces
from calico_gc.timing import Clock
from calico_ipam.datastore.api import Datastore
from calico_ipam.datastore.kube.api import KubeApi
from calico_ipam.errors import InvalidInput, IPAMError
from calico_ipam.model.addresses import parse_address
from calico_ipam.model.timestamps import SECOND, format_time

log = logging.getLogger(__name__)

SCHEMA = "calico-ipam-node-sweep/v1"
T = TypeVar("T")


class Busy(Exception):
    """Another sweep is at work on this node."""


@dataclass(frozen=True, slots=True)
class Options:
    """``node``: Calico's name of this node, ``kube_node`` Kubernetes' (empty: the same).

    ``runtime``: command that lists sandboxes as ``crictl pods -o json`` does; empty: there is no runtime to ask.
    """

    node: str
    kube_node: str = ""
    apply: frozenset[str] = frozenset()
    runtime: str = ""
    prefixes: str = "cali"
    places: Places = field(default_factory=Places)
    state: Path = Path("/var/run/calico/ipam-gc-sweep.json")
    lock: Path = Path("/var/run/calico/ipam-gc.lock")

    def __post_init__(self) -> None:
        for kind in sorted(self.apply):
            if kind in REMOVABLE:
                continue
            known = kind in kinds.KINDS
            raise InvalidInput(
                f"leftovers of kind {kind!r} " + ("are only reported" if known else "are not known"),
                subject=kind,
                hint=f"--apply takes {', '.join(REMOVABLE)}.",
            )


@dataclass(frozen=True, slots=True)
class Line:
    """One leftover of a report. ``action``: watch, report, would-remove, removed or kept."""

    seen: Seen
    action: str
    result: str = ""


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep found. ``skipped``: why nothing was looked at. ``unjudged``: kind -> why."""

    node: str
    wall: int
    boot_seconds: float
    skipped: str = ""
    lines: tuple[Line, ...] = ()
    unjudged: Mapping[str, str] = field(default_factory=dict)

    @property
    def confirmed(self) -> dict[str, int]:
        """Kind -> leftovers that were seen twice and are still there."""
        found = dict.fromkeys(kinds.KINDS, 0)
        for line in self.lines:
            if line.seen.confirmed and line.action != "removed":
                found[line.seen.residue.kind] += 1
        return found

    def document(self) -> dict[str, Any]:
        """Return the report, ready for JSON."""
        return {
            "schema": SCHEMA,
            "node": self.node,
            "generated": format_time(self.wall),
            "skipped": self.skipped,
            "notJudged": dict(sorted(self.unjudged.items())),
            "confirmed": self.confirmed,
            "residue": [
                {
                    "kind": line.seen.residue.kind,
                    "name": line.seen.residue.name,
                    "detail": line.seen.residue.detail,
                    "firstSeen": format_time(self.wall - round((self.boot_seconds - line.seen.first) * SECOND)),
                    "looks": line.seen.looks,
                    "action": line.action,
                    "result": line.result,
                }
                for line in self.lines
            ],
        }

    def metrics(self) -> str:
        """Return the text for Prometheus, for instance for the node exporter's folder of text files."""
        lines = [
            "# HELP ipam_gc_node_residue Leftovers of pods on a node, seen twice, by kind.",
            "# TYPE ipam_gc_node_residue gauge",
            *(f'ipam_gc_node_residue{{kind="{kind}"}} {number}' for kind, number in self.confirmed.items()),
            "# HELP ipam_gc_node_sweep_timestamp_seconds Unix time of the last sweep.",
            "# TYPE ipam_gc_node_sweep_timestamp_seconds gauge",
            f"ipam_gc_node_sweep_timestamp_seconds {self.wall / SECOND:.3f}",
        ]
        return "\n".join(lines) + "\n"


class NodeSweep:
    """Sweeps one node. ``api`` and ``store`` are None where there is no Kubernetes, or no datastore, to ask.

    ``boot``: which start of the node this is, and how many seconds ago it was; wall clocks jump, this does not.
    """

    def __init__(
        self,
        options: Options,
        clock: Clock,
        boot: Callable[[], tuple[str, float]],
        *,
        api: KubeApi | None = None,
        store: Datastore | None = None,
    ) -> None:
        self._options = options
        self._clock = clock
        self._boot = boot
        self._api = api
        self._store = store

    def run(self) -> Swept:
        """Sweep once. Raises Busy, and OSError when the memory cannot be kept."""
        with self._alone():
            boot, now = self._boot()
            skipped = self._not_settled()
            if skipped:
                return Swept(self._options.node, self._clock.now(), now, skipped)
            asking = Asking()
            known, slices = self._living(asking)
            found = self._traces()
            judged = judge(known, found, slices)
            memory = observe(loaded(self._remembered(), boot), judged.found, judged.kinds, now)
            report.write(self._options.state, document_of(memory, boot))
            lines = [self._acted(seen, found, now) for seen in memory.values()]
            return Swept(self._options.node, self._clock.now(), now, "", tuple(lines), judged.why)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the sweep's own lock; never the plugins', whose file is only looked at."""
        path = self._options.lock
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Busy(f"another sweep holds {path}") from None
            yield
        finally:
            os.close(handle)

    def _remembered(self) -> str:
        try:
            return self._options.state.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    def _not_settled(self) -> str:
        if self._api is None:
            return ""
        try:
            return sources.ask_settled(self._api, self._kube_node, self._clock.now())
        except IPAMError as error:
            return f"node {self._kube_node} cannot be read: {error}"

    @property
    def _kube_node(self) -> str:
        return self._options.kube_node or self._options.node

    def _living(self, asking: Asking) -> tuple[Living, Slices]:
        options, api, store = self._options, self._api, self._store
        # The runtime first: a sandbox that is made meanwhile is then missing from its list, but its pod is in the next.
        sandboxes = (
            asking.ask(sources.SANDBOXES, lambda: sources.ask_runtime(options.runtime)) if options.runtime else {}
        )
        results = asking.ask(sources.RESULTS, lambda: sources.ask_results(options.places.results))
        blocks, interfaces = None, None
        if store is not None:
            blocks = asking.ask(sources.BLOCKS, lambda: sources.ask_blocks(store))
            interfaces = asking.ask(sources.ENDPOINTS, lambda: sources.ask_endpoints(store, options.node))
        slices, pods = None, None
        if api is not None:
            slices = asking.ask(kinds.SLICE, lambda: list(sources.ask_slices(api, self._kube_node)))
            pods = asking.ask(sources.PODS, lambda: sources.ask_pods(api, self._kube_node))
        known = Living(
            *(options.node, pods or {}, interfaces or frozenset(), sandboxes or {}, results or (), blocks or ()),
            configured=frozenset(asking.configured),
            unknown=asking.unknown,
            prefixes=options.prefixes,
        )
        return known, slices or ()

    def _traces(self) -> Traces:
        places = self._options.places
        unknown: dict[str, str] = {}

        def look(kind: str, question: Callable[[], T]) -> T | None:
            try:
                return question()
            except NoAnswer as error:
                unknown[kind] = str(error)
                return None

        links = look(kinds.VETH, lambda: traces.links(self._options.prefixes))
        if kinds.VETH in unknown:
            unknown[kinds.ROUTE] = unknown[kinds.CONNTRACK] = unknown[kinds.VETH]
        return Traces(
            links=links or (),
            namespaces=look(kinds.NETNS, lambda: traces.namespaces(places.netns)) or {},
            inhabited=look("inhabited", traces.inhabited) or frozenset(),
            holders=look(kinds.LOCK, lambda: traces.holders(places.lock, places.proc)) or (),
            connections=(look(kinds.CONNTRACK, traces.connections) if self._store is not None else None) or {},
            volumes=look(kinds.VOLUME, lambda: traces.volumes(places.volumes)) or {},
            felix=traces.felix_runs(places.proc),
            unknown=unknown,
        )

    def _acted(self, seen: Seen, found: Traces, now: float) -> Line:
        """Return what becomes of one leftover, removing it where that was asked for and is due."""
        residue = seen.residue
        if not seen.confirmed:
            return Line(seen, "watch")
        if residue.kind not in self._options.apply:
            return Line(seen, "report", "--apply takes this kind" if residue.kind in REMOVABLE else "")
        if seen.last != now:
            return Line(seen, "kept", "it could not be looked for this time")
        try:
            result = remove(residue, felix=found.felix, held=self._held)
        except Kept as kept:
            log.warning("%s %s was kept: %s", residue.kind, residue.name, kept)
            return Line(seen, "kept", str(kept))
        log.info("%s %s: %s", residue.kind, residue.name, result)
        return Line(seen, "removed", result)

    def _held(self, address: str) -> bool:
        """Tell whether somebody holds an address by now; who cannot be asked may."""
        if self._store is None:
            return True
        try:
            return parse_address(address) in held_addresses(sources.ask_blocks(self._store))
        except (IPAMError, NoAnswer):
            return True


def text_of(swept: Swept) -> Iterable[str]:
    """Yield the lines of a report for people."""
    if swept.skipped:
        yield f"nothing was looked at: {swept.skipped}"
        return
    for kind, why in sorted(swept.unjudged.items()):
        yield f"{kind}: not judged: {why}"
    for line in swept.lines:
        residue = line.seen.residue
        result = f" ({line.result})" if line.result else ""
        yield f"{residue.kind}: {residue.name}: {residue.detail}: {line.action}{result}"
    if not swept.lines:
        yield "nothing is left over"
