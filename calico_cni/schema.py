"""Which keys a network configuration knows, and of which type (cni.md §3).

The names of types are those of upstream's program, since its error texts quote them:
``json: cannot unmarshal string into Go struct field NetConf.mtu of type int``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from calico_cni import gojson


@dataclass(frozen=True, slots=True)
class Struct:
    """An object with known keys. ``name`` stands before the path in errors, ``go_type`` after it."""

    name: str
    go_type: str
    fields: Mapping[str, Struct | ListOf | str]


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list of objects or texts."""

    item: Struct | str
    go_type: str


TEXTS = ListOf("string", "[]string")
#: A value that is read elsewhere, by the verbs that need it.
ANYTHING = "interface {}"

_IPAM = Struct(
    "",
    'struct { Name string; Type string "json:\\"type\\""; Subnet string "json:\\"subnet\\""; '
    'AssignIpv4 *string "json:\\"assign_ipv4\\""; AssignIpv6 *string "json:\\"assign_ipv6\\""; '
    'IPv4Pools []string "json:\\"ipv4_pools,omitempty\\""; IPv6Pools []string "json:\\"ipv6_pools,omitempty\\"" }',
    {
        "name": "string",
        "type": "string",
        "subnet": "string",
        "assign_ipv4": "string",
        "assign_ipv6": "string",
        "ipv4_pools": TEXTS,
        "ipv6_pools": TEXTS,
    },
)
_POLICY = Struct(
    "Policy",
    "types.Policy",
    {
        "type": "string",
        "k8s_api_root": "string",
        "k8s_auth_token": "string",
        "k8s_client_certificate": "string",
        "k8s_client_key": "string",
        "k8s_certificate_authority": "string",
    },
)
_KUBERNETES = Struct(
    "Kubernetes",
    "types.Kubernetes",
    {"k8s_api_root": "string", "kubeconfig": "string", "node_name": "string"},
)
_LABEL = Struct(
    "", 'struct { Key string "json:\\"key\\""; Value string "json:\\"value\\"" }', {"key": "string", "value": "string"}
)
_LABEL_LIST = ListOf(_LABEL, f"[]{_LABEL.go_type}")
_LABELS = Struct(
    "", f'struct {{ Labels {_LABEL_LIST.go_type} "json:\\"labels,omitempty\\"" }}', {"labels": _LABEL_LIST}
)
_NETWORK_INFO = Struct("NetworkInfo", "types.NetworkInfo", {"name": "string", "labels": _LABELS})
_DNS = Struct(
    "RuntimeConfigDNS",
    "types.RuntimeConfigDNS",
    {"servers": TEXTS, "domain": "string", "searches": TEXTS, "options": TEXTS},
)
_RUNTIME = Struct("RuntimeConfig", "types.RuntimeConfig", {"DNS": _DNS})
_MESOS = Struct("Mesos", "types.Mesos", {"network_info": _NETWORK_INFO})

NETCONF = Struct(
    "NetConf",
    "types.NetConf",
    {
        "cniVersion": "string",
        "name": "string",
        "type": "string",
        "mode": "string",
        "vxlan_mac_prefix": "string",
        "vxlan_vni": "uint64",
        "nodename": "string",
        "nodename_file": "string",
        "nodename_file_optional": "bool",
        "hostname": "string",
        "mtu": "int",
        "require_mtu_file": "bool",
        "num_queues": "int",
        "device_type": "string",
        "datastore_type": "string",
        "sqlite_path": "string",  # ours: the embedded store (rulings 3)
        "etcd_authority": "string",
        "etcd_endpoints": "string",
        "etcd_discovery_srv": "string",
        "etcd_scheme": "string",
        "etcd_key_file": "string",
        "etcd_cert_file": "string",
        "etcd_ca_cert_file": "string",
        "qps": "float32",
        "burst": "int",
        "calico_api_group": "string",
        "log_level": "string",
        "log_file_path": "string",
        "log_file_max_size": "int",
        "log_file_max_age": "int",
        "log_file_max_count": "int",
        "ipam_lock_file": "string",
        "include_default_routes": "bool",
        "nat_outgoing": "bool",  # ours: masquerading on a host without Felix (rulings 22)
        "readiness_gates": TEXTS,
        "policy_setup_timeout_seconds": "int",
        "endpoint_status_dir": "string",
        "windows_pod_deletion_timestamp_timeout": "int",
        "windows_use_single_network": "bool",
        "windows_disable_default_deny_all_policy": "bool",
        "windows_loopback_DSR": "bool",
        "RuntimeConfig": _RUNTIME,
        "dataplane_options": "map[string]interface {}",
        "prevResult": ANYTHING,
        "ipam": _IPAM,
        "args": Struct("Args", "types.Args", {"org.apache.mesos": _MESOS}),
        "policy": _POLICY,
        "kubernetes": _KUBERNETES,
        "feature_control": Struct(
            "FeatureControl", "types.FeatureControl", {"ip_addrs_no_ipam": "bool", "floating_ips": "bool"}
        ),
        "container_settings": Struct("ContainerSettings", "types.ContainerSettings", {"allow_ip_forwarding": "bool"}),
    },
)

#: The first number that Go rounds to no float32 any more.
_FLOAT32_LIMIT = (1 << 128) - (1 << 103)

#: What stands in for a key that is absent or null.
_ZERO: Mapping[str, Any] = {"string": "", "int": 0, "uint64": 0, "float32": 0, "bool": False}


def decode(struct: Struct, document: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return every known field of ``document``, zero where it is absent. Raises GoJSONError for the first bad type.

    Unknown keys are ignored; keys match without regard to case; of several that match, the last one counts.
    """
    found: dict[str, Any] = {key: _zero(kind) for key, kind in struct.fields.items()}
    folded = {key.lower(): key for key in struct.fields}
    for name, value in document.items():
        key = name if name in struct.fields else folded.get(name.lower())
        if key is not None and value is not None:
            found[key] = _convert(struct, struct.fields[key], value, f"{path}.{key}" if path else key)
    return found


def _zero(kind: Struct | ListOf | str) -> Any:
    if isinstance(kind, Struct):
        return decode(kind, {})
    if isinstance(kind, ListOf):
        return ()
    return _ZERO.get(kind)


def _convert(owner: Struct, kind: Struct | ListOf | str, value: Any, path: str) -> Any:
    def refuse(go_type: str) -> gojson.GoJSONError:
        return gojson.cannot(value, f"struct field {owner.name}.{path}", go_type)

    if isinstance(kind, Struct):
        if not isinstance(value, Mapping):
            raise refuse(kind.go_type)
        return decode(kind, value, path)
    if isinstance(kind, ListOf):
        if not isinstance(value, list):
            raise refuse(kind.go_type)
        zero = _zero(kind.item)
        return tuple(zero if item is None else _convert(owner, kind.item, item, path) for item in value)
    if not _fits(kind, value):
        raise refuse(kind)
    return value


def _fits(kind: str, value: Any) -> bool:
    if kind == ANYTHING:
        return True
    if kind == "string":
        return isinstance(value, str)
    if kind == "bool":
        return isinstance(value, bool)
    if kind.startswith("map"):
        return isinstance(value, Mapping)
    if isinstance(value, bool):
        return False
    if kind == "float32":
        return isinstance(value, int | float) and abs(value) < _FLOAT32_LIMIT
    lowest, limit = (0, 1 << 64) if kind == "uint64" else (-(1 << 63), 1 << 63)
    return isinstance(value, int) and lowest <= value < limit
