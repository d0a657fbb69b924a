"""Whole situations, carried over from upstream's system tests and its table of special cases (gc §12, §19.2-§19.4)."""

from __future__ import annotations

from typing import Any

import pytest
from calico_gc.decide import FINISHED_WITHOUT_ADDRESS, NODE_MISMATCH, Rules
from calico_gc.metrics import own
from calico_gc.options import Options
from calico_gc.upstream_metrics import lines, number
from calico_gc.view import view_of

from calico_ipam.errors import StoreUnavailable, Unauthorized
from calico_ipam.model.keys import BlockKey, Handles, ResourceKey
from calico_ipam.model.resource import IP_POOL, IP_RESERVATION
from tests.gc_things import (
    NETWORK,
    add_block,
    block_of,
    calico_node,
    drop,
    has_handle,
    holders,
    pod_attrs,
    pool,
    put,
    reservation,
    rows,
    running_pod,
    stored_block,
    tunnel_attrs,
)
from tests.gc_world import World

H1 = f"{NETWORK}.aa"
CIDR = "192.168.0.0/26"


def alone(attrs: dict[str, str], handle: str = H1, **options: Any) -> World:
    """A world with one address on the live node n1."""
    world = World(options=Options(rules=Rules(leak_grace=1.0, **options)))
    world.node("n1")
    pool(world, "pool", "192.168.0.0/24")
    add_block(world, CIDR, "n1", {1: (handle, attrs)})
    return world


def kept(world: World) -> bool:
    world.start()
    world.run(30)
    return 1 in holders(world, CIDR)


# --- system tests on Kubernetes -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ipipTunnelAddress", "vxlanTunnelAddress", "wireguardTunnelAddress"])
def test_tunnel_addresses_of_a_live_node_are_kept(kind: str) -> None:
    assert kept(alone(tunnel_attrs("n1", kind), f"tunnel-{kind}"))


@pytest.mark.parametrize(("grace", "blocks"), [(1.0, 1), (300.0, 2)])
def test_a_block_that_empties_goes_after_the_grace(grace: float, blocks: int) -> None:
    world = World(options=Options(rules=Rules(leak_grace=grace)))
    world.node("n1")
    for n in (1, 65):
        running_pod(world, f"p{n}", "n1", f"192.168.0.{n}")
    add_block(world, CIDR, "n1", {1: (H1, pod_attrs("n1", "p1"))})
    add_block(world, "192.168.0.64/26", "n1", {1: (f"{NETWORK}.bb", pod_attrs("n1", "p65"))})
    world.start()
    put(world, BlockKey(block_of(world, "192.168.0.64/26").cidr), block_of(world, "192.168.0.64/26", "n1"))
    world.settle()
    world.run(10 if grace < 10 else 290)
    assert len(rows(world)) == blocks


def test_an_address_that_only_names_its_node_is_kept() -> None:
    assert kept(alone({"node": "n1"}))


def test_an_address_of_a_missing_pod_is_freed_and_the_block_stays() -> None:
    world = alone(pod_attrs("n1", "p"))
    assert not kept(world)
    assert stored_block(world, CIDR) is not None


@pytest.mark.parametrize(
    ("ips", "keeps"),
    [
        (("192.168.0.1",), True),
        (("fe80::", "192.168.0.1"), True),
        ((), True),
        (("192.168.0.9",), False),
        (("x",), True),
    ],
    ids=["same", "second", "not-reported", "other", "unparsable"],
)
def test_what_the_pod_reports(ips: tuple[str, ...], keeps: bool) -> None:
    world = alone(pod_attrs("n1", "p"))
    running_pod(world, "p", "n1", *ips)
    assert kept(world) is keeps


