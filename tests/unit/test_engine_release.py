"""Assigning given addresses and releasing them (ipam-library §24.6, §24.7)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from calico_ipam.datastore.api import Datastore, Delete, Write
from calico_ipam.engine.client import IPAM
from calico_ipam.errors import (
    AlreadyExists,
    BadHandle,
    BadSequenceNumber,
    InvalidInput,
    NotFound,
    RefusedError,
)
from calico_ipam.model.addresses import Address, parse_address, parse_network
from calico_ipam.model.block import ReleaseOption
from calico_ipam.model.keys import BlockKey, HandleKey, Key, Scope
from tests.cluster import Cluster, cluster, texts
from tests.faulty import Fault, FaultyStore
from tests.invariants import violations
from tests.sequential import SequentialStore


@pytest.fixture
def world() -> Iterator[Cluster]:
    with cluster() as made:
        made.nodes("node-1", "node-2", "host1", "host2")
        yield made
        assert violations(made.store.inner) == []


@pytest.fixture
def usual(world: Cluster) -> Cluster:
    world.pool("pool-4", "192.168.1.0/24", 26)
    world.pool("pool-6", "fd80:24e2:f998:72d6::/120", 122)
    return world


def ip(text: str) -> Address:
    return parse_address(text.partition("/")[0])


# --- §24.6: AssignIP ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["192.168.1.0", "fd80:24e2:f998:72d6::"])
def test_the_first_address_of_a_pool(usual: Cluster, text: str) -> None:
    usual.ipam.assign_ip(ip(text), hostname="node-1")
    assert usual.ipam.assignment_attributes(ip(text)).handle is None


def test_an_address_in_no_pool(usual: Cluster) -> None:
    with pytest.raises(InvalidInput, match="not in a configured pool"):
        usual.ipam.assign_ip(ip("1.1.1.1"), hostname="node-1")


def test_the_same_address_twice(usual: Cluster) -> None:
    usual.ipam.assign_ip(ip("192.168.1.7"), hostname="node-1")
    with pytest.raises(AlreadyExists) as caught:
        usual.ipam.assign_ip(ip("192.168.1.7"), hostname="node-2")
    assert caught.value.subject == "192.168.1.7"
    assert caught.value.reason == "Address already assigned in block"


@pytest.mark.parametrize(
    ("uses", "use", "allowed"),
    [
        (["Workload"], "Tunnel", False),
        (["Workload"], "Workload", True),
        (["Workload"], None, True),
        ([], "Tunnel", True),
    ],
)
def test_allowed_uses(world: Cluster, uses: list[str], use: str | None, allowed: bool) -> None:
    world.pool("pool-1", "10.0.0.0/24", 26, allowedUses=uses)
    if allowed:
        world.ipam.assign_ip(ip("10.0.0.1"), hostname="node-1", use=use)
        return
    with pytest.raises(InvalidInput, match='not allowed for use "Tunnel"'):
        world.ipam.assign_ip(ip("10.0.0.1"), hostname="node-1", use=use)


def test_at_the_cap_the_same_address_is_fine_and_another_is_not(usual: Cluster) -> None:
    usual.ipam.assign_ip(ip("192.168.1.7"), hostname="node-1", handle="vm", attrs={"pod": "a"}, max_per_handle=1)
    usual.ipam.assign_ip(ip("192.168.1.7"), hostname="node-1", handle="vm", attrs={"pod": "b"}, max_per_handle=1)
    assert usual.ipam.ips_by_handle("vm") == [ip("192.168.1.7")]
    assert usual.ipam.assignment_attributes(ip("192.168.1.7")).active == {"pod": "a"}
    with pytest.raises(RefusedError, match="already has IP\\(s\\) allocated"):
        usual.ipam.assign_ip(ip("192.168.1.8"), hostname="node-1", handle="vm", max_per_handle=1)
    assert usual.handle("vm") == {"192.168.1.0/26": 1}


# --- §24.7: release -----------------------------------------------------------------------------------------


def test_what_is_not_allocated_is_said(usual: Cluster) -> None:
    in_use = ip(usual.auto()[0])
    options = [ReleaseOption(ip(text)) for text in ("9.9.9.9", "192.168.1.200")]
    assert texts(usual.ipam.release_ips(options).unallocated) == ["192.168.1.200", "9.9.9.9"]
    assert usual.ipam.release_ips([ReleaseOption(in_use)]).unallocated == ()


def test_66_addresses_of_two_blocks(usual: Cluster) -> None:
    options = [ReleaseOption(ip(text), "h") for text in usual.auto(66, handle="h")]
    result = usual.ipam.release_ips(options)
    assert (len(result.released), result.unallocated) == (66, ())
    assert usual.handle("h") is None
    assert all(block.empty for block in usual.blocks().values())


def test_100_addresses_of_many_blocks_a_disabled_pool_and_ipv6(usual: Cluster) -> None:
    usual.pool("pool-small", "10.0.0.0/26", 30)
    requested = [parse_network("10.0.0.0/26")]
    got = usual.auto(40, handle="h", ipv4_pools=requested) + usual.auto(60, version=6, handle="h")
    usual.pool("pool-small", "10.0.0.0/26", 30, disabled=True)
    result = usual.ipam.release_ips([ReleaseOption(ip(text)) for text in got])
    assert (len(result.released), result.unallocated) == (100, ())
    assert usual.handles() == {}


def test_one_handle_over_two_blocks_in_one_call_never_undercounts(world: Cluster) -> None:
    """Limit L28: upstream's workers share one copy of the handle and subtract twice."""
    world.pool("pool-1", "10.0.0.0/28", 30)
    got = world.auto(8, handle="h")
    world.ipam.release_ips([ReleaseOption(ip(text)) for text in (*got[:2], *got[4:6])])
    assert sum((world.handle("h") or {}).values()) == 4
    assert len(world.ipam.ips_by_handle("h")) == 4


