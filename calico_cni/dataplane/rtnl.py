"""Links, addresses and routes as values, and the few things done to them.

Links are looked up by name or index, addresses and routes by link: never the whole table where it can be avoided
(svinota/pyroute2#1206: lists are interrupted on busy nodes).
"""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Self

from .api import RouteTarget
from .netlink import NLM_F_CREATE, NLM_F_EXCL, Netlink, NetlinkRefused

# linux/rtnetlink.h
RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK = 16, 17, 18
RTM_NEWADDR, RTM_GETADDR = 20, 22
RTM_NEWROUTE, RTM_DELROUTE, RTM_GETROUTE = 24, 25, 26
RTM_GETNSID = 90
RT_TABLE_MAIN = 254
RTPROT_BOOT = 3
RTN_UNICAST = 1
SCOPE_UNIVERSE = 0
SCOPE_LINK = 253
SCOPE_NOWHERE = 255
IFF_UP = 0x1
RTEXT_FILTER_SKIP_STATS = 1 << 3
IFA_F_TENTATIVE = 0x40
NAMESPACE_NOT_NUMBERED = 0xFFFFFFFF

Address = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class Link:
    """A network device as the kernel describes it.

    ``peer_index``: index of the other end of a pair, in its own namespace; ``peer_namespace``: that namespace's number
    as seen from here, None if it is this one, negative if it is going away. ``mac``: lower case, empty if it has none.
    """

    index: int
    name: str
    kind: str
    mac: str
    mtu: int
    up: bool
    peer_index: int = 0
    peer_namespace: int | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """A route of the main table; ``oif`` None: it leaves by no single device (blackhole, multipath)."""

    destination: Address
    prefix_length: int
    scope: int
    oif: int | None
    gateway: Address | None = None


@dataclass(frozen=True, slots=True)
class AssignedAddress:
    """An address of a link; ``tentative``: the kernel does not use it yet."""

    ip: Address
    prefix_length: int
    tentative: bool


def family_of(version: int) -> int:
    """Return the address family of IP version 4 or 6."""
    return socket.AF_INET if version == 4 else socket.AF_INET6


