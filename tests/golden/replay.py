"""Replays a recorded library scenario and compares every step (the recordings' README §1; rulings 25 to 29).

What upstream stored and what we store are compared as whole states after each step, so ``changed`` holds exactly. Where
an exception (:mod:`tests.golden.library_exceptions`) makes ours differ on purpose, the difference is checked against
what the exception expects. Then either the documents concerned are put to what upstream had, so that the steps which
follow are compared from the same start (``resync``), or they stay *diverged*: as soon as either side touches one again
it must be equal, or excepted again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from calico_ipam.datastore.api import Datastore
from calico_ipam.engine.client import IPAM
from calico_ipam.errors import IPAMError
from tests.golden.library_compare import differences, error_differences, state_differences
from tests.golden.library_documents import HANDLES, block_key, held, rows
from tests.golden.library_hooks import HookedStore, Outside
from tests.golden.library_kube import REST
from tests.golden.library_operations import OPERATIONS, OUTSIDE, by_text, check_known
from tests.golden.library_scenario import Expectation, Moment, Scenario, State, Step, exact_text, moments, parsed


class Bench(Outside, Protocol):
    """A store with nothing in it, and a way round the library to what it holds."""

    name: str

    @property
    def store(self) -> Datastore: ...

    def texts(self) -> dict[str, str]:
        """Return the exact text of everything stored (etcd form)."""

    def state(self) -> State:
        """Return everything stored, as README §1.1 shows it."""

    def violations(self) -> Counter[str]:
        """Return the broken invariants, one sentence each (spec §1, design §7)."""

    def close(self) -> None: ...


class Deviation(Protocol):
    """An expected difference; :mod:`tests.golden.library_exceptions` has them."""

    @property
    def limit(self) -> str: ...

    @property
    def resync(self) -> bool: ...

    def applies(self, moment: Moment, ours: State) -> bool:
        """Tell whether ours differs in this step; ``ours`` is our state before it."""

    def expect(self, moment: Moment, expected: Expectation, ours: State) -> None:
        """Change what upstream did into what ours does."""


class ReplayClock:
    """The wall clock of the recording: it stands still during a step, and nobody really waits."""

    def __init__(self, at: int = 0) -> None:
        self.at = at

    def now(self) -> int:
        return self.at

    def sleep(self, seconds: float) -> None:
        return None


@dataclass
class Report:
    """What a replay found: differences to fix, limits beaten, exceptions without need, an operation that is missing."""

    differences: list[str] = field(default_factory=list)
    excepted: dict[int, list[str]] = field(default_factory=dict)
    needless: list[str] = field(default_factory=list)
    used: set[int] = field(default_factory=set)  #: identities of the exceptions that were needed
    pending: str | None = None
    steps: int = 0

    @property
    def problems(self) -> list[str]:
        return self.differences + self.needless


def prepared(bench: Bench, now: int = 0) -> tuple[HookedStore, IPAM]:
    """Return a store with hooks over a bench, and the library on it with the clock of a recording."""
    store = HookedStore(bench.store, bench)
    return store, IPAM(store, clock=ReplayClock(now))


def carry_out(ipam: IPAM, bench: Bench, step: Step) -> tuple[Any, IPAMError | None]:
    """Do what a step says and return its result, as the recording would show it, and its error."""
    if step.op in OUTSIDE:
        bench.write(step.args)
        return None, None
    operation = OPERATIONS[step.op]
    try:
        return operation.call(ipam, step.args), None
    except IPAMError as error:
        return operation.failed(error), error


def replay(scenario: Scenario, bench: Bench, deviations: Sequence[Deviation]) -> Report:
    """Replay a scenario on an empty bench."""
    for index, step in enumerate(scenario.steps):
        check_known(step.op, step.args, f"{scenario.name}: step {index}")
    return _Run(scenario, bench, deviations).run()


class _Run:
    def __init__(self, scenario: Scenario, bench: Bench, deviations: Sequence[Deviation]) -> None:
        self.scenario = scenario
        self.bench = bench
        self.deviations = deviations
        self.store = HookedStore(bench.store, bench)
        self.report = Report()
        self.diverged: set[str] = set()  #: documents in which ours differs on purpose
        self.placed: dict[str, str] = {}  #: texts that a resync has written
        self.violations: Counter[str] = Counter()

    def run(self) -> Report:
        for write in self.scenario.setup:
            self.bench.write(write)
        self.violations = self.bench.violations()
        for moment in moments(self.scenario):
            operation = OPERATIONS.get(moment.step.op)
            if operation is not None and operation.pending:
                self.report.pending = moment.step.op
                return self.report
            self._step(moment)
            self.report.steps += 1
            if self.report.differences:
                return self.report  # what follows would only repeat it
        self._end()
        return self.report

    # --- one step -------------------------------------------------------------------------------------------

    def _step(self, moment: Moment) -> None:
        before = self.bench.state()
        self.store.set_hooks(moment.step.hooks)
        result, error = carry_out(IPAM(self.store, clock=ReplayClock(moment.step.now)), self.bench, moment.step)
        ours = self.bench.state()
        recorded = Expectation.recorded(moment)
        found, diverged = self._compare(moment, recorded, result, error, before, ours)
        used = [d for d in self.deviations if d.applies(moment, before)]
        if used:
            needed = bool(found)
            expected = Expectation.recorded(moment)
            for deviation in used:
                deviation.expect(moment, expected, before)
            found, _ = self._compare(moment, expected, result, error, before, ours)
            diverged = set(state_differences(moment.after, ours))
            names = [deviation.limit for deviation in used]
            if found:
                self.report.differences.append(f"{self._where(moment)}: not even what exception {names} expects")
            elif needed:
                self.report.excepted[moment.index] = names
                self.report.used |= {id(deviation) for deviation in used}
            else:
                self.report.needless.append(f"{self._where(moment)}: exception {names} is not needed any more")
        self.report.differences += [f"{self._where(moment)}: {line}" for line in found]
        if ours != before:
            self._invariants(moment, before)
        if any(deviation.resync for deviation in used):
            diverged = self._resync(moment, diverged)
        self.diverged = diverged

    def _resync(self, moment: Moment, diverged: set[str]) -> set[str]:
        """Put what ours did differently to what upstream did; handle counts go on diverging by themselves."""
        kept = {key for key in diverged if key.startswith(HANDLES) and key in self.diverged}
        ours = self.bench.state()
        for key in diverged - kept:
            if key in moment.after:
                self.placed[key] = exact_text(moment.after[key])
                self.bench.put_text(key, self.placed[key])
            else:
                self.bench.delete(key)
        self._recount(kept, ours)
        self.violations = self.bench.violations()
        return kept

    def _recount(self, handles: set[str], before: State) -> None:
        """Let handles that go on by themselves count what a resync has given them in blocks, or taken from them."""
        after = self.bench.state()
        had, has = held(before), held(after)
        for key in handles:
            handle = key.removeprefix(HANDLES)
            document = after.get(key) or {"block": {}, "deleted": False}
            counts = Counter(document["block"])
            counts.update(has.get(handle, Counter()))
            counts.subtract(had.get(handle, Counter()))
            left = {cidr: number for cidr, number in counts.items() if number > 0}
            if left and left != document["block"]:
                self.bench.put_text(key, exact_text({**document, "block": left}))
            elif not left and key in after:
                self.bench.delete(key)

    def _compare(
        self,
        moment: Moment,
        expected: Expectation,
        result: Any,
        error: IPAMError | None,
        before: State,
        ours: State,
    ) -> tuple[list[str], set[str]]:
        """Return what differs from an expectation, and the documents that stay diverged."""
        step = moment.step
        if step.panic is not None:
            # Upstream crashed. Ours did not, and nothing else is known about this step.
            return [], self.diverged | set(state_differences(moment.after, ours))
        found: list[str] = []
        if not self.scenario.is_volatile("steps", moment.index, "result"):
            found += differences(_settled(step.op, expected.result), result, "result")
        if not self.scenario.is_volatile("steps", moment.index, "error"):
            found += error_differences(expected.error, error)
        diverged = set()
        for key, lines in state_differences(expected.after, ours).items():
            if _rest_of_nothing(key, expected.after, ours):
                continue
            untouched = before.get(key) == ours.get(key) and moment.before.get(key) == moment.after.get(key)
            if self.scenario.is_volatile("steps", moment.index, "changed", key) or (key in self.diverged and untouched):
                diverged.add(key)
            else:
                found += lines
        for position in self.store.missed():
            if position not in expected.hooks_that_may_miss:
                found.append(f"hook {position} did not fire: {step.hooks[position]}")
        return found, diverged

    def _invariants(self, moment: Moment, before: State) -> None:
        """Damaged set-ups and outside writes break invariants by themselves: no *new* violation (ruling 28).

        A row whose block was missing, or not its owner's, before the step is none when the block has an owner then.
        """
        now = self.bench.violations()
        outside = moment.step.op in OUTSIDE or any(h.put or h.delete or h.error for h in moment.step.hooks)
        stray = {c for _, o, c in rows(before) if (before.get(block_key(c)) or {}).get("affinity") != o}
        if not outside:
            for sentence in (now - self.violations).elements():
                if any(sentence.startswith(f"block {cidr}: ") and "confirmed owner" in sentence for cidr in stray):
                    continue
                self.report.differences.append(f"{self._where(moment)}: invariant broken: {sentence}")
        self.violations = now

    # --- the end --------------------------------------------------------------------------------------------

    def _end(self) -> None:
        scenario = self.scenario
        for key, lines in state_differences(scenario.final, self.bench.state()).items():
            ours_differs = key.removeprefix(REST) in self.diverged
            if not ours_differs and not scenario.is_volatile("final", key):
                self.report.differences += [f"{scenario.name}: final: {line}" for line in lines]
        texts = self.bench.texts()
        outsiders = {write["key"] for step in scenario.steps for hook in step.hooks for write in hook.put}
        for key, text in (scenario.raw or {}).items():
            ours = texts.get(key)
            skipped = key in self.diverged or scenario.is_volatile("raw", key) or ours == self.placed.get(key)
            # Where upstream's last writer was the outsider of a race, ours may have written after it, or not.
            same = ours is not None and key in outsiders and parsed(ours) == parsed(text)
            if not skipped and ours != text and not same:
                self.report.differences.append(f"{scenario.name}: raw: {key}: expected {text}, is {texts.get(key)}")

    def _where(self, moment: Moment) -> str:
        return f"{self.scenario.name}: step {moment.index} ({moment.step.op})"


def _rest_of_nothing(key: str, *states: State) -> bool:
    """Tell whether a key is of the rest of a resource whose document one side does not have; that one is compared."""
    if not key.startswith(REST):
        return False
    # What an exception has made up has no rest either.
    return key not in states[0] or not all(key.removeprefix(REST) in state for state in states)


def _settled(op: str, result: Any) -> Any:
    """Return a recorded result with lists sorted whose order upstream leaves open."""
    if op == "release_ips" and isinstance(result, Mapping):
        return {**result, "unallocated": sorted(result["unallocated"]), "released": by_text(result["released"])}
    if op == "ips_by_handle" and isinstance(result, Mapping):
        return {**result, "ips": sorted(result["ips"])}
    return result


__all__ = ["Bench", "Deviation", "Report", "exact_text", "replay"]