def test_three_nodes_go_one_after_the_other() -> None:
    """C borrows from B's block and owns an address in a block that is nobody's; B, then C, then A are deleted."""
    world = World()
    for node in "ABC":
        world.node(node)
    addresses = {"A": ["192.168.0.1"], "B": ["192.168.0.65"], "C": ["192.168.0.66", "192.168.0.129"]}
    for node, ips in addresses.items():
        for ip in ips:
            running_pod(world, f"p{ip}", node, ip)
    add_block(world, CIDR, "A", {1: (f"{NETWORK}.a", pod_attrs("A", "p192.168.0.1"))})
    borrowed = {
        1: (f"{NETWORK}.b", pod_attrs("B", "p192.168.0.65")),
        2: (f"{NETWORK}.c", pod_attrs("C", "p192.168.0.66")),
    }
    add_block(world, "192.168.0.64/26", "B", borrowed)
    add_block(world, "192.168.0.128/26", None, {1: (f"{NETWORK}.d", pod_attrs("C", "p192.168.0.129"))})
    world.start()

    def gone(node: str) -> None:
        for ip in addresses[node]:
            world.no_pod("default", f"p{ip}")
        world.no_node(node)
        world.settle()
        world.run(40)

    gone("B")
    assert holders(world, "192.168.0.64/26") == {2: f"{NETWORK}.c"}
    gone("C")
    assert stored_block(world, "192.168.0.64/26") is None
    assert stored_block(world, "192.168.0.128/26") is None
    assert rows(world) == {("A", CIDR)}
    gone("A")
    assert rows(world) == set()
    assert list(world.store.list(Handles())) == []


def test_a_handle_with_a_carriage_return_is_released() -> None:
    world = World()
    add_block(world, CIDR, "gone", {1: ("handleA\r\neth0", pod_attrs("gone", "p"))})
    world.start()
    assert rows(world) == set()
    assert not has_handle(world, "handleA")


# --- system tests on etcd ---------------------------------------------------------------------------------------------


def etcd(**more: Any) -> World:
    return World(kubernetes=False, options=Options(rules=Rules(leak_grace=900.0), node_deletion=True, **more))


def test_other_names_for_nodes() -> None:
    world = etcd()
    world.node("kname")
    calico_node(world, "cname", "kname")
    running_pod(world, "p", "kname", "192.168.0.1")
    add_block(world, CIDR, "cname", {1: (H1, pod_attrs("cname", "p"))})
    world.start()
    world.run(2000)
    assert 1 in holders(world, CIDR)
    world.no_pod("default", "p", quietly=True)
    world.no_node("kname")
    world.settle()
    world.run(5)
    assert stored_block(world, CIDR) is None
    assert rows(world) == set()


def test_a_node_of_another_orchestrator_is_never_touched() -> None:
    world = etcd()
    world.node("same-name")
    calico_node(world, "same-name", None)
    add_block(world, CIDR, "same-name", {1: (H1, {"node": "same-name"})})
    world.start()
    from calico_ipam.model.resource import NODE

    world.no_node("same-name")
    world.settle()
    world.run(2000)
    drop(world, ResourceKey(NODE, "same-name"))
    world.settle()
    world.run(2000)
    assert holders(world, CIDR) == {1: H1}


@pytest.mark.parametrize("kube", [True, False])
def test_a_node_that_calico_does_not_know(kube: bool) -> None:
    world = etcd()
    if kube:
        world.node("k-only")
    add_block(world, CIDR, "k-only", {1: (H1, pod_attrs("k-only", "p"))})
    world.start()
    assert holders(world, CIDR) == {}


