"""CHECK: does the link still stand as it was made? (cni.md §2.7)"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TypeVar

from .api import DataplaneError, LinkExpectation
from .netlink import NetlinkRefused
from .netns import Namespace, entered
from .routes import GATEWAY, doing
from .rtnl import Address, Link, Rtnl

L = TypeVar("L")

#: seconds between two looks at the host's side
PAUSE = 0.05


def check(expectation: LinkExpectation) -> list[str]:
    """Return one sentence for each thing that is not as expected. Raises DataplaneError.

    The sandbox must be right at once. The host's side is looked at until it is right or the expectation's patience
    ends: Felix may be rewriting its routes.
    """
    with ExitStack() as stack, doing(f"look at {expectation.container_name}"):
        rtnl = stack.enter_context(Rtnl.open())
        complaints = _host_side_in_time(rtnl, expectation)
        gateways: list[Address] = _unless_gone(lambda: _link_locals(rtnl, expectation.host_name), [])
        try:
            namespace = stack.enter_context(Namespace.open(expectation.netns))
            with entered(namespace):
                pod_rtnl = stack.enter_context(Rtnl.open())
        except DataplaneError as error:
            return [*complaints, str(error)]
        pod_side = _unless_gone(lambda: _pod_side(pod_rtnl, expectation, gateways), _no_pod_link(expectation))
        return [*complaints, *pod_side]


def _unless_gone(look: Callable[[], L], otherwise: L) -> L:
    """Return what a look at a link finds; ``otherwise`` when the link goes while it is looked at, as with its sandbox.

    Raises NetlinkRefused for every other refusal.
    """
    try:
        return look()
    except NetlinkRefused as refused:
        if refused.code == errno.ENODEV:
            return otherwise
        raise


def _host_side_in_time(rtnl: Rtnl, expectation: LinkExpectation) -> list[str]:
    deadline = time.monotonic() + expectation.patience
    while True:
        complaints = _unless_gone(lambda: _host_side(rtnl, expectation), _no_host_link(expectation))
        if not complaints or time.monotonic() >= deadline:
            return complaints
        time.sleep(PAUSE)


def _host_side(rtnl: Rtnl, expectation: LinkExpectation) -> list[str]:
    name = expectation.host_name
    link = rtnl.link(name)
    if link is None:
        return _no_host_link(expectation)
    complaints = [] if link.up else [f"link {name} of the host is down"]
    for version in _versions(expectation):
        there = {(route.destination, route.prefix_length) for route in rtnl.routes_of(link.index, version)}
        complaints += [
            f"the host has no route to {address} on {name}"
            for address in _addresses(expectation, version)
            if (address, address.max_prefixlen) not in there
        ]
    return complaints


def _no_host_link(expectation: LinkExpectation) -> list[str]:
    return [f"the host has no link {expectation.host_name}"]


def _no_pod_link(expectation: LinkExpectation) -> list[str]:
    return [f"the sandbox has no link {expectation.container_name}"]


def _link_locals(rtnl: Rtnl, name: str) -> list[Address]:
    link = rtnl.link(name)
    if link is None:
        return []
    return [address.ip for address in rtnl.addresses(link.index, 6) if address.ip.is_link_local]


def _pod_side(rtnl: Rtnl, expectation: LinkExpectation, gateways: list[Address]) -> list[str]:
    name = expectation.container_name
    link = rtnl.link(name)
    if link is None:
        return _no_pod_link(expectation)
    complaints = [] if link.up else [f"link {name} of the sandbox is down"]
    if expectation.mac is not None and link.mac != expectation.mac.lower():
        complaints.append(f"link {name} of the sandbox has hardware address {link.mac}, not {expectation.mac.lower()}")
    for version in _versions(expectation):
        there = {
            address.ip
            for address in rtnl.addresses(link.index, version)
            if address.prefix_length == address.ip.max_prefixlen
        }
        complaints += [
            f"link {name} of the sandbox lacks address {address}/{address.max_prefixlen}"
            for address in _addresses(expectation, version)
            if address not in there
        ]
        if expectation.default_routes:
            complaints += _default_route(rtnl, link, version, [GATEWAY] if version == 4 else gateways)
    return complaints


def _default_route(rtnl: Rtnl, link: Link, version: int, gateways: list[Address]) -> list[str]:
    for route in rtnl.routes_of(link.index, version):
        if route.prefix_length == 0 and route.gateway in gateways:
            return []
    through = " or ".join(map(str, gateways)) or "the host's link-local address"
    return [f"the sandbox has no IPv{version} default route via {through} on {link.name}"]


def _versions(expectation: LinkExpectation) -> list[int]:
    return sorted({interface.version for interface in expectation.addresses})


def _addresses(expectation: LinkExpectation, version: int) -> list[Address]:
    return [interface.ip for interface in expectation.addresses if interface.version == version]
