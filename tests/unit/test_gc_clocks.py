"""Clocks that jump, forward and back and by hours: grace periods, cooldowns, leases (gc §5, §9, §18.2, §18.6)."""

from __future__ import annotations

import pytest
from calico_gc.decide import Rules
from calico_gc.handles import ORPHAN
from calico_gc.leader import Election, Leases
from calico_gc.options import HandleOptions, Options
from calico_gc.suspicion import Moment
from calico_gc.timing import Jumps

from calico_ipam.model.timestamps import SECOND
from tests.gc_lease import FakeApi
from tests.gc_things import add_block, add_to_handle, cooldown, has_handle, holders, pod_attrs, rows, running_pod
from tests.gc_world import GcClock, World

HOUR = 3600.0
JUMPS = (HOUR * 6, -HOUR * 6, 120.0, -120.0)
GRACE = 900.0
CIDR = "10.0.0.0/29"


def world_of() -> World:
    rules = Rules(leak_grace=GRACE)
    world = World(options=Options(rules=rules, handles=HandleOptions(grace=GRACE, rate=0.0)))
    world.node("n1")
    return world


def jump(world: World, seconds: float) -> None:
    """Somebody sets the clock of the machine. The monotonic clock goes on as it was."""
    world.clock.wall += round(seconds * SECOND)


@pytest.mark.parametrize("seconds", JUMPS)
def test_a_grace_period_is_as_long_as_it_was(seconds: float) -> None:
    world = world_of()
    add_block(world, CIDR, "n1", {1: ("h.1", pod_attrs("n1", "p"))})
    world.start()
    world.run(60)
    jump(world, seconds)
    world.controller.tick()
    world.settle()
    world.run(GRACE - 61)
    assert holders(world, CIDR) == {1: "h.1"}, "released before its grace period was over"
    world.run(GRACE)
    assert holders(world, CIDR) == {}


@pytest.mark.parametrize("seconds", JUMPS)
def test_an_empty_block_stays_as_long_as_it_would(seconds: float) -> None:
    world = world_of()
    running_pod(world, "p", "n1", "10.0.0.1")
    add_block(world, CIDR, "n1", {1: ("h.1", pod_attrs("n1", "p"))})
    add_block(world, "10.0.0.8/29", "n1")
    world.start()
    jump(world, seconds)
    world.run(GRACE - 1)
    assert len(rows(world)) == 2
    world.run(GRACE)
    assert rows(world) == {("n1", CIDR)}


@pytest.mark.parametrize("seconds", JUMPS)
def test_a_handle_is_observed_as_long_as_it_would(seconds: float) -> None:
    world = world_of()
    add_to_handle(world, "orphan", CIDR)
    world.start()
    jump(world, seconds)
    world.run(GRACE - 1)
    assert world.controller.handles.records["orphan"].judged.kind == ORPHAN
    assert has_handle(world, "orphan")
    world.run(GRACE)
    assert not has_handle(world, "orphan")


def cooling(world: World, ago: float) -> None:
    cooldown(world, 300)
    running_pod(world, "p", "n1", "10.0.0.1")
    add_block(world, CIDR, "n1", {1: ("h.1", pod_attrs("n1", "p"))}, cooling={2: ago})


def still_cooling(world: World) -> bool:
    return CIDR in world.state.cold


@pytest.mark.parametrize("seconds", [HOUR * 6, 600.0])
def test_a_clock_set_forward_ends_no_cooldown(seconds: float, caplog: pytest.LogCaptureFixture) -> None:
    """Else an address that left a moment ago would be given away while others still talk to it."""
    world = world_of()
    cooling(world, 10)
    world.start()
    jump(world, seconds)
    world.controller.tick()
    world.settle()
    assert still_cooling(world)
    assert f"clock was set by {seconds:+.0f} s" in caplog.text
    world.run(299)
    assert still_cooling(world)
    world.run(2)
    assert not still_cooling(world), "a whole cooldown later it is over in any case"


def test_a_clock_set_back_makes_a_cooldown_longer_and_not_endless() -> None:
    world = world_of()
    cooling(world, 10)
    world.start()
    jump(world, -HOUR)
    world.run(HOUR + 280)
    assert still_cooling(world)
    world.run(20)
    assert not still_cooling(world)


def test_without_a_jump_a_cooldown_ends_on_time() -> None:
    world = world_of()
    cooling(world, 10)
    world.start()
    world.run(289)
    assert still_cooling(world)
    world.run(2)
    assert not still_cooling(world)


def test_what_counts_as_a_jump() -> None:
    jumps, wall = Jumps(), 10**18
    assert jumps.jumped(Moment(0.0, wall)) == 0.0
    assert jumps.jumped(Moment(600.0, wall + 604 * SECOND)) == 0.0, "clocks are never quite alike"
    assert jumps.settled_at(300.0) == float("-inf")
    assert jumps.jumped(Moment(600.0, wall + 504 * SECOND)) == pytest.approx(-100.0)
    assert jumps.jumped(Moment(610.0, wall + 514 * SECOND)) == 0.0
    assert jumps.settled_at(300.0) == 900.0


@pytest.mark.parametrize("seconds", JUMPS)
def test_a_lease_is_neither_lost_nor_stolen(seconds: float) -> None:
    api, mine, theirs = FakeApi(), GcClock(), GcClock()
    leases = Leases(api, "kube-system")  # type: ignore[arg-type]  # a fake in its place
    leader, other = Election(leases, "a", mine), Election(leases, "b", theirs)
    leader.step()
    other.step()
    for turn in range(20):
        if turn % 5 == 2:
            mine.wall += round(seconds * SECOND)
        if turn % 5 == 4:
            theirs.wall += round(seconds * SECOND)
        mine.advance(2)
        theirs.advance(2)
        leader.step()
        other.step()
        leader.check()
        assert (leader.leading, other.leading) == (True, False)


@pytest.mark.parametrize("declared", [1, -5, 0, True, "15", None, 10**9])
def test_a_lease_that_declares_an_odd_duration_is_not_taken_from_the_living(declared: object) -> None:
    """One second would let another in between two renewals; a thousand years would keep everybody out."""
    api, clock = FakeApi(), GcClock()
    leases = Leases(api, "kube-system")  # type: ignore[arg-type]  # a fake in its place
    leader, other = Election(leases, "a", clock), Election(leases, "b", clock)
    leader.step()
    for _ in range(10):
        clock.advance(2)
        leader.step()
        assert api.lease is not None
        api.lease["spec"]["leaseDurationSeconds"] = declared
        other.step()
        assert not other.leading
    for _ in range(200):
        clock.advance(2)
        other.step()
    assert other.leading
