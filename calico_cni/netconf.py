"""The network configuration as one typed value (cni.md §3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from calico_cni import gojson, schema
from calico_cni.errors import CNIError
from calico_ipam.errors import InvalidInput
from calico_ipam.model.addresses import Address, parse_address

DEFAULT_NODENAME_FILE = "/var/lib/calico/nodename"
DEFAULT_LOCK_FILE = "/var/run/calico/ipam.lock"
DEFAULT_STATUS_DIR = "/var/run/calico/endpoint-status"

#: Keys of the configuration that say where the datastore is; what is not set is left out (datastore.md §11).
STORE_KEYS = (
    "datastore_type",
    "sqlite_path",
    "etcd_authority",
    "etcd_endpoints",
    "etcd_discovery_srv",
    "etcd_scheme",
    "etcd_key_file",
    "etcd_cert_file",
    "etcd_ca_cert_file",
    "calico_api_group",
    "qps",
    "burst",
)


#: Keys that name a file or a folder.
FILE_KEYS = (
    "nodename_file",
    "sqlite_path",
    "etcd_key_file",
    "etcd_cert_file",
    "etcd_ca_cert_file",
    "log_file_path",
    "ipam_lock_file",
    "endpoint_status_dir",
)


@dataclass(frozen=True, slots=True)
class Attachment:
    """A sandbox's interface that is still valid, as GC tells it."""

    container_id: str
    ifname: str


@dataclass(frozen=True, slots=True)
class IPAMConf:
    """The ``ipam`` section, as far as calico-ipam reads it."""

    type: str
    assign_ipv4: bool
    assign_ipv6: bool
    ipv4_pools: tuple[str, ...]
    ipv6_pools: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LogConf:
    """Where log lines go, and from which level (§11). Sizes in MB, ages in days."""

    level: str = "info"
    path: str = ""
    max_size: int = 100
    max_age: int = 30
    max_count: int = 10


@dataclass(frozen=True, slots=True)
class NetConf:
    """Every key that the plugins read, defaults applied. ``version`` is empty when the configuration tells none."""

    name: str
    version: str
    nodename: str
    nodename_file: str
    nodename_file_optional: bool
    hostname: str
    mtu: int
    require_mtu_file: bool
    num_queues: int
    device_type: str
    ipam: IPAMConf
    policy_type: str
    kubeconfig: str
    kubernetes_node_name: str
    ip_addrs_no_ipam: bool
    floating_ips: bool
    allow_ip_forwarding: bool
    dataplane_options: Mapping[str, Any]
    include_default_routes: bool
    nat_outgoing: bool  #: masquerade what leaves the pools, on a host without Felix
    readiness_gates: tuple[str, ...]
    policy_setup_timeout: int  #: seconds
    endpoint_status_dir: str
    ipam_lock_file: str
    windows_use_single_network: bool
    labels: tuple[tuple[str, str], ...]  #: from ``args``, not sanitised
    log: LogConf
    previous: Any  #: ``prevResult`` as it came; None where there is none
    ineffective: tuple[str, ...]  #: keys that are set and do nothing for the datastore's client (§15.23)
    store_settings: Mapping[str, Any] = field(repr=False)
    cluster_settings: Mapping[str, Any] = field(repr=False)  #: of the API server that knows the pods
    document: Mapping[str, Any] = field(repr=False)  #: the whole configuration; may hold tokens and keys

    @property
    def for_kubernetes(self) -> bool:
        """Does the configuration say that pods of Kubernetes are networked?"""
        return self.policy_type == "k8s" or bool(self.kubeconfig)


