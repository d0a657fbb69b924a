"""The network configuration: Go's reading of JSON, defaults, and what GC and conventions put in it."""

from __future__ import annotations

from typing import Any

import pytest

from calico_cni import gojson, netconf
from calico_cni.args import ADDRESS_KEYS, WORKLOAD_KEYS, parse_args
from calico_cni.errors import CNIError
from calico_cni.netconf import Attachment


def message_of(document: dict[str, Any]) -> str:
    with pytest.raises(CNIError) as caught:
        netconf.load(document)
    assert caught.value.code == 999
    return caught.value.message.removeprefix("failed to load netconf: json: cannot unmarshal ")


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"mtu": "1500"}, "string into Go struct field NetConf.mtu of type int"),
        ({"mtu": 1.5}, "number 1.5 into Go struct field NetConf.mtu of type int"),
        ({"mtu": True}, "bool into Go struct field NetConf.mtu of type int"),
        ({"vxlan_vni": -1}, "number -1 into Go struct field NetConf.vxlan_vni of type uint64"),
        ({"name": 1}, "number into Go struct field NetConf.name of type string"),
        ({"readiness_gates": "http://x"}, "string into Go struct field NetConf.readiness_gates of type []string"),
        ({"readiness_gates": [1]}, "number into Go struct field NetConf.readiness_gates of type string"),
        ({"ipam": {"assign_ipv4": True}}, "bool into Go struct field .ipam.assign_ipv4 of type string"),
        ({"ipam": {"ipv4_pools": "x"}}, "string into Go struct field .ipam.ipv4_pools of type []string"),
        ({"policy": "k8s"}, "string into Go struct field NetConf.policy of type types.Policy"),
        ({"policy": {"type": 1}}, "number into Go struct field Policy.policy.type of type string"),
        (
            {"feature_control": {"floating_ips": "yes"}},
            "string into Go struct field FeatureControl.feature_control.floating_ips of type bool",
        ),
        (
            {"dataplane_options": []},
            "array into Go struct field NetConf.dataplane_options of type map[string]interface {}",
        ),
        ({"MTU": "x"}, "string into Go struct field NetConf.mtu of type int"),
        ({"qps": 1e39}, "number 1e+39 into Go struct field NetConf.qps of type float32"),
        ({"runtimeConfig": 5}, "number into Go struct field NetConf.RuntimeConfig of type types.RuntimeConfig"),
        (
            {"runtimeConfig": {"dns": {"servers": "x"}}},
            "string into Go struct field RuntimeConfigDNS.RuntimeConfig.DNS.servers of type []string",
        ),
        ({"windows_loopback_dsr": 1}, "number into Go struct field NetConf.windows_loopback_DSR of type bool"),
        ({"args": []}, "array into Go struct field NetConf.args of type types.Args"),
    ],
)
def test_a_wrong_type_is_told_as_go_tells_it(document: dict[str, Any], message: str) -> None:
    assert message_of(document) == message


@pytest.mark.parametrize("key", netconf.FILE_KEYS)
def test_no_file_has_such_a_name(key: str) -> None:
    with pytest.raises(CNIError, match=f"{key} holds a NUL character"):
        netconf.load({"name": "n", key: "/x\0y"})


def test_the_first_wrong_type_is_told() -> None:
    assert "NetConf.hostname" in message_of({"hostname": 1, "mtu": "x"})
    assert "NetConf.mtu" in message_of({"mtu": "x", "hostname": 1})


def test_defaults() -> None:
    conf = netconf.load({"name": "n", "cniVersion": "1.0.0"})
    assert (conf.name, conf.version, conf.mtu, conf.num_queues, conf.device_type) == ("n", "1.0.0", 0, 0, "")
    assert conf.nodename_file == "/var/lib/calico/nodename"
    assert conf.ipam_lock_file == "/var/run/calico/ipam.lock"
    assert conf.endpoint_status_dir == "/var/run/calico/endpoint-status"
    assert (conf.ipam.assign_ipv4, conf.ipam.assign_ipv6) == (True, False)
    assert (conf.log.level, conf.log.max_size, conf.log.max_age, conf.log.max_count) == ("info", 100, 30, 10)
    assert conf.store_settings == {}
    assert conf.previous is None
    assert not conf.for_kubernetes


def test_null_is_absent_and_unknown_keys_are_ignored() -> None:
    assert netconf.load({"mtu": None, "ipam": None, "policy": None, "what": {"a": 1}}).mtu == 0


def test_keys_match_without_regard_to_case() -> None:
    conf = netconf.load({"MTU": 1400, "Ipam": {"TYPE": "x"}, "Policy": {"Type": "k8s"}})
    assert (conf.mtu, conf.ipam.type, conf.policy_type) == (1400, "x", "k8s")
    assert netconf.load({"mtu": 1, "MTU": 2}).mtu == 2