def test_a_deleted_kubernetes_node_takes_calicos_with_it() -> None:
    """Attributed, tunnel (both families, limit U25), borrowed; endpoints, peers and settings of the node go too."""
    from calico_ipam.model.keys import Resources
    from calico_ipam.model.resource import WORKLOAD_ENDPOINT, Resource

    world = etcd()
    for node in ("gone", "stays"):
        world.node(node)
    calico_node(world, "gone", "gone", bgp={"ipv4IPIPTunnelAddr": "192.168.0.3"}, ipv6VXLANTunnelAddr="fd00::1")
    calico_node(world, "stays", "stays")
    calico_node(world, "other", "vm", orchestrator="openstack")
    for name, node, address in (
        ("w1", "gone", "192.168.0.1"),
        ("w2", "gone", "192.168.0.65"),
        ("w3", "stays", "192.168.0.66"),
    ):
        key = ResourceKey(WORKLOAD_ENDPOINT, name, "default")
        spec = {"node": node, "orchestrator": "k8s", "ipNetworks": [f"{address}/32"]}
        put(world, key, Resource.new(WORKLOAD_ENDPOINT, name, spec, namespace="default"))
        running_pod(world, name, node, address)
    for kind, name in (("BGPPeer", "peer"), ("HostEndpoint", "hep")):
        put(world, ResourceKey(kind, name), Resource.new(kind, name, {"node": "gone"}))
    for kind in ("FelixConfiguration", "BGPConfiguration"):
        put(world, ResourceKey(kind, "node.gone"), Resource.new(kind, "node.gone", {}))
    add_block(
        world,
        CIDR,
        "gone",
        {
            1: (f"{NETWORK}.1", pod_attrs("gone", "w1")),
            3: ("ipip-tunnel-addr-gone", tunnel_attrs("gone", "ipipTunnelAddress")),
        },
    )
    add_block(
        world,
        "192.168.0.64/26",
        "stays",
        {1: (f"{NETWORK}.2", pod_attrs("gone", "w2")), 2: (f"{NETWORK}.3", pod_attrs("stays", "w3"))},
    )
    add_block(
        world, "fd00::/122", "gone", {1: ("vxlan-v6-tunnel-addr-gone", tunnel_attrs("gone", "vxlanV6TunnelAddress"))}
    )
    world.start()
    for name in ("w1", "w2"):
        world.no_pod("default", name)
    world.no_node("gone")
    world.settle()
    world.run(5)
    assert rows(world) == {("stays", "192.168.0.64/26")}
    assert holders(world, "192.168.0.64/26") == {2: f"{NETWORK}.3"}
    assert stored_block(world, "fd00::/122") is None
    for kind, left in (
        ("Node", {"stays", "other"}),
        ("BGPPeer", set()),
        ("HostEndpoint", set()),
        ("FelixConfiguration", set()),
    ):
        assert {entry.value.name for entry in world.store.list(Resources(kind))} == left, kind
    assert {e.value.name for e in world.store.list(Resources(WORKLOAD_ENDPOINT))} == {"w3"}


def test_labels_are_copied() -> None:
    from calico_ipam.model.keys import ResourceKey
    from calico_ipam.model.resource import NODE, Resource

    world = etcd(label_sync=True)
    world.node("n", {"label1": "new", "gone-soon": "x"})
    references = [{"nodeName": "n", "orchestrator": "k8s"}]
    node = Resource.new(NODE, "n", {"orchRefs": references}, labels={"label1": "old", "mine": "yes"})
    put(world, ResourceKey(NODE, "n"), node)
    world.start()

    def labels() -> dict[str, str]:
        return dict(world.store.get(ResourceKey(NODE, "n")).value.labels)

    assert labels() == {"label1": "new", "gone-soon": "x", "mine": "yes"}
    world.node("n", {"label1": "new"})
    world.settle()
    assert labels() == {"label1": "new", "mine": "yes"}
    writes = len(world.store.writes)  # type: ignore[attr-defined]  # of this test's store
    world.run(700)
    assert len(world.store.writes) == writes, "nothing differs, nothing is written"  # type: ignore[attr-defined]  # of this test's store


@pytest.mark.parametrize("note", ["{", "7", "[" * 100_000, 7, None, ["x"]], ids=lambda note: str(note)[:9])
def test_a_record_of_labels_that_cannot_be_read_leaves_the_node_as_it_is(note: Any) -> None:
    from calico_gc.companions import KUBE_LABELS, relabelled

    from calico_ipam.model.resource import NODE, Resource

    document = {"metadata": {"name": "n", "annotations": {KUBE_LABELS: note}}}
    changed = relabelled(Resource(NODE, "n", document), {"label1": "new"})
    assert (changed is not None) is (note is None)


# --- the special cases of §12 -----------------------------------------------------------------------------------------


def test_an_address_without_a_handle_is_told_and_kept() -> None:
    """Limit U26."""
    world = alone({"node": "n1", "pod": "p", "namespace": "default"}, handle="")
    assert kept(world) or holders(world, CIDR) == {1: ""}
    assert [f.kind for f in world.controller.record.findings.values()] == ["nameless"]


