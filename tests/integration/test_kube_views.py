"""Affinity rows and the settings of IPAM as v3 resources: the same custom resources that the engine has keys for
(datastore §1, §15), on a real API server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from calico_ipam.datastore.api import Create, Deadline, Delete, Entry, Update
from calico_ipam.datastore.kube.store import KubernetesStore
from calico_ipam.errors import AlreadyExists, Conflict, InvalidInput, NotFound, NotSupported
from calico_ipam.model.addresses import parse_network
from calico_ipam.model.affinity import HOST, Affinity, BlockOwner
from calico_ipam.model.config import IPAMConfig
from calico_ipam.model.keys import Affinities, AffinityKey, ConfigKey, ResourceKey, Resources
from calico_ipam.model.resource import BLOCK_AFFINITY, IPAM_CONFIGURATION, Resource
from tests.clock import LONG
from tests.kube_tools import KubeServer

NAME = "node-1-10-0-0-0-29"
ROW = AffinityKey(BlockOwner(HOST, "node-1"), parse_network("10.0.0.0/29"))
VIEW = ResourceKey(BLOCK_AFFINITY, NAME)
SETTINGS = ResourceKey(IPAM_CONFIGURATION, "default")
SPEC = {"cidr": "10.0.0.0/29", "node": "node-1", "type": "host", "state": "pending"}


@pytest.fixture
def store(kube: KubeServer) -> Iterator[KubernetesStore]:
    kube.clear()
    with KubernetesStore(kube.settings()) as opened:
        yield opened


def test_a_row_is_one_object_by_both_names(kube: KubeServer, store: KubernetesStore) -> None:
    (row,) = store.commit(Create(ROW, Affinity("confirmed")))
    view = store.get(VIEW)
    assert (view.revision, view.uid) == (row.revision, row.uid)
    assert view.value.kind == "BlockAffinity"
    assert view.value.spec == {**SPEC, "state": "confirmed", "deleted": "false"}
    assert store.list(Resources(BLOCK_AFFINITY)).entries == (view,)
    assert store.list(Resources(BLOCK_AFFINITY, None, "node-2")).entries == ()
    (changed,) = store.commit(Update(view, view.value.with_spec({**view.value.spec, "state": "pending"})))
    assert store.get(ROW).value.state == "pending"
    with pytest.raises(Conflict):
        store.commit(Update(view, view.value))
    store.commit(Delete(changed))
    with pytest.raises(NotFound):
        store.get(ROW)
    with pytest.raises(NotFound, match=rf"BlockAffinity\({NAME}\)"):
        store.get(VIEW)


def test_a_row_that_is_made_as_a_resource_is_found_by_its_labels(kube: KubeServer, store: KubernetesStore) -> None:
    value = Resource.new(BLOCK_AFFINITY, NAME, SPEC, labels={"custom": "kept"})
    with pytest.raises(NotFound):
        store.commit(Update(Entry(VIEW, value, "1"), value))
    store.commit(Create(VIEW, value))
    with pytest.raises(AlreadyExists):
        store.commit(Create(VIEW, value))
    (found,) = store.list(Affinities(HOST, "node-1", 4))
    assert found.key == ROW
    assert store.get(VIEW).value.labels["custom"] == "kept"
    watch = store.within(Deadline.after(LONG)).watch(Resources(BLOCK_AFFINITY), "")
    event = next(watch)
    assert (event.kind, event.entry and event.entry.key) == ("added", VIEW)
    watch.close()


def test_a_row_is_not_marked_as_deleted_by_hand(kube: KubeServer, store: KubernetesStore) -> None:
    for spec in ({**SPEC, "deleted": "true"}, {**SPEC, "deleted": True}):
        with pytest.raises(InvalidInput, match=r"spec\.Deleted cannot be set"):
            store.commit(Create(VIEW, Resource.new(BLOCK_AFFINITY, NAME, spec)))
    for spec in ({**SPEC, "cidr": "nonsense"}, {**SPEC, "cidr": 7}):
        with pytest.raises(InvalidInput):
            store.commit(Create(VIEW, Resource.new(BLOCK_AFFINITY, NAME, spec)))
    store.commit(Create(ROW, Affinity("confirmed")))
    path = kube.collection("blockaffinities") + "/" + NAME
    there = kube.get(path)
    there["spec"]["deleted"] = "true"
    kube.done("PUT", path, there)
    assert store.list(Resources(BLOCK_AFFINITY)).entries == ()
    with pytest.raises(NotFound):  # and it is removed now, as upstream would
        store.get(VIEW)
    assert kube.ask("GET", path)[0] == 404


def test_the_settings_are_one_object_by_both_names(kube: KubeServer, store: KubernetesStore) -> None:
    (made,) = store.commit(Create(ConfigKey(), IPAMConfig(strict_affinity=True, auto_allocate_blocks=True)))
    view = store.get(SETTINGS)
    assert view.uid == made.uid
    created = view.value.metadata["creationTimestamp"]
    assert view.value.spec["strictAffinity"] is True
    spec = {**view.value.spec, "maxBlocksPerHost": 1000, "ipCooldownSeconds": 120}
    store.commit(Update(view, view.value.with_spec(spec)))
    config = store.get(ConfigKey())
    assert (config.uid, config.value.max_blocks_per_host, config.value.cooldown_seconds) == (made.uid, 1000, 120)
    store.commit(Update(config, IPAMConfig(strict_affinity=False, auto_allocate_blocks=True)))
    after = store.get(SETTINGS)
    assert (after.uid, after.value.metadata["creationTimestamp"]) == (made.uid, created)
    assert after.value.spec["strictAffinity"] is False
    assert [each.key for each in store.list(Resources(IPAM_CONFIGURATION))] == [SETTINGS]


@pytest.mark.parametrize("kind", ["IPAMBlock", "IPAMHandle", "FelixConfiguration"])
def test_other_kinds_say_that_there_are_none(store: KubernetesStore, kind: str) -> None:
    key = ResourceKey(kind, "default")
    for operation, call in (
        ("Get", lambda: store.get(key)),
        ("List", lambda: store.list(Resources(kind))),
        ("Create", lambda: store.commit(Create(key, Resource.new(kind, "default", {})))),
    ):
        with pytest.raises(NotSupported, match=f"operation {operation} is not supported on {kind}"):
            call()
