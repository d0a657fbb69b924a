"""Upstream's limits that are beaten (ipam-library §23), one test each, named by it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import pytest

from calico_ipam.datastore.api import Datastore, Deadline, Delete, Entry, Update, Write
from calico_ipam.datastore.documents import DocumentStore, RawWrite
from calico_ipam.datastore.kube.api import Request
from calico_ipam.datastore.passing import PassingStore
from calico_ipam.datastore.paths import path_of
from calico_ipam.engine.client import IPAM
from calico_ipam.engine.policy import Retry
from calico_ipam.engine.results import AutoAssigned
from calico_ipam.errors import (
    BlockLimitReached,
    DeadlineExceeded,
    InvalidInput,
    MaxAllocReached,
    NotFound,
    OutcomeUnknown,
    RetriesExhausted,
    StoreError,
)
from calico_ipam.model.addresses import Network, overlaps, parse_address, parse_network
from calico_ipam.model.affinity import HOST, VIRTUAL, BlockOwner
from calico_ipam.model.block import Block, ReleaseOption
from calico_ipam.model.handle import Handle
from calico_ipam.model.handle_names import vm_handle
from calico_ipam.model.keys import AffinityKey, BlockKey, Blocks, ConfigKey, HandleKey
from tests.cluster import Cluster, ManualClock, cluster
from tests.faulty import Fault, FaultyStore
from tests.invariants import violations
from tests.memory_kube import MemoryKubeStore

OWN = "10.0.0.8/30"  #: where node-1's walk over 10.0.0.0/28 begins


@pytest.fixture
def world() -> Iterator[Cluster]:
    """10.0.0.0/28 in four /30 blocks."""
    with cluster() as made:
        made.nodes("node-1", "node-2")
        made.pool("pool-1", "10.0.0.0/28", 30)
        yield made


def put_text(world: Cluster, path: str, text: str) -> None:
    """Store text as it is, past everything that would refuse it."""
    store = world.store.inner
    assert isinstance(store, DocumentStore)
    (row,), _, _ = store._raw_read((path,), ())
    write = RawWrite("update", path, text, row.revision) if row else RawWrite("create", path, text)
    store._raw_commit((write,))


def with_faults(world: Cluster, *faults: Fault) -> IPAM:
    return IPAM(FaultyStore(world.store.inner, *faults), clock=world.clock)


def ips(assigned: AutoAssigned) -> list[str]:
    return [str(a) for a in assigned.addresses]


def test_l1_the_handle_counts_what_was_obtained(world: Cluster) -> None:
    assert len(world.auto(6, handle="h")) == 6
    assert world.handle("h") == {OWN: 4, "10.0.0.12/30": 2}


def test_l1_also_when_the_request_is_not_met(world: Cluster) -> None:
    assert len(world.auto(40, handle="h")) == 16
    assert sum((world.handle("h") or {}).values()) == 16


def test_l2_a_lost_race_of_assign_ip_leaves_no_count(world: Cluster) -> None:
    world.block("10.0.0.0/30", owner="node-1")
    race = Fault("conflict", write=1, times=3, where=lambda s: isinstance(s, BlockKey))
    with_faults(world, race).assign_ip(parse_address("10.0.0.1"), handle="h", hostname="node-1", max_per_handle=1)
    assert world.handle("h") == {"10.0.0.0/30": 1}
    assert violations(world.store.inner) == []


def test_l3_losing_the_claim_is_decided_again(world: Cluster) -> None:
    """Another host claims the block in between: not strict, the address is borrowed from it."""
    owner = BlockOwner(HOST, "node-2")

    def claim(store: object, write: object) -> None:
        world.block("10.0.0.0/30", owner="node-2", age=0)

    race = Fault("conflict", write=1, where=lambda s: isinstance(s, BlockKey), rival=claim)
    with_faults(world, race).assign_ip(parse_address("10.0.0.1"), handle="h", hostname="node-1")
    block = world.stored_block("10.0.0.0/30")
    assert block is not None
    assert block.owned_by(owner)
    assert world.rows("node-1") == {}
    assert world.handle("h") == {"10.0.0.0/30": 1}


def test_l4_wrong_families_are_refused_before_anything_is_assigned(world: Cluster) -> None:
    with pytest.raises(InvalidInput, match="IPv6 IPPools list contains one or more IPv4 IPPools"):
        world.ipam.auto_assign(
            use="Workload", num4=1, num6=1, hostname="node-1", ipv6_pools=[parse_network("10.0.0.0/28")]
        )
    assert world.blocks() == {}


def test_l5_a_block_that_fills_up_meanwhile_is_passed_over(world: Cluster) -> None:
    def fill(store: object, write: object) -> None:
        world.block(OWN, owner="node-1", age=0)
        block = world.stored_block(OWN)
        assert block is not None
        full, _ = block.assign(4, handle="x", attrs={})
        world.put(BlockKey(block.cidr), full.bumped())
        world.put(HandleKey("x"), Handle("x", {OWN: 4}))

    race = Fault("conflict", write=1, where=lambda s: isinstance(s, BlockKey), rival=fill)
    assigned = with_faults(world, race).auto_assign(use="Workload", num4=1, handle="h", hostname="node-1")
    assert ips(assigned) == ["10.0.0.12/30"]


def test_l6_borrowing_asks_for_no_block_that_does_not_exist(world: Cluster) -> None:
    """A pool of 2^64 addresses of which everything but one block is reserved."""
    world.pool("pool-6", "fd00::/64", 122)
    world.block("fd00::40/122", owner="node-2")
    halves = [parse_network("fd00::/64")]
    for _ in range(58):  # all but fd00::40/122
        halves = [piece for half in halves for piece in _split(half, parse_network("fd00::40/122"))]
    world.reserve(*(str(half) for half in halves if str(half) != "fd00::40/122"))
    world.clock.at -= 590 * 10**9  # too young to be taken over
    world.store.reset()
    assert world.auto(3, version=6) == ["fd00::40/122", "fd00::41/122", "fd00::42/122"]
    assert world.store.total <= 6


def _split(network: Network, keep: Network) -> list[Network]:
    if network == keep or not overlaps(network, keep):
        return [network]
    return list(network.subnets())


def test_l7_retries_wait_longer_and_longer_and_then_end(world: Cluster) -> None:
    clock = ManualClock()
    retry = Retry(attempts=20, pause=0.002, longest=0.1, clock=clock)
    with pytest.raises(RetriesExhausted):
        for _ in retry.tries("losing"):
            pass
    assert 0 < clock.slept < 20 * 0.1


def test_l7_a_store_that_always_loses_ends_by_the_deadline(world: Cluster) -> None:
    always = Fault("conflict", write=1, times=10**6, where=lambda s: isinstance(s, BlockKey))
    world.block(OWN, owner="node-1")
    ipam = IPAM(FaultyStore(world.store.inner, always)).within(Deadline.after(0.2))
    with pytest.raises(DeadlineExceeded):
        ipam.assign_ip(parse_address("10.0.0.8"), hostname="node-1")


@pytest.mark.parametrize("state", ["confirmed", "pendingDeletion", "pending"])
def test_l8_a_row_without_a_block_can_be_released(world: Cluster, state: str) -> None:
    world.row(OWN, "node-1", state)
    world.ipam.release_affinity(parse_network(OWN), BlockOwner(HOST, "node-1"), must_be_empty=True)
    assert world.rows("node-1") == {}


def test_l8_a_block_without_a_row_can_be_released_and_reclaimed(world: Cluster) -> None:
    world.block(OWN, owner="node-1", row=None)
    world.ipam.release_affinity(parse_network(OWN), BlockOwner(HOST, "node-1"), must_be_empty=True)
    assert world.blocks() == {}
    for cidr in ("10.0.0.0/30", "10.0.0.4/30", "10.0.0.8/30", "10.0.0.12/30"):
        world.block(cidr, owner="node-2", row=None)
    world.configure(strict_affinity=True)
    assert len(world.auto()) == 1


def test_l8_a_row_that_vanishes_while_its_block_is_released(world: Cluster) -> None:
    """What is missing when it is written is no proof that all of it is gone."""

    def drop(store: Datastore, write: Write) -> None:
        store.commit(Delete(store.get(write.key)))

    world.block(OWN, owner="node-1")
    gone = Fault("conflict", write=1, where=lambda s: isinstance(s, AffinityKey), rival=drop)
    store = FaultyStore(world.store.inner, gone)
    IPAM(store, clock=world.clock).release_host_affinities(BlockOwner(HOST, "node-1"), must_be_empty=True)
    assert store.struck()
    assert (world.blocks(), world.rows()) == ({}, {})


@pytest.mark.parametrize("kind", ["lost", "before"])
def test_l31_a_release_of_a_block_whose_answer_was_lost_is_looked_up(world: Cluster, kind: str) -> None:
    world.block(OWN, owner="node-1")
    error = None if kind == "lost" else lambda: OutcomeUnknown("no answer")
    fault = Fault(kind, write=1, where=lambda s: isinstance(s, BlockKey), error=error)  # type: ignore[arg-type]  # of two kinds
    store = FaultyStore(world.store.inner, fault)
    IPAM(store, clock=world.clock).release_affinity(parse_network(OWN), BlockOwner(HOST, "node-1"), must_be_empty=True)
    assert store.struck()
    assert (world.blocks(), world.rows()) == ({}, {})


def test_l9_an_empty_block_of_nobody_is_taken_over(world: Cluster) -> None:
    for cidr in ("10.0.0.0/30", "10.0.0.4/30", "10.0.0.8/30", "10.0.0.12/30"):
        world.block(cidr)
    world.configure(strict_affinity=True)
    assert world.auto() == ["10.0.0.8/30"]
    assert world.rows("node-1") == {OWN: "confirmed"}


@pytest.mark.parametrize("kind", ["lost", "conflict"])
def test_l9_an_empty_block_of_nobody_that_goes_meanwhile_is_a_free_place(world: Cluster, kind: str) -> None:
    world.no_pool("pool-1")
    world.pool("pool-2", OWN, 30)
    world.block(OWN)
    gone = Fault(
        kind,  # type: ignore[arg-type]  # of two kinds
        write=1,
        where=lambda s: isinstance(s, BlockKey),
        rival=lambda store, write: store.commit(Delete(store.get(write.key))),
    )
    assigned = with_faults(world, gone).auto_assign(use="Workload", num4=1, hostname="node-1")
    assert ips(assigned) == ["10.0.0.8/30"]
    assert world.rows("node-1") == {OWN: "confirmed"}


def test_l9_a_block_of_nobody_that_empties_by_cooling_down_is_taken_over(world: Cluster) -> None:
    world.configure(strict_affinity=True, cooldown_seconds=30)
    world.auto(16, handle="h")
    for cidr in list(world.blocks()):
        world.disown(cidr)
    world.ipam.release_by_handle("h")
    assert world.auto() == []
    world.clock.advance(31)
    assert len(world.auto()) == 1


def test_l10_releasing_a_handle_leaves_nothing_of_it(world: Cluster) -> None:
    world.auto(2, handle="h")
    world.put(HandleKey("h"), Handle("h", {OWN: 7, "10.0.0.0/30": 3, "10.0.0.4/30": 1}))
    world.block("10.0.0.4/30", owner="node-2")
    world.ipam.release_by_handle("h")
    assert world.handle("h") is None
    assert all(block.empty for block in world.blocks().values())
    with pytest.raises(NotFound):
        world.ipam.release_by_handle("h")


def test_l10_an_unreadable_block_does_not_stop_the_others(world: Cluster) -> None:
    world.auto(6, handle="h")
    put_text(world, path_of(BlockKey(parse_network(OWN))), "garbage")
    with pytest.raises(StoreError, match="garbage"):
        world.ipam.release_by_handle("h")
    other = world.stored_block("10.0.0.12/30")
    assert other is not None
    assert other.empty
    assert world.handle("h") == {OWN: 4}


def test_l11_two_spellings_are_one_address(world: Cluster) -> None:
    world.pool("pool-6", "fd00::/120", 122)
    got = parse_address(world.auto(version=6, handle="h")[0].partition("/")[0])
    spelled = parse_address(got.exploded.upper())
    world.auto(version=6, handle="h")
    result = world.ipam.release_ips([ReleaseOption(got), ReleaseOption(spelled)])
    assert result.unallocated == ()
    assert sum((world.handle("h") or {}).values()) == 1


def test_l11_doubled_free_addresses_cause_no_write(world: Cluster) -> None:
    world.auto(handle="h")
    free = ReleaseOption(parse_address("10.0.0.11"))
    before = world.blocks()
    world.ipam.release_ips([free, free])
    assert world.blocks() == before


@pytest.mark.parametrize(
    "document",
    [
        '{"cidr":"10.0.0.8/30","affinity":"host:node-1","allocations":[7,null,null,null],"unallocated":[1,2,3],"attributes":[]}',
        '{"cidr":"10.0.0.8/30","affinity":"host:node-1","allocations":[null,null],"unallocated":[0,1,2,3,9,0],"attributes":null}',
        '{"cidr":"10.0.0.8/30","affinity":"host:node-1","allocations":[-1,0,null,null],"unallocated":[0,1,2,2],"attributes":[{}]}',
    ],
)
def test_l13_damaged_blocks_never_crash_nor_give_twice(world: Cluster, document: str) -> None:
    put_text(world, path_of(BlockKey(parse_network(OWN))), document)
    world.row(OWN, "node-1")
    stored = world.stored_block(OWN)
    assert stored is not None
    in_use = {str(stored.address(o)) for o, _ in stored.taken()}
    got = [text.partition("/")[0] for text in world.auto(16, handle="h")]
    assert len(set(got)) == len(got)
    assert not set(got) & in_use
    world.ipam.release_by_handle("h")


def test_l15_a_full_pool_and_the_block_limit_do_not_keep_a_vm_from_its_address(world: Cluster) -> None:
    mine = world.auto(handle="vm", max_per_handle=1)
    world.auto(15, handle="others")
    assert world.auto(handle="vm", max_per_handle=1, max_blocks_per_host=1) == mine
    with pytest.raises(BlockLimitReached):
        world.auto(handle="new", max_per_handle=1, max_blocks_per_host=1)


def test_l15_never_more_than_asked_for_and_with_the_prefix_of_the_block(world: Cluster) -> None:
    got = world.auto(3, handle="vm", max_per_handle=3)
    assert world.auto(2, handle="vm", max_per_handle=3) == got[:2]


def test_l15_more_than_the_cap_is_refused_at_once(world: Cluster) -> None:
    world.auto(handle="vm", max_per_handle=2)
    with pytest.raises(MaxAllocReached, match="already has 1 allocation"):
        world.auto(2, handle="vm", max_per_handle=2)
    assert world.clock.slept == 0
    assert world.handle("vm") == {OWN: 1}


def test_l16_one_read_for_both_families_and_one_list_for_all_new_blocks(world: Cluster) -> None:
    world.pool("pool-6", "fd00::/120", 122)
    world.store.reset()
    world.ipam.auto_assign(use="Workload", num4=12, num6=1, handle="h", hostname="node-1")
    assert world.store.asked["list"] == 2  # one for each family, though three IPv4 blocks were claimed
    assert world.store.asked["read"] == 1


def test_l17_stale_rows_do_not_count_towards_the_limit(world: Cluster) -> None:
    world.block("10.0.0.0/30", owner="node-2")
    world.row("10.0.0.0/30", "node-1")
    assert len(world.auto(max_blocks_per_host=1)) == 1
    assert world.rows("node-1") == {OWN: "confirmed"}


def test_l18_processes_of_one_host_end_up_with_one_block(world: Cluster) -> None:
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda i: world.auto(handle=f"h{i}"), range(4)))
    assert len(world.rows("node-1")) == 1
    assert violations(world.store.inner) == []


def test_l20_settings_are_written_by_compare_and_swap(world: Cluster) -> None:
    race = Fault("conflict", write=1, where=lambda s: isinstance(s, ConfigKey))
    world.configure(strict_affinity=True)
    ipam = with_faults(world, race)
    ipam.set_config(replace(ipam.get_config(), cooldown_seconds=30))
    assert world.ipam.get_config().cooldown_seconds == 30


def test_l20_stored_settings_that_break_a_rule_are_used_and_told(
    world: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    put_text(world, path_of(ConfigKey()), '{"auto_allocate_blocks":true,"maxBlocksPerHost":1}')
    with caplog.at_level(logging.WARNING), pytest.raises(BlockLimitReached):
        world.auto(5)
    assert "MaxBlocksPerHost requires StrictAffinity" in caplog.text


def test_l22_addresses_mature_in_the_order_of_their_release(world: Cluster) -> None:
    world.configure(cooldown_seconds=30)
    got = [parse_address(text.partition("/")[0]) for text in world.auto(4)]
    for address in reversed(got):
        world.ipam.release_ips([ReleaseOption(address)])
        world.clock.advance(1)
    world.clock.advance(60)
    assert world.auto(4, max_blocks_per_host=1) == [f"{address}/30" for address in reversed(got)]


def test_l26_a_pool_whose_selector_does_not_parse_is_left_out(world: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    world.pool("pool-0", "10.9.0.0/24", nodeSelector="zone ==")
    with caplog.at_level(logging.WARNING):
        assert world.auto() == ["10.0.0.8/30"]
    assert "pool-0" in caplog.text


def test_l26_but_alone_it_fails_the_request(world: Cluster) -> None:
    world.pool("pool-1", "10.0.0.0/28", 30, nodeSelector="zone ==")
    with pytest.raises(InvalidInput):
        world.auto()


def test_l27_assign_ip_confirms_the_row_of_its_own_block(world: Cluster) -> None:
    world.block("10.0.0.0/30", owner="node-1", row="pending")
    world.ipam.assign_ip(parse_address("10.0.0.1"), hostname="node-1")
    assert world.rows("node-1") == {"10.0.0.0/30": "confirmed"}


def test_l28_one_handle_over_several_blocks_is_counted_once(world: Cluster) -> None:
    got = world.auto(12, handle="h")
    chosen = [parse_address(text.partition("/")[0]) for text in got[::2]]
    world.ipam.release_ips([ReleaseOption(address) for address in chosen])
    assert sum((world.handle("h") or {}).values()) == 6
    assert violations(world.store.inner) == []


@pytest.mark.parametrize("handle", ["a/b", "a\rb", "a\nb", "a\0b"])
def test_l29_a_handle_that_cannot_be_kept_is_refused_first(world: Cluster, handle: str) -> None:
    world.store.reset()
    with pytest.raises(InvalidInput):
        world.auto(handle=handle)
    with pytest.raises(InvalidInput) as caught:
        world.ipam.assign_ip(parse_address("10.0.0.1"), handle=handle, hostname="node-1")
    assert caught.value.partial is None, "one address is never half done"
    assert world.store.total == 0


class RefusingStore(PassingStore):
    """A store that answers every write of a handle with an error of its own."""

    def commit(self, *writes: Write) -> Sequence[Entry]:
        if any(isinstance(write.key, HandleKey) for write in writes):
            raise StoreError("handles are not welcome", subject=str(writes[0].key))
        return self.inner.commit(*writes)

    def within(self, deadline: Deadline | None) -> Datastore:
        return self


@pytest.mark.parametrize("owned", [False, True])
def test_l29_what_can_never_be_written_claims_no_further_blocks(world: Cluster, owned: bool) -> None:
    if owned:
        world.block(OWN, owner="node-1")
    refusing = IPAM(RefusingStore(world.store.inner), clock=world.clock)
    with pytest.raises(StoreError, match="handles are not welcome") as caught:
        refusing.auto_assign(use="Workload", num4=1, handle="h", hostname="node-1")
    assert ips(caught.value.partial) == []
    assert len(list(world.store.inner.list(Blocks()))) == 1 + owned
    assert len(world.auto(handle="h")) == 1
    assert violations(world.store.inner) == []


def test_what_cannot_be_borrowed_is_not_called_full_alone(world: Cluster) -> None:
    for cidr in ("10.0.0.0/30", "10.0.0.4/30", "10.0.0.8/30", "10.0.0.12/30"):
        world.block(cidr, owner="node-2")
        world.ipam.assign_ip(parse_address(cidr.partition("/")[0]), handle="other", hostname="node-2")
    refusing = IPAM(RefusingStore(world.store.inner), clock=world.clock)
    assigned = refusing.auto_assign(use="Workload", num4=1, handle="h", hostname="node-1").ipv4
    assert assigned is not None
    assert (assigned.addresses, assigned.messages) == ((), ("No IPs available in pools: [10.0.0.0/28]",))
    assert assigned.hints == ("Blocks with free addresses could not be written: handles are not welcome",)


def test_l30_a_block_that_cannot_be_read_is_taken(world: Cluster) -> None:
    put_text(world, path_of(BlockKey(parse_network(OWN))), "garbage")
    assert world.auto() == ["10.0.0.12/30"]
    assert len(world.auto(20)) == 11
    store = world.store.inner
    assert isinstance(store, DocumentStore)
    (row,), _, _ = store._raw_read((path_of(BlockKey(parse_network(OWN))),), ())
    assert row is not None
    assert row.text == "garbage"


def test_l31_a_write_whose_answer_was_lost_counts(world: Cluster) -> None:
    world.block(OWN, owner="node-1")
    lost = Fault("lost", write=1, where=lambda s: isinstance(s, BlockKey))
    assigned = with_faults(world, lost).auto_assign(use="Workload", num4=2, handle="h", hostname="node-1")
    assert ips(assigned) == ["10.0.0.8/30", "10.0.0.9/30"]
    assert world.handle("h") == {OWN: 2}
    with_faults(world, lost).assign_ip(parse_address("10.0.0.10"), handle="g", hostname="node-1")
    assert world.handle("g") == {OWN: 1}
    assert violations(world.store.inner) == []


def test_l31_a_release_whose_answer_was_lost_does_not_take_the_next_holder(world: Cluster) -> None:
    world.auto(handle="h")
    lost = Fault("lost", write=1, where=lambda s: isinstance(s, BlockKey))
    result = with_faults(world, lost).release_ips([ReleaseOption(parse_address("10.0.0.8"))])
    assert result.unallocated == ()
    assert world.handle("h") is None
    assert violations(world.store.inner) == []


@pytest.mark.parametrize("write", range(1, 4))
def test_a_claim_cut_at_any_write_is_whole_or_not_there(world: Cluster, write: int) -> None:
    """Block, handle and row change together: whatever fails, nothing is half done."""
    cut = Fault("before", write=write, error=lambda: StoreError("cut"))
    ipam = with_faults(world, cut)
    with suppress(StoreError):
        ipam.auto_assign(use="Workload", num4=1, handle="h", hostname="node-1")
    assert violations(world.store.inner) == []
    assert set(world.rows().values()) <= {"confirmed"}


def test_a_block_deleted_under_an_assignment_is_made_again(world: Cluster) -> None:
    """Public report P04: the row is there, the block is gone."""
    world.block(OWN, owner="node-1")
    stored = world.store.inner.get(BlockKey(parse_network(OWN)))
    world.store.inner.commit(Delete(stored))
    assert world.auto(handle="h") == ["10.0.0.8/30"]
    again = world.store.inner.get(BlockKey(parse_network(OWN)))
    assert isinstance(again.value, Block)
    world.store.inner.commit(Update(again, again.value.bumped()))
    assert violations(world.store.inner) == []


# --- stores that write one object at a time -----------------------------------------------------------------


@pytest.fixture
def one_by_one() -> Iterator[Cluster]:
    """10.0.0.0/28 in /30 blocks, and another pool, on a store in which block and handle cannot change together."""
    store = MemoryKubeStore()
    store._api.call(Request("POST", "/api/v1/nodes", body={"metadata": {"name": "node-1"}}))
    made = Cluster(store)
    made.pool("pool-1", "10.0.0.0/28", 30)
    made.pool("pool-2", "10.1.0.0/28", 30)
    yield made
    assert violations(made.store.inner) == []


def released_in_two_steps(world: Cluster, address: str, between: Callable[[], object]) -> None:
    """Release an address while something happens between the write of its block and that of its handle."""

    def rival(_store: Datastore, _write: Write) -> None:
        between()

    fault = Fault("conflict", write=1, where=lambda s: isinstance(s, HandleKey), rival=rival)
    store = FaultyStore(world.store.inner, fault)
    IPAM(store, clock=world.clock).release_ips([ReleaseOption(parse_address(address))])
    assert store.struck()


POOL_1, POOL_2 = parse_network("10.0.0.0/28"), parse_network("10.1.0.0/28")


def test_a_handle_that_began_anew_is_not_counted_down(one_by_one: Cluster) -> None:
    """Its address was released, then all of the handle, which then took another one: that one must not be lost."""
    first, _ = (text.partition("/")[0] for text in one_by_one.auto(2, handle="h", ipv4_pools=[POOL_1]))

    def begin_anew() -> None:
        one_by_one.ipam.release_by_handle("h")
        one_by_one.auto(1, handle="h", ipv4_pools=[POOL_1])

    released_in_two_steps(one_by_one, first, begin_anew)
    assert one_by_one.handle("h") == {OWN: 1}


def test_a_handle_keeps_what_its_block_holds(one_by_one: Cluster) -> None:
    """The same while the handle lives on, by an address in another block."""
    first = one_by_one.auto(1, handle="h", ipv4_pools=[POOL_1])[0].partition("/")[0]
    (other,) = one_by_one.auto(1, handle="h", ipv4_pools=[POOL_2])

    def take_again() -> None:
        value = one_by_one.handle("h")
        assert value is not None
        one_by_one.put(HandleKey("h"), Handle("h", {c: n for c, n in value.items() if c != OWN}))
        one_by_one.auto(1, handle="h", ipv4_pools=[POOL_1])

    released_in_two_steps(one_by_one, first, take_again)
    assert one_by_one.handle("h") == {OWN: 1, str(parse_network(other)): 1}


def test_a_handle_that_others_count_too_is_counted_down_all_the_same(one_by_one: Cluster) -> None:
    first, _ = (text.partition("/")[0] for text in one_by_one.auto(2, handle="h", ipv4_pools=[POOL_1]))
    released_in_two_steps(one_by_one, first, lambda: one_by_one.auto(1, handle="h", ipv4_pools=[POOL_1]))
    assert one_by_one.handle("h") == {OWN: 2}


def test_l15_a_count_that_a_crash_left_behind_does_not_keep_a_vm_from_a_named_address(world: Cluster) -> None:
    world.block(OWN, owner="node-1")
    world.put(HandleKey("vm"), Handle("vm", {OWN: 1}))
    world.ipam.assign_ip(parse_address("10.0.0.9"), handle="vm", hostname="node-1", max_per_handle=1)
    assert world.handle("vm") == {OWN: 1}
    assert world.ipam.ips_by_handle("vm") == [parse_address("10.0.0.9")]


def test_l14_a_block_that_is_marked_as_deleted_is_not_there(one_by_one: Cluster) -> None:
    one_by_one.auto(1, handle="h", ipv4_pools=[POOL_1])
    one_by_one.ipam.release_by_handle("h")
    block = one_by_one.store.inner.get(BlockKey(parse_network(OWN)))
    one_by_one.store.inner.commit(Update(block, replace(block.value, deleted=True)))
    assert OWN not in one_by_one.blocks()
    assert one_by_one.auto(1, handle="g", ipv4_pools=[POOL_1]) == ["10.0.0.8/30"]


def test_l21_a_vm_whose_handle_upstream_cannot_name_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no handle can be made for virtual machine") as caught:
        vm_handle("k8s-pod-network", "n" * 60, "v" * 60)
    assert caught.value.hint


def test_l23_the_load_balancer_has_the_default_limit_and_obeys_the_settings(world: Cluster) -> None:
    world.pool("pool-2", "10.1.0.0/27", 32, allowedUses=["LoadBalancer"])

    def services(number: int) -> int:
        with suppress(BlockLimitReached):
            world.auto(number, host="load-balancer", use="LoadBalancer", handle="lb")
        return len(world.ipam.ips_by_handle("lb"))

    assert services(25) == 20
    world.configure(strict_affinity=True, max_blocks_per_host=22)
    assert services(5) == 22


def test_l25_a_virtual_owner_does_not_take_the_row_of_a_host_of_its_name(one_by_one: Cluster) -> None:
    block, host = parse_network(OWN), BlockOwner(HOST, "same")
    assert one_by_one.ipam.claim_affinity(block, host).claimed == (block,)
    assert one_by_one.ipam.claim_affinity(block, BlockOwner(VIRTUAL, "same")).failed == (block,)
    assert one_by_one.rows("same") == {OWN: "confirmed"}
    one_by_one.ipam.release_affinity(block, host, must_be_empty=True)


def test_a_release_that_lost_its_block_reads_it_again(world: Cluster) -> None:
    """Its handle is unchanged, and the block was known from the call before: that guess counts once."""
    store = FaultyStore(world.store.inner)
    ipam = IPAM(store, clock=world.clock, retry=Retry(attempts=5, clock=world.clock))
    ipam.auto_assign(use="Workload", num4=1, handle="h", hostname="node-1")
    store.inject(Fault("conflict", write=1, where=lambda s: isinstance(s, BlockKey)))
    ipam.release_by_handle("h")
    assert store.struck()
    assert world.handle("h") is None
