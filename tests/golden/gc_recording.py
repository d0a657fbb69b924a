"""Recorded collector cases as typed values, read strictly: what is not understood is an error (ruling 26)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calico_ipam.datastore import codec as text_codec
from calico_ipam.datastore.api import Entry
from calico_ipam.datastore.kube import codec as kube_codec
from calico_ipam.datastore.paths import key_of
from calico_ipam.model.keys import Key, ResourceKey

CASE_FIELDS = {
    *("name", "about", "spec", "backend", "config", "before", "phases", "writes", "api_calls", "volatile"),
}
PHASE_FIELDS = {
    *("events", "first_change_after_s", "last_change_after_s", "state_changed", "after", "metrics"),
    *("process_exit_code",),
}
ENTRY_FIELDS = {"key", "value", "k8s", "delete", "replace"}
CONFIG_FIELDS = {"leakGracePeriod", "env", "observed_seconds"}
V1 = kube_codec.Group(kube_codec.V1)
#: kinds of Kubernetes and of KubeVirt that the collector follows
CORE = ("Node", "Pod")
MACHINES = ("VirtualMachine", "VirtualMachineInstance")
CALICO = ("crd.projectcalico.org", "projectcalico.org")
NOW = re.compile(r"\{\{now\}\}")


#: the tree of a host that nothing writes today (datastore §3.6)
LEGACY = re.compile("/calico/ipam/v2/host/[^/]+")
#: other kinds of Kubernetes: nothing that the collector looks at
UNFOLLOWED = "unfollowed"
Names = dict[tuple[str, str], Key]  #: (kind, name of the custom resource) -> key


class UnknownRecording(AssertionError):
    """A recording holds something that this replay does not understand."""


@dataclass(frozen=True)
class Thing:
    """One object of a recording. ``value`` None: it is deleted. ``raw``: of Kubernetes' own kinds."""

    kind: str
    key: Any
    value: Any = None
    raw: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Phase:
    events: tuple[Thing, ...]
    changed: Mapping[Key, Any]
    after: Mapping[Key, Any]
    metrics: tuple[str, ...] | None
    last_change: float = 0.0  #: seconds from its start to the last change of the store


@dataclass(frozen=True)
class Case:
    name: str
    spec: tuple[str, ...]
    backend: str
    grace: str | None
    seconds: float
    before: tuple[Thing, ...]
    phases: tuple[Phase, ...]
    writes: tuple[Mapping[str, Any], ...]
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def kubernetes(self) -> bool:
        return self.backend == "kubernetes"


def load(path: Path) -> Case:
    document = json.loads(path.read_text(encoding="utf-8"))
    config = document["config"]
    _only(document, CASE_FIELDS | PHASE_FIELDS, path.name)
    _only(config, CONFIG_FIELDS, f"{path.name}: config")
    names: Names = {}
    return Case(
        document["name"],
        tuple(document["spec"]),
        document["backend"],
        config["leakGracePeriod"],
        float(config["observed_seconds"]),
        tuple(_thing(entry, path.name, names) for entry in document["before"]),
        tuple(_phase(phase, path.name, names) for phase in document.get("phases", [document])),
        tuple(document["writes"]),
        {"DATASTORE_TYPE": document["backend"], **(config.get("env") or {})},
    )


def _phase(document: Mapping[str, Any], where: str, names: Names) -> Phase:
    if "phases" not in document and "config" not in document:
        _only(document, PHASE_FIELDS, f"{where}: phase")
    events = tuple(_thing(entry, where, names) for entry in document.get("events") or ())
    lines = document["metrics"]
    return Phase(
        events,
        dict(_state(document["state_changed"], where)),
        dict(_state(document["after"], where)),
        None if lines is None else tuple(lines),
        float(document.get("last_change_after_s") or 0.0),
    )


def _thing(entry: Mapping[str, Any], where: str, names: Names) -> Thing:
    _only(entry, ENTRY_FIELDS, where)
    gone = bool(entry.get("delete"))
    if "key" in entry:
        if LEGACY.fullmatch(entry["key"]):
            return Thing(UNFOLLOWED, entry["key"])
        key, value = _from_text(entry["key"], None if gone else entry.get("value"), where)
        return Thing("calico", key, value)
    document = entry["k8s"]
    kind, metadata = document["kind"], document["metadata"]
    group = str(document.get("apiVersion", "")).rpartition("/")[0]
    if kind in (*CORE, *MACHINES):
        name = metadata["name"] if kind == "Node" else (metadata.get("namespace", "default"), metadata["name"])
        return Thing(kind, name, None if gone else document, None if gone else document)
    if gone and (kind, metadata["name"]) in names:  # only kind and name are given of what goes
        return Thing("calico", names[kind, metadata["name"]])
    if group not in CALICO:
        return Thing(UNFOLLOWED, (kind, metadata["name"]), raw=None if gone else document)
    key = names[kind, metadata["name"]] = kube_codec.key_of(kind, document)
    return Thing("calico", key, None if gone else kube_codec.decode(key, document, V1))


def _from_text(path: str, value: Any, where: str) -> tuple[Key, Any]:
    key = key_of(path)
    if key is None:
        raise UnknownRecording(f"{where}: nothing is known of {path}")
    if value is None:
        return key, None
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    found = text_codec.decode(key, path, NOW.sub("2026-08-22T10:00:00Z", text), "1")
    if not isinstance(found, Entry):
        raise UnknownRecording(f"{where}: {path} cannot be read: {found.reason}")
    return key, found.value


def _state(document: Mapping[str, Any], where: str) -> Iterator[tuple[Key, Any]]:
    """Yield key and value (None: deleted) of the objects of Calico that matter here; tiers are no business of ours."""
    for name, value in document.items():
        if name.startswith("/"):
            if "/tiers/" not in name and not LEGACY.fullmatch(name):
                yield _from_text(name, value, where)
            continue
        kind, _, rest = name.partition("/")
        group = str((value or {}).get("apiVersion", f"{CALICO[0]}/v1")).rpartition("/")[0]
        if kind == "Tier" or kind in (*CORE, *MACHINES) or group not in CALICO:
            continue
        yield _custom(kind, rest, value)


def _custom(kind: str, name: str, value: Any) -> tuple[Key, Any]:
    if value is None:
        # Only the name is left of what is gone; it is compared by that.
        return ResourceKey(kind, name), None
    document = json.loads(NOW.sub("2026-08-22T10:00:00Z", json.dumps(value)))
    key = kube_codec.key_of(kind, document)
    return key, kube_codec.decode(key, document, V1)


def _only(document: Mapping[str, Any], known: set[str], where: str) -> None:
    unknown = set(document) - known
    if unknown:
        raise UnknownRecording(f"{where}: unknown fields {sorted(unknown)}")
