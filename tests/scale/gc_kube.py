"""The collector on a real API server, which holds blocks, handles, pods and nodes: ``python -m tests.scale.gc_kube``.

The same figures as of the simulated cluster of :mod:`tests.scale.gc_scale`. Servers and collector share the machine, so
the collector's CPU time says more than the clock.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from calico_ipam.datastore.api import Create
from calico_ipam.datastore.kube.store import KubernetesStore
from calico_ipam.model.addresses import parse_network
from calico_ipam.model.affinity import Affinity, BlockOwner
from calico_ipam.model.block import Attribute, Block
from calico_ipam.model.handle import Handle
from calico_ipam.model.keys import AffinityKey, BlockKey, HandleKey
from tests.kube_tools import KubeServer
from tests.scale.gc_scale import address, at_rest, collector, leaks

NAMESPACES = 10


def fill(server: KubeServer, store: KubernetesStore, nodes: int, pods: int) -> None:
    body = {"apiVersion": server.api_version, "kind": "IPPool", "metadata": {"name": "pool"}}
    server.create(server.collection("ippools"), {**body, "spec": {"cidr": "10.0.0.0/8", "blockSize": 26}})
    for number in range(NAMESPACES):
        metadata = {"name": f"ns{number}"}
        server.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
        server.create(f"/api/v1/namespaces/ns{number}/serviceaccounts", account)
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda n: _node(server, store, n, pods), range(nodes)))
        list(pool.map(lambda which: _pod(server, *which), [(n, p) for n in range(nodes) for p in range(pods)]))


def _node(server: KubeServer, store: KubernetesStore, n: int, pods: int) -> None:
    name = f"n{n}"
    server.node(name)
    network, owner = parse_network(f"10.{n // 250}.{n % 250}.0/26"), BlockOwner("host", name)
    attributes = tuple(
        Attribute(f"k8s-pod-network.{n:05}{p:03}0", {"node": name, "pod": f"p{n}-{p}", "namespace": _namespace(p)})
        for p in range(pods)
    )
    block = Block.new(network, now=time.time_ns(), owner=owner)
    block = replace(
        block,
        allocations=tuple(range(pods)) + (None,) * (64 - pods),
        unallocated=tuple(range(pods, 64)),
        attributes=attributes,
        sequence_for=dict.fromkeys(range(pods), block.sequence_number),
    )
    store.commit(
        *(Create(HandleKey(a.handle or ""), Handle(a.handle or "", {str(network): 1})) for a in attributes),
        Create(AffinityKey(owner, network), Affinity()),
        Create(BlockKey(network), block),
    )


def _namespace(p: int) -> str:
    return f"ns{p % NAMESPACES}"


def _pod(server: KubeServer, n: int, p: int) -> None:
    ip = address(n, p)
    server.pod(_namespace(p), f"p{n}-{p}", f"n{n}")
    status = {"status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]}}
    path = f"/api/v1/namespaces/{_namespace(p)}/pods/p{n}-{p}/status"
    server.done("PATCH", path, status, content_type="application/merge-patch+json")


def _gone(server: KubeServer, n: int, p: int) -> None:
    server.delete_pod(_namespace(p), f"p{n}-{p}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=40)
    parser.add_argument("--pods", type=int, default=50)
    parser.add_argument("--minutes", type=float, default=0.5, help="how long to look at rest")
    parser.add_argument("--leaks", type=int, default=1000)
    parser.add_argument("--grace", default="20s")
    chosen = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        KubeServer("v1") as server,
        KubernetesStore(server.settings()) as store,
    ):
        began = time.monotonic()
        fill(server, store, chosen.nodes, chosen.pods)
        print(f"{chosen.nodes} nodes, {chosen.nodes * chosen.pods} addresses, made in {time.monotonic() - began:.0f} s")
        environ = {
            **os.environ,
            "DATASTORE_TYPE": "kubernetes",
            "KUBECONFIG": str(server.folder / "kubeconfig"),
            "CALICO_API_GROUP": server.api_version,
        }
        with collector(environ, chosen.grace, Path(folder)) as measured:
            at_rest(measured, chosen.minutes * 60)
            leaks(store, chosen.leaks, chosen.pods, measured, partial(_gone, server))
    return 0


if __name__ == "__main__":
    sys.exit(main())
