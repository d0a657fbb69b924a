"""What waits for the loop: changes, only the newest of an object, and answers of workers (limit U21)."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from calico_gc import intake
from calico_gc.intake import Change
from calico_gc.timing import Clock

#: a batch ends after so many seconds of quiet, and after so many in any case
QUIET, LONGEST = 0.05, 1.0


@dataclass(frozen=True, slots=True)
class Call:
    """Something to be done by the loop itself, such as taking over an answer. ``looks``: it changes nothing."""

    run: Callable[[], None]
    looks: bool = False


class Inbox:
    """Unbounded, but never longer than there are objects. Calls keep their order."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changes: dict[object, Change] = {}
        self._calls: deque[Call] = deque()
        self._ready = threading.Condition()

    def put(self, change: Change) -> None:
        # A pod that went and came again under its name has to be seen going: its node is looked at because of it.
        gone = change.kind == intake.POD and change.value is None
        key = (change.kind, change.key, gone)
        with self._ready:
            self._changes.pop(key, None)
            self._changes[key] = change
            self._ready.notify_all()

    def call(self, run: Callable[[], None]) -> None:
        """Have the loop run something soon."""
        self._add(Call(run))

    def look(self, run: Callable[[], None]) -> None:
        """Have the loop run something that only looks, so that nothing has to be decided anew."""
        self._add(Call(run, looks=True))

    def _add(self, call: Call) -> None:
        with self._ready:
            self._calls.append(call)
            self._ready.notify_all()

    def __len__(self) -> int:
        with self._ready:
            return len(self._changes) + len(self._calls)

    def take(self, until: float) -> tuple[list[Call], list[Change]]:
        """Return what is there, waiting for a first item until ``until`` (monotonic), then for a moment of quiet.

        Where there is a call nobody waits for quiet: somebody waits for the call.
        """
        with self._ready:
            while not self._changes and not self._calls:
                left = until - self._clock.monotonic()
                if left <= 0:
                    return [], []
                self._ready.wait(left)
            if not self._calls:
                self._settle()
            calls, self._calls = list(self._calls), deque()
            changes, self._changes = list(self._changes.values()), {}
            return calls, changes

    def _settle(self) -> None:
        end = self._clock.monotonic() + LONGEST
        while not self._calls:
            before = len(self._changes)
            left = min(QUIET, end - self._clock.monotonic())
            if left <= 0 or not self._ready.wait(left) or before == 0:
                return
