"""Where ours differs from upstream on purpose: one table, keyed by the limit of ipam-library §23 that is beaten.

An exception is a predicate over the recorded step (never over a file name alone, ruling 26) and a change of what is
expected: everything that it does not change is still compared. One that a step does not need any more fails there.

Keys that are no limit: ``typed`` (addresses are values, not text), ``atomic`` (block, handle and affinity row change in
one commit, design §3.2), ``snapshot`` (what upstream reads piece by piece is one read, ruling 14), ``bounds`` (settings
that the resource definition refuses are refused on every store), ``extra`` (unknown fields survive, design §3.3).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from calico_ipam.model.addresses import parse_address
from calico_ipam.model.handle import sanitise_handle
from tests.golden.library_scenario import Expectation, Moment, State
from tests.golden.replay import HANDLES

BLOCKS = "/calico/ipam/v2/assignment/"


@dataclass(frozen=True)
class Exception_:
    """``ours``: what our library does instead, in a sentence."""

    limit: str
    ours: str
    when: Callable[[Moment, State], bool]
    change: Callable[[Moment, Expectation, State], None]
    resync: bool = True

    def applies(self, moment: Moment, ours: State) -> bool:
        return self.when(moment, ours)

    def expect(self, moment: Moment, expected: Expectation, ours: State) -> None:
        self.change(moment, expected, ours)


# --- handle counts (L1, L2, L10) ----------------------------------------------------------------------------


def held(state: Mapping[str, Any]) -> dict[str, Counter[str]]:
    """Return, by handle, how many addresses it really holds in which block."""
    found: dict[str, Counter[str]] = {}
    for key, block in state.items():
        if key.startswith(BLOCKS) and isinstance(block, dict) and isinstance(block.get("allocations"), list):
            attributes = block.get("attributes") or []
            for index in block["allocations"]:
                if isinstance(index, int) and index < len(attributes) and not attributes[index].get("releasedAt"):
                    handle = sanitise_handle(attributes[index].get("handle_id"))
                    if handle:
                        found.setdefault(handle, Counter())[str(block.get("cidr"))] += 1
    return found


def exact(moment: Moment, ours: State, handle: str) -> dict[str, Any] | None:
    """Return our handle document after a step: what it was, and exactly what the blocks gained or lost."""
    document = ours.get(HANDLES + handle)
    counts = Counter((document or {}).get("block") or {})
    counts.update(held(moment.after).get(handle, Counter()))
    counts.subtract(held(moment.before).get(handle, Counter()))
    left = {cidr: number for cidr, number in counts.items() if number > 0}
    return {**(document or {"deleted": False}), "block": left} if left else None


def concerned(moment: Moment) -> set[str]:
    """Return the handles whose documents or addresses a step touches."""
    documents = {key[len(HANDLES) :] for key in moment.step.changed if key.startswith(HANDLES)}
    before, after = held(moment.before), held(moment.after)
    return documents | {h for h in {*before, *after} if before.get(h) != after.get(h)}


def miscounted(moment: Moment, ours: State) -> list[str]:
    """Return the handles for which upstream counts otherwise than by the addresses that change hands."""
    return [h for h in sorted(concerned(moment)) if exact(moment, ours, h) != moment.after.get(HANDLES + h)]


def _count_exactly(moment: Moment, expected: Expectation, ours: State) -> None:
    for handle in miscounted(moment, ours):
        document = exact(moment, ours, handle)
        if document is None:
            expected.after.pop(HANDLES + handle, None)
        else:
            expected.after[HANDLES + handle] = document


def _by_operation(*operations: str) -> Callable[[Moment, State], bool]:
    return lambda moment, ours: moment.step.op in operations and bool(miscounted(moment, ours))


def _left_over(moment: Moment, ours: State) -> bool:
    """A handle was released, and upstream keeps its document, or an entry of it."""
    key = HANDLES + sanitise_handle(moment.step.args.get("handle"))
    return moment.step.op == "release_by_handle" and moment.step.error is None and key in moment.after


def _remove_handle(moment: Moment, expected: Expectation, ours: State) -> None:
    expected.after.pop(HANDLES + sanitise_handle(moment.step.args["handle"]), None)


EXCEPTIONS: tuple[Exception_, ...] = (
    Exception_(
        "L1",
        "the handle counts the addresses that were obtained, not those that were asked for",
        _by_operation("auto_assign", "release_ips"),
        _count_exactly,
        resync=False,
    ),
    Exception_(
        "L10",
        "releasing a handle removes all of it, entries for blocks that are gone or hold nothing included",
        _left_over,
        _remove_handle,
        resync=False,
    ),
)
