"""Addresses of Services that Calico's load balancer gives (cli §14): assigned, kept, exchanged, released."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calico_ipam.engine.assign import auto_assign
from calico_ipam.engine.lookup import ips_by_handle
from calico_ipam.engine.release import release_by_handle, release_ips
from calico_ipam.engine.request import Request
from calico_ipam.engine.results import NamespaceLabels
from calico_ipam.engine.specific import SpecificRequest, assign_ip
from calico_ipam.engine.world import Engine
from calico_ipam.errors import InvalidInput, NotFound, RefusedError
from calico_ipam.model.addresses import Address, Network, contains, network_of, parse_address, parse_network
from calico_ipam.model.block import ReleaseOption
from calico_ipam.model.handle_names import load_balancer_handle
from calico_ipam.model.owner import TIMESTAMP
from calico_ipam.model.pool import LOAD_BALANCER_USE, MANUAL, Pool, pool_for
from calico_ipam.model.resource import mapping
from calico_ipam.model.services import ALL_SERVICES, managed
from calico_ipam.model.timestamps import format_attribute_time

log = logging.getLogger(__name__)

HOST = "load-balancer"
#: addresses of a family that a Service may hold: a count that a crash left behind is corrected by it
ONE = 1
_FAMILIES = {"IPv4": 4, "IPv6": 6}
_ANNOTATION = "projectcalico.org/"


@dataclass(frozen=True, slots=True)
class _Wishes:
    """What a Service asks for: given addresses, or pools, or whatever the families' pools have."""

    versions: tuple[int, ...]
    addresses: tuple[Address, ...] = ()
    pools: Mapping[int, tuple[Network, ...]] | None = None  #: family to pools; None where none are named

    def allows(self, address: Address, pools: Sequence[Pool]) -> bool:
        """Tell whether an address that the Service holds may stay."""
        if self.addresses:
            return address in self.addresses
        if address.version not in self.versions:
            return False
        named = (self.pools or {}).get(address.version)
        if named:
            return any(contains(pool, network_of(address, address.max_prefixlen)) for pool in named)
        pool = pool_for(pools, address)
        return pool is None or pool.assignment_mode != MANUAL


def reconcile_service(
    engine: Engine,
    service: Mapping[str, Any],
    *,
    mode: str = ALL_SERVICES,
    namespace: NamespaceLabels | None = None,
) -> tuple[Address, ...]:
    """Give a Service what it asks for, take back what it must not keep, and return what it has, IPv4 first.

    ``service``: the object of the Kubernetes API. ``mode``: ``assignIPs`` of KubeControllersConfiguration. One that
    is not Calico's (any more) loses everything. Raises InvalidInput for a wish that cannot be understood, before
    anything is changed; RefusedError and AlreadyExists when an address cannot be had.
    """
    metadata = mapping(service.get("metadata"))
    name, where, uid = (str(metadata.get(key) or "") for key in ("name", "namespace", "uid"))
    handle = load_balancer_handle(name, where, uid)
    if not managed(service, mode):
        return _release_all(engine, handle)
    pools = engine.look().pools
    wishes = _wishes(service, f"{where}/{name}", pools)
    if not any(LOAD_BALANCER_USE in pool.allowed_uses and pool.enabled for pool in pools):
        return _release_all(engine, handle)
    held = _held(engine, handle)
    unwanted = [address for address in held if not wishes.allows(address, pools)]
    release_ips(engine, [ReleaseOption(address, handle) for address in unwanted])
    kept = [address for address in held if address not in unwanted]
    attrs = {
        "service": name,
        "namespace": where,
        "type": LOAD_BALANCER_USE,
        TIMESTAMP: format_attribute_time(engine.clock.now()),
    }
    job = _Job(engine, handle, attrs, f"{where}/{name}", namespace)
    kept += job.given([address for address in wishes.addresses if address not in kept])
    if not wishes.addresses:
        missing = [version for version in wishes.versions if all(each.version != version for each in kept)]
        kept += job.automatic(missing, wishes.pools or {})
    return tuple(sorted(kept, key=lambda address: (address.version, int(address))))


