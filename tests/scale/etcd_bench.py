"""Figures of the library on a real etcd: ``python -m tests.scale.etcd_bench``. Reports, never fails on a time.

One etcd that keeps what it acknowledges (fsync on). Beside each figure stands the yardstick of the same run: how many
single-key transactions the same client gets through.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing

from calico_ipam.datastore.api import Create, Datastore, Update
from calico_ipam.datastore.config import open_datastore
from calico_ipam.engine.client import IPAM
from calico_ipam.model.addresses import parse_network
from calico_ipam.model.affinity import HOST, BlockOwner
from calico_ipam.model.handle import Handle
from calico_ipam.model.keys import Affinities, Blocks, HandleKey, ResourceKey
from calico_ipam.model.pool import WORKLOAD
from calico_ipam.model.resource import IP_POOL, NODE, Resource
from tests.etcd_tools import Etcd
from tests.invariants import violations

PAIRS = 300
HOSTS = 8


def main() -> int:
    with Etcd(durable=True) as etcd:
        url = f"etcd+http://{etcd.address}"
        with closing(open_datastore(url, environ={})) as store:
            for row in (_single, _eight, _last_blocks, _many_allocations, _crowd):
                etcd.clear()
                _cluster(store)
                for name, figure in row(store, url):
                    print(f"{name:62} {figure}", flush=True)
    return 0


def _cluster(store: Datastore, cidr: str = "10.0.0.0/16", size: int = 26) -> None:
    store.commit(Create(ResourceKey(IP_POOL, "p"), Resource.new(IP_POOL, "p", {"cidr": cidr, "blockSize": size})))
    for number in range(64):
        name = f"host-{number}"
        store.commit(Create(ResourceKey(NODE, name), Resource.new(NODE, name, {})))


def _rate(count: int, work: Callable[[int], object]) -> float:
    begin = time.perf_counter()
    for number in range(count):
        work(number)
    return count / (time.perf_counter() - begin)


def _yardstick(store: Datastore) -> float:
    key = HandleKey("yardstick")
    entry = store.commit(Create(key, Handle("yardstick", {"10.0.0.0/26": 1})))[0]

    def once(number: int) -> None:
        nonlocal entry
        entry = store.commit(Update(entry, Handle("yardstick", {"10.0.0.0/26": number + 1})))[0]

    return _rate(PAIRS, once)


def _pairs(store: Datastore, host: str, count: int = PAIRS) -> float:
    ipam = IPAM(store, hostname=host)

    def pair(number: int) -> None:
        handle = f"{host}.{number}"
        ipam.auto_assign(use=WORKLOAD, num4=1, handle=handle, attrs={"node": host})
        ipam.release_by_handle(handle)

    pair(-1)
    return _rate(count, pair)


def _single(store: Datastore, url: str) -> list[tuple[str, str]]:
    rows = [("single-key transactions per second (yardstick)", f"{_yardstick(store):.0f}")]
    few = _pairs(store, "host-0")
    rows.append(("assign + release pairs per second, one process", f"{few:.0f}"))
    IPAM(store).claim_affinity(parse_network("10.0.0.0/16"), BlockOwner(HOST, "host-63"))
    many = _pairs(store, "host-0")
    return [*rows, ("the same with 1,024 blocks", f"{many:.0f} ({many / few:.0%})")]


def _workers(mode: str, url: str) -> tuple[float, list[str]]:
    """Run eight worker processes that begin together; return seconds and what they printed."""
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.scale.etcd_bench", mode, url, str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(HOSTS)
    ]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    begin = time.perf_counter()
    said = []
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    for worker in workers:
        assert worker.stdout is not None
        said.append(worker.stdout.readline().strip())
    seconds = time.perf_counter() - begin  # without the end of eight interpreters
    for worker in workers:
        out, _ = worker.communicate()
        said += out.splitlines()
        if worker.returncode:
            said.append(f"error: a worker ended with {worker.returncode}")
    return seconds, said


def _eight(store: Datastore, url: str) -> list[tuple[str, str]]:
    seconds, said = _workers("pairs", url)
    return [("pairs per second, eight processes", f"{HOSTS * 100 / seconds:.0f}, errors {_errors(said)}")]


def _last_blocks(store: Datastore, url: str) -> list[tuple[str, str]]:
    ipam = IPAM(store)
    ipam.claim_affinity(parse_network("10.0.0.0/16"), BlockOwner(HOST, "host-63"))
    listed = list(store.list(Blocks()))
    for entry in listed[:16]:
        ipam.release_affinity(entry.cidr, BlockOwner(HOST, "host-63"), must_be_empty=True)
    for entry in listed[16:]:
        full, _ = entry.value.assign(1, handle=None, attrs={"node": "host-63"})
        store.commit(Update(store.get(entry.key), full.bumped()))
    seconds, said = _workers("first", url)
    owned = len(store.list(Affinities()))
    name = "first block of eight hosts at once, 16 free of 1,024: pairs per second"
    return [(name, f"{HOSTS / seconds:.0f}, errors {_errors(said)}, {owned} rows, {len(violations(store))} violations")]


def _many_allocations(store: Datastore, url: str) -> list[tuple[str, str]]:
    ipam = IPAM(store)
    ipam.claim_affinity(parse_network("10.0.0.0/16"), BlockOwner(HOST, "host-63"))
    for number in range(0, 1000, 100):
        ipam.auto_assign(use=WORKLOAD, num4=1000, handle=f"big-{number}", hostname="host-63", max_blocks_per_host=2000)
    begin = time.perf_counter()
    found = ipam.get_utilization()
    seconds = time.perf_counter() - begin
    (pool,) = [p for p in found.pools if p.name == "p"]
    return [(f"{pool.in_use} allocations in 1,024 blocks listed and summarised, seconds", f"{seconds:.2f}")]


def _crowd(store: Datastore, url: str) -> list[tuple[str, str]]:
    seconds, said = _workers("crowd", url)
    held = sum(len(list(e.value.taken())) for e in store.list(Blocks()))
    name = "64 hosts x 20 addresses by 8 processes: seconds"
    return [(name, f"{seconds:.1f}, errors {_errors(said)}, {held} held, {len(violations(store))} violations")]


def _errors(said: list[str]) -> int:
    return sum(1 for line in said if line != "done")


def _worker(mode: str, url: str, number: int) -> int:
    with closing(open_datastore(url, environ={})) as store:
        store.get(ResourceKey(IP_POOL, "p"))
        gc.disable()  # as the plugins do, whose processes these stand for
        import calico_ipam.engine.assign  # a first call would import it; the figure is of the calls
        import calico_ipam.engine.release  # noqa: F401  # imported for its time, see above

        print("ready", flush=True)
        sys.stdin.readline()
        if mode == "pairs":
            _pairs(store, f"host-{number}", 99)
        elif mode == "first":
            IPAM(store, hostname=f"host-{number}").auto_assign(use=WORKLOAD, num4=1, handle=f"first.{number}")
        else:
            for host in range(number, 64, HOSTS):
                ipam = IPAM(store, hostname=f"host-{host}")
                for address in range(20):
                    ipam.auto_assign(use=WORKLOAD, num4=1, handle=f"host-{host}.{address}")
        print("done", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(_worker(sys.argv[1], sys.argv[2], int(sys.argv[3])) if len(sys.argv) > 1 else main())
