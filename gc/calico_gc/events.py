"""Kubernetes Events about what the collector did, few enough to be read (gc §18.4)."""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from calico_gc.timing import Clock
from calico_ipam.datastore.api import Deadline
from calico_ipam.datastore.kube.api import MERGE, KubeApi, Request
from calico_ipam.errors import IPAMError, NotFound, Unauthorized
from calico_ipam.model.timestamps import format_time

log = logging.getLogger(__name__)

SOURCE = "calico-ipam-gc"
NAMESPACE = "default"
#: seconds within which the same reason about the same object is one event, and how many there are in a minute in all
QUIET, MOST_PER_MINUTE = 300.0, 20
WARNINGS = frozenset({"IPLeakStuck", "NodeIPAMReleaseFailed", "VMHandleOrphaned", "IPInUseNodeMismatch"})


@dataclass
class _Told:
    at: float
    name: str = ""
    count: int = 1
    text: str = ""


@dataclass
class Pace:
    """Decides what is told: once per reason and object in five minutes, twenty a minute. Pure but for its memory."""

    told: dict[tuple[str, str], _Told] = field(default_factory=dict)
    recent: deque[float] = field(default_factory=deque)
    dropped: int = 0

    def allows(self, key: tuple[str, str], now: float) -> bool:
        self.told = {k: t for k, t in self.told.items() if now - t.at < 4 * QUIET}
        while self.recent and now - self.recent[0] >= 60.0:
            self.recent.popleft()
        known = self.told.get(key)
        if known is not None and now - known.at < QUIET:
            known.count += 1
            return False
        if len(self.recent) >= MOST_PER_MINUTE:
            self.dropped += 1
            return False
        self.recent.append(now)
        return True


class Events:
    """Writes events in a thread of its own; a server that refuses them is told once and left alone."""

    def __init__(self, api: KubeApi, clock: Clock, instance: str) -> None:
        self._api = api
        self._clock = clock
        self._instance = instance
        self._pace = Pace()
        self._queue: queue.Queue[tuple[str, str, str] | None] = queue.Queue(maxsize=1000)
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._put(None)
        self._thread.join(timeout=5.0)

    def __call__(self, reason: str, subject: str, text: str) -> None:
        """Tell something about a node (``subject``; empty: about the collector itself). Never waits."""
        self._put((reason, subject, text))

    def _put(self, item: tuple[str, str, str] | None) -> None:
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            log.debug("an event was dropped: %s", item)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            try:
                self._tell(*item)
            except Unauthorized as error:
                log.warning("events cannot be written and are left out from now on: %s", error)
                return
            except IPAMError as error:
                log.info("event %s was not written: %s", item[0], error)

    def _tell(self, reason: str, subject: str, text: str) -> None:
        key, now = (reason, subject), self._clock.monotonic()
        if not self._pace.allows(key, now):
            return
        known = self._pace.told.get(key)
        if known is not None and known.name:
            known.count += 1
            try:
                self._count_up(known, text)
            except NotFound:
                log.debug("event %s has expired", known.name)
            else:
                known.at = now
                return
        name = self._write(reason, subject, text)
        self._pace.told[key] = _Told(now, name, 1, text)

    def _count_up(self, known: _Told, text: str) -> None:
        body = {"count": known.count, "message": text, "lastTimestamp": format_time(self._clock.now())}
        path = f"/api/v1/namespaces/{NAMESPACE}/events/{known.name}"
        self._api.call(Request("PATCH", path, body=body, content_type=MERGE), Deadline.after(5.0))

    def _write(self, reason: str, subject: str, text: str) -> str:
        name = f"{(subject or SOURCE)[:200]}.{self._clock.now():x}"
        now = format_time(self._clock.now())
        about: dict[str, Any] = {"kind": "Node", "apiVersion": "v1", "name": subject, "uid": subject}
        if not subject:
            about = {"kind": "Lease", "apiVersion": "coordination.k8s.io/v1", "name": SOURCE, "namespace": NAMESPACE}
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "involvedObject": about,
            "reason": reason,
            "message": text[:1000],
            "type": "Warning" if reason in WARNINGS else "Normal",
            "source": {"component": SOURCE},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
            "eventTime": None,
            "reportingComponent": SOURCE,
            "reportingInstance": self._instance,
        }
        self._api.call(Request("POST", f"/api/v1/namespaces/{NAMESPACE}/events", body=body), Deadline.after(5.0))
        return name
