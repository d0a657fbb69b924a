"""Upstream's limits of the Kubernetes datastore (datastore §14), each beaten by name on a real API server."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from calico_ipam.datastore.api import Create, Deadline, Delete, Entry, Update
from calico_ipam.datastore.kube.api import Request
from calico_ipam.datastore.kube.store import KubernetesStore
from calico_ipam.engine.client import IPAM
from calico_ipam.errors import Conflict, InvalidInput, NameTaken, NotFound
from calico_ipam.model.addresses import parse_network
from calico_ipam.model.affinity import HOST, VIRTUAL, Affinity, BlockOwner
from calico_ipam.model.block import Block
from calico_ipam.model.config import IPAMConfig
from calico_ipam.model.handle import Handle
from calico_ipam.model.keys import (
    Affinities,
    AffinityKey,
    BlockKey,
    Blocks,
    ConfigKey,
    HandleKey,
    Handles,
    ResourceKey,
)
from calico_ipam.model.resource import CLUSTER_INFORMATION, IP_POOL, Resource
from tests.clock import LONG
from tests.kube_tools import KubeServer

CIDR = parse_network("10.0.0.0/29")
OURS = BlockOwner(HOST, "node-1")
ROW = AffinityKey(OURS, CIDR)
TYPE = "projectcalico.org/affinity-type"


@pytest.fixture
def store(kube: KubeServer) -> Iterator[KubernetesStore]:
    kube.clear()
    kube.node("node-1")
    pool = {"cidr": "10.0.0.0/24", "blockSize": 29}
    body = {"apiVersion": kube.api_version, "kind": IP_POOL, "metadata": {"name": "pool-1"}, "spec": pool}
    kube.create(kube.collection("ippools"), body)
    with KubernetesStore(kube.settings()) as opened:
        yield opened


def row_body(name: str, **spec: Any) -> dict[str, Any]:
    whole = {"cidr": "10.0.0.0/29", "node": "node-1", "state": "confirmed", "deleted": "false", **spec}
    spec = {key: value for key, value in whole.items() if value is not None}
    return {"apiVersion": "crd.projectcalico.org/v1", "kind": "BlockAffinity", "metadata": {"name": name}, "spec": spec}


def mark_deleted(kube: KubeServer, path: str, flag: Any = True) -> None:
    """What upstream does first when it deletes: and then it crashes."""
    body = kube.get(path)
    body["spec"]["deleted"] = flag
    kube.done("PUT", path, body)


def block_path(kube: KubeServer) -> str:
    return f"{kube.collection('ipamblocks')}/10-0-0-0-29"


class RacingStore(KubernetesStore):
    """Somebody else acts just before a delete is sent."""

    race: Any = None

    def _call(self, request: Request) -> dict[str, Any]:
        if request.method == "DELETE" and self.race is not None:
            race, self.race = self.race, None
            race()
        return super()._call(request)


def test_1_a_clean_up_that_loses_a_race_is_no_error(kube: KubeServer, store: KubernetesStore) -> None:
    store.commit(Create(BlockKey(CIDR), Block.new(CIDR, now=1)))
    mark_deleted(kube, block_path(kube))
    with RacingStore(kube.settings()) as racing:
        racing.race = lambda: kube.delete(block_path(kube))
        with pytest.raises(NotFound):
            racing.get(BlockKey(CIDR))
    store.commit(Create(BlockKey(CIDR), Block.new(CIDR, now=2)))
    mark_deleted(kube, block_path(kube))
    account = kube.kubeconfig_of("looker")
    api, metadata = "rbac.authorization.k8s.io", {"name": "looker"}
    rules = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["get"]}]
    role = {"apiVersion": f"{api}/v1", "kind": "ClusterRole", "metadata": metadata, "rules": rules}
    binding = {
        "apiVersion": f"{api}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": metadata,
        "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": "looker"},
        "subjects": [{"kind": "ServiceAccount", "name": "looker", "namespace": "kube-system"}],
    }
    kube.apply_documents([role, binding])
    with KubernetesStore(kube.settings(kubeconfig=str(account))) as looking, pytest.raises(NotFound):
        looking.get(BlockKey(CIDR))  # it may not delete, and need not
    with pytest.raises(NotFound):
        store.get(BlockKey(CIDR))
    assert kube.ask("GET", block_path(kube))[0] == 404


def test_2_a_new_object_is_never_destroyed_by_an_old_delete(kube: KubeServer, store: KubernetesStore) -> None:
    key = BlockKey(CIDR)
    (old,) = store.commit(Create(key, Block.new(CIDR, now=1)))

    def made_anew() -> None:
        kube.delete(block_path(kube))
        store.commit(Create(key, Block.new(CIDR, now=2)))

    with RacingStore(kube.settings()) as racing:
        racing.race = made_anew
        with pytest.raises((NotFound, Conflict)):
            racing.commit(Delete(old))
        (now,) = store.list(Blocks())
        racing.race = lambda: store.commit(Update(now, now.value.bumped()))
        with pytest.raises(Conflict):
            racing.commit(Delete(now))
    kube.mark()
    store.commit(Delete(store.get(key)))
    assert [r.verb for r in kube.requests()] == ["get", "delete"]  # one request deletes


def test_3_what_is_marked_as_deleted_is_not_there(kube: KubeServer, store: KubernetesStore) -> None:
    store.commit(
        Create(BlockKey(CIDR), Block.new(CIDR, now=1)),
        Create(HandleKey("h"), Handle("h", {str(CIDR): 1})),
        Create(ROW, Affinity()),
    )
    marks = {"ipamblocks/10-0-0-0-29": True, "ipamhandles/h": True, "blockaffinities/node-1-10-0-0-0-29": "true"}
    for path, flag in marks.items():
        mark_deleted(kube, f"/apis/crd.projectcalico.org/v1/{path}", flag)
    for scope in (Blocks(), Handles(), Affinities()):
        assert len(store.list(scope)) == 0
    # … and it stands in nobody's way.
    store.commit(
        Create(BlockKey(CIDR), Block.new(CIDR, now=2)),
        Create(HandleKey("h"), Handle("h", {str(CIDR): 2})),
        Create(ROW, Affinity()),
    )
    assert store.get(HandleKey("h")).value.blocks == {str(CIDR): 2}


def test_3_in_a_watch_marking_is_the_removal(kube: KubeServer, store: KubernetesStore) -> None:
    since = store.list(Blocks()).revision
    store.commit(Create(BlockKey(CIDR), Block.new(CIDR, now=1)))
    mark_deleted(kube, block_path(kube))
    kube.delete(block_path(kube))
    store.commit(Create(BlockKey(CIDR), Block.new(CIDR, now=2)))
    watch = store.within(Deadline.after(LONG)).watch(Blocks(), since)
    events = list(itertools.islice((event for event in watch if event.kind != "bookmark"), 3))
    watch.close()
    assert [event.kind for event in events] == ["added", "deleted", "added"]


def test_4_one_bad_object_does_not_spoil_a_list(
    kube: KubeServer, store: KubernetesStore, caplog: pytest.LogCaptureFixture
) -> None:
    collection = kube.collection("blockaffinities")
    kube.create(collection, row_body("bad-cidr", cidr="nonsense"))
    kube.create(collection, row_body("bad-flag", cidr="10.0.0.8/29", deleted="perhaps"))
    store.commit(Create(ROW, Affinity()))
    with caplog.at_level(logging.WARNING):
        listing = store.list(Affinities())
    assert [entry.key for entry in listing] == [ROW]
    assert [d.path for d in listing.damaged] == ["BlockAffinity/bad-cidr", "BlockAffinity/bad-flag"]
    assert [d.key and str(d.key.cidr) for d in listing.damaged] == [None, "10.0.0.8/29"]
    assert "bad-flag cannot be understood" in caplog.text


@pytest.mark.parametrize(
    ("labels", "spec"),
    [
        ({}, {"type": "host"}),
        ({}, {"type": None}),
        ({TYPE: ""}, {"type": None}),  # what upstream's own upgrade leaves
        ({TYPE: "", "projectcalico.org/hostname-hash": "old", "mine": "stays"}, {"type": "host"}),
    ],
)
def test_5_rows_of_old_releases_are_upgraded(
    kube: KubeServer, store: KubernetesStore, labels: dict[str, str], spec: dict[str, Any]
) -> None:
    body = row_body("node-1-10-0-0-0-29", **spec)
    kube.create(kube.collection("blockaffinities"), {**body, "metadata": {**body["metadata"], "labels": labels}})
    other = row_body("node-2-10-0-0-8-29", node="node-2", cidr="10.0.0.8/29")
    kube.create(kube.collection("blockaffinities"), other)
    assert len(store.list(Affinities(HOST, "node-1", 4))) == 0
    ipam = IPAM(store, hostname="node-1")
    ipam.upgrade_host()
    (entry,) = store.list(Affinities(HOST, "node-1", 4))
    assert entry.key == ROW
    stored = kube.get(f"{kube.collection('blockaffinities')}/node-1-10-0-0-0-29")
    assert (stored["spec"]["type"], stored["metadata"]["labels"][TYPE]) == ("host", "host")
    assert stored["metadata"]["labels"].get("mine") == labels.get("mine")
    assert TYPE not in kube.get(f"{kube.collection('blockaffinities')}/node-2-10-0-0-8-29")["metadata"].get(
        "labels", {}
    )
    kube.mark()
    ipam.upgrade_host()
    assert [r.verb for r in kube.requests()] == ["list"]  # nothing left to do


def test_6_a_host_and_a_virtual_owner_of_one_name_do_not_take_each_others_rows(store: KubernetesStore) -> None:
    virtual = AffinityKey(BlockOwner(VIRTUAL, "node-1"), CIDR)
    store.commit(Create(virtual, Affinity()))
    with pytest.raises(NotFound):
        store.get(ROW)
    with pytest.raises(NameTaken, match=r"affinityType=host\) cannot be stored: .*affinityType=virtual\) has the same"):
        store.commit(Create(ROW, Affinity()))
    claimed = IPAM(store).claim_affinity(CIDR, OURS)
    assert (claimed.claimed, claimed.failed) == ((), (CIDR,))
    assert store.get(virtual).value == Affinity()
    assigned = IPAM(store, hostname="node-1").auto_assign(use="Workload", num4=1, handle="h")
    assert assigned.ipv4 is not None and not str(assigned.ipv4.addresses[0]).startswith("10.0.0.0/")


def test_7_a_name_that_was_cut_is_checked_by_its_content(kube: KubeServer, store: KubernetesStore) -> None:
    key = AffinityKey(BlockOwner(HOST, "n" * 253), CIDR)
    (entry,) = store.commit(Create(key, Affinity()))
    assert store.get(key) == entry
    path = f"{kube.collection('blockaffinities')}/{entry.origin['metadata']['name']}"
    body = kube.get(path)
    body["spec"]["node"] = "somebody-else"
    kube.done("PUT", path, body)
    with pytest.raises(NotFound):
        store.get(key)


@pytest.mark.parametrize("handle", ["net_work.c1", "a..b", "-a", "a" * 254, "a b", "a/b"])
def test_8_a_handle_that_cannot_be_named_is_refused_early(
    kube: KubeServer, store: KubernetesStore, handle: str
) -> None:
    ipam = IPAM(store, hostname="node-1")
    with pytest.raises(InvalidInput) as caught:
        ipam.auto_assign(use="Workload", num4=1, handle=handle)
    assert caught.value.hint or "slash" in str(caught.value)
    assert store.list(Handles()).entries == ()
    assert [entry.value.empty for entry in store.list(Blocks())] in ([], [True])
    with pytest.raises(NotFound):
        ipam.release_by_handle(handle)


def test_8_handles_that_differ_in_case_only_are_refused(store: KubernetesStore) -> None:
    ipam = IPAM(store, hostname="node-1")
    first = ipam.auto_assign(use="Workload", num4=1, handle="lb-AbC")
    with pytest.raises(NameTaken, match=r"IPAMHandleKey\(id=lb-aBc\) cannot be stored: IPAMHandleKey\(id=lb-AbC\)"):
        ipam.auto_assign(use="Workload", num4=1, handle="lb-aBc")
    with pytest.raises(NotFound):
        ipam.release_by_handle("lb-aBc")
    assert first.ipv4 is not None
    assert [f"{a}/29" for a in ipam.ips_by_handle("lb-AbC")] == [str(a) for a in first.ipv4.addresses]


def test_9_rows_of_no_type_in_particular_are_those_of_both(store: KubernetesStore) -> None:
    other = parse_network("10.0.0.8/29")
    store.commit(Create(ROW, Affinity()), Create(AffinityKey(BlockOwner(VIRTUAL, "lb"), other), Affinity()))
    assert {str(entry.key.owner) for entry in store.list(Affinities())} == {"host:node-1", "virtual:lb"}


def test_11_settings_are_changed_by_compare_and_swap(kube: KubeServer, store: KubernetesStore) -> None:
    ipam = IPAM(store)
    ipam.set_config(IPAMConfig(strict_affinity=True))
    entry = store.get(ConfigKey())
    ipam.set_config(IPAMConfig(strict_affinity=True, max_blocks_per_host=7))
    with pytest.raises(Conflict):
        store.commit(Update(entry, IPAMConfig()))
    assert ipam.get_config().max_blocks_per_host == 7


def test_12_what_others_put_on_an_object_stays(kube: KubeServer, store: KubernetesStore) -> None:
    ipam = IPAM(store, hostname="node-1")
    ipam.auto_assign(use="Workload", num4=1, handle="h")
    paths = [
        f"{kube.collection('ipamblocks')}/{store.list(Blocks()).entries[0].origin['metadata']['name']}",
        f"{kube.collection('ipamhandles')}/h",
    ]
    for path in paths:
        body = kube.get(path)
        body["metadata"] |= {
            "labels": {"team": "net"},
            "annotations": {**body["metadata"].get("annotations", {}), "note": "mine"},
            "finalizers": ["example.org/keep"],
        }
        kube.done("PUT", path, body)
    ipam.auto_assign(use="Workload", num4=1, handle="h")
    for path in paths:
        metadata = kube.get(path)["metadata"]
        assert metadata["labels"] == {"team": "net"}
        assert metadata["annotations"] == {"note": "mine", "projectcalico.org/metadata": "{}"}
        assert metadata["finalizers"] == ["example.org/keep"]


def test_12_a_pool_keeps_what_the_calico_api_wrote_into_its_annotation(
    kube: KubeServer, store: KubernetesStore
) -> None:
    path = f"{kube.collection('ippools')}/pool-1"
    body = kube.get(path)
    note = '{"creationTimestamp":"2020-01-01T00:00:00Z","labels":{"foo":"bar"},"annotations":{"why":"because"}}'
    body["metadata"] |= {"annotations": {"projectcalico.org/metadata": note}, "labels": {"team": "net"}}
    kube.done("PUT", path, body)
    entry = store.get(ResourceKey(IP_POOL, "pool-1"))
    pool: Resource = entry.value
    assert pool.metadata["labels"] == {"team": "net", "foo": "bar"}
    assert pool.metadata["creationTimestamp"] == "2020-01-01T00:00:00Z"
    (entry,) = store.commit(Update(entry, pool.with_spec({**pool.spec, "disabled": True})))
    again: Resource = store.get(entry.key).value
    assert (again.metadata["labels"], again.metadata["annotations"]) == (
        {"team": "net", "foo": "bar"},
        {"why": "because"},
    )
    assert again.metadata["creationTimestamp"] == "2020-01-01T00:00:00Z"
    assert again.spec["disabled"] is True


def test_13_an_empty_attribute_is_somebodys(store: KubernetesStore) -> None:
    """What a migration between groups leaves of a cooling address: allocated, without a holder, until released."""
    fresh = Block.new(CIDR, now=1, owner=OURS)
    block, ordinals = fresh.assign(1, handle=None, attrs={})
    (entry,) = store.commit(Create(BlockKey(CIDR), block))
    read = store.get(BlockKey(CIDR)).value
    assert [o for o, _ in read.taken()] == list(ordinals)
    assert entry.value == read


def test_14_a_token_of_the_settings_reaches_the_store(kube: KubeServer) -> None:
    settings = kube.settings(
        kubeconfig="", k8s_api_endpoint=kube.url, k8s_ca_file=str(kube.folder / "ca.pem"), k8s_api_token="admin-token"
    )
    with KubernetesStore(settings) as store:
        assert len(store.list(Handles())) >= 0
    by_certificate = kube.settings(
        kubeconfig="",
        k8s_api_endpoint=kube.url,
        k8s_ca_file=str(kube.folder / "ca.pem"),
        k8s_cert_file=str(kube.folder / "admin.pem"),
        k8s_key_file=str(kube.folder / "admin.key"),
    )
    kube.mark()
    with KubernetesStore(by_certificate) as store:
        store.list(Handles())
    assert [r.user for r in kube.requests()] == ["admin-by-certificate"]


def test_15_readiness_that_says_nothing_is_read(kube: KubeServer, store: KubernetesStore) -> None:
    key = ResourceKey(CLUSTER_INFORMATION, "default")
    body = {"apiVersion": kube.api_version, "kind": CLUSTER_INFORMATION, "metadata": {"name": "default"}, "spec": {}}
    kube.create(kube.collection("clusterinformations"), body)
    assert store.get(key).value.spec.get("datastoreReady") is None


def test_17_lists_are_of_one_family_and_single_objects_are_read_by_name(
    kube: KubeServer, store: KubernetesStore
) -> None:
    six = parse_network("fd00::/125")
    store.commit(Create(BlockKey(CIDR), Block.new(CIDR, now=1)), Create(BlockKey(six), Block.new(six, now=1)))
    assert [entry.key.cidr for entry in store.list(Blocks(6))] == [six]
    kube.mark()
    store.get(BlockKey(six))
    store.read(ResourceKey(IP_POOL, "pool-1"))
    assert [r.verb for r in kube.requests()] == ["get", "get"]


def test_entries_without_an_origin_can_be_written(store: KubernetesStore) -> None:
    """An entry that travelled, through a report say, knows revision and value only."""
    (made,) = store.commit(Create(HandleKey("h"), Handle("h", {str(CIDR): 1})))
    bare = Entry(made.key, made.value, made.revision)
    (later,) = store.commit(Update(bare, Handle("h", {str(CIDR): 2})))
    store.commit(Delete(Entry(later.key, None, later.revision)))
    assert len(store.list(Handles())) == 0
