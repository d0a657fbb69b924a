"""Results of ADD in seven versions: printed, read, and carried from any to any (cni.md §2.5)."""

from __future__ import annotations

import json
from ipaddress import ip_interface
from typing import Any

import pytest

from calico_cni.errors import CNIError
from calico_cni.protocol import SUPPORTED
from calico_cni.results import (
    DNS,
    MIDDLE,
    NEWER,
    OLDEST,
    Result,
    ResultInterface,
    ResultIP,
    ResultRoute,
    document_of,
    parse_result,
    print_result,
)

FOUR, SIX = ip_interface("192.168.166.130/32"), ip_interface("fd00::2a40/128")
RESULT = Result(
    interfaces=(
        ResultInterface("calic440f455693"),
        ResultInterface("eth0", "3a:5e:0c:9a:77:01", 1450, "/var/run/netns/cni-5a6b"),
    ),
    ips=(ResultIP(FOUR, interface=1), ResultIP(SIX, interface=1)),
    routes=(ResultRoute("192.168.166.130/26", extra={"mtu": 1400}), ResultRoute("fd00::2a40/122", "fe80::1")),
    dns=DNS(("10.0.0.2",), "x", ("a", "b"), ("o",)),
)
DNS_ORDERED = {"nameservers": ["10.0.0.2"], "domain": "x", "search": ["a", "b"], "options": ["o"]}

SHAPES: dict[tuple[str, ...], dict[str, Any]] = {
    OLDEST: {
        "ip4": {"ip": "192.168.166.130/32", "routes": [{"dst": "192.168.166.130/26"}]},
        "ip6": {"ip": "fd00::2a40/128", "routes": [{"dst": "fd00::2a40/122", "gw": "fe80::1"}]},
        "dns": DNS_ORDERED,
    },
    MIDDLE: {
        "interfaces": [
            {"name": "calic440f455693"},
            {"name": "eth0", "mac": "3a:5e:0c:9a:77:01", "sandbox": "/var/run/netns/cni-5a6b"},
        ],
        "ips": [
            {"version": "4", "interface": 1, "address": "192.168.166.130/32"},
            {"version": "6", "interface": 1, "address": "fd00::2a40/128"},
        ],
        "routes": [{"dst": "192.168.166.130/26"}, {"dst": "fd00::2a40/122", "gw": "fe80::1"}],
        "dns": DNS_ORDERED,
    },
    NEWER: {
        "dns": dict(sorted(DNS_ORDERED.items())),
        "interfaces": [
            {"name": "calic440f455693"},
            {"mac": "3a:5e:0c:9a:77:01", "mtu": 1450, "name": "eth0", "sandbox": "/var/run/netns/cni-5a6b"},
        ],
        "ips": [
            {"address": "192.168.166.130/32", "interface": 1},
            {"address": "fd00::2a40/128", "interface": 1},
        ],
        "routes": [{"dst": "192.168.166.130/26", "mtu": 1400}, {"dst": "fd00::2a40/122", "gw": "fe80::1"}],
    },
}


@pytest.mark.parametrize("version", SUPPORTED)
def test_shape_and_order_of_keys(version: str) -> None:
    (shape,) = (found for family, found in SHAPES.items() if version in family)
    expected = json.dumps({"cniVersion": version, **shape}, indent=4)
    assert print_result(RESULT, version) == expected


def test_alphabetical_at_every_level_from_1_0_0() -> None:
    def check(value: Any) -> None:
        if isinstance(value, dict):
            assert list(value) == sorted(value)
        for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            check(item)

    full = Result(
        interfaces=(ResultInterface("a", "m", 1, "s", {"socketPath": "p", "pciID": "i"}),),
        ips=(ResultIP(FOUR, "10.0.0.1", 0),),
        routes=(ResultRoute("10.0.0.0/8", "10.0.0.1", {"table": 1, "scope": 0, "advmss": 1, "priority": 1, "mtu": 1}),),
        dns=RESULT.dns,
    )
    for version in NEWER:
        check(document_of(full, version))


def test_what_is_empty_is_left_out() -> None:
    assert document_of(Result(), "1.0.0") == {"cniVersion": "1.0.0"}
    assert document_of(Result(), "0.4.0") == {"cniVersion": "0.4.0", "dns": {}}


@pytest.mark.parametrize("version", OLDEST)
def test_the_oldest_shape_needs_an_address(version: str) -> None:
    with pytest.raises(CNIError) as caught:
        print_result(Result(routes=(ResultRoute("10.0.0.0/8"),)), version)
    assert caught.value.document() == {"code": 999, "msg": "cannot convert: no valid IP addresses"}


