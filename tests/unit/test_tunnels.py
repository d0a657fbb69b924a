"""Tunnel addresses of nodes (cli §13): assigned, kept, moved, adopted, removed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from calico_ipam.datastore.api import Update
from calico_ipam.engine.client import IPAM
from calico_ipam.engine.policy import Retry
from calico_ipam.engine.tunnels import reconcile_tunnel_addresses
from calico_ipam.engine.world import Engine, node_key
from calico_ipam.errors import NotFound, RefusedError
from calico_ipam.model.addresses import parse_address
from calico_ipam.model.resource import Resource
from tests.cluster import Cluster, cluster


@pytest.fixture
def world() -> Iterator[Cluster]:
    with cluster() as made:
        made.nodes("n1")
        yield made


def engine(world: Cluster) -> Engine:
    return Engine(world.store, world.clock, Retry(clock=world.clock))


def reconcile(world: Cluster, **more: Any) -> dict[str, str]:
    return {each.type: each.after for each in reconcile_tunnel_addresses(engine(world), "n1", **more)}


def change_node(world: Cluster, spec: dict[str, Any], status: dict[str, Any] | None = None) -> None:
    entry = world.store.get(node_key("n1"))
    document = {**entry.value.document, "spec": spec, **({"status": status} if status is not None else {})}
    world.store.commit(Update(entry, Resource("Node", "n1", document)))


def spec(world: Cluster) -> dict[str, Any]:
    return dict(world.store.get(node_key("n1")).value.spec)


CASES = [
    ("ipipTunnelAddress", "10.0.0.0/31", {"ipipMode": "Always"}, {}, ("bgp", "ipv4IPIPTunnelAddr")),
    ("vxlanTunnelAddress", "10.0.0.0/31", {"vxlanMode": "CrossSubnet"}, {}, ("ipv4VXLANTunnelAddr",)),
    ("vxlanV6TunnelAddress", "2001:db8::/127", {"vxlanMode": "Always"}, {}, ("ipv6VXLANTunnelAddr",)),
    ("wireguardTunnelAddress", "10.0.0.0/31", {}, {"wireguardPublicKey": "k"}, ("wireguard", "interfaceIPv4Address")),
    (
        "wireguardV6TunnelAddress",
        "2001:db8::/127",
        {},
        {"wireguardPublicKeyV6": "k"},
        ("wireguard", "interfaceIPv6Address"),
    ),
]


def make_pool(world: Cluster, cidr: str, **more: Any) -> None:
    size = 127 if ":" in cidr else 31
    world.pool("p", cidr, size, **more)


@pytest.mark.parametrize(("kind", "cidr", "mode", "status", "place"), CASES)
def test_each_kind(
    world: Cluster, kind: str, cidr: str, mode: dict[str, str], status: dict[str, str], place: tuple[str, ...]
) -> None:
    make_pool(world, cidr, **mode)
    change_node(world, {}, status)
    first = cidr.partition("/")[0]
    IPAM(world.store, hostname="n1", clock=world.clock).assign_ip(
        parse_address(first), handle="pod", attrs={"node": "n1"}
    )
    changed = reconcile(world)
    expected = str(parse_address(first) + 1)
    assert changed == {kind: expected}
    value: Any = spec(world)
    for step in place:
        value = value[step]
    assert value == expected
    assert reconcile(world) == {}, "a second pass changes nothing"


def test_an_address_that_became_a_pods_is_left_to_it(world: Cluster) -> None:
    world.pool("p", "10.0.0.0/26", ipipMode="Always")
    change_node(world, {"bgp": {"ipv4IPIPTunnelAddr": "10.0.0.5"}})
    world.ipam.assign_ip(parse_address("10.0.0.5"), handle="pod", attrs={"node": "n2", "pod": "p"}, hostname="n1")
    changed = reconcile(world)
    assert changed["ipipTunnelAddress"] != "10.0.0.5"
    assert world.ipam.assignment_attributes(parse_address("10.0.0.5")).handle == "pod"


def test_an_address_of_old_releases_is_adopted(world: Cluster) -> None:
    world.pool("p", "10.0.0.0/26", ipipMode="Always")
    change_node(world, {"bgp": {"ipv4IPIPTunnelAddr": "10.0.0.5"}})
    world.ipam.assign_ip(parse_address("10.0.0.5"), hostname="n1")
    assert reconcile(world) == {}
    held = world.ipam.assignment_attributes(parse_address("10.0.0.5"))
    assert (held.handle, held.active) == ("ipip-tunnel-addr-n1", {"node": "n1", "type": "ipipTunnelAddress"})


def test_an_address_in_cooldown_counts_as_free(world: Cluster) -> None:
    """Limit 18.19: upstream fails when a pool is toggled within the cooldown."""
    world.pool("p", "10.0.0.0/26", ipipMode="Always")
    world.configure(cooldown_seconds=600)
    first = reconcile(world)["ipipTunnelAddress"]
    world.ipam.release_by_handle("ipip-tunnel-addr-n1")
    second = reconcile(world)["ipipTunnelAddress"]
    assert second != first


def test_not_wanted_any_more(world: Cluster) -> None:
    world.pool("p", "10.0.0.0/26", ipipMode="Always")
    address = reconcile(world)["ipipTunnelAddress"]
    world.pool("p", "10.0.0.0/26", ipipMode="Never")
    assert reconcile(world) == {"ipipTunnelAddress": ""}
    assert "bgp" not in spec(world)
    with pytest.raises(NotFound):
        world.ipam.assignment_attributes(parse_address(address))


def test_not_wanted_and_somebody_elses(world: Cluster) -> None:
    world.pool("p", "10.0.0.0/26")
    change_node(world, {"bgp": {"ipv4IPIPTunnelAddr": "10.0.0.5", "asNumber": 64513}})
    world.ipam.assign_ip(parse_address("10.0.0.5"), handle="pod", attrs={"node": "n1", "pod": "p"}, hostname="n1")
    assert reconcile(world) == {"ipipTunnelAddress": ""}
    assert spec(world) == {"bgp": {"asNumber": 64513}}
    assert world.ipam.assignment_attributes(parse_address("10.0.0.5")).handle == "pod"


def test_host_encryption_needs_no_wireguard_address(world: Cluster) -> None:
    world.pool("p", "10.0.0.0/26")
    change_node(world, {}, {"wireguardPublicKey": "k"})
    assert reconcile(world, wireguard_host_encryption=True) == {}


def test_what_this_pass_assigned_goes_back_when_a_later_step_fails(world: Cluster) -> None:
    world.pool("p", "10.0.0.0/26", ipipMode="Always")
    world.pool("six", "2001:db8::/122", vxlanMode="Always")
    world.reserve("2001:db8::/122")
    with pytest.raises(RefusedError, match="vxlanV6TunnelAddress"):
        reconcile(world)
    assert world.handle("ipip-tunnel-addr-n1") is None
    assert spec(world) == {}
