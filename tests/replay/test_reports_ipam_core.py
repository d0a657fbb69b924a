"""Public reports P01 to P08 and P10: each replay gives the right result (the ids are those of the collection)."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from calico_ipam.datastore.api import Delete, Entry, Write
from calico_ipam.engine.client import IPAM
from calico_ipam.errors import AddressInCooldown, BlockLimitReached, Conflict, MaxAllocReached
from calico_ipam.model.addresses import blocks_in, parse_address, parse_network
from calico_ipam.model.affinity import CONFIRMED, HOST, PENDING_DELETION, BlockOwner
from calico_ipam.model.block import Attribute, ReleaseOption
from calico_ipam.model.keys import AffinityKey, BlockKey, ResourceKey
from calico_ipam.model.resource import IP_POOL, Resource
from tests.cluster import Cluster, cluster
from tests.invariants import violations


@pytest.fixture
def world() -> Iterator[Cluster]:
    with cluster() as made:
        made.nodes("n1", "n2", "n-new")
        yield made
        assert list(violations(made.store.inner)) == []


def held(world: Cluster, cidr: str, host: str, ordinal: int, handle: str) -> None:
    """Give ``handle`` one address of a block of ``host``, through the library."""
    address = str(parse_network(cidr)[ordinal])
    world.ipam.assign_ip(parse_address(address), handle=handle, hostname=host)


# --- P01: a pool's block size was changed ----------------------------------------------------------------------


def test_p01_a_new_block_never_overlaps_one_of_the_old_size(world: Cluster) -> None:
    world.pool("p", "172.27.90.0/24", 29)
    held(world, "172.27.90.8/29", "n1", 1, "h-a")
    world.no_pool("p")
    world.pool("p", "172.27.90.0/24", 26)
    got = world.auto(host="n2", handle="h-b")
    old, new = parse_network("172.27.90.8/29"), parse_network(got[0])
    assert not new.overlaps(old)
    assert new.prefixlen == 26
    # Every other place is taken as well; the one that the old block sits in is never offered.
    assert {c for c in world.auto(192, host="n2", handle="h-c")}.isdisjoint({"172.27.90.9/26"})
    assert all(not parse_network(c).overlaps(old) for c in world.blocks() if c != str(old))


def test_p01_half_of_the_nodes_still_own_blocks_of_the_old_size(world: Cluster) -> None:
    world.pool("p", "100.64.0.0/13", 26)
    for number in range(64):
        world.nodes(f"old-{number}")
        world.auto(host=f"old-{number}", handle=f"h-{number}")
    world.no_pool("p")
    world.pool("p", "100.64.0.0/13", 25)
    before = set(world.blocks())
    for number in range(64):
        world.nodes(f"new-{number}")
        assert len(world.auto(host=f"new-{number}", handle=f"new-{number}")) == 1
        assert len(world.auto(host=f"old-{number}", handle=f"again-{number}")) == 1
    fresh = [parse_network(c) for c in world.blocks() if c not in before]
    assert fresh
    assert not any(new.overlaps(parse_network(old)) for new in fresh for old in before)


# --- P02: a full pool of a thousand blocks ---------------------------------------------------------------------


def full_pool(world: Cluster, name: str, cidr: str, size: int) -> None:
    """Fill a pool with one-address blocks' worth of holders: every block belongs to a host and is full."""
    world.pool(name, cidr, size)
    for number, block in enumerate(blocks_in(parse_network(cidr), size)):
        world.block(str(block), owner=f"taken-{number}")
        entry = world.store.inner.get(BlockKey(block))
        full, _ = entry.value.assign(block.num_addresses, handle=None, attrs={"node": f"taken-{number}"})
        world.put(entry.key, full.bumped())


