"""Creating and deleting pools on a store (cli §9.3, ruling 11), and who holds an address (ruling 9)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from calico_ipam.datastore.api import Datastore, Write
from calico_ipam.engine.holder import find_holding, live_users
from calico_ipam.engine.policy import Retry
from calico_ipam.engine.pools import (
    create_pool,
    delete_unused_pool,
    delete_used_pool,
    list_pools,
    look_at_pool,
    pool_use,
    refuse_used,
)
from calico_ipam.engine.release import release_from_block
from calico_ipam.engine.setup import IPV4_CANDIDATES, choose_ipv4, ensure_cluster, ensure_node, ensure_pool
from calico_ipam.engine.world import Engine
from calico_ipam.errors import AlreadyExists, BadHandle, BadSequenceNumber, InvalidInput, NotFound, RefusedError
from calico_ipam.model.addresses import Network, parse_address, parse_network
from calico_ipam.model.keys import ResourceKey
from calico_ipam.model.pool_rules import PoolRequest
from calico_ipam.model.resource import CLUSTER_INFORMATION, IP_POOL, NODE, WORKLOAD_ENDPOINT, Resource
from calico_ipam.model.timestamps import SECOND
from tests.cluster import Cluster, cluster
from tests.faulty import Fault, FaultyStore


@pytest.fixture
def world() -> Iterator[Cluster]:
    with cluster() as made:
        made.nodes("node-1", "node-2")
        yield made


@pytest.fixture
def engine(world: Cluster) -> Engine:
    return Engine(world.store, world.clock, Retry(clock=world.clock))


class Sleeper:
    """A clock at whose wait something happens."""

    def __init__(self, world: Cluster, act: Callable[[], Any]) -> None:
        self.world, self.act, self.slept = world, act, 0.0

    def now(self) -> int:
        return self.world.clock.now()

    def sleep(self, seconds: float) -> None:
        self.slept += seconds
        self.act()


def spec(world: Cluster, name: str) -> dict[str, Any]:
    return dict(world.store.inner.get(ResourceKey(IP_POOL, name)).value.spec)


# --- creating -----------------------------------------------------------------------------------------------


def test_a_pool_with_blocks_of_another_size_under_it(world: Cluster, engine: Engine) -> None:
    """P01: delete a pool with an address in use, make it again with another block size."""
    world.pool("pool-1", "172.27.90.0/24", 29)
    (address,) = world.auto(1, handle="h-a")
    delete_used_pool(engine, "pool-1", world.ipam.release_pool_affinities)
    with pytest.raises(InvalidInput, match="conflicts with existing allocations"):
        create_pool(engine, PoolRequest("pool-1", "172.27.90.0/24", block_size=26))
    with pytest.raises(InvalidInput, match="conflicts with existing allocations"):
        create_pool(engine, PoolRequest("wide", "172.27.90.0/23", block_size=26))
    create_pool(engine, PoolRequest("pool-1", "172.27.90.0/24", block_size=29))
    held = find_holding(engine, parse_address(address.partition("/")[0]))
    assert held is not None
    assert held.handle == "h-a"


def test_of_two_overlapping_pools_made_at_once_one_gives_way(world: Cluster, engine: Engine) -> None:
    def rival(_store: Datastore, _write: Write) -> None:
        create_pool(engine, PoolRequest("pool-1", "10.0.0.0/16"))

    store = FaultyStore(world.store.inner, Fault("conflict", write=1, rival=rival))
    with pytest.raises(InvalidInput, match=r"IPPool\(pool-2\) CIDR overlaps with IPPool\(pool-1\)"):
        create_pool(replace(engine, store=store), PoolRequest("pool-2", "10.0.1.0/24"))
    assert store.struck()
    assert [pool.name for pool in list_pools(engine).pools] == ["pool-1"]


def test_after_the_last_address_another_size_is_fine(world: Cluster, engine: Engine) -> None:
    world.pool("pool-1", "10.0.0.0/24", 29)
    world.auto(1, handle="h-a")
    delete_used_pool(engine, "pool-1", world.ipam.release_pool_affinities)
    world.ipam.release_by_handle("h-a")
    create_pool(engine, PoolRequest("pool-1", "10.0.0.0/24", block_size=26))


def test_a_block_that_cannot_be_read_counts(world: Cluster, engine: Engine) -> None:
    from calico_ipam.datastore.documents import DocumentStore, RawWrite

    assert isinstance(world.store.inner, DocumentStore)
    path = "/calico/ipam/v2/assignment/ipv4/block/10.0.0.64-28"
    world.store.inner._raw_commit((RawWrite("create", path, "{broken"),))
    with pytest.raises(InvalidInput, match="conflicts with existing allocations"):
        create_pool(engine, PoolRequest("pool-1", "10.0.0.0/24"))
    world.pool("pool-1", "10.0.0.0/24", 26)
    with pytest.raises(RefusedError, match=r"blocks that cannot be read \(10.0.0.64/28\)"):
        delete_unused_pool(engine, "pool-1", world.ipam.release_pool_affinities)


def test_a_name_is_used_once(world: Cluster, engine: Engine) -> None:
    create_pool(engine, PoolRequest("a", "10.0.0.0/24"))
    with pytest.raises(AlreadyExists, match=r"resource already exists: IPPool\(a\)") as caught:
        create_pool(engine, PoolRequest("a", "10.1.0.0/24"))
    assert "Pool a has CIDR 10.0.0.0/24" in caught.value.hint


def test_what_is_stored(world: Cluster, engine: Engine) -> None:
    made = create_pool(engine, PoolRequest("a", "2001:DB8::/64", node_selector="has(x)", nat_outgoing=True))
    stored = world.store.inner.get(ResourceKey(IP_POOL, "a")).value
    assert list(stored.spec.items()) == [
        ("cidr", "2001:db8::/64"),
        ("vxlanMode", "Never"),
        ("ipipMode", "Never"),
        ("natOutgoing", True),
        ("blockSize", 122),
        ("nodeSelector", "has(x)"),
        ("allowedUses", ["Workload", "Tunnel"]),
        ("assignmentMode", "Automatic"),
    ]
    assert made == list_pools(engine).pools[0]


# --- deleting -----------------------------------------------------------------------------------------------


def test_an_unused_pool_goes_with_its_empty_blocks(world: Cluster, engine: Engine) -> None:
    world.pool("pool-1", "10.0.0.0/24", 26)
    world.pool("pool-2", "10.1.0.0/24", 26)
    world.block("10.0.0.0/26", owner="node-1")
    world.block("10.1.0.0/26", owner="node-1")
    delete_unused_pool(engine, "pool-1", world.ipam.release_pool_affinities)
    assert [pool.name for pool in list_pools(engine).pools] == ["pool-2"]
    assert list(world.blocks()) == list(world.rows()) == ["10.1.0.0/26"]
    assert world.clock.slept == 0.5


def test_a_used_pool_is_refused_and_left_alone(world: Cluster, engine: Engine) -> None:
    world.pool("pool-1", "10.0.0.0/24", 26)
    world.auto(2, host="node-1", handle="a", attrs={"node": "node-1"})
    world.auto(1, host="node-2", handle="b", attrs={"node": "node-2"})
    world.auto(1, host="node-2", handle="c")
    before = spec(world, "pool-1")
    with pytest.raises(RefusedError) as caught:
        delete_unused_pool(engine, "pool-1", world.ipam.release_pool_affinities)
    assert str(caught.value) == "pool pool-1 is in use: 4 addresses in use (2 on node-1, 2 on node-2)"
    assert "--force" in caught.value.hint
    assert spec(world, "pool-1") == before
    assert world.clock.slept == 0


def test_a_pool_that_comes_into_use_meanwhile_is_enabled_again(world: Cluster) -> None:
    world.pool("pool-1", "10.0.0.0/24", 26, natOutgoing=True)
    world.block("10.0.0.0/26", owner="node-1")
    before = spec(world, "pool-1")

    clock = Sleeper(world, lambda: assign_anyway(world))
    engine = Engine(world.store, clock, Retry(clock=clock))
    with pytest.raises(RefusedError, match="1 address in use"):
        delete_unused_pool(engine, "pool-1", world.ipam.release_pool_affinities)
    assert spec(world, "pool-1") == before
    assert list(world.rows()) == ["10.0.0.0/26"]


def assign_anyway(world: Cluster) -> None:
    """Do what a request does that had read the pools before this one was disabled."""
    from dataclasses import replace

    from calico_ipam.model.keys import BlockKey

    assert spec(world, "pool-1")["disabled"] is True
    block = world.stored_block("10.0.0.0/26")
    assert block is not None
    block = block.assign_address(parse_address("10.0.0.5"), handle="late", attrs={"node": "node-1"})
    world.put(BlockKey(block.cidr), replace(block, sequence_number=block.sequence_number + 1))


def test_force_keeps_the_addresses(world: Cluster, engine: Engine) -> None:
    world.pool("pool-1", "10.0.0.0/24", 26)
    world.auto(1, host="node-1", handle="a")
    world.block("10.0.0.0/26", owner="node-2")
    resource, use = look_at_pool(engine, "pool-1")
    assert (resource.name, use.addresses) == ("pool-1", 1)
    delete_used_pool(engine, "pool-1", world.ipam.release_pool_affinities)
    assert list_pools(engine).pools == ()
    assert world.handle("a") == {"10.0.0.128/26": 1}
    left = world.stored_block("10.0.0.128/26")
    assert left is not None
    assert left.affinity is None
    assert list(world.blocks()) == ["10.0.0.128/26"]
    assert world.rows() == {}


def test_disable_and_delete_survive_lost_races(world: Cluster) -> None:
    """Somebody changes the pool between every read and write of ours, a few times."""
    world.pool("pool-1", "10.0.0.0/24", 26)
    commit = world.store.commit
    lost: list[Any] = []

    def racing(*writes: Any) -> Any:
        if len(lost) % 2 == 0 and len(lost) < 8:
            world.pool("pool-1", "10.0.0.0/24", 26, natOutgoing=bool(len(lost) & 2))
        lost.append(writes)
        return commit(*writes)

    world.store.commit = racing  # type: ignore[method-assign]  # a race on purpose
    engine = Engine(world.store, world.clock, Retry(clock=world.clock))
    delete_unused_pool(engine, "pool-1", lambda cidr: None)
    assert list_pools(engine).pools == ()
    assert len(lost) > 2


def test_affinities_that_cannot_be_released_leave_the_pool_disabled(world: Cluster, engine: Engine) -> None:
    world.pool("pool-1", "10.0.0.0/24", 26)

    def fail(_cidr: Network) -> None:
        raise RefusedError("no")

    with pytest.raises(RefusedError, match="no"):
        delete_used_pool(engine, "pool-1", fail)
    assert spec(world, "pool-1")["disabled"] is True


@pytest.mark.parametrize(
    ("name", "hint"),
    [("nope", "Known pools: bad, pool-1."), ("10.0.0.0/24", "Pool pool-1 has this CIDR: give its name.")],
)
def test_an_unknown_pool(world: Cluster, engine: Engine, name: str, hint: str) -> None:
    world.pool("pool-1", "10.0.0.0/24", 26)
    world.pool("bad", "rubbish")
    with pytest.raises(NotFound) as caught:
        look_at_pool(engine, name)
    assert str(caught.value) == f"resource does not exist: IPPool({name}) with error: <nil>"
    assert caught.value.hint == hint


def test_no_pools_at_all(engine: Engine) -> None:
    with pytest.raises(NotFound) as caught:
        look_at_pool(engine, "nope")
    assert caught.value.hint == "There are no pools."


def test_a_pool_whose_cidr_says_nothing_can_go(world: Cluster, engine: Engine) -> None:
    world.pool("bad", "rubbish")
    delete_unused_pool(engine, "bad", world.ipam.release_pool_affinities)
    assert list_pools(engine).unreadable == ()


def test_nobodys_addresses_are_no_use(world: Cluster, engine: Engine) -> None:
    """Cooling addresses, those Windows keeps, and those of a neighbour pool in the same block."""
    from calico_ipam.model.block import Block, HostReserved
    from calico_ipam.model.handle import WINDOWS_RESERVED
    from calico_ipam.model.keys import BlockKey

    world.pool("pool-1", "10.0.0.0/27", 27)
    world.configure(cooldown_seconds=60)
    world.auto(1, handle="h")
    world.ipam.release_by_handle("h")
    wide = Block.new(parse_network("10.0.0.64/26"), now=0, reserved=HostReserved(3, 1, WINDOWS_RESERVED, "windows"))
    world.put(BlockKey(wide.cidr), wide)
    world.pool("pool-2", "10.0.0.64/26", 26)
    for pool in list_pools(engine).pools:
        use = pool_use(engine, pool)
        assert not use.any
        refuse_used(pool.name, use)
        assert str(use) == "no address in use"


def test_only_addresses_inside_the_pool_count(world: Cluster, engine: Engine) -> None:
    world.pool("narrow", "10.0.0.0/27", 27)
    world.block("10.0.0.0/26", owner="node-1")
    world.no_pool("narrow")
    world.pool("all", "10.0.0.0/26", 26)
    for last in (1, 40):
        world.ipam.assign_ip(parse_address(f"10.0.0.{last}"), handle=f"h{last}", hostname="node-1")
    world.no_pool("all")
    world.pool("narrow", "10.0.0.0/27", 27)
    assert look_at_pool(engine, "narrow")[1].by_node == {"node-1": 1}


def test_many_nodes_are_not_all_named(world: Cluster, engine: Engine) -> None:
    world.pool("pool-1", "10.0.0.0/24", 26)
    for number in range(13):
        world.auto(1, handle=f"h{number}", attrs={"node": f"n{number:02}"})
    assert str(look_at_pool(engine, "pool-1")[1]).endswith("1 on n09 and 3 more nodes)")


# --- who holds an address -----------------------------------------------------------------------------------


def test_holding(world: Cluster, engine: Engine) -> None:
    world.pool("pool-1", "10.0.0.0/24", 26)
    world.block("10.0.0.0/26", owner="node-1")
    address = parse_address("10.0.0.5")
    assert find_holding(engine, address) is None
    assert find_holding(engine, parse_address("10.0.0.200")) is None
    assert find_holding(engine, parse_address("192.168.0.1")) is None
    attrs = {"node": "node-2", "timestamp": "2026-01-02 03:04:06.5 +0000 UTC"}
    world.ipam.assign_ip(address, handle="h", attrs=attrs, hostname="node-2")
    held = find_holding(engine, address)
    assert held is not None
    assert (held.handle, held.node, held.borrowed, held.pool) == ("h", "node-2", True, "pool-1")
    assert (str(held.block), str(held.block_owner), held.released_at) == ("10.0.0.0/26", "host:node-1", None)
    assert held.since is not None
    assert held.since % SECOND == SECOND // 2
    assert held.sequence_number > 0


@pytest.mark.parametrize("pool", ["disabled", "gone", "another size"])
def test_holding_wherever_its_block_is(world: Cluster, engine: Engine, pool: str) -> None:
    world.pool("pool-1", "10.0.0.0/24", 28)
    address = parse_address(world.auto(1, handle="h")[0].partition("/")[0])
    if pool == "gone":
        world.no_pool("pool-1")
    else:
        world.pool("pool-1", "10.0.0.0/24", 28 if pool == "disabled" else 26, disabled=pool == "disabled")
    held = find_holding(engine, address)
    assert held is not None
    assert held.handle == "h"
    assert release_from_block(engine, held.block, [held.release_option()]) == ()
    assert find_holding(engine, address) is None
    assert world.handle("h") is None


def test_cooling_and_ripe(world: Cluster, engine: Engine) -> None:
    world.pool("pool-1", "10.0.0.0/24", 26)
    world.configure(cooldown_seconds=60)
    address = parse_address(world.auto(1, handle="h")[0].partition("/")[0])
    world.ipam.release_by_handle("h")
    world.clock.advance(20.5)
    held = find_holding(engine, address)
    assert held is not None
    assert (held.handle, held.ripe, held.free_in) == ("", False, 40)
    world.clock.advance(60)
    held = find_holding(engine, address)
    assert held is not None
    assert (held.ripe, held.free_in) == (True, 0)


def test_a_holder_that_changed_is_not_released(world: Cluster, engine: Engine) -> None:
    """Ruling 9: between looking and releasing, the address goes to somebody else, or to the same one again."""
    world.pool("pool-1", "10.0.0.0/24", 26)
    world.block("10.0.0.0/26", owner="node-1")
    address = parse_address("10.0.0.5")
    world.ipam.assign_ip(address, handle="h", hostname="node-1")
    looked = find_holding(engine, address)
    assert looked is not None
    for handle, error in (("other", (BadHandle, BadSequenceNumber)), ("h", (BadSequenceNumber,))):
        world.ipam.release_ips([looked.release_option()] if handle == "other" else [_by_address(engine, address)])
        world.ipam.assign_ip(address, handle=handle, hostname="node-1")
        with pytest.raises(error):
            release_from_block(engine, looked.block, [looked.release_option()])
        held = find_holding(engine, address)
        assert held is not None
        assert held.handle == handle


def _by_address(engine: Engine, address: Any) -> Any:
    held = find_holding(engine, address)
    assert held is not None
    return held.release_option()


def test_a_block_that_cannot_be_read_is_told(world: Cluster, engine: Engine) -> None:
    from calico_ipam.datastore.documents import DocumentStore, RawWrite

    assert isinstance(world.store.inner, DocumentStore)
    path = "/calico/ipam/v2/assignment/ipv4/block/10.0.0.64-28"
    world.store.inner._raw_commit((RawWrite("create", path, "{broken"),))
    with pytest.raises(RefusedError, match=r"block 10.0.0.64/28 of address 10.0.0.65 cannot be read"):
        find_holding(engine, parse_address("10.0.0.65"))


def test_live_users(world: Cluster, engine: Engine) -> None:
    def node(name: str, **body: Any) -> None:
        world.put(ResourceKey(NODE, name), Resource.new(NODE, name, body))

    def endpoint(name: str, networks: Any) -> None:
        value = Resource.new(WORKLOAD_ENDPOINT, name, {"ipNetworks": networks}, namespace="ns")
        world.put(ResourceKey(WORKLOAD_ENDPOINT, name, "ns"), value)

    endpoint("e1", ["10.0.0.1/32", "fd00::1/128"])
    endpoint("e2", ["10.0.0.2", None, "rubbish"])
    endpoint("e3", "10.0.0.1")
    node("t1", ipv4VXLANTunnelAddr="10.0.0.10", ipv6VXLANTunnelAddr="fd00::10")
    node("t2", bgp={"ipv4IPIPTunnelAddr": "10.0.0.11/26"})
    node("t3", wireguard={"interfaceIPv4Address": "10.0.0.12", "interfaceIPv6Address": "fd00::12"})
    node("t4", bgp="damaged", wireguard=None, ipv4VXLANTunnelAddr=7)
    expected = {
        "10.0.0.1": ["workload endpoint ns/e1"],
        "fd00::1": ["workload endpoint ns/e1"],
        "10.0.0.2": ["workload endpoint ns/e2"],
        "10.0.0.3": [],
        "10.0.0.10": ["tunnel of node t1"],
        "fd00::10": ["tunnel of node t1"],
        "10.0.0.11": ["tunnel of node t2"],
        "10.0.0.12": ["tunnel of node t3"],
        "fd00::12": ["tunnel of node t3"],
    }
    assert {text: live_users(engine, parse_address(text)) for text in expected} == expected


# --- first set-up -------------------------------------------------------------------------------------------


def test_cluster_information(world: Cluster, engine: Engine) -> None:
    first = ensure_cluster(engine, "a" * 32)
    assert (first.guid, first.ready, first.state) == ("a" * 32, True, "created")
    second = ensure_cluster(engine, "b" * 32)
    assert (second.guid, second.ready, second.state) == ("a" * 32, True, "exists")


@pytest.mark.parametrize(
    ("stored", "ready"), [({}, True), ({"datastoreReady": None}, True), ({"datastoreReady": False}, False)]
)
def test_only_false_means_locked(world: Cluster, engine: Engine, stored: dict[str, Any], ready: bool) -> None:
    """Ruling 12; whatever is stored stays."""
    key = ResourceKey(CLUSTER_INFORMATION, "default")
    world.put(key, Resource.new(CLUSTER_INFORMATION, "default", stored))
    assert ensure_cluster(engine, "a" * 32).ready is ready
    assert world.store.inner.get(key).value.spec == stored


def test_node_and_pool_are_made_once(world: Cluster, engine: Engine) -> None:
    assert [ensure_node(engine, "node-9") for _ in range(2)] == ["created", "exists"]
    request = PoolRequest("default-ipv4-ippool", "10.0.0.0/16")
    assert [ensure_pool(engine, request)[1] for _ in range(2)] == ["created", "exists"]
    assert ensure_pool(engine, PoolRequest("other", "10.0.0.0/16"))[0].name == "default-ipv4-ippool"
    with pytest.raises(AlreadyExists, match=r"IPPool\(default-ipv4-ippool\)"):
        ensure_pool(engine, PoolRequest("default-ipv4-ippool", "10.1.0.0/16"))


def test_the_default_range_is_free(world: Cluster, engine: Engine) -> None:
    assert str(choose_ipv4(engine, [])) == "10.244.0.0/16"
    world.pool("taken", "10.244.128.0/24")
    assert str(choose_ipv4(engine, [parse_network("10.245.3.1")])) == "172.28.0.0/16"
    with pytest.raises(InvalidInput, match="no usual private range is free") as caught:
        choose_ipv4(engine, [parse_network(text) for text in IPV4_CANDIDATES])
    assert "--ipv4-pool CIDR" in caught.value.hint
