"""Pods as workload endpoints: the table of datastore §15, row by row, with neighbours."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from calico_ipam.datastore.gojson import BadDocument
from calico_ipam.datastore.kube.pods import address_patch, endpoint_of, exposed, finished, removal_patch

CNI = "cni.projectcalico.org/"
AWS = "vpc.amazonaws.com/pod-ips"


def pod(
    notes: dict[str, Any] | None = None,
    status: dict[str, Any] | None = None,
    spec: dict[str, Any] | None = None,
    **metadata: Any,
) -> dict[str, Any]:
    named = {key if "/" in key else CNI + key: value for key, value in (notes or {}).items()}
    about = {"name": "podA", "namespace": "default", "resourceVersion": "1234", "labels": {"a": "b"}}
    return {
        "metadata": {**about, "annotations": named, **metadata},
        "spec": {"nodeName": "nodeA", **(spec or {})},
        "status": status or {},
    }


def networks(document: dict[str, Any]) -> list[str]:
    found: list[str] = endpoint_of(document).spec.get("ipNetworks", [])
    return found


def test_a_pod_with_an_address() -> None:
    document = pod(status={"podIP": "192.168.0.1"})
    before = copy.deepcopy(document)
    found = endpoint_of(document)
    assert document == before
    assert (found.name, found.namespace) == ("nodeA-k8s-podA-eth0", "default")
    assert found.spec == {
        "orchestrator": "k8s",
        "node": "nodeA",
        "pod": "podA",
        "endpoint": "eth0",
        "ipNetworks": ["192.168.0.1/32"],
        "profiles": ["kns.default"],
        "interfaceName": "cali7f94ce7c295",
    }
    assert found.labels == {"a": "b", "projectcalico.org/namespace": "default", "projectcalico.org/orchestrator": "k8s"}
    assert found.metadata["resourceVersion"] == "1234"


PORTS: list[tuple[dict[str, Any], tuple[str, str, int, int, str] | None]] = [
    ({"containerPort": 80}, None),
    ({"containerPort": 80, "name": "a"}, ("a", "TCP", 80, 0, "")),
    ({"containerPort": 80, "name": "a", "protocol": "UDP"}, ("a", "UDP", 80, 0, "")),
    ({"containerPort": 80, "name": "a", "protocol": "SCTP"}, ("a", "SCTP", 80, 0, "")),
    ({"containerPort": 80, "name": "a", "protocol": "ICMP"}, None),
    ({"containerPort": 80, "protocol": "TCP", "hostPort": 5000}, ("", "TCP", 80, 5000, "")),
    ({"containerPort": 80, "hostPort": 5000, "hostIP": "1.2.3.4"}, ("", "TCP", 80, 5000, "1.2.3.4")),
    ({"containerPort": 80, "hostIP": "1.2.3.4"}, None),
]


@pytest.mark.parametrize("group", ["containers", "initContainers"])
@pytest.mark.parametrize(("port", "expected"), PORTS)
def test_ports(port: dict[str, Any], expected: tuple[str, str, int, int, str] | None, group: str) -> None:
    found = endpoint_of(pod(spec={group: [{"ports": [port]}, {}]})).spec.get("ports", [])
    keys = ("name", "protocol", "port", "hostPort", "hostIP")
    assert found == ([] if expected is None else [dict(zip(keys, expected, strict=True))])


def test_ports_of_containers_come_before_those_of_init_containers() -> None:
    def group(name: str) -> list[dict[str, Any]]:
        return [{"ports": [{"containerPort": 1, "name": name}]}]

    found = endpoint_of(pod(spec={"initContainers": group("first"), "containers": group("main")})).spec["ports"]
    assert [each["name"] for each in found] == ["main", "first"]


@pytest.mark.parametrize(
    ("notes", "status", "expected"),
    [
        ({"podIP": "192.168.0.1"}, {}, ["192.168.0.1/32"]),
        ({"podIP": "192.168.0.1/32"}, {}, ["192.168.0.1/32"]),
        ({"podIPs": "192.168.0.1,fd5f::1", "podIP": "192.168.0.9"}, {}, ["192.168.0.1/32", "fd5f::1/128"]),
        ({"podIPs": "192.168.0.1/32,FD5F:0::1/128"}, {}, ["192.168.0.1/32", "fd5f::1/128"]),
        ({"podIPs": "192.168.0.1/24"}, {}, ["192.168.0.0/24"]),
        ({AWS: "192.168.0.1"}, {}, ["192.168.0.1/32"]),
        ({AWS: "192.168.0.1,fd5f::1"}, {}, ["192.168.0.1/32", "fd5f::1/128"]),
        ({AWS: "192.168.0.9", "podIP": "192.168.0.1"}, {}, ["192.168.0.1/32"]),
        ({"podIP": "192.168.0.1"}, {"podIP": "192.168.0.2"}, ["192.168.0.2/32"]),
        ({"podIPs": "192.168.0.1"}, {"podIPs": [{"ip": "fd00::2"}, {"ip": "192.168.0.2"}]}, None),
        ({}, {"podIP": "192.168.0.9", "podIPs": [{"ip": "192.168.0.2"}]}, ["192.168.0.2/32"]),
        ({}, {"podIP": "192.168.0.2", "podIPs": []}, ["192.168.0.2/32"]),
        ({}, {"podIP": "192.168.0.2", "podIPs": None}, ["192.168.0.2/32"]),
        ({}, {}, []),
        ({"podIP": ""}, {}, []),
        ({"podIP": None}, {}, []),
    ],
)
def test_where_addresses_come_from(notes: dict[str, Any], status: dict[str, Any], expected: list[str] | None) -> None:
    assert networks(pod(notes, status)) == (["fd00::2/128", "192.168.0.2/32"] if expected is None else expected)


@pytest.mark.parametrize(
    ("notes", "status"),
    [
        ({"podIP": "foobar"}, {}),
        ({"podIPs": "foobar"}, {}),
        ({"podIPs": "192.168.0.1,foobar"}, {}),
        ({AWS: "192.168.0.256"}, {}),
        ({"podIP": "192.168.0.1"}, {"podIP": "192.168.0"}),
        ({"podIPs": "192.168.0.1/33"}, {}),
    ],
)
def test_an_address_that_is_none_is_an_error(notes: dict[str, Any], status: dict[str, Any]) -> None:
    with pytest.raises(BadDocument, match="failed to parse IP"):
        endpoint_of(pod(notes, status))


GOING = {"deletionTimestamp": "2026-01-02T03:04:05Z"}


@pytest.mark.parametrize(
    ("notes", "phase", "metadata", "ended"),
    [
        ({"podIP": ""}, "Running", {}, False),
        ({"podIP": ""}, "Running", GOING, True),
        ({}, "Running", GOING, False),
        ({"podIP": None}, "Running", GOING, False),
        ({"podIP": "192.168.0.1"}, "Running", GOING, False),
        ({"podIPs": ""}, "Running", GOING, False),
        ({AWS: ""}, "Running", GOING, True),
        ({AWS: ""}, "Running", {}, False),
        ({}, "Succeeded", GOING, True),
        ({}, "Pending", {}, False),
        ({}, "Unknown", {}, False),
        ({}, "", {}, False),
        ({}, "Succeeded", {}, True),
        ({}, "Failed", {}, True),
        ({}, "Completed", {}, True),
        ({"podIP": "192.168.0.1"}, "Failed", {}, True),
    ],
)
def test_a_finished_pod_has_no_address(
    notes: dict[str, Any], phase: str, metadata: dict[str, Any], ended: bool
) -> None:
    document = pod(notes, {"phase": phase, "podIP": "192.168.0.1"}, **metadata)
    assert finished(document) is ended
    assert networks(document) == ([] if ended else ["192.168.0.1/32"])


@pytest.mark.parametrize("node", ["", None])
def test_a_pod_without_a_node_is_no_endpoint(node: str | None) -> None:
    document = pod(spec={"nodeName": node})
    assert not exposed(document)
    with pytest.raises(BadDocument, match="node"):
        endpoint_of(document)
    assert not exposed(pod(spec={"hostNetwork": True}))
    assert exposed(pod(spec={"hostNetwork": None}))


@pytest.mark.parametrize(("length", "labelled"), [(1, True), (62, True), (63, False), (64, False)])
def test_a_long_service_account_has_a_profile_and_no_label(length: int, labelled: bool) -> None:
    found = endpoint_of(pod(spec={"serviceAccountName": "s" * length}))
    assert found.spec["profiles"] == ["kns.default", f"ksa.default.{'s' * length}"]
    assert found.labels.get("projectcalico.org/serviceaccount") == ("s" * length if labelled else None)


BOTH = {"podIPs": [{"ip": "192.168.0.1"}, {"ip": "fd00::1"}]}


@pytest.mark.parametrize(
    ("text", "status", "expected"),
    [
        (
            '["1.1.1.1","fd80:100:100::10"]',
            BOTH,
            [("192.168.0.1", "1.1.1.1"), ("fd00::1", "fd80:100:100::10")],
        ),
        ('["fd80:100:100::10","1.1.1.1"]', BOTH, [("fd00::1", "fd80:100:100::10"), ("192.168.0.1", "1.1.1.1")]),
        ('["1.1.1.1","1.1.1.2"]', BOTH, [("192.168.0.1", "1.1.1.1"), ("192.168.0.1", "1.1.1.2")]),
        ('["1.1.1.1","fd80::1"]', {"podIP": "fd00::1"}, [("fd00::1", "fd80::1")]),
        ("[]", BOTH, []),
        ("", BOTH, []),
        ("null", BOTH, []),
    ],
)
def test_floating_addresses(text: str, status: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    found = endpoint_of(pod({"floatingIPs": text}, status)).spec.get("ipNATs", [])
    assert [(each["internalIP"], each["externalIP"]) for each in found] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('["1.1.1.1/16"]', ["1.1.0.0/16"]),
        ('["FD00::1/64","10.0.0.1/32"]', ["fd00::/64", "10.0.0.1/32"]),
        ("[]", []),
        ("", []),
    ],
)
def test_allowed_sources_are_masked(text: str, expected: list[str]) -> None:
    found = endpoint_of(pod({"allowedSourcePrefixes": text}))
    assert found.spec.get("allowSpoofedSourcePrefixes", []) == expected


@pytest.mark.parametrize("text", ['[""]', '["gumbo"]', '["1.1.1.1"]', '["1.1.1.1/33"]', "[null]", "{}", "[1]", "["])
def test_sources_that_are_none_are_an_error(text: str) -> None:
    with pytest.raises(BadDocument, match="failed to parse"):
        endpoint_of(pod({"allowedSourcePrefixes": text}))


@pytest.mark.parametrize("text", ["{}", "[1]", "[", '"1.1.1.1"', "1.1.1.1", 7, ["1.1.1.1"]])
def test_floating_addresses_that_are_none_are_an_error(text: Any) -> None:
    with pytest.raises(BadDocument, match="failed to parse"):
        endpoint_of(pod({"floatingIPs": text}, BOTH))


def test_what_is_told_of_an_endpoint() -> None:
    found = endpoint_of(pod({"containerID": "abcde"}, BOTH))
    assert address_patch(found) == {
        "metadata": {
            "annotations": {
                CNI + "podIP": "192.168.0.1/32",
                CNI + "podIPs": "192.168.0.1/32,fd00::1/128",
                CNI + "containerID": "abcde",
            }
        }
    }
    assert address_patch(endpoint_of(pod({"containerID": "abcde"}))) == {"metadata": {}}
    assert address_patch(endpoint_of(pod(uid="u"))) == {"metadata": {"uid": "u"}}
    assert removal_patch("7", "u") == {
        "metadata": {"annotations": {CNI + "podIP": "", CNI + "podIPs": ""}, "resourceVersion": "7", "uid": "u"}
    }
