"""How many addresses a request gets, and what its caller sees (ipam-library §22.1, §24.4, §24.5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from calico_ipam.datastore.api import Snapshot
from calico_ipam.engine.own_blocks import BlockSource
from calico_ipam.engine.prepare import prepare
from calico_ipam.engine.request import Request
from calico_ipam.engine.world import Engine, node_key
from calico_ipam.errors import (
    BlockLimitReached,
    InvalidInput,
    IPAMError,
    NoQualifiedPool,
    NotFound,
    RefusedError,
    StoreError,
)
from calico_ipam.model.addresses import parse_address, parse_network
from calico_ipam.model.affinity import HOST, BlockOwner
from calico_ipam.model.block import HostReserved
from calico_ipam.model.handle import WINDOWS_RESERVED
from calico_ipam.model.keys import Affinities, Key, Scope
from tests.cluster import Cluster, CountingStore, cluster
from tests.invariants import violations


@pytest.fixture
def world() -> Iterator[Cluster]:
    with cluster() as made:
        made.nodes("node-1", "host-a", "host-b")
        yield made
        assert violations(made.store.inner) == []


@pytest.fixture
def usual(world: Cluster) -> Cluster:
    """192.168.1.0/24 in four /26 blocks."""
    world.pool("pool-1", "192.168.1.0/24", 26)
    return world


def number(addresses: Sequence[object]) -> int:
    return len(addresses)


# --- §22.1: what the caller sees ----------------------------------------------------------------------------


def test_enough_addresses(usual: Cluster) -> None:
    found = usual.ipam.auto_assign(use="Workload", num4=256, hostname="node-1").ipv4
    assert found is not None
    assert (len(found.addresses), found.messages, found.shortfall) == (256, (), None)


def test_some_available_and_not_strict(usual: Cluster) -> None:
    found = usual.ipam.auto_assign(use="Workload", num4=257, hostname="node-1").ipv4
    assert found is not None
    assert len(found.addresses) == 256
    assert found.messages == ("No IPs available in pools: [192.168.1.0/24]",)
    assert found.shortfall == (
        "Assigned 256 out of 257 requested IPv4 addresses; No IPs available in pools: [192.168.1.0/24]"
    )


def test_some_available_and_strict(world: Cluster) -> None:
    world.pool("pool-1", "10.0.0.0/26", 26)
    world.configure(strict_affinity=True)
    found = world.ipam.auto_assign(use="Workload", num4=256, hostname="node-1").ipv4
    assert found is not None
    assert len(found.addresses) == 64
    assert found.messages == ("No more free affine blocks and strict affinity enabled",)


@pytest.mark.parametrize(("limit", "expected"), [(1, 64), (2, 128)])
@pytest.mark.parametrize(("version", "cidr", "size"), [(4, "192.168.1.0/24", 26), (6, "fd00::/120", 122)])
def test_block_limit(world: Cluster, version: int, cidr: str, size: int, limit: int, expected: int) -> None:
    world.pool("pool-1", cidr, size)
    with pytest.raises(BlockLimitReached) as caught:
        world.auto(256, version=version, max_blocks_per_host=limit)
    partial = caught.value.partial
    family = partial.ipv4 if version == 4 else partial.ipv6
    assert len(family.addresses) == expected
    assert family.messages == (
        f"Need to allocate an IPAM block but could not - limit of {limit} blocks reached for this node",
    )


def test_auto_allocate_off_and_own_blocks_full(world: Cluster) -> None:
    world.pool("pool-1", "10.0.0.0/28", 30)
    world.configure(strict_affinity=True, auto_allocate_blocks=False)
    world.block("10.0.0.8/30", owner="node-1")
    with pytest.raises(RefusedError, match="failed to find or claim a block") as caught:
        world.auto(6)
    assert len(caught.value.partial.addresses) == 4


def _no_pool(world: Cluster) -> None:
    """Leave the cluster without any pool."""


def _other_use(world: Cluster) -> None:
    world.pool("pool-1", "10.0.0.0/24", allowedUses=["Tunnel"])


def _deselected(world: Cluster) -> None:
    world.pool("pool-1", "10.0.0.0/24", nodeSelector='zone == "elsewhere"')


def _bad_selector(world: Cluster) -> None:
    world.pool("pool-1", "10.0.0.0/24", nodeSelector="zone ==")


def _usual(world: Cluster) -> None:
    world.pool("pool-1", "10.0.0.0/24")


def _no_node(world: Cluster) -> None:
    world.pool("pool-1", "10.0.0.0/24")
    world.drop(node_key("node-1"))


@pytest.mark.parametrize(
    ("arrange", "requested", "error", "text"),
    [
        (_no_pool, (), NoQualifiedPool, "cannot find a qualified ippool"),
        (
            _other_use,
            (),
            NoQualifiedPool,
            "cannot find a qualified ippool, no pools match the required use (Workload)",
        ),
        (
            _other_use,
            ("10.0.0.0/24",),
            NoQualifiedPool,
            "cannot find a qualified ippool, no pools match the required use (Workload)",
        ),
        (_deselected, (), RefusedError, "no configured Calico pools for node node-1"),
        (
            _usual,
            ("40.0.0.0/24",),
            InvalidInput,
            "the given pool (40.0.0.0/24) does not exist, or is not enabled",
        ),
        (_bad_selector, (), InvalidInput, "expected string"),
        (_no_node, (), NotFound, "resource does not exist: Node(node-1) with error: <nil>"),
    ],
)
def test_refusals(
    world: Cluster, arrange: Callable[[Cluster], None], requested: Sequence[str], error: type[IPAMError], text: str
) -> None:
    arrange(world)
    with pytest.raises(error) as caught:
        world.auto(ipv4_pools=[parse_network(cidr) for cidr in requested])
    assert str(caught.value) == text
    assert caught.value.partial.addresses == ()
    assert world.blocks() == {}
    assert world.rows() == {}


def test_a_refusal_says_the_way_out(world: Cluster) -> None:
    with pytest.raises(NoQualifiedPool) as caught:
        world.auto()
    assert "ipamctl pool create" in caught.value.hint


# --- §24.4: amounts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("use", ["Workload", "Tunnel"])
@pytest.mark.parametrize("requested", [(), ("10.0.0.0/24",)])
def test_a_pool_that_allows_the_use(world: Cluster, use: str, requested: Sequence[str]) -> None:
    world.pool("pool-1", "10.0.0.0/24", allowedUses=[use])
    assert number(world.auto(use=use, ipv4_pools=[parse_network(cidr) for cidr in requested])) == 1


@pytest.mark.parametrize(("four", "six"), [(32, 128), (20, 116), (26, 122)])
def test_block_sizes(world: Cluster, four: int, six: int) -> None:
    world.pool("pool-4", "10.0.0.0/16", four)
    world.pool("pool-6", "fd80:24e2:f998:72d6::/112", six)
    assigned = world.ipam.auto_assign(use="Workload", num4=1, num6=1, hostname="node-1")
    assert [a.block.prefixlen for a in assigned.addresses] == [four, six]


def test_256_and_256_in_small_blocks(world: Cluster) -> None:
    world.pool("pool-4", "10.0.0.0/24", 30)
    world.pool("pool-6", "fd00::/120", 126)
    assigned = world.ipam.auto_assign(
        use="Workload", num4=256, num6=256, handle="h", hostname="node-1", max_blocks_per_host=256
    )
    assert len(set(assigned.addresses)) == 512
    assert assigned.ipv4 is not None
    assert assigned.ipv4.messages == ()
    assert sum((world.handle("h") or {}).values()) == 512


def test_63_of_its_own_and_one_borrowed(world: Cluster) -> None:
    world.pool("pool-1", "192.168.1.0/25", 26)
    assert number(world.auto(host="host-a")) == 1
    assert number(world.auto(host="host-b")) == 1
    found = world.ipam.auto_assign(use="Workload", num4=64, hostname="host-a").addresses
    assert [a.borrowed for a in found] == [False] * 63 + [True]


def test_one_block_two_hosts_strict_off_on_off(world: Cluster) -> None:
    world.pool("pool-1", "10.0.0.0/28", 28)
    for strict, amounts in ((False, (1, 1)), (True, (1, 0)), (False, (1, 1))):
        world.configure(strict_affinity=strict)
        assert (number(world.auto(host="host-a")), number(world.auto(host="host-b"))) == amounts


def test_global_and_requested_limits(world: Cluster) -> None:
    world.pool("pool-1", "10.0.0.0/26", 30)
    world.configure(strict_affinity=True, max_blocks_per_host=2)
    assert number(world.auto(8)) == 8
    with pytest.raises(BlockLimitReached):
        world.auto()
    world.auto(host="host-a")
    with pytest.raises(BlockLimitReached):
        world.auto(max_blocks_per_host=3)
    world.configure(max_blocks_per_host=3)
    with pytest.raises(BlockLimitReached):
        world.auto(max_blocks_per_host=2)
    assert number(world.auto()) == 1


def test_long_host_name(world: Cluster) -> None:
    host = "n" * 252
    world.nodes(host)
    world.pool("pool-4", "10.0.0.0/24")
    world.pool("pool-6", "fd00::/120")
    assert number(world.ipam.auto_assign(use="Workload", num4=1, num6=1, hostname=host).addresses) == 2
    assert set(world.rows(host).values()) == {"confirmed"}


def test_32_hosts_at_once(world: Cluster) -> None:
    """16 blocks: 16 hosts own one, the others borrow; every row is true."""
    hosts = [f"worker-{i}" for i in range(32)]
    world.nodes(*hosts)
    world.pool("pool-1", "10.0.0.0/22", 26)
    with ThreadPoolExecutor(16) as threads:
        got = list(threads.map(lambda host: world.auto(host=host, handle=f"h-{host}"), hosts))
    assert all(len(addresses) == 1 for addresses in got)
    assert len({addresses[0] for addresses in got}) == 32
    rows = [(host, cidr, state) for host in hosts for cidr, state in world.rows(host).items()]
    assert len(rows) == 16
    for host, cidr, state in rows:
        block = world.stored_block(cidr)
        assert state == "confirmed"
        assert block is not None
        assert block.owned_by(BlockOwner(HOST, host))


def test_four_at_once_on_one_host(world: Cluster) -> None:
    world.pool("pool-1", "10.0.0.0/25", 26)
    with ThreadPoolExecutor(4) as threads:
        got = list(threads.map(lambda i: world.auto(handle=f"h{i}"), range(4)))
    assert len({addresses[0] for addresses in got}) == 4
    assert len(world.rows("node-1")) == 1  # limit L18: the second finds the first one's block


def test_reservations_leave_fewer(world: Cluster) -> None:
    world.pool("pool-1", "10.0.0.0/26", 26)
    world.reserve("10.0.0.1/32", "10.0.0.32/30", "11.0.0.0/30", "10.0.0.17/32")
    assert number(world.auto(64)) == 58


def test_reservations_and_windows_leave_fewer(world: Cluster) -> None:
    world.pool("pool-1", "10.0.0.0/26", 26)
    world.reserve("10.0.0.1/32", "10.0.0.32/30", "11.0.0.0/30", "10.0.0.17/32")
    kept = HostReserved(3, 1, WINDOWS_RESERVED, "windows host rsvd")
    assert number(world.auto(64, host_reserved4=kept)) == 55


def test_an_unreadable_store_is_that_error(usual: Cluster) -> None:
    class Broken(CountingStore):
        def read(self, *wanted: Key | Scope) -> Snapshot:
            raise StoreError("the disk is on fire")

    usual.ipam = type(usual.ipam)(Broken(usual.store.inner), clock=usual.clock)
    with pytest.raises(StoreError, match="on fire"):
        usual.auto()


# --- §24.5: which block comes next --------------------------------------------------------------------------

KEPT = HostReserved(2, 1, WINDOWS_RESERVED, "kept")


def source(world: Cluster, **more: Any) -> BlockSource:
    request = Request(use="Workload", host="node-1", numbers={4: 1}, host_reserved={4: KEPT}, **more)
    engine = Engine(world.store, world.clock, world.ipam._engine.retry)
    look = engine.look(Affinities(HOST, "node-1", 4), node_key("node-1"), reservations=True)
    return BlockSource(engine, prepare(engine, request, look, 4), request)


@pytest.fixture
def two_rows(world: Cluster) -> Cluster:
    """node-1 owns 10.0.0.0/30 and 10.0.0.4/30 of 10.0.0.0/28, with one free address each: .2 and .6."""
    world.pool("pool-1", "10.0.0.0/28", 30)
    for cidr in ("10.0.0.0/30", "10.0.0.4/30"):
        world.block(cidr, owner="node-1", reserved=KEPT)
    return world


def test_own_blocks_in_turn_then_a_new_one(two_rows: Cluster) -> None:
    blocks = source(two_rows)
    found = [str(blocks.next(1).value.cidr) for _ in range(3)]
    assert found[:2] == ["10.0.0.0/30", "10.0.0.4/30"]
    assert found[2] in ("10.0.0.8/30", "10.0.0.12/30")


def test_a_reserved_block_is_passed_over(two_rows: Cluster) -> None:
    two_rows.reserve("10.0.0.0/30")
    assert str(source(two_rows).next(1).value.cidr) == "10.0.0.4/30"


def test_a_full_block_is_passed_over(two_rows: Cluster) -> None:
    two_rows.ipam.assign_ip(parse_address("10.0.0.2"), hostname="node-1")
    assert str(source(two_rows).next(1).value.cidr) == "10.0.0.4/30"
    two_rows.ipam.assign_ip(parse_address("10.0.0.6"), hostname="node-1")
    assert str(source(two_rows).next(1).value.cidr) not in ("10.0.0.0/30", "10.0.0.4/30")


def test_claims_forbidden(two_rows: Cluster) -> None:
    for ip in ("10.0.0.2", "10.0.0.6"):
        two_rows.ipam.assign_ip(parse_address(ip), hostname="node-1")
    with pytest.raises(BlockLimitReached):
        source(two_rows, max_blocks=2).next(1)


def test_asked_again_the_same_block(two_rows: Cluster) -> None:
    assert source(two_rows).next(1).value.cidr == source(two_rows).next(1).value.cidr
