"""Names of objects, endpoints, interfaces and handles (datastore §2, §9, §15; cni.md §5, §17)."""

from __future__ import annotations

import uuid

import pytest

from calico_ipam.errors import InvalidInput
from calico_ipam.model.addresses import parse_network
from calico_ipam.model.affinity import BlockOwner
from calico_ipam.model.endpoint_names import (
    EndpointIds,
    namespace_profile,
    parse_profile,
    service_account_profile,
    split_name,
    status_file_name,
    veth_name_for_container,
    veth_name_for_workload,
)
from calico_ipam.model.handle_names import (
    TUNNEL_HANDLES,
    length_limited,
    tunnel_handle,
    vm_handle,
    workload_handle,
)
from calico_ipam.model.names import (
    affinity_labels,
    affinity_name,
    affinity_selector,
    check_handle_name,
    cidr_name,
    convert_uid,
    handle_name,
    hostname_hash,
    named_cidr,
)

# --- objects of the Kubernetes API --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cidr", "name"),
    [
        ("10.244.1.64/26", "10-244-1-64-26"),
        ("10.0.0.1/32", "10-0-0-1-32"),
        ("fd00:10:244::/122", "fd00-10-244---122"),
        ("fd00:10:244:0:1c:8f00:12:7c40/122", "fd00-10-244-0-1c-8f00-12-7c40-122"),
        ("2001:db8::1/128", "2001-db8--1-128"),
    ],
)
def test_cidr_name(cidr: str, name: str) -> None:
    assert cidr_name(parse_network(cidr)) == name
    assert named_cidr(name) == parse_network(cidr)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "x",
        "10-0-0-0",
        "10-0-0-0-33",
        "10-0-0-1-26",
        "010-0-0-0-26",
        "fd00--1-122",
        "fd00-0---122",
        "--ffff-a00-0-122",
    ],
)
def test_a_name_that_no_cidr_has(name: str) -> None:
    assert named_cidr(name) is None


FOUR, SIX = parse_network("10.244.1.64/26"), parse_network("fd00:10:244:0:1c:8f00:12:7c40/122")


def test_affinity_name() -> None:
    assert affinity_name("worker-1", FOUR) == "worker-1-10-244-1-64-26"
    assert affinity_name("a" * 237, FOUR) == "a" * 237 + "-10-244-1-64-26"
    assert affinity_name("a" * 238, FOUR) == "a" * 225 + "-10-244-1-64-26-0db7378d574"
    assert affinity_name("n" * 253, FOUR).endswith("-10-244-1-64-26-e853e155893")
    assert affinity_name("n" * 253, SIX).endswith("-122-353bdafef6f")
    assert [len(affinity_name("n" * n, SIX)) for n in (218, 219, 253)] == [252, 252, 252]


def test_hostname_hash() -> None:
    assert hostname_hash("node-a") == "PY3TQE2E3XMTETLM2MJO3UITKPFB27YUJ4T4E5XGPEJON3SM4QAA"
    assert hostname_hash("worker-1") == "CPU5J3TPSNHFA66J45DG4Z5C3PSJAZ36LD46JZLYEGZSTAWBUCUA"
    assert len(hostname_hash("")) == 52


def test_affinity_labels_and_selector() -> None:
    owner = BlockOwner("virtual", "load-balancer")
    labels = affinity_labels(owner, SIX)
    assert labels == {
        "projectcalico.org/affinity-type": "virtual",
        "projectcalico.org/hostname-hash": "TAU2RK2F2FG7MIS72DPZYC6FJ3U3BIWIDZAMUTQY7ZXMSKQZ5GSQ",
        "projectcalico.org/ip-version": "6",
    }
    assert affinity_selector() == ""
    assert affinity_selector(kind="host") == "projectcalico.org/affinity-type=host"
    assert affinity_selector(version=4) == "projectcalico.org/ip-version=4"
    assert affinity_selector("virtual", "load-balancer", 6) == ",".join(f"{k}={v}" for k, v in labels.items())


def test_handle_name_is_lowered_as_go_does() -> None:
    assert handle_name("K8s-Pod-Network.ABC") == "k8s-pod-network.abc"
    assert handle_name("\u0130\u03a3") == "i\u03c3"


