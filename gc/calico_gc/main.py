"""calico-gc: finds what was leaked, proves it, returns it. The only module here that reads argv and environment."""

from __future__ import annotations

import argparse
import json
import logging
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Any

from calico_gc import kcc, report
from calico_gc import settings as gc_settings
from calico_gc.settings import Settings
from calico_ipam.errors import InvalidInput, IPAMError, NotConfigured

if TYPE_CHECKING:
    from calico_gc.assembly import Collector, Place
    from calico_gc.once import ShiftedClock
    from calico_gc.probes import Probes
    from calico_gc.view import View
    from calico_gc.web.server import Server

log = logging.getLogger("calico_gc")

NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
INTERRUPTED = 130  #: what a shell sees of a program that SIGINT ended
#: where upstream's probes look
STATUS_FILE = "/status/status.json"
LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "warn": logging.WARNING,
}


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> int:
    """Run the collector; returns the exit code: 0 clean, 1 error, 3 problems found (--once), 130 interrupted."""
    if argv is None:  # under the name of upstream's probe it is that probe
        argv = ["check-status"] * (Path(sys.argv[0]).name == "check-status") + sys.argv[1:]
    try:
        return _main(argv, dict(os.environ) if environ is None else environ)
    except KeyboardInterrupt:
        print("calico-gc: interrupted", file=sys.stderr)
        return INTERRUPTED


def _main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    if argv[:1] == ["node-sweep"]:
        from calico_gc.sweep.main import main as node_sweep

        return node_sweep(argv[1:], environ)
    if argv[:1] == ["hammer"]:
        from calico_gc.hammer.main import main as hammer

        return hammer(argv[1:], environ)
    if argv[:1] == ["check-status"]:
        return check_status(argv[1:])
    try:
        settings = gc_settings.load(parse(argv), environ)
        _log_to_stderr(settings, environ)
        return _run(settings, environ)
    except IPAMError as error:
        print(f"calico-gc: {error}" + (f"\n  {error.hint}" if error.hint else ""), file=sys.stderr)
        return report.ERROR
    except OSError as error:
        print(f"calico-gc: {error.strerror or error}: {error.filename or ''}".rstrip(": "), file=sys.stderr)
        return report.ERROR


def check_status(argv: Sequence[str]) -> int:
    """Upstream's probe: say whether the status file is good; ``-l`` and ``-r`` ask the same (gc §15)."""
    parser = argparse.ArgumentParser(prog="calico-gc check-status", description="Reads the status file, as a probe.")
    parser.add_argument("-l", "--live", action="store_true", help="as -r")
    parser.add_argument("-r", "--ready", action="store_true", help="whether everything is ready (default)")
    parser.add_argument("-f", "--file", default=STATUS_FILE, metavar="FILE", help="default: %(default)s")
    path = parser.parse_args(list(argv)).file
    try:
        parts = json.loads(Path(path).read_text(encoding="utf-8"))["Readiness"]
        wrong = [str(part["Reason"] or name) for name, part in parts.items() if not part["Ready"]]
        wrong += [] if parts else ["nothing is known yet"]
    except OSError as error:
        wrong = [f"{path}: {error.strerror}"]
    except (ValueError, KeyError, TypeError, AttributeError):
        wrong = [f"{path} holds no status"]
    print("; ".join(wrong) or "Ready")
    return report.ERROR if wrong else report.CLEAN


