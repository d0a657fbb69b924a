"""What the controller can be told, as one immutable value; where it comes from is :mod:`calico_gc.settings`."""

from __future__ import annotations

from dataclasses import dataclass, field

from calico_gc.decide import Rules

#: seconds between full scans while there is no grace period (gc §3)
DEFAULT_PERIOD = 300.0


@dataclass(frozen=True, slots=True)
class HandleOptions:
    """Handle repair (gc §18.1). ``grace`` None: off, since the leak grace is 0 or absent and nothing else was said."""

    collect: str = "on"  #: off, report or on: orphans and unfinished deletions
    repair: str = "on"  #: off, report or on: wrong counts and missing handles
    grace: float | None = 900.0
    observations: int = 2
    rate: float = 20.0  #: writes per second
    batch: int = 1000
    keep: tuple[str, ...] = ()  #: prefixes of handles that are never touched


@dataclass(frozen=True, slots=True)
class Options:
    """Times are seconds."""

    rules: Rules = field(default_factory=Rules)
    handles: HandleOptions = field(default_factory=HandleOptions)
    dry_run: bool = False
    most_releases: int = 10_000
    repair_rowless: bool = False  #: opt-in of limit U27
    node_deletion: bool = False  #: delete Calico nodes whose Kubernetes node is gone (gc §13)
    label_sync: bool = False  #: copy Kubernetes labels to Calico nodes (gc §13)

    @property
    def period(self) -> float:
        grace = self.rules.leak_grace
        return grace / 2 if grace else DEFAULT_PERIOD

    def handle_period(self) -> float | None:
        """Return the time between two looks at all handles; None: they are not looked at."""
        chosen = self.handles
        if chosen.grace is None or (chosen.collect == "off" and chosen.repair == "off"):
            return None
        return chosen.grace / 2
