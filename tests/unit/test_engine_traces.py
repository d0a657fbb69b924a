"""The worked traces of ipam-library §22: what they return and what they leave stored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from calico_ipam.errors import (
    AddressInCooldown,
    AlreadyExists,
    BadSequenceNumber,
    BlockLimitReached,
    NoQualifiedPool,
    NotFound,
    RefusedError,
)
from calico_ipam.model.addresses import parse_address
from calico_ipam.model.block import ReleaseOption
from tests.cluster import START, Cluster, cluster, texts
from tests.invariants import violations


@pytest.fixture
def world() -> Iterator[Cluster]:
    with cluster() as made:
        made.nodes("node-1", "node-2", "host1", "host2", "host-a", "host-b")
        yield made
        assert list(violations(made.store.inner)) == []


@pytest.fixture
def usual(world: Cluster) -> Cluster:
    """10.0.0.0/24 in /26 blocks; node-1 begins at 10.0.0.128/26."""
    world.pool("pool-1", "10.0.0.0/24", 26)
    return world


FIRST = "10.0.0.128/26"


def test_t1_first_allocation_on_a_new_node(usual: Cluster) -> None:
    assert usual.auto(handle="h1") == [FIRST]
    assert usual.rows("node-1") == {FIRST: "confirmed"}
    assert usual.handle("h1") == {FIRST: 1}
    block = usual.stored_block(FIRST)
    assert block is not None
    assert block.affinity == "host:node-1"
    assert block.allocations == (0, *[None] * 63)
    assert block.unallocated == tuple(range(1, 64))
    assert [a.handle for a in block.attributes] == ["h1"]
    assert block.sequence_for == {0: START}
    assert block.sequence_number == START + 1


def test_t2_second_allocation(usual: Cluster) -> None:
    usual.auto(handle="h1")
    assert usual.auto(handle="h2") == ["10.0.0.129/26"]
    block = usual.stored_block(FIRST)
    assert block is not None
    assert block.allocations[:3] == (0, 1, None)
    assert block.sequence_for == {0: START, 1: START + 1}
    assert block.sequence_number == START + 2


@pytest.fixture
def four_small(world: Cluster) -> Cluster:
    """10.0.0.0/28 in /30 blocks, of which node-1 owns the full 10.0.0.8/30, where its walk begins."""
    world.pool("pool-1", "10.0.0.0/28", 30)
    assert world.auto(4, handle="full") == ["10.0.0.8/30", "10.0.0.9/30", "10.0.0.10/30", "10.0.0.11/30"]
    return world


def test_t3_own_block_full_then_a_new_one(four_small: Cluster) -> None:
    assert four_small.auto(handle="h") == ["10.0.0.12/30"]
    assert four_small.rows("node-1") == {"10.0.0.8/30": "confirmed", "10.0.0.12/30": "confirmed"}


@pytest.mark.parametrize("strict", [False, True])
def test_t4_at_the_block_limit(four_small: Cluster, strict: bool) -> None:
    four_small.configure(strict_affinity=strict)
    four_small.block("10.0.0.0/30", owner="node-2")
    before = four_small.blocks()
    with pytest.raises(BlockLimitReached) as caught:
        four_small.auto(handle="h", max_blocks_per_host=1)
    found = caught.value.partial.ipv4
    assert found.addresses == ()
    assert found.messages == ("Need to allocate an IPAM block but could not - limit of 1 blocks reached for this node",)
    assert str(caught.value) == "cannot allocate new block due to per host block limit"
    assert four_small.blocks() == before
    assert four_small.handle("h") is None


@pytest.fixture
def one_foreign_block(world: Cluster) -> Cluster:
    """10.0.0.0/28 is one block; host1 owns it and uses one address."""
    world.pool("pool-1", "10.0.0.0/28", 28)
    world.auto(host="host1", handle="h1")
    return world


def test_t5_strict_affinity_and_nothing_left(one_foreign_block: Cluster) -> None:
    one_foreign_block.configure(strict_affinity=True)
    before = one_foreign_block.blocks()
    found = one_foreign_block.ipam.auto_assign(use="Workload", num4=1, hostname="host2").ipv4
    assert found is not None
    assert found.shortfall == (
        "Assigned 0 out of 1 requested IPv4 addresses; No more free affine blocks and strict affinity enabled"
    )
    assert one_foreign_block.blocks() == before


def test_t6_borrow(one_foreign_block: Cluster) -> None:
    assert one_foreign_block.auto(host="host2", handle="h2") == ["10.0.0.1/28"]
    block = one_foreign_block.stored_block("10.0.0.0/28")
    assert block is not None
    assert block.affinity == "host:host1"
    assert one_foreign_block.handle("h2") == {"10.0.0.0/28": 1}
    assert one_foreign_block.rows("host2") == {}


def test_t7_reclaim_an_empty_block(world: Cluster) -> None:
    world.pool("pool-1", "10.0.0.0/26", 26)
    world.configure(strict_affinity=True)
    world.block("10.0.0.0/26", owner="host-a", age=59)
    assert world.auto(host="host-b") == []
    world.clock.advance(2)
    assert world.auto(host="host-b") == ["10.0.0.0/26"]
    assert world.rows("host-a") == {}
    assert world.rows("host-b") == {"10.0.0.0/26": "confirmed"}


def test_t7_a_young_block_is_borrowed_from_when_not_strict(world: Cluster) -> None:
    world.pool("pool-1", "10.0.0.0/26", 26)
    world.block("10.0.0.0/26", owner="host-a", age=59)
    assert world.auto(host="host-b") == ["10.0.0.0/26"]
    assert world.rows("host-a") == {"10.0.0.0/26": "confirmed"}
    assert world.rows("host-b") == {}


def test_t8_release_by_handle(usual: Cluster) -> None:
    usual.auto(handle="h1")
    usual.auto(handle="h2")
    usual.ipam.release_by_handle("h1")
    block = usual.stored_block(FIRST)
    assert block is not None
    assert block.allocations == (None, 0, *[None] * 62)
    assert [a.handle for a in block.attributes] == ["h2"]
    assert block.unallocated == (*range(2, 64), 0)
    assert block.sequence_for == {1: START + 1}
    assert block.sequence_number == START + 3
    assert usual.handle("h1") is None
    with pytest.raises(NotFound):
        usual.ipam.release_by_handle("h1")


def test_t9_release_with_cooldown(usual: Cluster) -> None:
    usual.configure(cooldown_seconds=30)
    usual.auto(handle="h1")
    usual.auto(handle="h2")
    usual.clock.advance(0.45)
    usual.ipam.release_by_handle("h1")
    block = usual.stored_block(FIRST)
    assert block is not None
    assert block.allocations[:2] == (1, 0)
    assert block.attributes[1].released_at == START // 10**9 * 10**9
    assert block.unallocated == tuple(range(2, 64))
    assert block.sequence_for == {0: START, 1: START + 1}
    assert usual.handle("h1") is None
    first = parse_address("10.0.0.128")
    usual.clock.advance(10)
    assert usual.auto() == ["10.0.0.130/26"]
    with pytest.raises(AddressInCooldown):
        usual.ipam.assignment_attributes(first)
    with pytest.raises(AlreadyExists):
        usual.ipam.assign_ip(first, hostname="node-1")
    usual.clock.advance(20)
    assert usual.auto() == ["10.0.0.131/26"]
    block = usual.stored_block(FIRST)
    assert block is not None
    assert block.allocations[0] is None
    assert block.unallocated[-1] == 0


def test_t10_fifo_reuse(world: Cluster) -> None:
    world.pool("pool-1", "10.0.0.0/30", 30)
    seen = []
    for _ in range(5):
        seen += world.auto(handle="h")
        world.ipam.release_by_handle("h")
    assert seen == ["10.0.0.0/30", "10.0.0.1/30", "10.0.0.2/30", "10.0.0.3/30", "10.0.0.0/30"]


def test_t11_dual_stack(usual: Cluster) -> None:
    usual.pool("pool-6", "fd00::/120", 122)
    assigned = usual.ipam.auto_assign(use="Workload", num4=1, num6=1, handle="h", hostname="node-1")
    four, six = assigned.addresses
    assert str(four) == FIRST
    assert usual.handle("h") == {FIRST: 1, str(six.block): 1}
    assert usual.rows("node-1") == {FIRST: "confirmed", str(six.block): "confirmed"}


def test_t11_ipv6_failing_keeps_ipv4_for_the_caller(usual: Cluster) -> None:
    with pytest.raises(NoQualifiedPool) as caught:
        usual.ipam.auto_assign(use="Workload", num4=1, num6=1, handle="h", hostname="node-1")
    partial = caught.value.partial
    assert [str(a) for a in partial.addresses] == [FIRST]
    assert partial.ipv6 is None
    assert usual.handle("h") == {FIRST: 1}


def test_t14_assign_ip_outside_pools(usual: Cluster) -> None:
    with pytest.raises(RefusedError) as caught:
        usual.ipam.assign_ip(parse_address("11.0.0.1"), hostname="node-1", handle="h")
    assert str(caught.value) == "The provided IP address is not in a configured pool\n"
    assert usual.blocks() == {}
    assert usual.handle("h") is None


def test_t15_assign_ip_into_a_new_block(usual: Cluster) -> None:
    usual.ipam.assign_ip(parse_address("10.0.0.5"), hostname="node-1", handle="h")
    block = usual.stored_block("10.0.0.0/26")
    assert block is not None
    assert block.allocations[5] == 0
    assert block.unallocated == (0, 1, 2, 3, 4, *range(6, 64))
    assert usual.rows("node-1") == {"10.0.0.0/26": "confirmed"}
    assert usual.handle("h") == {"10.0.0.0/26": 1}


def test_t16_release_with_a_wrong_sequence_number(usual: Cluster) -> None:
    usual.auto(handle="h1")
    usual.ipam.release_by_handle("h1")
    address = parse_address("10.0.0.128")
    usual.ipam.assign_ip(address, hostname="node-1", handle="h1")
    before = usual.blocks()
    with pytest.raises(BadSequenceNumber) as caught:
        usual.ipam.release_ips([ReleaseOption(address, "h1", START)])
    assert (caught.value.requested, caught.value.expected) == (START, START + 2)
    assert caught.value.partial.released == ()
    assert caught.value.partial.unallocated == ()
    assert usual.blocks() == before
    option = ReleaseOption(address, "h1", START + 2)
    assert usual.ipam.release_ips([option]).released == (option,)
    after = usual.stored_block(FIRST)
    assert after is not None
    assert after.sequence_number == before[FIRST].sequence_number + 1


def test_t17_handle_spanning_two_blocks(world: Cluster) -> None:
    world.pool("pool-1", "10.0.0.0/28", 30)
    assert len(world.auto(6, handle="h")) == 6
    assert world.handle("h") == {"10.0.0.8/30": 4, "10.0.0.12/30": 2}
    world.ipam.release_by_handle("h")
    assert world.handle("h") is None
    assert all(block.empty for block in world.blocks().values())


def test_t18_release_from_an_unowned_block(usual: Cluster) -> None:
    usual.auto(handle="h")
    usual.disown(FIRST)
    usual.ipam.release_by_handle("h")
    assert usual.blocks() == {}
    assert usual.handle("h") is None


def test_t18_with_cooldown_the_unowned_block_stays_while_it_is_cold(usual: Cluster) -> None:
    usual.configure(cooldown_seconds=30)
    usual.auto(handle="h")
    usual.disown(FIRST)
    usual.ipam.release_by_handle("h")
    block = usual.stored_block(FIRST)
    assert block is not None
    assert block.cooling == 1
    assert usual.handle("h") is None


@pytest.mark.parametrize("by", ["address", "handle"])
def test_t19_pool_stops_selecting_the_node(world: Cluster, by: str) -> None:
    world.pool("pool-1", "10.0.0.0/28", 30, nodeSelector='foo == "bar"')
    world.nodes("node-1", labels={"foo": "bar"})
    got = [parse_address(world.auto(handle=f"h{i}")[0].partition("/")[0]) for i in range(3)]
    world.pool("pool-1", "10.0.0.0/28", 30, nodeSelector='foo != "bar"')
    for index, address in enumerate(got):
        assert len(world.blocks()) == 1
        assert world.rows("node-1") == {"10.0.0.8/30": "confirmed"}
        if by == "handle":
            world.ipam.release_by_handle(f"h{index}")
        else:
            world.ipam.release_ips([ReleaseOption(address)])
    assert world.blocks() == {}
    assert world.rows("node-1") == {}


def test_t19_released_before_the_change(world: Cluster) -> None:
    world.pool("pool-1", "10.0.0.0/28", 30, nodeSelector='foo == "bar"')
    world.pool("pool-2", "10.0.1.0/28", 30)
    world.nodes("node-1", labels={"foo": "bar"})
    world.auto(handle="h")
    world.ipam.release_by_handle("h")
    world.pool("pool-1", "10.0.0.0/28", 30, nodeSelector='foo != "bar"')
    assert texts(world.blocks()) == ["10.0.0.8/30"]
    assert world.auto()[0].startswith("10.0.1.")
    assert "10.0.0.8/30" not in world.blocks()
    assert "10.0.0.8/30" not in world.rows("node-1")


def test_t20_kubevirt_restart(usual: Cluster) -> None:
    assert usual.auto(handle="h", max_per_handle=1) == [FIRST]
    before = usual.blocks()
    assert usual.auto(handle="h", max_per_handle=1) == [FIRST]
    assert usual.blocks() == before
    assert usual.handle("h") == {FIRST: 1}


@pytest.mark.parametrize("state", ["pending", "confirmed", "pendingDeletion", ""])
def test_t21_crash_after_creating_the_affinity(usual: Cluster, state: str) -> None:
    usual.row("10.0.0.64/26", "node-1", state)
    assert usual.auto(handle="h") == ["10.0.0.64/26"]
    assert usual.rows("node-1") == {"10.0.0.64/26": "confirmed"}


def test_t12_a_stale_row_of_a_lost_race_is_removed(usual: Cluster) -> None:
    usual.block("10.0.0.0/26", owner="node-2")
    usual.row("10.0.0.0/26", "node-1", "pending")
    assert usual.auto() == [FIRST]
    assert usual.rows("node-1") == {FIRST: "confirmed"}
    assert usual.rows("node-2") == {"10.0.0.0/26": "confirmed"}


def test_nothing_of_a_value_that_was_read_changes(usual: Cluster) -> None:
    """Blocks are values: the copy that a caller holds is not touched by what happens next."""
    usual.auto(handle="h1")
    held = usual.stored_block(FIRST)
    assert held is not None
    copy = replace(held)
    usual.auto(handle="h2")
    assert held == copy
