"""The collector at size: a simulated cluster in this process, the collector in a process of its own.

::

    python tests/scale/gc_scale.py --nodes 1000 --pods 50 --minutes 3 --leaks 10000

Blocks are in a real etcd (``--store sqlite``: in SQLite, whose watches poll); pods and nodes come from an API server
of this file's own over HTTP, page by page and by watch, as the real one sends them. Told are: time to the first full
view, CPU for it, resident memory at rest, CPU share without and with 1 % churn a minute, and how long confirmed leaks
take.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain, islice
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from urllib.request import urlopen

from calico_ipam.datastore.api import Create, Datastore, Update
from calico_ipam.datastore.sqlite import SQLiteStore
from calico_ipam.model.addresses import parse_network
from calico_ipam.model.affinity import Affinity, BlockOwner
from calico_ipam.model.block import Attribute, Block
from calico_ipam.model.handle import Handle
from calico_ipam.model.keys import AffinityKey, BlockKey, HandleKey, ResourceKey
from calico_ipam.model.resource import IP_POOL, NODE, Resource

PAGE_TICK = os.sysconf("SC_CLK_TCK")


class Cluster:
    """Nodes and pods as the text that is sent, and everybody who watches them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.revision = 1
        #: kind -> namespace -> name
        self.objects: dict[str, dict[str, dict[str, bytes]]] = {"nodes": {}, "pods": {}}
        self.watchers: dict[str, list[queue.Queue[bytes]]] = {"nodes": [], "pods": []}
        self.gets = 0

    def put(self, kind: str, document: dict[str, Any]) -> None:
        with self.lock:
            self.revision += 1
            document["metadata"]["resourceVersion"] = str(self.revision)
            namespace, _, name = _name(document).partition("/")
            text = json.dumps(document).encode()
            self.objects[kind].setdefault(namespace, {})[name] = text
            self._tell("MODIFIED", kind, text)

    def delete(self, kind: str, full_name: str) -> None:
        with self.lock:
            namespace, _, name = full_name.partition("/")
            document = json.loads(self.objects[kind][namespace].pop(name))
            self.revision += 1
            document["metadata"]["resourceVersion"] = str(self.revision)
            self._tell("DELETED", kind, json.dumps(document).encode())

    def _tell(self, event: str, kind: str, text: bytes) -> None:
        line = b'{"type":"%s","object":%s}\n' % (event.encode(), text)
        for watcher in self.watchers[kind]:
            watcher.put(line)

    def found(self, kind: str, namespace: str, name: str) -> bytes | None:
        return self.objects[kind].get(namespace, {}).get(name)

    def listed(self, kind: str, namespace: str, begin: int, size: int) -> bytes:
        """Return one page of a list."""
        with self.lock:
            places = [self.objects[kind].get(namespace, {})] if namespace else self.objects[kind].values()
            items = list(islice(chain.from_iterable(place.values() for place in places), begin, begin + size + 1))
            metadata = {"resourceVersion": str(self.revision)}
        if len(items) > size:
            metadata["continue"] = str(begin + size)
        text = b'{"kind":"%sList","metadata":%s,"items":[%s]}'
        return text % (kind[:-1].title().encode(), json.dumps(metadata).encode(), b",".join(items[:size]))


def _name(document: dict[str, Any]) -> str:
    metadata = document["metadata"]
    return f"{metadata.get('namespace', '')}/{metadata['name']}"


NOT_FOUND = b'{"kind":"Status","reason":"NotFound","code":404}'


class Handler(BaseHTTPRequestHandler):
    cluster: Cluster
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each answer waits forty milliseconds for an acknowledgement

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = {k: v[0] for k, v in parse_qs(parts.query).items()}
        segments = [s for s in parts.path.split("/") if s][2:]  # api, v1
        if segments and segments[0] == "namespaces":
            namespace, kind, *rest = segments[1:]
        elif segments and segments[0] in ("nodes", "pods"):
            namespace, kind, rest = "", segments[0], segments[1:]
        else:
            return self._send(404, NOT_FOUND)
        if query.get("watch"):
            return self._watch(kind)
        if rest:
            self.cluster.gets += 1
            found = self.cluster.found(kind, namespace, rest[0])
            return self._send(200, found) if found else self._send(404, NOT_FOUND)
        begin, size = int(query.get("continue", "0")), int(query.get("limit", "500"))
        return self._send(200, self.cluster.listed(kind, namespace, begin, size))

    def _watch(self, kind: str) -> None:
        mine: queue.Queue[bytes] = queue.Queue()
        with self.cluster.lock:
            self.cluster.watchers[kind].append(mine)
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            while True:
                line = mine.get()
                self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
                self.wfile.flush()
        except OSError:
            with self.cluster.lock:
                self.cluster.watchers[kind].remove(mine)

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        return None


