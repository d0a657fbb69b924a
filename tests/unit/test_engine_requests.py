"""What an operation asks of the store: the same whatever the number of blocks (design §6, ruling 30)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from calico_ipam.datastore.api import Create
from calico_ipam.engine.client import IPAM
from calico_ipam.model.addresses import blocks_in, parse_address, parse_network
from calico_ipam.model.affinity import HOST, Affinity, BlockOwner
from calico_ipam.model.block import Block, ReleaseOption
from calico_ipam.model.keys import AffinityKey, BlockKey
from tests.cluster import Cluster, cluster

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
