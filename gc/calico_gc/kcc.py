"""Upstream's KubeControllersConfiguration: what it says to us, and the status that upstream writes (gc §1.3)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from calico_gc.durations import format_duration, parse_duration
from calico_ipam.datastore.api import Create, Datastore, Deadline, Entry, Update
from calico_ipam.datastore.kube.api import KubeApi, Request
from calico_ipam.errors import AlreadyExists, Conflict, InvalidInput, NotFound
from calico_ipam.model.keys import ResourceKey
from calico_ipam.model.resource import KUBE_CONTROLLERS_CONFIGURATION, Resource, mapping

log = logging.getLogger(__name__)

KEY = ResourceKey(KUBE_CONTROLLERS_CONFIGURATION, "default")
PERIOD = "5m0s"
#: longest time to write the status
STATUS_SECONDS = 30.0
#: controllers that have nothing but a period, by the name in ENABLED_CONTROLLERS
PERIODIC = {
    "policy": "policy",
    "workloadendpoint": "workloadEndpoint",
    "serviceaccount": "serviceAccount",
    "namespace": "namespace",
}
#: controllers that upstream knows; ours is the first
KNOWN = ("node", "policy", "namespace", "workloadendpoint", "serviceaccount", "loadbalancer", "flannelmigration")
DEFAULT_SPEC: Mapping[str, Any] = {
    "logSeverityScreen": "Info",
    "healthChecks": "Enabled",
    "etcdV3CompactionPeriod": "10m0s",
    "prometheusMetricsPort": 9094,
    "controllers": {
        "node": {
            "reconcilerPeriod": PERIOD,
            "syncLabels": "Enabled",
            "hostEndpoint": {"autoCreate": "Disabled", "createDefaultHostEndpoint": "Enabled"},
            "leakGracePeriod": "15m0s",
        },
        "policy": {"reconcilerPeriod": PERIOD},
        "workloadEndpoint": {"reconcilerPeriod": PERIOD},
        "serviceAccount": {"reconcilerPeriod": PERIOD},
        "namespace": {"reconcilerPeriod": PERIOD},
        "loadBalancer": {"assignIPs": "AllServices"},
        "migration": {"policyNameMigrator": "Enabled"},
    },
}
#: environment variables that upstream lists in the status
LISTED = (
    *("LOG_LEVEL", "ENABLED_CONTROLLERS", "HEALTH_ENABLED", "SYNC_NODE_LABELS", "AUTO_HOST_ENDPOINTS"),
    *("RECONCILER_PERIOD", "COMPACTION_PERIOD"),
)


SWITCHES, DURATIONS = ("HEALTH_ENABLED", "SYNC_NODE_LABELS"), ("RECONCILER_PERIOD", "COMPACTION_PERIOD")
TRUE, FALSE = ("1", "t", "T", "TRUE", "true", "True"), ("0", "f", "F", "FALSE", "false", "False")
NO_ENVIRONMENT: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Told:
    """What the resource tells the collector. ``leak_grace`` None: absent. ``metrics_port`` 0: no metrics server."""

    leak_grace: float | None = None
    metrics_port: int = 0
    sync_labels: bool = True
    log_level: str = "Info"
    health_checks: bool = True
    complaints: tuple[str, ...] = ()


def read(resource: Resource | None, environ: Mapping[str, str] = NO_ENVIRONMENT) -> Told:
    """Return what a stored configuration says; None reads as the defaults that would be stored.

    ``environ``: upstream's environment, which wins, where the collector is in upstream's place.
    """
    spec = DEFAULT_SPEC if resource is None else resource.spec
    node = mapping(mapping(spec.get("controllers")).get("node"))
    complaints: list[str] = []
    grace: float | None = None
    text = node.get("leakGracePeriod")
    if text is None:
        complaints.append(
            "leakGracePeriod is absent in KubeControllersConfiguration default: leaks on live nodes are not collected; "
            "set it there, or give --leak-grace"
        )
    else:
        try:
            grace = parse_duration(str(text))
        except InvalidInput as error:
            complaints.append(f"leakGracePeriod in KubeControllersConfiguration default counts as absent: {error}")
    port = spec.get("prometheusMetricsPort")
    return Told(
        leak_grace=grace,
        metrics_port=port if isinstance(port, int) and 0 < port < 65536 else 0,
        sync_labels=(_switched(environ, "SYNC_NODE_LABELS") or node.get("syncLabels")) != "Disabled",
        log_level=environ.get("LOG_LEVEL") or str(spec.get("logSeverityScreen") or "Info"),
        health_checks=(_switched(environ, "HEALTH_ENABLED") or spec.get("healthChecks")) != "Disabled",
        complaints=tuple(complaints),
    )


def misread(environ: Mapping[str, str]) -> str:
    """Return what is wrong with a variable that upstream would not start with; empty when nothing is (gc §1.2)."""
    for name in SWITCHES:
        if environ.get(name) and environ[name] not in (*TRUE, *FALSE):
            return f"{name} is {environ[name]!r}, which is neither true nor false"
    for name in DURATIONS:
        try:
            parse_duration(environ.get(name) or "0s")
        except InvalidInput as error:
            return f"{name}: {error}"
    for name, text in environ.items():
        if name.endswith("_WORKERS") and text and not text.removeprefix("-").isdigit():
            return f"{name} is {text!r}, which is no number"
    if environ.get("AUTO_HOST_ENDPOINTS", "").lower() not in ("", "enabled", "disabled"):
        return f"AUTO_HOST_ENDPOINTS is {environ['AUTO_HOST_ENDPOINTS']!r}, which is neither enabled nor disabled"
    return ""


def unknown_controllers(environ: Mapping[str, str]) -> list[str]:
    """Return the items of ENABLED_CONTROLLERS that upstream does not know either; items are not trimmed."""
    text = environ.get("ENABLED_CONTROLLERS")
    return [item for item in text.split(",") if item not in KNOWN] if text else []


def status_of(spec: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the status that upstream writes for a spec and an environment."""
    etcd = environ.get("DATASTORE_TYPE", "etcdv3") != "kubernetes"
    listed = {name: environ[name] for name in LISTED if environ.get(name)}
    listed.setdefault("LOG_LEVEL", "info")
    if not etcd:
        listed["DATASTORE_TYPE"] = "kubernetes"
        listed.pop("SYNC_NODE_LABELS", None)
    running: dict[str, Any] = {
        "logSeverityScreen": (environ.get("LOG_LEVEL") or "info").capitalize(),
        "healthChecks": _switched(environ, "HEALTH_ENABLED") or str(spec.get("healthChecks") or "Enabled"),
        "etcdV3CompactionPeriod": _period(
            environ.get("COMPACTION_PERIOD") or spec.get("etcdV3CompactionPeriod"), "10m0s"
        ),
        "controllers": _controllers(mapping(spec.get("controllers")), environ, etcd=etcd),
    }
    return {"runningConfig": running, "environmentVars": listed}


