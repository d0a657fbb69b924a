"""Collectors as processes of their own: started, killed without a warning, and started again."""

from __future__ import annotations

import logging
import random
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from calico_gc.hammer.plan import Plan

log = logging.getLogger(__name__)


@dataclass
class Collectors:
    """``environ``: what the collectors are given. ``log``: where they write to."""

    plan: Plan
    environ: Mapping[str, str]
    log: Path
    chance: random.Random
    restarts: int = 0
    _running: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        for _ in range(self.plan.collectors):
            self._running.append(self._one())
        if self.plan.collectors and self.plan.restart_every > 0:
            self._thread = threading.Thread(target=self._disturb, name="restarts", daemon=True)
            self._thread.start()

    def _one(self) -> subprocess.Popen[bytes]:
        arguments = [
            *(sys.executable, "-m", "calico_gc.main"),
            *(f"--leak-grace={self.plan.leak_grace:g}s", "--handle-grace=5m", "--listen=", "--handle-qps=200"),
        ]
        with self.log.open("ab") as output:
            return subprocess.Popen(arguments, env=dict(self.environ), stdout=output, stderr=output)  # noqa: S603  # our own program

    def _disturb(self) -> None:
        """Kill one of them now and then, in the middle of whatever it does."""
        while not self._ended.wait(self.plan.restart_every * self.chance.uniform(0.5, 1.5)):
            at = self.chance.randrange(len(self._running))
            victim = self._running[at]
            victim.kill()
            victim.wait()
            self.restarts += 1
            if not self._ended.is_set():
                self._running[at] = self._one()

    def calm(self) -> None:
        """No more kills: what is left now has to be cleaned up."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        for at, process in enumerate(self._running):
            if process.poll() is not None:
                log.warning("a collector had ended with %d and is started again; see %s", process.returncode, self.log)
                self._running[at] = self._one()

    def stop(self) -> None:
        self.calm()
        for process in self._running:
            process.terminate()
        for process in self._running:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._running.clear()
