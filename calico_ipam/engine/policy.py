"""Time and patience, handed in from outside: the clock, and how long a lost race is run again."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from calico_ipam.datastore.api import Deadline
from calico_ipam.errors import DeadlineExceeded, RetriesExhausted


class Clock(Protocol):
    """What the engine knows of time."""

    def now(self) -> int:
        """Unix time in nanoseconds."""

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> int:
        return time.time_ns()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a lost compare-and-swap is decided again, and how long to wait in between (limit L7).

    ``attempts``: tries in all; 100 is upstream's number. ``pause``: longest first wait in seconds; it doubles from try
    to try up to ``longest``, and each wait is drawn between zero and that, so that hosts which collided once do not
    collide again. The first retry does not wait: most conflicts are over when they are seen.
    """

    attempts: int = 100
    pause: float = 0.002
    longest: float = 0.1
    deadline: Deadline | None = None
    clock: Clock = field(default_factory=SystemClock)

    def tries(self, doing: str) -> Iterator[int]:
        """Yield attempt numbers from 0. Raises DeadlineExceeded between tries, RetriesExhausted after the last."""
        for attempt in range(self.attempts):
            if attempt and self.deadline is not None:
                self.deadline.check(doing)
            if attempt > 1:
                wait = random.uniform(0, min(self.longest, self.pause * 2.0 ** min(attempt - 2, 10)))
                if self.deadline is not None and wait > self.deadline.remaining():
                    raise DeadlineExceeded(f"out of time while {doing}")
                self.clock.sleep(wait)
            yield attempt
        raise RetriesExhausted