@pytest.mark.parametrize("handle", ["k8s-pod-network.8f2c01d7", "K8S.ABC", "a", "a" * 253])
def test_legal_handle_names(handle: str) -> None:
    check_handle_name(handle)


@pytest.mark.parametrize("handle", ["net_1.abc", "a..b", "-a", "a.-b", "a-", "", "a b", "händle", "a" * 254, "a\n"])
def test_illegal_handle_names_are_refused_with_a_way_out(handle: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_handle_name(handle)
    assert repr(handle) in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("real", "shown"),
    [
        ("30316465-6365-4463-ad63-3564622d3638", "0c8c26a6-c6a6-44c6-adc6-ac2646b46c1c"),
        ("5d1a1b5e-0f0c-4d4e-9a11-2233445566aa", "ba58d87a-f030-4d72-9a88-44cc22aa6655"),
        ("41cb1fde-57e7-42c1-a73b-0acaf38c7737", "82d3f87b-eae7-4283-a7dc-5053cf31eeec"),
    ],
)
def test_uid(real: str, shown: str) -> None:
    assert convert_uid(real) == shown
    assert convert_uid(shown) == real
    assert convert_uid(f"urn:uuid:{real.upper()}") == convert_uid(f"{{{real}}}") == shown
    assert convert_uid(f"({real})") == shown  # what stands around it is not looked at


def test_random_uids_come_back_and_keep_their_version() -> None:
    for _ in range(50):
        uid = str(uuid.uuid4())
        assert convert_uid(convert_uid(uid)) == uid
        assert convert_uid(uid)[14] == "4"


@pytest.mark.parametrize(
    ("uid", "reason"),
    [
        ("not-a-uid", "invalid UUID length: 9"),
        ("", "invalid UUID length: 0"),
        ("g0316465-6365-4463-ad63-3564622d3638", "invalid UUID format"),
        ("303164656-365-4463-ad63-3564622d3638", "invalid UUID format"),
        ("+" + "0" * 31, "invalid UUID format"),
        ("é" * 18, "invalid UUID format"),
        ("xrn:uuid:5d1a1b5e-0f0c-4d4e-9a11-2233445566aa", 'invalid urn prefix: "xrn:uuid:"'),
        ("{5d1a1b5e-0f0c-4d4e-9a11-2233445566aa", "invalid UUID length: 37"),
    ],
)
def test_what_is_no_uid(uid: str, reason: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        convert_uid(uid)
    assert str(caught.value) == f"failed to parse UID for resource: {reason}"


# --- endpoints ----------------------------------------------------------------------------------------------

K8S = EndpointIds(node="node-1", orchestrator="k8s", pod="pod-name", endpoint="eth0")
CNI = EndpointIds(node="node-1", orchestrator="cni", container_id="abcdefa0123456", endpoint="eth0")
LIBNETWORK = EndpointIds(node="node-1", orchestrator="libnetwork", endpoint="abcdefgh")
OTHER = EndpointIds(node="node-1", orchestrator="foo", workload="foo-foo", endpoint="abcdefgh")


@pytest.mark.parametrize(
    ("ids", "name"),
    [
        (K8S, "node--1-k8s-pod--name-eth0"),
        (CNI, "node--1-cni-abcdefa0123456-eth0"),
        (LIBNETWORK, "node--1-libnetwork-libnetwork-abcdefgh"),
        (OTHER, "node--1-foo-foo--foo-abcdefgh"),
    ],
)
def test_endpoint_name(ids: EndpointIds, name: str) -> None:
    assert ids.name() == ids.prefix() == name
    assert ids.match(name)
    found = EndpointIds.parse(name)
    assert found.name() == name
    assert (found.node, found.orchestrator, found.endpoint) == (ids.node, ids.orchestrator, ids.endpoint)


@pytest.mark.parametrize(
    ("ids", "prefix"),
    [
        (EndpointIds(node="node-1"), "node--1-"),
        (EndpointIds(node="node-1", pod="p", endpoint="eth0"), "node--1-"),
        (EndpointIds(node="node-1", orchestrator="k8s", endpoint="eth0"), "node--1-k8s-"),
        (EndpointIds(node="node-1", orchestrator="foo"), "node--1-foo-"),
        (EndpointIds(node="node-1", orchestrator="k8s", pod="pod-name"), "node--1-k8s-pod--name-"),
        (EndpointIds(node="node-1", orchestrator="libnetwork"), "node--1-libnetwork-libnetwork-"),
    ],
)
def test_prefix(ids: EndpointIds, prefix: str) -> None:
    assert ids.prefix() == prefix


MISSING = "field should be assigned"
BEGINS = "field must not begin with a '-'"
ENDS = "field must not end with a '-'"


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        (EndpointIds(node="node-1", pod="p", endpoint="eth0"), f"error with field orchestrator = '' ({MISSING})"),
        (EndpointIds(node="node-1", orchestrator="k8s", endpoint="eth0"), f"error with field pod = '' ({MISSING})"),
        (EndpointIds(node="n", orchestrator="cni", endpoint="e"), f"error with field containerID = '' ({MISSING})"),
        (EndpointIds(node="n", orchestrator="foo", endpoint="e"), f"error with field workload = '' ({MISSING})"),
        (EndpointIds(node="n", orchestrator="k8s", pod="p"), f"error with field endpoint = '' ({MISSING})"),
        (EndpointIds(orchestrator="k8s", pod="p"), f"error with field node ({MISSING})"),
    ],
)
def test_missing_field(ids: EndpointIds, text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        ids.name()
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        (
            EndpointIds("n", "cni", container_id="-abcd", endpoint="e"),
            f"error with field containerID = '-abcd' ({BEGINS})",
        ),
        (
            EndpointIds("n", "foo", workload="foo-foo-", endpoint="e"),
            f"error with field workload = 'foo-foo-' ({ENDS})",
        ),
        (EndpointIds("-n", "k8s", pod="p", endpoint="e"), f"error with field node = '-n' ({BEGINS})"),
        (EndpointIds("n", "k8s", pod="p", endpoint="e-"), f"error with field endpoint = 'e-' ({ENDS})"),
    ],
)
def test_dashes_at_the_ends_in_both_modes(ids: EndpointIds, text: str) -> None:
    for build in (ids.name, ids.prefix):
        with pytest.raises(InvalidInput) as caught:
            build()
        assert str(caught.value) == text


