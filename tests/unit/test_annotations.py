"""What annotations ask for, and how each malformed one is refused (cni.md §6.2, §6.3, §10; reports P24, P29)."""

from __future__ import annotations

from typing import Any

import pytest

from calico_cni import netconf
from calico_cni.errors import CNIError
from calico_cni.plugin.annotations import PREFIX, Wishes, wishes
from calico_ipam.model.addresses import parse_address

ON = {"ip_addrs_no_ipam": True, "floating_ips": True}


def conf(ipam: str = "calico-ipam", **features: bool) -> netconf.NetConf:
    return netconf.load({"name": "n", "ipam": {"type": ipam}, "feature_control": features})


def asked(pod: dict[str, str], namespace: dict[str, str] | None = None, **features: bool) -> Wishes:
    def prefixed(given: dict[str, str]) -> dict[str, str]:
        return {PREFIX + name: text for name, text in given.items()}

    return wishes(conf("calico-ipam", **(features or ON)), prefixed(pod), prefixed(namespace or {}))


def refusal(pod: dict[str, str], **features: bool) -> CNIError:
    with pytest.raises(CNIError) as found:
        asked(pod, None, **features)
    return found.value


def test_nothing_is_asked_for() -> None:
    assert asked({}) == Wishes()


def test_pools_of_the_pod_beat_those_of_the_namespace() -> None:
    found = asked({"ipv4pools": '["a"]'}, {"ipv4pools": '["b"]', "ipv6pools": '["c", "fd00::/64"]'})
    assert (found.ipv4_pools, found.ipv6_pools) == (("a",), ("c", "fd00::/64"))


def test_an_empty_list_of_pools_means_every_pool() -> None:
    assert asked({"ipv4pools": "[]"}).ipv4_pools == ()


@pytest.mark.parametrize(
    ("text", "families"),
    [('["IPv6"]', (6,)), ('["IPv6","IPv4"]', (4, 6)), ('["IPv4"]', (4,))],
)
def test_families(text: str, families: tuple[int, ...]) -> None:
    assert asked({"ipFamilies": text}).families == families
    assert asked({}, {"ipFamilies": text}).families == families


def test_other_ipam_plugins_do_not_hear_of_pools_and_families() -> None:
    found = wishes(conf("host-local"), {f"{PREFIX}ipv4pools": "nonsense", f"{PREFIX}ipFamilies": "nonsense"}, {})
    assert found == Wishes()


def test_addresses() -> None:
    found = asked({"ipAddrs": '["10.0.0.5","fd00::5"]'})
    assert found.assigned == (parse_address("10.0.0.5"), parse_address("fd00::5"))
    assert asked({"ipAddrsNoIpam": '["10.0.0.1"]'}).given == (parse_address("10.0.0.1"),)
    assert asked({"floatingIPs": '["1.1.1.1"]'}).floating == (parse_address("1.1.1.1"),)
    for text in ("CA-FE-CA-FE-CA-FE", "ca:fe:ca:fe:ca:fe", "cafe.cafe.cafe"):
        assert asked({"hwAddr": text}).mac == "ca:fe:ca:fe:ca:fe"


def test_lists_that_hold_nothing() -> None:
    """No family at all is for the IPAM plugin to answer; a pool without a name is not found by it."""
    assert asked({"ipFamilies": "[]"}).families == asked({"ipFamilies": "null"}).families == ()
    assert asked({"ipv4pools": "[null]"}).ipv4_pools == ("",)
    assert asked({"ipv4pools": "null"}).ipv4_pools == ()


