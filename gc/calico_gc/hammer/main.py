"""``calico-gc hammer``: arguments, environment, and the verdict."""

from __future__ import annotations

import argparse
import json
import logging
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import gettempdir

from calico_gc import report
from calico_gc.durations import parse_duration
from calico_gc.hammer.collectors import Collectors
from calico_gc.hammer.ledger import Ledger
from calico_gc.hammer.plan import PREFIX, TUNNELS, Outcome, Plan
from calico_gc.hammer.run import Hammer
from calico_gc.hammer.world import World
from calico_ipam.datastore.kube.api import KubeApi
from calico_ipam.errors import InvalidInput, IPAMError


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the hammer; returns 0: nothing was violated and nothing is left, 3: something was, 1: error."""
    given = _parser().parse_args(list(argv))
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # more threads than its pool holds connections, on purpose
    try:
        return _run(_plan(given), given, environ)
    except IPAMError as error:
        print(f"calico-gc: {error}" + (f"\n  {error.hint}" if error.hint else ""), file=sys.stderr)
        return report.ERROR


def _parser() -> argparse.ArgumentParser:
    plan = Plan()
    parser = argparse.ArgumentParser(
        prog="calico-gc hammer",
        description="Makes nodes, pods, leaks and crashes on a cluster that you can spare, with collectors at work "
        "that are killed and restarted, and checks all the time that nothing that lives loses its address.",
        epilog=f"Everything it makes is named {PREFIX}-… and goes with --cleanup.",
        allow_abbrev=False,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    for name, kind, text in (
        ("nodes", int, "nodes to make"),
        ("pods_per_node", int, "pods on each at first"),
        ("parallel", int, "how much is done at once"),
        ("leak_ratio", float, "share of pods that go without a DEL"),
        ("crash_ratio", float, "share of ADDs and DELs that end between their two writes"),
        ("orphans", int, "handles without an address, at first"),
        ("skew", int, "handles that count wrong"),
        ("missing", int, "handles that are removed from living pods"),
        ("collectors", int, "collectors to run; 0: there is one already"),
        ("seed", int, "makes the choices repeatable"),
        ("block_size", int, "prefix length of blocks"),
    ):
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=getattr(plan, name), help=text)
    for name, text in (
        ("churn", "how long pods come and go"),
        ("restart_gc_every", "kill a collector about so often; 0: never"),
        ("leak_grace", "grace period of the collectors"),
        ("timeout", "time for everything dead to be gone"),
    ):
        default = getattr(plan, {"restart_gc_every": "restart_every"}.get(name, name))
        parser.add_argument(f"--{name.replace('_', '-')}", metavar="TIME", default=f"{default:g}s", help=text)
    parser.add_argument("--tunnels", default=",".join(plan.tunnels), help=f"of {','.join(TUNNELS)}, or empty")
    parser.add_argument("--cidr", default=plan.cidr, help="pool to make; nobody else may use it")
    parser.add_argument("--leave-handles", action="store_true", help="do not wait for handles, whose grace is minutes")
    parser.add_argument("--keep", action="store_true", help="leave everything as it is at the end")
    parser.add_argument("--cleanup", action="store_true", help="only remove what runs have left")
    parser.add_argument("--json", metavar="FILE", default="", help="write the outcome here")
    parser.add_argument("--collector-log", metavar="FILE", default=str(Path(gettempdir(), f"{PREFIX}-collectors.log")))
    parser.add_argument("--datastore", metavar="URL", default="", help="default: upstream's environment")
    return parser


def _plan(given: argparse.Namespace) -> Plan:
    tunnels = tuple(part for part in given.tunnels.split(",") if part)
    unknown = [kind for kind in tunnels if kind not in TUNNELS]
    if unknown:
        raise InvalidInput(
            f"there are no {unknown[0]} tunnels", subject=unknown[0], hint=f"Known: {', '.join(TUNNELS)}."
        )
    for name in ("nodes", "pods_per_node", "parallel"):
        if getattr(given, name) < 1:
            raise InvalidInput(f"--{name.replace('_', '-')} must be at least 1", subject=name)
    return Plan(
        *(given.nodes, given.pods_per_node, tunnels, given.parallel, given.leak_ratio, given.crash_ratio),
        *(given.orphans, given.skew, given.missing),
        churn=parse_duration(given.churn),
        restart_every=parse_duration(given.restart_gc_every),
        collectors=given.collectors,
        leak_grace=parse_duration(given.leak_grace),
        seed=given.seed,
        timeout=parse_duration(given.timeout),
        handles=not given.leave_handles,
        cidr=given.cidr,
        block_size=given.block_size,
    )


def _run(plan: Plan, given: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from calico_ipam.datastore.config import load_settings, open_datastore
    from calico_ipam.datastore.kube.store import KubernetesStore
    from calico_ipam.datastore.settings import KUBERNETES, Settings

    store = open_datastore(load_settings(given.datastore or None, environ=environ))
    try:
        if isinstance(store, KubernetesStore):
            api = store.api
        else:
            api = KubeApi(Settings(KUBERNETES, "the environment", kubeconfig=environ.get("KUBECONFIG", "")))
        world = World(store, api, plan, Ledger())
        if given.cleanup:
            print(json.dumps(world.cleanup()))
            return report.CLEAN
        seeded = random.Random(plan.seed)
        outcome = Hammer(world, Collectors(plan, environ, Path(given.collector_log), seeded)).run()
        if not given.keep:
            world.cleanup()
        _tell(outcome, given.json)
        return report.CLEAN if outcome.good else report.PROBLEMS
    finally:
        store.close()


def _tell(outcome: Outcome, file: str) -> None:
    if file:
        report.write(Path(file), outcome.document())
    for name, values in (("did", outcome.counts), ("seconds", outcome.seconds), ("left", outcome.left)):
        print(f"{name}: " + ", ".join(f"{key} {value}" for key, value in values.items()))
    for text in outcome.violations:
        print(f"VIOLATION: {text}")
    if outcome.unfinished:
        print("UNFINISHED: the time was over before everything dead was gone")
    print("good" if outcome.good else "NOT good")
