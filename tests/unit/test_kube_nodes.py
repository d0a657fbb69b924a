"""What Calico knows of a node, in the annotations of the Kubernetes node (datastore §10)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from calico_ipam.datastore.kube.nodes import node_of, node_patch
from calico_ipam.model.resource import Resource

KEY = "jlkVyQYooZYzI2wFfNhSZez5eWh44yfq1wKVjLvSXgY="


def node(annotations: dict[str, str], kube: dict[str, str] | None = None) -> dict[str, Any]:
    named = {f"projectcalico.org/{name}": text for name, text in annotations.items()}
    return {"metadata": {"name": "n", "uid": "u", "labels": kube or {}, "annotations": named}}


def at(found: Resource, *place: str) -> Any:
    value: Any = found.document
    for step in place:
        value = value.get(step, {})
    return value


PLACES: list[tuple[str, str, tuple[str, ...], Any]] = [
    ("IPv4Address", "192.168.1.11/24", ("spec", "bgp", "ipv4Address"), "192.168.1.11/24"),
    ("IPv6Address", "fd00::1/64", ("spec", "bgp", "ipv6Address"), "fd00::1/64"),
    ("ASNumber", "2546", ("spec", "bgp", "asNumber"), 2546),
    ("ASNumber", "1.10", ("spec", "bgp", "asNumber"), 65546),
    ("RouteReflectorClusterID", "244.0.0.1", ("spec", "bgp", "routeReflectorClusterID"), "244.0.0.1"),
    ("IPv4IPIPTunnelAddr", "10.244.1.64", ("spec", "bgp", "ipv4IPIPTunnelAddr"), "10.244.1.64"),
    ("IPv4VXLANTunnelAddr", "10.244.1.64", ("spec", "ipv4VXLANTunnelAddr"), "10.244.1.64"),
    ("VXLANTunnelMACAddr", "66:00:00:00:00:01", ("spec", "vxlanTunnelMACAddr"), "66:00:00:00:00:01"),
    ("IPv6VXLANTunnelAddr", "fd00::1", ("spec", "ipv6VXLANTunnelAddr"), "fd00::1"),
    ("VXLANTunnelMACAddrV6", "66:00:00:00:00:02", ("spec", "vxlanTunnelMACAddrV6"), "66:00:00:00:00:02"),
    ("IPv4WireguardInterfaceAddr", "10.244.1.66", ("spec", "wireguard", "interfaceIPv4Address"), "10.244.1.66"),
    ("IPv6WireguardInterfaceAddr", "fd00::2", ("spec", "wireguard", "interfaceIPv6Address"), "fd00::2"),
    ("WireguardPublicKey", KEY, ("status", "wireguardPublicKey"), KEY),
    ("WireguardPublicKeyV6", KEY, ("status", "wireguardPublicKeyV6"), KEY),
    (
        "Interfaces",
        '[{"name":"eth0","addresses":["10.0.0.1"]}]',
        ("spec", "interfaces"),
        [{"name": "eth0", "addresses": ["10.0.0.1"]}],
    ),
]


@pytest.mark.parametrize(("annotation", "text", "place", "value"), PLACES)
def test_each_annotation_has_its_place_and_goes_back_to_it(
    annotation: str, text: str, place: tuple[str, ...], value: Any
) -> None:
    found, bare = node_of(node({annotation: text})), node_of(node({}))
    assert at(found, *place) == value
    name = f"projectcalico.org/{annotation}"
    written: dict[str, Any] = node_patch(bare, found, "7")["metadata"]
    assert written == {"annotations": {name: "65546" if text == "1.10" else text}, "resourceVersion": "7"}
    assert node_patch(found, bare, "7")["metadata"]["annotations"] == {name: None}


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        ("RouteReflectorClusterID", "288.0.4.5"),
        ("RouteReflectorClusterID", "fd00::1"),
        ("IPv4IPIPTunnelAddr", "nonsense"),
        ("IPv4IPIPTunnelAddr", "10.244.1.64/32"),
        ("IPv4VXLANTunnelAddr", "fd00::1"),
        ("IPv6Address", "10.0.0.1/24"),
        ("ASNumber", "many"),
        ("ASNumber", "64_512"),
        ("ASNumber", "+64512"),
        ("ASNumber", " 64512"),
        ("ASNumber", "-1"),
        ("ASNumber", "1.2.3"),
        ("ASNumber", ".5"),
        ("ASNumber", "4294967296"),
        ("ASNumber", "70000.1"),
        ("VXLANTunnelMACAddr", "66"),
        ("Interfaces", "{"),
        ("Interfaces", '{"name":"eth0"}'),
    ],
)
def test_a_value_that_cannot_be_is_left_out(annotation: str, text: str) -> None:
    found = node_of(node({annotation: text}))
    assert (found.document["spec"], found.document["status"]) == (
        {"orchRefs": [{"nodeName": "n", "orchestrator": "k8s"}]},
        {},
    )


def test_labels_of_calico_beside_those_of_kubernetes() -> None:
    there = node({"labels": '{"zone":"b","rack":"1"}', "annotations": '{"note":"x"}'}, {"zone": "a"})
    found = node_of(there)
    assert found.labels == {"zone": "a", "rack": "1"}
    assert found.metadata["annotations"] == {"note": "x", "projectcalico.org/kube-labels": '{"zone":"a"}'}
    metadata = {
        **found.metadata,
        "labels": {**found.labels, "row": "2"},
        "annotations": {"projectcalico.org/kube-labels": '{"zone":"a"}'},
    }
    after = Resource(found.kind, found.name, {**found.document, "metadata": metadata})
    changed = node_patch(found, after, "7")["metadata"]["annotations"]
    assert json.loads(changed["projectcalico.org/labels"]) == {"rack": "1", "row": "2"}  # zone is Kubernetes'
    assert changed["projectcalico.org/annotations"] is None


def test_addresses_and_ranges_are_those_of_calico_and_of_kubernetes() -> None:
    there = {
        **node({"IPv6Address": "fd00::1/64", "IPv4Address": "192.0.2.1/24"}),
        "spec": {"podCIDRs": ["10.1.0.0/24"]},
        "status": {
            "addresses": [
                {"type": "Hostname", "address": "n"},
                {"type": "ExternalIP", "address": "203.0.113.1"},
                {"type": "InternalIP", "address": "192.0.2.1"},
            ]
        },
    }
    found = node_of(there)
    assert [(each["type"], each["address"]) for each in found.spec["addresses"]] == [
        ("CalicoNodeIP", "192.0.2.1/24"),
        ("CalicoNodeIP", "fd00::1/64"),
        ("ExternalIP", "203.0.113.1"),
        ("InternalIP", "192.0.2.1"),
    ]
    assert found.document["status"] == {"podCIDRs": ["10.1.0.0/24"]}
    assert found.metadata["annotations"] == {"projectcalico.org/kube-labels": "null"}


@pytest.mark.parametrize("text", ["{", "[1]", "null", ""])
def test_labels_that_are_none(text: str) -> None:
    assert node_of(node({"labels": text}, {"zone": "a"})).labels == {"zone": "a"}


@pytest.mark.parametrize(
    ("pod_cidr", "annotations", "tunnel", "wireguard"),
    [
        ("10.0.0.0/24", {}, "10.0.0.1", None),
        ("10.0.0.0/24", {"WireguardPublicKey": KEY}, "10.0.0.1", "10.0.0.1"),
        ("10.0.0.0/24", {"WireguardPublicKeyV6": KEY}, "10.0.0.1", None),
        ("10.0.0.0/24", {"IPv4IPIPTunnelAddr": "10.9.0.1", "IPv4WireguardInterfaceAddr": "10.9.0.2"}, "10.0.0.1", None),
        ("10.0.0.77/24", {}, "10.0.0.1", None),
        ("", {}, None, None),
        ("", {"WireguardPublicKey": KEY}, None, None),
        ("", {"IPv4IPIPTunnelAddr": "10.9.0.1"}, "10.9.0.1", None),
        ("fd00::/64", {"WireguardPublicKey": KEY}, None, None),
        ("nonsense", {}, None, None),
        ("255.255.255.255/32", {}, None, None),
    ],
)
def test_tunnel_addresses_follow_from_a_range_of_the_nodes_own(
    pod_cidr: str, annotations: dict[str, str], tunnel: str | None, wireguard: str | None
) -> None:
    there = {**node(annotations), "spec": {"podCIDR": pod_cidr}}
    found = node_of(there, use_pod_cidr=True)
    assert at(found, "spec", "bgp").get("ipv4IPIPTunnelAddr") == tunnel
    assert at(found, "spec", "wireguard").get("interfaceIPv4Address") == wireguard
    assert at(node_of(there), "spec", "bgp").get("ipv4IPIPTunnelAddr") == annotations.get("IPv4IPIPTunnelAddr")
