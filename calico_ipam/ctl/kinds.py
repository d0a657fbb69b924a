"""The kinds of resources that commands know: their names, their columns, how a cell is made (cli §8.1, §16)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from calico_ipam.model.resource import mapping

if TYPE_CHECKING:
    from calico_ipam.model.resource import Resource

Cell = Callable[["Resource"], str]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind. ``ours``: calicoctl does not know it; it can be looked at only."""

    name: str
    aliases: tuple[str, ...]
    short: tuple[str, ...]
    wide: tuple[str, ...]
    cells: Mapping[str, Cell] = field(repr=False)
    namespaced: bool = False
    ours: bool = False
    extra: tuple[str, ...] = ()  #: further headings for custom columns

    @property
    def headings(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.short, *self.wide, *self.extra)))


def _spec(*path: str, default: str = "") -> Cell:
    def cell(resource: Resource) -> str:
        value: Any = resource.spec
        for step in path:
            value = mapping(value).get(step)
        return _text(value) if value not in (None, "") else default

    return cell


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(_text(each) for each in value)
    return str(value)


def _name(resource: Resource) -> str:
    return resource.name


def _cut(cell: Cell, longest: int) -> Cell:
    def shortened(resource: Resource) -> str:
        text = cell(resource)
        return text if len(text) <= longest else text[: longest - 3] + "..."

    return shortened


def _workload(resource: Resource) -> str:
    return str(resource.spec.get("workload") or resource.spec.get("pod") or "")


def _nats(resource: Resource) -> str:
    pairs = [mapping(each) for each in resource.spec.get("ipNATs") or ()]
    return ",".join(f"{{{each.get('internalIP', '')} {each.get('externalIP', '')}}}" for each in pairs)


def asn_cell(default: str) -> Cell:
    """Return the cell of a node's AS number; a node without its own shows the cluster's in brackets."""

    def cell(resource: Resource) -> str:
        bgp = resource.spec.get("bgp")
        if not isinstance(bgp, Mapping):
            return ""
        own = bgp.get("asNumber")
        return str(own) if own else f"({default})"

    return cell


def _count(name: str) -> Cell:
    """Return the cell of something that was counted when the object was looked up."""

    def cell(resource: Resource) -> str:
        return str(mapping(resource.document.get("counts")).get(name, ""))

    return cell


_POOL_WIDE = (
    *("NAME", "CIDR", "NAT", "IPIPMODE", "VXLANMODE", "DISABLED", "DISABLEBGPEXPORT", "SELECTOR", "ASSIGNMENTMODE"),
)