def load(document: Mapping[str, Any]) -> NetConf:
    """Return the configuration that a document holds. Raises CNIError for a value of a wrong type."""
    try:
        found = schema.decode(schema.NETCONF, document)
    except gojson.GoJSONError as error:
        raise CNIError(f"failed to load netconf: {error}") from None
    _refuse_nul(found)
    ipam, options = found["ipam"], found["dataplane_options"] or {}
    kubernetes = found["kubernetes"]
    settings = {key: found[key] for key in STORE_KEYS if found[key]}
    if any(kubernetes.values()):
        settings["kubernetes"] = {key: value for key, value in kubernetes.items() if value}
    labels = found["args"]["org.apache.mesos"]["network_info"]["labels"]["labels"]
    return NetConf(
        name=found["name"],
        version=found["cniVersion"],
        nodename=found["nodename"],
        nodename_file=found["nodename_file"] or DEFAULT_NODENAME_FILE,
        nodename_file_optional=found["nodename_file_optional"],
        hostname=found["hostname"],
        mtu=found["mtu"],
        require_mtu_file=found["require_mtu_file"],
        num_queues=found["num_queues"],
        device_type=found["device_type"],
        ipam=IPAMConf(
            type=ipam["type"],
            assign_ipv4=ipam["assign_ipv4"] != "false",
            assign_ipv6=ipam["assign_ipv6"] == "true",
            ipv4_pools=ipam["ipv4_pools"],
            ipv6_pools=ipam["ipv6_pools"],
        ),
        policy_type=found["policy"]["type"],
        kubeconfig=kubernetes["kubeconfig"],
        kubernetes_node_name=kubernetes["node_name"],
        ip_addrs_no_ipam=found["feature_control"]["ip_addrs_no_ipam"],
        floating_ips=found["feature_control"]["floating_ips"],
        allow_ip_forwarding=found["container_settings"]["allow_ip_forwarding"],
        dataplane_options=options,
        include_default_routes=found["include_default_routes"],
        nat_outgoing=found["nat_outgoing"],
        readiness_gates=found["readiness_gates"],
        policy_setup_timeout=found["policy_setup_timeout_seconds"],
        endpoint_status_dir=found["endpoint_status_dir"] or DEFAULT_STATUS_DIR,
        ipam_lock_file=found["ipam_lock_file"] or DEFAULT_LOCK_FILE,
        windows_use_single_network=found["windows_use_single_network"],
        labels=tuple((label["key"], label["value"]) for label in labels),
        log=_log(found),
        previous=found["prevResult"],
        ineffective=_ineffective(found),
        store_settings=settings,
        cluster_settings={**settings, "policy": {key: value for key, value in found["policy"].items() if value}},
        document=document,
    )


def _refuse_nul(found: Mapping[str, Any]) -> None:
    """Raise CNIError for the name of a file that no file can have."""
    for key in FILE_KEYS:
        if "\0" in found[key]:
            raise CNIError(f"failed to load netconf: {key} holds a NUL character", "No file can have such a name.")


def _ineffective(found: Mapping[str, Any]) -> tuple[str, ...]:
    credentials = [f"policy.{key}" for key, value in found["policy"].items() if value and key.startswith("k8s_")]
    old = [key for key in ("etcd_authority", "etcd_scheme") if found[key]]
    return (*old, *credentials)


def _log(found: Mapping[str, Any]) -> LogConf:
    defaults = LogConf()
    return LogConf(
        level=found["log_level"].lower() if found["log_level"].lower() in ("debug", "error") else "info",
        path=found["log_file_path"],
        max_size=found["log_file_max_size"] or defaults.max_size,
        max_age=found["log_file_max_age"] or defaults.max_age,
        max_count=found["log_file_max_count"] or defaults.max_count,
    )


def wanted_addresses(document: Mapping[str, Any]) -> tuple[Address, ...]:
    """Return the addresses that ``runtimeConfig.ips`` or else ``args.cni.ips`` asks for, prefix lengths cut off.

    Conventions of CNI that upstream ignores (§15.12). Raises CNIError for one that is no address, and for two of one
    family.
    """
    runtime = _field(_field(document, "runtimeConfig"), "ips")
    arguments = _field(_field(_field(document, "args"), "cni"), "ips")
    for texts, where in ((runtime, "runtimeConfig.ips"), (arguments, "args.cni.ips")):
        if texts:
            return _addresses(texts, where)
    return ()


def _field(owner: Any, name: str) -> Any:
    """Return a field of an object, whatever the case of its key, or None; of several the last one counts."""
    found = None
    for key, value in owner.items() if isinstance(owner, Mapping) else ():
        if key.lower() == name.lower() and value is not None:
            found = value
    return found


def _addresses(texts: Any, where: str) -> tuple[Address, ...]:
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise CNIError(f"{where} must be a list of addresses as text")
    found: list[Address] = []
    for text in texts:
        try:
            address = parse_address(text.partition("/")[0])
        except InvalidInput as error:
            raise CNIError(f"{where}: {error}") from None
        if any(other.version == address.version for other in found):
            raise CNIError(f"{where} holds two IPv{address.version} addresses; at most one of each family can be given")
        found.append(address)
    return tuple(found)


def valid_attachments(document: Mapping[str, Any]) -> frozenset[Attachment] | None:
    """Return the attachments that GC must keep; None: nothing is known, so nothing may be done (rulings 6).

    Raises CNIError for a list that cannot be understood: guessing here would release what lives.
    """
    texts = document.get("cni.dev/valid-attachments")
    if texts is None:
        texts = document.get("cni.dev/attachments")
    if texts is None:
        return None
    hint = "Send a list of objects with containerID and ifname."
    if not isinstance(texts, list):
        raise CNIError("cni.dev/valid-attachments is not a list", hint)
    found = set()
    for entry in texts:
        container = entry.get("containerID") if isinstance(entry, Mapping) else None
        ifname = entry.get("ifname") if isinstance(entry, Mapping) else None
        if not isinstance(container, str) or not container or not isinstance(ifname, str):
            raise CNIError("cni.dev/valid-attachments holds an entry without containerID", hint)
        found.add(Attachment(container, ifname))
    return frozenset(found)
