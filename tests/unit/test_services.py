"""Addresses of Services (cli §14): which Services, which addresses, what is taken back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from calico_ipam.errors import AlreadyExists, InvalidInput, RefusedError
from calico_ipam.model.addresses import parse_address
from calico_ipam.model.handle_names import load_balancer_handle
from tests.cluster import Cluster, cluster
from tests.invariants import violations

HANDLE = load_balancer_handle("web", "shop", "1234")


@pytest.fixture
def world() -> Iterator[Cluster]:
    with cluster() as made:
        made.nodes("node-1")
        made.pool("pods", "10.0.0.0/24", 28)
        made.pool("lb", "10.1.0.0/28", 30, allowedUses=["LoadBalancer"])
        made.pool("lb6", "fd00::/120", 124, allowedUses=["LoadBalancer"])
        made.pool("named", "10.2.0.0/28", 30, allowedUses=["LoadBalancer"], assignmentMode="Manual")
        yield made


def service(annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    found = {f"projectcalico.org/{key}": value for key, value in (annotations or {}).items()}
    metadata = {"name": "web", "namespace": "shop", "uid": "1234", "annotations": found}
    return {"metadata": metadata, "spec": {"type": "LoadBalancer", **spec}}


def reconcile(world: Cluster, wanted: dict[str, Any], **more: Any) -> list[str]:
    found = [str(each) for each in world.ipam.reconcile_service(wanted, **more)]
    handle = world.handle(HANDLE) or {}
    assert sum(handle.values()) == len(found)
    assert violations(world.store.inner) == []
    return found


def test_the_handle_is_upstreams() -> None:
    made = load_balancer_handle("test-service", "test-namespace", "1234")
    assert made == "lb-CcByVDWerSL9WUOKfbkyPBft2m9Xxf822Zvhn2YSpts"


def test_an_address_is_given_kept_and_released(world: Cluster) -> None:
    (first,) = reconcile(world, service())
    assert first.startswith("10.1.0.")
    assert reconcile(world, service()) == [first]
    attributes = world.ipam.assignment_attributes(parse_address(first)).active
    assert {key: value for key, value in attributes.items() if key != "timestamp"} == {
        "service": "web",
        "namespace": "shop",
        "type": "LoadBalancer",
    }
    assert {block.affinity for block in world.blocks().values()} == {"virtual:load-balancer"}
    assert reconcile(world, service(type="ClusterIP")) == []
    assert world.handle(HANDLE) is None


def test_both_families(world: Cluster) -> None:
    dual: dict[str, Any] = {"ipFamilies": ["IPv4", "IPv6"]}
    ipv4, ipv6 = reconcile(world, service(**dual, ipFamilyPolicy="PreferDualStack"))
    assert ipv4.startswith("10.1.0.") and ipv6.startswith("fd00::")
    assert reconcile(world, service(**dual, ipFamilyPolicy="SingleStack")) == [ipv4]


def test_addresses_by_annotation_take_the_place_of_others(world: Cluster) -> None:
    reconcile(world, service())
    wish = service({"loadBalancerIPs": '["10.1.0.9", "fd00::7"]'})
    assert reconcile(world, wish) == ["10.1.0.9", "fd00::7"]
    assert reconcile(world, service(loadBalancerIP="10.1.0.10")) == ["10.1.0.10"]


def test_pools_by_name_and_cidr(world: Cluster) -> None:
    reconcile(world, service())
    (by_name,) = reconcile(world, service({"ipv4pools": '["named"]'}))
    assert by_name.startswith("10.2.0.")
    assert reconcile(world, service({"ipv4pools": '["10.2.0.0/28"]'})) == [by_name]
    (back,) = reconcile(world, service())
    assert back.startswith("10.1.0."), "an address of a pool for those who name it goes with the annotation"


def test_without_a_pool_for_services_everything_goes(world: Cluster) -> None:
    reconcile(world, service())
    for name in ("lb", "lb6", "named"):
        world.no_pool(name)
    assert reconcile(world, service()) == []


@pytest.mark.parametrize(
    ("changes", "mode", "ours"),
    [
        ({}, "AllServices", True),
        ({"loadBalancerClass": "calico"}, "RequestedServicesOnly", True),
        ({"loadBalancerClass": "other"}, "AllServices", False),
        ({}, "RequestedServicesOnly", False),
        ({"loadBalancerIP": "10.1.0.3"}, "RequestedServicesOnly", True),
    ],
)
def test_which_services(world: Cluster, changes: dict[str, Any], mode: str, ours: bool) -> None:
    assert bool(reconcile(world, service(**changes), mode=mode)) is ours


@pytest.mark.parametrize(
    ("annotations", "words"),
    [
        ({"loadBalancerIPs": "10.1.0.9"}, "is no JSON list of texts"),
        ({"loadBalancerIPs": "[1]"}, "is no JSON list of texts"),
        ({"loadBalancerIPs": '["10.1.0.1", "10.1.0.2"]'}, "more than one address of a family"),
        ({"loadBalancerIPs": '["nonsense"]'}, "asks for 'nonsense', which is no address"),
        ({"ipv4pools": '["absent"]'}, "names the pool 'absent', which does not exist"),
        ({"ipv4pools": '["lb6"]'}, "among its IPv4 pools"),
    ],
)
def test_wishes_that_cannot_be_understood_change_nothing(
    world: Cluster, annotations: dict[str, str], words: str
) -> None:
    before = reconcile(world, service())
    with pytest.raises(InvalidInput, match=words.replace("[", r"\[")):
        world.ipam.reconcile_service(service(annotations))
    assert [str(each) for each in world.ipam.ips_by_handle(HANDLE)] == before


def test_what_cannot_be_had_is_told(world: Cluster) -> None:
    world.ipam.assign_ip(parse_address("10.1.0.9"), handle="other", use="LoadBalancer", hostname="load-balancer")
    with pytest.raises(AlreadyExists):
        world.ipam.reconcile_service(service({"loadBalancerIPs": '["10.1.0.9"]'}))
    world.ipam.auto_assign(use="LoadBalancer", num4=15, handle="other", hostname="load-balancer")
    with pytest.raises(RefusedError, match=r"Service shop/web gets 0 of 1 addresses: .*"):
        world.ipam.reconcile_service(service())
    world.no_pool("lb")
    with pytest.raises(RefusedError, match="no pools match the required use"):
        world.ipam.reconcile_service(service())
