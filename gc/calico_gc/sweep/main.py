"""``calico-gc node-sweep``: arguments and environment of the sweep of a node."""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import Empty, SimpleQueue

from calico_gc import report
from calico_gc.durations import parse_duration
from calico_gc.node_sweep import Busy, NodeSweep, Options, Swept, text_of
from calico_gc.sweep.residue import KINDS, REMOVABLE
from calico_gc.sweep.traces import Places
from calico_gc.timing import SystemClock
from calico_ipam.datastore.api import Datastore
from calico_ipam.datastore.kube.api import KubeApi
from calico_ipam.errors import InvalidInput, IPAMError

log = logging.getLogger("calico_gc.node_sweep")

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
CRICTL = "crictl pods --output json"


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Sweep once, or again and again; returns 0: nothing is left over, 3: something is, 1: error."""
    parser = _parser()
    given = parser.parse_args(list(argv))
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )
    try:
        with ExitStack() as stack:
            sweep = _sweep(given, environ, stack)
            return _again_and_again(sweep, given) if given.every else _once(sweep, given)
    except IPAMError as error:
        print(f"calico-gc: {error}" + (f"\n  {error.hint}" if error.hint else ""), file=sys.stderr)
    except Busy as error:
        print(f"calico-gc: {error}; this one does nothing", file=sys.stderr)
        return report.CLEAN
    except OSError as error:
        print(f"calico-gc: {error.strerror or error}: {error.filename or ''}".rstrip(": "), file=sys.stderr)
    return report.ERROR


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="calico-gc node-sweep",
        description="Finds what pods that are no more have left on this node. Reports; removes only kinds that --apply "
        "names, when they were seen twice at least ten minutes apart.",
        epilog=f"Kinds: {', '.join(KINDS)}. Of these --apply takes {', '.join(REMOVABLE)}.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--apply", action="append", metavar="KIND", default=[], help="remove this kind; may be repeated"
    )
    parser.add_argument("--node", metavar="NAME", default="", help="Calico's name of this node (NODENAME, host name)")
    parser.add_argument("--kube-node", metavar="NAME", default="", help="its Kubernetes name, if that is another one")
    parser.add_argument("--datastore", metavar="URL", default="", help="as for ipamctl; none configured: not asked")
    parser.add_argument("--no-kubernetes", action="store_true", help="there is no Kubernetes API to ask")
    parser.add_argument(
        "--runtime-command", metavar="COMMAND", default=None, help=f"lists sandboxes; default: {CRICTL}, if it is there"
    )
    parser.add_argument("--every", metavar="DURATION", default="", help="sweep again and again, as a DaemonSet does")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--metrics-file", metavar="FILE", default="", help="write metrics for a node exporter's folder")
    parser.add_argument("--state", metavar="FILE", default="/var/run/calico/ipam-gc-sweep.json", help="memory of looks")
    parser.add_argument("--host-root", metavar="DIRECTORY", default="/", help="where the node's files are")
    return parser


def _sweep(given: argparse.Namespace, environ: Mapping[str, str], stack: ExitStack) -> NodeSweep:
    root = Path(given.host_root)
    at = Places()
    netns, results, lock, volumes = (root / p.relative_to("/") for p in (at.netns, at.results, at.lock, at.volumes))
    places = Places(netns, results, lock, volumes)
    runtime = given.runtime_command
    if runtime is None:
        runtime = CRICTL if shutil.which("crictl") else ""
    options = Options(
        node=given.node or environ.get("NODENAME") or socket.gethostname().lower(),
        kube_node=given.kube_node,
        apply=frozenset(given.apply),
        runtime=runtime,
        prefixes=environ.get("FELIX_INTERFACEPREFIX") or "cali",
        places=places,
        state=Path(given.state),
        lock=root / "var/run/calico/ipam-gc.lock",
    )
    store, api = _connected(given, environ, stack)
    return NodeSweep(options, SystemClock(), boot, api=api, store=store)


def _connected(
    given: argparse.Namespace, environ: Mapping[str, str], stack: ExitStack
) -> tuple[Datastore | None, KubeApi | None]:
    """Return the datastore, where one is configured, and the Kubernetes API."""
    from calico_ipam.datastore.config import load_settings, open_datastore
    from calico_ipam.datastore.kube.store import KubernetesStore
    from calico_ipam.datastore.settings import KUBERNETES, Settings

    found = load_settings(given.datastore or None, environ=environ)
    store = None if found.fallback else open_datastore(found)
    if store is not None:
        stack.callback(store.close)
    if isinstance(store, KubernetesStore):
        return store, store.api
    if given.no_kubernetes:
        return store, None
    settings = Settings(KUBERNETES, "the environment", kubeconfig=environ.get("KUBECONFIG", ""))
    api = KubeApi(settings)
    stack.callback(api.close)
    return store, api


def boot() -> tuple[str, float]:
    """Return which start of the node this is, and how many seconds ago it was, sleep included."""
    return BOOT_ID.read_text(encoding="ascii").strip(), time.clock_gettime(time.CLOCK_BOOTTIME)


def _once(sweep: NodeSweep, given: argparse.Namespace) -> int:
    swept = sweep.run()
    _tell(swept, given)
    return report.PROBLEMS if any(swept.confirmed.values()) else report.CLEAN


def _again_and_again(sweep: NodeSweep, given: argparse.Namespace) -> int:
    """Sweep until a signal comes. What fails once is tried again at its time."""
    period = min(parse_duration(given.every), threading.TIMEOUT_MAX)
    if period <= 0:
        raise InvalidInput(
            f"{given.every!r} is no pause between sweeps", subject=given.every, hint="Write 10m or more."
        )
    # No Event: the signal may come while this thread holds its lock.
    signals: SimpleQueue[int] = SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: signals.put(number))
    while True:
        try:
            _tell(sweep.run(), given)
        except (Busy, IPAMError) as error:
            log.warning("this sweep did nothing: %s", error)
        with suppress(Empty):
            signals.get(timeout=period)
            return report.CLEAN


def _tell(swept: Swept, given: argparse.Namespace) -> None:
    if given.json:
        print(json.dumps(swept.document(), ensure_ascii=False), flush=True)
    else:
        for line in text_of(swept):
            print(line, flush=True)
    if given.metrics_file:
        path = Path(given.metrics_file)
        report.write_text(path, swept.metrics())
        os.chmod(path, 0o644)  # noqa: PTH101  # another program's user reads it