def test_a_doubled_address_frees_one_place(world: Cluster) -> None:
    world.pool("pool-1", "10.0.0.0/26", 26)
    got = world.auto(64, handle="h")
    result = world.ipam.release_ips([ReleaseOption(ip(got[5]))] * 2)
    assert (len(result.released), result.unallocated) == (2, ())
    assert world.handle("h") == {"10.0.0.0/26": 63}
    assert world.auto() == [got[5]]
    assert world.auto() == []


def test_guards_of_a_block_with_number_0(usual: Cluster) -> None:
    assert usual.ipam.release_ips([]).released == ()
    address = ip(usual.auto(handle="h")[0])
    usual.ipam.release_by_handle("h")
    free = ReleaseOption(address, None, 0)
    assert usual.ipam.release_ips([free]).unallocated == (address,)
    with pytest.raises(BadSequenceNumber):
        usual.ipam.release_ips([ReleaseOption(address, None, 1)])
    usual.ipam.assign_ip(address, hostname="node-1", handle="h")
    with pytest.raises(BadHandle):
        usual.ipam.release_ips([ReleaseOption(address, "wrong")])
    assert usual.ipam.ips_by_handle("h") == [address]


def test_ten_rounds_of_the_same_address_and_handle(usual: Cluster) -> None:
    address = ip("192.168.1.9")
    usual.ipam.assign_ip(address, hostname="node-1", handle="h")
    number = usual.ipam.assignment_attributes(address).sequence_number
    for _ in range(10):
        usual.ipam.release_ips([ReleaseOption(address, "h", number)])
        usual.ipam.assign_ip(address, hostname="node-1", handle="h")
        with pytest.raises(BadSequenceNumber):
            usual.ipam.release_ips([ReleaseOption(address, "h", number)])
        assert usual.ipam.ips_by_handle("h") == [address]
        following = usual.ipam.assignment_attributes(address).sequence_number
        assert following == number + 2
        number = following


def test_an_old_number_never_fits_a_block_that_was_made_again(usual: Cluster) -> None:
    address = ip(usual.auto(handle="h")[0])
    number = usual.ipam.assignment_attributes(address).sequence_number
    usual.disown(next(iter(usual.blocks())))
    usual.ipam.release_by_handle("h")
    assert usual.blocks() == {}
    usual.clock.advance(1)
    usual.ipam.assign_ip(address, hostname="node-1", handle="h")
    with pytest.raises(BadSequenceNumber):
        usual.ipam.release_ips([ReleaseOption(address, "h", number)])


def test_a_failing_block_does_not_stop_the_others(world: Cluster) -> None:
    world.pool("pool-1", "10.0.0.0/28", 30)
    got = [ip(text) for text in world.auto(5, handle="h")]
    options = [ReleaseOption(got[0], "wrong"), ReleaseOption(got[1], "h"), ReleaseOption(got[4], "h")]
    with pytest.raises(BadHandle) as caught:
        world.ipam.release_ips(options)
    assert caught.value.partial.released == (options[2],)
    assert world.ipam.ips_by_handle("h") == got[:4]


def test_handles_come_and_go(usual: Cluster) -> None:
    with pytest.raises(NotFound):
        usual.ipam.ips_by_handle("h")
    assigned = ip(usual.auto(handle="h")[0])
    assert usual.ipam.ips_by_handle("h") == [assigned]
    usual.ipam.release_by_handle("h")
    with pytest.raises(NotFound):
        usual.ipam.ips_by_handle("h")


