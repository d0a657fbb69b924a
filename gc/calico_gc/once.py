"""One look, one round of actions, a report (gc §18.3)."""

from __future__ import annotations

import threading
from collections.abc import Callable

from calico_gc import handles
from calico_gc.assembly import Collector
from calico_gc.timing import Clock, Jumps
from calico_gc.view import View
from calico_ipam.errors import DeadlineExceeded, RefusedError

#: seconds for the first complete look, and seconds after which a lease of somebody else is not waited for
FIRST_LOOK, LEASE = 120.0, 20.0
#: seconds that what is confirmed may take to be done, beside the grace periods
TO_ACT = 600.0
POLL = 0.1


class ShiftedClock:
    """A clock whose monotonic time can be set forward, for a dry run that assumes that the grace periods are over."""

    def __init__(self, inner: Clock) -> None:
        self._inner = inner
        self.offset = 0.0

    def now(self) -> int:
        return self._inner.now()

    def monotonic(self) -> float:
        return self._inner.monotonic() + self.offset

    def sleep(self, seconds: float) -> None:
        self._inner.sleep(seconds)


def run_once(collector: Collector, clock: ShiftedClock) -> View:
    """Run a collector until nothing is left to decide or to do; return what is known then.

    Raises DeadlineExceeded, RefusedError (another instance leads), and whatever ended the collector.
    """
    thread = threading.Thread(target=_run_quietly, args=(collector,), name="loop", daemon=True)
    thread.start()
    try:
        _until(collector, clock, _looked, FIRST_LOOK, "the first look at everything")
        if collector.settings.assume_grace_elapsed:
            _assume_elapsed(collector, clock)
        options = collector.controller.options
        graces = (options.rules.leak_grace or 0.0, options.handles.grace or 0.0, options.rules.machine_grace)
        return _until(collector, clock, _settled, 2 * max(graces) + TO_ACT, "everything to be decided and done")
    finally:
        collector.stop()
        thread.join()


def _run_quietly(collector: Collector) -> None:
    try:
        collector.run()
    except Exception as error:
        collector.loop.error = error


def _until(collector: Collector, clock: Clock, true: Callable[[View], bool], seconds: float, what: str) -> View:
    began = clock.monotonic()
    while True:
        if collector.loop.error is not None:
            raise collector.loop.error
        view = collector.loop.view()
        if view is not None and true(view):
            return view
        waited = clock.monotonic() - began
        if view is not None and not view.leader and waited > LEASE:
            holder = collector.election.holder if collector.election is not None else ""
            raise RefusedError(
                f"another instance leads: {holder or 'unknown'}",
                hint="Stop it, use --dry-run, or --leader-elect=false.",
            )
        if view is not None and not view.ready:
            raise RefusedError("the datastore is locked: nothing is collected", hint="Unlock it, then run again.")
        if waited > seconds:
            raise DeadlineExceeded(f"waited {seconds:.0f} s in vain for {what}")
        clock.sleep(POLL)


def _looked(view: View) -> bool:
    wants_handles = view.options.handle_period() is not None
    return view.measured and not view.busy and (not wants_handles or view.handles is not None)


def _assume_elapsed(collector: Collector, clock: ShiftedClock) -> None:
    """Set the clock forward beyond every grace period and look again, as often as a confirmation takes."""
    options = collector.controller.options
    period = max(options.rules.leak_grace or 0.0, options.handles.grace or 0.0, options.rules.machine_grace) + 1.0
    for _ in range(max(2, options.handles.observations)):
        done = threading.Event()

        def look(done: threading.Event = done) -> None:
            clock.offset += period
            collector.controller.jumps = Jumps()  # not the wall clock was set
            collector.controller.handles.next_at = 0.0
            collector.controller.tick()
            done.set()

        collector.inbox.call(look)
        done.wait(FIRST_LOOK)
        _until(collector, clock, _looked, FIRST_LOOK + period, "another look")


def _settled(view: View) -> bool:
    """Tell whether nothing more will happen by waiting: every suspicion is decided, every action done or failing."""
    if not _looked(view):
        return False
    for key, suspicion in view.suspects.items():
        if suspicion.due() is not None:
            return False
        working = suspicion.confirmed and key not in view.held and not view.options.dry_run
        if working and ("release", key[0]) not in view.failing:
            return False
    nodes = () if view.options.dry_run else view.leaving
    if any(("node", node) not in view.failing for node in nodes):
        return False
    return not _handles_wait(view) and (view.options.dry_run or not view.empty_since)


def _handles_wait(view: View) -> bool:
    """Tell whether a handle still has to be seen again, or to be repaired."""
    chosen = view.options.handles
    if view.handles is None or chosen.grace is None:
        return False
    for record in view.handles.records.values():
        mode = chosen.collect if record.judged.kind in (handles.ORPHAN, handles.STUCK) else chosen.repair
        if mode != "on":
            continue
        confirmed = record.confirmed(chosen.grace, chosen.observations)
        if not confirmed or not view.options.dry_run:
            return True
    return False
