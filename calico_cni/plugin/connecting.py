"""What ADD does alike for pods and for other workloads: the link it asks for, and the answer (cni.md §6.3, §6.5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from ipaddress import IPv4Network, IPv6Network, ip_interface

from calico_cni.dataplane.api import LinkRequest, LinkResult
from calico_cni.plugin.wiring import Wiring
from calico_cni.results import Interface, Result, ResultInterface, ResultIP
from calico_ipam.model.addresses import Network

DEFAULT_ROUTES: tuple[Network, ...] = (IPv4Network("0.0.0.0/0"), IPv6Network("::/0"))


def single(address: Interface) -> Interface:
    """Return an address alone in its network, as it stands on the link."""
    return ip_interface(address.ip)


def link_request(
    wiring: Wiring, addresses: Sequence[Interface], *, may_replace: bool, routes: Sequence[Network] = DEFAULT_ROUTES
) -> LinkRequest:
    """Return the pair that connects a workload. ``may_replace``: a link that has its name on the host may go."""
    return LinkRequest(
        host_name=wiring.host_name,
        container_name=wiring.identity.ifname,
        netns=wiring.call.request.netns,
        addresses=addresses,
        routes=routes,
        mtu=wiring.mtu,
        queues=wiring.queues,
        ip_forwarding=wiring.call.conf.allow_ip_forwarding,
        device_type=wiring.device_type,
        replace_existing=may_replace,
    )


def connected(wiring: Wiring, ipam_result: Result, addresses: Sequence[Interface], link: LinkResult) -> Result:
    """Return the answer: what IPAM told, with the two ends of the link and without gateways (§6.3 step 9)."""
    sandbox = ResultInterface(wiring.identity.ifname, link.mac, wiring.mtu, wiring.call.request.netns)
    return replace(
        ipam_result,
        interfaces=(ResultInterface(link.host_name), sandbox),
        ips=tuple(ResultIP(address, interface=1) for address in addresses),
    )
