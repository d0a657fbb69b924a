"""The law: whatever happens in a cluster, and whatever fails, an address of a pod that exists is never released.

A small cluster lives at random: pods come and go with and without their DEL, are made anew under their names, nodes go
and come back, watches lag, reads fail, the datastore is locked, leadership comes and goes, clocks jump. A judge beside
the collector knows which container each pod really has. In the end everything dead is free.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from calico_gc.decide import Rules
from calico_gc.gate import NotAllowed
from calico_gc.options import HandleOptions, Options

from calico_ipam.datastore.api import Delete, Entry, Update, Write
from calico_ipam.model.block import Attribute, Block
from calico_ipam.model.keys import BlockKey
from calico_ipam.model.timestamps import SECOND
from tests.gc_things import add_block, add_to_handle, calico_node, pod_attrs, running_pod, stored_block
from tests.gc_world import World

GRACE = 60.0
NODES = ("n1", "n2", "n3")
BLOCKS = {node: f"10.0.{number}.0/28" for number, node in enumerate(NODES)}
PODS = tuple(f"p{number}" for number in range(8))
STEPS = 60


class Life:
    """The cluster, and what is really so in it."""

    def __init__(self, seed: int, *, kubernetes: bool, nameless: bool) -> None:
        self.chance = random.Random(seed)
        self.world = World(
            kubernetes=kubernetes,
            options=Options(
                rules=Rules(leak_grace=GRACE, nameless=nameless), handles=HandleOptions(grace=300.0, rate=0.0)
            ),
        )
        self.kubernetes = kubernetes
        self.nameless = nameless  #: some addresses have no handle, or no node
        self.running: dict[str, tuple[str, str, str]] = {}  #: pod -> (handle, node, address)
        self.containers = 0
        self.ours = False  #: a write of the cluster's, not of the collector
        self._commit = self.world.store.commit
        self.world.store.commit = self._judged  # type: ignore[method-assign]  # the judge stands before the store
        self.cluster(self._prepare)
        self.world.start()
        self.world.check = lambda: None  # type: ignore[method-assign]  # maps are judged elsewhere, after every event

    def cluster(self, act: Callable[[], object]) -> None:
        """Do something that is not the collector's doing."""
        self.ours = True
        try:
            act()
        finally:
            self.ours = False

    def _prepare(self) -> None:
        for node in NODES:
            self.world.node(node)
            if not self.kubernetes:
                calico_node(self.world, node, node)
            add_block(self.world, BLOCKS[node], node)

    def _judged(self, *writes: Write) -> Sequence[Entry]:
        if not self.ours:
            alive = {address for _, _, address in self.running.values()}
            for write in writes:
                if isinstance(write, Update | Delete) and isinstance(write.key, BlockKey):
                    after = write.value if isinstance(write, Update) else None
                    lost = held(write.entry.value) - (held(after) if isinstance(after, Block) else set())
                    assert not lost & alive, f"released what lives: {lost & alive}"
        return self._commit(*writes)

    # --- what happens ----------------------------------------------------------------------------------------

    def add(self) -> None:
        """A pod gets a new container, the old one of its name is forgotten or was removed."""
        name, node = self.chance.choice(PODS), self.chance.choice(NODES)
        cidr = BLOCKS[self.chance.choice(NODES)]  # borrowed, often
        block = stored_block(self.world, cidr)
        if block is None:
            add_block(self.world, cidr, node)
            block = stored_block(self.world, cidr)
            assert block is not None
        free = [ordinal for ordinal, index in enumerate(block.allocations) if index is None]
        if not free:
            return
        self.containers += 1
        handle, ordinal = f"net.{self.containers:04}", self.chance.choice(free)
        attrs = pod_attrs(node, name)
        if self.nameless and self.chance.random() < 0.5:
            handle = self.chance.choice(("", handle))
            attrs = {key: value for key, value in attrs.items() if key != "node" or self.chance.random() < 0.5}
        entry = self.world.store.get(BlockKey(block.cidr))
        slots = list(block.allocations)
        slots[ordinal] = len(block.attributes)
        self.world.store.commit(
            Update(
                entry,
                replace(
                    block,
                    allocations=tuple(slots),
                    unallocated=tuple(o for o in block.unallocated if o != ordinal),
                    attributes=(*block.attributes, Attribute(handle or None, attrs)),
                    sequence_for={**block.sequence_for, ordinal: block.sequence_number},
                ).bumped(),
            )
        )
        if handle:
            add_to_handle(self.world, handle, cidr)
        self.running[name] = handle, node, str(block.address(ordinal))
        running_pod(self.world, name, node)

    def report(self) -> None:
        """A kubelet says which address a pod has; the noted node may be wrong from now on."""
        for name, (_, node, address) in self.running.items():
            if self.chance.random() < 0.5:
                running_pod(self.world, name, self.chance.choice((node, node, *NODES)), address)

    def remove(self) -> None:
        """A pod goes; its DEL never runs. The collector may not be told."""
        if self.running:
            name = self.chance.choice(list(self.running))
            del self.running[name]
            self.world.no_pod("default", name, quietly=self.chance.random() < 0.3)

    def hide(self) -> None:
        """A watch is late, or lies: a pod that exists is not in the cache."""
        if self.running:
            self.world.state.drop_pod(("default", self.chance.choice(list(self.running))))

    def node_goes(self) -> None:
        self.world.no_node(self.chance.choice(NODES))

    def node_comes(self) -> None:
        self.world.node(self.chance.choice(NODES))

    def reads_fail(self) -> None:
        self.world.kube.failing = {("default", self.chance.choice(PODS)), self.chance.choice(NODES)}

    def reads_work(self) -> None:
        self.world.kube.failing = set()

    def lock(self) -> None:
        self.world.state.ready = self.chance.random() < 0.7

    def writes_are_stopped(self) -> None:
        left = self.chance.randrange(4)

        def permit() -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise NotAllowed("not the leader")

        self.world.permit = permit

    def writes_go_on(self) -> None:
        self.world.permit = lambda: None

    def leadership(self) -> None:
        self.world.controller.step_down()
        self.world.controller.active = self.world.state.full_scan = True

    def clock_jumps(self) -> None:
        self.world.clock.wall += self.chance.choice((-6, 6)) * 3600 * SECOND

    def step(self) -> None:
        often = (self.add, self.add, self.report, self.remove, self.remove, self.hide)
        seldom = (self.node_goes, self.node_comes, self.reads_fail, self.reads_work, self.lock, self.writes_are_stopped)
        rare = (self.writes_go_on, self.leadership, self.clock_jumps)
        self.cluster(self.chance.choice((*often, *often, *seldom, *rare)))
        self.world.settle()
        self.world.run(self.chance.choice((0.5, 5.0, GRACE / 2, GRACE)))

    def calm(self) -> None:
        """Everything works again, everything is told, everybody has reported."""
        self.cluster(self.reads_work)
        self.writes_go_on()
        self.world.state.ready = True
        for node in NODES:
            self.cluster(lambda node=node: self.world.node(node))  # type: ignore[misc]  # each its own
        for name, (_, node, address) in self.running.items():
            self.cluster(lambda n=name, m=node, a=address: running_pod(self.world, n, m, a))  # type: ignore[misc]  # the same
        self.world.settle()
        self.world.run(20 * GRACE)


def held(block: Any) -> set[str]:
    return {str(block.address(ordinal)) for ordinal, attribute in block.taken() if not attribute.cold}


@pytest.mark.parametrize("nameless", [False, True], ids=["named", "nameless"])
@pytest.mark.parametrize("kubernetes", [True, False], ids=["kubernetes", "etcd"])
@pytest.mark.parametrize("seed", range(2))
def test_nothing_that_lives_is_released_and_all_that_is_dead(seed: int, kubernetes: bool, nameless: bool) -> None:
    life = Life(seed, kubernetes=kubernetes, nameless=nameless)
    for _ in range(STEPS):
        life.step()
    life.calm()
    kept: set[str] = set()
    for cidr in BLOCKS.values():
        kept |= held(block) if (block := stored_block(life.world, cidr)) is not None else set()
    assert kept == {address for _, _, address in life.running.values()}
    assert life.containers > 5
