"""Addresses for which no handle, or no node, is noted (limit U26): told always, released only when asked for. Pure.

Nothing but their pod tells whether they are in use, so only those that name a pod can ever be released: after two looks
a grace period apart, a live look, and with the sequence number they had. Whatever is not a pod's plainly is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from calico_gc.decide import Rules, Workloads, verdict
from calico_gc.facts import Allocation, AllocationKey, Tracked
from calico_gc.suspicion import Moment, Suspicion, leaked
from calico_ipam.model.owner import TYPE

SERVICE = "service"  #: attribute of an address that a load balancer's controller collects (gc §5)


def nameless_in(tracked: Tracked) -> Iterator[Allocation]:
    """Yield what a block holds without a handle, then what it holds without a node."""
    yield from tracked.nameless.values()
    if "" in tracked.tally:
        yield from (allocation for allocation in tracked.allocations.values() if not allocation.node)


def collectable(tracked: Tracked, allocation: Allocation) -> bool:
    """Tell whether its pod alone can prove that an allocation leaked.

    Left alone: reservations of Windows, cooling addresses, those of tunnels, Services and virtual machines, all that
    lies in a block that is damaged or belongs to a virtual owner, such as the load balancer's.
    """
    attribute = tracked.block.attribute(allocation.key[1])
    return (
        allocation.of_pod
        and not allocation.of_vm
        and not allocation.windows_reserved
        and not allocation.attrs.get(TYPE)
        and not allocation.attrs.get(SERVICE)
        and ".vmi." not in allocation.handle
        and attribute is not None
        and not attribute.cold
        and not attribute.alternate
        and not tracked.block.problems
        and (tracked.block.affinity is None or bool(tracked.host))
    )


def look_at_nameless(
    tracked: Tracked,
    nodes: Mapping[str, str],
    workloads: Workloads,
    known: Mapping[AllocationKey, Suspicion],
    rules: Rules,
    now: Moment,
) -> dict[AllocationKey, Suspicion | None]:
    """Judge what a block holds without a handle or a node; None: alive. ``nodes``: Calico node -> Kubernetes node.

    That the node is gone confirms nothing at once here: each has its whole grace period, and none without one.
    """
    found: dict[AllocationKey, Suspicion | None] = {}
    for allocation in nameless_in(tracked):
        knode = nodes.get(allocation.node)
        foreign = knode == ""  # a node of another orchestrator
        suspicion = None
        if rules.nameless and rules.leak_grace and not foreign and collectable(tracked, allocation):
            judged = verdict(allocation, knode or "", workloads, rules)
            if not judged.alive:
                before = known.get(allocation.key)
                suspicion = leaked(before, judged.reason, rules.leak_grace, now, knode or "")
        found[allocation.key] = suspicion
    return found
