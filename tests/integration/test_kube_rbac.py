"""The roles we ship, each under exactly that role on a real API server: what must work works, the rest is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml

from calico_ipam.datastore.api import Create, Delete, Update
from calico_ipam.datastore.kube.store import KubernetesStore
from calico_ipam.engine.client import IPAM
from calico_ipam.errors import Unauthorized
from calico_ipam.model.addresses import parse_address, parse_network
from calico_ipam.model.affinity import HOST, BlockOwner
from calico_ipam.model.block import ReleaseOption
from calico_ipam.model.config import IPAMConfig
from calico_ipam.model.keys import Affinities, Blocks, ConfigKey, Handles, ResourceKey, Resources, Scope
from calico_ipam.model.resource import (
    CLUSTER_INFORMATION,
    IP_POOL,
    IP_RESERVATION,
    KUBE_CONTROLLERS_CONFIGURATION,
    NODE,
    WORKLOAD_ENDPOINT,
    Resource,
)
from tests.kube_tools import KubeServer
from tests.shared import REPOSITORY

DEPLOY = REPOSITORY / "gc" / "deploy"
POOL = ResourceKey(IP_POOL, "pool-1")
#: manifest -> the account in it
ROLES = {"rbac-plugin.yaml": "calico-cni", "rbac-gc.yaml": "calico-gc", "rbac-operator.yaml": "ipam-operator"}


@pytest.fixture
def cluster(kube: KubeServer) -> KubeServer:
    """A cluster with a node, a pool and the roles."""
    kube.clear()
    kube.node("node-1")
    pool = {"cidr": "10.0.0.0/24", "blockSize": 29, "natOutgoing": True}
    body = {"apiVersion": kube.api_version, "kind": IP_POOL, "metadata": {"name": "pool-1"}, "spec": pool}
    kube.create(kube.collection("ippools"), body)
    for file in ROLES:
        kube.apply(DEPLOY / file)
    return kube


@contextmanager
def acting_as(cluster: KubeServer, account: str) -> Iterator[KubernetesStore]:
    settings = cluster.settings(kubeconfig=str(cluster.kubeconfig_of(account)))
    with KubernetesStore(settings) as store:
        yield store


def refused(cluster: KubeServer, account: str, *requests: tuple[str, str]) -> None:
    """Check that an account lacks rights: (verb, resource), as the API server judges."""
    for verb, resource in requests:
        plural, _, subresource = resource.partition("/")
        group = "crd.projectcalico.org" if plural.startswith(("ip", "block", "cluster", "kubec")) else ""
        attributes = {"verb": verb, "resource": plural, "subresource": subresource, "group": group}
        user = f"system:serviceaccount:kube-system:{account}"
        review = cluster.create(
            "/apis/authorization.k8s.io/v1/subjectaccessreviews",
            {"kind": "SubjectAccessReview", "spec": {"user": user, "resourceAttributes": attributes}},
        )
        assert review["status"]["allowed"] is False, f"{account} may {verb} {resource}"


def test_the_plugins(cluster: KubeServer) -> None:
    namespace = cluster.namespace()
    cluster.pod(namespace, "web", "node-1")
    with acting_as(cluster, "calico-cni") as store:
        ipam = IPAM(store, hostname="node-1")
        ipam.upgrade_host("node-1")
        first = ipam.auto_assign(use="Workload", num4=9, handle="net.one", attrs={"pod": "web"})
        assert first.ipv4 is not None and len(first.ipv4.addresses) == 9  # two blocks
        ipam.assign_ip(parse_address("10.0.0.200"), handle="net.two")
        assert len(ipam.ips_by_handle("net.one")) == 9
        ipam.get_config()
        ipam.release_ips([ReleaseOption(parse_address("10.0.0.200"), "net.two")])
        ipam.release_by_handle("net.one")
        ipam.release_host_affinities(BlockOwner(HOST, "node-1"), must_be_empty=True)
        assert (
            store.read(ResourceKey(CLUSTER_INFORMATION, "default")).entry(ResourceKey(CLUSTER_INFORMATION, "default"))
            is None
        )
        (pod,) = store.list(Resources(WORKLOAD_ENDPOINT, namespace, "node--1-k8s-web-eth0"))
        endpoint: Resource = pod.value.with_spec({**pod.value.spec, "ipNetworks": ["10.0.0.9/32"], "containerID": "c"})
        store.commit(Update(pod, endpoint))
        assert store.get(pod.key).value.spec["ipNetworks"] == ["10.0.0.9/32"]
        assert len(store.list(Blocks())) == 0
    refused(
        cluster,
        "calico-cni",
        *(("watch", plural) for plural in ("ipamblocks", "pods", "nodes", "ippools")),
        ("list", "pods"),
        ("update", "pods"),
        ("patch", "ipamblocks"),
        *((verb, plural) for verb in ("create", "update", "delete") for plural in ("ippools", "ipamconfigs", "nodes")),
    )


def test_the_collector(cluster: KubeServer) -> None:
    with KubernetesStore(cluster.settings()) as store:
        IPAM(store, hostname="node-1").auto_assign(use="Workload", num4=1, handle="net.leak")
    with acting_as(cluster, "calico-gc") as store:
        ipam = IPAM(store, hostname="node-1")
        assert len(store.list(Affinities())) == len(store.list(Handles())) == 1
        scopes: tuple[Scope, ...] = (
            Blocks(),
            *(Resources(kind) for kind in (IP_POOL, IP_RESERVATION, NODE, WORKLOAD_ENDPOINT, CLUSTER_INFORMATION)),
        )
        for scope in scopes:
            listing = store.list(scope)
            with_bookmarks = store.watch(scope, listing.revision)
            with_bookmarks._step()  # opening the watch is what needs the right
            assert with_bookmarks._stream is not None
            with_bookmarks.close()
        (block,) = store.list(Blocks())
        ipam.release_ips([ReleaseOption(block.value.address(0), "net.leak", block.value.sequence_of(0))])
        ipam.release_block_affinity(store.get(block.key).value, must_be_empty=True)
        assert len(store.list(Blocks())) == len(store.list(Handles())) == 0
        settings = ResourceKey(KUBE_CONTROLLERS_CONFIGURATION, "default")
        spec = {"controllers": {"node": {"leakGracePeriod": "15m0s"}}}
        (made,) = store.commit(Create(settings, Resource.new(settings.kind, "default", spec)))
        store.commit(Update(made, made.value.with_spec({"controllers": {"node": {"leakGracePeriod": "5m0s"}}})))
    refused(
        cluster,
        "calico-gc",
        *((verb, plural) for verb in ("create", "update", "delete") for plural in ("ippools", "pods", "nodes")),
        *(("create", plural) for plural in ("ipamblocks", "blockaffinities")),
        ("update", "ipamconfigs"),
        ("delete", "kubecontrollersconfigurations"),
        ("patch", "pods/status"),
    )


def test_the_operator(cluster: KubeServer) -> None:
    with acting_as(cluster, "ipam-operator") as store:
        ipam = IPAM(store, hostname="node-1")
        ipam.auto_assign(use="Workload", num4=1, handle="net.one")
        ipam.set_config(IPAMConfig(strict_affinity=True))
        ipam.set_config(IPAMConfig(strict_affinity=True, max_blocks_per_host=3))
        key = ResourceKey(IP_POOL, "pool-2")
        (pool,) = store.commit(Create(key, Resource.new(IP_POOL, "pool-2", {"cidr": "10.9.0.0/24", "blockSize": 29})))
        (pool,) = store.commit(Update(pool, pool.value.with_spec({**pool.value.spec, "disabled": True})))
        store.commit(Delete(pool))
        for resource in (
            Resource.new(IP_RESERVATION, "r", {"reservedCIDRs": ["10.0.0.0/30"]}),
            Resource.new(CLUSTER_INFORMATION, "default", {"datastoreReady": True}),
        ):
            (made,) = store.commit(Create(ResourceKey(resource.kind, resource.name), resource))
            store.commit(Delete(made))
        ipam.get_utilization()
        for kind in (NODE, WORKLOAD_ENDPOINT):
            store.list(Resources(kind))
        ipam.release_by_handle("net.one")
        ipam.release_affinity(parse_network("10.0.0.0/24"), BlockOwner(HOST, "node-1"), must_be_empty=True)
        store.commit(Delete(store.get(ConfigKey())))
    refused(
        cluster,
        "ipam-operator",
        *((verb, plural) for verb in ("create", "update", "delete") for plural in ("pods", "nodes", "namespaces")),
        ("list", "secrets"),
    )


@pytest.mark.parametrize(("account", "key"), [("calico-cni", POOL), ("calico-gc", POOL)])
def test_what_is_refused_is_said_in_one_sentence(cluster: KubeServer, account: str, key: ResourceKey) -> None:
    path = cluster.kubeconfig_of(account)
    with acting_as(cluster, account) as store, pytest.raises(Unauthorized) as caught:
        store.commit(Create(ResourceKey(IP_POOL, "mine"), Resource.new(IP_POOL, "mine", {"cidr": "10.1.0.0/24"})))
    assert str(caught.value).startswith("connection is unauthorized: ippools.crd.projectcalico.org is forbidden")
    assert caught.value.hint == (
        f"The account in the kubeconfig {path} lacks the right to create ippools in API group "
        '"crd.projectcalico.org": add it to the account\'s role.'
    )


def test_the_roles_are_of_both_groups_and_have_no_wildcards() -> None:
    for file in ROLES:
        for document in yaml.safe_load_all((DEPLOY / file).read_text(encoding="utf-8")):
            rules: list[dict[str, Any]] = document.get("rules", [])
            for rule in rules:
                assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
                calico = {"crd.projectcalico.org", "projectcalico.org"}
                assert not calico & set(rule["apiGroups"]) or calico == set(rule["apiGroups"]), rule
