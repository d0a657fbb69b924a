"""A process asks again for the blocks it used last, on a guess: it saves a read; an outdated guess harms nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from calico_ipam.datastore.api import Capabilities, Delete, Entry, Snapshot
from calico_ipam.engine.client import IPAM
from calico_ipam.model.addresses import parse_network
from calico_ipam.model.affinity import HOST, BlockOwner
from calico_ipam.model.keys import Affinities, AffinityKey, BlockKey, Key, Scope
from tests.cluster import Cluster, CountingStore, cluster
from tests.invariants import violations

FIRST = parse_network("10.0.0.0/26")


class SideBySide(CountingStore):
    """A store like the Kubernetes API: a read is many requests. Blocks are answered first; then ``meanwhile``."""

    meanwhile: Callable[[], object] | None = None

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(atomic=False, snapshot_reads=False)

    def read(self, *wanted: Key | Scope) -> Snapshot:
        blocks = [item for item in wanted if isinstance(item, BlockKey)]
        found = super().read(*blocks)
        if self.meanwhile is not None and len(blocks) < len(wanted):
            happens, self.meanwhile = self.meanwhile, None
            happens()
        return found.with_more(super().read(*(item for item in wanted if item not in blocks)))


@pytest.fixture
def world() -> Iterator[Cluster]:
    with cluster() as made:
        made.nodes("node-1", "node-2")
        made.pool("pool-1", "10.0.0.0/26", 26)
        yield made


def side_by_side(world: Cluster) -> tuple[SideBySide, IPAM]:
    """Return a store that reads side by side, and a process on it that has used the only block before."""
    store = SideBySide(world.store.inner)
    ipam = IPAM(store, hostname="node-1", clock=world.clock)
    ipam.auto_assign(use="Workload", num4=1, handle="before")
    return store, ipam


def other(world: Cluster) -> IPAM:
    return IPAM(world.store.inner, hostname="node-1", clock=world.clock)


def held(world: Cluster) -> dict[str, int]:
    """Return how many addresses of its block each handle counts, which the block itself confirms."""
    return {name: sum(handle.counts().values()) for name, handle in world.handles().items()}


def test_a_block_that_got_an_address_meanwhile_is_read_again_before_its_handle_goes(world: Cluster) -> None:
    store, ipam = side_by_side(world)
    store.meanwhile = lambda: other(world).auto_assign(use="Workload", num4=1, handle="h")
    ipam.release_by_handle("h")
    assert held(world) == {"before": 1}
    assert violations(world.store.inner) == []


def test_a_block_that_changed_meanwhile_is_read_again_before_it_is_written(world: Cluster) -> None:
    store, ipam = side_by_side(world)
    store.meanwhile = lambda: other(world).auto_assign(use="Workload", num4=2, handle="h")
    got = ipam.auto_assign(use="Workload", num4=2, handle="g")
    assert got.ipv4 is not None
    assert len(got.ipv4.addresses) == 2
    assert held(world) == {"before": 1, "h": 2, "g": 2}
    assert violations(world.store.inner) == []


def test_a_row_is_not_dropped_for_a_block_that_was_read_before_it(world: Cluster) -> None:
    """The block is lost to node-2 and won back between the two answers: the row is right, the block is old."""
    store, ipam = side_by_side(world)
    ipam.release_by_handle("before")
    mine, theirs = BlockOwner(HOST, "node-1"), BlockOwner(HOST, "node-2")
    ipam.release_affinity(FIRST, mine, must_be_empty=True)
    ipam.claim_affinity(FIRST, theirs)

    def won_back() -> None:
        other(world).release_affinity(FIRST, theirs, must_be_empty=True)
        other(world).claim_affinity(FIRST, mine)
        rows.extend(store.inner.list(Affinities()))

    rows: list[Entry] = []
    store.meanwhile = won_back
    assert ipam.auto_assign(use="Workload", num4=1, handle="h").ipv4.addresses
    assert [row.key for row in rows] == [AffinityKey(mine, FIRST)]
    assert list(store.inner.list(Affinities())) == rows, "not even rewritten"
    assert violations(world.store.inner) == []


def test_a_familiar_block_that_is_gone_is_built_again(world: Cluster) -> None:
    ipam = world.ipam
    ipam.auto_assign(use="Workload", num4=1, handle="h", hostname="node-1")
    world.store.inner.commit(Delete(world.store.get(BlockKey(FIRST))))
    assert ipam.auto_assign(use="Workload", num4=1, handle="g", hostname="node-1").ipv4.addresses


def test_another_host_is_not_asked_for_the_blocks_of_the_last_one(world: Cluster) -> None:
    ipam = IPAM(world.store, clock=world.clock)
    ipam.auto_assign(use="Workload", num4=1, handle="h", hostname="node-1")
    world.store.reset()
    asked: list[Key | Scope] = []
    reads = world.store.inner.read

    def spy(*wanted: Key | Scope) -> Snapshot:
        asked.extend(wanted)
        return reads(*wanted)

    world.store.inner.read = spy  # type: ignore[method-assign]  # one test's spy
    ipam.auto_assign(use="Workload", num4=1, handle="g", hostname="node-2")
    assert BlockKey(FIRST) not in asked