def test_p02_first_address_beside_a_full_pool_takes_few_requests(world: Cluster) -> None:
    full_pool(world, "a", "10.0.0.0/20", 30)
    world.pool("b", "10.9.0.0/24", 26)
    world.store.reset()
    assert world.auto(host="n-new", handle="h")[0].startswith("10.9.0.")
    assert world.store.total <= 5, world.store.asked


def test_p02_an_exhausted_pool_says_so_in_few_requests(world: Cluster) -> None:
    full_pool(world, "a", "10.0.0.0/20", 30)
    world.configure(strict_affinity=True)
    world.store.reset()
    result = world.ipam.auto_assign(use="Workload", num4=1, handle="h", hostname="n-new").ipv4
    assert result is not None
    assert result.shortfall == (
        "Assigned 0 out of 1 requested IPv4 addresses; No more free affine blocks and strict affinity enabled"
    )
    assert world.store.total <= 3, world.store.asked


# --- P03: who owns the block -----------------------------------------------------------------------------------


def test_p03_a_claim_lost_with_its_clean_up_leaves_one_owner(world: Cluster) -> None:
    world.pool("p", "10.0.0.0/26", 26)
    held(world, "10.0.0.0/26", "n1", 0, "h-a")
    # n2's claim lost and its clean-up failed: its row is still there, and must not be taken for ownership.
    world.row("10.0.0.0/26", "n2", "pending")
    assert world.auto(host="n2", handle="h-b") == ["10.0.0.1/26"]  # borrowed
    assert world.rows("n2") == {}
    block = world.stored_block("10.0.0.0/26")
    assert block is not None
    assert block.affinity == "host:n1"


def test_p03_two_threads_of_one_host_claim_one_block(world: Cluster) -> None:
    world.pool("p", "10.0.0.0/16", 26)
    for run in range(200):
        host = f"host-{run}"
        world.nodes(host)
        start = threading.Barrier(2)
        got: list[str] = []

        def ask(thread: int, host: str = host, start: threading.Barrier = start, got: list[str] = got) -> None:
            start.wait()
            found = IPAM(world.store.inner).auto_assign(
                use="Workload", num4=1, handle=f"{host}-{thread}", hostname=host
            )
            got.extend(str(a) for a in found.addresses)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(got)) == 2
        assert len(world.rows(host)) == 1


def test_p03_a_block_that_vanishes_between_list_and_read_is_a_retry(world: Cluster) -> None:
    world.pool("p", "10.0.0.0/26", 28)
    world.block("10.0.0.16/28", owner="n1")
    store = world.store
    real = store.read
    vanished: list[bool] = []

    def read(*wanted: object) -> object:
        if BlockKey(parse_network("10.0.0.16/28")) in wanted and not vanished:
            vanished.append(True)
            store.inner.commit(Delete(store.inner.get(BlockKey(parse_network("10.0.0.16/28")))))
        return real(*wanted)  # type: ignore[arg-type]  # the wrapper takes whatever read() takes

    store.read = read  # type: ignore[method-assign,assignment]  # one test's interference
    assert len(world.auto(host="n1", handle="h")) == 1
    assert vanished
    assert list(world.rows("n1").values()) == [CONFIRMED]


# --- P04: an affinity without its block ------------------------------------------------------------------------


@pytest.mark.parametrize("state", [CONFIRMED, PENDING_DELETION])
def test_p04_an_affinity_without_block_is_completed(world: Cluster, state: str) -> None:
    world.pool("p", "10.0.0.0/24", 26)
    world.row("10.0.0.64/26", "n1", state)
    assert world.auto(host="n1", handle="h") == ["10.0.0.64/26"]
    assert world.rows("n1") == {"10.0.0.64/26": CONFIRMED}


# --- P05: the pool of a block is gone --------------------------------------------------------------------------


