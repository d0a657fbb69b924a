"""The judge of the collector's maps sees every kind of break (gc §16); else long walks over events show nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from calico_gc.decide import Rules
from calico_gc.invariants import broken
from calico_gc.options import Options
from calico_gc.state import State

from tests.gc_things import add_block, calico_node, cooldown, pod_attrs, pool, running_pod
from tests.gc_world import World

USED, EMPTY, COLD = "10.0.0.0/29", "10.0.0.8/29", "10.0.0.16/29"
KEY = (USED, 1)


def state() -> State:
    """A state with something in every map."""
    world = World(kubernetes=False, options=Options(rules=Rules(leak_grace=60.0)))
    cooldown(world, 600)
    pool(world, "pool", "10.0.0.0/24")
    world.node("k1")
    calico_node(world, "n1", "k1")
    running_pod(world, "q", "k1", "10.0.0.2")
    held = {1: ("h.1", pod_attrs("n1", "p")), 2: ("h.2", pod_attrs("n1", "q"))}
    add_block(world, USED, "n1", held)
    add_block(world, EMPTY, "n1")
    add_block(world, COLD, "n1", cooling={1: 5.0})
    world.start()
    found = world.state
    assert not broken(found, world.clock.mono)
    assert found.suspects and found.empty_since and found.cold and found.calico_names
    return found


def confirm(found: State) -> None:
    found.confirmed[KEY] = None


def confirm_and_forget(found: State) -> None:
    found.suspects[KEY] = replace(found.suspects[KEY], confirmed=True)


def from_the_future(found: State) -> None:
    found.suspects[KEY] = replace(found.suspects[KEY], since=10.0**9)


BREAKS: dict[str, Callable[[State], object]] = {
    "1 empty is not a block": lambda s: s.empty.update({"10.9.0.0/29": "n1"}),
    "2 owned is not a block": lambda s: s.owned["n1"].add("10.9.0.0/29"),
    "3 by_node is not a block": lambda s: s.by_node["n1"].update({("10.9.0.0/29", 1): s.by_node["n1"][KEY]}),
    "4 cold is not a block": lambda s: s.cold.update({"10.9.0.0/29": 1}),
    "5 owned and owners differ": lambda s: s.owners.update({USED: "n2"}),
    "6 owners and owned differ": lambda s: s.owned["n1"].discard(USED),
    "6 no empty sets": lambda s: s.owned.update({"n2": set()}),
    "7 by_node holds another object": lambda s: s.by_node["n1"].update({KEY: replace(s.by_node["n1"][KEY])}),
    "9 by_handle lacks one": lambda s: s.by_handle.pop("h.1"),
    "9 by_handle is stale": lambda s: s.by_handle.update({"h.9": (KEY,)}),
    "9 by_handle has an empty set": lambda s: s.by_handle.update({"h.9": ()}),
    "10 confirmed is not flagged": confirm,
    "10 flagged is not confirmed": confirm_and_forget,
    "10 suspected is not tracked": lambda s: s.suspects.update({(USED, 7): s.suspects[KEY]}),
    "11 an allocation is missing under its node": lambda s: s.by_node["n1"].pop(KEY),
    "11 an allocation under another node": lambda s: s.by_node.update({"n2": {KEY: s.by_node["n1"][KEY]}}),
    "11 an empty map of a node": lambda s: s.by_node.update({"n2": {}}),
    "12 empty for another host": lambda s: s.empty.update({EMPTY: "n2"}),
    "12 empty and used": lambda s: s.empty.update({USED: "n1"}),
    "12 vacant and not empty": lambda s: s.empty.pop(EMPTY),
    "13 a timer of a block that is not empty": lambda s: s.empty_since.update({USED: 1.0}),
    "14 a block without a pool": lambda s: s.pools.of_block.pop(USED),
    "14 the pool of a block differs": lambda s: s.pools.of_block.update({USED: "no_ippool"}),
    "14 a pool without a set": lambda s: s.pools.blocks.pop("pool"),
    "14 a set without a pool": lambda s: s.pools.blocks.update({"other": set()}),
    "15 another earliest release": lambda s: s.cold.update({COLD: 1}),
    "15 a cold block is missing": lambda s: s.cold.pop(COLD),
    "16 suspected since the future": from_the_future,
    "17 a dirty node without a name": lambda s: s.dirty.update({"": None}),
    "names of nodes, stale": lambda s: s.calico_names["k1"].add("n9"),
    "names of nodes, missing": lambda s: s.calico_names.pop("k1"),
}


@pytest.mark.parametrize("kind", BREAKS)
def test_every_break_of_a_map_is_found(kind: str) -> None:
    found = state()
    BREAKS[kind](found)
    assert broken(found, 10.0**6)
