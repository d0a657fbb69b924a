"""Figures of the plugins on the Kubernetes API: ``python -m tests.scale.pod_bench`` (root, needs kube-apiserver).

Cold calls of ``calico`` for pods of a real API server: requests, wall clock, CPU; then thirty and a hundred at once. A
call that fails ends the run; a slow one does not.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.kube_site import Site, finished, kube_site, prepare
from tests.kube_tools import KubeServer
from tests.netns_tools import Namespace

ROUNDS = 31
CROWDS = (30, 100)
PATIENCE = 600  # seconds for a crowd


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def one_after_the_other(site: Site) -> None:
    """Print what a cold ADD and DEL cost: medians. The program that hides the host's files is counted along."""
    sandbox = site.node.sandbox()
    site.pod("one")
    walls: dict[str, list[float]] = {"ADD": [], "DEL": []}
    cpus: dict[str, list[float]] = {"ADD": [], "DEL": []}
    for verb in ("ADD", "DEL"):
        site.call(verb, "one", sandbox)  # the node claims its block
    requests = {verb: len(site.counted(verb, "one", sandbox)) for verb in ("ADD", "DEL")}
    for _ in range(ROUNDS):
        for verb in ("ADD", "DEL"):
            cpu, began = _cpu(), time.perf_counter()
            site.call(verb, "one", sandbox)
            walls[verb].append(time.perf_counter() - began)
            cpus[verb].append(_cpu() - cpu)
    for verb, count in requests.items():
        wall, cpu = (1000 * statistics.median(each[verb]) for each in (walls, cpus))
        print(f"pod {verb}, cold: {count} requests, {wall:.0f} ms wall, {cpu:.0f} ms CPU", flush=True)


def at_once(site: Site, sandboxes: list[Namespace]) -> None:
    """Print how long calls take that begin together: until the middle one, the slowest of a hundred, and all ended."""
    number = len(sandboxes)
    for index in range(number):
        site.pod(f"m{number}-{index}")
    for verb in ("ADD", "DEL"):
        began = time.perf_counter()
        running = [site.start(verb, f"m{number}-{index}", sandbox) for index, sandbox in enumerate(sandboxes)]
        with ThreadPoolExecutor(number) as threads:
            ends = sorted(end - began for end in threads.map(_end, running))
        p50, p99 = ends[number // 2], ends[min(number - 1, number * 99 // 100)]
        print(f"{number} {verb}s at once: p50 {p50:.1f} s, p99 {p99:.1f} s", flush=True)
        held = site.held()
        if held != (number if verb == "ADD" else 0):
            raise SystemExit(f"{held} addresses are held after {number} {verb}s")


def _end(process: subprocess.Popen[str]) -> float:
    finished(process, PATIENCE)
    return time.perf_counter()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, KubeServer("v1") as kube, kube_site(kube, Path(folder)) as site:
        prepare(site)
        print(f"load average {os.getloadavg()[0]:.1f}")
        one_after_the_other(site)
        for number in CROWDS:
            at_once(site, [site.node.sandbox() for _ in range(number)])


if __name__ == "__main__":
    main()
