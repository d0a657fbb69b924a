"""What the collector knows, kept up to date by events (gc §4). Only the loop changes it; others get copies.

Every map is maintained by the one method that belongs to it, so that :func:`calico_gc.invariants.broken` holds after
every event in whatever order events come. Limits U3, U4, U12, U13, U19 and U20 of gc §17 live here.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from calico_gc.decide import UNREADABLE, Unreadable, Workloads
from calico_gc.facts import Allocation, AllocationKey, KubeNode, Pod, PodKey, Tracked, VirtualMachines, track
from calico_gc.facts import kubernetes_name as kubernetes_name_of
from calico_gc.pools import PoolIndex
from calico_gc.suspicion import Suspicion
from calico_ipam.model.addresses import Network
from calico_ipam.model.block import Block
from calico_ipam.model.resource import Resource

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Nobody:
    """Knows of no workload whether it lives."""

    machines: VirtualMachines | None = None

    def pod(self, key: PodKey) -> Unreadable:
        del key
        return UNREADABLE

    def container_gone(self, allocation: Allocation) -> bool:
        del allocation
        return False


NOBODY = Nobody()


@dataclass(slots=True)
class State:
    """The internal maps. ``windows_empty``: a block that holds nothing but Windows' reservations is empty (U14)."""

    windows_empty: bool = False

    blocks: dict[str, Tracked] = field(default_factory=dict)
    by_node: dict[str, dict[AllocationKey, Allocation]] = field(default_factory=dict)
    by_handle: dict[str, tuple[AllocationKey, ...]] = field(default_factory=dict)
    suspects: dict[AllocationKey, Suspicion] = field(default_factory=dict)
    confirmed: dict[AllocationKey, None] = field(default_factory=dict)  #: in the order they were confirmed
    owners: dict[str, str] = field(default_factory=dict)  #: block -> host
    owned: dict[str, set[str]] = field(default_factory=dict)  #: host -> blocks
    empty: dict[str, str] = field(default_factory=dict)  #: block that nobody uses -> host
    empty_since: dict[str, float] = field(default_factory=dict)  #: block -> monotonic time of the first look
    cold: dict[str, int] = field(default_factory=dict)  #: block -> earliest release, Unix nanoseconds
    damaged: dict[str, str] = field(default_factory=dict)  #: path of an object that cannot be read -> why

    nodes: dict[str, str] = field(default_factory=dict)  #: Calico node -> Kubernetes node, or empty
    calico_names: dict[str, set[str]] = field(default_factory=dict)  #: Kubernetes node -> Calico nodes
    kube_nodes: dict[str, KubeNode] = field(default_factory=dict)
    pods: dict[PodKey, Pod] = field(default_factory=dict)
    machines: VirtualMachines | None = None  #: None while KubeVirt is not there
    kubernetes: bool = True  #: somebody tells about pods and nodes
    runtime: Workloads = NOBODY  #: containers of this host, where Kubernetes does not tell
    pools: PoolIndex = field(default_factory=PoolIndex)
    reservations: dict[str, Resource] = field(default_factory=dict)

    ready: bool = True  #: the datastore is not locked
    cluster_guid: str = ""
    cluster_type: str = ""
    cluster_revision: str = ""
    in_sync: bool = False  #: every watched kind has been listed
    full_scan: bool = False
    dirty: dict[str, None] = field(default_factory=dict)  #: Calico nodes to look at, oldest first

    # --- blocks --------------------------------------------------------------------------------------------

    def put_block(self, block: Block, revision: str) -> None:
        """Take over a block as it is stored now."""
        cidr = str(block.cidr)
        before = self.blocks.get(cidr)
        after = track(block, revision, before)
        known: Mapping[int, Allocation] = before.allocations if before is not None else {}
        for ordinal, allocation in before.nameless.items() if before is not None else ():
            if after.nameless.get(ordinal) is not allocation:
                self.suspect(allocation.key, None)
        kept: dict[AllocationKey, Suspicion] = {}  # only remarks changed: the time already waited still counts (U3)
        for ordinal, allocation in known.items():
            new = after.allocations.get(ordinal)
            if new is allocation:
                continue
            suspicion = self.suspects.get(allocation.key)
            self._remove(allocation)
            if new is not None and suspicion is not None and allocation.same_holder(new):
                kept[new.key] = suspicion
        for ordinal, allocation in after.allocations.items():
            if known.get(ordinal) is not allocation:
                self._add(allocation)
        for key, suspicion in kept.items():
            self.suspect(key, suspicion)
        self._own(cidr, after.host)
        self._judge_emptiness(after)
        if after.cold_since is None:
            self.cold.pop(cidr, None)
        else:
            self.cold[cidr] = after.cold_since
        self.pools.put_block(cidr, block.cidr)
        self.blocks[cidr] = after

    def drop_block(self, network: Network | str) -> None:
        """Forget a block that is gone."""
        cidr = str(network)
        before = self.blocks.pop(cidr, None)
        if before is None:
            return
        for allocation in before.allocations.values():
            self._remove(allocation)
        for allocation in before.nameless.values():
            self.suspect(allocation.key, None)
        self._own(cidr, "")
        self._not_empty(cidr)
        self.cold.pop(cidr, None)
        self.pools.drop_block(cidr)

    def forget(self, allocation: Allocation) -> None:
        """Take out an allocation that was released, before its block's new state arrives."""
        before = self.blocks.get(allocation.block)
        ordinal = allocation.key[1]
        if before is None or before.allocation(ordinal) is not allocation:
            return
        if ordinal in before.allocations:
            self._remove(allocation)
        self.suspect(allocation.key, None)
        rest, nameless = (
            {o: a for o, a in held.items() if o != ordinal} for held in (before.allocations, before.nameless)
        )
        self.blocks[before.cidr] = replace(before, allocations=rest, nameless=nameless)

    def allocation(self, key: AllocationKey) -> Allocation | None:
        tracked = self.blocks.get(key[0])
        return tracked.allocation(key[1]) if tracked is not None else None

    def _add(self, allocation: Allocation) -> None:
        handle = allocation.clean_handle
        self.by_handle[handle] = (*self.by_handle.get(handle, ()), allocation.key)
        if allocation.node:
            self.by_node.setdefault(allocation.node, {})[allocation.key] = allocation
            self.mark_dirty(allocation.node)

    def _remove(self, allocation: Allocation) -> None:
        handle = allocation.clean_handle
        rest = tuple(key for key in self.by_handle.get(handle, ()) if key != allocation.key)
        if rest:
            self.by_handle[handle] = rest
        else:
            self.by_handle.pop(handle, None)
        self.suspects.pop(allocation.key, None)
        self.confirmed.pop(allocation.key, None)
        node = allocation.node
        if node:
            mine = self.by_node.get(node, {})
            mine.pop(allocation.key, None)
            if not mine:
                self.by_node.pop(node, None)
            self.mark_dirty(node)

    def _own(self, cidr: str, host: str) -> None:
        before = self.owners.get(cidr, "")
        if before == host:
            return
        if before:
            self.owned[before].discard(cidr)
            if not self.owned[before]:
                del self.owned[before]
            del self.owners[cidr]
            self.mark_dirty(before)
        if host:
            self.owners[cidr] = host
            self.owned.setdefault(host, set()).add(cidr)

    def _judge_emptiness(self, tracked: Tracked) -> None:
        vacant = tracked.used == 0 or (self.windows_empty and tracked.block.empty)
        if not tracked.host or not vacant:
            self._not_empty(tracked.cidr)
            return
        if self.empty.get(tracked.cidr) != tracked.host:
            self.empty_since.pop(tracked.cidr, None)
        self.empty[tracked.cidr] = tracked.host

    def _not_empty(self, cidr: str) -> None:
        self.empty.pop(cidr, None)
        self.empty_since.pop(cidr, None)

    # --- suspicion -----------------------------------------------------------------------------------------

    def suspect(self, key: AllocationKey, suspicion: Suspicion | None) -> None:
        """Note what the last look at an allocation gave; None: it is alive."""
        if suspicion is None:
            self.suspects.pop(key, None)
            self.confirmed.pop(key, None)
            return
        self.suspects[key] = suspicion
        if suspicion.confirmed:
            self.confirmed.setdefault(key)
        else:
            self.confirmed.pop(key, None)

    def all_confirmed(self, handle: str) -> bool:
        """Tell whether everything a handle holds is confirmed as leaked; an unknown handle is not (limit U20)."""
        keys = self.by_handle.get(handle, ())
        return bool(keys) and all(key in self.confirmed for key in keys)

    def forget_suspicions(self) -> None:
        """Begin anew, as after leadership was lost: every timer starts again."""
        self.suspects.clear()
        self.confirmed.clear()
        self.empty_since.clear()

    # --- nodes, pods ---------------------------------------------------------------------------------------

    def mark_dirty(self, node: str) -> None:
        if node:
            self.dirty.setdefault(node)

    def put_node(self, node: Resource) -> None:
        self.link_node(node.name, kubernetes_name_of(node) or "")

    def drop_node(self, name: str) -> None:
        if name in self.nodes:
            self._unlink(name)
            del self.nodes[name]

    def link_node(self, name: str, kube: str) -> None:
        """Take note of a Calico node and of the Kubernetes node it stands for, if any."""
        if self.nodes.get(name) == kube:
            return
        self._unlink(name)
        self.nodes[name] = kube
        if kube:
            self.calico_names.setdefault(kube, set()).add(name)

    def _unlink(self, name: str) -> None:
        kube = self.nodes.get(name, "")
        if kube:
            self.calico_names[kube].discard(name)
            if not self.calico_names[kube]:
                del self.calico_names[kube]

    def put_kube_node(self, node: KubeNode) -> None:
        self.kube_nodes[node.name] = node

    def drop_kube_node(self, name: str) -> None:
        """A Kubernetes node went: everything is looked at once (gc §3)."""
        self.kube_nodes.pop(name, None)
        self.full_scan = True

    def pod(self, key: PodKey) -> Pod | Unreadable | None:
        """Return a pod as the watch has it; None: there is none. Without Kubernetes nobody knows."""
        return self.pods.get(key) if self.kubernetes else UNREADABLE

    def container_gone(self, allocation: Allocation) -> bool:
        return self.runtime.container_gone(allocation)

    def put_pod(self, pod: Pod) -> None:
        self.pods[pod.key] = pod

    def drop_pod(self, key: PodKey, node: str = "") -> None:
        """A pod went: its node is looked at, under the name that Calico has for it (limit U6)."""
        gone = self.pods.pop(key, None)
        kube = node or (gone.node if gone is not None else "")
        for name in self.calico_names.get(kube, {kube}):
            self.mark_dirty(name)

    # --- the rest ------------------------------------------------------------------------------------------

    def put_cluster_information(self, resource: Resource, revision: str) -> None:
        spec = resource.spec
        ready = spec.get("datastoreReady")
        if isinstance(ready, bool):
            self.ready = ready
        self.cluster_guid = str(spec.get("clusterGUID") or "")
        self.cluster_type = str(spec.get("clusterType") or "")
        self.cluster_revision = revision

    def drop_cluster_information(self) -> None:
        self.ready = False

    def nodes_of_interest(self) -> Iterator[str]:
        """Yield every node that a full scan looks at: those that own a block and those that hold an address."""
        yield from dict.fromkeys((*self.owned, *self.by_node))
