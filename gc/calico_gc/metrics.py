"""The metrics page: upstream's series word for word, then ours (gc §14, §18.4, ruling 19).

Ours are made anew from a view at each scrape, so a series ends with the object it is about. Only what cannot be
counted from a view, how long passes take, is kept here.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from calico_gc import handles, suspicion
from calico_gc.upstream_metrics import render
from calico_gc.view import View

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client import Histogram
    from prometheus_client.core import Metric

#: kinds of actions that may fail
PARKABLE = ("look", "release", "thaw", "give-back", "node", "delete-node", "labels", "handles")
PHASES = ("sync", "release", "handles")
BUCKETS = (0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 600.0)


class Metrics:
    """Makes the page. ``view``: the newest view, None before any; ``leading``: whether this instance acts.

    An instance that only stands by shows nothing but that it does, so that sums over instances stay right.
    """

    def __init__(self, view: Callable[[], View | None], *, legacy: bool = True) -> None:
        from prometheus_client import CollectorRegistry, Histogram

        self._view = view
        self._legacy = legacy
        self._current: View | None = None
        self._registry = CollectorRegistry()
        self.durations: Histogram = Histogram(
            "ipam_gc_sync_duration_seconds",
            "Seconds that a pass, a release or a look at all handles took.",
            ["phase"],
            buckets=BUCKETS,
            registry=self._registry,
        )
        for phase in PHASES:
            self.durations.labels(phase)
        self._registry.register(self)

    def collect(self) -> Iterator[Metric]:
        view = self._current
        if view is not None:
            yield from own(view)

    def timed(self, phase: str, seconds: float) -> None:
        """Note how long something took; from any thread."""
        self.durations.labels(phase).observe(seconds)

    def page(self) -> str:
        """Return the text of the page."""
        from prometheus_client import generate_latest

        view = self._view()
        if view is None:
            return ""
        if not view.leader:
            return "".join(standby(view))
        self._current = view
        return render(view, legacy=self._legacy) + generate_latest(self._registry).decode()


def standby(view: View) -> Iterator[str]:
    yield "# HELP ipam_gc_leader Whether this instance acts.\n# TYPE ipam_gc_leader gauge\n"
    yield f"ipam_gc_leader {int(view.leader)}.0\n"


def own(view: View) -> Iterator[Metric]:
    """Yield our own metrics of a view."""
    yield from _gauges(view)
    yield from _counters(view)
    yield from _labelled(view)


def _gauges(view: View) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    plain = (
        ("ipam_gc_last_success_timestamp_seconds", "Unix time of the last complete pass.", view.last_success / 1e9),
        ("ipam_gc_dirty_nodes", "Nodes that wait to be looked at.", view.dirty),
        ("ipam_gc_empty_blocks", "Blocks that a host owns and nobody uses.", len(view.empty)),
        ("ipam_gc_cold_blocks", "Blocks with addresses in cooldown.", len(view.cold)),
        ("ipam_gc_nameless_addresses", "Addresses without a handle or a node.", view.nameless),
        ("ipam_gc_leaving_nodes", "Nodes that are gone and whose blocks are being released.", len(view.leaving)),
        ("ipam_gc_damaged_objects", "Objects that cannot be read and are left alone.", len(view.damaged)),
        ("ipam_gc_queue_depth", "Changes that wait to be taken in.", view.queue),
        ("ipam_gc_in_sync", "Whether everything that is followed has been listed.", view.in_sync),
        ("ipam_gc_datastore_ready", "Whether the datastore is open.", view.ready),
        ("ipam_gc_leader", "Whether this instance acts.", view.leader),
        ("ipam_gc_dry_run", "Whether nothing is written.", view.options.dry_run),
        ("ipam_gc_leak_grace_seconds", "Grace period of leaks; -1: absent.", _grace(view)),
    )
    for name, text, value in plain:
        yield GaugeMetricFamily(name, text, float(value))


def _grace(view: View) -> float:
    return -1.0 if view.options.rules.leak_grace is None else view.options.rules.leak_grace


def _counters(view: View) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily

    counts = view.counts
    yield CounterMetricFamily("ipam_gc_blocks_released", "Empty blocks that were released.", counts.blocks_released)
    for name, text, label, values, always in (
        ("ipam_gc_syncs", "Passes by result.", "result", counts.syncs, ("ok", "error", "skipped")),
        ("ipam_gc_leaks_detected", "New suspicions by reason.", "reason", counts.detected, suspicion.REASONS),
        (
            *("ipam_gc_release_errors", "Addresses and groups that were not released, by cause.", "kind"),
            *(counts.release_errors, ("conflict", "sequence", "handle", "other")),
        ),
        ("ipam_gc_nodes_released", "Nodes whose blocks were released, by result.", "result", counts.nodes_released, ()),
        ("ipam_gc_unreadable_objects", "Objects that could not be read, by kind.", "kind", counts.unreadable, ()),
        ("ipam_gc_parked_items", "What failed ten times in a row, by kind.", "kind", counts.parked, PARKABLE),
    ):
        family = CounterMetricFamily(name, text, labels=[label])
        for value in dict.fromkeys((*always, *values)):
            family.add_metric([value], values.get(value, 0))
        yield family
    repairs = CounterMetricFamily("ipam_gc_handle_actions", "Repairs of handles.", labels=["class", "result"])
    for (kind, result), number in sorted(counts.handle_actions.items()):
        repairs.add_metric([kind, result], number)
    yield repairs


def _labelled(view: View) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily

    leaks = GaugeMetricFamily("ipam_gc_confirmed_leaks", "Confirmed leaks by what becomes of them.", labels=["state"])
    leaks.add_metric(["pending"], view.confirmed - len(view.held))
    leaks.add_metric(["held"], len(view.held))
    yield leaks
    classes = GaugeMetricFamily("ipam_gc_handles", "Handles by class, as of the last look.", labels=["class"])
    for kind in handles.CLASSES:
        classes.add_metric([kind], view.handles.numbers.get(kind, 0) if view.handles is not None else 0)
    yield classes
    findings = GaugeMetricFamily("ipam_gc_findings", "What is left alone and should be looked at.", labels=["kind"])
    numbers: dict[str, int] = {}
    for finding in view.findings:
        numbers[finding.kind] = numbers.get(finding.kind, 0) + 1
    for name, number in sorted(numbers.items()):
        findings.add_metric([name], number)
    yield findings
    build = InfoMetricFamily("ipam_gc_build", "The program.")
    build.add_metric([], {"version": own_version()})
    yield build


def own_version() -> str:
    try:
        return version("calico-ipam")
    except PackageNotFoundError:
        return "unknown"
