"""Replays recorded collector cases under an injected clock, on a store in memory (ruling 36)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from calico_gc import kcc
from calico_gc.facts import VirtualMachines, owned_by_machine
from calico_gc.main import LEVELS
from calico_gc.options import Options
from calico_gc.settings import Settings
from calico_gc.upstream_metrics import lines
from calico_gc.view import view_of

from calico_ipam.datastore.api import Create, Delete, Update
from calico_ipam.errors import NotFound
from calico_ipam.model.block import Block
from calico_ipam.model.keys import Affinities, AffinityKey, BlockKey, Blocks, HandleKey, Handles, Key, Resources
from tests.gc_world import Observed, World
from tests.golden.gc_recording import MACHINES, UNFOLLOWED, Case, Phase, Thing

#: kinds that go with a node where Calico's nodes are its own (gc §13)
RESOURCES = ("Node", "BGPPeer", "HostEndpoint", "FelixConfiguration", "BGPConfiguration")

#: upstream was watched until nothing had changed for so many seconds
QUIET = 3.0
#: what happens within seconds upstream must have had time for, since its program starts slowly
LONG_ENOUGH, SOON = 12.0, 2.0
State = dict[Key, Any]


@dataclass
class Played:
    """A case after it was replayed: what was stored before and after each phase, and what was written."""

    case: Case
    before: State
    after: list[State] = field(default_factory=list)
    metrics: list[list[str] | None] = field(default_factory=list)
    writes: list[tuple[str, Any]] = field(default_factory=list)
    resources: dict[Key, Any] = field(default_factory=dict)  #: Calico's own objects that are no IPAM data, at the end


def told_of(case: Case) -> kcc.Told:
    """Return what the stored configuration and the environment tell."""
    stored = [thing.value for thing in case.before if thing.key == kcc.KEY]
    return kcc.read(stored[-1] if stored else None, case.environ)


def options_of(case: Case, told: kcc.Told | None = None) -> Options:
    return Settings().options(told or told_of(case), etcd=not case.kubernetes)


def collects(case: Case) -> bool:
    """Tell whether the program of the recording starts, and has a collector in it (gc §1.2)."""
    named = case.environ.get("ENABLED_CONTROLLERS", "node").split(",")
    if (case.environ.get("LOG_LEVEL") or "info").lower() not in (*LEVELS, "error", "fatal", "panic"):
        return False
    return "node" in named and not kcc.misread(case.environ) and not kcc.unknown_controllers(case.environ)


def play(case: Case) -> Played:
    world = World(kubernetes=case.kubernetes, options=options_of(case))
    world.configured = lambda resource, _: world.set_options(options_of(case, kcc.read(resource, case.environ)))
    for thing in case.before:
        put(world, thing, quietly=True)
    assert isinstance(world.store, Observed)
    played = Played(case, stored(world))
    world.store.writes.clear()
    runs = collects(case)
    for number, phase in enumerate(case.phases):
        if number == 0 and runs:
            world.start()
        done = len(world.store.writes)
        for thing in phase.events:
            put(world, thing)
        del world.store.writes[done:]  # those were not the collector's
        if runs:
            world.settle()
            world.run(_duration(world, case, phase))
        played.after.append(stored(world))
        played.metrics.append(list(lines(view_of(world.controller))) if runs else None)
    played.writes = list(world.store.writes)
    for kind in (*RESOURCES, "WorkloadEndpoint") if not case.kubernetes else ():
        played.resources |= {entry.key: entry.value for entry in world.store.list(Resources(kind))}
    return played


def _duration(world: World, case: Case, phase: Phase) -> float:
    """Return for how many seconds a phase is lived through: as long as upstream was watched.

    With a short grace period everything has come to rest by then; with a longer one it matters when the watch ended.
    """
    watched = max(case.seconds, phase.last_change + QUIET)
    grace = world.controller.options.rules.leak_grace
    return max(watched, LONG_ENOUGH) if grace is None or grace <= SOON else watched


def put(world: World, thing: Thing, *, quietly: bool = False) -> None:
    """Make the world as a recording says; ``quietly``: before the collector looks."""
    if thing.kind == "Pod":
        _pod(world, thing, quietly=quietly)
    elif thing.kind == UNFOLLOWED:
        return
    elif thing.kind in MACHINES:
        _machine(world, thing)
    elif thing.kind == "Node":
        if thing.raw is None:
            world.no_node(thing.key)
        elif quietly:
            world.kube.nodes[thing.key] = thing.raw
        else:
            world.node(thing.key, (thing.raw["metadata"].get("labels")))
    else:
        _store(world, thing)


def _machine(world: World, thing: Thing) -> None:
    """KubeVirt is there as soon as a recording holds anything of it."""
    known = world.kube.machines or VirtualMachines()
    machines, instances = set(known.machines), dict(known.instances)
    if thing.kind == "VirtualMachine":
        (machines.discard if thing.raw is None else machines.add)(thing.key)
    elif thing.raw is None:
        instances.pop(thing.key, None)
    else:
        instances[thing.key] = owned_by_machine(thing.raw)
    world.kube.machines = world.state.machines = VirtualMachines(frozenset(machines), instances)


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
