"""How full pools and blocks are (ipam-library §17, §24.2): the specification's tables, and what ours adds (L19)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from calico_ipam.engine.utilization import PoolUtilization, Utilization
from calico_ipam.model.addresses import parse_address
from calico_ipam.model.block import ReleaseOption
from tests.cluster import Cluster, cluster


@pytest.fixture
def world() -> Iterator[Cluster]:
    with cluster() as made:
        made.nodes("node-1")
        yield made


def counts(pool: PoolUtilization) -> tuple[int, int, int, int]:
    return pool.capacity, pool.in_use, pool.reserved, pool.available


def usage(world: Cluster, *names: str) -> Utilization:
    return world.ipam.get_utilization(names)


@pytest.mark.parametrize(
    ("reserved", "pool", "block"),
    [
        (["10.0.0.32/30"], (256, 1, 4, 251), (64, 1, 4, 59)),
        (["10.0.0.128/25"], (256, 1, 128, 127), (64, 1, 0, 63)),
        (["10.0.0.5/32"], (256, 1, 1, 255), (64, 1, 1, 63)),
        (["10.0.0.0/25", "10.0.0.5/32", "10.0.0.64/26"], (256, 1, 128, 128), (64, 1, 64, 0)),
        ([" 10.0.0.32/30 ", "", "rubbish", "10.0.0.0/33"], (256, 1, 4, 251), (64, 1, 4, 59)),
        ([], (256, 1, 0, 255), (64, 1, 0, 63)),
    ],
)
def test_one_block_and_reservations(
    world: Cluster, reserved: list[str], pool: tuple[int, ...], block: tuple[int, ...]
) -> None:
    world.pool("pool-1", "10.0.0.0/24", 26)
    world.block("10.0.0.0/26", owner="node-1")
    world.ipam.assign_ip(parse_address("10.0.0.5"), handle="h", hostname="node-1")
    world.reserve(*reserved)
    found = usage(world, "pool-1").pools[0]
    assert counts(found) == pool
    (one,) = found.blocks
    assert (one.capacity, one.in_use, one.reserved, one.available) == block
    assert one.affinity == "host:node-1"


@pytest.mark.parametrize(
    ("reserved", "blocks", "expected"),
    [
        (["10.0.0.0/16"], [], (256, 0, 256, 0)),
        (["192.168.0.0/16", "fd00::/64"], [], (256, 0, 0, 256)),
        ([], ["10.0.0.0/26", "10.0.0.64/26"], (256, 0, 0, 256)),
        (["10.0.0.32/30"], ["10.0.0.0/26"], (256, 0, 4, 252)),
        (["10.0.0.128/25"], ["10.0.0.0/26"], (256, 0, 128, 128)),
    ],
)
def test_pool_space(world: Cluster, reserved: list[str], blocks: list[str], expected: tuple[int, ...]) -> None:
    world.pool("pool-1", "10.0.0.0/24", 26)
    world.reserve(*reserved)
    for cidr in blocks:
        world.block(cidr, owner="node-1")
    assert counts(usage(world).pools[0]) == expected


def test_l19_ipv6_pools_are_counted_exactly(world: Cluster) -> None:
    """Upstream saturates at 2^63-1 and wraps to negative numbers as soon as there is a block (P36)."""
    world.pool("huge", "fd00::/48")
    world.pool("all", "fc00::/8")
    world.reserve("fd00::/64")
    world.auto(1, version=6, host="node-1", ipv6_pools=())
    everything = {pool.name: pool for pool in usage(world).pools}
    total = sum(pool.in_use for pool in everything.values())
    assert total == 1
    for name, length in (("huge", 48), ("all", 8)):
        pool = everything[name]
        assert pool.capacity == 1 << (128 - length)
        assert pool.available == pool.capacity - pool.in_use - pool.reserved
    assert everything["huge"].reserved == 1 << 64


def test_l19_cooling_addresses_are_in_use_and_counted_apart(world: Cluster) -> None:
    world.pool("pool-1", "10.0.0.0/24", 26)
    world.configure(cooldown_seconds=60)
    first, second, _ = world.auto(3, handle="h")
    world.ipam.release_ips([ReleaseOption(parse_address(a.partition("/")[0])) for a in (first, second)])
    pool = usage(world).pools[0]
    assert (pool.in_use, pool.cooling, pool.available) == (3, 2, 253)
    assert (pool.blocks[0].in_use, pool.blocks[0].cooling) == (3, 2)


def test_l19_blocks_in_no_pool(world: Cluster) -> None:
    world.pool("pool-1", "10.0.0.0/24", 26)
    assert [pool.orphans for pool in usage(world).pools] == [False, True]
    world.block("10.9.0.0/26", owner="node-1")
    world.block("fd00::/122", owner="node-1")
    found = usage(world)
    assert [(p.name, p.cidr_text, len(p.blocks)) for p in found.pools[1:]] == [
        ("orphaned allocation blocks", "0.0.0.0/0", 1),
        ("orphaned allocation blocks", "::/0", 1),
    ]
    assert [counts(pool) for pool in found.pools[1:]] == [(0, 0, 0, 0)] * 2
    assert [str(block.cidr) for block in found.orphans] == ["10.9.0.0/26", "fd00::/122"]


def test_a_block_goes_to_the_first_pool_it_overlaps(world: Cluster) -> None:
    world.pool("b-pool", "10.0.0.0/24", 26)
    world.pool("a-pool", "10.0.0.0/25", 26)
    world.block("10.0.0.0/26", owner="node-1")
    world.block("10.0.0.192/26", owner="node-1")
    homes = {pool.name: [str(block.cidr) for block in pool.blocks] for pool in usage(world).pools if not pool.orphans}
    assert homes == {"a-pool": ["10.0.0.0/26"], "b-pool": ["10.0.0.192/26"]}


def test_l19_pools_by_name(world: Cluster) -> None:
    world.pool("pool-1", "10.0.0.0/24")
    world.pool("pool-2", "10.1.0.5/24")
    world.block("10.9.0.0/26", owner="node-1")
    found = usage(world, "pool-1", "10.1.0.5/24", "nope")
    assert [pool.name for pool in found.pools] == ["pool-1", "pool-2"]
    assert found.unknown == ("nope",)
    assert usage(world).unknown == ()


def test_disabled_pools_count_and_unreadable_ones_are_named(world: Cluster) -> None:
    world.pool("off", "10.0.0.0/24", disabled=True)
    world.pool("bad", "rubbish")
    found = usage(world)
    assert [pool.name for pool in found.pools if not pool.orphans] == ["off"]
    assert [name for name, _ in found.unreadable] == ["bad"]
    assert "rubbish" in found.unreadable[0][1]


def test_a_block_that_cannot_be_read_is_full(world: Cluster) -> None:
    """Nobody knows who holds its addresses, so none of them is free."""
    from calico_ipam.datastore.documents import DocumentStore, RawWrite

    world.pool("pool-1", "10.0.0.0/24", 26)
    assert isinstance(world.store.inner, DocumentStore)
    path = "/calico/ipam/v2/assignment/ipv4/block/10.0.0.64-26"
    world.store.inner._raw_commit((RawWrite("create", path, "{broken"),))
    pool = usage(world).pools[0]
    assert counts(pool) == (256, 64, 0, 192)
    assert pool.blocks[0].problem


def test_one_read_whatever_the_number_of_blocks(world: Cluster) -> None:
    world.pool("pool-1", "10.0.0.0/16", 26)
    for third in range(20):
        world.block(f"10.0.{third}.0/26", owner="node-1")
    world.store.reset()
    usage(world)
    assert dict(world.store.asked) == {"read": 1}
