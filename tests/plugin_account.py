"""The plugins' own account on a real API server, with exactly the rights of cni.md §4, and KubeVirt's definitions."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from tests.kube_tools import KubeServer, wait_until

ACCOUNT = "calico-cni-plugin"
_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
KUBEVIRT = {"VirtualMachine": "virtualmachines", "VirtualMachineInstance": "virtualmachineinstances"}

_OURS = (
    "blockaffinities ipamblocks ipamhandles clusterinformations ippools ipreservations ipamconfigs ipamconfigurations"
)
_RULES = (
    ([""], ["pods", "nodes", "namespaces"], ["get"]),
    ([""], ["pods/status"], ["patch"]),
    (
        ["crd.projectcalico.org", "projectcalico.org"],
        _OURS.split(),
        ["get", "list", "create", "update", "delete"],
    ),
    (["kubevirt.io"], list(KUBEVIRT.values()), ["get"]),
)


def give_rights(kube: KubeServer) -> None:
    """Bind the role of cni.md §4 to the plugins' account."""
    rules = [{"apiGroups": groups, "resources": resources, "verbs": verbs} for groups, resources, verbs in _RULES]
    api, metadata = "rbac.authorization.k8s.io", {"name": ACCOUNT}
    role = {"apiVersion": f"{api}/v1", "kind": "ClusterRole", "metadata": metadata, "rules": rules}
    binding = {
        "apiVersion": f"{api}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": metadata,
        "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": ACCOUNT},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": "kube-system"}],
    }
    kube.apply_documents([role, binding])


def token_of_account(kube: KubeServer) -> str:
    """Return a token of the plugins' account, signed by the server."""
    path = f"/api/v1/namespaces/kube-system/serviceaccounts/{ACCOUNT}"
    if kube.ask("GET", path)[0] == 404:
        kube.put(path, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT}})
    token: str = kube.create(f"{path}/token", {"spec": {"expirationSeconds": 7200}})["status"]["token"]
    return token


def write_kubeconfig(kube: KubeServer, file: Path, port: int) -> Path:
    """Write a kubeconfig of the plugins' account for a server on a port of 127.0.0.1."""
    file.write_text(kube.kubeconfig(token_of_account(kube), server=f"https://127.0.0.1:{port}"))
    file.chmod(0o600)
    return file


def install_kubevirt(kube: KubeServer) -> None:
    """Install definitions of KubeVirt's two kinds that accept anything, unless they are there."""
    for kind, plural in KUBEVIRT.items():
        if kube.ask("GET", f"{_DEFINITIONS}/{plural}.kubevirt.io")[0] == 404:
            kube.create(_DEFINITIONS, _definition(kind, plural))
        wait_until(partial(_served, kube, plural), what=f"{plural} served")


def remove_kubevirt(kube: KubeServer) -> None:
    """Make the server one without KubeVirt again: other tests of this process may have installed it."""
    for plural in KUBEVIRT.values():
        kube.delete(f"{_DEFINITIONS}/{plural}.kubevirt.io")
    wait_until(lambda: kube.ask("GET", "/apis/kubevirt.io")[0] == 404, what="KubeVirt's group to be gone")


def _served(kube: KubeServer, plural: str) -> bool:
    return kube.ask("GET", f"/apis/kubevirt.io/v1/{plural}")[0] == 200


def _definition(kind: str, plural: str) -> dict[str, Any]:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.kubevirt.io"},
        "spec": {
            "group": "kubevirt.io",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
            "scope": "Namespaced",
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }
