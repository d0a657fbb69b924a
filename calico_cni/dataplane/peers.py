"""Who stands behind a link of the host (rulings 1 and 2): nothing that is lived in is ever removed."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from .api import PAIRS, ContainerLink, DataplaneError, HostLink, Peer
from .netns import Namespace, NamespaceGone, Resident, census, describe
from .rtnl import Link, Rtnl

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Behind:
    """The other end of a link. ``resident``: a process that lives there, where there is one."""

    peer: Peer
    name: str | None = None
    resident: Resident | None = None


def look_behind(rtnl: Rtnl, link: Link, sandbox: Namespace | None) -> Behind:
    """Tell what stands at the other end of ``link``; ``sandbox`` is the namespace of this call, if it is there."""
    if link.kind not in PAIRS:
        return Behind(Peer.UNKNOWN)
    if link.peer_namespace is None:
        other = rtnl.link_at(link.peer_index) if link.peer_index else None
        return Behind(Peer.HOST, other.name) if other is not None else Behind(Peer.UNKNOWN)
    if link.peer_namespace < 0:  # the kernel is taking the namespace down
        return Behind(Peer.EMPTY)
    other = rtnl.link_elsewhere(link.peer_namespace, link.peer_index)
    name = other.name if other is not None else None
    if sandbox is not None and rtnl.namespace_number(sandbox.fd) == link.peer_namespace:
        return Behind(Peer.OURS, name)
    try:
        resident = resident_of_number(rtnl, link.peer_namespace)
    except DataplaneError as error:
        logger.warning("cannot tell whether anybody lives behind %s: %s", link.name, error)
        return Behind(Peer.UNKNOWN, name)
    return Behind(Peer.EMPTY if resident is None else Peer.INHABITED, name, resident)


def host_link(rtnl: Rtnl, name: str, sandbox: Namespace | None) -> HostLink | None:
    """Return what is known of the host's link ``name``, or None if there is none."""
    link = rtnl.link(name)
    if link is None:
        return None
    behind = look_behind(rtnl, link, sandbox)
    return HostLink(link.name, link.index, link.kind, behind.peer, behind.name)


def container_link(pod_rtnl: Rtnl, host_rtnl: Rtnl, host: Namespace, name: str) -> ContainerLink | None:
    """Return what is known of the sandbox's link ``name``, or None if there is none."""
    link = pod_rtnl.link(name)
    if link is None:
        return None
    elsewhere = link.kind in PAIRS and link.peer_namespace is not None and link.peer_namespace >= 0
    on_host = elsewhere and pod_rtnl.namespace_number(host.fd) == link.peer_namespace
    other = host_rtnl.link_at(link.peer_index) if on_host else None
    return ContainerLink(link.kind, other.name if other is not None else None)


def resident_of_number(rtnl: Rtnl, number: int) -> Resident | None:
    """Return a process in the namespace that the kernel numbers so, or None. Raises DataplaneError if unknowable."""
    with Namespace.own() as own:
        here = own.identity
    for identity, pids in census().items():
        if identity != here and _number_of(rtnl, identity, pids) == number:
            return describe(pids[0])
    return None


def _number_of(rtnl: Rtnl, identity: tuple[int, int], pids: list[int]) -> int | None:
    """Return the number of the namespace in which these processes live, whichever of them still do."""
    for pid in pids:
        try:
            with Namespace.open(f"/proc/{pid}/ns/net") as namespace:
                if namespace.identity == identity:
                    return rtnl.namespace_number(namespace.fd)
        except NamespaceGone:
            continue  # it has ended since
    return None
