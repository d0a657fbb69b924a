"""The thread that owns the state: it takes changes and answers, lets the controller look, and makes views (gc §3)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from calico_gc.act import Released
from calico_gc.controller import Controller
from calico_gc.feed import BROKEN, SYNCED, SYNCING, Source
from calico_gc.inbox import Inbox
from calico_gc.intake import Change, Intake
from calico_gc.invariants import broken
from calico_gc.timing import Clock
from calico_gc.view import View, view_of
from calico_gc.work import Action, Worker

log = logging.getLogger(__name__)

#: actions that are carried out side by side
WORKERS = 8
#: seconds a view may be waited for; after that the last one is shown
VIEW_SECONDS = 2.0
#: the loop counts as stuck when it has not come round for so many periods, or one round took so many seconds
SILENT_PERIODS, LONGEST_ROUND = 3.0, 600.0
#: longest time the loop sleeps, so that its heart can be heard
HEARTBEAT = 30.0


class Loop:
    """Runs until :meth:`stop`. ``after_sync`` is called by the loop after each pass, with whether it was a full one."""

    def __init__(
        self,
        controller: Controller,
        intake: Intake,
        inbox: Inbox,
        clock: Clock,
        after_sync: Callable[[Loop, bool], None] = lambda *_: None,
    ) -> None:
        self.controller = controller
        self.inbox = inbox
        self._intake = intake
        self._clock = clock
        self._after_sync = after_sync
        self._worker: Worker | None = None
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="collector")
        self._sources: Sequence[Source] = ()
        self._synced: dict[str, bool] = {}
        self._stopping = threading.Event()
        self._view: View | None = None
        self._view_lock = threading.Lock()
        self._round_began = clock.monotonic()
        self._next_tick: float | None = None
        self.error: BaseException | None = None
        self.timed: Callable[[str, float], None] = lambda *_: None
        self.listed: Callable[[], None] = lambda: None  #: called by the loop when everything has been listed

    # --- wiring --------------------------------------------------------------------------------------------

    def use(self, worker: Worker, sources: Sequence[Source]) -> None:
        """Say who carries out actions and what is followed; before :meth:`run`."""
        self._worker = worker
        self._sources = sources
        self._synced = {source.name: False for source in sources}

    def submit(self, action: Action) -> None:
        """Hand an action to a worker; its answer comes back through the inbox."""
        future = self._pool.submit(self._carry_out, action)
        future.add_done_callback(partial(self._answered, action))

    def _carry_out(self, action: Action) -> object:
        assert self._worker is not None  # noqa: S101  # use() comes before run()
        began = self._clock.monotonic()
        dry = self.controller.options.dry_run
        answer = self._worker.preview(action) if dry else self._worker.run(action)
        self.timed("handles" if action.key[0] == "handles" else "release", self._clock.monotonic() - began)
        return answer

    def progress(self, part: Released) -> None:
        """Pass on what a worker has done so far; for workers."""
        self.inbox.call(partial(self.controller.progress, part))

    def apart(self, work: Callable[[], None]) -> None:
        """Run something beside the loop that may take time."""
        self._pool.submit(work)

    def fail(self, error: Exception) -> None:
        """End the loop with an error; from any thread."""

        def raise_it() -> None:
            raise error

        self.inbox.call(raise_it)

    def _answered(self, action: Action, future: object) -> None:
        self.inbox.call(partial(self._conclude, action, future))

    def _conclude(self, action: Action, future: object) -> None:
        self.controller.conclude(action, future.result())  # type: ignore[attr-defined]  # a Future; raises its error

    # --- running -------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Follow everything until stopped. Raises whatever a worker or a decision raised: the process then restarts."""
        for source in self._sources:
            source.start()
        try:
            while not self._stopping.is_set():
                self.round()
        except BaseException as error:
            self.error = error
            raise
        finally:
            self.close()

    def round(self) -> None:
        """Wait for something to do, do it."""
        self._round_began = self._clock.monotonic()
        calls, changes = self.inbox.take(self._wake_at())
        if self._stopping.is_set():
            return
        for call in calls:
            call.run()
        for change in changes:
            self._apply(change)
        full = self._tick()
        if calls and all(call.looks for call in calls) and not changes and not full and not self._due():
            return
        began = self._clock.monotonic()
        if self.controller.sync():
            self.timed("sync", self._clock.monotonic() - began)
            if log.isEnabledFor(logging.DEBUG):
                for problem in broken(self.controller.state, self._clock.monotonic()):
                    log.error("an internal map is wrong: %s", problem)
            self._after_sync(self, full)

    def _wake_at(self) -> float:
        now = self._clock.monotonic()
        due = [now + HEARTBEAT]
        if self._next_tick is not None and self.controller.state.in_sync:
            due.append(self._next_tick)  # while something cannot be followed no scan is made, however long it is due
        if self.controller.wake_at is not None:
            due.append(self.controller.wake_at)
        return min(due)

    def _due(self) -> bool:
        at = self.controller.wake_at
        return at is not None and self._clock.monotonic() >= at

    def _tick(self) -> bool:
        """Ask for a full scan when one is due; the first comes with the first complete lists (limit U23)."""
        now, state = self._clock.monotonic(), self.controller.state
        if not state.in_sync:
            return False
        if self._next_tick is None or now >= self._next_tick:
            self._next_tick = now + self.controller.options.period
            self.controller.tick()
        return state.full_scan

    def _apply(self, change: Change) -> None:
        if change.kind == BROKEN:
            raise change.value  # the process restarts and begins with whole lists
        if change.kind not in (SYNCED, SYNCING):
            self._intake.apply(change)
            return
        self._synced[str(change.key)] = change.kind == SYNCED
        state = self.controller.state
        before, state.in_sync = state.in_sync, all(self._synced.values())
        if state.in_sync and not before:
            log.info("everything is listed: %d blocks, %d pods", len(state.blocks), len(state.pods))
            self._next_tick = None
            self.listed()

    def retime(self) -> None:
        """Settings changed: the period may be another."""
        if self._next_tick is not None:
            self._next_tick = min(self._next_tick, self._clock.monotonic() + self.controller.options.period)

    def stop(self) -> None:
        """End the loop soon; from any thread, and from signal handlers through one."""
        self._stopping.set()
        self.inbox.call(lambda: None)

    def close(self) -> None:
        self._stopping.set()
        for source in self._sources:
            source.stop()
        self._pool.shutdown(wait=True, cancel_futures=True)

    # --- looking in ----------------------------------------------------------------------------------------

    def view(self, seconds: float = VIEW_SECONDS) -> View | None:
        """Return a fresh view, made by the loop; the last one when the loop is busy for longer, None before any."""
        done = threading.Event()

        def make() -> None:
            self.make_view()
            done.set()

        self.inbox.look(make)
        done.wait(seconds)
        with self._view_lock:
            return self._view

    def make_view(self) -> View:
        """Make a view; for the loop's own thread."""
        made = view_of(self.controller, queue=len(self.inbox))
        with self._view_lock:
            self._view = made
        return made

    def waiting_for(self) -> list[str]:
        """Return the kinds that have not been listed yet."""
        return sorted(name for name, synced in self._synced.items() if not synced)

    def alive(self) -> str:
        """Return why the loop counts as stuck; empty when it does not."""
        silent = self._clock.monotonic() - self._round_began
        limit = max(LONGEST_ROUND, SILENT_PERIODS * self.controller.options.period)
        if self.error is not None:
            return f"the loop ended: {self.error}"
        return f"the loop has not come round for {silent:.0f} s" if silent > limit + HEARTBEAT else ""