@pytest.mark.parametrize("gone", ["deleted", "disabled", "deletion timestamp"])
def test_p05_a_pool_that_is_gone_gives_no_address_and_takes_all_back(world: Cluster, gone: str) -> None:
    world.pool("a", "10.0.0.0/24", 26)
    held(world, "10.0.0.0/26", "n1", 0, "h-a")
    if gone == "deleted":
        world.no_pool("a")
    elif gone == "disabled":
        world.pool("a", "10.0.0.0/24", 26, disabled=True)
    else:
        key = ResourceKey(IP_POOL, "a")
        stored = world.store.inner.get(key).value
        metadata = {**stored.metadata, "deletionTimestamp": "2026-08-22T10:00:00Z"}
        world.put(key, Resource(IP_POOL, "a", {**stored.document, "metadata": metadata}))
    world.pool("b", "10.9.0.0/24", 26)
    assert world.auto(host="n1", handle="h-b")[0].startswith("10.9.0.")
    world.store.reset()
    world.ipam.release_by_handle("h-a")
    assert world.store.total <= 4, world.store.asked
    assert "10.0.0.0/26" in world.blocks()  # owned and empty
    world.ipam.release_host_affinities(BlockOwner(HOST, "n1"), must_be_empty=False)
    assert "10.0.0.0/26" not in world.blocks()
    assert "10.0.0.0/26" not in world.rows()


# --- P06: the limit of blocks per host -------------------------------------------------------------------------


def test_p06_a_limit_of_zero_means_twenty_and_the_error_says_where_it_comes_from(world: Cluster) -> None:
    world.pool("p", "10.0.0.0/24", 32)
    for number in range(20):
        assert len(world.auto(host="n1", handle=f"h-{number}")) == 1
    with pytest.raises(BlockLimitReached) as caught:
        world.auto(host="n1", handle="h-20")
    assert "20 blocks" in caught.value.hint
    assert "default" in caught.value.hint
    assert "0 free addresses" in caught.value.hint


@pytest.mark.parametrize(("setting", "request_limit", "effective"), [(5, 10, 5), (10, 5, 5)])
def test_p06_the_smaller_limit_wins(world: Cluster, setting: int, request_limit: int, effective: int) -> None:
    world.pool("p", "10.0.0.0/24", 30)
    world.configure(strict_affinity=True, max_blocks_per_host=setting)
    with pytest.raises(BlockLimitReached) as caught:
        world.auto(4 * effective + 1, host="n1", handle="h", max_blocks_per_host=request_limit)
    assert len(caught.value.partial.ipv4.addresses) == 4 * effective
    assert len(world.rows("n1")) == effective
    # The host can still fill the blocks it owns.
    world.ipam.release_ips([ReleaseOption(caught.value.partial.ipv4.addresses[0].address)])
    assert len(world.auto(host="n1", handle="h2", max_blocks_per_host=request_limit)) == 1


# --- P07: borrowed addresses -----------------------------------------------------------------------------------


def test_p07_borrowing_is_marked_or_refused(world: Cluster) -> None:
    world.pool("p", "10.0.0.0/26", 26)
    held(world, "10.0.0.0/26", "n1", 0, "h-a")
    borrowed = world.ipam.auto_assign(use="Workload", num4=1, handle="h-b", hostname="n2")
    assert [a.borrowed for a in borrowed.addresses] == [True]
    assert [a.borrowed for a in world.ipam.auto_assign(use="Workload", num4=1, hostname="n1").addresses] == [False]
    tunnel = world.ipam.auto_assign(use="Tunnel", num4=1, handle="vxlan-tunnel-addr-n2", hostname="n2").ipv4
    assert tunnel is not None
    assert tunnel.addresses == ()
    assert "never borrowed" in str(tunnel.shortfall)
    world.configure(strict_affinity=True)
    refused = world.ipam.auto_assign(use="Workload", num4=1, handle="h-c", hostname="n2").ipv4
    assert refused is not None
    assert refused.addresses == ()
    assert "strict affinity" in str(refused.shortfall)


# --- P08: an address comes back too soon -----------------------------------------------------------------------


