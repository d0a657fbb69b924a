"""Routes and addresses of one pair, and who may own the host's route to an address (cni.md §8 steps 10-14, §15.4).

A route is added, never replaced. One that exists on our own link is fine: another program got there first. One on a
link that nobody lives behind is a leftover, and that link is removed. Any other means that somebody has the address.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address, IPv4Network, IPv6Network

from .api import AddressInUse, DataplaneError, LinkRequest, Peer, RouteTarget
from .netlink import NetlinkRefused
from .netns import Namespace
from .peers import Behind, look_behind
from .rtnl import SCOPE_LINK, SCOPE_UNIVERSE, Address, Link, Route, Rtnl

logger = logging.getLogger(__name__)

#: the gateway of every pod, answered for by the host end
GATEWAY = IPv4Address("169.254.1.1")
#: leftovers that one address may need removed before its route can be added
STALE_LINKS = 8


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Turn the kernel's refusal of something into a sentence that says what was refused."""
    try:
        yield
    except NetlinkRefused as refused:
        raise DataplaneError(f"failed to {what}: {refused}") from None


def network(address: Address) -> RouteTarget:
    """Return the /32 or /128 of an address."""
    kind = IPv4Network if address.version == 4 else IPv6Network
    return kind((int(address), address.max_prefixlen))


def add_pod_routes_ipv4(rtnl: Rtnl, index: int, request: LinkRequest) -> None:
    """Add the link route to the gateway, then each IPv4 container route through it. Raises DataplaneError."""
    with doing("add route inside the container"):
        rtnl.add_route(network(GATEWAY), index, scope=SCOPE_LINK)
    _add_routes_via(rtnl, index, request, GATEWAY)


def add_pod_routes_ipv6(rtnl: Rtnl, index: int, request: LinkRequest, gateway: Address) -> None:
    """Add each IPv6 container route through the host end's link-local address. Raises DataplaneError."""
    _add_routes_via(rtnl, index, request, gateway)


def _add_routes_via(rtnl: Rtnl, index: int, request: LinkRequest, gateway: Address) -> None:
    for target in request.routes:
        if target.version != gateway.version:
            continue
        with doing(f"add IPv{target.version} route for {target} via {gateway}"):
            rtnl.add_route(target, index, scope=SCOPE_UNIVERSE, gateway=gateway)


def add_pod_addresses(rtnl: Rtnl, index: int, request: LinkRequest) -> None:
    """Put the addresses on the container end, in order. Raises DataplaneError."""
    for interface in request.addresses:
        with doing(f"add address {interface.ip} to {request.container_name} in the sandbox"):
            rtnl.add_address(index, interface.ip)


def add_host_routes(rtnl: Rtnl, host_end: Link, request: LinkRequest, sandbox: Namespace) -> None:
    """Add the host's route to each address. Raises AddressInUse, DataplaneError."""
    for interface in request.addresses:
        _add_host_route(rtnl, host_end, interface.ip, request, sandbox)


def _add_host_route(rtnl: Rtnl, host_end: Link, address: Address, request: LinkRequest, sandbox: Namespace) -> None:
    for _ in range(STALE_LINKS + 1):
        try:
            rtnl.add_route(network(address), host_end.index, scope=SCOPE_LINK)
        except NetlinkRefused as refused:
            if refused.code != errno.EEXIST:
                route = f"(Ifindex: {host_end.index}, Dst: {network(address)}, Scope: link, Iface: {host_end.name})"
                raise DataplaneError(f"{_failed(host_end)}failed to add route {route}: {refused}") from None
        else:
            return
        # The short list first: Felix often programs the same route a moment before us.
        if any(_is_to(route, address) for route in rtnl.routes_of(host_end.index, address.version)):
            return
        _make_way(rtnl, host_end, address, request, sandbox)
    raise DataplaneError(f"the route to {address} was taken again by another link {STALE_LINKS} times")


def _failed(host_end: Link) -> str:
    return f"error adding host side routes for interface: {host_end.name}, error: "


def _is_to(route: Route, address: Address) -> bool:
    return route.destination == address and route.prefix_length == address.max_prefixlen


def _make_way(rtnl: Rtnl, host_end: Link, address: Address, request: LinkRequest, sandbox: Namespace) -> None:
    """Remove the links that hold the route to ``address`` and that nobody lives behind, or raise AddressInUse."""
    for route in rtnl.routes_to(address):
        holder = rtnl.link_at(route.oif) if route.oif is not None else None
        if holder is None:
            if route.oif is None:
                raise _in_use(route, None, host_end, address, Behind(Peer.UNKNOWN))
            continue  # the link went away since, and its route with it
        if holder.index == host_end.index:
            continue
        behind = look_behind(rtnl, holder, sandbox)
        if not holder.name.startswith(request.host_prefix) or behind.peer not in (Peer.EMPTY, Peer.HOST):
            raise _in_use(route, holder, host_end, address, behind)
        logger.warning(
            "removing stale link %s, which still has the route to %s: nobody lives behind it", holder.name, address
        )
        with doing(f"remove stale link {holder.name}, which still has the route to {address}"):
            rtnl.delete_link(holder.index)


def _in_use(route: Route, holder: Link | None, host_end: Link, address: Address, behind: Behind) -> AddressInUse:
    wanted = f"Ifindex: {host_end.index}, Dst: {network(address)}, Scope: link"
    name = holder.name if holder is not None else "none"
    found = f"Ifindex: {route.oif or 0}, Dst: {network(address)}, Scope: {_scope(route.scope)}, Iface: {name}"
    whose = "It was not made by this plugin"
    if behind.resident is not None:
        whose = f"Process {behind.resident.pid} ({behind.resident.command}) lives behind {name}"
    elif behind.peer is Peer.OURS:
        whose = f"{name} leads into this very sandbox"
    return AddressInUse(
        f"{_failed(host_end)}route ({wanted}) already exists for an interface other than '{host_end.name}': "
        f"route ({found})",
        address=str(address),
        device=host_end.name,
        holder=name,
        hint=f"{whose}: release the address properly, or remove that route by hand once it is known to be dead.",
    )


def _scope(scope: int) -> str:
    return {0: "universe", 253: "link", 254: "host"}.get(scope, str(scope))
