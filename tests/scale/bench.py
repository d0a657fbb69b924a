"""`make bench`: what a call costs, one table from one run.

Process figures: the plugins run as a runtime runs them, cold, in turn with the distribution's ``ptp`` + ``host-local``
on the same sandboxes, so that whatever else the machine does meets all of them alike. The host of the run is a network
namespace of its own. Library figures: one process, then eight. A figure reports, it never fails; a wrong result does.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

ROUNDS = 31
BLOCKS = (16, 1024)
PROCESSES = 8
#: Pairs of assign and release in one sample of the library, and samples per figure.
PAIRS, SAMPLES = 50, 31
INSIDE = "CALICO_IPAM_BENCH_INSIDE"
REPOSITORY = Path(__file__).resolve().parent.parent.parent
PROGRAMS = Path(sys.executable).parent
FOREIGN = Path("/usr/lib/cni")

#: What issue and README aim at, shown beside the figure: (row, column) -> text.
AIMS = {
    ("calico ADD", "cpu"): "≤ 250",
    ("calico ADD", "peak"): "≤ 60",
    ("calico VERSION", "wall"): "≤ 60",
    ("calico STATUS", "wall"): "≤ 120",
}


@dataclass(frozen=True, slots=True)
class Cost:
    """One process and what it waited for: milliseconds of CPU and of wall clock, MiB of peak memory of the largest."""

    cpu: float
    wall: float
    peak: float


def measured(command: Sequence[str | Path], environ: Mapping[str, str], stdin: str) -> Cost:
    """Run a program once. Raises RuntimeError with its words when it fails."""
    with tempfile.TemporaryFile("w+") as given, tempfile.TemporaryFile("w+") as said:
        given.write(stdin)
        given.seek(0)
        began = time.perf_counter()
        files = [(os.POSIX_SPAWN_DUP2, stream.fileno(), target) for target, stream in enumerate((given, said, said))]
        child = os.posix_spawn(command[0], [str(word) for word in command], environ, file_actions=files)
        _, status, usage = os.wait4(child, 0)
        wall = time.perf_counter() - began
        if status:
            said.seek(0)
            raise RuntimeError(f"{command[0]} {environ['CNI_COMMAND']} failed: {said.read()}")
    return Cost(1000 * (usage.ru_utime + usage.ru_stime), 1000 * wall, usage.ru_maxrss / 1024)


def ipamctl(command: str, url: str, *options: str) -> None:
    subprocess.run([PROGRAMS / "ipamctl", "--datastore", url, command, *options], check=True, capture_output=True)


# --- plugins ------------------------------------------------------------------------------------------------


def prepare_host(folder: Path) -> tuple[dict[str, object], dict[str, object]]:
    """Make the namespaces, the store and the two network configurations: ours, the yardstick's."""
    subprocess.run(["sh", "-euc", "mkdir -p /run/netns && mount -t tmpfs none /run/netns"], check=True)
    subprocess.run([REPOSITORY / "scripts" / "private-host"], check=True)
    subprocess.run(["ip", "netns", "add", "bench"], check=True)
    ipamctl("init", f"sqlite://{folder}/ipam.db", "--ipv4-pool", "10.244.0.0/16")
    ours: dict[str, object] = {
        "cniVersion": "1.1.0",
        "name": "bench",
        "type": "calico",
        "datastore_type": "sqlite",
        "sqlite_path": f"{folder}/ipam.db",
        "nodename_file_optional": True,
        "log_file_path": f"{folder}/cni.log",
        "ipam_lock_file": f"{folder}/ipam.lock",
        "ipam": {"type": "calico-ipam"},
    }
    yardstick: dict[str, object] = {
        "cniVersion": "1.0.0",
        "name": "yardstick",
        "type": "ptp",
        "ipam": {"type": "host-local", "subnet": "10.99.0.0/16", "dataDir": f"{folder}/host-local"},
    }
    return ours, yardstick


