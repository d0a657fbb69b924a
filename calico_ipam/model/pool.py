"""Pools: which exist, which may be used, which a request gets (ipam-library §6)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from calico_ipam.errors import InvalidInput, IPAMError, NoQualifiedPool
from calico_ipam.model.addresses import WIDTH, Address, Network, contains, network_of, parse_network
from calico_ipam.model.resource import Resource, mapping

if TYPE_CHECKING:
    from calico_ipam.model.block import HostReserved

WORKLOAD = "Workload"
TUNNEL = "Tunnel"
LOAD_BALANCER_USE = "LoadBalancer"
AUTOMATIC = "Automatic"
MANUAL = "Manual"

DEFAULT_BLOCK_SIZE = {4: 26, 6: 122}
#: shortest and longest block prefix that may be configured
BLOCK_SIZE_RANGE = {4: (20, 32), 6: (116, 128)}
#: what is used although it could not be configured today: blocks of up to 2^16 addresses
LARGEST_BLOCK_BITS = 16
EVERYTHING = "all()"


def _selects(selector: str, labels: Mapping[str, str]) -> bool:
    if selector == EVERYTHING:
        return True  # nearly every pool's; the language is not even imported for it
    from calico_ipam.model.selector import parse_selector

    return parse_selector(selector).matches(labels)


@dataclass(frozen=True, slots=True)
class Pool:
    """One usable reading of an IPPool document, defaults applied (datastore §3.7)."""

    name: str
    cidr: Network
    cidr_text: str  #: as written in the document; messages quote it
    block_size: int  #: prefix length of its blocks
    disabled: bool = False
    deleting: bool = False
    not_allocatable: str = ""  #: reason of a condition Allocatable=False
    node_selector: str = EVERYTHING
    namespace_selector: str = ""
    allowed_uses: tuple[str, ...] = (WORKLOAD, TUNNEL)
    assignment_mode: str = AUTOMATIC
    document: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def from_resource(cls, resource: Resource) -> Pool:
        """Return the pool that a document describes.

        Raises InvalidInput when its CIDR does not parse, or its block size is none of an address of the family, or
        would make blocks of more than 2^16 addresses, which no store takes and no memory should hold.
        """
        spec = resource.spec
        text = str(spec.get("cidr") or "")
        cidr = parse_network(text)
        size = spec.get("blockSize") or DEFAULT_BLOCK_SIZE[cidr.version]
        width = WIDTH[cidr.version]
        if not isinstance(size, int) or isinstance(size, bool) or not width - LARGEST_BLOCK_BITS <= size <= width:
            low, high = BLOCK_SIZE_RANGE[cidr.version]
            raise InvalidInput(
                f"block size {size!r} of pool {resource.name} is no prefix length of an IPv{cidr.version} block",
                subject=resource.name,
                hint=f"It must lie between {low} and {high}.",
            )
        uses = spec.get("allowedUses")
        refused = ""
        conditions = mapping(resource.document.get("status")).get("conditions")
        for condition in conditions if isinstance(conditions, list) else ():
            if mapping(condition).get("type") == "Allocatable" and mapping(condition).get("status") == "False":
                refused = str(condition.get("reason") or "Allocatable is False")
        return cls(
            name=resource.name,
            cidr=cidr,
            cidr_text=text,
            block_size=size,
            disabled=spec.get("disabled") is True,
            deleting=bool(resource.metadata.get("deletionTimestamp")),
            not_allocatable=refused,
            node_selector=str(spec.get("nodeSelector") or EVERYTHING),
            namespace_selector=str(spec.get("namespaceSelector") or ""),
            allowed_uses=tuple(str(u) for u in uses) if isinstance(uses, list) and uses else (WORKLOAD, TUNNEL),
            assignment_mode=str(spec.get("assignmentMode") or AUTOMATIC),
            document=resource.document,
        )

    @property
    def enabled(self) -> bool:
        """May new addresses come from it?"""
        return not (self.disabled or self.deleting or self.not_allocatable)

    @property
    def unusable_reason(self) -> str:
        """Why it is not enabled, for people; empty when it is."""
        if self.deleting:
            return "is being deleted"
        if self.disabled:
            return "is disabled"
        return f"is not allocatable ({self.not_allocatable})" if self.not_allocatable else ""

    def block_of(self, address: Address) -> Network:
        """Return the CIDR of the block that holds ``address``."""
        return network_of(address, self.block_size)

    def selects_node(self, labels: Mapping[str, str]) -> bool:
        """Raises InvalidInput when the node selector does not parse."""
        return _selects(self.node_selector, labels)

    def selects_namespace(self, labels: Mapping[str, str]) -> bool:
        """An empty selector takes any namespace. Raises InvalidInput when the selector does not parse."""
        return not self.namespace_selector or _selects(self.namespace_selector, labels)


def parse_pools(resources: Iterable[Resource]) -> tuple[list[Pool], list[tuple[str, str]]]:
    """Return the pools in name order, and (name, reason) of documents that could not be read."""
    pools: list[Pool] = []
    bad: list[tuple[str, str]] = []
    for resource in sorted(resources, key=lambda r: r.name):
        try:
            pools.append(Pool.from_resource(resource))
        except IPAMError as error:
            bad.append((resource.name, str(error)))
    return pools, bad


def enabled_pools(pools: Iterable[Pool], version: int) -> list[Pool]:
    """Return the pools of a family that new addresses may come from, in name order."""
    return [p for p in pools if p.enabled and p.cidr.version == version]


def pool_for(pools: Iterable[Pool], address: Address) -> Pool | None:
    """Return the first pool that holds an address; whether disabled ones count is the caller's choice of ``pools``."""
    host = network_of(address, WIDTH[address.version])
    return next((p for p in pools if contains(p.cidr, host)), None)


