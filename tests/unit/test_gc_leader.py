"""The lease: taken, kept, lost, handed on; no write without it (gc §18.2)."""

from __future__ import annotations

from typing import Any

import pytest
from calico_gc import main as program
from calico_gc.assembly import Collector, Place
from calico_gc.gate import NotAllowed
from calico_gc.leader import Election, Forbidden, Leases
from calico_gc.once import ShiftedClock
from calico_gc.settings import Settings

from calico_ipam.errors import StoreUnavailable, Unauthorized
from tests.gc_lease import FakeApi
from tests.gc_world import GcClock
from tests.kube_tools import wait_until
from tests.memory import MemoryStore


def candidate(api: FakeApi, clock: GcClock, name: str, told: list[str] | None = None) -> Election:
    told = told if told is not None else []
    leases = Leases(api, "kube-system")  # type: ignore[arg-type]  # a fake in its place
    return Election(leases, name, clock, lambda: told.append("won"), lambda: told.append("lost"))


def test_a_free_lease_is_taken_and_renewed() -> None:
    api, clock, told = FakeApi(), GcClock(), list[str]()
    mine = candidate(api, clock, "a", told)
    mine.step()
    assert (mine.leading, told) == (True, ["won"])
    acquired = api.spec["acquireTime"]
    assert api.spec == {
        "holderIdentity": "a",
        "leaseDurationSeconds": 15,
        "acquireTime": acquired,
        "renewTime": acquired,
        "leaseTransitions": 0,
    }
    clock.advance(2)
    mine.step()
    assert api.spec["acquireTime"] == acquired
    assert api.spec["renewTime"] > acquired
    assert told == ["won"]


def test_a_held_lease_is_left_alone_until_it_stands_still() -> None:
    api, clock = FakeApi(), GcClock()
    one, other = candidate(api, clock, "a"), candidate(api, clock, "b")
    one.step()
    for _ in range(20):
        clock.advance(2)
        one.step()
        other.step()
        assert not other.leading
    for _ in range(7):  # a is gone
        clock.advance(2)
        other.step()
        assert not other.leading
    clock.advance(2)
    other.step()
    assert other.leading
    assert api.spec["leaseTransitions"] == 1


def test_clocks_of_others_do_not_matter() -> None:
    api, clock, wrong = FakeApi(), GcClock(), GcClock()
    wrong.wall += 10**15
    candidate(api, wrong, "a").step()
    other = candidate(api, clock, "b")
    other.step()
    clock.advance(14)
    other.step()
    assert not other.leading
    clock.advance(1)
    other.step()
    assert other.leading


def test_who_cannot_renew_stops_before_another_may_begin() -> None:
    api, clock, told = FakeApi(), GcClock(), list[str]()
    mine, other = candidate(api, clock, "a", told), candidate(api, clock, "b")
    mine.step()
    other.step()
    api.error = StoreUnavailable("no")
    for _ in range(4):
        clock.advance(2)
        mine.step()
        mine.check()
    clock.advance(2)
    with pytest.raises(NotAllowed):
        mine.check()
    mine.step()
    assert (mine.leading, told) == (False, ["won", "lost"])
    api.error = None
    other.step()
    assert not other.leading, "ten seconds have passed, not fifteen"


def test_a_lease_that_was_taken_away_is_lost_at_once() -> None:
    api, clock, told = FakeApi(), GcClock(), list[str]()
    mine = candidate(api, clock, "a", told)
    mine.step()
    assert api.lease is not None
    api.lease["spec"]["holderIdentity"] = "b"
    clock.advance(2)
    mine.step()
    assert told == ["won", "lost"]
    with pytest.raises(NotAllowed):
        mine.check()


def test_of_two_at_once_one_wins() -> None:
    api, clock = FakeApi(), GcClock()
    one, other = candidate(api, clock, "a"), candidate(api, clock, "b")
    read = api.call

    def meanwhile(request: Any, deadline: Any) -> dict[str, Any]:
        if request.method == "POST" and api.lease is None:
            api.call = read  # type: ignore[method-assign]  # a fake in its place
            other.step()
        return read(request, deadline)

    api.call = meanwhile  # type: ignore[method-assign]  # a fake in its place
    one.step()
    assert (one.leading, other.leading) == (False, True)