def parse(argv: Sequence[str]) -> dict[str, Any]:
    """Return the flags that were given: name -> text, True for a switch, a list of texts for one that repeats."""
    parser = argparse.ArgumentParser(
        prog="calico-gc",
        description="Finds IP addresses that were leaked, proves it, and returns them.",
        epilog="Commands of its own: node-sweep, hammer, check-status. Every option can also be an environment "
        "variable (GC_ and its name) or a line of the --config file.",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    for setting in gc_settings.ALL:
        flag = f"--{setting.flag}"
        if not setting.metavar:
            parser.add_argument(flag, action="store_true", help=setting.help, dest=setting.name)
        elif setting.name == "keep_handle_prefix":
            parser.add_argument(flag, action="append", metavar=setting.metavar, help=setting.help, dest=setting.name)
        else:
            parser.add_argument(flag, metavar=setting.metavar, help=setting.help, dest=setting.name)
    return vars(parser.parse_args(list(argv)))


def _log_to_stderr(settings: Settings, environ: Mapping[str, str]) -> None:
    name = (environ.get("LOG_LEVEL") or settings.log_level).lower()
    if name not in (*LEVELS, "error", "fatal", "panic"):
        raise InvalidInput(
            f"unknown log level {name!r}", subject=name, hint="Known are debug, info, warning and error."
        )
    logging.basicConfig(
        stream=sys.stderr,
        level=LEVELS.get(name, logging.ERROR),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        force=True,
    )


def _run(settings: Settings, environ: Mapping[str, str]) -> int:
    from calico_gc.assembly import Collector
    from calico_gc.once import ShiftedClock
    from calico_gc.timing import SystemClock

    place = find_place(settings, environ)
    try:
        clock = ShiftedClock(SystemClock())
        if settings.once:
            return _once(Collector(place, settings, clock), clock)
        service = Service(settings, place)
        collector = Collector(place, settings, clock, service.configured)
        return service.run(collector)
    finally:
        place.store.close()


def _once(collector: Collector, clock: ShiftedClock) -> int:
    from calico_gc.once import run_once

    view = run_once(collector, clock)
    settings = collector.settings
    if settings.report:
        collector.write_report(view)
    else:
        print(json.dumps(report.report(view), indent=1, ensure_ascii=False))
    if settings.report_html:
        _write_page(view, settings.report_html, collector.place.store.name)
    return report.PROBLEMS if report.problems(view) else report.CLEAN


def _write_page(view: View, path: str, origin: str) -> None:
    from calico_gc.web.onefile import one_file
    from calico_gc.web.site import templates

    with Path(path).open("w", encoding="utf-8") as file:
        for piece in one_file(view, templates(), origin=origin):
            file.write(piece)


# --- where it works ---------------------------------------------------------------------------------------------


def find_place(settings: Settings, environ: Mapping[str, str]) -> Place:
    """Return the datastore and the Kubernetes API that settings and environment name. Raises NotConfigured."""
    from calico_gc.assembly import Place
    from calico_ipam.datastore.config import load_settings, open_datastore
    from calico_ipam.datastore.kube.api import KubeApi
    from calico_ipam.datastore.kube.store import KubernetesStore
    from calico_ipam.datastore.settings import KUBERNETES, SQLITE

    drop_in = "ENABLED_CONTROLLERS" in environ
    if drop_in:
        _check_controllers(environ)
        environ = {"DATASTORE_TYPE": "etcdv3", **environ}
    found = load_settings(settings.datastore or None, environ=environ)
    if found.fallback and not settings.host:
        raise NotConfigured(
            "no datastore is configured, and the collector never guesses one",
            hint="Set DATASTORE_TYPE and what belongs to it, or give --datastore URL, or --host without Kubernetes.",
        )
    store = open_datastore(found)
    api: KubeApi | None
    if isinstance(store, KubernetesStore):
        api = store.api
    elif found.datastore_type == SQLITE and not (found.kubeconfig or environ.get("KUBERNETES_SERVICE_HOST")):
        api = None
    else:
        api = KubeApi(replace(found, datastore_type=KUBERNETES))
    host = (environ.get("CALICO_NODENAME") or environ.get("NODENAME") or socket.gethostname()).strip().lower()
    return Place(
        store=store,
        api=api,
        host=host,
        instance=f"{environ.get('HOSTNAME') or socket.gethostname()}_{secrets.token_hex(4)}",
        namespace=settings.lease_namespace or environ.get("POD_NAMESPACE") or _own_namespace(),
        drop_in=drop_in,
        environ=environ,
    )


def _check_controllers(environ: Mapping[str, str]) -> None:
    if wrong := kcc.misread(environ):
        raise InvalidInput(wrong, hint="Correct it, or leave it out.")
    unknown = kcc.unknown_controllers(environ)
    if unknown:
        raise InvalidInput(
            f"ENABLED_CONTROLLERS names {', '.join(map(repr, unknown))}, which nobody knows",
            hint=f"Known are {', '.join(kcc.KNOWN)}; items are not trimmed.",
        )
    named = [item for item in environ["ENABLED_CONTROLLERS"].split(",") if item]
    if named and "node" not in named:
        raise InvalidInput(
            "ENABLED_CONTROLLERS does not name 'node', which is all that this program does",
            hint="Add it, or let upstream's kube-controllers run the others.",
        )
    if "flannelmigration" in named:
        raise InvalidInput(
            "ENABLED_CONTROLLERS names 'flannelmigration' beside others, and it has to be alone",
            hint="Let upstream's kube-controllers migrate first.",
        )
    others = [item for item in named if item != "node"]
    if others:
        log.warning("these controllers are not part of this program and are left out: %s", ", ".join(others))


def _own_namespace() -> str:
    try:
        return NAMESPACE_FILE.read_text(encoding="utf-8").strip() or "kube-system"
    except OSError:
        return "kube-system"


# --- as a service ------------------------------------------------------------------------------------------------


class Service:
    """The collector with its server, probes and signals."""

    def __init__(self, settings: Settings, place: Place) -> None:
        self._settings = settings
        self._place = place
        self._collector: Collector | None = None
        self._probes: Probes | None = None
        self._servers: dict[str, Server] = {}
        self._lock = threading.Lock()
        self._signals: SimpleQueue[int] = SimpleQueue()

    def run(self, collector: Collector) -> int:
        """Run until a signal or an error ends it; returns the exit code."""
        from calico_gc.probes import Probes

        self._collector = collector
        file = self._settings.status_file or (STATUS_FILE if self._place.drop_in else "")
        self._probes = Probes(self._place.store, self._place.api, collector.loop, Path(file) if file else None)
        self._listen_to_signals(collector.stop)
        if not self._place.drop_in and self._settings.listen:
            self._serve("page", *_address(self._settings.listen))
        if self._settings.health_port:
            self._serve("health", "127.0.0.1" if not self._place.drop_in else "", self._settings.health_port)
        self._probes.start()
        log.info("collecting on %s as %s", self._place.store.name, self._place.instance)
        try:
            collector.run()
            return report.CLEAN
        finally:
            self._probes.stop()
            with self._lock:
                for server in self._servers.values():
                    server.close()

    def configured(self, told: kcc.Told) -> None:
        """Upstream's settings changed: in its place, the metrics and the log are as it says (ruling 19)."""
        if not self._place.drop_in:
            return
        logging.getLogger().setLevel(LEVELS.get(told.log_level.lower(), logging.ERROR))
        if self._probes is not None:
            self._probes.checks = told.health_checks
        with self._lock:
            known = self._servers.pop("page", None)
        if known is not None:
            if known.port == told.metrics_port:
                with self._lock:
                    self._servers["page"] = known
                return
            known.close()
        if told.metrics_port:
            self._serve("page", "", told.metrics_port)

    def _serve(self, name: str, host: str, port: int) -> None:
        from calico_gc.probes import table
        from calico_gc.web.server import Server, Sources

        assert self._collector is not None and self._probes is not None  # noqa: S101  # run() sets both before
        loop, probes, metrics = self._collector.loop, self._probes, self._collector.metrics
        sources = Sources(probes.not_live, probes.not_ready, lambda: table(probes.said()))
        if name != "health":
            sources = replace(sources, view=loop.view, metrics=metrics.page, page_for_all=not self._place.drop_in)
        server = Server(host, port, sources, origin=self._place.store.name)
        server.start()
        log.info("%s: http://%s:%d", name, host or "*", server.port)
        with self._lock:
            self._servers[name] = server

    def _listen_to_signals(self, stop: Callable[[], None]) -> None:
        """Have a thread call ``stop`` when a signal asks for the end."""

        def wait() -> None:
            self._signals.get()
            stop()

        threading.Thread(target=wait, name="signals", daemon=True).start()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._signalled)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        # A handler runs between two instructions of the main thread, which may hold any lock, that of the inbox or the
        # one with which threads are started. Of all queues only this one may be entered twice.
        del frame
        self._signals.put(number)


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise InvalidInput(f"--listen: {text!r} is no HOST:PORT", subject=text)
    return host.strip("[]"), int(port)


if __name__ == "__main__":
    sys.exit(main())
