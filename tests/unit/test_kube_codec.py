"""Custom resources and their metadata: the table of datastore §15, row by row, with neighbours (§3, §5, §8)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from calico_ipam.datastore.api import Damaged, Entry
from calico_ipam.datastore.kube import codec
from calico_ipam.datastore.kube.codec import METADATA, V1, V3, Group
from calico_ipam.datastore.kube.objects import entry_of
from calico_ipam.model.addresses import parse_network
from calico_ipam.model.affinity import Affinity, BlockOwner
from calico_ipam.model.block import Attribute, Block
from calico_ipam.model.keys import AffinityKey, BlockKey, ResourceKey
from calico_ipam.model.resource import IP_POOL, Resource
from calico_ipam.model.timestamps import parse_time

POOL = ResourceKey(IP_POOL, "p")
THREE = {"foo": "1", "projectcalico.org/foo": "2", "operator.tigera.io/foo": "3"}
OWNED = {key: value for key, value in THREE.items() if "/" in key}


def encoded(value: Resource, origin: dict[str, Any] | None = None, group: str = V1) -> dict[str, Any]:
    return codec.encode(POOL, value, Group(group), "p", origin)


def pool(labels: dict[str, str], annotations: dict[str, str] | None = None) -> Resource:
    return Resource.new(IP_POOL, "p", {"cidr": "1.2.3.0/24"}, labels=labels, annotations=annotations)


def read(document: dict[str, Any], group: str = V1) -> Entry:
    found = entry_of(IP_POOL, document, Group(group))
    assert isinstance(found, Entry)
    return found


def test_labels_and_annotations_of_calico_are_on_the_object_too() -> None:
    document = encoded(pool(THREE, THREE))
    metadata = document["metadata"]
    assert metadata["labels"] == OWNED
    note = metadata["annotations"].pop(METADATA)
    assert metadata["annotations"] == OWNED
    assert json.loads(note) == {"labels": THREE, "annotations": THREE}


def test_all_come_back_with_what_somebody_added_to_the_object() -> None:
    document = encoded(pool(THREE, THREE))
    for field in ("labels", "annotations"):
        document["metadata"][field] |= {"added": "x", "projectcalico.org/foo": "shadowed"}
    value = read(document).value
    assert value.metadata["labels"] == value.metadata["annotations"] == {**THREE, "added": "x"}


def test_what_somebody_added_stays_on_the_object() -> None:
    document = encoded(pool(THREE, THREE))
    for field in ("labels", "annotations"):
        document["metadata"][field]["added"] = "x"
    entry = read(document)
    for _ in range(2):  # also when Calico has come to know of it
        document = encoded(entry.value.with_spec({"cidr": "1.2.3.0/24", "disabled": True}), entry.origin)
        assert document["metadata"]["labels"] == {**OWNED, "added": "x"}
        entry = read(document)
    assert entry.value.metadata["annotations"] == {**THREE, "added": "x"}
    without_all = encoded(pool({}), document)["metadata"]
    assert "labels" not in without_all
    assert without_all["annotations"].keys() == {METADATA}


def test_what_calico_never_knew_of_is_not_taken_away() -> None:
    document = encoded(pool(THREE, THREE))
    for field in ("labels", "annotations"):
        document["metadata"][field]["added"] = "x"
    metadata = encoded(pool({"foo": "9"}), document)["metadata"]  # a file that says nothing of the others
    assert metadata["labels"] == {"added": "x"}
    assert metadata["annotations"].pop(METADATA) == '{"labels":{"foo":"9"}}'
    assert metadata["annotations"] == {"added": "x"}


@pytest.mark.parametrize("gone", sorted(THREE))
def test_a_label_that_is_taken_away_is_gone(gone: str) -> None:
    entry = read(encoded(pool(THREE)))
    left = {key: value for key, value in THREE.items() if key != gone}
    metadata = {**entry.value.metadata, "labels": left}
    written = encoded(Resource(IP_POOL, "p", {**entry.value.document, "metadata": metadata}), entry.origin)
    assert read(written).value.labels == left


def test_labels_of_an_object_made_with_kubectl_are_calicos_and_its_annotations_are_not() -> None:
    document = encoded(pool({}))
    document["metadata"] = {"name": "p", "labels": {"a": "b", "c": "d"}, "annotations": {"kubectl": "x"}}
    entry = read(document)
    assert entry.value.labels == {"a": "b", "c": "d"}
    metadata = encoded(pool({"a": "e"}), entry.origin)["metadata"]
    assert metadata["labels"] == {"a": "e"}
    assert metadata["annotations"].pop(METADATA) == '{"labels":{"a":"e"}}'
    assert metadata["annotations"] == {"kubectl": "x"}


@pytest.mark.parametrize("note", ["{}", '{"creationTimestamp":null}', "null"])
def test_every_form_of_calicos_metadata_is_read(note: str) -> None:
    document = encoded(pool({}))
    document["metadata"] |= {"annotations": {METADATA: note}, "creationTimestamp": "2026-01-01T00:00:00Z"}
    found = read(document).value
    assert found.metadata["creationTimestamp"] == "2026-01-01T00:00:00Z"
    assert "annotations" not in found.metadata


def test_calicos_creation_time_wins() -> None:
    document = encoded(pool({}))
    document["metadata"] |= {
        "annotations": {METADATA: '{"creationTimestamp":"2025-01-01T00:00:00Z"}'},
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    assert read(document).value.metadata["creationTimestamp"] == "2025-01-01T00:00:00Z"


@pytest.mark.parametrize("note", ["{", "oops", ""])
def test_metadata_that_is_no_json_damages_one_object(note: str) -> None:
    document = encoded(pool({}))
    document["metadata"]["annotations"] = {METADATA: note}
    assert isinstance(entry_of(IP_POOL, document, Group(V1)), Damaged)
    assert isinstance(entry_of(IP_POOL, document, Group(V3)), Entry)  # there it is an annotation like any other


def test_the_v3_group_has_plain_metadata() -> None:
    document = encoded(pool(THREE, THREE), group=V3)
    assert document["metadata"] == {"name": "p", "labels": THREE, "annotations": THREE}
    left = encoded(pool({"foo": "1"}), document, V3)
    assert left["metadata"] == {"name": "p", "labels": {"foo": "1"}}


# --- blocks and affinities -----------------------------------------------------------------------------------


def test_a_release_time_comes_back_unchanged() -> None:
    cidr = parse_network("10.0.0.0/30")
    moment = parse_time("2026-06-15T12:00:00Z")
    block = Block.load(
        cidr=cidr,
        affinity=None,
        claim_time=None,
        allocations=[0, None, None, None],
        unallocated=[1, 2, 3],
        attributes=[Attribute(released_at=moment)],
        sequence_number=1,
        sequence_for={},
        deleted=False,
        extra={},
    )
    for group in (V1, V3):
        text = json.dumps(codec.encode(BlockKey(cidr), block, Group(group), "10-0-0-0-30", None))
        assert json.loads(text)["spec"]["attributes"] == [{"releasedAt": "2026-06-15T12:00:00Z"}]
        found = codec.decode(BlockKey(cidr), json.loads(text), Group(group))
        assert isinstance(found, Block)
        assert found.attributes[0].released_at == moment


@pytest.mark.parametrize(
    ("owner", "cidr", "version"),
    [(BlockOwner("host", "worker-1"), "10.0.0.0/24", "4"), (BlockOwner("virtual", "load-balancer"), "fd00::/64", "6")],
)
@pytest.mark.parametrize("group", [V1, V3])
def test_an_affinity_row_has_its_three_labels(owner: BlockOwner, cidr: str, version: str, group: str) -> None:
    key = AffinityKey(owner, parse_network(cidr))
    there = {"metadata": {"name": "row", "labels": {"custom": "kept", "projectcalico.org/ip-version": "5"}}}
    body = codec.encode(key, Affinity("pending"), Group(group), "row", there)
    labels = body["metadata"]["labels"]
    assert len(labels.pop("projectcalico.org/hostname-hash")) == 52
    assert labels == {
        "custom": "kept",
        "projectcalico.org/affinity-type": owner.kind,
        "projectcalico.org/ip-version": version,
    }
    assert body["spec"] == {
        "state": "pending",
        "node": owner.host,
        "type": owner.kind,
        "cidr": cidr,
        "deleted": False if group == V3 else "false",
    }


@pytest.mark.parametrize("text", ["1", "t", "T", "TRUE", "true", "True", True])
def test_words_for_deleted(text: Any) -> None:
    assert _deleted(text) is True


@pytest.mark.parametrize("text", ["", "0", "f", "F", "FALSE", "false", "False", False, None])
def test_words_for_not_deleted(text: Any) -> None:
    assert _deleted(text) is False


@pytest.mark.parametrize("text", ["yes", "tRUE", " true", "2", 1])
def test_other_words_damage_one_row(text: Any) -> None:
    assert _deleted(text) is None


def _deleted(text: Any) -> bool | None:
    spec = {"cidr": "10.0.0.0/26", "node": "n", "state": "confirmed", "deleted": text}
    found = entry_of("BlockAffinity", {"metadata": {"name": "x"}, "spec": spec}, Group(V1))
    return None if isinstance(found, Damaged) else bool(found.value.deleted)


@pytest.mark.parametrize(("group", "deleted"), [(V1, "false"), (V3, False)])
def test_a_row_as_a_resource_is_written_as_the_row_that_it_is(group: str, deleted: Any) -> None:
    spec = {"cidr": "fd00::/122", "node": "load-balancer", "type": "virtual", "state": "confirmed"}
    value = Resource.new("BlockAffinity", "row", spec, labels={"custom": "kept"})
    body = codec.encode(ResourceKey("BlockAffinity", "row"), value, Group(group), "row", None)
    key = AffinityKey(BlockOwner("virtual", "load-balancer"), parse_network("fd00::/122"))
    same = codec.encode(key, Affinity("confirmed"), Group(group), "row", None)
    assert body["spec"] == same["spec"] == {**spec, "deleted": deleted}
    owned = same["metadata"]["labels"]
    assert owned.items() <= body["metadata"]["labels"].items()
    assert ("custom" in body["metadata"]["labels"]) is (group == V3)  # else it is in the annotation
    assert entry_of("BlockAffinity resource", body, Group(group)).key == ResourceKey("BlockAffinity", "row")