@pytest.mark.parametrize(
    ("four", "six", "expected"),
    [
        (None, None, (True, False)),
        ("true", "true", (True, True)),
        ("false", "true", (False, True)),
        ("False", "True", (True, False)),
        ("", "", (True, False)),
    ],
)
def test_families(four: str | None, six: str | None, expected: tuple[bool, bool]) -> None:
    ipam = netconf.load({"ipam": {"assign_ipv4": four, "assign_ipv6": six}}).ipam
    assert (ipam.assign_ipv4, ipam.assign_ipv6) == expected


@pytest.mark.parametrize(
    ("level", "expected"), [("DEBUG", "debug"), ("Error", "error"), ("warning", "info"), ("", "info"), ("x", "info")]
)
def test_log_levels(level: str, expected: str) -> None:
    assert netconf.load({"log_level": level}).log.level == expected


def test_only_what_is_set_is_handed_to_the_store() -> None:
    conf = netconf.load(
        {"etcd_endpoints": "http://h:2379", "etcd_key_file": "", "kubernetes": {"kubeconfig": "/k", "node_name": ""}}
    )
    assert conf.store_settings == {"etcd_endpoints": "http://h:2379", "kubernetes": {"kubeconfig": "/k"}}


def test_keys_without_effect_are_named() -> None:
    conf = netconf.load({"etcd_authority": "h:2379", "policy": {"type": "k8s", "k8s_auth_token": "SECRET"}})
    assert conf.ineffective == ("etcd_authority", "policy.k8s_auth_token")
    assert "SECRET" not in repr(conf)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({}, None),
        ({"cni.dev/valid-attachments": None}, None),
        ({"cni.dev/valid-attachments": []}, set()),
        ({"cni.dev/attachments": []}, set()),
        ({"cni.dev/valid-attachments": [{"containerID": "a", "ifname": "eth0"}]}, {Attachment("a", "eth0")}),
    ],
)
def test_attachments(document: dict[str, Any], expected: set[Attachment] | None) -> None:
    assert netconf.valid_attachments(document) == expected


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({}, []),
        ({"args": {"cni": {"ips": ["10.0.0.1/24"]}}}, ["10.0.0.1"]),
        ({"runtimeConfig": {"ips": ["fd00::1"]}, "args": {"cni": {"ips": ["10.0.0.1"]}}}, ["fd00::1"]),
        ({"args": {"cni": {"ips": []}}}, []),
        ({"RuntimeConfig": {"IPs": ["10.0.0.2"]}}, ["10.0.0.2"]),
        ({"Args": {"CNI": {"Ips": ["10.0.0.3/8"]}}}, ["10.0.0.3"]),
        ({"runtimeConfig": {"ips": ["10.0.0.4"]}, "RUNTIMECONFIG": None}, ["10.0.0.4"]),
        ({"args": {"cni": None}, "runtimeConfig": None}, []),
    ],
)
def test_addresses_of_the_conventions(document: dict[str, Any], expected: list[str]) -> None:
    assert [str(ip) for ip in netconf.wanted_addresses(document)] == expected


# --- CNI_ARGS -----------------------------------------------------------------------------------------------


def args_error(text: str, known: frozenset[str] = ADDRESS_KEYS) -> str:
    with pytest.raises(CNIError) as caught:
        parse_args(text, known)
    return caught.value.message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("IP", 'ARGS: invalid pair "IP"'),
        ("IP=1.2.3.4;", 'ARGS: invalid pair ""'),
        ("A=b=c", 'ARGS: invalid pair "A=b=c"'),
        (
            "IgnoreUnknown=maybe",
            'ARGS: error parsing value of pair "IgnoreUnknown=maybe": boolean unmarshal error: invalid input maybe',
        ),
        ("IP=1.2.3.4/32", 'ARGS: error parsing value of pair "IP=1.2.3.4/32": invalid IP address: 1.2.3.4/32'),
        ("Foo=bar;Baz=1", 'ARGS: unknown args ["Foo=bar" "Baz=1"]'),
        ("ip=1.2.3.4", 'ARGS: unknown args ["ip=1.2.3.4"]'),
    ],
)
def test_bad_arguments(text: str, message: str) -> None:
    assert args_error(text) == message


def test_arguments() -> None:
    found = parse_args("IgnoreUnknown=TRUE;X=1;IP=10.0.0.1;IP=10.0.0.2;K8S_POD_NAME=a", WORKLOAD_KEYS)
    assert str(found.ip) == "10.0.0.2", "later pairs win"
    assert found.get("K8S_POD_NAME") == "a" and found.get("nothing") == ""
    assert parse_args("", WORKLOAD_KEYS).ip is None
    assert parse_args("IP=", ADDRESS_KEYS).ip is None


@pytest.mark.parametrize("text", ["1e3", "1500.50", "9223372036854775808"])
def test_numbers_are_quoted_as_they_were_written(text: str) -> None:
    with pytest.raises(CNIError) as found:
        netconf.load(gojson.load(f'{{"mtu": {text}}}'.encode()))
    wanted = f"json: cannot unmarshal number {text} into Go struct field NetConf.mtu of type int"
    assert found.value.message == f"failed to load netconf: {wanted}"


def test_only_check_reads_an_earlier_result() -> None:
    assert netconf.load({"name": "n", "prevResult": []}).previous == []
