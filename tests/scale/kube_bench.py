"""Figures of the library on the Kubernetes API: ``python -m tests.scale.kube_bench`` (needs kube-apiserver).

Pairs of assign and release per second, and the CPU time that a pair costs the library and the servers: on a busy
machine only the latter says something.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.synchronize import Event, Semaphore

from calico_ipam.datastore.api import Create
from calico_ipam.datastore.kube.store import KubernetesStore
from calico_ipam.datastore.settings import Settings
from calico_ipam.engine.client import IPAM
from calico_ipam.model.addresses import blocks_in, parse_network
from calico_ipam.model.affinity import HOST, Affinity, BlockOwner
from calico_ipam.model.block import Block
from calico_ipam.model.keys import AffinityKey, BlockKey
from calico_ipam.model.resource import IP_POOL
from tests.kube_tools import KubeServer

PAIRS = 100
POOL = parse_network("10.0.0.0/12")
SPAWN = multiprocessing.get_context("spawn")
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Cost:
    """What a piece of work took: seconds of the clock, of our CPU, and of the servers'."""

    wall: float = 0.0
    ours: float = 0.0
    theirs: float = 0.0

    def line(self, what: str, pairs: int) -> str:
        return (
            f"{what:44} {pairs / self.wall:7.1f} pairs/s   library {self.ours / pairs * 1000:6.1f} ms, "
            f"servers {self.theirs / pairs * 1000:6.1f} ms CPU a pair"
        )


def _cpu(server: KubeServer) -> float:
    total = 0.0
    for process in server._processes:
        with open(f"/proc/{process.pid}/stat", encoding="ascii") as file:  # noqa: PTH123  # no path of a file system
            fields = file.read().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / TICKS
    return total


@contextmanager
def measured(server: KubeServer) -> Iterator[Cost]:
    cost = Cost()
    wall, ours, children, theirs = time.monotonic(), time.process_time(), _children(), _cpu(server)
    yield cost
    cost.wall = time.monotonic() - wall
    cost.ours = time.process_time() - ours + _children() - children
    cost.theirs = _cpu(server) - theirs


def _children() -> float:
    times = os.times()
    return times.children_user + times.children_system


def pairs(ipam: IPAM, number: int, prefix: str = "h") -> None:
    for index in range(number):
        handle = f"net.{prefix}{index}"
        ipam.auto_assign(use="Workload", num4=1, handle=handle, attrs={"pod": "p", "namespace": "n"})
        ipam.release_by_handle(handle)


def fill(store: KubernetesStore, first: int, last: int) -> None:
    """Make blocks of other hosts, each with forty addresses in use."""
    networks = list(blocks_in(POOL, 26))

    def one(index: int) -> None:
        owner = BlockOwner(HOST, f"other-{index}")
        attrs = {"pod": "p", "namespace": "n", "node": owner.host, "timestamp": "2026-01-02 03:04:06 +0000 UTC"}
        block, _ = Block.new(networks[index], now=time.time_ns(), owner=owner).assign(40, handle="x", attrs=attrs)
        store.commit(Create(AffinityKey(owner, block.cidr), Affinity()), Create(BlockKey(block.cidr), block))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(first, last)))


def first_claim(settings: Settings, node: str, ready: Semaphore, go: Event, done: Semaphore) -> None:
    """In a process of its own: assign on a host that owns nothing yet, and release."""
    import calico_ipam.engine.assign  # a first call would import it; the figure is of the calls
    import calico_ipam.engine.release  # noqa: F401  # imported for its time, see above

    gc.disable()  # as the plugins do, whose processes these stand for
    with KubernetesStore(settings) as store:
        ipam = IPAM(store, hostname=node)
        ipam.get_config()  # connected, as a warm helper is
        ready.release()
        go.wait()
        pairs(ipam, 1, node)
        done.release()


def eight_first_claims(server: KubeServer, round_: int) -> Cost:
    nodes = [f"new-{round_}-{number}" for number in range(8)]
    for node in nodes:
        server.node(node)
    ready, go, done = SPAWN.Semaphore(0), SPAWN.Event(), SPAWN.Semaphore(0)
    workers = [SPAWN.Process(target=first_claim, args=(server.settings(), node, ready, go, done)) for node in nodes]
    for worker in workers:
        worker.start()
    for _ in workers:
        ready.acquire()
    theirs, wall = _cpu(server), time.monotonic()
    go.set()
    for _ in workers:
        done.acquire(timeout=60)
    cost = Cost(time.monotonic() - wall, 0.0, _cpu(server) - theirs)  # without the end of eight interpreters
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    return cost


def main() -> None:
    with KubeServer("v1") as server, KubernetesStore(server.settings()) as store:
        body = {"apiVersion": server.api_version, "kind": IP_POOL, "metadata": {"name": "pool-1"}}
        server.create(server.collection("ippools"), {**body, "spec": {"cidr": str(POOL), "blockSize": 26}})
        server.node("node-1")
        ipam = IPAM(store, hostname="node-1")
        print(f"load average {os.getloadavg()[0]:.1f}; etcd 3.4 has no consistent lists from the API server's cache")
        done = 0
        for blocks in (16, 1024):
            fill(store, done, blocks)
            done = blocks
            pairs(ipam, 10)
            with measured(server) as cost:
                pairs(ipam, PAIRS)
            print(cost.line(f"one node, {blocks} blocks", PAIRS))
        for round_ in range(3):
            cost = eight_first_claims(server, round_)
            print(cost.line("eight nodes, each claims its first of 1,024", 8))


if __name__ == "__main__":
    main()