def test_prefix_needs_a_node() -> None:
    with pytest.raises(InvalidInput, match="error with field node"):
        EndpointIds().prefix()


@pytest.mark.parametrize(
    ("ids", "name", "matches"),
    [
        (K8S, "node--1-k8s-pod--name-eth", False),
        (K8S, "node--1-k8s-pod--name-eth0-extra", False),
        (K8S, "node--1-k8s-pod--name", False),
        (EndpointIds(node="node1", orchestrator="k8s", pod="mypod"), "node1-k8s-mypod--1-eth0", False),
        (EndpointIds(node="node1", orchestrator="k8s", pod="mypod"), "node1-k8s-mypod-eth0", True),
        (EndpointIds(node="node-1", orchestrator="cni", endpoint="eth0"), "node--1-cni-orchestratorid-eth0", True),
    ],
)
def test_match(ids: EndpointIds, name: str, matches: bool) -> None:
    assert ids.match(name) is matches


def test_parse() -> None:
    assert EndpointIds.parse("node-") == EndpointIds(node="node")
    assert EndpointIds.parse("node-k8s-pod--name-") == EndpointIds(node="node", orchestrator="k8s", pod="pod-name")
    assert EndpointIds.parse("node-foo--orch-workload-eth0") == EndpointIds(
        node="node", orchestrator="foo-orch", workload="workload", endpoint="eth0"
    )
    three = EndpointIds.parse("coredns-668d6bf9bc-bxhr6")
    assert (three.node, three.orchestrator, three.workload, three.endpoint) == ("coredns", "668d6bf9bc", "bxhr6", "")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "Cannot parse empty string"),
        (
            "calico-kube-controllers-7946b84856-2fwwq",
            "Error parsing calico-kube-controllers-7946b84856-2fwwq, verify that WorkloadEndpoint name is correct",
        ),
    ],
)
def test_parse_refuses(name: str, text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        EndpointIds.parse(name)
    assert str(caught.value) == text


def test_split() -> None:
    assert split_name("a---b") == ["a-", "b"]
    assert split_name("-a-b") == ["-a", "b"]
    assert split_name("a") == ["a"]
    assert split_name("") == [""]
    assert split_name("a--") == ["a-"]


@pytest.mark.parametrize(
    ("namespace", "pod", "name"),
    [
        ("namespace", "podname", "cali82111e10a96"),
        ("default", "podA", "cali7f94ce7c295"),
        ("testNamespace", "simplePod", "caliedff4356bd6"),
        ("default", "nginx", "calic440f455693"),
        ("test", "test-pod-1", "cali618a041cd51"),
        ("kube-system", "coredns-668d6bf9bc-bxhr6", "cali31d9284891c"),
    ],
)
def test_host_interface_of_a_pod(namespace: str, pod: str, name: str) -> None:
    assert veth_name_for_workload(namespace, pod) == name


def test_host_interface_prefix() -> None:
    assert veth_name_for_workload("namespace", "podname", "eni,veth,foo") == "eni82111e10a96"
    assert veth_name_for_workload("namespace", "podname", "") == "cali82111e10a96"


def test_host_interface_of_a_name_that_is_no_utf_8() -> None:
    assert veth_name_for_workload("default", "p\udcff").startswith("cali")


def test_host_interface_of_a_container() -> None:
    assert veth_name_for_container("abcdefa0123456") == "caliabcdefa0123"
    assert veth_name_for_container("abc") == "caliabc"


def test_status_file() -> None:
    assert status_file_name("k8s", "default/testpod1", "eth0") == "k8s default%2Ftestpod1 eth0"
    assert status_file_name("k8/s", "defaul/t/testp/od1", "eth/0") == "k8%2Fs defaul%2Ft%2Ftestp%2Fod1 eth%2F0"
    assert status_file_name("k8s", "default/t est pod1", "eth0") == "k8s default%2Ft%20est%20pod1 eth0"
    assert status_file_name("a$&+=:@b", "~_.-", "c") == "a$&+=:@b ~_.- c"


def test_profiles() -> None:
    assert parse_profile(namespace_profile("default")) == ("default", "")
    assert parse_profile(service_account_profile("default", "test.foo")) == ("default", "test.foo")
    assert (namespace_profile("a"), service_account_profile("a", "b")) == ("kns.a", "ksa.a.b")
    for name in ("ns.projectcalico.org/default", "kns.", "ksa.default", "ksa..x", "default.foo", ""):
        with pytest.raises(InvalidInput):
            parse_profile(name)


# --- handles ------------------------------------------------------------------------------------------------


def test_workload_and_tunnel_handles() -> None:
    assert workload_handle("k8s-pod-network", "8f2c") == "k8s-pod-network.8f2c"
    assert [tunnel_handle(kind, "n") for kind in TUNNEL_HANDLES] == [
        "ipip-tunnel-addr-n",
        "vxlan-tunnel-addr-n",
        "vxlan-v6-tunnel-addr-n",
        "wireguard-tunnel-addr-n",
        "wireguard-v6-tunnel-addr-n",
    ]
    with pytest.raises(InvalidInput, match="unknown tunnel address type 'gre'"):
        tunnel_handle("gre", "n")


@pytest.mark.parametrize(
    ("suffix", "longest", "text"),
    [
        ("1234", 10, "felix1234"),
        ("123456", 11, "felix123456"),
        ("_2345", 10, "felix_kMQI"),
        ("12345678910", 13, "felix_Y2QCZIS"),
        ("", 10, "felix_"),
    ],
)
def test_length_limiter(suffix: str, longest: int, text: str) -> None:
    assert length_limited("felix", suffix, longest) == text


def test_length_limiter_refuses_what_cannot_be_filled() -> None:
    assert len(length_limited("felix", "x" * 100, 49)) == 49
    for longest in (6, 5, 1, 50):
        with pytest.raises(InvalidInput, match=f"do not fit into {longest}"):
            length_limited("felix", "x" * 100, longest)


def test_vm_handle() -> None:
    assert vm_handle("", "default", "vm1") == "k8s-pod-network.vmi.default.vm1"
    assert vm_handle("net", "default", "vm1") == "net.vmi.default.vm1"
    assert len(vm_handle("x" * 80, "n" * 40, "v" * 40)) == 128


def test_a_vm_handle_that_nobody_can_make_is_a_clear_error() -> None:
    with pytest.raises(InvalidInput) as caught:
        vm_handle("", "n" * 60, "v" * 60)
    assert "virtual machine" in str(caught.value)
    assert "Shorten" in caught.value.hint