def test_a_clean_end_hands_the_lease_back() -> None:
    api, clock = FakeApi(), GcClock()
    mine, other = candidate(api, clock, "a"), candidate(api, clock, "b")
    mine.step()
    mine.stop()
    mine.run()
    assert api.spec["holderIdentity"] == ""
    other.step()
    assert other.leading


def test_leases_out_of_reach_say_so() -> None:
    api, clock = FakeApi(), GcClock()
    api.error = Unauthorized('leases.coordination.k8s.io is forbidden: User "x" cannot get resource')
    with pytest.raises(Forbidden, match="forbidden"):
        candidate(api, clock, "a").step()


def test_leases_out_of_reach_end_the_program_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def out_of_reach(*_: object) -> int:
        raise Forbidden("User x cannot get leases")

    monkeypatch.setattr(program, "_run", out_of_reach)
    monkeypatch.setattr(program, "_log_to_stderr", lambda *_: None)  # the log of the tests stays as it is
    assert program.main([], {}) == 1
    told = capsys.readouterr().err
    assert told.startswith("calico-gc: leases cannot be used") and "--leader-elect=false" in told
    assert "Traceback" not in told


REFUSAL = Unauthorized('leases.coordination.k8s.io is forbidden: User "x" cannot get resource')


@pytest.mark.parametrize("error", [REFUSAL, Unauthorized("the API server answers 401")])
def test_a_leader_that_is_refused_for_a_moment_goes_on(error: Exception) -> None:
    """An API server that has just started may not know its roles yet."""
    api, clock, told = FakeApi(), GcClock(), list[str]()
    mine = candidate(api, clock, "a", told)
    assert mine.step()
    api.error = error
    for _ in range(4):
        clock.advance(2)
        assert not mine.step()
        mine.check()
    api.error = None
    clock.advance(1)
    assert mine.step()
    assert told == ["won"]
    api.error = error
    clock.advance(10)
    mine.step()
    assert told == ["won", "lost"], "nobody is trusted to lead who could not say so for ten seconds"


def test_credentials_that_are_refused_are_tried_again() -> None:
    api, clock = FakeApi(), GcClock()
    mine = candidate(api, clock, "a")
    api.error = Unauthorized("the API server answers 401")
    assert not mine.step()
    api.error = None
    assert mine.step() and mine.leading


def test_in_upstreams_place_it_works_without_leases_until_they_can_be_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Ruling 19, and afterwards: rights that are given later count."""
    monkeypatch.setattr("calico_gc.assembly.WITHOUT_LEASE", 0.01)
    monkeypatch.setattr("calico_gc.leader.RETRY", 0.01)
    api, clock = FakeApi(), GcClock()
    collector = Collector(
        Place(MemoryStore(), api, host="n", instance="a", drop_in=True, environ={}),  # type: ignore[arg-type]  # a fake in its place
        Settings(events=False),
        ShiftedClock(clock),
    )
    api.error = REFUSAL
    thread = collector._elect()
    assert thread is not None and collector.election is not None
    wait_until(lambda: collector.unelected, what="work without election")
    collector._permit()
    api.lease = {"metadata": {"resourceVersion": "0"}, "spec": {"holderIdentity": "b", "renewTime": "x"}}
    api.error = None
    wait_until(lambda: not collector.unelected, what="the election")
    with pytest.raises(NotAllowed):
        collector._permit()
    collector.election.stop()
    thread.join(30)
    assert not thread.is_alive()
    assert caplog.text.count("running without election") == 1


@pytest.mark.parametrize("spec", [{}, {"holderIdentity": None}, {"holderIdentity": "", "leaseTransitions": "x"}])
def test_an_odd_lease_is_free(spec: dict[str, Any]) -> None:
    api, clock = FakeApi(), GcClock()
    api.lease = {"metadata": {"resourceVersion": "0"}, "spec": spec}
    mine = candidate(api, clock, "a")
    mine.step()
    assert mine.leading
