"""Whether the collector lives and is ready: for its own probes, and as upstream's controller tells it (gc §15).

Datastore and API server are asked every ten seconds, and every two while one of them does not answer. What they said
is in upstream's status file, for the probe ``check-status``, and in the table of ``/liveness`` and ``/readiness``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from calico_gc import report
from calico_ipam.datastore.api import Datastore, Deadline
from calico_ipam.datastore.kube.api import KubeApi, Request
from calico_ipam.model.keys import Resources
from calico_ipam.model.resource import CLUSTER_INFORMATION

log = logging.getLogger(__name__)

STARTUP, DATASTORE, API_SERVER, COLLECTOR = "Startup", "CalicoDatastore", "KubeAPIServer", "IPAMCollector"
NOT_ASKED = "initialized to false"
#: seconds an answer may take; doubled with each time that one is missing, up to the longest
FIRST_TIMEOUT, LONGEST_TIMEOUT = 4.0, 16.0
#: seconds between two rounds: while all is well, and while it is not
GOOD_PAUSE, BAD_PAUSE = 10.0, 2.0
HEADER = ("COMPONENT", "TIMEOUT", "LIVENESS", "READINESS", "DETAIL")


class Loop(Protocol):
    """What is asked of the collector's loop."""

    def alive(self) -> str: ...

    def waiting_for(self) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class Said:
    """What one component says. ``live``, ``ready``: why it is not, empty when it is."""

    name: str
    live: str = ""
    ready: str = ""


class Probes:
    """Asks in a thread of its own from :meth:`start` on. ``path``: upstream's status file, None for none.

    ``checks`` False: upstream's health checks are switched off; then only the start is told.
    """

    def __init__(self, store: Datastore, api: KubeApi | None, loop: Loop, path: Path | None = None) -> None:
        self.checks = True
        self._loop = loop
        self._path = path
        self._asked: dict[str, Callable[[float], None]] = {DATASTORE: lambda seconds: ask_datastore(store, seconds)}
        if api is not None:
            self._asked[API_SERVER] = lambda seconds: ask_api_server(api, seconds)
        self._reasons = dict.fromkeys((STARTUP, *self._asked), NOT_ASKED)
        self._timeout = FIRST_TIMEOUT
        self._written: dict[str, str] | None = None
        self._told = ""
        self._ended = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="probes", daemon=True).start()

    def stop(self) -> None:
        self._ended.set()

    def _run(self) -> None:
        self.write()
        while not self._ended.is_set():
            pause = self.round()
            self.write()
            self._ended.wait(pause)

    def round(self) -> float:
        """Ask everybody once; return the seconds until the next round."""
        for name, ask in self._asked.items():
            try:
                ask(self._timeout)
                self._reasons[name] = ""
            except Exception as error:  # whatever it is: who cannot ask does not say that all is well
                if self._reasons[name] != (reason := _missing(name, error)):
                    log.warning("%s", reason)
                self._reasons[name] = reason
        if not self._reasons[DATASTORE]:
            self._reasons[STARTUP] = ""
        good = not any(self._reasons.values())
        self._timeout = FIRST_TIMEOUT if good else min(LONGEST_TIMEOUT, 2 * self._timeout)
        return GOOD_PAUSE if good else BAD_PAUSE

    # --- what is known ---------------------------------------------------------------------------------------

    def said(self) -> list[Said]:
        """Return what each component says, by name."""
        waiting = self._loop.waiting_for()
        own = Said(COLLECTOR, self._loop.alive(), f"waiting for lists of {', '.join(waiting)}" if waiting else "")
        return sorted([own, *(Said(name, "", why) for name, why in self._shown())], key=lambda said: said.name)

    def not_live(self) -> str:
        return "; ".join(said.live for said in self.said() if said.live)

    def not_ready(self) -> str:
        return "; ".join(f"{said.name}: {said.ready}" for said in self.said() if said.ready)

    def status(self) -> dict[str, str]:
        """Return upstream's conditions: name -> why not, empty when it is good.

        Upstream's probe for liveness reads the same ones, so what only takes time is left out; a loop that is stuck is
        not.
        """
        stuck = self._loop.alive()
        return dict(self._shown()) | ({COLLECTOR: stuck} if stuck else {})

    def _shown(self) -> list[tuple[str, str]]:
        return [(name, why) for name, why in self._reasons.items() if self.checks or name == STARTUP]

    def write(self) -> None:
        """Bring the status file up to date."""
        status = self.status()
        if self._path is None or status == self._written:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            conditions = {name: {"Ready": not why, "Reason": why} for name, why in status.items()}
            report.write(self._path, {"Readiness": conditions})
            self._path.chmod(0o644)  # as upstream's: whoever probes may be another user
            self._written = status
        except OSError as error:
            if self._told != (told := str(error.strerror)):
                self._told = told
                log.warning("the status file %s cannot be written: %s", self._path, told)


def _missing(name: str, error: Exception) -> str:
    return f"Error {'verifying datastore' if name == DATASTORE else 'reaching apiserver'}: {error}"


def ask_datastore(store: Datastore, seconds: float) -> None:
    """Raise an IPAMError unless the datastore answers in time."""
    store.within(Deadline.after(seconds)).list(Resources(CLUSTER_INFORMATION))


def ask_api_server(api: KubeApi, seconds: float) -> None:
    """Raise an IPAMError unless the API server says in time that it is well."""
    response = api.open_stream(Request("GET", "/healthz"), seconds)
    response.close()


def table(components: Sequence[Said]) -> str:
    """Return what components say, in the table that upstream's health endpoints show."""
    rows = [
        (s.name, "-", f"reporting {'non-' if s.live else ''}live", f"reporting {'non-' if s.ready else ''}ready", d)
        for s in components
        for d in ["; ".join(filter(None, (s.live, s.ready)))]
    ]
    widths = [max(len(row[column]) for row in (HEADER, *rows)) for column in range(len(HEADER))]
    rule = "+".join("-" * (width + 2) for width in widths)
    lines = [f"| {' | '.join(text.ljust(w) for text, w in zip(row, widths, strict=True))} |" for row in rows]
    head = f"| {' | '.join(text.center(w) for text, w in zip(HEADER, widths, strict=True))} |"
    return "\n".join((f"+{rule}+", head, f"+{rule}+", *lines, f"+{rule}+"))