KINDS: Sequence[Kind] = (
    Kind(
        "IPPool",
        ("ippool", "ippools", "ipp", "ipps", "pool", "pools"),
        ("NAME", "CIDR", "SELECTOR"),
        _POOL_WIDE,
        {
            "NAME": _name,
            "CIDR": _spec("cidr"),
            "NAT": _spec("natOutgoing", default="false"),
            "IPIPMODE": _spec("ipipMode", default="Never"),
            "VXLANMODE": _spec("vxlanMode", default="Never"),
            "DISABLED": _spec("disabled", default="false"),
            "DISABLEBGPEXPORT": _spec("disableBGPExport", default="false"),
            "SELECTOR": _spec("nodeSelector"),
            "ASSIGNMENTMODE": _spec("assignmentMode", default="<nil>"),
        },
    ),
    Kind(
        "IPReservation",
        ("ipreservation", "ipreservations", "reservation", "reservations"),
        ("NAME",),
        ("NAME", "CIDRS"),
        {"NAME": _name, "CIDRS": _cut(_spec("reservedCIDRs"), 80)},
    ),
    Kind(
        "IPAMConfiguration",
        ("ipamconfiguration", "ipamconfigurations", "ipamconfig", "ipamconfigs"),
        ("NAME", "STRICTAFFINITY", "AUTOALLOCATEBLOCKS"),
        ("NAME", "STRICTAFFINITY", "AUTOALLOCATEBLOCKS", "MAXBLOCKSPERHOST"),
        {
            "NAME": _name,
            "STRICTAFFINITY": _spec("strictAffinity", default="false"),
            "AUTOALLOCATEBLOCKS": _spec("autoAllocateBlocks", default="false"),
            "MAXBLOCKSPERHOST": _spec("maxBlocksPerHost", default="0"),
        },
    ),
    Kind(
        "Node",
        ("node", "nodes", "no", "nos"),
        ("NAME",),
        ("NAME", "ASN", "IPV4", "IPV6"),
        {
            "NAME": _name,
            "ASN": asn_cell("64512"),
            "IPV4": _spec("bgp", "ipv4Address"),
            "IPV6": _spec("bgp", "ipv6Address"),
        },
    ),
    Kind(
        "WorkloadEndpoint",
        ("workloadendpoint", "workloadendpoints", "wep", "weps"),
        ("WORKLOAD", "NODE", "NETWORKS", "INTERFACE"),
        ("NAME", "WORKLOAD", "NODE", "NETWORKS", "INTERFACE", "PROFILES", "NATS"),
        {
            "NAMESPACE": lambda resource: resource.namespace,
            "NAME": _name,
            "WORKLOAD": _workload,
            "ORCHESTRATOR": _spec("orchestrator"),
            "NODE": _spec("node"),
            "NETWORKS": _spec("ipNetworks"),
            "INTERFACE": _spec("interfaceName"),
            "PROFILES": _spec("profiles"),
            "NATS": _nats,
        },
        namespaced=True,
        extra=("NAMESPACE", "ORCHESTRATOR"),
    ),
    Kind(
        "ClusterInformation",
        ("clusterinformation", "clusterinformations", "clusterinfo", "clusterinfos"),
        ("NAME", "CLUSTERGUID", "CLUSTERTYPE", "CALICOVERSION", "DATASTOREREADY"),
        ("NAME", "CLUSTERGUID", "CLUSTERTYPE", "CALICOVERSION", "DATASTOREREADY"),
        {
            "NAME": _name,
            "CLUSTERGUID": _spec("clusterGUID"),
            "CLUSTERTYPE": _spec("clusterType"),
            "CALICOVERSION": _spec("calicoVersion"),
            "DATASTOREREADY": _spec("datastoreReady", default="<nil>"),
        },
    ),
    Kind(
        "KubeControllersConfiguration",
        (
            *("kubecontrollersconfiguration", "kubecontrollersconfigurations"),
            *("kubecontrollersconfig", "kubecontrollersconfigs"),
        ),
        ("NAME",),
        ("NAME",),
        {"NAME": _name},
    ),
    Kind(
        "IPAMBlock",
        ("ipamblock", "ipamblocks", "block", "blocks"),
        ("NAME", "CIDR", "AFFINITY", "CLAIMTIME"),
        ("NAME", "CIDR", "AFFINITY", "CLAIMTIME", "USED", "FREE", "COOLING", "BORROWED", "SEQUENCE"),
        {
            "NAME": _name,
            "CIDR": _spec("cidr"),
            "AFFINITY": _spec("affinity"),
            "CLAIMTIME": _spec("affinityClaimTime"),
            "SEQUENCE": _spec("sequenceNumber", default="0"),
            **{name: _count(name) for name in ("USED", "FREE", "COOLING", "BORROWED")},
        },
        ours=True,
    ),
    Kind(
        "BlockAffinity",
        ("blockaffinity", "blockaffinities", "affinity", "affinities"),
        ("NAME", "CIDR", "NODE", "TYPE"),
        ("NAME", "CIDR", "NODE", "TYPE", "STATE", "DELETED"),
        {
            "NAME": _name,
            "CIDR": _spec("cidr"),
            "NODE": _spec("node"),
            "TYPE": _spec("type", default="host"),
            "STATE": _spec("state"),
            "DELETED": _spec("deleted", default="false"),
        },
        ours=True,
    ),
    Kind(
        "IPAMHandle",
        ("ipamhandle", "ipamhandles", "handle", "handles"),
        ("ID", "BLOCKS", "IPS"),
        ("ID", "BLOCKS", "IPS", "AGE", "REVISION", "MATCHED"),
        {
            "ID": _spec("handleID"),
            "BLOCKS": lambda r: ",".join(mapping(r.spec.get("block"))),
            "IPS": lambda r: str(sum(int(n) for n in mapping(r.spec.get("block")).values())),
            **{name: _count(name) for name in ("AGE", "REVISION", "MATCHED")},
        },
        ours=True,
    ),
)


def find_kind(text: str, *, ours: bool) -> Kind | None:
    """Return the kind that a word names in any case; those of our own only when ``ours``."""
    wanted = text.lower()
    return next((kind for kind in KINDS if wanted in kind.aliases and (ours or not kind.ours)), None)


def by_name(name: str) -> Kind:
    return next(kind for kind in KINDS if kind.name == name)