def _controllers(spec: Mapping[str, Any], environ: Mapping[str, str], *, etcd: bool) -> dict[str, Any]:
    named = environ.get("ENABLED_CONTROLLERS")
    enabled = set(named.split(",")) if named else None
    found: dict[str, Any] = {}
    if "node" in enabled if enabled is not None else spec.get("node") is not None:
        found["node"] = _node(mapping(spec.get("node")), environ, etcd=etcd)
    for name, field in PERIODIC.items():
        if name in enabled if enabled is not None else spec.get(field) is not None:
            stored = mapping(spec.get(field)).get("reconcilerPeriod")
            found[field] = {"reconcilerPeriod": _period(environ.get("RECONCILER_PERIOD") or stored, PERIOD)}
    if "loadbalancer" in enabled if enabled is not None else spec.get("loadBalancer") is not None:
        found["loadBalancer"] = {"assignIPs": mapping(spec.get("loadBalancer")).get("assignIPs") or "AllServices"}
    migrator = mapping(spec.get("migration")).get("policyNameMigrator") or "Enabled"
    found["migration"] = {"policyNameMigrator": migrator}
    return found


def _node(spec: Mapping[str, Any], environ: Mapping[str, str], *, etcd: bool) -> dict[str, Any]:
    host = mapping(spec.get("hostEndpoint"))
    labels = _switched(environ, "SYNC_NODE_LABELS")
    auto = environ.get("AUTO_HOST_ENDPOINTS")
    found: dict[str, Any] = {
        "syncLabels": "Disabled" if not etcd else labels or spec.get("syncLabels") or "Enabled",
        "hostEndpoint": {
            "autoCreate": auto.capitalize() if auto else host.get("autoCreate") or "Disabled",
            "createDefaultHostEndpoint": host.get("createDefaultHostEndpoint") or "Enabled",
        },
    }
    if spec.get("leakGracePeriod") is not None:
        found["leakGracePeriod"] = _period(spec["leakGracePeriod"], "")
    return found


def _switched(environ: Mapping[str, str], name: str) -> str:
    """Return what a variable says in the words of the resource; empty when it is not set."""
    text = environ.get(name, "")
    return "" if not text else "Enabled" if text in TRUE else "Disabled"


def _period(text: Any, default: str) -> str:
    """Return a duration as Go prints it back; text that is none stays as it is."""
    if text is None:
        return default
    try:
        return format_duration(parse_duration(str(text)))
    except InvalidInput:
        return str(text)


# --- writing, only as upstream's replacement --------------------------------------------------------------------


def ensure(store: Datastore, api: KubeApi | None, environ: Mapping[str, str]) -> None:
    """Create the configuration with its defaults where it is missing, and bring its status up to date.

    ``api``: of a store that is the Kubernetes API, where the status is written apart. Losing a race is fine: whoever
    won has changed the object, and that comes back as an event.
    """
    entry = store.read(KEY).entry(KEY)
    try:
        if entry is None:
            (entry,) = store.commit(Create(KEY, Resource.new(KEY.kind, KEY.name, DEFAULT_SPEC)))
            log.info("created KubeControllersConfiguration default with its defaults")
        _write_status(store, api, entry, status_of(entry.value.spec, environ))
    except (AlreadyExists, Conflict, NotFound) as error:
        log.info("KubeControllersConfiguration default changed meanwhile: %s", error)


def _write_status(store: Datastore, api: KubeApi | None, entry: Entry, status: Mapping[str, Any]) -> None:
    if mapping(entry.value.document.get("status")) == status:
        return
    if api is None:
        document = {**entry.value.document, "status": status}
        store.commit(Update(entry, Resource(KEY.kind, KEY.name, document)))
        return
    document = {**mapping(entry.origin), "status": status}
    path = f"/apis/{document['apiVersion']}/kubecontrollersconfigurations/default/status"
    api.call(Request("PUT", path, body=document), Deadline.after(STATUS_SECONDS))
