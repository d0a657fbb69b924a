"""Figures of ipamctl at size: ``python -m tests.scale.ctl_bench``. Reports, never fails on a time.

Two clusters, in etcd and behind a Kubernetes API server: one of 51,000 allocations in 1,000 blocks with the pods and
endpoints that hold them, one of 30,555 handles without an address. Each command is a process of its own; told are its
wall clock, its CPU and its largest memory, beside what the issue aims at. The data goes into the servers' etcd as
documents, a hundred a transaction, because 100,000 requests would take longer than everything that is measured.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from calico_ipam.datastore import codec, paths
from calico_ipam.datastore.etcd.library import load
from calico_ipam.datastore.kube import codec as kube_codec
from calico_ipam.datastore.kube import paths as kube_paths
from calico_ipam.model.addresses import Network, make_network
from calico_ipam.model.affinity import HOST, Affinity, BlockOwner
from calico_ipam.model.block import Attribute, Block
from calico_ipam.model.handle import Handle
from calico_ipam.model.keys import AffinityKey, BlockKey, HandleKey, Key, ResourceKey
from calico_ipam.model.resource import CLUSTER_INFORMATION, IP_POOL, NODE, WORKLOAD_ENDPOINT, Resource
from calico_ipam.model.timestamps import parse_time
from tests.etcd_tools import Etcd
from tests.scale.bench import PROGRAMS, Cost, measured

NODES, PODS = 1000, 51
ORPHANS = 30_555
RUNS = 3
TOGETHER = 100  #: writes of one transaction; etcd takes 128
MADE = "2026-08-20T10:11:12Z"
GROUP = kube_codec.Group("crd.projectcalico.org/v1")

#: wall clock in seconds, memory in MiB
AIMS = {
    ("etcd", "ipam check"): "≤ 4 s, ≤ 300 MiB",
    ("kubernetes", "ipam check"): "≤ 6 s",
    ("etcd", "ipam show --show-blocks"): "≤ 1 s",
    ("kubernetes", "ipam show --show-blocks"): "≤ 1 s",
    ("etcd", "ipam check, orphans"): "≤ 1.5 s",
    ("kubernetes", "ipam check, orphans"): "≤ 1.5 s",
    ("sqlite", "--help"): "≤ 0.15 s",
    ("sqlite", "ipam show"): "≤ 0.15 s",
}


# --- the clusters -------------------------------------------------------------------------------------------


def common() -> Iterator[tuple[Key, Any]]:
    spec = {"clusterGUID": "0" * 32, "clusterType": "k8s", "datastoreReady": True}
    yield ResourceKey(CLUSTER_INFORMATION, "default"), Resource.new(CLUSTER_INFORMATION, "default", spec)
    pool = {"cidr": "10.0.0.0/8", "blockSize": 26, "nodeSelector": "all()", "allowedUses": ["Workload", "Tunnel"]}
    yield ResourceKey(IP_POOL, "pods"), Resource.new(IP_POOL, "pods", pool)


def full() -> Iterator[tuple[Key, Any]]:
    """Yield what IPAM stores of the full cluster: each node has a block, and ``PODS`` addresses of it."""
    yield from common()
    for number in range(NODES):
        node, network = f"node-{number}", network_of(number)
        owner = BlockOwner(HOST, node)
        block = Block.new(network, now=parse_time(MADE), owner=owner)
        attributes = tuple(
            Attribute(
                handle_of(number, pod),
                {"node": node, "pod": pod_name(number, pod), "namespace": "shop", "timestamp": f"{MADE[:10]} 10:11:12"},
            )
            for pod in range(PODS)
        )
        yield (
            BlockKey(network),
            replace(
                block,
                allocations=tuple(range(PODS)) + (None,) * (block.size - PODS),
                unallocated=tuple(range(PODS, block.size)),
                attributes=attributes,
                sequence_for=dict.fromkeys(range(PODS), block.sequence_number),
            ),
        )
        yield AffinityKey(owner, network), Affinity()
        for attribute in attributes:
            handle = attribute.handle or ""
            yield HandleKey(handle), Handle(handle, {str(network): 1})


def orphaned() -> Iterator[tuple[Key, Any]]:
    """Yield a cluster whose handles have all lost their addresses."""
    yield from common()
    for number in range(ORPHANS):
        name = handle_of(number // PODS, number % PODS)
        yield HandleKey(name), Handle(name, {str(network_of(number // PODS)): 1})


def network_of(node: int) -> Network:
    return make_network(4, (10 << 24) | (node << 8), 26)


def handle_of(node: int, pod: int) -> str:
    return f"k8s-pod-network.{node:08x}{pod:08x}{'a' * 48}"


def pod_name(node: int, pod: int) -> str:
    return f"cart-{node}-{pod}"


def address(node: int, pod: int) -> str:
    return str(network_of(node).network_address + pod)


# --- as documents -------------------------------------------------------------------------------------------


def etcd_texts(things: Iterator[tuple[Key, Any]], *, workloads: bool) -> Iterator[tuple[str, str]]:
    """Yield keys and documents of the etcd datastore; with ``workloads`` the nodes and endpoints too."""
    for key, value in things:
        yield paths.path_of(key), codec.encode(key, value)
    for number in range(NODES if workloads else 0):
        node = f"node-{number}"
        key = ResourceKey(NODE, node)
        made = {"orchRefs": [{"nodeName": node, "orchestrator": "k8s"}]}
        yield paths.path_of(key), codec.encode(key, Resource.new(NODE, node, made))
        for pod in range(PODS):
            name = f"{node.replace('-', '--')}-k8s-{pod_name(number, pod).replace('-', '--')}-eth0"
            spec = {
                "orchestrator": "k8s",
                "node": node,
                "containerID": "a" * 64,
                "pod": pod_name(number, pod),
                "endpoint": "eth0",
                "ipNetworks": [f"{address(number, pod)}/32"],
                "interfaceName": f"cali{pod:011x}",
                "profiles": ["kns.shop", "ksa.shop.default"],
            }
            key = ResourceKey(WORKLOAD_ENDPOINT, name, "shop")
            resource = Resource(WORKLOAD_ENDPOINT, name, Resource.new(WORKLOAD_ENDPOINT, name, spec).document, "shop")
            yield paths.path_of(key), codec.encode(key, resource)


def kube_texts(things: Iterator[tuple[Key, Any]], *, workloads: bool) -> Iterator[tuple[str, str]]:
    """Yield keys and objects as an API server keeps them in its etcd."""
    for key, value in things:
        place = kube_paths.place_of(key, GROUP)
        document = kube_codec.encode(key, value, GROUP, place.name, None)
        plural = place.collection.rpartition("/")[2]
        yield f"/registry/{GROUP.api_version.partition('/')[0]}/{plural}/{place.name}", _object(document)
    for number in range(NODES if workloads else 0):
        node = f"node-{number}"
        named = {"name": node, "labels": {"kubernetes.io/hostname": node}}
        yield f"/registry/minions/{node}", _object({"apiVersion": "v1", "kind": "Node", "metadata": named})
        for pod in range(PODS):
            name = pod_name(number, pod)
            yield f"/registry/pods/shop/{name}", _object(pod_document(name, node, address(number, pod)))


def pod_document(name: str, node: str, ip: str) -> dict[str, Any]:
    """Return a pod about as large as real ones are on the wire; most of it nobody here looks at."""
    container = {"name": "main", "image": "registry.example.com/team/app:1.2.3", "resources": {"limits": {"cpu": "1"}}}
    labels = {"app": "cart", "pod-template-hash": "5d5c7d6f9b"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "shop",
            "labels": labels,
            "annotations": {"cni.projectcalico.org/podIP": f"{ip}/32", "cni.projectcalico.org/podIPs": f"{ip}/32"},
        },
        "spec": {"nodeName": node, "containers": [container] * 2, "serviceAccountName": "default"},
        "status": {
            "phase": "Running",
            "podIP": ip,
            "podIPs": [{"ip": ip}],
            "conditions": [{"type": each, "status": "True"} for each in ("Ready", "Initialized", "PodScheduled")],
        },
    }


def _object(document: Mapping[str, Any]) -> str:
    stored = {"uid": str(uuid.uuid4()), "creationTimestamp": MADE}
    return json.dumps({**document, "metadata": {**document["metadata"], **stored}})


def fill(address_: str, texts: Iterator[tuple[str, str]]) -> int:
    """Write documents into an etcd; return how many."""
    library = load()
    channel = library.grpc.insecure_channel(address_)
    call = library.unary(channel, "KV/Txn", "TxnResponse")
    put, operation, together = (library.message(name) for name in ("PutRequest", "RequestOp", "TxnRequest"))
    number = 0
    try:
        while part := list(islice(texts, TOGETHER)):
            operations = [operation(request_put=put(key=key.encode(), value=text.encode())) for key, text in part]
            call(together(success=operations), timeout=30)
            number += len(part)
    finally:
        channel.close()
    return number


# --- the commands -------------------------------------------------------------------------------------------


def figures(store: str, environ: Mapping[str, str], commands: Mapping[str, str], runs: int = RUNS) -> None:
    """Run commands and print what each costs: the medians of some runs."""
    for name, command in commands.items():
        try:
            costs = [ran(command, environ) for _ in range(runs)]
        except RuntimeError as error:  # a server that is starved of time
            print(f"{store:11} {name:28} {str(error).splitlines()[-1]}", flush=True)
            continue
        wall, cpu, peak = (
            statistics.median(getattr(each, field) for each in costs) for field in ("wall", "cpu", "peak")
        )
        aim = AIMS.get((store, name), "")
        print(f"{store:11} {name:28} {wall / 1000:6.2f} s {cpu / 1000:6.2f} s CPU {peak:6.0f} MiB   {aim}", flush=True)


def ran(command: str, environ: Mapping[str, str]) -> Cost:
    plain = {"PATH": os.environ["PATH"], "HOME": "/", "CNI_COMMAND": command, **environ}
    return measured([PROGRAMS / "ipamctl", *command.split()], plain, "")


CHECK, BLOCKS = "ipam check", "ipam show --show-blocks"


def on_etcd(folder: Path) -> None:
    with Etcd() as etcd:
        environ = {"DATASTORE_TYPE": "etcdv3", "ETCD_ENDPOINTS": etcd.endpoint}
        fill(etcd.address, etcd_texts(full(), workloads=True))
        figures("etcd", environ, {CHECK: CHECK, BLOCKS: BLOCKS})
        etcd.clear()
        fill(etcd.address, etcd_texts(orphaned(), workloads=False))
        figures("etcd", environ, {f"{CHECK}, orphans": CHECK})


def on_kubernetes(folder: Path) -> None:
    from tests.kube_tools import KubeServer, wait_until

    with KubeServer("v1") as server:
        environ = {"DATASTORE_TYPE": "kubernetes", "KUBECONFIG": str(server.folder / "kubeconfig")}
        inner = f"127.0.0.1:{server._etcd_port}"

        def arrived(path: str) -> Callable[[], bool]:
            return lambda: server.ask("GET", path)[0] == 200

        fill(inner, kube_texts(full(), workloads=True))
        last = f"/api/v1/namespaces/shop/pods/{pod_name(NODES - 1, PODS - 1)}"
        wait_until(arrived(last), what="the API server to know the last pod")
        figures("kubernetes", environ, {CHECK: CHECK, BLOCKS: BLOCKS})
    with KubeServer("v1") as server:
        environ["KUBECONFIG"] = str(server.folder / "kubeconfig")
        fill(f"127.0.0.1:{server._etcd_port}", kube_texts(orphaned(), workloads=False))
        figures("kubernetes", environ, {f"{CHECK}, orphans": CHECK})


def small(folder: Path) -> None:
    """Print what a call costs by itself, on a store of one host."""
    url = f"sqlite://{folder}/ipam.db"
    ran(f"--datastore {url} init --node node-1 --ipv4-pool 10.0.0.0/16", {})
    commands = {"--help": "--help", "ipam show": f"--datastore {url} ipam show"}
    figures("sqlite", {}, commands, runs=15)


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        wanted = sys.argv[1:] or ["small", "on_etcd", "on_kubernetes"]
        with suppress(KeyboardInterrupt):
            for part in (small, on_etcd, on_kubernetes):
                if part.__name__ in wanted:
                    part(Path(name))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