def pod_document(n: int, p: int, ip: str) -> dict[str, Any]:
    """A pod about as large as real ones are on the wire, most of which the collector throws away."""
    container = {"name": "main", "image": "registry.example.com/team/app:1.2.3", "resources": {"limits": {"cpu": "1"}}}
    return {
        "metadata": {
            "name": f"p{n}-{p}",
            "namespace": f"ns{p % 10}",
            "uid": f"{n:08x}-{p:04x}-4000-8000-000000000000",
            "labels": {"app": "x", "pod-template-hash": "5d5c7d6f9b"},
            "annotations": {"cni.projectcalico.org/podIP": f"{ip}/32"},
        },
        "spec": {"nodeName": f"n{n}", "containers": [container] * 3, "tolerations": [{"key": "x"}] * 4},
        "status": {
            "phase": "Running",
            "podIP": ip,
            "podIPs": [{"ip": ip}],
            "conditions": [{"type": t, "status": "True"} for t in ("Ready", "Initialized", "PodScheduled")],
        },
    }


def address(n: int, p: int) -> str:
    return f"10.{n // 250}.{n % 250}.{p}"


def fill(store: Datastore, cluster: Cluster, nodes: int, pods: int) -> None:
    store.commit(Create(ResourceKey(IP_POOL, "pool"), Resource.new(IP_POOL, "pool", {"cidr": "10.0.0.0/8"})))
    for n in range(nodes):
        name = f"n{n}"
        cluster.put("nodes", {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}})
        reference = {"orchRefs": [{"nodeName": name, "orchestrator": "k8s"}]}
        network, owner = parse_network(f"10.{n // 250}.{n % 250}.0/26"), BlockOwner("host", name)
        attributes = [
            Attribute(
                f"k8s-pod-network.{n:05}{p:03}0",
                {"node": name, "pod": f"p{n}-{p}", "namespace": f"ns{p % 10}", "timestamp": "2026-08-20 10:11:12"},
            )
            for p in range(pods)
        ]
        block = Block.new(network, now=time.time_ns(), owner=owner)
        block = replace(
            block,
            allocations=tuple(range(pods)) + (None,) * (64 - pods),
            unallocated=tuple(range(pods, 64)),
            attributes=tuple(attributes),
            sequence_for=dict.fromkeys(range(pods), block.sequence_number),
        ).bumped()
        store.commit(
            Create(ResourceKey(NODE, name), Resource.new(NODE, name, reference)),
            Create(BlockKey(network), block),
            Create(AffinityKey(owner, network), Affinity()),
            *(Create(HandleKey(a.handle or ""), Handle(a.handle or "", {str(network): 1})) for a in attributes),
        )
        for p in range(pods):
            cluster.put("pods", pod_document(n, p, address(n, p)))


