"""Profiles are namespaces and service accounts, on a real API server (datastore §10); and nodes that hand out their own
ranges (datastore §10, §11)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from calico_ipam.datastore.api import Create, Deadline, Delete, Entry, Event, Update
from calico_ipam.datastore.kube.store import KubernetesStore
from calico_ipam.errors import DeadlineExceeded, InvalidInput, NotFound, NotSupported
from calico_ipam.model.addresses import parse_network
from calico_ipam.model.affinity import HOST, BlockOwner
from calico_ipam.model.keys import (
    Affinities,
    AffinityKey,
    BlockKey,
    Blocks,
    ConfigKey,
    HandleKey,
    Handles,
    Key,
    ResourceKey,
    Resources,
    Scope,
)
from calico_ipam.model.resource import NODE, PROFILE, Resource
from tests.clock import LONG
from tests.kube_tools import KubeServer

DEFAULT_ALLOW = "projectcalico-default-allow"
ALLOW = [{"action": "Allow", "source": {}, "destination": {}}]


@pytest.fixture
def store(kube: KubeServer) -> Iterator[KubernetesStore]:
    kube.clear()
    with KubernetesStore(kube.settings()) as opened:
        yield opened


def account(kube: KubeServer, namespace: str, name: str, **labels: str) -> dict[str, Any]:
    body = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "labels": labels}}
    return kube.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", body)


def asked(kube: KubeServer) -> list[str]:
    """Return what was asked for since the mark; watches are told when they end, those of other tests too."""
    return [each.uri for each in kube.requests() if each.verb != "watch"]


def profile(store: KubernetesStore, name: str) -> Entry:
    return store.get(ResourceKey(PROFILE, name))


def test_a_namespace_is_a_profile_that_allows_everything(kube: KubeServer, store: KubernetesStore) -> None:
    namespace = kube.namespace(None, team="blue", **{"projectcalico.org/name": "somebody-else"})
    found = profile(store, f"kns.{namespace}")
    there = kube.get(f"/api/v1/namespaces/{namespace}")["metadata"]
    assert (found.value.kind, found.value.name, found.value.document["apiVersion"]) == (
        "Profile",
        f"kns.{namespace}",
        "projectcalico.org/v3",
    )
    assert found.value.spec == {
        "ingress": ALLOW,
        "egress": ALLOW,
        "labelsToApply": {
            "pcns.team": "blue",
            "pcns.kubernetes.io/metadata.name": namespace,
            "pcns.projectcalico.org/name": namespace,
        },
    }
    assert found.revision == found.value.metadata["resourceVersion"] == f"{there['resourceVersion']}/"
    assert found.uid == there["uid"]
    assert found.value.metadata["creationTimestamp"] == there["creationTimestamp"]


def test_a_service_account_is_a_profile_without_rules(kube: KubeServer, store: KubernetesStore) -> None:
    namespace = kube.namespace()
    there = account(kube, namespace, "test.foo", role="db")["metadata"]
    found = profile(store, f"ksa.{namespace}.test.foo")
    assert found.value.spec == {
        "labelsToApply": {"pcsa.role": "db", "pcsa.projectcalico.org/name": "test.foo"},
    }
    assert found.revision == f"/{there['resourceVersion']}"


def test_one_profile_is_always_there(store: KubernetesStore) -> None:
    found = profile(store, DEFAULT_ALLOW)
    assert (found.revision, found.value.spec) == ("1", {"ingress": ALLOW, "egress": ALLOW})
    key = ResourceKey(PROFILE, DEFAULT_ALLOW)
    assert store.read(key, ConfigKey()).entry(key) == found


@pytest.mark.parametrize("name", ["kns.absent", "ksa.absent.default", "ksa.default.absent"])
def test_who_is_not_there_has_no_profile(store: KubernetesStore, name: str) -> None:
    with pytest.raises(NotFound, match=rf"resource does not exist: Profile\({name}\) with error: .* not found"):
        profile(store, name)
    key = ResourceKey(PROFILE, name)
    assert store.read(key).entry(key) is None


@pytest.mark.parametrize("name", ["net1", "ns.projectcalico.org/default", "kns.", "ksa.default", "ksa..x", "ksa.a."])
def test_other_names_are_no_profiles_of_kubernetes(store: KubernetesStore, name: str) -> None:
    with pytest.raises(InvalidInput):
        profile(store, name)


def test_lists_hold_both_and_the_one_that_is_always_there(kube: KubeServer, store: KubernetesStore) -> None:
    namespace = kube.namespace()
    account(kube, namespace, "robot")

    def names(prefix: str = "", where: str | None = None) -> list[str]:
        return [each.value.name for each in store.list(Resources(PROFILE, where, prefix))]

    everything = names()
    assert everything == sorted(everything)
    assert {f"kns.{namespace}", f"ksa.{namespace}.default", f"ksa.{namespace}.robot", DEFAULT_ALLOW} <= {*everything}
    assert names("k") == everything[:-1]
    assert names("kns.") == [each for each in everything if each.startswith("kns.")]
    assert names(f"ksa.{namespace}.") == [f"ksa.{namespace}.default", f"ksa.{namespace}.robot"]
    assert names(f"ksa.{namespace}.r") == [f"ksa.{namespace}.robot"]
    assert names(f"kns.{namespace}") == [f"kns.{namespace}"]
    assert names("project") == [DEFAULT_ALLOW]
    assert names("other") == names("", "default") == []
    listing = store.list(Resources(PROFILE))
    assert [part.isdigit() for part in listing.revision.split("/")] == [True, True]
    read = store.read(Resources(PROFILE))
    assert [each.key for each in read.listing(Resources(PROFILE))] == [each.key for each in listing]


def test_profiles_are_not_written(kube: KubeServer, store: KubernetesStore) -> None:
    namespace = kube.namespace()
    for found in (profile(store, f"kns.{namespace}"), profile(store, DEFAULT_ALLOW)):
        for write in (Create(found.key, found.value), Update(found, found.value), Delete(found)):
            kube.mark()
            with pytest.raises(NotSupported, match=f"operation {type(write).__name__} is not supported on Profile"):
                store.commit(write)
            assert asked(kube) == []
    with pytest.raises(NotSupported):
        store.commit(Create(ResourceKey(PROFILE, "net1"), Resource.new(PROFILE, "net1", {})))


def until(watch: Iterator[Event], kind: str, name: str = "") -> Event:
    return next(each for each in watch if each.kind == kind and (not name or (each.entry and _name(each)) == name))


def _name(event: Event) -> str:
    assert event.entry is not None
    return str(event.entry.value.name)


def test_a_watch_tells_of_both(kube: KubeServer, store: KubernetesStore) -> None:
    before = kube.namespace()
    watch = store.within(Deadline.after(LONG)).watch(Resources(PROFILE), "")
    first = {}
    for event in watch:
        if event.kind == "bookmark":
            break
        first[_name(event)] = event.kind
    assert first[f"kns.{before}"] == first[f"ksa.{before}.default"] == "added"
    assert DEFAULT_ALLOW not in first
    assert all(event.revision.split("/"))
    after = kube.namespace()
    told = until(watch, "added", f"ksa.{after}.default")
    namespaces, accounts = told.revision.split("/")
    assert namespaces
    assert accounts
    account(kube, before, "robot")
    until(watch, "added", f"ksa.{before}.robot")
    kube.delete(f"/api/v1/namespaces/{before}/serviceaccounts/robot")
    gone = until(watch, "deleted", f"ksa.{before}.robot")
    watch.close()
    assert list(watch) == []

    again = store.within(Deadline.after(LONG)).watch(Resources(PROFILE), gone.revision)
    account(kube, before, "second")
    seen = []
    for event in again:
        if event.entry is not None:
            seen.append((event.kind, _name(event)))
        if seen and seen[-1][1] == f"ksa.{before}.second":
            break
    assert ("added", f"ksa.{before}.second") == seen[-1]
    assert f"kns.{before}" not in {name for _, name in seen}  # what was told before is not told again
    store.close()
    assert list(again) == []


def test_a_watch_of_one_kind_follows_one_collection(kube: KubeServer, store: KubernetesStore) -> None:
    namespace = kube.namespace()
    kube.mark()
    watch = store.within(Deadline.after(LONG)).watch(Resources(PROFILE, prefix=f"ksa.{namespace}."), "")
    assert _name(until(watch, "added")) == f"ksa.{namespace}.default"
    until(watch, "bookmark")
    account(kube, namespace, "robot")
    until(watch, "added", f"ksa.{namespace}.robot")
    watch.close()
    assert {uri.partition("?")[0] for uri in asked(kube)} == {f"/api/v1/namespaces/{namespace}/serviceaccounts"}


def test_nothing_happens_to_what_is_always_there(store: KubernetesStore) -> None:
    with pytest.raises(DeadlineExceeded):
        next(store.within(Deadline.after(0.1)).watch(Resources(PROFILE, prefix=DEFAULT_ALLOW), ""))


@pytest.mark.parametrize("revision", ["7", "1/2/3"])
def test_a_revision_that_is_none_of_profiles(store: KubernetesStore, revision: str) -> None:
    with pytest.raises(InvalidInput, match="ResourceVersion is not valid"):
        store.watch(Resources(PROFILE), revision)


# --- nodes hand out their own ranges --------------------------------------------------------------------------

CIDR = parse_network("10.0.0.0/26")
IPAM_KEYS: list[Key] = [
    BlockKey(CIDR),
    AffinityKey(BlockOwner(HOST, "node-1"), CIDR),
    HandleKey("h"),
    ConfigKey(),
]
IPAM_SCOPES: list[Scope] = [Blocks(), Blocks(4), Affinities(), Affinities(HOST, "node-1"), Handles()]


def test_with_ranges_of_nodes_there_is_no_ipam(kube: KubeServer) -> None:
    kube.mark()
    with KubernetesStore(kube.settings(use_pod_cidr=True)) as store:
        for key in IPAM_KEYS:
            with pytest.raises(NotSupported, match=r"operation Get is not supported on .*USE_POD_CIDR"):
                store.get(key)
            with pytest.raises(NotSupported):
                store.read(key)
            with pytest.raises(NotSupported, match="operation Create"):
                store.commit(Create(key, Resource.new("None", "n", {})))
            with pytest.raises(NotSupported, match="operation Delete"):
                store.commit(Delete(Entry(key, None, "1")))
        for scope in IPAM_SCOPES:
            words = "operation List is not supported on (blocks|block affinities|handles).*: USE_POD_CIDR is set"
            with pytest.raises(NotSupported, match=words):
                store.list(scope)
            with pytest.raises(NotSupported):
                store.watch(scope, "")
        with pytest.raises(NotSupported):
            store.upgrade("node-1")
        assert asked(kube) == []
        assert store.list(Resources("IPPool")).entries == ()


def test_a_node_with_a_range_has_its_first_address_for_tunnels(kube: KubeServer) -> None:
    kube.clear()
    node = kube.node("node-1")
    node["spec"] = {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"]}
    node["metadata"]["annotations"] = {"projectcalico.org/IPv4IPIPTunnelAddr": "10.9.9.9"}
    kube.done("PUT", "/api/v1/nodes/node-1", node)
    key = ResourceKey(NODE, "node-1")
    with KubernetesStore(kube.settings()) as plain:
        assert plain.get(key).value.spec["bgp"] == {"ipv4IPIPTunnelAddr": "10.9.9.9"}
    with KubernetesStore(kube.settings(use_pod_cidr=True)) as store:
        entry = store.get(key)
        (listed,) = store.list(Resources(NODE))
        watched = until(store.within(Deadline.after(LONG)).watch(Resources(NODE), ""), "added").entry
        assert watched is not None
        for each in (entry, listed, watched):
            assert each.value.spec["bgp"] == {"ipv4IPIPTunnelAddr": "10.0.0.1"}
            assert "wireguard" not in each.value.spec
        status = {**entry.value.document["status"], "wireguardPublicKey": "key"}
        keyed = Resource(NODE, "node-1", {**entry.value.document, "status": status})
        (written,) = store.commit(Update(entry, keyed))
        assert written.value.spec["wireguard"] == {"interfaceIPv4Address": "10.0.0.1"}
    annotations = kube.get("/api/v1/nodes/node-1")["metadata"]["annotations"]
    assert annotations["projectcalico.org/IPv4IPIPTunnelAddr"] == "10.9.9.9"  # what nobody changed stays
