"""What the collector knows of the world: allocations, pods, nodes, virtual machines (gc §2, §5).

All values are immutable, so that workers, the page and the metrics may look at them while the loop goes on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from sys import intern
from typing import Any

from calico_ipam.errors import InvalidInput
from calico_ipam.model.addresses import Address, parse_address
from calico_ipam.model.block import Block, ReleaseOption
from calico_ipam.model.handle import WINDOWS_RESERVED, sanitise_handle
from calico_ipam.model.handle_names import TUNNEL_HANDLES
from calico_ipam.model.owner import NAMESPACE, NODE, POD, TYPE, VMI_NAME
from calico_ipam.model.resource import Resource, mapping

#: (CIDR of the block, ordinal): what an allocation is known by; two overlapping blocks cannot be confused
AllocationKey = tuple[str, int]
PodKey = tuple[str, str]  #: (namespace, name)

FLANNEL_MIGRATION = "projectcalico.org/node-network-during-migration"
POD_IP = "cni.projectcalico.org/podIP"
AWS_IPS = "vpc.amazonaws.com/pod-ips"
NETWORKS = "k8s.v1.cni.cncf.io/networks"
NETWORK_STATUS = ("k8s.v1.cni.cncf.io/network-status", "k8s.v1.cni.cncf.io/networks-status")
FINISHED = frozenset({"Failed", "Succeeded", "Completed"})


@dataclass(frozen=True, slots=True)
class Allocation:
    """One ordinal that a handle holds, with the owner and the sequence number it had when it was seen."""

    key: AllocationKey
    address: Address
    handle: str  #: as stored, a carriage return and what follows included
    attrs: Mapping[str, str]
    sequence: int

    @property
    def id(self) -> str:
        """``<handle>/<address>``, for logs and reports."""
        return f"{self.handle}/{self.address}"

    @property
    def block(self) -> str:
        return self.key[0]

    @property
    def clean_handle(self) -> str:
        """The handle as it is stored under its own name; addresses that share it go together or not at all."""
        return sanitise_handle(self.handle)

    @property
    def unit(self) -> str:
        """What is released together or not at all: a handle, or an address that has none by itself."""
        return self.clean_handle or f"\r{self.block} {self.key[1]}"  # no handle has a carriage return in it

    @property
    def node(self) -> str:
        return self.attrs.get(NODE, "")

    @property
    def pod(self) -> PodKey:
        return self.attrs.get(NAMESPACE, ""), self.attrs.get(POD, "")

    @property
    def of_pod(self) -> bool:
        return bool(self.attrs.get(POD) and self.attrs.get(NAMESPACE))

    @property
    def of_vm(self) -> bool:
        return VMI_NAME in self.attrs

    @property
    def of_tunnel(self) -> bool:
        """Judged by the attribute, never by how the handle begins."""
        return self.attrs.get(TYPE, "") in TUNNEL_HANDLES

    @property
    def windows_reserved(self) -> bool:
        return self.handle.lower() == WINDOWS_RESERVED

    def same_holder(self, other: Allocation) -> bool:
        """Tell whether only remarks differ: handle, number and owner are the same."""
        return (self.handle, self.sequence, self.node, self.pod, self.attrs.get(VMI_NAME)) == (
            *(other.handle, other.sequence, other.node, other.pod, other.attrs.get(VMI_NAME)),
        )

    def option(self) -> ReleaseOption:
        """Return what releases exactly this allocation and nothing that took its place."""
        return ReleaseOption(self.address, self.handle, self.sequence)


@dataclass(frozen=True, slots=True)
class Pod:
    """What a pod says of its addresses. ``reason`` and ``deleting`` are known from live reads only (gc §1.4)."""

    namespace: str
    name: str
    uid: str = ""
    node: str = ""
    phase: str = ""
    ip: str = ""
    ips: tuple[str, ...] = ()
    secondary: tuple[str, ...] | None = None  #: addresses on further networks; None: asked for, not reported yet
    reason: str = ""
    deleting: bool = False
    cleared: bool = False  #: the plugin has written that it took the address away

    @property
    def key(self) -> PodKey:
        return self.namespace, self.name

    @property
    def reports(self) -> bool:
        """It says which addresses it has."""
        return bool(self.ip and self.ips)

    @property
    def finished(self) -> bool:
        return self.phase in FINISHED or (self.deleting and self.cleared)

    @property
    def obscure(self) -> bool:
        """It makes no endpoint: it has no node, or reports text that is no address. So nobody can tell (gc §7.8)."""
        return not self.node or not all(map(_is_address, self.ips))

    def has(self, address: Address) -> bool:
        """Tell whether the pod reports ``address``. Text that is no address may mean any of them (gc §7.9)."""
        return str(address) in self.ips or any(_same(text, address) for text in self.ips)

    def has_secondary(self, address: Address) -> bool:
        """Tell whether ``address`` is, or may be, one on a further network (limit U17)."""
        return self.secondary is None or any(_same(text, address) for text in self.secondary)


def _is_address(text: str) -> bool:
    try:
        parse_address(text)
    except InvalidInput:
        return False
    return True


def _same(text: str, address: Address) -> bool:
    try:
        return parse_address(text) == address
    except InvalidInput:
        return True


def cached_pod(document: Mapping[str, Any]) -> Pod:
    """Return a pod of the watch, reduced to what decides."""
    metadata, spec, status = (mapping(document.get(part)) for part in ("metadata", "spec", "status"))
    annotations = mapping(metadata.get("annotations"))
    several = status.get("podIPs")
    return Pod(
        namespace=intern(str(metadata.get("namespace") or "")),
        name=str(metadata.get("name") or ""),
        uid=str(metadata.get("uid") or ""),
        node=intern(str(spec.get("nodeName") or "")),
        phase=intern(str(status.get("phase") or "")),
        ip=str(status.get("podIP") or ""),
        ips=tuple(str(mapping(item).get("ip") or "") for item in several) if isinstance(several, list) else (),
        secondary=_secondary(annotations),
    )


def live_pod(document: Mapping[str, Any]) -> Pod:
    """Return a pod that was read a moment ago; it also knows why a pod failed and whether it is going."""
    seen = cached_pod(document)
    metadata, status = mapping(document.get("metadata")), mapping(document.get("status"))
    annotations = mapping(metadata.get("annotations"))
    return Pod(
        *(seen.namespace, seen.name, seen.uid, seen.node, seen.phase, seen.ip, seen.ips, seen.secondary),
        reason=str(status.get("reason") or ""),
        deleting=bool(metadata.get("deletionTimestamp")),
        cleared=any(annotations.get(name) == "" for name in (POD_IP, AWS_IPS)),
    )


def _secondary(annotations: Mapping[str, Any]) -> tuple[str, ...] | None:
    texts = [annotations[name] for name in NETWORK_STATUS if annotations.get(name)]
    if not texts:
        return None if annotations.get(NETWORKS) else ()
    found: list[str] = []
    for text in texts:
        try:
            networks = json.loads(text)
        except (TypeError, ValueError, RecursionError):
            return None  # what cannot be read may name any address
        if not isinstance(networks, list):
            return None
        for network in networks:
            ips = mapping(network).get("ips") or []
            if not isinstance(network, dict) or not isinstance(ips, list):
                return None
            found += [str(ip) for ip in ips]
    return tuple(found)


@dataclass(frozen=True, slots=True)
class KubeNode:
    """A Kubernetes node."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def migrating(self) -> bool:
        """Flannel still has its network: nothing of it is touched (gc §10)."""
        return self.labels.get(FLANNEL_MIGRATION, "calico") != "calico"


