"""What the plugins ask of a dataplane, and the values that pass between them (cni.md §8).

Nothing here imports netlink: the verbs name these types, and only the verb that really touches a link pays for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Interface, IPv4Network, IPv6Interface, IPv6Network
from typing import Protocol

from .errors import AddressInUse as AddressInUse  # the names belong to this page, too
from .errors import DataplaneError as DataplaneError

#: kinds of device that have another end
PAIRS = ("veth", "netkit")

Interface = IPv4Interface | IPv6Interface
RouteTarget = IPv4Network | IPv6Network


class Peer(Enum):
    """What stands at the other end of a host link (rulings 1 and 2)."""

    OURS = "ours"  #: it lies in the sandbox of this very call
    INHABITED = "inhabited"  #: its namespace holds at least one process: somebody lives there
    EMPTY = "empty"  #: its namespace holds no process, or cannot be found any more
    HOST = "host"  #: both ends lie in the host's own namespace: no sandbox is behind it
    UNKNOWN = "unknown"  #: no pair, or it cannot be told; to be treated as somebody's


@dataclass(frozen=True, slots=True)
class HostLink:
    """A link of the host's namespace as it was found."""

    name: str
    index: int
    kind: str  #: ``veth``, ``netkit``, ``bridge`` …; empty for a device without a kind
    peer: Peer
    peer_name: str | None = None  #: name of the other end, where it can be read

    @property
    def alive(self) -> bool:
        """May somebody use it? Only a link whose other end is known to be abandoned is not alive."""
        return self.peer in (Peer.INHABITED, Peer.UNKNOWN)


@dataclass(frozen=True, slots=True)
class ContainerLink:
    """A link of a sandbox as it was found. ``host_name``: of its other end, where that is a link of the host."""

    kind: str  #: as of HostLink
    host_name: str | None = None

    @property
    def is_pair(self) -> bool:
        """May it have been made here? Other kinds of device are never made, and so never removed."""
        return self.kind in PAIRS


@dataclass(frozen=True, slots=True)
class LinkRequest:
    """One pair to make: ``container_name`` inside ``netns``, ``host_name`` in the host's namespace.

    ``addresses``: in result order, any prefix length (the dataplane uses /32 and /128). ``routes``: container routes;
    those of a family without an address are skipped. ``mtu`` 0: the kernel's default. ``queues``: at least 1.
    ``mac``: asked for by the user, None: the kernel's choice. ``replace_existing``: a link named ``host_name`` was
    looked at and may be deleted; without it, such a link is an error.
    ``host_routes``: program the route to each address on the host (not for a live migration's target).
    ``host_prefix``: how the names of this node's pod links begin; only such a link is ever removed as a leftover when
    it still has the route to an address of ours.
    """

    host_name: str
    container_name: str
    netns: str
    addresses: Sequence[Interface]
    routes: Sequence[RouteTarget]
    mtu: int = 0
    queues: int = 1
    ip_forwarding: bool = False
    mac: str | None = None
    device_type: str = "veth"  #: ``veth`` or ``netkit``
    replace_existing: bool = False
    host_routes: bool = True
    host_prefix: str = "cali"


@dataclass(frozen=True, slots=True)
class LinkResult:
    """What was made. ``mac``: of the container end, lower case with colons."""

    mac: str
    host_name: str


@dataclass(frozen=True, slots=True)
class LinkExpectation:
    """What CHECK wants to find (cni.md §2.7).

    ``mac`` None: do not look. ``default_routes``: 0.0.0.0/0 via 169.254.1.1 and ::/0 via the host's link-local address
    must be there for each family that has an address. ``patience``: seconds the host's side may take to converge.
    """

    host_name: str
    container_name: str
    netns: str
    addresses: Sequence[Interface]
    mac: str | None = None
    default_routes: bool = True
    patience: float = 3.0


class Dataplane(Protocol):
    """Makes, looks at and removes the link of one sandbox. Every method may raise DataplaneError."""

    def same_namespace(self, netns: str) -> bool:
        """Tell whether ``netns`` is the namespace this process runs in; False for a path that cannot be opened."""

    def host_link(self, name: str, netns: str) -> HostLink | None:
        """Return the host's link of that name, or None. ``netns``: the sandbox of this call; may be empty or gone."""

    def container_link(self, netns: str, name: str) -> ContainerLink | None:
        """Return the sandbox's link of that name, or None; None for a namespace that is gone, too."""

    def add(self, request: LinkRequest) -> LinkResult:
        """Make the pair, or leave nothing of it behind: what was made is removed before an error is raised."""

    def remove(self, netns: str, container_name: str, host_name: str | None) -> None:
        """Remove the link inside ``netns``, and after it the host's link ``host_name`` unless that is None.

        What is gone already is fine, an empty ``netns`` too. Ends within 20 seconds (cni.md §8.1).
        """

    def masquerade(self, pools: Sequence[RouteTarget]) -> None:
        """Give what leaves ``pools`` for anywhere else the host's address; without pools, no longer (rulings 22)."""

    def check(self, expectation: LinkExpectation) -> list[str]:
        """Return one sentence for each thing that is not as expected."""
