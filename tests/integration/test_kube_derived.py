"""Pods as endpoints and Kubernetes' nodes as Calico's, on a real API server (datastore §9, §10)."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest

from calico_ipam.datastore.api import Create, Delete, Entry, Update
from calico_ipam.datastore.kube.store import KubernetesStore
from calico_ipam.engine.client import IPAM
from calico_ipam.errors import Conflict, InvalidInput, NotFound, NotSupported
from calico_ipam.model.keys import ResourceKey, Resources
from calico_ipam.model.resource import KUBE_CONTROLLERS_CONFIGURATION, NODE, WORKLOAD_ENDPOINT, Resource
from tests.kube_tools import KubeServer

PODS = "cni.projectcalico.org/"


@pytest.fixture
def store(kube: KubeServer) -> Iterator[KubernetesStore]:
    kube.clear()
    kube.node("node-1", zone="a")
    with KubernetesStore(kube.settings()) as opened:
        yield opened


# --- endpoints ----------------------------------------------------------------------------------------------


def found(store: KubernetesStore, namespace: str, name: str) -> list[str]:
    return [each.value.name for each in store.list(Resources(WORKLOAD_ENDPOINT, namespace, name))]


def with_addresses(entry: Entry, *networks: str) -> Resource:
    value: Resource = entry.value
    return value.with_spec({**value.spec, "ipNetworks": list(networks), "containerID": "c1"})


def notes(kube: KubeServer, namespace: str) -> dict[str, str]:
    metadata: dict[str, Any] = kube.get(f"/api/v1/namespaces/{namespace}/pods/web")["metadata"]
    return {k.removeprefix(PODS): v for k, v in metadata["annotations"].items() if k.startswith(PODS)}


def test_an_address_is_told_and_taken_back(kube: KubeServer, store: KubernetesStore) -> None:
    namespace = kube.namespace()
    kube.pod(namespace, "web", "node-1", {"other": "kept"})
    key = ResourceKey(WORKLOAD_ENDPOINT, "node--1-k8s-web-eth0", namespace)
    (told,) = store.commit(Update(store.get(key), with_addresses(store.get(key), "10.0.0.9/32", "fd00::9/128")))
    assert notes(kube, namespace) == {
        "podIP": "10.0.0.9/32",
        "podIPs": "10.0.0.9/32,fd00::9/128",
        "containerID": "c1",
    }
    (bare,) = store.commit(Update(told, with_addresses(told)))
    assert notes(kube, namespace)["podIP"] == "10.0.0.9/32"  # no address, nothing said
    with pytest.raises(Conflict):
        store.commit(Delete(Entry(key, bare.value, "1", bare.uid)))
    (gone,) = store.commit(Delete(store.get(key)))
    taken = {"podIP": "", "podIPs": "", "containerID": "c1"}
    assert notes(kube, namespace) == taken
    store.commit(Delete(gone))
    assert notes(kube, namespace) == taken
    assert kube.get(f"/api/v1/namespaces/{namespace}/pods/web")["metadata"]["annotations"]["other"] == "kept"


def test_a_pod_made_anew_under_the_name_is_not_written_to(kube: KubeServer, store: KubernetesStore) -> None:
    namespace = kube.namespace()
    kube.pod(namespace, "web", "node-1")
    old = store.get(ResourceKey(WORKLOAD_ENDPOINT, "node--1-k8s-web-eth0", namespace))
    kube.delete_pod(namespace, "web")
    with pytest.raises(NotFound):
        store.commit(Update(old, with_addresses(old, "10.0.0.9/32")))
    kube.pod(namespace, "web", "node-1", {"made": "anew"})
    with pytest.raises(NotFound):
        store.commit(Update(old, with_addresses(old, "10.0.0.9/32")))
    with pytest.raises(Conflict):  # the revision is looked at before the UID: whoever reads again finds another pod
        store.commit(Delete(old))
    assert notes(kube, namespace) == {}


def test_a_list_by_name_is_a_look_at_the_pod(kube: KubeServer, store: KubernetesStore) -> None:
    namespace = kube.namespace()
    kube.pod(namespace, "web", "node-1")
    kube.pod(namespace, "web-1", "node-1")
    kube.pod(namespace, "host", "node-1", hostNetwork=True)
    kube.pod(namespace, "waits")
    kube.mark()
    assert found(store, namespace, "node--1-k8s-web-eth0") == ["node--1-k8s-web-eth0"]
    assert found(store, namespace, "node--1-k8s-web-") == ["node--1-k8s-web-eth0"]
    assert found(store, namespace, "node--1-k8s-web-ens4") == []
    assert found(store, namespace, "node--1-k8s-host-eth0") == ["node--1-k8s-host-eth0"]
    assert found(store, namespace, "node--1-k8s-absent-") == []
    with pytest.raises(NotFound, match="malformed WorkloadEndpoint name"):
        found(store, namespace, "node--1-k8s")
    assert {request.verb for request in kube.requests()} == {"get"}
    listed = store.list(Resources(WORKLOAD_ENDPOINT, namespace))
    assert [each.value.name for each in listed] == ["node--1-k8s-web-eth0", "node--1-k8s-web--1-eth0"]
    assert listed.damaged == ()


# --- nodes --------------------------------------------------------------------------------------------------


def test_a_node_keeps_what_calico_knows_of_it(kube: KubeServer, store: KubernetesStore) -> None:
    key = ResourceKey(NODE, "node-1")
    entry = store.get(key)
    assert entry.value.labels == {"zone": "a"}
    value: Resource = entry.value
    metadata = {**value.metadata, "labels": {"zone": "b", "rack": "1"}}
    spec = {**value.spec, "ipv4VXLANTunnelAddr": "10.0.0.1"}
    (written,) = store.commit(
        Update(entry, Resource(NODE, "node-1", {**value.document, "metadata": metadata, "spec": spec}))
    )
    assert written.value.labels == {"zone": "a", "rack": "1"}
    assert store.get(key).value.spec["ipv4VXLANTunnelAddr"] == "10.0.0.1"
    with pytest.raises(Conflict):
        store.commit(Update(entry, value.with_spec({**value.spec, "ipv4VXLANTunnelAddr": "10.0.0.2"})))
    for write in (Create(ResourceKey(NODE, "node-2"), value), Delete(written)):
        with pytest.raises(NotSupported):
            store.commit(write)


def test_a_node_with_a_key_gets_an_address_for_wireguard(kube: KubeServer, store: KubernetesStore) -> None:
    node = kube.get("/api/v1/nodes/node-1")
    node["metadata"]["annotations"] = {
        "projectcalico.org/WireguardPublicKey": base64.b64encode(bytes(32)).decode(),
        "projectcalico.org/IPv4IPIPTunnelAddr": "nonsense",  # counts as none
    }
    kube.done("PUT", "/api/v1/nodes/node-1", node)
    pool = {"cidr": "10.0.0.0/24", "blockSize": 29, "ipipMode": "Always"}
    body = {"apiVersion": kube.api_version, "kind": "IPPool", "metadata": {"name": "pool-1"}, "spec": pool}
    kube.create(kube.collection("ippools"), body)
    changes = IPAM(store, hostname="node-1").reconcile_tunnel_addresses("node-1")
    assert [(each.type, bool(each.after)) for each in changes] == [
        ("wireguardTunnelAddress", True),
        ("ipipTunnelAddress", True),
    ]
    told = kube.get("/api/v1/nodes/node-1")["metadata"]["annotations"]
    assert told["projectcalico.org/IPv4WireguardInterfaceAddr"] == changes[0].after
    assert told["projectcalico.org/IPv4IPIPTunnelAddr"] == changes[1].after


# --- settings of controllers --------------------------------------------------------------------------------


def test_labels_of_nodes_cannot_be_left_unsynchronised(store: KubernetesStore) -> None:
    key = ResourceKey(KUBE_CONTROLLERS_CONFIGURATION, "default")

    def value(switch: str) -> Resource:
        return Resource.new(key.kind, key.name, {"controllers": {"node": {"syncLabels": switch}}})

    with pytest.raises(InvalidInput, match="invalid SyncLabels value"):
        store.commit(Create(key, value("Disabled")))
    (made,) = store.commit(Create(key, value("Enabled")))
    with pytest.raises(InvalidInput, match="invalid SyncLabels value"):
        store.commit(Update(made, value("Disabled")))
