"""What an operation asks of the store: the same whatever the number of blocks (design §6, ruling 30)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import pytest

from calico_ipam.datastore.api import Create, Datastore, Deadline, Entry, Loss, Write, losing, lost
from calico_ipam.datastore.passing import PassingStore
from calico_ipam.engine.client import IPAM
from calico_ipam.errors import AlreadyExists
from calico_ipam.model.addresses import blocks_in, parse_address, parse_network
from calico_ipam.model.affinity import HOST, Affinity, BlockOwner
from calico_ipam.model.block import Block, ReleaseOption
from calico_ipam.model.keys import AffinityKey, BlockKey, Blocks
from tests.cluster import Cluster, CountingStore, cluster
from tests.invariants import violations
from tests.sequential import SequentialStore

SIZES = [16, 1024]


@pytest.fixture(params=SIZES)
def busy(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """10.0.0.0/16 in /26 blocks, of which so many belong to other hosts and are in use."""
    with cluster() as made:
        made.nodes("node-1")
        made.pool("pool-1", "10.0.0.0/16", 26)
        writes = []
        for index, cidr in enumerate(blocks_in(parse_network("10.0.0.0/16"), 26)):
            if index < request.param and index % 1023 != 1022:
                owner = BlockOwner(HOST, f"worker-{index}")
                block = Block.new(cidr, now=made.clock.now() - 10**12, owner=owner)
                used, _ = block.assign(1, handle=None, attrs={})
                writes += [Create(BlockKey(cidr), used), Create(AffinityKey(owner, cidr), Affinity())]
        made.store.inner.commit(*writes)
        yield made


def asked(world: Cluster) -> dict[str, int]:
    counts = dict(world.store.asked)
    world.store.reset()
    return counts


def anew(world: Cluster) -> IPAM:
    """Return what a plugin call has: an IPAM that has done nothing yet."""
    return IPAM(world.store, clock=world.clock)


def test_first_address_of_a_host(busy: Cluster) -> None:
    busy.store.reset()
    busy.auto(handle="h")
    assert asked(busy) == {"read": 1, "list": 1, "commit": 2}


def test_further_addresses(busy: Cluster) -> None:
    busy.auto(handle="first")
    busy.store.reset()
    busy.auto(handle="h")
    assert busy.store.objects["Blocks"] == 0, "no list of blocks while an own block has room (ruling 15)"
    assert asked(busy) == {"read": 1, "commit": 1}, "the block that was used last is read along with the rest"


def test_further_addresses_from_another_process(busy: Cluster) -> None:
    busy.auto(handle="first")
    busy.store.reset()
    anew(busy).auto_assign(use="Workload", num4=1, handle="h", hostname="node-1")
    assert busy.store.objects["Blocks"] == 0, "no list of blocks while an own block has room (ruling 15)"
    assert asked(busy) == {"read": 2, "commit": 1}


def test_release_by_handle(busy: Cluster) -> None:
    busy.auto(handle="h")
    busy.store.reset()
    busy.ipam.release_by_handle("h")
    assert asked(busy) == {"read": 1, "commit": 1}


def test_release_by_handle_from_another_process(busy: Cluster) -> None:
    busy.auto(handle="h")
    busy.store.reset()
    anew(busy).release_by_handle("h")
    assert asked(busy) == {"read": 2, "commit": 1}


def test_release_by_address(busy: Cluster) -> None:
    got = parse_address(busy.auto(handle="h")[0].partition("/")[0])
    busy.store.reset()
    busy.ipam.release_ips([ReleaseOption(got, "h")])
    assert asked(busy) == {"read": 2, "commit": 1}


def test_assign_ip_in_an_own_block(busy: Cluster) -> None:
    got = parse_address(busy.auto(handle="h")[0].partition("/")[0])
    busy.store.reset()
    busy.ipam.assign_ip(got + 1, handle="g", hostname="node-1")
    assert asked(busy) == {"read": 2, "commit": 1}


def test_looking(busy: Cluster) -> None:
    got = parse_address(busy.auto(handle="h")[0].partition("/")[0])
    busy.store.reset()
    busy.ipam.ips_by_handle("h")
    assert sum(asked(busy).values()) <= 2
    busy.ipam.assignment_attributes(got)
    assert sum(asked(busy).values()) <= 2
    busy.ipam.get_config()
    assert asked(busy) in ({"read": 1}, {"get": 1})


def test_many_addresses_in_one_call_list_the_blocks_once(busy: Cluster) -> None:
    """Four blocks are claimed or borrowed from; the list of all blocks is read once."""
    busy.store.reset()
    busy.auto(200, handle="h")
    counts = Counter(asked(busy))
    assert counts["list"] == 1
    assert counts["commit"] <= 2 * 200


class QuickerStore(PassingStore):
    """A store in which somebody else claims each of the first places that are claimed, a moment before."""

    def __init__(self, inner: Datastore, left: int, world: Cluster) -> None:
        super().__init__(inner)
        self._left = left
        self._world = world

    def commit(self, *writes: Write) -> Sequence[Entry]:
        for write in writes:
            if self._left and isinstance(write, Create) and isinstance(write.key, BlockKey):
                self._left -= 1
                owner = BlockOwner(HOST, "quicker")
                block = Block.new(write.key.cidr, now=self._world.clock.now(), owner=owner)
                base = self._world.store.inner
                base.commit(Create(write.key, block), Create(AffinityKey(owner, write.key.cidr), Affinity()))
        return self.inner.commit(*writes)

    def within(self, deadline: Deadline | None) -> Datastore:
        return self


class AsKubernetes(SequentialStore):
    """Says of an object that exists no more than that."""

    def commit(self, *writes: Write) -> Sequence[Entry]:
        try:
            return super().commit(*writes)
        except AlreadyExists as error:
            loss = lost(error)
            assert loss is not None
            raise losing(error, Loss(loss.write, loss.applied)) from None


LOST = 3


@pytest.mark.parametrize(
    ("kind", "once", "each"),
    [
        # The answer to the lost commit shows whose block it is.
        (PassingStore, {"read": 1, "list": 1, "commit": 2}, {"commit": 1}),
        # Row and block are written one by one; the block is read, and the row goes again.
        (AsKubernetes, {"read": 1, "list": 1, "commit": 4}, {"commit": 3, "read": 1}),
    ],
)
def test_a_claim_that_is_lost(
    kind: Callable[[Datastore], Datastore], once: dict[str, int], each: dict[str, int]
) -> None:
    """Of hosts that look for a block at once most lose, some several times (limit L7)."""
    with cluster() as world:
        world.nodes("node-1", "quicker")
        world.pool("pool-1", "10.0.0.0/16", 26)
        store = CountingStore(QuickerStore(kind(world.store.inner), LOST, world))
        IPAM(store, clock=world.clock).auto_assign(use="Workload", num4=1, handle="h", hostname="node-1")
        assert store.asked == {name: once[name] + LOST * each.get(name, 0) for name in once}
        assert len(world.store.inner.list(Blocks())) == LOST + 1
        assert violations(world.store.inner) == []
