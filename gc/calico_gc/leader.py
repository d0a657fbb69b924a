"""Leader election by a Lease, as client-go does it (gc §18.2).

Wall clocks of others are never compared: a lease counts as abandoned once it has not changed for its duration on our
own monotonic clock. Who could not renew for ten seconds stops before anybody else may begin.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from calico_gc.gate import NotAllowed
from calico_gc.timing import Clock
from calico_ipam.datastore.api import Deadline
from calico_ipam.datastore.kube.api import KubeApi, Request
from calico_ipam.errors import AlreadyExists, Conflict, IPAMError, NotFound, RefusedError, Unauthorized
from calico_ipam.model.resource import mapping

log = logging.getLogger(__name__)

LEASE = "calico-ipam-gc"
DURATION, RENEW_DEADLINE, RETRY = 15.0, 10.0, 2.0  # seconds
JITTER = 1.2
#: a lease that declares a longer time than this many seconds is damaged: it would stand in everybody's way for ever
LONGEST = 300.0


def _patience(declared: object) -> float:
    """Return how long another's lease must stand still; one that declares less is not trusted to renew in less."""
    return min(LONGEST, max(DURATION, float(declared))) if isinstance(declared, int) else DURATION


class Forbidden(RefusedError):
    """We may not touch leases at all."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"leases cannot be used, so nobody can tell who acts: {reason}",
            hint="Grant the rights of gc/deploy/rbac-gc.yaml, or start one instance alone with --leader-elect=false.",
        )


def micro_time(nanoseconds: int) -> str:
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@dataclass
class Leases:
    """One Lease object."""

    api: KubeApi
    namespace: str
    name: str = LEASE

    @property
    def _collection(self) -> str:
        return f"/apis/coordination.k8s.io/v1/namespaces/{quote(self.namespace)}/leases"

    def read(self) -> dict[str, Any] | None:
        try:
            return self.api.call(Request("GET", f"{self._collection}/{self.name}"), Deadline.after(RETRY * 2))
        except NotFound:
            return None

    def write(self, before: Mapping[str, Any] | None, spec: Mapping[str, Any]) -> None:
        """Create the lease, or replace exactly what was read. Raises Conflict, AlreadyExists and the API's errors."""
        metadata = {"name": self.name, "namespace": self.namespace}
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": dict(spec)}
        deadline = Deadline.after(RETRY * 2)
        if before is None:
            self.api.call(Request("POST", self._collection, body=body), deadline)
            return
        body["metadata"] = before["metadata"]
        self.api.call(Request("PUT", f"{self._collection}/{self.name}", body=body), deadline)


@dataclass
class Election:
    """Takes and keeps the lease. ``won`` and ``lost`` are called when that changes; :meth:`check` guards each write."""

    leases: Leases
    identity: str
    clock: Clock
    won: Callable[[], None] = lambda: None
    lost: Callable[[], None] = lambda: None
    leading: bool = False
    renewed_at: float = 0.0
    holder: str = ""
    _seen: tuple[str, str] = ("", "")
    _seen_at: float = 0.0
    _reached: bool = False  #: leases could be used at least once
    _stop: threading.Event = field(default_factory=threading.Event)

    def check(self) -> None:
        """Raise NotAllowed unless the lease was renewed less than ten seconds ago."""
        if not self.leading or self.clock.monotonic() - self.renewed_at >= RENEW_DEADLINE:
            raise NotAllowed("this instance is not the leader: nothing is written", subject=self.identity)

    def run(self, reached: Callable[[Election], None] = lambda _: None) -> None:
        """Try for ever, until :meth:`stop`. Raises Forbidden when leases are out of our reach.

        ``reached`` is called after each try that got through.
        """
        while not self._stop.is_set():
            if self.step():
                reached(self)
            self._stop.wait(RETRY * random.uniform(1.0, JITTER))
        self._let_go()

    def stopped(self, seconds: float) -> bool:
        """Wait; tell whether it was stopped meanwhile."""
        return self._stop.wait(seconds)

    def stop(self) -> None:
        self._stop.set()

    def step(self) -> bool:
        """Try once to take or renew the lease; tell whether that got through, whoever has it.

        Raises Forbidden when it never did: an API server that is just starting may refuse what it grants later.
        """
        through = False
        try:
            self._try()
            through = self._reached = True
        except Unauthorized as error:
            forbidden = "403" in str(error) or "forbidden" in str(error).lower()
            if forbidden and not self._reached:
                raise Forbidden(str(error)) from error
            log.warning("lease %s cannot be used: %s", self.leases.name, error)
        except (Conflict, AlreadyExists) as error:
            through = self._reached = True
            log.debug("another one was quicker: %s", error)
        except IPAMError as error:
            log.warning("lease %s was not renewed: %s", self.leases.name, error)
        if self.leading and self.clock.monotonic() - self.renewed_at >= RENEW_DEADLINE:
            self._step_down("it could not be renewed in time")
        return through

    def _try(self) -> None:
        began = self.clock.monotonic()
        lease = self.leases.read()
        spec = dict(mapping((lease or {}).get("spec")))
        self.holder = str(spec.get("holderIdentity") or "")
        if self.holder and self.holder != self.identity:
            if self.leading:
                self._step_down(f"{self.holder} has it")
            seen = (self.holder, str(spec.get("renewTime")))
            if seen != self._seen:
                self._seen, self._seen_at = seen, began
            if began - self._seen_at < _patience(spec.get("leaseDurationSeconds")):
                return
        now = micro_time(self.clock.now())
        mine = self.holder == self.identity
        transitions = spec.get("leaseTransitions")
        count = transitions if isinstance(transitions, int) else 0
        self.leases.write(
            lease,
            {
                **spec,
                "holderIdentity": self.identity,
                "leaseDurationSeconds": int(DURATION),
                "acquireTime": spec.get("acquireTime", now) if mine else now,
                "renewTime": now,
                "leaseTransitions": count if mine or lease is None else count + 1,
            },
        )
        self.renewed_at = began  # what others see began no earlier than this
        self.holder = self.identity
        if not self.leading:
            self.leading = True
            log.info("%s is the leader now", self.identity)
            self.won()

    def _step_down(self, why: str) -> None:
        self.leading = False
        log.warning("%s is not the leader any more: %s", self.identity, why)
        self.lost()

    def _let_go(self) -> None:
        """Hand the lease back at a clean end, so that the next one need not wait."""
        if not self.leading:
            return
        self.leading = False
        try:
            lease = self.leases.read()
            spec = dict(mapping((lease or {}).get("spec")))
            if lease is not None and spec.get("holderIdentity") == self.identity:
                self.leases.write(lease, {**spec, "holderIdentity": "", "leaseDurationSeconds": 1})
        except IPAMError as error:
            log.info("the lease was not handed back and runs out by itself: %s", error)