def test_p08_a_released_address_goes_to_the_end_of_the_queue(world: Cluster) -> None:
    world.pool("p", "10.0.0.0/29", 29)
    seen = []
    for number in range(10):
        seen += world.auto(host="n1", handle=f"h-{number}")
        world.ipam.release_by_handle(f"h-{number}")
    assert [a.split(".")[-1] for a in seen] == [f"{n % 8}/29" for n in range(10)]


def test_p08_a_cooling_address_is_neither_used_nor_free(world: Cluster) -> None:
    world.pool("p", "10.0.0.0/29", 29)
    world.configure(cooldown_seconds=60)
    world.auto(7, host="n1", handle="others")
    assert world.auto(host="n1", handle="first") == ["10.0.0.7/29"]
    world.ipam.release_by_handle("first")
    with pytest.raises(AddressInCooldown):
        world.ipam.assignment_attributes(parse_address("10.0.0.7"))
    (pool,) = [p for p in world.ipam.get_utilization().pools if p.name == "p"]
    assert (pool.in_use - pool.cooling, pool.cooling, pool.available) == (7, 1, 0)
    world.clock.advance(59)
    assert world.auto(host="n1", handle="second") == []
    world.clock.advance(2)
    assert world.auto(host="n1", handle="third") == ["10.0.0.7/29"]


# --- P10: half a change was written ----------------------------------------------------------------------------


def test_p10_a_cap_reached_in_a_retry_leaves_the_block_as_it_was(world: Cluster) -> None:
    world.pool("p", "10.0.0.0/26", 26)
    held(world, "10.0.0.0/26", "n1", 0, "h-vm")
    before = world.stored_block("10.0.0.0/26")
    store = world.store
    real = store.commit
    refused: list[bool] = []

    def commit(*writes: Write) -> Sequence[Entry]:
        if not refused:
            refused.append(True)
            raise Conflict("BlockKey(cidr=10.0.0.0/26)")
        return real(*writes)

    store.commit = commit  # type: ignore[method-assign]  # one test's interference
    found = world.ipam.auto_assign(use="Workload", num4=1, handle="h-vm", hostname="n1", max_per_handle=1)
    assert [str(a) for a in found.addresses] == ["10.0.0.0/26"]  # the address it holds
    with pytest.raises(Exception, match="already has IP") as caught:
        world.ipam.assign_ip(parse_address("10.0.0.9"), handle="h-vm", hostname="n1", max_per_handle=1)
    assert not isinstance(caught.value, MaxAllocReached | Conflict)
    assert world.stored_block("10.0.0.0/26") == before
    assert world.handle("h-vm") == {"10.0.0.0/26": 1}


def test_p10_values_that_were_read_are_not_changed_in_place(world: Cluster) -> None:
    world.pool("p", "10.0.0.0/26", 26)
    world.block("10.0.0.0/26", owner="n1")
    entry = world.store.inner.get(BlockKey(parse_network("10.0.0.0/26")))
    kept = replace(entry.value, attributes=(Attribute("x"),))
    world.auto(3, host="n1", handle="h")
    assert entry.value.allocations == (None,) * 64
    assert kept.attributes == (Attribute("x"),)
    assert world.store.inner.get(AffinityKey(BlockOwner(HOST, "n1"), parse_network("10.0.0.0/26"))).value.state


def test_p01_an_address_in_a_block_of_the_old_size_is_released(world: Cluster) -> None:
    world.pool("p", "172.27.90.0/24", 29)
    held(world, "172.27.90.8/29", "n1", 1, "h-a")
    world.no_pool("p")
    world.pool("p", "172.27.90.0/24", 26)
    free, gone = parse_address("172.27.90.200"), parse_address("172.27.90.9")
    result = world.ipam.release_ips([ReleaseOption(gone, "h-a"), ReleaseOption(free)])
    assert result.unallocated == (free,)
    assert world.handle("h-a") is None
