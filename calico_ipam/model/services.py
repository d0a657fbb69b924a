"""Which Services get their address from Calico (cli §14.1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from calico_ipam.errors import InvalidInput
from calico_ipam.model.addresses import Address, parse_address
from calico_ipam.model.resource import mapping

CLASS = "calico"
ALL_SERVICES = "AllServices"
REQUESTED_ONLY = "RequestedServicesOnly"
ANNOTATIONS = tuple(f"projectcalico.org/{name}" for name in ("ipv4pools", "ipv6pools", "loadBalancerIPs"))


def mode_of(configuration: Mapping[str, Any]) -> str | None:
    """Return how the load balancer controller chooses Services, by the spec of a KubeControllersConfiguration; None
    when the controller is not configured."""
    section = mapping(configuration.get("controllers")).get("loadBalancer")
    if not isinstance(section, Mapping):
        return None
    return str(section.get("assignIPs") or ALL_SERVICES)


def managed(service: Mapping[str, Any], mode: str) -> bool:
    """Tell whether a Service gets its address from Calico."""
    spec, metadata = mapping(service.get("spec")), mapping(service.get("metadata"))
    if spec.get("type") != "LoadBalancer":
        return False
    wanted = spec.get("loadBalancerClass")
    if wanted is not None:
        return bool(wanted == CLASS)
    if mode == ALL_SERVICES:
        return True
    annotations = mapping(metadata.get("annotations"))
    return mode == REQUESTED_ONLY and (
        any(name in annotations for name in ANNOTATIONS) or bool(spec.get("loadBalancerIP"))
    )


def ingress_addresses(service: Mapping[str, Any]) -> Iterator[Address]:
    """Yield the addresses a Service was given; entries that are only a host name have none (limit 18.7)."""
    ingress = mapping(mapping(service.get("status")).get("loadBalancer")).get("ingress")
    for entry in ingress if isinstance(ingress, list) else ():
        text = mapping(entry).get("ip")
        try:
            if isinstance(text, str) and text:
                yield parse_address(text)
        except InvalidInput:
            continue
