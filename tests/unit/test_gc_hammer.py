"""The hammer's judge: it must see an address taken from the living, and one that is given twice."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from calico_gc.hammer.ledger import Holder, Ledger
from calico_gc.hammer.main import _parser, _plan
from calico_gc.hammer.plan import Outcome, Plan
from calico_gc.hammer.world import shares

from calico_ipam.errors import InvalidInput
from calico_ipam.model.addresses import parse_address
from tests.blocks import auto, free, new

ONE = parse_address("10.0.0.0")


def ledger_with_pod() -> Ledger:
    ledger = Ledger()
    ledger.enter(Holder("pod a", "h", (ONE,)))
    return ledger


def test_what_lives_and_has_its_address_is_fine() -> None:
    ledger = ledger_with_pod()
    block, _ = auto(new(), handle="h")
    assert ledger.compare(ledger.living(), [block]) == []
    assert (ledger.violations, ledger.looks) == ([], 1)


@pytest.mark.parametrize("taken", ["free", "cooling", "other", "no block"])
def test_an_address_taken_from_the_living_is_a_violation(taken: str) -> None:
    ledger = ledger_with_pod()
    block, ordinals = auto(new(), handle="other" if taken == "other" else "h")
    if taken in ("free", "cooling"):
        block = free(block, *ordinals, cooldown=600 if taken == "cooling" else 0)
    wrong = ledger.compare(ledger.living(), [] if taken == "no block" else [block])
    assert len(wrong) == 1 and wrong[0].startswith("10.0.0.0 of pod a, which lives, is ")
    ledger.compare(ledger.living(), [])
    assert len(ledger.violations) >= 1


def test_whoever_left_or_came_during_a_look_is_not_judged() -> None:
    ledger = ledger_with_pod()
    before = ledger.living()
    ledger.leave("h")
    assert ledger.compare(before, []) == []
    ledger.enter(Holder("pod a again", "h", (ONE,)))
    assert ledger.compare(before, []) == []
    ledger.leave("nobody")


def test_an_address_given_twice_is_a_violation() -> None:
    ledger = ledger_with_pod()
    ledger.enter(Holder("pod b", "other", (ONE,)))
    assert ledger.violations == ["10.0.0.0 was given to pod b while pod a has it"]


def test_an_address_given_again_after_its_holder_left_is_fine() -> None:
    ledger = ledger_with_pod()
    ledger.leave("h")
    ledger.enter(Holder("pod b", "other", (ONE,)))
    assert ledger.violations == []


def test_fates_follow_the_plan_and_the_seed() -> None:
    plan = Plan(leak_ratio=0.2, crash_ratio=0.1)
    drawn = [fate for fate, _ in zip(shares(plan, random.Random(7)), range(10_000), strict=False)]
    again = [fate for fate, _ in zip(shares(plan, random.Random(7)), range(10_000), strict=False)]
    assert drawn == again
    assert {fate: round(number / 10_000, 1) for fate, number in Counter(drawn).items()} == {
        "live": 0.7, "leak": 0.2, "crash": 0.1,
    }  # fmt: skip  # one line each


def test_arguments_become_the_plan() -> None:
    plan = _plan(_parser().parse_args(["--nodes", "3", "--tunnels", "vxlan", "--churn", "1m", "--leave-handles"]))
    assert (plan.nodes, plan.tunnels, plan.churn, plan.handles) == (3, ("vxlan",), 60.0, False)
    assert _plan(_parser().parse_args([])) == Plan()
    for bad in (["--tunnels", "gre"], ["--nodes", "0"], ["--churn", "soon"]):
        with pytest.raises(InvalidInput):
            _plan(_parser().parse_args(bad))


def test_a_run_is_good_only_without_violations_and_leftovers() -> None:
    assert Outcome().good
    assert not Outcome(violations=["x"]).good and not Outcome(unfinished=True).good
