"""What the definition of an IPPool demands (cli §9.2): the rules of its schema, in their order and with their texts.

Real clusters have them in the API server; on other datastores the client keeps them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from calico_ipam.model.addresses import Network, overlaps, parse_network
from calico_ipam.model.pool import (
    AUTOMATIC,
    BLOCK_SIZE_RANGE,
    DEFAULT_BLOCK_SIZE,
    LOAD_BALANCER_USE,
    MANUAL,
    TUNNEL,
    WORKLOAD,
)

if TYPE_CHECKING:
    from calico_ipam.model.pool_rules import PoolRequest

Broken = tuple[str, str, str]  # the field, upstream's reason, the way out

ALLOWED_USES = (WORKLOAD, TUNNEL, LOAD_BALANCER_USE)
ASSIGNMENT_MODES = (AUTOMATIC, MANUAL)
NEVER = "Never"
ENCAPSULATION_MODES = (NEVER, "Always", "CrossSubnet")

_LINK_LOCAL = {4: "169.254.0.0/16", 6: "fe80::/10"}
_LONGEST_CIDR = 48
_LONGEST_SELECTOR = 1024
_MOST_USES = 10


def has_host_bits(request: PoolRequest, cidr: Network) -> bool:
    # Compared by value, not as text: fd5f:0::/48 names the same network as fd5f::/48.
    return parse_network(request.cidr.partition("/")[0]).network_address != cidr.network_address


def schema_rules(request: PoolRequest, cidr: Network) -> Iterator[Broken]:
    """Yield the rules of the schema that a pool breaks, in the order of the definition."""
    yield from _value_rules(request, cidr)
    rules = (*_mode_rules(request, cidr), *_use_rules(request), *_global_rules(request), *_size_rules(request, cidr))
    for reason, hint in rules:
        yield "spec", reason, hint


def _value_rules(request: PoolRequest, cidr: Network) -> Iterator[Broken]:
    """Yield what is wrong with one value alone."""
    for index, use in enumerate(request.allowed_uses):
        yield from _one_of(f"allowedUses[{index}]", use, ALLOWED_USES)
    if len(request.allowed_uses) > _MOST_USES:
        yield ("spec.allowedUses", f"must have at most {_MOST_USES} items", "Name each use once.")
    yield from _one_of("assignmentMode", request.assignment_mode, ASSIGNMENT_MODES)
    longest = BLOCK_SIZE_RANGE[6][1]
    for wrong, bound in (
        (request.block_size < 0, "greater than or equal to 0"),
        (request.block_size > longest, f"less than or equal to {longest}"),
    ):
        if wrong:
            yield ("spec.blockSize", f"spec.blockSize in body should be {bound}", "Leave it out.")
    yield from _at_most("cidr", str(cidr), _LONGEST_CIDR)
    yield from _one_of("ipipMode", request.ipip_mode, ENCAPSULATION_MODES)
    yield from _at_most("namespaceSelector", request.namespace_selector, _LONGEST_SELECTOR)
    yield from _at_most("nodeSelector", request.node_selector, _LONGEST_SELECTOR)
    yield from _one_of("vxlanMode", request.vxlan_mode, ENCAPSULATION_MODES)


def _one_of(name: str, value: str, supported: Sequence[str]) -> Iterator[Broken]:
    if value not in supported:
        names = ", ".join(f'"{each}"' for each in supported)
        yield (f"spec.{name}", f"supported values: {names}", f"{name} cannot be {value!r}.")


def _at_most(name: str, text: str, longest: int) -> Iterator[Broken]:
    if len(text) > longest:
        yield (f"spec.{name}", f"may not be more than {longest} bytes", f"Shorten {name}.")


def _mode_rules(request: PoolRequest, cidr: Network) -> Iterator[tuple[str, str]]:
    if request.ipip_mode != NEVER and request.vxlan_mode != NEVER:
        yield "ipipMode and vxlanMode cannot both be enabled", "Set one of them to Never."
    balances = LOAD_BALANCER_USE in request.uses
    if balances and request.encapsulated:
        yield "LoadBalancer IP pool cannot have IPIP or VXLAN enabled", "Set both modes to Never."
    if balances and (WORKLOAD in request.uses or TUNNEL in request.uses):
        yield (
            "LoadBalancer cannot be combined with Workload or Tunnel allowed uses",
            "Make a pool of its own for load balancers.",
        )
    if cidr.version == 6 and request.ipip_mode != NEVER:
        yield "IPIP is not supported on IPv6 pools", "Use vxlanMode, or none."


def _use_rules(request: PoolRequest) -> Iterator[tuple[str, str]]:
    balances = LOAD_BALANCER_USE in request.uses
    if balances and request.disable_bgp_export:
        yield "LoadBalancer IP pools cannot disable BGP export", "Leave BGP export on."
    if balances and (request.node_selector or "all()") != "all()":
        yield (
            "IP Pool with AllowedUse LoadBalancer must have nodeSelector set to all()",
            "Leave --node-selector out: load balancer addresses belong to no node.",
        )
    if TUNNEL in request.uses and request.namespace_selector:
        yield (
            "IP Pool with AllowedUse Tunnel cannot have namespaceSelector",
            "Add --allowed-use Workload: without it a pool also serves tunnels, and those have no namespace.",
        )


def _global_rules(request: PoolRequest) -> Iterator[tuple[str, str]]:
    for title, text in (("nodeSelector", request.node_selector), ("namespaceSelector", request.namespace_selector)):
        if "global(" in text:
            yield f"global() selector is not valid for IPPool {title}", "Leave global() out."


def _size_rules(request: PoolRequest, cidr: Network) -> Iterator[tuple[str, str]]:
    if has_host_bits(request, cidr):  # elsewhere it was refused before, in other words
        yield "IPPool CIDR must be strictly masked", ""
    link_local = parse_network(_LINK_LOCAL[cidr.version])
    if overlaps(cidr, link_local):
        yield (
            f"IPPool CIDR overlaps with IPv{cidr.version} link local range {link_local}",
            "Link-local addresses are used by the hosts themselves; choose another range.",
        )
    shortest, longest = BLOCK_SIZE_RANGE[cidr.version]
    prefix = request.block_prefix(cidr)
    possible = shortest <= prefix <= longest
    if not possible:
        yield (
            "blockSize must be between 20 and 32 for IPv4 pools, and between 116 and 128 for IPv6 pools",
            f"/{prefix} is no block size for IPv{cidr.version}; "
            f"leave --block-size out to get /{DEFAULT_BLOCK_SIZE[cidr.version]}.",
        )
    if not request.disabled and cidr.prefixlen > prefix:
        yield (
            "IP pool size is too small for use with Calico IPAM. It must be equal to or greater than the block size.",
            f"One block of /{prefix} does not fit into {cidr}: "
            f"use --block-size {max(cidr.prefixlen, shortest)} or a wider CIDR."
            if possible
            else "",
        )
