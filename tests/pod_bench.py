"""A host for calls of the plugins about pods, as values: pods in memory, Calico's data beside them or with them.

``PodBench(folder, "kubernetes")`` keeps everything in custom resources, ``PodBench(folder, "etcd")`` keeps Calico's
data in a store of documents and asks a second API for the pods, as upstream's plugins do with etcd.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from calico_cni.context import Context, Paths
from calico_cni.protocol import Response
from calico_ipam.datastore.api import Create, Datastore, Deadline
from calico_ipam.datastore.kube.api import Request
from calico_ipam.datastore.kube.cluster import Cluster
from calico_ipam.engine.client import IPAM
from calico_ipam.errors import IPAMError
from calico_ipam.model.addresses import parse_address
from calico_ipam.model.keys import ResourceKey, Resources
from calico_ipam.model.resource import CLUSTER_INFORMATION, IP_POOL, NODE, WORKLOAD_ENDPOINT, Resource
from tests.cni_bench import NODE_NAME, CNIBench
from tests.memory import MemoryStore
from tests.memory_kube import MemoryApi, MemoryKubeStore, _no

STORES = ("kubernetes", "etcd")
NETWORK = "k8s-pod-network"
X, Y, Z = "0a1b2c3d4e5f60718293a4b5c6d7e8f9", "1111222233334444555566667777888f", "99990000aaaabbbbccccddddeeee0000"
HOST_NAME = "cali94bb54956b2"  # of test/nginx


class PodApi(MemoryApi):
    """The API in memory, with what the plugins do to pods. ``before``: called with each request before it is done."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[str] = []
        self.before: Callable[[Request], None] = lambda _request: None

    def call(self, request: Request, deadline: Deadline | None = None) -> dict[str, Any]:
        self.requests.append(str(request))
        self.before(request)
        return super().call(request, deadline)

    def answer(self, request: Request) -> tuple[int, dict[str, Any]]:
        if request.method == "PATCH":
            self.writes += 1
            return self._patch(request.path.removesuffix("/status"), request.body["metadata"])
        if request.path == "/version":
            return 200, {"major": "1"}
        status, found = super().answer(request)
        if status == 404:
            collection, _, name = request.path.rpartition("/")
            plural = collection.rpartition("/")[2]
            group = ".kubevirt.io" if "kubevirt" in collection else ""
            if "/api/v1/" in request.path or group:
                found = {**found, "message": f'{plural}{group} "{name}" not found'}
        return status, found

    def _patch(self, path: str, metadata: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        found = self.objects.get(path)
        if found is None:
            return self._get(path)
        now = found["metadata"]
        if metadata.get("uid", now["uid"]) != now["uid"]:
            return _no("Conflict", 409, f"Precondition failed: UID in precondition: {metadata['uid']}")
        if metadata.get("resourceVersion", now["resourceVersion"]) != now["resourceVersion"]:
            return _no("Conflict", 409, "the object has been modified")
        annotations = {**now.get("annotations", {}), **metadata.get("annotations", {})}
        return 200, self._store(path, {**found, "metadata": {**now, "annotations": annotations}})

    # --- behind the plugins' back ---------------------------------------------------------------------------

    def put(self, collection: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object, or replace it by a new one of its name."""
        self.objects.pop(f"{collection}/{body['metadata']['name']}", None)
        made = json.loads(json.dumps(body))
        status = made.get("status")
        made = self._create(collection, made)[1]
        if status:
            made["status"] = status
        return made


class PodStore(MemoryKubeStore):
    """The Kubernetes datastore on such an API."""

    def __init__(self, api: PodApi) -> None:
        super().__init__()
        self._api: Any = api


class PodBench(CNIBench):
    """See the module. ``api``: pods and namespaces, and all the rest where they are the datastore."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.api = PodApi()
        self.kind = kind
        base: Any = PodStore(self.api) if kind == "kubernetes" else MemoryStore()
        super().__init__(folder, base)

    @property
    def on_kubernetes(self) -> bool:
        return self.kind == "kubernetes"

    def prepare(self) -> PodBench:
        """Store what a ready cluster has, and the pod test/nginx on this node."""
        self.put(CLUSTER_INFORMATION, "default", {"datastoreReady": True})
        node = {"spec": {"podCIDRs": ["10.50.0.0/24", "fd50::/112"]}}
        self.api.put("/api/v1/nodes", {"metadata": {"name": NODE_NAME}, **node})
        if not self.on_kubernetes:
            self.put(NODE, NODE_NAME, {})
        self.put(IP_POOL, "pool4", {"cidr": "10.65.0.0/24", "blockSize": 28, "nodeSelector": "all()"})
        self.put(IP_POOL, "pool6", {"cidr": "fd00:65::/64", "blockSize": 124, "nodeSelector": "all()"})
        self.namespace()
        self.pod()
        return self

    def namespace(self, name: str = "test", labels: Mapping[str, str] | None = None, **annotations: str) -> None:
        metadata = {"name": name, "labels": dict(labels or {}), "annotations": _prefixed(annotations)}
        self.api.put("/api/v1/namespaces", {"metadata": metadata})

    def pod(
        self,
        name: str = "nginx",
        *,
        node: str = NODE_NAME,
        metadata: Mapping[str, Any] | None = None,
        spec: Mapping[str, Any] | None = None,
        status: Mapping[str, Any] | None = None,
        **annotations: str,
    ) -> dict[str, Any]:
        """Make a pod in the namespace test. ``annotations``: names without Calico's prefix."""
        whole = {"name": name, "namespace": "test", "annotations": _prefixed(annotations), **(metadata or {})}
        body = {"serviceAccountName": "default", "containers": [], **({"nodeName": node} if node else {})}
        return self.api.put(
            "/api/v1/namespaces/test/pods",
            {"kind": "Pod", "metadata": whole, "spec": {**body, **(spec or {})}, "status": dict(status or {})},
        )

    def pod_annotations(self, name: str = "nginx") -> dict[str, str]:
        """Return a pod's annotations, Calico's without their prefix."""
        found = self.api.objects[f"/api/v1/namespaces/test/pods/{name}"]["metadata"].get("annotations", {})
        return {key.removeprefix("cni.projectcalico.org/"): value for key, value in found.items()}

    def context(self) -> Context:
        context = super().context()
        paths = Paths(context.paths.mtu_file, context.paths.upgrade_marker, self.folder / "installed.conflist")
        return replace(context, open_cluster=self._cluster, paths=paths)

    def _cluster(self, settings: Mapping[str, Any], environ: Mapping[str, str], store: Datastore) -> Cluster:
        return Cluster(self.api)

    def netconf(self, **changes: Any) -> dict[str, Any]:
        found = {
            "name": NETWORK,
            "datastore_type": "kubernetes" if self.on_kubernetes else "etcdv3",
            "nodename": NODE_NAME,
            "policy": {"type": "k8s"},
            "kubernetes": {"kubeconfig": "/etc/cni/net.d/calico-kubeconfig"},
        }
        return super().netconf(**{**found, **changes})

    def call(self, verb: str, *, pod: str = "nginx", uid: str = "", args: str = "", **more: Any) -> Response:
        """Do a call about a pod of the namespace test."""
        more.setdefault("container", X)
        told = f"K8S_POD_NAMESPACE=test;K8S_POD_NAME={pod};K8S_POD_INFRA_CONTAINER_ID={more['container']}"
        told += f";K8S_POD_UID={uid}" if uid else ""
        return super().call(verb, args=f"{told};{args}" if args else told, **more)

    # --- what is left ---------------------------------------------------------------------------------------

    def records(self) -> list[Resource]:
        """Return the endpoint records; on Kubernetes the pods that have an address."""
        if not self.on_kubernetes:
            return [entry.value for entry in self.base.list(Resources(WORKLOAD_ENDPOINT))]
        keys = [p.rpartition("/")[2] for p in self.api.objects if "/namespaces/test/pods/" in p]
        names = [name for name in keys if self.pod_annotations(name).get("podIP")]
        found = []
        for name in names:
            prefix = f"{NODE_NAME.replace('-', '--')}-k8s-{name.replace('-', '--')}-"
            found += [entry.value for entry in self.base.list(Resources(WORKLOAD_ENDPOINT, "test", prefix))]
        return found

    def holder(self, ip: str) -> dict[str, str]:
        """Return the owner attributes of an address."""
        return dict(IPAM(self.base).assignment_attributes(parse_address(ip)).active)

    def fail(self, method: str, part: str, error: Callable[[], IPAMError], times: int = 1) -> list[str]:
        """Let requests of the API fail whose path has ``part``; returns a list that fills with those that did."""
        struck: list[str] = []

        def before(request: Request) -> None:
            if request.method == method and part in request.path and len(struck) < times:
                struck.append(str(request))
                raise error()

        self.api.before = before
        return struck

    def create(self, kind: str, name: str, spec: Mapping[str, Any]) -> None:
        self.base.commit(Create(ResourceKey(kind, name), Resource.new(kind, name, spec)))


def _prefixed(annotations: Mapping[str, str]) -> dict[str, str]:
    return {name if "/" in name else f"cni.projectcalico.org/{name}": text for name, text in annotations.items()}