def plugin_figures(folder: Path) -> dict[str, list[Cost]]:
    """Return the costs of each verb, ours and the yardstick's in turn."""
    ours, yardstick = prepare_host(folder)
    costs: dict[str, list[Cost]] = defaultdict(list)
    calico: list[str | Path] = [PROGRAMS / "calico"]
    ptp: list[str | Path] = [FOREIGN / "ptp"]
    calls: tuple[tuple[str, list[str | Path], str, dict[str, object]], ...] = (
        ("interpreter alone", [PROGRAMS / "python", "-c", "pass"], "", ours),
        ("calico VERSION", calico, "VERSION", ours),
        ("calico STATUS", calico, "STATUS", ours),
        ("calico ADD", calico, "ADD", ours),
        ("calico DEL", calico, "DEL", ours),
        ("ptp + host-local ADD", ptp, "ADD", yardstick),
        ("ptp + host-local DEL", ptp, "DEL", yardstick),
    )
    for number in range(ROUNDS + 1):
        for row, command, verb, netconf in calls:
            environ = {
                "CNI_COMMAND": verb,
                "CNI_CONTAINERID": f"bench{number}",
                "CNI_NETNS": "/run/netns/bench",
                "CNI_IFNAME": "eth0",
                "CNI_PATH": f"{PROGRAMS}:{FOREIGN}",
            }
            cost = measured(command, {**os.environ, **environ}, json.dumps(netconf))
            if number:  # the first round fills the page cache and the compiled files
                costs[row].append(cost)
    return costs


# --- the library --------------------------------------------------------------------------------------------

#: Fills a store with a block for each of so many hosts, or works as one of those hosts on one or more stores in turn,
#: printing the pairs per second of each sample. A process of its own: a figure must not depend on what was imported.
LIBRARY = """
import sys, time
from contextlib import ExitStack
from calico_ipam.datastore.config import open_datastore
from calico_ipam.engine.client import IPAM
from calico_ipam.engine.policy import Retry, SystemClock
from calico_ipam.engine.setup import ensure_node
from calico_ipam.engine.world import Engine

what, host, number, *urls = sys.argv[1:]
with ExitStack() as stack:
    stores = [stack.enter_context(open_datastore(url)) for url in urls]
    if what == "fill":
        ipam, engine = IPAM(stores[0]), Engine(stores[0], SystemClock(), Retry(clock=SystemClock()))
        for index in range(int(number)):
            ensure_node(engine, f"host{index}")
            ipam.auto_assign(use="Workload", num4=1, handle=f"filled.{index}", hostname=f"host{index}")
        sys.exit()
    for sample in range(int(number) + 1):
        for store in stores:
            ipam = IPAM(store, hostname=host)
            began = time.perf_counter()
            for index in range(PAIRS):
                handle = f"bench.{host}-{index}"
                assigned = ipam.auto_assign(use="Workload", num4=1, handle=handle)
                assert len(assigned.addresses) == 1, assigned
                ipam.release_by_handle(handle)
            if sample:  # the first one opens everything
                print(PAIRS / (time.perf_counter() - began))
""".replace("PAIRS", str(PAIRS))


def library(what: str, host: str, number: int, *urls: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", LIBRARY, what, host, str(number), *urls], stdout=subprocess.PIPE, text=True
    )


def finished(process: subprocess.Popen[str]) -> list[float]:
    output, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"the library failed: {output}")
    return [float(line) for line in output.split()]


