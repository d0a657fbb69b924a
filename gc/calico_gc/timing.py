"""Time, handed in from outside, and patience with what fails: back-off by key, and a limit on writes."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from calico_gc.suspicion import Moment


class Clock(Protocol):
    """Both clocks. The engine's own clock protocol is the first half of it."""

    def now(self) -> int:
        """Unix time in nanoseconds."""

    def monotonic(self) -> float:
        """Seconds that never go back."""

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's own clocks."""

    def now(self) -> int:
        return time.time_ns()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def moment(clock: Clock) -> Moment:
    return Moment(clock.monotonic(), clock.now())


#: seconds after which a failure that was never tried again is forgotten
FORGOTTEN = 600.0
Key = tuple[str, str]  #: what is tried, and on which object


#: seconds by which the two clocks may drift apart between two looks before that counts as a jump
DRIFT = 5.0


@dataclass(slots=True)
class Jumps:
    """Notices when the wall clock was set: since then it cannot be compared with times that were noted before.

    Grace periods and leases do not care; cooling addresses do, since the time of their release is a wall clock's.
    """

    _before: Moment | None = None
    _at: float | None = None  #: monotonic time of the last jump

    def jumped(self, now: Moment) -> float:
        """Return by how many seconds the wall clock was set since the last look; 0 when it was not."""
        before, self._before = self._before, now
        if before is None:
            return 0.0
        drift = (now.wall - before.wall) / 1e9 - (now.mono - before.mono)
        if abs(drift) < DRIFT:
            return 0.0
        self._at = now.mono
        return drift

    def settled_at(self, seconds: float) -> float:
        """Return the monotonic time from which on periods of ``seconds`` can be measured by the wall clock again."""
        return float("-inf") if self._at is None else self._at + seconds


#: what failed so often in a row is parked until everything is looked at again
MOST_FAILURES = 10
#: share by which a pause is longer or shorter, so that what failed together is not tried together
JITTER = 0.1


def jitter() -> float:
    return random.uniform(1 - JITTER, 1 + JITTER)


@dataclass(slots=True)
class Backoff:
    """When what failed may be tried again (gc §18.6).

    After ``first`` seconds, doubled with each failure up to ``longest``, times ``spread``. What failed too often in a
    row is parked: it waits for :meth:`unpark`, and one more failure parks it again.
    """

    first: float = 0.005
    longest: float = 30.0
    spread: Callable[[], float] = jitter
    _failures: dict[Key, tuple[int, float]] = field(default_factory=dict)

    def failed(self, key: Key, now: float, most: float = MOST_FAILURES) -> float | None:
        """Note a failure; return when the next try is due, None when it is parked, as it is after ``most`` of them."""
        count = self._failures.get(key, (0, 0.0))[0] + 1
        parked = count >= most
        due = math.inf if parked else now + min(self.longest, self.first * 2.0 ** min(count - 1, 40) * self.spread())
        self._failures[key] = (count, due)
        return None if parked else due

    def unpark(self, now: float) -> None:
        """Let what was parked be tried again."""
        self._failures = {k: (n, now if due == math.inf else due) for k, (n, due) in self._failures.items()}

    def succeeded(self, key: Key) -> None:
        self._failures.pop(key, None)

    def ready(self, key: Key, now: float) -> bool:
        found = self._failures.get(key)
        return found is None or now >= found[1]

    def failures(self) -> dict[Key, int]:
        """Return how often each thing failed in a row."""
        return {key: count for key, (count, _) in self._failures.items()}

    def count(self, key: Key) -> int:
        return self._failures.get(key, (0, 0.0))[0]

    def waiting(self, now: float) -> list[Key]:
        """Return what has failed and is not to be tried yet."""
        return [key for key, (_, due) in self._failures.items() if now < due]

    def next_due(self, now: float) -> float | None:
        """Return the earliest time from ``now`` on at which something may be tried again.

        What is due already was tried in this pass or is of no concern any more; the latter is forgotten after a while.
        """
        for key in [k for k, (_, due) in self._failures.items() if now - due > FORGOTTEN]:
            del self._failures[key]
        return min((due for _, due in self._failures.values() if now < due < math.inf), default=None)


class Bucket:
    """A token bucket shared by threads: ``rate`` per second, ``burst`` at once. A rate of 0 sets no limit."""

    def __init__(self, clock: Clock, rate: float, burst: float | None = None) -> None:
        self._clock = clock
        self.rate = rate
        self._burst = burst if burst is not None else max(1.0, rate)
        self._tokens = self._burst
        self._at = clock.monotonic()
        self._lock = threading.Lock()

    def take(self, number: int = 1) -> None:
        """Wait until ``number`` tokens are there and take them; debts are paid by those who come later."""
        if self.rate <= 0:
            return
        with self._lock:
            now = self._clock.monotonic()
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self.rate)
            self._at = now
            self._tokens -= number
            wait = -self._tokens / self.rate
        if wait > 0:
            self._clock.sleep(wait)
