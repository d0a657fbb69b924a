"""Eight processes at once, what each saw, and whether it can have been: a recorded history against a small model.

A worker asks, holds, asks who holds, and releases, and writes down each step with the time before and after it. The
model of one address is: nobody, or one handle. Two workers that hold one address at one moment, an address somebody
holds and the store does not know of, a release that freed a stranger's address: each contradicts every order.

``python -m tests.history URL HOST SECONDS SEED`` is one worker.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from calico_ipam.datastore.config import open_datastore
from calico_ipam.engine.client import IPAM
from calico_ipam.errors import AlreadyExists, IPAMError, NotFound, StaleError
from calico_ipam.model.addresses import Address, parse_address
from calico_ipam.model.block import ReleaseOption
from calico_ipam.model.pool import WORKLOAD
from tests.clock import LONG

#: Addresses that each worker holds and gives back, however long that takes.
LEAST = 15


@dataclass(frozen=True)
class Hold:
    """One address in one worker's hands: surely from ``begin`` to ``end``, seconds of the host's monotonic clock.

    ``begin`` is when the answer to the assignment came, ``end`` when the release was asked for: in between there is no
    way in which somebody else can have it.
    """

    address: str
    handle: str
    begin: float
    end: float


@dataclass(frozen=True)
class History:
    """What all workers wrote down."""

    holds: tuple[Hold, ...]
    errors: tuple[str, ...]
    kept: dict[str, str]  #: address -> handle that still holds it at the end
    steps: int


class Worker:
    """One process: it takes and gives back addresses at random, by every way there is."""

    def __init__(self, url: str, host: str, seed: int) -> None:
        self.store = open_datastore(url, environ={})
        self.ipam = IPAM(self.store, hostname=host)
        self.host = host
        self.random = random.Random(seed)
        self.mine: dict[str, tuple[list[Address], float]] = {}
        self.number = 0
        self.held = 0

    def run(self, seconds: float) -> None:
        """Work for so long, and until enough was held: a busy machine or a slow disk takes its time for that."""
        until = time.monotonic() + seconds
        while (now := time.monotonic()) < until or (self.held < LEAST and now < until + LONG):
            try:
                self._step()
            except IPAMError as error:
                self._tell(kind="error", text=f"{type(error).__name__}: {error}")
        for handle, (addresses, _) in self.mine.items():
            for address in addresses:
                self._tell(kind="kept", address=str(address), handle=handle)
        self.store.close()

    def _step(self) -> None:
        if len(self.mine) < 3 or (len(self.mine) < 12 and self.random.random() < 0.5):
            self._take()
        elif self.random.random() < 0.1:
            self._look()
        else:
            self._give_back()

    def _take(self) -> None:
        self.number += 1
        handle = f"{self.host}.{self.number}"
        attrs = {"node": self.host, "run": handle}
        if self.random.random() < 0.2:
            wanted = parse_address(f"10.77.{self.random.randrange(2)}.{self.random.randrange(256)}")
            try:
                self.ipam.assign_ip(wanted, handle=handle, attrs=attrs)
            except AlreadyExists:
                return
            self.mine[handle] = [wanted], time.monotonic()
            return
        number = self.random.choice((1, 1, 1, 3))
        got = self.ipam.auto_assign(use=WORKLOAD, num4=number, handle=handle, attrs=attrs)
        if got.addresses:
            self.mine[handle] = [a.address for a in got.addresses], time.monotonic()

    def _give_back(self) -> None:
        handle = self.random.choice(list(self.mine))
        addresses, begin = self.mine.pop(handle)
        end = time.monotonic()
        if self.random.random() < 0.5:
            self.ipam.release_by_handle(handle)
        else:
            result = self.ipam.release_ips([ReleaseOption(address, handle) for address in addresses])
            if result.unallocated:
                self._tell(kind="error", text=f"{handle} held {result.unallocated}, the store says they were free")
        for address in addresses:
            self._tell(kind="hold", address=str(address), handle=handle, begin=begin, end=end)
        self.held += len(addresses)
        try:
            # What is given back stays given back, and a stranger's address is never released by an old holder.
            self.ipam.release_ips([ReleaseOption(addresses[0], handle)])
        except (StaleError, NotFound):
            return

    def _look(self) -> None:
        handle = self.random.choice(list(self.mine))
        addresses, _ = self.mine[handle]
        if set(self.ipam.ips_by_handle(handle)) != set(addresses):
            self._tell(
                kind="error", text=f"{handle} holds {addresses}, the store says {self.ipam.ips_by_handle(handle)}"
            )
        if self.ipam.assignment_attributes(addresses[0]).handle != handle:
            self._tell(kind="error", text=f"{addresses[0]} is {handle}'s, the store says otherwise")

    @staticmethod
    def _tell(**fact: object) -> None:
        sys.stdout.write(json.dumps(fact) + "\n")


def record(url: str, hosts: int, seconds: float) -> History:
    """Run ``hosts`` workers at once and return what they wrote down."""
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.history", url, f"host-{n}", str(seconds), str(n)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(hosts)
    ]
    facts: list[dict[str, Any]] = []
    for worker in workers:
        out, _ = worker.communicate()
        if worker.returncode:
            facts.append({"kind": "error", "text": f"a worker ended with {worker.returncode}"})
        facts += [json.loads(line) for line in out.splitlines()]
    return History(
        holds=tuple(Hold(f["address"], f["handle"], f["begin"], f["end"]) for f in facts if f["kind"] == "hold"),
        errors=tuple(f["text"] for f in facts if f["kind"] == "error"),
        kept={f["address"]: f["handle"] for f in facts if f["kind"] == "kept"},
        steps=len(facts),
    )


def contradictions(history: History) -> Iterator[str]:
    """Yield what no order of the steps explains: one address in two hands at one moment."""
    by_address: dict[str, list[Hold]] = defaultdict(list)
    for hold in history.holds:
        by_address[hold.address].append(hold)
    for address, holds in by_address.items():
        latest: Hold | None = None  # of those that began before, the one that ended last
        for hold in sorted(holds, key=lambda hold: hold.begin):
            if latest is not None and hold.begin < latest.end:
                yield f"{address} was {latest.handle}'s until {latest.end} and {hold.handle}'s from {hold.begin}"
            if latest is None or hold.end > latest.end:
                latest = hold


if __name__ == "__main__":
    Worker(sys.argv[1], sys.argv[2], int(sys.argv[4])).run(float(sys.argv[3]))