def library_figures(folder: Path) -> Iterator[tuple[str, list[float]]]:
    """Yield pairs of assign and release per second."""
    urls = {blocks: f"sqlite://{folder}/{blocks}.db" for blocks in BLOCKS}
    for blocks, url in urls.items():
        ipamctl("init", url, "--ipv4-pool", "10.0.0.0/12")
        finished(library("fill", "", blocks, url))
    samples = finished(library("work", "host3", SAMPLES, *urls.values()))
    for number, blocks in enumerate(BLOCKS):
        yield f"1 process, {blocks} blocks", samples[number :: len(BLOCKS)]
    at_once = [library("work", f"host{i}", SAMPLES // PROCESSES, urls[BLOCKS[0]]) for i in range(PROCESSES)]
    yield (
        f"{PROCESSES} processes at once, {BLOCKS[0]} blocks, their sum",
        [sum(statistics.median(finished(process)) for process in at_once)],
    )
    for blocks, url in urls.items():
        assert_nothing_lost(url, blocks)


def cold_open(folder: Path) -> float:
    """Milliseconds for which a process that has the library loaded opens and closes a datastore."""
    from calico_ipam.datastore.sqlite import SQLiteStore

    path = folder / "opened.db"
    SQLiteStore(path).close()
    times = []
    for _ in range(100):
        began = time.perf_counter()
        SQLiteStore(path).close()
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times)


def assert_nothing_lost(url: str, filled: int) -> None:
    """Every address that was assigned for the run was released, and the others are still held."""
    from calico_ipam.datastore.config import open_datastore
    from calico_ipam.model.keys import Blocks, Handles

    with closing(open_datastore(url)) as store:
        held = sum(index is not None for entry in store.list(Blocks()) for index in entry.value.allocations)
        handles = len(store.list(Handles()))
    if (held, handles) != (filled, filled):
        raise RuntimeError(f"{filled} addresses and handles were to be held, found {held} and {handles}")


# --- the table ----------------------------------------------------------------------------------------------


def describe_machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown CPU")
    return f"{model}, {os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}"


def report(plugins: Mapping[str, list[Cost]], rates: Mapping[str, list[float]]) -> None:
    print(f"\n{describe_machine()}; medians of {ROUNDS} rounds, cold processes, SQLite\n")
    print(f"| {'call':<22} | CPU ms        | wall ms       | peak MiB      |")
    print(f"|{'-' * 24}|---------------|---------------|---------------|")
    for row, costs in plugins.items():
        cells = []
        for column in ("cpu", "wall", "peak"):
            value = statistics.median(getattr(cost, column) for cost in costs)
            aim = AIMS.get((row, column))
            cells.append(f"{value:6.1f}" + (f" ({aim})" if aim else ""))
        print(f"| {row:<22} | " + " | ".join(f"{cell:<13}" for cell in cells) + " |")
    print("\nPeak memory is never below this program's own, which every process starts from.\n")
    print(f"| {'assign one + release by handle':<52} | pairs/s      |")
    print(f"|{'-' * 54}|--------------|")
    first = statistics.median(next(iter(rates.values())))
    for row, samples in rates.items():
        rate = statistics.median(samples)
        aim = "≥ 500" if row == f"1 process, {BLOCKS[0]} blocks" else ""
        if row == f"1 process, {BLOCKS[1]} blocks":
            aim = f"{100 * rate / first:.0f} % ≥ 80"
        print(f"| {row:<52} | {rate:6.0f}" + (f" ({aim})" if aim else "") + " |")


def main() -> int:
    if not os.environ.get(INSIDE):
        if os.geteuid() != 0:
            print("`make bench` makes network namespaces and needs root: sudo make bench")
            return 1
        isolated = [
            "unshare",
            "--net",
            "--mount",
            "--propagation",
            "private",
            sys.executable,
            "-m",
            "tests.scale.bench",
        ]
        return subprocess.run(isolated, env={**os.environ, INSIDE: "1"}, check=False).returncode
    folder = Path(tempfile.mkdtemp(prefix="calico-ipam-bench-"))
    try:
        plugins = plugin_figures(folder)
        report(plugins, dict(library_figures(folder)))
        print(f"\nOpening an SQLite datastore that exists: {cold_open(folder):.1f} ms (≤ 5)")
    finally:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