def kube_node(document: Mapping[str, Any]) -> KubeNode:
    metadata = mapping(document.get("metadata"))
    labels = {intern(str(k)): intern(str(v)) for k, v in mapping(metadata.get("labels")).items()}
    return KubeNode(intern(str(metadata.get("name") or "")), labels)


def kubernetes_name(node: Resource) -> str | None:
    """Return the Kubernetes name of a Calico node: empty when its reference names none, None without a reference.

    A name that is no text is damaged: it must not read as that of a node which does not exist.
    """
    references = node.spec.get("orchRefs")
    for reference in references if isinstance(references, list) else ():
        if mapping(reference).get("orchestrator") == "k8s":
            name = mapping(reference).get("nodeName")
            return intern(name) if isinstance(name, str) else ""
    return None


@dataclass(frozen=True, slots=True)
class VirtualMachines:
    """KubeVirt's machines and running instances by (namespace, name).

    ``instances`` tells of each whether a VirtualMachine owns it.
    """

    machines: frozenset[PodKey] = frozenset()
    instances: Mapping[PodKey, bool] = field(default_factory=dict)

    def alive(self, key: PodKey) -> bool:
        return key in self.machines or self.instances.get(key) is False


def owned_by_machine(document: Mapping[str, Any]) -> bool:
    """Tell whether a VirtualMachineInstance belongs to a VirtualMachine."""
    references = mapping(document.get("metadata")).get("ownerReferences")
    return any(
        mapping(reference).get("kind") == "VirtualMachine"
        for reference in (references if isinstance(references, list) else ())
    )


