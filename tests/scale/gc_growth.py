"""How the collector grows: 1,000 to 5,000 nodes with 30 addresses each, simulated in a process for each size.

::

    python -m tests.scale.gc_growth

Told are CPU seconds of taking everything in, of a pass over everything, of a pass after one pod went, and resident
memory. Each figure per address has to stay what it is: exits with 1 when one of them doubles.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from calico_gc import intake
from calico_gc.decide import Rules
from calico_gc.facts import cached_pod, kube_node
from calico_gc.intake import Change
from calico_gc.options import HandleOptions, Options

from tests.gc_things import block_of, pod_attrs
from tests.gc_world import World
from tests.scale.gc_scale import pod_document

SIZES, PODS = (1000, 2500, 5000), 30


@dataclass(frozen=True)
class Figures:
    """Seconds of CPU, and MiB."""

    addresses: int
    taken_in: float
    whole: float
    one: float
    resident: float

    def line(self, nodes: int) -> str:
        return (
            f"{nodes} nodes, {self.addresses} addresses: taken in {self.taken_in:.1f} s, a pass over everything "
            f"{self.whole:.2f} s, after one pod went {self.one * 1000:.1f} ms, {self.resident:.0f} MiB"
        )


def measure(nodes: int) -> Figures:
    world = World(options=Options(rules=Rules(leak_grace=900.0), handles=HandleOptions(grace=None)))
    empty, began = _resident(), time.process_time()
    for n in range(nodes):
        name = f"n{n}"
        world.intake.apply(Change(intake.KUBE_NODE, name, kube_node({"metadata": {"name": name}})))
        held = {}
        for p in range(PODS):
            document = pod_document(n, p, f"10.{n // 250}.{n % 250}.{p}")
            pod = cached_pod(document)
            world.intake.apply(Change(intake.POD, pod.key, pod))
            held[p] = (f"k8s-pod-network.{n:05}{p:03}0", pod_attrs(name, *reversed(pod.key)))
        block = block_of(world, f"10.{n // 250}.{n % 250}.0/26", name, held)
        world.intake.apply(Change(intake.BLOCK, str(block.cidr), block, "1"))
    taken_in = time.process_time() - began
    world.state.in_sync = world.state.full_scan = True
    world.controller.sync()
    world.state.full_scan = True
    whole = _seconds(world)
    world.intake.apply(Change(intake.POD, ("ns0", "p0-0")))
    one = _seconds(world)
    assert len(world.state.suspects) == 1
    assert world.kube.reads == 0, "nothing is read per address"
    return Figures(nodes * PODS, taken_in, whole, one, _resident() - empty)


def _seconds(world: World) -> float:
    began = time.process_time()
    world.controller.sync()
    return time.process_time() - began


def _resident() -> float:
    (line,) = (x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=SIZES)
    found = {}
    for nodes in parser.parse_args().nodes:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found[nodes] = pool.apply(measure, (nodes,))
        print(found[nodes].line(nodes), flush=True)
    first, last = found[min(found)], found[max(found)]
    grown = last.addresses / first.addresses
    for name in ("taken_in", "whole", "resident"):
        if getattr(last, name) > 2 * grown * getattr(first, name):
            print(f"{name} grows faster than the cluster")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
