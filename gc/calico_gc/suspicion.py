"""From alive to candidate to confirmed: what is believed of one allocation (gc §5). Values only.

::

    alive     --leak(g)-->                         candidate   since = now; g may be 0
    candidate --leak(g), now - since > g, g > 0--> confirmed   a second look, strictly later than the grace period
    any       --node gone-->                       confirmed   still read again before anything is released
    any       --alive-->                           (none)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

POD_NOT_FOUND = "pod-not-found"
POD_MOVED = "pod-moved"
POD_FINISHED = "pod-finished"
IP_MISMATCH = "ip-mismatch"
VM_GONE = "vm-gone"
NODE_GONE = "node-gone"
TUNNEL_NODE_GONE = "tunnel-node-gone"
CONTAINER_GONE = "container-gone"  #: of a host without Kubernetes (ruling 7)
REASONS = (
    *(POD_NOT_FOUND, POD_MOVED, POD_FINISHED, IP_MISMATCH, VM_GONE, NODE_GONE, TUNNEL_NODE_GONE, CONTAINER_GONE),
)


@dataclass(frozen=True, slots=True)
class Moment:
    """One instant on both clocks: ``mono`` (seconds) measures, ``wall`` (Unix nanoseconds) is for people."""

    mono: float
    wall: int


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Why an allocation looks leaked, and since when."""

    reason: str
    first: Moment
    last: Moment
    since: float | None  #: monotonic start of the grace period; None: confirmed without one, as its node was gone
    grace: float  #: seconds that count for it
    confirmed: bool
    observations: int = 1
    knode: str = ""  #: Kubernetes node it was judged by; empty: the node is gone

    @property
    def candidate(self) -> bool:
        return not self.confirmed

    def due(self) -> float | None:
        """Return the monotonic time after which another look confirms; None when none ever will, or it is done."""
        return None if self.confirmed or self.since is None or self.grace <= 0 else self.since + self.grace


def leaked(before: Suspicion | None, reason: str, grace: float, now: Moment, knode: str) -> Suspicion:
    """Return what a further look that found no holder makes of it.

    What was confirmed because the node was gone begins again when the node is back: its second life has not had its
    grace period yet (public report P31). A grace period that was made longer, or switched off, counts for what was
    confirmed already and not released yet.
    """
    if before is None or before.since is None:
        return Suspicion(reason, now, now, now.mono, grace, confirmed=False, knode=knode)
    old_enough = grace > 0 and now.mono - before.since > grace
    return replace(
        before,
        reason=reason,
        last=now,
        grace=grace,
        confirmed=old_enough,
        observations=before.observations + 1,
        knode=knode,
    )


def proven(before: Suspicion | None, reason: str, now: Moment, knode: str) -> Suspicion:
    """Return the suspicion of an address whose node and pod are both gone: confirmed at once."""
    if before is None:
        return Suspicion(reason, now, now, None, 0.0, confirmed=True, knode=knode)
    seen = before.observations + 1
    return replace(before, reason=reason, last=now, since=None, confirmed=True, observations=seen, knode=knode)
