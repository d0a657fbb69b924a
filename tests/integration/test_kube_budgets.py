"""Requests per operation, counted by the API server's own audit log (ruling 30): they do not grow with the cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from calico_ipam.datastore.api import Create, Entry, Listing
from calico_ipam.datastore.kube.store import KubernetesStore
from calico_ipam.engine.client import IPAM
from calico_ipam.engine.search import NEAREST
from calico_ipam.model.addresses import Network, blocks_in, parse_address, parse_network
from calico_ipam.model.affinity import HOST, Affinity, BlockOwner
from calico_ipam.model.block import Block, ReleaseOption
from calico_ipam.model.keys import Affinities, AffinityKey, BlockKey, Blocks, Key, Scope
from calico_ipam.model.resource import IP_POOL
from tests.kube_tools import KubeServer, wait_until

WARM = ["list ipreservations", "list ippools", "get ipamconfigs", "list blockaffinities"]
ADD = [*WARM, "get ipamblocks", "create ipamhandles", "update ipamblocks"]
DEL = [
    "get ipamconfigs",
    "get ipamhandles",
    "get ipamblocks",
    "update ipamblocks",
    "delete ipamhandles",
]


@pytest.fixture(params=[4, 60], ids=["few-blocks", "many-blocks"])
def cluster(request: pytest.FixtureRequest, kube: KubeServer) -> KubeServer:
    """A cluster with a node, a pool, and blocks of others."""
    kube.clear()
    kube.node("node-1")
    kube.node("node-2")
    pool(kube, "pool-1", "10.0.0.0/16")
    with KubernetesStore(kube.settings()) as store:
        networks = blocks_in(parse_network("10.0.0.0/16"), 26)
        for number, cidr in zip(range(request.param), networks, strict=False):
            owner = BlockOwner(HOST, f"other-{number}")
            block, _ = Block.new(cidr, now=1, owner=owner).assign(1, handle=None, attrs={"pod": "x"})
            store.commit(Create(AffinityKey(owner, cidr), Affinity()), Create(BlockKey(cidr), block))
        mark(kube, store)
    return kube


def mark(kube: KubeServer, store: KubernetesStore) -> None:
    """Count from here; what was stored before has come to the server's cache, from which recent lists are taken."""

    def stored(scope: Scope) -> set[tuple[Key, str]]:
        return {(entry.key, entry.revision) for entry in store.list(scope)}

    scopes = (Blocks(4), Blocks(4, recent=True)), (Affinities(HOST, None, 4), Affinities(HOST, None, 4, recent=True))
    wait_until(lambda: all(stored(exact) == stored(recent) for exact, recent in scopes), what="the cache to catch up")
    kube.mark()


@pytest.fixture
def store(cluster: KubeServer) -> Iterator[KubernetesStore]:
    with KubernetesStore(cluster.settings()) as opened:
        yield opened


def pool(kube: KubeServer, name: str, cidr: str, **spec: str) -> None:
    body = {"apiVersion": kube.api_version, "kind": IP_POOL, "metadata": {"name": name}}
    kube.create(kube.collection("ippools"), {**body, "spec": {"cidr": cidr, "blockSize": 26, **spec}})


def asked(kube: KubeServer) -> list[str]:
    """Return the requests since the last mark as ``verb plural``, in the order the server finished them."""
    found = []
    for request in kube.requests():
        assert request.code < 300 or request.code in (404, 409), str(request)
        path = request.uri.partition("?")[0].removeprefix("/apis/crd.projectcalico.org/v1/").removeprefix("/api/v1/")
        found.append(f"{request.verb} {path.partition('/')[0]}")
    return found


def test_add_and_del_on_a_warm_node(cluster: KubeServer, store: KubernetesStore) -> None:
    ipam = IPAM(store, hostname="node-1")
    ipam.auto_assign(use="Workload", num4=1, handle="net.warm")
    mark(cluster, store)
    ipam.auto_assign(use="Workload", num4=1, handle="net.one", attrs={"pod": "p"})
    assert sorted(asked(cluster)) == sorted(ADD)
    (rows,) = [r for r in cluster.requests() if "blockaffinities" in r.uri]
    assert "resourceVersion=0" in rows.uri  # the API server's cache: reading all rows of all hosts is what costs
    mark(cluster, store)
    ipam.release_by_handle("net.one")
    assert sorted(asked(cluster)) == sorted(DEL)
    mark(cluster, store)
    ipam.release_by_handle("net.warm")
    assert sorted(asked(cluster)) == sorted([*DEL, "list ippools"]), "may the block be given back?"


def test_one_given_address(cluster: KubeServer, store: KubernetesStore) -> None:
    ipam = IPAM(store, hostname="node-1")
    first = ipam.auto_assign(use="Workload", num4=1, handle="net.warm").ipv4
    assert first is not None
    wanted = parse_address(str(first.addresses[0]).partition("/")[0]) + 1
    mark(cluster, store)
    ipam.assign_ip(wanted, handle="net.one")
    expected = ["get ipamconfigs", "list ippools", "get blockaffinities"]
    assert sorted(asked(cluster)) == sorted([*expected, "get ipamblocks", "create ipamhandles", "update ipamblocks"])
    mark(cluster, store)
    ipam.release_ips([ReleaseOption(wanted, "net.one")])
    assert len(asked(cluster)) <= 7


def test_a_first_block(cluster: KubeServer, store: KubernetesStore) -> None:
    mark(cluster, store)
    IPAM(store, hostname="node-2").auto_assign(use="Workload", num4=1, handle="net.one")
    claim = [
        "list ipamblocks",
        "list blockaffinities",
        "create blockaffinities",
        "create ipamblocks",
        "update blockaffinities",
    ]
    write = ["create ipamhandles", "update ipamblocks"]
    requests = asked(cluster)
    assert requests.count("get ipamblocks") <= NEAREST, "those before the first free place, which may be the host's own"
    rest = [each for each in requests if each != "get ipamblocks"]
    assert sorted(rest) == sorted([*WARM, "get nodes", *claim, *write])


