"""Kubernetes Events: few, counted, and never in the way (gc §18.4)."""

from __future__ import annotations

from typing import Any

from calico_gc.events import MOST_PER_MINUTE, Events, Pace

from calico_ipam.errors import StoreUnavailable, Unauthorized
from tests.gc_world import GcClock


class FakeApi:
    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.written: list[Any] = []

    def call(self, request: Any, deadline: Any) -> dict[str, Any]:
        if self.errors:
            raise self.errors.pop(0)
        self.written.append(request)
        return {}


def told(api: FakeApi, *items: tuple[str, str, str], clock: GcClock | None = None) -> None:
    events = Events(api, clock or GcClock(), "me")  # type: ignore[arg-type]  # a fake in its place
    events.start()
    for item in items:
        events(*item)
    events.stop()


def test_an_event_about_a_node() -> None:
    api = FakeApi()
    told(api, ("IPLeakStuck", "n1", "text"))
    (request,) = api.written
    assert request.body["involvedObject"] == {"kind": "Node", "apiVersion": "v1", "name": "n1", "uid": "n1"}
    assert (request.body["reason"], request.body["type"], request.body["message"]) == ("IPLeakStuck", "Warning", "text")
    assert request.body["source"] == {"component": "calico-ipam-gc"}


def test_the_same_again_within_five_minutes_is_one() -> None:
    api = FakeApi()
    told(api, *[("IPLeakReclaimed", "n1", f"{n}") for n in range(10)])
    assert len(api.written) == 1


def test_the_same_later_counts_up() -> None:
    api, clock = FakeApi(), GcClock()
    events = Events(api, clock, "me")  # type: ignore[arg-type]  # a fake in its place
    events._tell("IPLeakReclaimed", "n1", "first")
    events._tell("IPLeakReclaimed", "n1", "unheard")
    clock.advance(301)
    events._tell("IPLeakReclaimed", "n1", "second")
    first, second = api.written
    assert (first.method, second.method) == ("POST", "PATCH")
    assert second.body["count"] == 3
    assert second.body["message"] == "second"


def test_a_flood_is_cut() -> None:
    pace = Pace()
    allowed = sum(pace.allows(("reason", f"n{n}"), 0.0) for n in range(100))
    assert (allowed, pace.dropped) == (MOST_PER_MINUTE, 100 - MOST_PER_MINUTE)
    assert pace.allows(("reason", "later"), 61.0)


def test_a_server_that_is_away_costs_only_the_event() -> None:
    api = FakeApi(StoreUnavailable("away"))
    told(api, ("a", "n1", ""), ("b", "n1", ""))
    assert [request.body["reason"] for request in api.written] == ["b"]


def test_a_server_that_refuses_is_left_alone() -> None:
    api = FakeApi(Unauthorized("events is forbidden"))
    told(api, ("a", "n1", ""), ("b", "n1", ""))
    assert api.written == []