def test_an_address_without_a_node_is_told_and_kept() -> None:
    world = alone({"pod": "p", "namespace": "default"})
    assert kept(world)
    assert [f.kind for f in world.controller.record.findings.values()] == ["nameless"]


def test_a_pod_on_another_node_that_reports_the_address_keeps_it() -> None:
    """Limit U16, public report P30."""
    world = alone(pod_attrs("n1", "p"))
    world.node("new-name")
    running_pod(world, "p", "new-name", "192.168.0.1")
    assert kept(world)
    assert [f.kind for f in world.controller.record.findings.values()] == [NODE_MISMATCH]
    assert world.events[0][0] == "IPInUseNodeMismatch"


def test_a_pod_on_another_node_that_reports_something_else_does_not() -> None:
    world = alone(pod_attrs("n1", "p"))
    world.node("n2")
    running_pod(world, "p", "n2", "192.168.0.77")
    assert not kept(world)


STATUS = "k8s.v1.cni.cncf.io/network-status"


@pytest.mark.parametrize(
    ("annotations", "keeps"),
    [
        ({STATUS: '[{"name":"net2","ips":["192.168.0.1"]}]'}, True),
        ({"k8s.v1.cni.cncf.io/networks-status": '[{"ips":["192.168.0.1"]}]'}, True),
        ({"k8s.v1.cni.cncf.io/networks": "net2"}, True),
        ({STATUS: "{ this is no JSON"}, True),
        ({STATUS: '[{"name":"net2","ips":["192.168.0.200"]}]'}, False),
        ({}, False),
    ],
)
def test_addresses_on_further_networks(annotations: dict[str, str], keeps: bool) -> None:
    """Limit U17."""
    world = alone(pod_attrs("n1", "p"))
    running_pod(world, "p", "n1", "192.0.2.1", annotations=annotations)
    assert kept(world) is keeps


@pytest.mark.parametrize("phase", ["Running", "Succeeded"])
@pytest.mark.parametrize(("node", "ip"), [("", "192.168.0.9"), ("", "192.168.0.1"), ("n1", "no address")])
def test_a_pod_that_makes_no_endpoint_keeps_its_address(node: str, ip: str, phase: str) -> None:
    """gc §7.8: it has no node, or what it reports is no address; nobody can tell what it uses."""
    world = alone(pod_attrs("n1", "p"))
    running_pod(world, "p", node, ip, phase=phase)
    assert kept(world)


@pytest.mark.parametrize("asked", [False, True])
def test_an_ended_pod_that_never_had_an_address(asked: bool) -> None:
    """Limit U15: told, and collected only when asked for."""
    world = alone(pod_attrs("n1", "p"), finished_pods=asked)
    running_pod(world, "p", "n1", phase="Failed", reason="Evicted")
    assert kept(world) is not asked
    found = [f.kind for f in world.controller.record.findings.values()]
    assert found == ([] if asked else [FINISHED_WITHOUT_ADDRESS])


def test_a_node_that_cannot_be_read_is_looked_at_again() -> None:
    """Limit U7."""
    world = World(options=Options(rules=Rules(leak_grace=3600.0)))
    add_block(world, CIDR, "maybe", {1: (H1, pod_attrs("maybe", "p"))})
    world.kube.failing.add("maybe")
    world.start()
    world.run(2)
    assert holders(world, CIDR) == {1: H1}
    assert "maybe" in world.state.dirty
    world.kube.failing.clear()
    world.run(3)
    assert stored_block(world, CIDR) is None


def test_a_node_that_cannot_be_read_for_long_waits_for_the_next_full_scan() -> None:
    """gc §18.6: after ten failures it is parked and counted."""
    world = World(options=Options(rules=Rules(leak_grace=600.0)))
    add_block(world, CIDR, "maybe", {1: (H1, pod_attrs("maybe", "p"))})
    world.kube.failing.add("maybe")
    world.start()
    world.run(200)
    reads = world.kube.reads
    assert reads <= 12
    assert world.controller.record.parked == {"look": 1}
    [family] = [m for m in own(view_of(world.controller)) if m.name == "ipam_gc_parked_items"]
    assert {s.labels["kind"]: s.value for s in family.samples if s.name.endswith("_total")}["look"] == 1
    world.kube.failing.clear()
    world.run(90)
    assert world.kube.reads == reads
    world.run(20)
    assert stored_block(world, CIDR) is None