@pytest.mark.parametrize(("excluded", "stays"), [("selector", False), ("use", True), ("requested", True)])
def test_an_empty_block_of_a_pool_that_is_out_of_play(world: Cluster, excluded: str, stays: bool) -> None:
    """It goes back only when its pool stopped selecting the node."""
    world.pool("pool-1", "10.0.0.0/28", 30)
    world.pool("pool-2", "10.0.1.0/28", 30)
    first = [parse_network("10.0.0.0/28")]
    world.auto(handle="h", ipv4_pools=first)
    world.ipam.release_by_handle("h")
    block = next(iter(world.blocks()))
    if excluded == "selector":
        world.pool("pool-1", "10.0.0.0/28", 30, nodeSelector="has(elsewhere)")
    elif excluded == "use":
        world.pool("pool-1", "10.0.0.0/28", 30, allowedUses=["Tunnel"])
    world.auto(ipv4_pools=[parse_network("10.0.1.0/28")] if excluded == "requested" else [])
    assert (block in world.blocks()) is stays
    assert (block in world.rows("node-1")) is stays


def test_labels_swapped_between_two_hosts(world: Cluster) -> None:
    world.pool("pool-1", "10.0.0.0/30", 30, nodeSelector='rack == "a"')
    world.nodes("host1", labels={"rack": "a"})
    world.nodes("host2", labels={"rack": "b"})
    assert len(world.auto(3, host="host1")) == 3
    world.nodes("host1", labels={"rack": "b"})
    world.nodes("host2", labels={"rack": "a"})
    with pytest.raises(RefusedError, match="no configured Calico pools for node host1"):
        world.auto(host="host1")
    assert world.auto(host="host2") == ["10.0.0.3/30"]
    assert world.rows("host1") == {"10.0.0.0/30": "confirmed"}
    assert world.rows("host2") == {}


def test_an_address_that_is_asked_for_twice_is_told_twice_when_nothing_is_there(usual: Cluster) -> None:
    """§13.1: without a block, or outside of all of them, every option is one free address."""
    asked = ["192.168.1.9", "192.168.1.9", "10.9.9.9", "10.9.9.9"]
    result = usual.ipam.release_ips([ReleaseOption(ip(text)) for text in asked])
    assert sorted(str(address) for address in result.unallocated) == sorted(asked)


# --- somebody else at work ----------------------------------------------------------------------------------


def test_a_handle_that_vanishes_under_a_release_leaves_no_address_behind(usual: Cluster) -> None:
    """Nobody would find the addresses of a handle that is not there: what it counted is released all the same."""
    usual.auto(3, handle="h")
    usual.auto(1, handle="k")

    def vanish(store: Datastore, write: Write) -> None:
        store.commit(Delete(store.get(HandleKey("h"))))

    store = FaultyStore(usual.store.inner, Fault("conflict", write=1, rival=vanish))
    IPAM(store, clock=usual.clock).release_by_handle("h")
    assert store.struck()
    assert [attribute.handle for block in usual.blocks().values() for _, attribute in block.taken()] == ["k"]


def test_a_handle_that_is_begun_anew_under_a_release_is_released_whole(usual: Cluster) -> None:
    usual.auto(3, handle="h")
    looks: list[BlockKey] = []

    def begin_anew(store: Datastore, write: Write) -> None:
        other = IPAM(store, clock=usual.clock)
        other.release_by_handle("h")

        def assign(scope: Key | Scope) -> bool:
            if isinstance(scope, BlockKey) and not looks:
                looks.append(scope)
                other.auto_assign(use="Workload", num4=2, handle="h", hostname="node-1")
            return False

        faulty.inject(Fault("before", operation=1, verb="read", where=assign))

    faulty = FaultyStore(usual.store.inner, Fault("conflict", write=1, rival=begin_anew))
    IPAM(faulty, clock=usual.clock).release_by_handle("h")
    assert looks
    assert usual.handle("h") is None
    assert [list(block.taken()) for block in usual.blocks().values()] == [[]]


def test_a_block_is_given_back_although_its_handle_was_lost_in_a_race(usual: Cluster) -> None:
    """Where block and handle are two writes: the block has been written when the handle turns out to be changed."""
    usual.auto(1, handle="h")
    usual.pool("pool-4", "192.168.1.0/24", 26, nodeSelector="zone == 'elsewhere'")
    store = FaultyStore(usual.store.inner, Fault("conflict", write=2))
    IPAM(SequentialStore(store), clock=usual.clock).release_by_handle("h")
    assert store.struck()
    assert usual.blocks() == {}
    assert usual.rows() == {}
