"""A real API server that recorded operator commands are replayed on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import yaml

from calico_ipam.model.names import convert_uid
from tests.kube_tools import ADMIN, KubeServer

_HIDDEN = ("managedFields", "uid", "resourceVersion", "creationTimestamp", "generation", "selfLink")
#: collections outside Calico's group that cases look at
_CORE = {"Node": "/api/v1/nodes", "Pod": "/api/v1/pods", "Service": "/api/v1/services"}
_SERVERS_OWN = ("default/kubernetes",)


class KubeBench:
    """One API server, emptied for each case."""

    def __init__(self, kube: KubeServer) -> None:
        self.name = "kubernetes"
        self._kube = kube
        self._kinds = {
            item["kind"]: item["name"]
            for item in kube.get(f"/apis/{kube.api_version}")["resources"]
            if "/" not in item["name"]
        }
        self._namespaces = {item["metadata"]["namespace"] for item in kube.get("/api/v1/serviceaccounts")["items"]}
        self.lacks = frozenset({"Tier"} - self._kinds.keys())  # the definitions of the tests are those that IPAM needs
        self._kubeconfig = kube.folder / "kubeconfig-c"  # recordings name its context
        config = yaml.safe_load(kube.kubeconfig())
        config["contexts"][0]["name"] = config["current-context"] = "c"
        self._kubeconfig.write_text(yaml.safe_dump(config))
        self._objects: dict[str, Any] | None = None
        kube.clear()
        for kind in ("Pod", "Service"):
            for item in kube.get(_CORE[kind])["items"]:
                if _name(item) not in _SERVERS_OWN:
                    kube.delete(self._path({"kind": kind, **item}))

    # --- writing -------------------------------------------------------------------------------------------

    def write(self, entry: Mapping[str, Any]) -> None:
        self._objects = None
        document = entry["k8s"]
        namespace = document["metadata"].get("namespace")
        if namespace and namespace not in self._namespaces:
            self._namespace(namespace)
        path = self._path(document)
        if entry.get("delete"):
            self._kube.delete(path)
            return
        if entry.get("replace"):
            self._kube.put(path, document)
        else:
            self._kube.create(path.rpartition("/")[0], document)
        if document.get("status"):
            current = self._kube.get(path)
            self._kube.done("PUT", f"{path}/status", {**current, "status": document["status"]})

    def _namespace(self, name: str) -> None:
        self._kube.put(f"/api/v1/namespaces/{name}", {"apiVersion": "v1", "kind": "Namespace", "metadata": {}})
        self._kube.create(
            f"/api/v1/namespaces/{name}/serviceaccounts",
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}},
        )
        self._namespaces.add(name)

    def _path(self, document: Mapping[str, Any]) -> str:
        kind, metadata = document["kind"], document["metadata"]
        if kind in self._kinds:
            return f"{self._kube.collection(self._kinds[kind])}/{metadata['name']}"
        if metadata.get("namespace"):
            return f"/api/v1/namespaces/{metadata['namespace']}/{kind.lower()}s/{metadata['name']}"
        return f"/api/v1/{kind.lower()}s/{metadata['name']}"

    def restore(self, state: Mapping[str, Any], changed: Mapping[str, Any]) -> None:
        now = self.state()
        wanted = {
            key: value
            for key, value in {**state, **changed}.items()
            if value is not None and key.partition("/")[0] not in self.lacks
        }
        for key in now.keys() - wanted.keys():
            self.write({"k8s": now[key], "delete": True})
        for key, value in wanted.items():
            if key not in now or json.dumps(now[key]) != json.dumps(value):
                self.write({"k8s": value, "replace": True})

    # --- looking -------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        found = {}
        raw = {}
        for kind, collection in {**{k: self._kube.collection(p) for k, p in self._kinds.items()}, **_CORE}.items():
            listing = self._kube.get(collection)
            for item in listing["items"]:
                if _name(item) in _SERVERS_OWN:
                    continue
                item = {"apiVersion": listing["apiVersion"], "kind": kind, **item}
                key = f"{kind}/{_name(item)}"
                raw[key] = item
                metadata = {k: v for k, v in item["metadata"].items() if k not in _HIDDEN}
                found[key] = {**item, "metadata": metadata}
        self._objects = raw
        return found

    def known(self, token: str) -> str | None:
        kind, _, name = token.partition(":")
        if kind in ("rev", "uid", "xuid"):
            if self._objects is None:
                self.state()
            item = (self._objects or {}).get(name)
            if item is None:
                return None
            metadata = item["metadata"]
            if kind == "rev":
                return str(metadata["resourceVersion"])
            return convert_uid(metadata["uid"]) if kind == "xuid" else str(metadata["uid"])
        address = self._kube.url.removeprefix("https://")
        return {"k8s": address, "kubeconfig": str(self._kubeconfig), "token": ADMIN}.get(kind)

    def environment(self, recorded: Mapping[str, str]) -> dict[str, str]:
        self._objects = None
        return dict(recorded)


def _name(item: Mapping[str, Any]) -> str:
    metadata = item["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}" if metadata.get("namespace") else str(metadata["name"])
