"""Requests for a link with usual values, for tests of the dataplane."""

from __future__ import annotations

from ipaddress import ip_interface, ip_network
from typing import Any

from calico_cni.dataplane.api import LinkExpectation, LinkRequest
from tests.netns_tools import Namespace

IPV4 = "192.168.226.64/26"
IPV6 = "fd00:10:244::2a40/122"
HOST_NAME = "cali0a1b2c3d4e5"
DEFAULT_ROUTES = ("0.0.0.0/0", "::/0")


def link_request(
    pod: Namespace,
    *addresses: str,
    host_name: str = HOST_NAME,
    name: str = "eth0",
    routes: tuple[str, ...] = DEFAULT_ROUTES,
    **options: Any,
) -> LinkRequest:
    """Ask for a link with these addresses (dual stack if none are given)."""
    return LinkRequest(
        host_name=host_name,
        container_name=name,
        netns=pod.path,
        addresses=[ip_interface(text) for text in addresses or (IPV4, IPV6)],
        routes=[ip_network(text) for text in routes],
        **options,
    )


def expectation_of(
    request: LinkRequest, *, mac: str | None = None, default_routes: bool = True, patience: float = 0.0
) -> LinkExpectation:
    """Expect what was asked for."""
    return LinkExpectation(
        host_name=request.host_name,
        container_name=request.container_name,
        netns=request.netns,
        addresses=request.addresses,
        mac=mac,
        default_routes=default_routes,
        patience=patience,
    )