class Measured:
    """The collector's process as /proc, its log and its metrics show it."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.log = log
        self._folder = Path("/proc") / str(process.pid)

    def wait_for(self, text: bytes, seconds: float) -> float:
        """Wait until the log has ``text``; return how long that took."""
        began = time.monotonic()
        while text not in self.log.read_bytes():
            time.sleep(0.05)
            if time.monotonic() - began > seconds:
                raise SystemExit(self.log.read_text()[-3000:])
        return time.monotonic() - began

    def passes(self) -> tuple[int, float]:
        """Return how many passes there were, and how many seconds all of them took."""
        (page,) = re.findall(r"page: (http://\S+)", self.log.read_text())
        with urlopen(f"{page}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        found = {
            name: re.search(rf'^ipam_gc_sync_duration_seconds_{name}{{phase="sync"}} (\S+)', text, re.MULTILINE)
            for name in ("count", "sum")
        }
        assert all(found.values()), "no passes are told"
        return int(float(found["count"][1])), float(found["sum"][1])  # type: ignore[index]  # asserted above

    def cpu(self) -> float:
        fields = (self._folder / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / PAGE_TICK

    def resident(self) -> float:
        (line,) = (x for x in (self._folder / "status").read_text().splitlines() if x.startswith("VmRSS:"))
        return int(line.split()[1]) / 1024


def churn(store: Datastore, cluster: Cluster, nodes: int, pods: int, seconds: float) -> None:
    """Replace 1 % of the pods a minute: a new container for the same pod name, evenly spread."""
    choose, end = random.Random(1), time.monotonic() + seconds
    pause = 60.0 / max(1, nodes * pods // 100)
    number = 0
    while time.monotonic() < end:
        n, p = choose.randrange(nodes), choose.randrange(pods)
        number += 1
        document = pod_document(n, p, address(n, p))
        cluster.delete("pods", _name(document))
        entry = store.get(BlockKey(parse_network(f"10.{n // 250}.{n % 250}.0/26")))
        attributes = list(entry.value.attributes)
        attributes[p] = replace(attributes[p], handle=f"k8s-pod-network.{n:05}{p:03}x{number}")
        numbers = {**entry.value.sequence_for, p: entry.value.sequence_number}
        store.commit(Update(entry, replace(entry.value, attributes=tuple(attributes), sequence_for=numbers).bumped()))
        cluster.put("pods", document)
        time.sleep(pause)


def leaks(store: Datastore, number: int, pods: int, measured: Measured, delete: Callable[[int, int], None]) -> None:
    """Let pods go without a DEL, node after node; tell when their addresses are free, counted from the confirmation."""
    names = [(n, p) for n in range(-(-number // pods)) for p in range(pods)][:number]
    before = measured.cpu()
    for n, p in names:
        delete(n, p)
    measured.wait_for(b"Confirmed IP leak", 600)
    began = time.monotonic()
    first: float | None = None
    left = number
    blocks = sorted({n for n, _ in names})
    while left and time.monotonic() - began < 600:
        held = {n: _held(store, n) for n in blocks}
        blocks = [n for n in blocks if held[n]]  # the others need no further look: looking costs the servers, too
        left = sum(held.values())
        if left < number and first is None:
            first = time.monotonic() - began
            print(f"first address free {first:.1f} s after the first confirmation")
        time.sleep(0.5)
    print(f"{number - left} of {number} addresses free after {time.monotonic() - began:.1f} s", end=", ")
    print(f"{measured.cpu() - before:.1f} s of CPU, {measured.resident():.0f} MiB resident")


def _held(store: Datastore, n: int) -> int:
    entry = store.read(key := BlockKey(parse_network(f"10.{n // 250}.{n % 250}.0/26"))).entry(key)
    return sum(1 for _ in entry.value.taken()) if entry is not None else 0


@contextmanager
def opened(kind: str, folder: Path) -> Iterator[tuple[Datastore, dict[str, str]]]:
    """Yield an empty store and the environment that leads to it."""
    if kind == "sqlite":
        path = folder / "store" / "ipam.db"
        with SQLiteStore(path) as store:
            yield store, {"DATASTORE_TYPE": "sqlite", "SQLITE_PATH": str(path)}
        return
    from calico_ipam.datastore.etcd import EtcdStore
    from tests.etcd_tools import Etcd

    with Etcd() as etcd, EtcdStore(etcd.settings()) as store:
        yield store, {"DATASTORE_TYPE": "etcdv3", "ETCD_ENDPOINTS": etcd.endpoint}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=50)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long to look at rest, and under churn")
    parser.add_argument("--leaks", type=int, default=0)
    parser.add_argument("--grace", default="15m")
    parser.add_argument("--store", choices=("etcd", "sqlite"), default="etcd")
    chosen = parser.parse_args()
    cluster = Cluster()
    Handler.cluster = cluster
    with tempfile.TemporaryDirectory() as folder, opened(chosen.store, Path(folder)) as (store, datastore):
        began = time.monotonic()
        fill(store, cluster, chosen.nodes, chosen.pods)
        print(f"{chosen.nodes} nodes, {chosen.nodes * chosen.pods} addresses, made in {time.monotonic() - began:.0f} s")
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        environ = {
            **os.environ,
            **datastore,
            "K8S_API_ENDPOINT": f"http://127.0.0.1:{server.server_address[1]}",
            "KUBERNETES_SERVICE_HOST": "simulated",
        }
        with collector(environ, chosen.grace, Path(folder)) as measured:
            at_rest(measured, chosen.minutes * 60)
            before, gets = measured.cpu(), cluster.gets
            churn(store, cluster, chosen.nodes, chosen.pods, chosen.minutes * 60)
            share = 100 * (measured.cpu() - before) / (chosen.minutes * 60)
            print(f"with 1 % churn a minute: {share:.2f} % of a core", end=", ")
            print(f"{cluster.gets - gets} single reads, {measured.resident():.0f} MiB resident")
            if chosen.leaks:
                gone = partial(_gone, cluster)
                leaks(store, chosen.leaks, chosen.pods, measured, gone)
        server.shutdown()
    print(f"(this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB)")
    return 0


def _gone(cluster: Cluster, n: int, p: int) -> None:
    cluster.delete("pods", _name(pod_document(n, p, "")))


@contextmanager
def collector(environ: Mapping[str, str], grace: str, folder: Path) -> Iterator[Measured]:
    """Run a collector as a process of its own; tell what its first full view cost."""
    flags = ["--leader-elect", "false", "--events", "false", "--leak-grace", grace, "--listen", "127.0.0.1:0"]
    command = [sys.executable, "-m", "calico_gc.main", *flags]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=dict(environ), stderr=log)
    try:
        measured = Measured(process, folder / "log")
        seconds = measured.wait_for(b"everything is listed", 300)
        print(f"first full view after {seconds:.1f} s, {measured.cpu():.1f} s of CPU")
        yield measured
    finally:
        process.terminate()
        process.wait()


def at_rest(measured: Measured, seconds: float) -> None:
    time.sleep(10)
    number, spent = measured.passes()
    print(f"the first looks, {number} passes, took {spent:.2f} s", end="; ")
    print(f"until then {measured.cpu():.1f} s of CPU, {measured.resident():.0f} MiB resident")
    before = measured.cpu()
    time.sleep(seconds)
    print(f"at rest: {100 * (measured.cpu() - before) / seconds:.2f} % of a core", flush=True)


if __name__ == "__main__":
    sys.exit(main())
