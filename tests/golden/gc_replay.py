"""Replays recorded collector cases under an injected clock, on a store in memory (ruling 36)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from calico_gc.decide import Rules
from calico_gc.options import Options
from calico_gc.upstream_metrics import lines
from calico_gc.view import view_of

from calico_ipam.datastore.api import Create, Delete, Update
from calico_ipam.errors import NotFound
from calico_ipam.model.block import Block
from calico_ipam.model.keys import Affinities, AffinityKey, BlockKey, Blocks, HandleKey, Handles, Key, Resources
from tests.gc_world import Observed, World
from tests.golden.gc_recording import Case, Thing

#: seconds that are lived through in each phase at least; upstream was watched until nothing had changed for three
LONG_ENOUGH = 12.0
UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0}
State = dict[Key, Any]


def seconds_of(text: str | None) -> float | None:
    """Return the seconds of a Go duration such as 15m0s."""
    if text is None:
        return None
    total, number = 0.0, ""
    for character in text:
        if character in UNITS:
            total, number = total + float(number) * UNITS[character], ""
        else:
            number += character
    return total


@dataclass
class Played:
    """A case after it was replayed: what was stored before and after each phase, and what was written."""

    case: Case
    before: State
    after: list[State] = field(default_factory=list)
    metrics: list[list[str] | None] = field(default_factory=list)
    writes: list[tuple[str, Any]] = field(default_factory=list)
    resources: dict[Key, Any] = field(default_factory=dict)  #: Calico's nodes and endpoints at the end


def options_of(case: Case) -> Options:
    etcd = not case.kubernetes
    return Options(rules=Rules(leak_grace=seconds_of(case.grace)), node_deletion=etcd, label_sync=etcd)


def play(case: Case) -> Played:
    world = World(kubernetes=case.kubernetes, options=options_of(case))
    for thing in case.before:
        put(world, thing, quietly=True)
    assert isinstance(world.store, Observed)
    played = Played(case, stored(world))
    world.store.writes.clear()
    for number, phase in enumerate(case.phases):
        if number == 0:
            world.start()
        for thing in phase.events:
            put(world, thing)
        world.settle()
        world.run(max(LONG_ENOUGH, case.seconds))
        played.after.append(stored(world))
        played.metrics.append(list(lines(view_of(world.controller))))
    played.writes = list(world.store.writes)
    if not case.kubernetes:
        for kind in ("Node", "WorkloadEndpoint"):
            played.resources |= {entry.key: entry.value for entry in world.store.list(Resources(kind))}
    return played


def put(world: World, thing: Thing, *, quietly: bool = False) -> None:
    """Make the world as a recording says; ``quietly``: before the collector looks."""
    if thing.kind == "Pod":
        _pod(world, thing, quietly=quietly)
    elif thing.kind == "Node":
        if thing.raw is None:
            world.no_node(thing.key)
        elif quietly:
            world.kube.nodes[thing.key] = thing.raw
        else:
            world.node(thing.key, (thing.raw["metadata"].get("labels")))
    else:
        _store(world, thing)


def _pod(world: World, thing: Thing, *, quietly: bool) -> None:
    namespace, name = thing.key
    if thing.raw is not None:
        document = {**thing.raw, "metadata": {"namespace": namespace, **thing.raw["metadata"]}}
        if quietly:
            world.kube.pods[thing.key] = document
        else:
            world.pod(document)
        return
    document = dict(world.kube.pods[thing.key])
    if document["metadata"].get("finalizers"):
        # The API server keeps it, marked as going, until somebody takes the finalizers off.
        metadata = {**document["metadata"], "deletionTimestamp": "2026-08-22T10:00:00Z"}
        world.pod({**document, "metadata": metadata})
    else:
        world.no_pod(namespace, name)


def _store(world: World, thing: Thing) -> None:
    try:
        entry = world.store.get(thing.key)
    except NotFound:
        if thing.value is not None:
            world.store.commit(Create(thing.key, thing.value))
        return
    world.store.commit(Delete(entry) if thing.value is None else Update(entry, thing.value))


def stored(world: World) -> State:
    """Return all blocks, affinity rows and handles."""
    found = {}
    for scope in (Blocks(), Affinities(), Handles()):
        listing = world.store.list(scope)
        assert not listing.damaged, listing.damaged
        found.update({entry.key: entry.value for entry in listing if not entry.value.deleted})
    return found


def comparable(state: Mapping[Key, Any]) -> State:
    """Return a state without times that differ from run to run, and without what only one backend stores."""
    return dict(_comparable(state))


def _comparable(state: Mapping[Key, Any]) -> Iterator[tuple[Key, Any]]:
    for key, value in state.items():
        if isinstance(value, Block):
            attributes = tuple(replace(a, released_at=0) if a.cold else a for a in value.attributes)
            yield key, replace(value, attributes=attributes, extra={})
        elif isinstance(key, BlockKey | AffinityKey | HandleKey):
            yield key, replace(value, extra={})


def differences(expected: Mapping[Key, Any], ours: Mapping[Key, Any]) -> list[str]:
    found = []
    for key in sorted({*expected, *ours}, key=str):
        if key not in ours:
            found.append(f"{key}: must be stored")
        elif key not in expected:
            found.append(f"{key}: must not be stored")
        elif expected[key] != ours[key]:
            found.append(f"{key}: expected {expected[key]}, is {ours[key]}")
    return found