#: annotations, features, upstream's text, what ours says beside it
BAD: list[tuple[str, dict[str, str], str, str]] = [
    (
        "pools no json",
        {"ipv4pools": "pool-2"},
        "invalid character 'p' looking for beginning of value",
        "names or CIDRs",
    ),
    (
        "pools no quotes",
        {"ipv4pools": "[new-pool]"},
        "invalid character 'e' in literal null",
        "ipv4pools is '[new-pool]'",
    ),
    (
        "pools one text",
        {"ipv4pools": '"new-pool"'},
        "json: cannot unmarshal string into Go value of type []string",
        "must be a JSON list",
    ),
    (
        "pools numbers",
        {"ipv6pools": "[1]"},
        "json: cannot unmarshal number into Go value of type string",
        "ipv6pools is '[1]'",
    ),
    ("families unknown", {"ipFamilies": '["ipv4"]'}, 'error parsing ipFamilies: ["ipv4"]', "written exactly so"),
    ("families null inside", {"ipFamilies": "[null]"}, "error parsing ipFamilies: [null]", "must be a JSON list"),
    (
        "families no json",
        {"ipFamilies": "IPv4"},
        "invalid character 'I' looking for beginning of value",
        "ipFamilies is 'IPv4'",
    ),
    (
        "two addresses",
        {"ipAddrs": '["90.0.0.1","90.0.0.2"]'},
        'cannot have more than one IPv4 address for "cni.projectcalico.org/ipAddrs" annotation',
        "at most one of each family",
    ),
    (
        "two of ipv6",
        {"ipAddrsNoIpam": '["::1","::2"]'},
        'cannot have more than one IPv6 address for "cni.projectcalico.org/ipAddrsNoIpam" annotation',
        "at most one of each family",
    ),
    (
        "addresses empty",
        {"ipAddrs": "[]"},
        'annotation "cni.projectcalico.org/ipAddrs" specified but empty',
        "ipAddrs is '[]'",
    ),
    (
        "addresses null",
        {"ipAddrs": "null"},
        'annotation "cni.projectcalico.org/ipAddrs" specified but empty',
        "JSON list",
    ),
    ("address null", {"ipAddrs": "[null]"}, "invalid IP format: ", "ipAddrs is '[null]'"),
    ("address empty", {"ipAddrs": '[""]'}, "invalid IP format: ", "ipAddrs is '[\"\"]'"),
    ("address with length", {"ipAddrs": '["10.0.0.5/32"]'}, "invalid IP format: 10.0.0.5/32", "JSON list of addresses"),
    (
        "address no list",
        {"ipAddrs": '"90.0.0.1"'},
        'failed to parse IPs "90.0.0.1" for annotation "cni.projectcalico.org/ipAddrs": '
        "failed to parse '\"90.0.0.1\"' as JSON: json: cannot unmarshal string into Go value of type []string",
        "JSON list of addresses",
    ),
    (
        "both kinds",
        {"ipAddrs": '["10.0.0.5"]', "ipAddrsNoIpam": '["10.0.0.6"]'},
        "can't have both annotations: 'ipAddrs' and 'ipAddrsNoIpam' in use at the same time",
        "Remove one of",
    ),
    ("floating garbage", {"floatingIPs": '["gumbo"]'}, "invalid floating IP: gumbo", "floatingIPs is '[\"gumbo\"]'"),
    ("floating no json", {"floatingIPs": "1.1.1.1"}, "failed to parse '1.1.1.1' as JSON: ", "floatingIPs is '1.1.1.1'"),
    (
        "mac garbage",
        {"hwAddr": "garbage"},
        "failed to parse MAC address garbage provided via cni.projectcalico.org/hwAddr: "
        "address garbage: invalid MAC address",
        "six pairs",
    ),
    ("mac of mixed marks", {"hwAddr": "02:00-00:00:00:01"}, "invalid MAC address", "six pairs"),
    ("mac too short", {"hwAddr": "02:00:00"}, "failed to parse MAC address 02:00:00", "hwAddr is '02:00:00'"),
    ("mac of a group", {"hwAddr": "01:00:00:00:00:01"}, "is a multicast address", "must be even"),
]


@pytest.mark.parametrize(("pod", "text", "advice"), [pytest.param(p, t, a, id=i) for i, p, t, a in BAD])
def test_what_is_malformed_is_quoted_with_its_rule(pod: dict[str, str], text: str, advice: str) -> None:
    error = refusal(pod)
    assert text in error.message and advice in error.details, (error.message, error.details)
    assert error.code == 999


@pytest.mark.parametrize(
    ("pod", "feature"),
    [({"ipAddrsNoIpam": '["10.0.0.1"]'}, "ip_addrs_no_ipam"), ({"floatingIPs": '["1.1.1.1"]'}, "floating_ips")],
)
def test_features_are_off_unless_the_configuration_has_them(pod: dict[str, str], feature: str) -> None:
    error = refusal(pod, floating_ips=False)
    assert error.message == f"requested feature is not enabled: {feature}"
    assert f'"{feature}": true' in error.details


@pytest.mark.parametrize("name", ["ipAddrs", "ipAddrsNoIpam"])
def test_fixed_addresses_need_our_ipam(name: str) -> None:
    with pytest.raises(CNIError) as found:
        wishes(conf("host-local", **ON), {PREFIX + name: '["10.0.0.1"]'}, {})
    assert found.value.message == f"{name} is not compatible with configured IPAM: host-local"


def test_a_namespace_cannot_fix_addresses() -> None:
    others: Any = {"ipAddrs": '["10.0.0.1"]', "hwAddr": "garbage", "floatingIPs": "garbage"}
    assert asked({}, others) == Wishes()
