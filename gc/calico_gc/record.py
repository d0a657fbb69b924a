"""What happened: counters, the log of recent actions, and remarks for people."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from calico_gc.suspicion import Moment

MOST_ACTIONS = 500


@dataclass(frozen=True, slots=True)
class Happened:
    """One line of the log of actions. ``wall``: Unix nanoseconds. ``result``: ``ok``, ``dry-run`` or an error."""

    wall: int
    kind: str
    subject: str
    detail: str = ""
    result: str = "ok"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is left alone and that a person should know."""

    kind: str
    subject: str
    detail: str
    first: Moment
    last: Moment


@dataclass(slots=True)
class Record:
    """Counters since the start, recent actions and open findings. Changed by the loop only."""

    reclaimed: dict[tuple[str, str], int] = field(default_factory=dict)  #: (pool, node) -> addresses
    detected: Counter[str] = field(default_factory=Counter)  #: reason -> new suspicions
    release_errors: Counter[str] = field(default_factory=Counter)  #: conflict, sequence, handle, other
    handle_actions: Counter[tuple[str, str]] = field(default_factory=Counter)  #: (class, result)
    syncs: Counter[str] = field(default_factory=Counter)  #: ok, error, skipped
    blocks_released: int = 0
    nodes_released: Counter[str] = field(default_factory=Counter)
    unreadable: Counter[str] = field(default_factory=Counter)  #: kind of object -> how many could not be read
    parked: Counter[str] = field(default_factory=Counter)  #: kind of action -> how often one failed too often
    last_success: int = 0  #: Unix nanoseconds; 0: none yet
    actions: deque[Happened] = field(default_factory=lambda: deque(maxlen=MOST_ACTIONS))
    findings: dict[tuple[str, str], Finding] = field(default_factory=dict)

    def reclaim(self, pool: str, node: str) -> None:
        key = (pool, node)
        self.reclaimed[key] = self.reclaimed.get(key, 0) + 1

    def forget_node(self, node: str) -> None:
        """A node's blocks were given back: its series end."""
        for key in [k for k in self.reclaimed if k[1] == node]:
            del self.reclaimed[key]

    def forget_pool(self, pool: str) -> None:
        for key in [k for k in self.reclaimed if k[0] == pool]:
            del self.reclaimed[key]

    def happened(self, now: Moment, kind: str, subject: str, detail: str = "", result: str = "ok") -> None:
        self.actions.append(Happened(now.wall, kind, subject, detail, result))

    def found(self, now: Moment, kind: str, subject: str, detail: str) -> bool:
        """Note a finding; True when it is new."""
        before = self.findings.get((kind, subject))
        self.findings[kind, subject] = Finding(kind, subject, detail, before.first if before else now, now)
        return before is None

    def settle(self, kinds: tuple[str, ...], since: float) -> None:
        """Close the findings of some kinds that a full look which began at ``since`` did not meet again."""
        for key in [k for k, f in self.findings.items() if f.kind in kinds and f.last.mono < since]:
            del self.findings[key]