def test_a_refusal_is_parked_and_a_server_that_is_away_is_not() -> None:
    for error, parked in ((Unauthorized("no right"), True), (StoreUnavailable("away"), False)):
        world = alone(pod_attrs("gone", "p"))
        world.controller.options = Options(rules=Rules(leak_grace=7200.0))

        def refuse(*writes: Any, error: Exception = error) -> Any:
            raise error

        commit, world.store.commit = world.store.commit, refuse  # type: ignore[method-assign]  # a fake in its place
        world.start()
        world.run(300)
        world.store.commit = commit  # type: ignore[method-assign]  # as it was
        world.run(60)
        assert (1 in holders(world, CIDR)) is parked
        assert world.controller.record.parked == ({"release": 1} if parked else {})


def test_a_pod_that_cannot_be_read_keeps_its_address() -> None:
    world = alone(pod_attrs("n1", "p"))
    world.kube.failing.add(("default", "p"))
    assert kept(world)


def test_a_block_without_an_affinity_row_is_told_and_not_forgotten() -> None:
    """Limit U27."""
    world = World()
    world.node("n1")
    running_pod(world, "p", "n1", "192.168.0.1")
    add_block(world, CIDR, "n1", {1: (H1, pod_attrs("n1", "p"))})
    add_block(world, "192.168.0.64/26", "n1", row=False)
    world.start()
    world.run(60)
    assert "192.168.0.64/26" in world.state.blocks
    assert stored_block(world, "192.168.0.64/26") is not None
    assert [f.kind for f in world.controller.record.findings.values()] == ["no-affinity-row"]


def test_a_block_without_an_affinity_row_goes_when_asked_for() -> None:
    world = World(options=Options(rules=Rules(leak_grace=1.0), repair_rowless=True))
    world.node("n1")
    running_pod(world, "p", "n1", "192.168.0.1")
    add_block(world, CIDR, "n1", {1: (H1, pod_attrs("n1", "p"))})
    add_block(world, "192.168.0.64/26", "n1", row=False)
    world.start()
    world.run(60)
    assert stored_block(world, "192.168.0.64/26") is None


def test_an_address_that_was_free_already_is_not_counted() -> None:
    """Limit U29: somebody else released it between our look and our write."""
    world = alone(pod_attrs("n1", "p"))
    world.start()
    key = BlockKey(block_of(world, CIDR).cidr)
    entry = world.store.get(key)
    freed = block_of(world, CIDR, "n1")
    commit = world.store.commit

    def first_others(*writes: Any) -> Any:
        if any(write.key == key for write in writes) and 1 in holders(world, CIDR):
            from calico_ipam.datastore.api import Update

            commit(Update(world.store.get(key), freed))
        return commit(*writes)

    world.store.commit = first_others  # type: ignore[method-assign]  # a fake in its place
    world.run(10)
    assert entry.value != freed
    assert holders(world, CIDR) == {}
    assert world.controller.record.reclaimed == {}


# --- metrics (§19.4) ----------------------------------------------------------------------------------------------


def shown(world: World, *names: str) -> list[str]:
    return [line for line in lines(view_of(world.controller)) if line.startswith(names)]


