"""A node of a test: its programs run inside a network namespace, and a real API server holds the pods."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calico_ipam.datastore.api import Create
from calico_ipam.datastore.kube.store import KubernetesStore
from calico_ipam.model.keys import Blocks, ResourceKey
from calico_ipam.model.resource import CLUSTER_INFORMATION, IP_POOL, Resource
from tests.kube_tools import Audited, KubeServer
from tests.netns_tools import Namespace, Node, inside
from tests.plugin_account import give_rights, write_kubeconfig
from tests.private_view import private_view
from tests.tunnel import Tunnel

NETWORK, NODE = "k8s-pod-network", "worker-1"


@dataclass
class Site:
    """A node with the plugins, and the API server that it talks to."""

    kube: KubeServer
    node: Node
    folder: Path
    kubeconfig: Path
    namespace: str
    store: KubernetesStore

    def pod(self, name: str, annotations: Mapping[str, str] | None = None, node: str = NODE) -> None:
        prefixed = {f"cni.projectcalico.org/{key}": value for key, value in (annotations or {}).items()}
        self.kube.pod(self.namespace, name, node, prefixed)

    def start(self, verb: str, pod: str, sandbox: Namespace, **netconf: Any) -> subprocess.Popen[str]:
        """Start a call of ``calico`` with a network configuration of the test's own."""
        found: dict[str, Any] = {
            "cniVersion": "1.0.0",
            "name": NETWORK,
            "type": "calico",
            "datastore_type": "kubernetes",
            "nodename": NODE,
            "nodename_file_optional": True,
            "ipam_lock_file": str(self.folder / "ipam.lock"),
            "ipam": {"type": "calico-ipam"},
            "policy": {"type": "k8s"},
            "kubernetes": {"kubeconfig": str(self.kubeconfig)},
            "calico_api_group": self.kube.api_version,
            **netconf,
        }
        return self.start_with(found, verb, pod, sandbox)

    def start_with(self, netconf: Mapping[str, Any], verb: str, pod: str, sandbox: Namespace) -> subprocess.Popen[str]:
        """Start a call with a whole network configuration. The program sees a private /run and /var/lib."""
        uid = self.kube.ask("GET", f"/api/v1/namespaces/{self.namespace}/pods/{pod}")[1].get("metadata", {}).get("uid")
        environ = {
            "PATH": os.environ["PATH"],
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": f"id{sandbox.name.rpartition('-')[2]}",
            "CNI_NETNS": sandbox.path,
            "CNI_IFNAME": "eth0",
            "CNI_PATH": "/usr/lib/cni",
            "CNI_ARGS": f"K8S_POD_NAMESPACE={self.namespace};K8S_POD_NAME={pod};K8S_POD_UID={uid or ''}",
        }
        program = [*private_view(self.folder), sys.executable, "-c", "from calico_cni.entry import main; main()"]
        pipe = subprocess.PIPE
        with inside(self.node.path):
            process = subprocess.Popen(program, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environ)
        assert process.stdin is not None
        process.stdin.write(json.dumps(netconf))
        process.stdin.close()
        process.stdin = None
        return process

    def call(self, verb: str, pod: str, sandbox: Namespace, **netconf: Any) -> dict[str, Any]:
        """Do a call that must work; returns what it printed."""
        return finished(self.start(verb, pod, sandbox, **netconf))

    def counted(self, verb: str, pod: str, sandbox: Namespace) -> list[Audited]:
        """Do a call; returns its requests."""
        self.kube.mark()
        self.call(verb, pod, sandbox)
        return self.kube.requests()

    def pod_now(self, name: str) -> dict[str, str]:
        found = self.kube.get(f"/api/v1/namespaces/{self.namespace}/pods/{name}")["metadata"].get("annotations", {})
        return {key.removeprefix("cni.projectcalico.org/"): value for key, value in found.items()}

    def held(self) -> int:
        """Return how many addresses are assigned."""
        return sum(len(list(entry.value.taken())) for entry in self.store.list(Blocks()))


def finished(process: subprocess.Popen[str], seconds: float = 60) -> dict[str, Any]:
    """Wait for a call that must work; returns what it printed."""
    out, err = process.communicate(timeout=seconds)
    assert process.returncode == 0, out + err
    found: dict[str, Any] = json.loads(out) if out else {}
    return found


@contextmanager
def kube_site(kube: KubeServer, folder: Path) -> Iterator[Site]:
    """Yield a node whose programs run inside its namespace; the test stays outside, where the API server is."""
    node = Node()
    tunnel = Tunnel(node.path, kube.port)
    try:
        kube.clear()
        give_rights(kube)
        node.add_uplink()
        kubeconfig = write_kubeconfig(kube, folder / "kubeconfig", tunnel.port)
        with KubernetesStore(kube.settings()) as store:
            yield Site(kube, node, folder, kubeconfig, kube.namespace(), store)
    finally:
        tunnel.close()
        node.destroy()


def prepare(site: Site) -> None:
    """Make what a ready cluster has: the node, cluster information, a pool of each family."""
    site.kube.node(NODE)
    for kind, name, spec in (
        (CLUSTER_INFORMATION, "default", {"datastoreReady": True}),
        (IP_POOL, "pool4", {"cidr": "10.65.0.0/16", "blockSize": 28, "nodeSelector": "all()"}),
        (IP_POOL, "pool6", {"cidr": "fd00:65::/64", "blockSize": 124, "nodeSelector": "all()"}),
    ):
        site.store.commit(Create(ResourceKey(kind, name), Resource.new(kind, name, spec)))