@dataclass(frozen=True)
class Tracked:
    """A block as it was last seen, and what the collector reads out of it."""

    cidr: str
    block: Block
    revision: str
    allocations: Mapping[int, Allocation]
    used: int  #: ordinals that are not free: cooling and reserved ones too
    cold_since: int | None  #: earliest release of a cooling address, Unix nanoseconds
    nameless: Mapping[int, Allocation] = field(default_factory=dict)  #: in use without a handle (limit U26)

    def allocation(self, ordinal: int) -> Allocation | None:
        """Return what holds an ordinal, with a handle or without; None when it is free."""
        return self.allocations.get(ordinal) or self.nameless.get(ordinal)

    @property
    def host(self) -> str:
        """The host the block belongs to; empty when it is nobody's or a virtual owner's."""
        owner = self.block.owner
        return owner.host if owner is not None and owner.kind == "host" else ""

    @cached_property
    def tally(self) -> Mapping[str, int]:
        """Node of the holder -> number of allocations; empty text stands for an unknown node."""
        counts: dict[str, int] = {}
        for allocation in self.allocations.values():
            counts[allocation.node] = counts.get(allocation.node, 0) + 1
        return counts


def track(block: Block, revision: str, before: Tracked | None = None) -> Tracked:
    """Return a block with the allocations in it; those that did not change are the ones that were known before."""
    cidr = before.cidr if before is not None else str(block.cidr)
    allocations: dict[int, Allocation] = {}
    nameless: dict[int, Allocation] = {}
    cold: int | None = None
    used = 0
    for ordinal, attribute in block.taken():
        used += 1
        released = attribute.released_at
        if released is not None and (cold is None or released < cold):
            cold = released
        handle = attribute.handle or ""
        if not handle and released is not None:
            continue
        sequence = block.sequence_of(ordinal)
        found = before.allocation(ordinal) if before is not None else None
        if found is None or (found.handle, found.sequence, found.attrs) != (handle, sequence, attribute.active):
            found = Allocation((cidr, ordinal), block.address(ordinal), handle, attribute.active, sequence)
        (allocations if handle else nameless)[ordinal] = found
    return Tracked(cidr, block, revision, allocations, used, cold, nameless)


def by_key(allocations: Iterable[Allocation]) -> dict[AllocationKey, Allocation]:
    return {allocation.key: allocation for allocation in allocations}