def test_metrics_through_the_life_of_pools_and_nodes() -> None:
    world = World(options=Options(rules=Rules(leak_grace=5.0)))
    for name, cidr in (("pool-1", "192.168.0.0/24"), ("pool-2", "172.16.0.0/16"), ("pool-3", "10.16.0.0/24")):
        pool(world, name, cidr)
    for node in "abc":
        world.node(node)
    world.start()
    assert shown(world, "ipam_ippool_size{") == [
        'ipam_ippool_size{ippool="pool-1"} 256',
        'ipam_ippool_size{ippool="pool-2"} 65536',
        'ipam_ippool_size{ippool="pool-3"} 256',
    ]
    assert len(shown(world, "ipam_allocations_in_use{")) == 9
    assert shown(world, "ipam_blocks", "ipam_allocations_per_node", "ipam_allocations_gc_reclamations") == []

    for name, node, ip in (
        ("a1", "a", "192.168.0.1"),
        ("a2", "a", "172.16.0.1"),
        ("b1", "b", "192.168.0.65"),
        ("b3", "b", "10.16.0.1"),
        ("c1", "c", "192.168.0.129"),
    ):
        running_pod(world, name, node, ip)
    tunnels = {n: (f"t{n}", tunnel_attrs("a")) for n in (2, 3, 4)}
    add_block(world, CIDR, "a", {1: ("a1", pod_attrs("a", "a1")), **tunnels})
    add_block(world, "172.16.0.0/26", "a", {1: ("a2", pod_attrs("a", "a2"))})
    add_block(world, "192.168.0.64/26", "b", {1: ("b1", pod_attrs("b", "b1"))})
    add_block(world, "10.16.0.0/26", "b", {1: ("b3", pod_attrs("b", "b3"))})
    taken = {1: ("c1", pod_attrs("c", "c1"))}
    add_block(world, "192.168.0.128/26", "c", taken)
    world.settle()
    assert shown(world, "ipam_allocations_per_node{") == [
        f'ipam_allocations_per_node{{node="{n}"}} {x}' for n, x in (("a", 5), ("b", 2), ("c", 1))
    ]
    assert shown(world, "ipam_blocks_per_node{") == [
        f'ipam_blocks_per_node{{node="{n}"}} {x}' for n, x in (("a", 2), ("b", 2), ("c", 1))
    ]
    assert 'ipam_allocations_in_use{ippool="pool-1",node="a"} 4' in shown(world, "ipam_allocations_in_use")

    put(world, BlockKey(block_of(world, "192.168.0.128/26").cidr), block_of(world, "192.168.0.128/26", None, taken))
    world.settle()
    assert 'ipam_blocks{ippool="pool-1",node="no_affinity"} 1' in shown(world, "ipam_blocks{")
    assert 'ipam_allocations_borrowed{ippool="pool-1",node="c"} 1' in shown(world, "ipam_allocations_borrowed{")

    world.no_pod("default", "a2")
    world.no_pod("default", "b1")
    world.settle()
    assert 'ipam_allocations_gc_candidates{ippool="pool-2",node="a"} 1' in shown(
        world, "ipam_allocations_gc_candidates"
    )
    world.run(15)
    assert shown(world, "ipam_allocations_gc_reclamations{") == [
        'ipam_allocations_gc_reclamations{ippool="pool-1",node="b"} 1',
        'ipam_allocations_gc_reclamations{ippool="pool-2",node="a"} 1',
    ]
    drop(world, ResourceKey(IP_POOL, "pool-2"))
    drop(world, ResourceKey(IP_POOL, "pool-3"))
    world.settle()
    assert not [line for line in lines(view_of(world.controller)) if "pool-2" in line or "pool-3" in line]
    world.no_pod("default", "c1")
    world.no_node("c")
    world.settle()
    world.run(40)
    assert not [line for line in lines(view_of(world.controller)) if 'node="c"' in line]


def test_reserved_addresses_come_and_go() -> None:
    world = World()
    pool(world, "p", "10.17.0.0/24")
    reservation(world, "r", "10.17.0.0/28", "not a CIDR", "")
    world.start()
    assert shown(world, "ipam_ippool_reserved{") == ['ipam_ippool_reserved{ippool="p"} 16']
    drop(world, ResourceKey(IP_RESERVATION, "r"))
    world.settle()
    assert shown(world, "ipam_ippool_reserved{") == ['ipam_ippool_reserved{ippool="p"} 0']


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1.0, "1"),
        (256.0, "256"),
        (65536.0, "65536"),
        (999999.0, "999999"),
        (1000000.0, "1e+06"),
        (1048576.0, "1.048576e+06"),
        (16777216.0, "1.6777216e+07"),
        (4294967296.0, "4.294967296e+09"),
        (2.0**64, "1.8446744073709552e+19"),
        (2.0**96, "7.922816251426434e+28"),
    ],
)
def test_numbers_are_printed_as_go_does(value: float, text: str) -> None:
    assert number(value) == text