def test_the_oldest_shape_has_the_first_address_of_each_family_and_its_routes() -> None:
    two = Result(
        ips=(ResultIP(ip_interface("10.0.0.1/24"), "10.0.0.254"), ResultIP(ip_interface("10.0.0.2/24"))),
        routes=(ResultRoute("0.0.0.0/0"), ResultRoute("::/0")),
    )
    assert document_of(two, "0.2.0") == {
        "cniVersion": "0.2.0",
        "ip4": {"ip": "10.0.0.1/24", "gateway": "10.0.0.254", "routes": [{"dst": "0.0.0.0/0"}]},
        "dns": {},
    }


def test_an_unknown_version() -> None:
    for function in (lambda: document_of(RESULT, "7"), lambda: parse_result({"cniVersion": "7"}, "1.0.0")):
        with pytest.raises(CNIError) as caught:
            function()
        assert caught.value.message == 'unsupported CNI result version "7"'


# --- reading ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [*MIDDLE, *NEWER])
def test_what_is_printed_is_read_back(version: str) -> None:
    read = parse_result(document_of(RESULT, version), "0.1.0")
    assert document_of(read, version) == document_of(RESULT, version)
    assert read.ips == RESULT.ips and read.dns == RESULT.dns


@pytest.mark.parametrize("target", SUPPORTED)
@pytest.mark.parametrize("source", SUPPORTED)
def test_from_any_version_to_any(source: str, target: str) -> None:
    read = parse_result(document_of(RESULT, source), "")
    document = document_of(read, target)
    told = (
        {ip["address"] for ip in document["ips"]} if "ips" in document else {document[k]["ip"] for k in ("ip4", "ip6")}
    )
    assert told == {str(FOUR), str(SIX)}


@pytest.mark.parametrize("version", [None, "", "0.2.0"])
def test_a_result_without_a_version_has_the_configurations(version: str | None) -> None:
    old = {"ip4": {"ip": "10.0.0.1/24"}}
    document = {"cniVersion": version, **old} if version is not None else old
    assert parse_result(document, "0.2.0").ips[0].address == ip_interface("10.0.0.1/24")
    assert parse_result({"ips": [{"address": "10.0.0.1/24"}]}, "1.0.0").ips[0].address == ip_interface("10.0.0.1/24")
    assert parse_result({}, "").ips == ()


def test_routes_of_the_oldest_shape_come_ipv4_first() -> None:
    document = {
        "cniVersion": "0.1.0",
        "ip6": {"ip": "fd00::1/64", "routes": [{"dst": "::/0"}]},
        "ip4": {"ip": "10.0.0.1/24", "routes": [{"dst": "0.0.0.0/0", "gw": "10.0.0.254"}]},
    }
    assert [route.dst for route in parse_result(document, "").routes] == ["0.0.0.0/0", "::/0"]


@pytest.mark.parametrize(
    "document",
    [
        {"ips": [{"address": "nothing"}]},
        {"ips": [{}]},
        {"ips": "x"},
        {"ips": 5},
        {"ips": {"address": "10.0.0.1/24"}},
        {"ips": [1]},
        {"ips": [{"address": "10.0.0.1/24", "interface": "eth0"}]},
        {"routes": [{}]},
        {"routes": [{"dst": "10.0.0.0"}]},
        {"ips": [{"address": "10.0.0.1/255.255.255.0"}]},
        {"ips": [{"address": "fe80::1%eth0/64"}]},
        {"routes": [{"dst": "10.0.0.0/33"}]},
        {"interfaces": [{"name": 1}]},
        {"dns": {"nameservers": [1]}},
        {"dns": "x"},
    ],
)
def test_what_cannot_be_read_is_an_error(document: dict[str, Any]) -> None:
    with pytest.raises(CNIError) as caught:
        parse_result({"cniVersion": "1.0.0", **document}, "")
    assert "object has no attribute" not in caught.value.message and "not iterable" not in caught.value.message


@pytest.mark.parametrize("text", ["10.0.0.1/33", "10.0.0.1/255.255.255.0", "fe80::1%eth0/64", "10.0.0.1", "x/8"])
def test_a_bad_address_is_told_in_the_words_of_the_runtimes(text: str) -> None:
    with pytest.raises(CNIError, match=r"^invalid CIDR address: "):
        parse_result({"cniVersion": "1.0.0", "ips": [{"address": text}]}, "")