def test_another_block_is_claimed_after_a_consistent_look(cluster: KubeServer, store: KubernetesStore) -> None:
    ipam = IPAM(store, hostname="node-1")
    ipam.auto_assign(use="Workload", num4=64, handle="net.full")
    mark(cluster, store)
    ipam.auto_assign(use="Workload", num4=1, handle="net.one")
    rows = [r.uri for r in cluster.requests() if r.verb == "list" and "blockaffinities" in r.uri]
    assert ["resourceVersion=0" in uri for uri in rows] == [True, False]
    assert len(store.list(Affinities(HOST, "node-1"))) == 2


def test_a_handle_that_is_there_costs_one_more_round(cluster: KubeServer, store: KubernetesStore) -> None:
    ipam = IPAM(store, hostname="node-1")
    ipam.auto_assign(use="Workload", num4=1, handle="net.one")
    mark(cluster, store)
    ipam.auto_assign(use="Workload", num4=1, handle="net.one")
    assert len(asked(cluster)) <= len(ADD) + 4
    assert len(ipam.ips_by_handle("net.one")) == 2


def test_a_selector_brings_the_node_back(cluster: KubeServer, store: KubernetesStore) -> None:
    ipam = IPAM(store, hostname="node-1")
    ipam.auto_assign(use="Workload", num4=1, handle="net.warm")
    pool(cluster, "pool-2", "10.7.0.0/16", nodeSelector="zone == 'a'")
    mark(cluster, store)
    ipam.auto_assign(use="Workload", num4=1, handle="net.one")
    assert sorted(asked(cluster)) == sorted([*ADD, "get nodes"])


# --- what the cache may show --------------------------------------------------------------------------------


class Stale(KubernetesStore):
    """A server whose cache stands still at a moment: lists that may be recent show what was there then."""

    then: dict[type[Scope], Listing] | None = None

    def list(self, scope: Scope) -> Listing:
        if getattr(scope, "recent", False) and self.then is not None:
            return self.then[type(scope)]
        return super().list(scope)

    def freeze(self) -> None:
        self.then = {type(s): super(Stale, self).list(s) for s in (Affinities(HOST, "node-1", 4), Blocks(4))}


def entries(store: KubernetesStore) -> list[Entry]:
    return list(store.list(Affinities(HOST, "node-1")))


def test_a_block_claimed_a_moment_ago_is_found_by_claiming(cluster: KubeServer) -> None:
    """The cache shows no row yet: the host takes its block as its own and claims no second one."""
    with Stale(cluster.settings()) as store:
        ipam = IPAM(store, hostname="node-1")
        store.freeze()
        ipam.auto_assign(use="Workload", num4=1, handle="net.one")
        ipam.auto_assign(use="Workload", num4=1, handle="net.two")
        assert len(entries(store)) == 1


def test_a_second_block_claimed_a_moment_ago_is_found_by_the_consistent_look(cluster: KubeServer) -> None:
    with Stale(cluster.settings()) as store:
        ipam = IPAM(store, hostname="node-1")
        ipam.auto_assign(use="Workload", num4=64, handle="net.full")
        store.freeze()
        ipam.auto_assign(use="Workload", num4=1, handle="net.one")
        assert len(entries(store)) == 2
        ipam.auto_assign(use="Workload", num4=1, handle="net.two")
        assert len(entries(store)) == 2


def test_a_row_that_is_gone_does_no_harm(cluster: KubeServer) -> None:
    with Stale(cluster.settings()) as store:
        ipam = IPAM(store, hostname="node-1")
        ipam.auto_assign(use="Workload", num4=1, handle="net.one")
        store.freeze()
        ipam.release_by_handle("net.one")
        ipam.release_host_affinities(BlockOwner(HOST, "node-1"), must_be_empty=True)
        other = IPAM(store, hostname="node-2")
        other.claim_affinity(entries_of_frozen(store), BlockOwner(HOST, "node-2"))
        assigned = ipam.auto_assign(use="Workload", num4=1, handle="net.two").ipv4
        assert assigned is not None and len(assigned.addresses) == 1
        assert assigned.addresses[0].block != entries_of_frozen(store)


def entries_of_frozen(store: Stale) -> Network:
    assert store.then is not None
    (row,) = store.then[Affinities]
    return row.cidr


def test_an_empty_cache_does_not_mean_an_exhausted_pool(cluster: KubeServer) -> None:
    """Everything looks free: what is taken refuses, and before 'nothing left' the list is consistent."""
    with Stale(cluster.settings()) as store:
        pool(cluster, "small", "10.9.0.0/26")
        networks = [parse_network("10.9.0.0/26")]
        store.freeze()
        owner = BlockOwner(HOST, "other")
        full, _ = Block.new(networks[0], now=1, owner=owner).assign(64, handle=None, attrs={"pod": "x"})
        store.commit(Create(AffinityKey(owner, networks[0]), Affinity()), Create(BlockKey(networks[0]), full))
        cluster.mark()
        assigned = IPAM(store, hostname="node-1").auto_assign(use="Workload", num4=1, handle="h", ipv4_pools=networks)
        assert assigned.ipv4 is not None and not assigned.ipv4.addresses
        assert "No IPs available in pools: [10.9.0.0/26]" in assigned.ipv4.messages
        lists = [r.uri for r in cluster.requests() if r.verb == "list" and "ipamblocks" in r.uri]
        assert lists and "resourceVersion=0" not in lists[-1]