class Rtnl(Netlink):
    """The routing socket of one namespace."""

    @classmethod
    def open(cls) -> Self:
        """Open a socket in the namespace that the calling thread is in. Raises DataplaneError, OSError."""
        from .messages import FORMATS  # 40 ms, for calls that wire something

        return cls(FORMATS)

    # --- links ------------------------------------------------------------------------------------------

    def link(self, name: str) -> Link | None:
        """Return the link of exactly that name (the kernel would find it by an alternative name, too), or None."""
        found = self._get_link([("IFLA_IFNAME", name)])
        return found if found is not None and found.name == name else None

    def link_at(self, index: int) -> Link | None:
        """Return the link of that index, or None."""
        return self._get_link([], index=index)

    def link_elsewhere(self, namespace_number: int, index: int) -> Link | None:
        """Return the link of that index in another namespace, without going there; None if it cannot be read."""
        try:
            return self._get_link([("IFLA_IF_NETNSID", namespace_number)], index=index)
        except NetlinkRefused:
            return None

    def _get_link(self, attributes: list[tuple[str, Any]], index: int = 0) -> Link | None:
        message = self.formats.link()
        message["index"] = index
        message["attrs"] = [*attributes, ("IFLA_EXT_MASK", RTEXT_FILTER_SKIP_STATS)]
        try:
            return _link(self.ask(message, RTM_GETLINK))
        except NetlinkRefused as refused:
            if refused.code == errno.ENODEV:
                return None
            raise

    def create_link(self, attributes: list[tuple[str, Any]], *, encoded: bytes = b"") -> None:
        """Make a link that must not exist yet; ``encoded``: attributes beyond pyroute2's. Raises NetlinkRefused."""
        message = self.formats.link()
        message["attrs"] = attributes
        self.execute(message, RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, encoded)

    def delete_link(self, index: int) -> bool:
        """Delete the link of that index, and with it the other end of a pair; False if there is none."""
        message = self.formats.link()
        message["index"] = index
        try:
            self.execute(message, RTM_DELLINK)
        except NetlinkRefused as refused:
            if refused.code == errno.ENODEV:
                return False
            raise
        return True

    def set_mac(self, index: int, mac: str) -> None:
        """Give the link a hardware address. Raises NetlinkRefused."""
        message = self.formats.link()
        message["index"] = index
        message["attrs"] = [("IFLA_ADDRESS", mac)]
        self.execute(message, RTM_NEWLINK)

    def set_up(self, index: int) -> None:
        """Set the link up. Raises NetlinkRefused."""
        self._set_flags(index, IFF_UP)

    def set_down(self, index: int) -> None:
        """Set the link down. Raises NetlinkRefused."""
        self._set_flags(index, 0)

    def _set_flags(self, index: int, flags: int) -> None:
        message = self.formats.link()
        message["index"] = index
        message["flags"] = flags
        message["change"] = IFF_UP
        self.execute(message, RTM_NEWLINK)

    def namespace_number(self, fd: int) -> int | None:
        """Return the number by which this namespace knows the one open as ``fd``; None if it never met it."""
        message = self.formats.namespace_id()
        message["attrs"] = [("NETNSA_FD", fd)]
        number = self.ask(message, RTM_GETNSID).get_attr("NETNSA_NSID")
        return None if number is None or number == NAMESPACE_NOT_NUMBERED else int(number)

    # --- addresses --------------------------------------------------------------------------------------

    def addresses(self, index: int, version: int) -> list[AssignedAddress]:
        """Return the addresses of a link, for IP version 4 or 6."""
        message = self.formats.address()
        message["family"] = family_of(version)
        message["index"] = index
        return [
            _address(answer)
            for answer in self.dump(message, RTM_GETADDR)
            # A kernel without strict checking lists every link's addresses.
            if answer["index"] == index and answer["family"] == family_of(version)
        ]

    def add_address(self, index: int, address: Address) -> None:
        """Put a /32 or /128 address on a link. Raises NetlinkRefused."""
        message = self.formats.address()
        message["family"] = family_of(address.version)
        message["prefixlen"] = address.max_prefixlen
        message["index"] = index
        message["attrs"] = [("IFA_LOCAL", str(address)), ("IFA_ADDRESS", str(address))]
        self.execute(message, RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL)

    # --- routes -----------------------------------------------------------------------------------------

    def add_route(self, target: RouteTarget, index: int, *, scope: int, gateway: Address | None = None) -> None:
        """Add, never replace, a route of the main table. Raises NetlinkRefused (EEXIST: there is one already)."""
        message = self._route(target.version)
        message["dst_len"] = target.prefixlen
        message["proto"] = RTPROT_BOOT
        message["scope"] = scope
        message["type"] = RTN_UNICAST
        attributes: list[tuple[str, Any]] = [("RTA_OIF", index), ("RTA_TABLE", RT_TABLE_MAIN)]
        if target.prefixlen:
            attributes.append(("RTA_DST", str(target.network_address)))
        if gateway is not None:
            attributes.append(("RTA_GATEWAY", str(gateway)))
        message["attrs"] = attributes
        self.execute(message, RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL)

    def delete_route(self, target: RouteTarget, index: int) -> bool:
        """Delete the main table's route to ``target`` by that link; False if there is none. Raises NetlinkRefused."""
        message = self._route(target.version)
        message["dst_len"] = target.prefixlen
        message["scope"] = SCOPE_NOWHERE  # of whatever scope
        message["attrs"] = [
            ("RTA_OIF", index),
            ("RTA_TABLE", RT_TABLE_MAIN),
            ("RTA_DST", str(target.network_address)),
        ]
        try:
            self.execute(message, RTM_DELROUTE)
        except NetlinkRefused as refused:
            if refused.code == errno.ESRCH:
                return False
            raise
        return True

    def routes_of(self, index: int, version: int) -> list[Route]:
        """Return the main table's routes that leave by one link."""
        return [route for route in self._routes(version, [("RTA_OIF", index)]) if route.oif == index]

    def routes_to(self, address: Address) -> list[Route]:
        """Return the main table's routes to exactly this address (/32, /128). Reads the whole table of the family."""
        return [
            route
            for route in self._routes(address.version, [])
            if route.prefix_length == address.max_prefixlen and route.destination == address
        ]

    def default_route_links(self, version: int) -> list[int]:
        """Return the indexes of the links by which the main table's default routes leave. Reads the whole table."""
        routes = self._routes(version, [])
        return sorted({route.oif for route in routes if route.prefix_length == 0 and route.oif is not None})

    def _routes(self, version: int, attributes: list[tuple[str, Any]]) -> list[Route]:
        message = self._route(version)
        message["attrs"] = [("RTA_TABLE", RT_TABLE_MAIN), *attributes]
        answers = self.dump(message, RTM_GETROUTE)
        return [_route(answer, version) for answer in answers if _table(answer) == RT_TABLE_MAIN]

    def _route(self, version: int) -> Any:
        message = self.formats.route()
        message["family"] = family_of(version)
        message["table"] = RT_TABLE_MAIN
        return message


def _link(answer: Any) -> Link:
    info = answer.get_attr("IFLA_LINKINFO")
    return Link(
        index=answer["index"],
        name=answer.get_attr("IFLA_IFNAME"),
        kind=(info.get_attr("IFLA_INFO_KIND") if info is not None else None) or "",
        mac=answer.get_attr("IFLA_ADDRESS") or "",
        mtu=answer.get_attr("IFLA_MTU"),
        up=bool(answer["flags"] & IFF_UP),
        peer_index=answer.get_attr("IFLA_LINK") or 0,
        peer_namespace=answer.get_attr("IFLA_LINK_NETNSID"),
    )


def _address(answer: Any) -> AssignedAddress:
    flags = answer.get_attr("IFA_FLAGS") or answer["flags"]
    return AssignedAddress(
        ip=ip_address(answer.get_attr("IFA_LOCAL") or answer.get_attr("IFA_ADDRESS")),
        prefix_length=answer["prefixlen"],
        tentative=bool(flags & IFA_F_TENTATIVE),
    )


def _table(answer: Any) -> int:
    table = answer.get_attr("RTA_TABLE")
    return int(answer["table"] if table is None else table)


def _route(answer: Any, version: int) -> Route:
    destination = answer.get_attr("RTA_DST")
    gateway = answer.get_attr("RTA_GATEWAY")
    nowhere = IPv4Address(0) if version == 4 else IPv6Address(0)
    return Route(
        destination=ip_address(destination) if destination else nowhere,
        prefix_length=answer["dst_len"],
        scope=answer["scope"],
        oif=answer.get_attr("RTA_OIF"),
        gateway=ip_address(gateway) if gateway else None,
    )
