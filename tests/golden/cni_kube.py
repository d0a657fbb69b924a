"""The Kubernetes side of a recorded CNI case: objects, the plugins' account, and what a run changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.kube_tools import KubeServer
from tests.netns_tools import Namespace
from tests.plugin_account import KUBEVIRT, give_rights, install_kubevirt, write_kubeconfig
from tests.tunnel import Tunnel

#: Namespaces that the recordings take for granted.
NAMESPACES = ("default", "test")
#: What the API server writes into an object's metadata; the recordings leave it out.
SERVER_SET = ("uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "namespace")

_CORE = {"Pod": "pods", "Namespace": "namespaces", "Node": "nodes", "ServiceAccount": "serviceaccounts"}
_IRREGULAR = {"BlockAffinity": "blockaffinities"}


class KubeSide:
    """A real API server as one case sees it. ``inputs``: placeholders that it gives a value."""

    def __init__(self, kube: KubeServer, node: Namespace, folder: Path) -> None:
        self._kube = kube
        self._plurals = kube.plurals()
        install_kubevirt(kube)
        give_rights(kube)
        self.clear()
        self._tunnel = Tunnel(node.path, kube.port)
        kubeconfig = write_kubeconfig(kube, folder / "kubeconfig", self._tunnel.port)
        self.inputs = {"K8S_API_ROOT": f"https://127.0.0.1:{self._tunnel.port}", "KUBECONFIG": str(kubeconfig)}

    def close(self) -> None:
        self._tunnel.close()
        self.clear()

    # --- objects -------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Remove whatever a case made."""
        self._kube.clear()
        for path, item in self._items():
            if item["kind"] in ("Pod", *KUBEVIRT):
                self._remove(path, item)
        for name in NAMESPACES:
            path = f"/api/v1/namespaces/{name}"
            status, found = self._kube.ask("GET", path)
            if status == 404:
                self._kube.put(path, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
            elif found["metadata"].get("annotations"):
                found["metadata"]["annotations"] = {}
                self._kube.done("PUT", path, found)
            self._account(name, "default")

    def _remove(self, path: str, item: Mapping[str, Any]) -> None:
        if item["metadata"].get("finalizers"):
            patch = {"metadata": {"finalizers": None}}
            self._kube.ask("PATCH", path, patch, content_type="application/merge-patch+json")
        self._kube.delete(path)

    def create(self, given: Mapping[str, Any]) -> None:
        """Create an object; namespaces exist, so theirs is replaced. A status goes through its subresource."""
        kind, metadata = given["kind"], given["metadata"]
        namespace = metadata.get("namespace", "")
        if kind == "Pod":
            self._account(namespace, given["spec"].get("serviceAccountName") or "default")
        path = f"{collection_of(given, namespace)}/{metadata['name']}"
        made = self._kube.put(path, given)
        name = f"UID_{kind}_{metadata['name']}".upper()
        self.inputs[name] = made["metadata"]["uid"]
        if given.get("status"):
            self._kube.done("PUT", f"{path}/status", {**made, "status": {**made.get("status", {}), **given["status"]}})

    def _account(self, namespace: str, name: str) -> None:
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}"
        if self._kube.ask("GET", path)[0] == 404:
            self._kube.put(path, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}})

    def patch(self, path: str, body: Mapping[str, Any]) -> None:
        self._kube.done("PATCH", path, body, content_type="application/merge-patch+json")

    def delete(self, path: str, body: Mapping[str, Any] | None) -> None:
        options = {"gracePeriodSeconds": 0} if body is None else body
        self._kube.done("DELETE", path, options)

    # --- looking -------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return path -> object in the recordings' form, of everything that a run can change."""
        return {path: _shown(item) for path, item in self._items()}

    def _items(self) -> Iterator[tuple[str, dict[str, Any]]]:
        group = self._kube.api_version
        api, kind = "v1", "Pod"
        for item in self._kube.get("/api/v1/pods")["items"]:
            yield _path(item, "/api/v1", "pods"), {"kind": kind, "apiVersion": api, **item}
        for plural in self._plurals:
            for item in self._kube.get(f"/apis/{group}/{plural}")["items"]:
                yield _path(item, f"/apis/{group}", plural), item
        for plural in KUBEVIRT.values():
            for item in self._kube.get(f"/apis/kubevirt.io/v1/{plural}")["items"]:
                yield _path(item, "/apis/kubevirt.io/v1", plural), item


def collection_of(given: Mapping[str, Any], namespace: str) -> str:
    """Return the path of the collection that an object belongs to."""
    version, kind = given["apiVersion"], given["kind"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    plural = _CORE.get(kind) or KUBEVIRT.get(kind) or _IRREGULAR.get(kind) or f"{kind.lower()}s"
    return f"{root}/namespaces/{namespace}/{plural}" if namespace else f"{root}/{plural}"


def _path(item: Mapping[str, Any], root: str, plural: str) -> str:
    namespace = item["metadata"].get("namespace")
    return f"{root}{f'/namespaces/{namespace}' if namespace else ''}/{plural}/{item['metadata']['name']}"


def _shown(item: Mapping[str, Any]) -> dict[str, Any]:
    metadata = item["metadata"]
    if item["kind"] == "Pod":
        kept = {key: metadata[key] for key in ("labels", "annotations", "deletionTimestamp") if metadata.get(key)}
        status = {key: item["status"][key] for key in ("phase", "podIP", "podIPs") if item["status"].get(key)}
        return {"metadata": kept, "status": status}
    return {**item, "metadata": {key: value for key, value in metadata.items() if key not in SERVER_SET}}
