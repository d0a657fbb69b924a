"""host-local with the node's ranges: ADD fills them in, DEL never hands out ranges that overlap (cni.md §6.2 a, §9)."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Any

import pytest

from calico_cni.errors import CNIError
from calico_cni.plugin import podcidr

DUAL = {"spec": {"podCIDRs": ["10.50.0.0/24", "fd50::/112"]}}


def document(**ipam: Any) -> dict[str, Any]:
    return {"name": "n", "ipam": {"type": "host-local", **ipam}}


def added(given: dict[str, Any], node: dict[str, Any] = DUAL) -> dict[str, Any]:
    ipam: dict[str, Any] = podcidr.for_add(given, lambda: node, "worker-1")["ipam"]
    return ipam


def refusal(given: dict[str, Any], node: dict[str, Any] = DUAL) -> str:
    with pytest.raises(CNIError) as found:
        added(given, node)
    return found.value.message


def test_the_short_form() -> None:
    assert added(document(subnet="usePodCidr", dataDir="/x")) == {
        "type": "host-local",
        "dataDir": "/x",
        "subnet": "10.50.0.0/24",
    }
    assert added(document(subnet="USEPODCIDRIPV6"))["subnet"] == "fd50::/112"


def test_ranges_of_both_families_and_one_of_their_own() -> None:
    ranges = [
        [{"subnet": "usePodCidr", "gateway": "10.50.0.1"}],
        [{"subnet": "UsePodCidrIPv6"}],
        [{"subnet": "10.9.0.0/16"}],
    ]
    assert added(document(ranges=ranges))["ranges"] == [
        [{"subnet": "10.50.0.0/24", "gateway": "10.50.0.1"}],
        [{"subnet": "fd50::/112"}],
        [{"subnet": "10.9.0.0/16"}],
    ]


def test_a_configuration_without_magic_words_reads_no_node_and_stays_as_it_is() -> None:
    given = document(ranges=[[{"subnet": "10.9.0.0/16", "own": 1}]], routes=[{"dst": "0.0.0.0/0"}])
    assert podcidr.for_add(given, lambda: pytest.fail("the node was read"), "worker-1") == given


def test_the_node_is_read_once() -> None:
    reads: list[int] = []

    def node() -> dict[str, Any]:
        reads.append(1)
        return DUAL

    podcidr.for_add(document(ranges=[[{"subnet": "usePodCidr"}], [{"subnet": "usePodCidrIPv6"}]]), node, "worker-1")
    assert len(reads) == 1


@pytest.mark.parametrize(
    ("cidrs", "word", "text"),
    [
        (None, "usePodCidr", "no podCidr for node worker-1"),
        ([], "usePodCidr", "no podCidr for node worker-1"),
        (["10.50.0.0/24"], "usePodCidrIPv6", "usePodCidrIPv6 found but there is no IPv6 CIDR configured"),
        (["fd50::/112"], "usePodCidr", "usePodCidr found but there is no IPv4 CIDR configured"),
        (["10.1.0.0/24", "10.2.0.0/24"], "usePodCidr", "ClusterCIDR contains two ranges of the same type"),
        (["gumbo"], "usePodCidr", "podCidr gumbo of node worker-1: "),
    ],
)
def test_nodes_that_lack_the_range(cidrs: Any, word: str, text: str) -> None:
    assert refusal(document(subnet=word), {"spec": {"podCIDRs": cidrs}}).startswith(text)


@pytest.mark.parametrize(
    ("ipam", "text"),
    [
        (
            {"ranges": {"b": [1, 2.5, True], "a": None}},
            "failed to parse host-local IPAM ranges section; was expecting a list, not: map[a:<nil> b:[1 2.5 true]]",
        ),
        ({"ranges": [{"subnet": "x"}]}, "failed to parse host-local IPAM range set; was expecting a list, not: []"),
        ({"ranges": [["x"]]}, "failed to parse host-local IPAM data; was expecting a dict, not: x"),
    ],
)
def test_wrong_shapes(ipam: dict[str, Any], text: str) -> None:
    assert refusal(document(**ipam)) == text
    with pytest.raises(CNIError):
        podcidr.for_delete(document(**ipam))


@pytest.mark.parametrize(
    "others",
    [["10.60.0.0/24"], ["198.51.100.0/25"], ["0.0.0.0/1", "198.51.100.0/29", "198.51.100.8/29"], ["fd60::/112"]],
)
def test_stand_ins_of_delete_overlap_with_nothing(others: list[str]) -> None:
    """Stock host-local refuses overlapping ranges, upstream's stand-in 0.0.0.0/0 among others, and then leaks."""
    magic: list[list[dict[str, Any]]] = [
        [{"subnet": "usePodCidr", "rangeStart": "10.50.0.9", "rangeEnd": "10.50.0.10", "gateway": "10.50.0.1"}]
    ]
    magic += [[{"subnet": "usePodCidr"}, {"subnet": "usePodCidrIPv6", "own": True}]]
    found = podcidr.for_delete(document(ranges=[*magic, *([{"subnet": other}] for other in others)]))["ipam"]["ranges"]
    networks: list[Any] = [ip_network(entry["subnet"]) for entries in found for entry in entries]
    for index, one in enumerate(networks):
        assert not any(one.version == two.version and one.overlaps(two) for two in networks[:index])
    assert found[0][0].keys() == {"subnet"} and found[1][1]["own"] is True
    assert [str(n) for n in networks[3:]] == others


def test_a_subnet_that_is_no_text_is_for_host_local_to_refuse() -> None:
    given = document(ranges=[[{"subnet": 7}]])
    assert added(given)["ranges"] == [[{"subnet": 7}]]


def test_routes() -> None:
    given = document(routes=[{"dst": "10.123.4.5/16", "gw": "1.2.3.4"}, {"gw": "1.2.3.4"}, {"dst": "fd00::/8"}])
    assert [str(route) for route in podcidr.routes(given)] == ["10.123.0.0/16", "fd00::/8"]
    assert podcidr.routes(document()) == []


@pytest.mark.parametrize(
    ("routes", "text"),
    [
        ([{"dst": "gumbo"}], "invalid CIDR address: gumbo"),
        ([{"dst": "10.0.0.1"}], "invalid CIDR address: 10.0.0.1"),
        ([{"dst": "10.0.0.0/33"}], "invalid CIDR address: 10.0.0.0/33"),
        ([{"dst": 7}], "invalid IPAM routes section; expecting 'dst' to be a string, not: 7"),
        ([{"dst": None}], "invalid IPAM routes section; expecting 'dst' to be a string, not: <nil>"),
        (
            {"dst": "10.0.0.0/8"},
            "failed to parse host-local IPAM routes section; expecting list, not: "
            "map[routes:map[dst:10.0.0.0/8] type:host-local]",
        ),
        (["x"], "failed to parse host-local IPAM routes section; expecting a dict, not: x"),
    ],
)
def test_bad_routes(routes: Any, text: str) -> None:
    with pytest.raises(CNIError) as found:
        podcidr.routes(document(routes=routes))
    assert found.value.message == text