@dataclass(frozen=True, slots=True)
class _Job:
    engine: Engine
    handle: str
    attrs: Mapping[str, str]
    service: str
    namespace: NamespaceLabels | None

    def given(self, addresses: Sequence[Address]) -> list[Address]:
        for address in addresses:
            request = SpecificRequest(
                address, HOST, handle=self.handle, attrs=self.attrs, use=LOAD_BALANCER_USE, cap=ONE
            )
            assign_ip(self.engine, request)
        return list(addresses)

    def automatic(self, versions: Sequence[int], pools: Mapping[int, Sequence[Network]]) -> list[Address]:
        request = Request(
            use=LOAD_BALANCER_USE,
            host=HOST,
            numbers={version: int(version in versions) for version in (4, 6)},
            handle=self.handle,
            attrs=self.attrs,
            pools={version: tuple(pools.get(version, ())) for version in (4, 6)},
            cap=ONE,
            namespace=self.namespace,
        )
        result = auto_assign(self.engine, request)
        found = [each.address for each in result.addresses]
        if len(found) < len(versions):
            reasons = "; ".join(each.shortfall for each in (result.ipv4, result.ipv6) if each and each.shortfall)
            raise RefusedError(
                f"Service {self.service} gets {len(found)} of {len(versions)} addresses: {reasons}",
                subject=self.service,
                hint="'ipamctl ipam explain --use LoadBalancer' tells why; what it got it keeps.",
            )
        return found


def _held(engine: Engine, handle: str) -> list[Address]:
    try:
        return ips_by_handle(engine, handle)
    except NotFound:
        return []


def _release_all(engine: Engine, handle: str) -> tuple[Address, ...]:
    try:
        release_by_handle(engine, handle)
    except NotFound:
        log.debug("handle %s holds nothing", handle)
    return ()


# --- what a Service asks for ---------------------------------------------------------------------------------


def _wishes(service: Mapping[str, Any], name: str, pools: Sequence[Pool]) -> _Wishes:
    spec = mapping(service.get("spec"))
    annotations = mapping(mapping(service.get("metadata")).get("annotations"))
    families = spec.get("ipFamilies") or ["IPv4"]
    versions = tuple(_FAMILIES[family] for family in families if family in _FAMILIES)
    if spec.get("ipFamilyPolicy") in (None, "SingleStack"):
        versions = versions[:1]
    given = _list(annotations, "loadBalancerIPs", name)
    if given:
        return _Wishes(versions, _addresses(given, name))
    named = {
        version: _named(_list(annotations, f"ipv{version}pools", name), version, name, pools) for version in (4, 6)
    }
    if any(named.values()):
        return _Wishes(versions, pools=named)
    single = spec.get("loadBalancerIP")
    return _Wishes(versions, _addresses([single], name) if single else ())


def _list(annotations: Mapping[str, Any], key: str, service: str) -> list[str]:
    text = annotations.get(_ANNOTATION + key)
    if text is None:
        return []
    try:
        found = json.loads(text)
    except (TypeError, ValueError):
        found = None
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise InvalidInput(
            f"annotation {_ANNOTATION}{key} of Service {service} is no JSON list of texts: {text!r}",
            subject=service,
            hint='Write it like ["10.0.0.1"].',
        )
    return found


def _addresses(texts: Sequence[Any], service: str) -> tuple[Address, ...]:
    try:
        found = tuple(parse_address(str(text)) for text in texts)
    except InvalidInput as error:
        raise InvalidInput(
            f"Service {service} asks for {error.subject!r}, which is no address",
            subject=service,
            hint="Write addresses without a prefix length.",
        ) from None
    if any(sum(each.version == version for each in found) > 1 for version in (4, 6)):
        raise InvalidInput(
            f"Service {service} asks for more than one address of a family: {', '.join(map(str, found))}",
            subject=service,
            hint="Name at most one IPv4 and one IPv6 address.",
        )
    return found


def _named(texts: Sequence[str], version: int, service: str, pools: Sequence[Pool]) -> tuple[Network, ...]:
    found = tuple(_pool(text, service, pools) for text in texts)
    for cidr in found:
        if cidr.version != version:
            raise InvalidInput(
                f"Service {service} names {cidr} among its IPv{version} pools",
                subject=service,
                hint=f"Annotation {_ANNOTATION}ipv{version}pools takes IPv{version} pools only.",
            )
    return found


def _pool(text: str, service: str, pools: Sequence[Pool]) -> Network:
    for pool in pools:
        if pool.name == text:
            return pool.cidr
    try:
        return parse_network(text)
    except InvalidInput:
        raise InvalidInput(
            f"Service {service} names the pool {text!r}, which does not exist",
            subject=service,
            hint="Name a pool, or write its CIDR: 'ipamctl pool list' shows both.",
        ) from None