def max_prefix_length(version: int, reserved: HostReserved | None) -> int:
    """Return the longest block prefix that leaves room beside host-reserved ordinals (§18.1)."""
    if reserved is None:
        return WIDTH[version]
    total = reserved.start + reserved.end
    if total <= 0:
        raise InvalidInput("HostReservedAttr has wrong parameters")
    return WIDTH[version] - total.bit_length()


@dataclass(frozen=True, slots=True)
class PoolChoice:
    """Which pools a request may use, and all enabled ones of the family."""

    matching: tuple[Pool, ...]
    enabled: tuple[Pool, ...]
    warnings: tuple[str, ...] = ()


def choose_pools(
    pools: Sequence[Pool],
    *,
    version: int,
    requested: Sequence[Network],
    node_labels: Mapping[str, str],
    namespace_labels: Mapping[str, str],
    max_prefix: int,
) -> PoolChoice:
    """Return the pools for a request (§6.3): the requested ones as they are, else those whose selectors match.

    Raises NoQualifiedPool without any enabled pool, InvalidInput for a requested one that is not there, and for a
    selector that does not parse when no other pool matches (limit L26).
    """
    enabled = enabled_pools(pools, version)
    by_cidr = {pool.cidr: pool for pool in enabled if pool.block_size <= max_prefix}
    if not by_cidr:
        raise NoQualifiedPool(hint=_why_none(pools, version))
    if requested:
        chosen = []
        for cidr in requested:
            if cidr not in by_cidr:
                raise InvalidInput(
                    f"the given pool ({cidr}) does not exist, or is not enabled",
                    subject=str(cidr),
                    hint=_why_not(pools, cidr),
                )
            chosen.append(by_cidr[cidr])
        return PoolChoice(tuple(chosen), tuple(enabled))
    matching = []
    broken: list[tuple[Pool, InvalidInput]] = []
    for pool in enabled:
        if pool.assignment_mode != AUTOMATIC:
            continue
        try:
            if pool.selects_node(node_labels) and pool.selects_namespace(namespace_labels):
                matching.append(pool)
        except InvalidInput as error:
            broken.append((pool, error))
    if broken and not matching:
        raise broken[0][1]
    warnings = tuple(f"pool {pool.name} is left out, its selector does not parse: {error}" for pool, error in broken)
    return PoolChoice(tuple(matching), tuple(enabled), warnings)


def _why_none(pools: Sequence[Pool], version: int) -> str:
    same = [p for p in pools if p.cidr.version == version]
    if not same:
        return f"There is no IPv{version} pool: create one with 'ipamctl pool create'."
    return "; ".join(f"pool {p.name} {p.unusable_reason}" for p in same if not p.enabled) or (
        f"Every IPv{version} pool has blocks too small for the reserved addresses."
    )


def _why_not(pools: Sequence[Pool], cidr: Network) -> str:
    for pool in pools:
        if pool.cidr == cidr:
            return (
                f"Pool {pool.name} {pool.unusable_reason}."
                if not pool.enabled
                else (f"Pool {pool.name} has blocks too small for the reserved addresses.")
            )
    return "No pool has this CIDR; 'ipamctl pool list' shows the pools."
