"""Values <-> custom resources of the two API groups (datastore §3, §5, §8).

A rewrite starts from the object that was read (``Entry.origin``): labels, annotations, finalizers, owners and fields
that somebody else put there stay (datastore §14.12). Objects of the v1 group carry Calico's own metadata as JSON in an
annotation; the v3 group has plain metadata.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from calico_ipam.datastore.api import Value
from calico_ipam.datastore.attributes import attribute_document, attribute_of
from calico_ipam.datastore.gojson import MAX_INT64, MAX_UINT64, BadDocument, Fields, Schema, serialise, sorted_map
from calico_ipam.errors import InvalidInput
from calico_ipam.model import names
from calico_ipam.model.addresses import parse_network
from calico_ipam.model.affinity import HOST, Affinity, BlockOwner
from calico_ipam.model.block import Block
from calico_ipam.model.config import IPAMConfig
from calico_ipam.model.handle import Handle
from calico_ipam.model.keys import AffinityKey, BlockKey, ConfigKey, HandleKey, Key, ResourceKey
from calico_ipam.model.resource import Resource, mapping
from calico_ipam.model.timestamps import format_time, parse_time

V1 = "crd.projectcalico.org/v1"
V3 = "projectcalico.org/v3"
METADATA = "projectcalico.org/metadata"

#: keys of labels and annotations that stay on the object itself; others of Calico's are in the annotation only
OWNED_KEYS = ("projectcalico.org/", "operator.tigera.io/")

_GO_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_GO_FALSE = frozenset({"", "0", "f", "F", "false", "FALSE", "False"})

BLOCK = Schema(
    "IPAMBlockSpec",
    {
        "cidr": "string",
        "affinity": "string",
        "affinityClaimTime": "string",
        "allocations": "[]*int",
        "unallocated": "[]int",
        "attributes": "[]v1.AllocationAttribute",
        "sequenceNumber": "uint64",
        "sequenceNumberForAllocation": "map[string]uint64",
        "deleted": "bool",
        "strictAffinity": "bool",
    },
)
AFFINITY = Schema(
    "BlockAffinitySpec",
    {"state": "string", "node": "string", "type": "string", "cidr": "string", "deleted": "string"},
)
HANDLE = Schema("IPAMHandleSpec", {"handleID": "string", "block": "map[string]int", "deleted": "bool"})
CONFIG = Schema(
    "IPAMConfigSpec",
    {
        "strictAffinity": "bool",
        "autoAllocateBlocks": "bool",
        "maxBlocksPerHost": "int",
        "kubeVirtVMAddressPersistence": "string",
        "ipCooldownSeconds": "int",
    },
)


@dataclass(frozen=True, slots=True)
class Group:
    """One of the two API groups, and how they differ (datastore §8)."""

    api_version: str

    @property
    def v3(self) -> bool:
        return self.api_version == V3

    @property
    def config_kind(self) -> str:
        return "IPAMConfiguration" if self.v3 else "IPAMConfig"

    @property
    def config_plural(self) -> str:
        return "ipamconfigurations" if self.v3 else "ipamconfigs"


# --- reading -----------------------------------------------------------------------------------------------


def key_of(kind: str, document: Mapping[str, Any]) -> Key:
    """Return the key of a custom resource; names are never parsed, the spec tells. Raises BadDocument, InvalidInput."""
    spec = mapping(document.get("spec"))
    if kind == "IPAMBlock":
        return BlockKey(parse_network(_text(spec, "cidr")))
    if kind == "BlockAffinity":
        return AffinityKey(
            BlockOwner(_text(spec, "type") or HOST, _text(spec, "node")), parse_network(_text(spec, "cidr"))
        )
    if kind == "IPAMHandle":
        return HandleKey(_text(spec, "handleID") or _text(mapping(document.get("metadata")), "name"))
    if kind in ("IPAMConfig", "IPAMConfiguration"):
        return ConfigKey()
    return ResourceKey(kind, _text(mapping(document.get("metadata")), "name"))


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BadDocument(f"field {name} must be a string")
    return value


def decode(key: Key, document: Mapping[str, Any], group: Group) -> Value:
    """Return the value of a custom resource. Raises BadDocument, InvalidInput."""
    spec = document.get("spec")
    match key:
        case BlockKey():
            return _block(key, BLOCK.read(spec))
        case AffinityKey():
            fields = AFFINITY.read(_with_text_flag(spec))
            return Affinity(fields.text("state"), _go_bool(fields.text("deleted")), fields.extra)
        case HandleKey():
            fields = HANDLE.read(spec)
            counts = fields.integers("block", -MAX_INT64 - 1, MAX_INT64)
            return Handle(key.id, counts, fields.flag("deleted"), fields.extra)
        case ConfigKey():
            return _config(CONFIG.read(spec))
        case ResourceKey():
            return _resource(key, document, group)
        case _:
            raise BadDocument(f"{key} is no custom resource")


def _block(key: BlockKey, fields: Fields) -> Block:
    numbers = fields.integers("sequenceNumberForAllocation", 0, MAX_UINT64)
    claimed = fields.text_or_none("affinityClaimTime")
    return Block.load(
        cidr=key.cidr,
        affinity=fields.text_or_none("affinity"),
        claim_time=None if claimed is None else parse_time(claimed),
        allocations=fields.array("allocations"),
        unallocated=fields.array("unallocated"),
        attributes=[attribute_of(item) for item in fields.array("attributes")],
        sequence_number=fields.integer("sequenceNumber", 0, MAX_UINT64),
        sequence_for={int(o): n for o, n in numbers.items() if o.isascii() and o.isdigit()},
        deleted=fields.flag("deleted"),
        extra=fields.extra,
    )


def _with_text_flag(spec: Any) -> Any:
    """The v1 group holds ``deleted`` of an affinity as text, the v3 group as a boolean: both read as text."""
    if isinstance(spec, Mapping) and isinstance(spec.get("deleted"), bool):
        return {**spec, "deleted": "true" if spec["deleted"] else "false"}
    return spec


def _go_bool(text: str) -> bool:
    if text in _GO_TRUE:
        return True
    if text in _GO_FALSE:
        return False
    raise BadDocument(f"field deleted holds {text!r}, which is neither true nor false")


def _config(fields: Fields) -> IPAMConfig:
    return IPAMConfig(
        strict_affinity=fields.flag("strictAffinity"),
        auto_allocate_blocks=fields.flag("autoAllocateBlocks"),
        max_blocks_per_host=fields.integer("maxBlocksPerHost", -MAX_INT64 - 1, MAX_INT64),
        kubevirt_persistence=fields.text_or_none("kubeVirtVMAddressPersistence"),
        cooldown_seconds=fields.integer("ipCooldownSeconds", -MAX_INT64 - 1, MAX_INT64),
        extra=fields.extra,
    )


def _resource(key: ResourceKey, document: Mapping[str, Any], group: Group) -> Resource:
    """Return a v3 resource: the object's metadata overlaid by Calico's own from the annotation (datastore §5)."""
    metadata = dict(mapping(document.get("metadata")))
    metadata.pop("managedFields", None)
    annotations = dict(mapping(metadata.get("annotations")))
    text = annotations.pop(METADATA, None)
    if text is not None and not group.v3:
        try:
            calico = mapping(json.loads(text))
        except (ValueError, TypeError) as error:
            raise BadDocument(f"annotation {METADATA} is not JSON: {error}") from None
        labels = {**mapping(metadata.get("labels")), **mapping(calico.get("labels"))}
        annotations |= mapping(calico.get("annotations"))
        if labels:
            metadata["labels"] = labels
        if calico.get("creationTimestamp"):
            metadata["creationTimestamp"] = calico["creationTimestamp"]
    if annotations:
        metadata["annotations"] = annotations
    else:
        metadata.pop("annotations", None)
    rest = {k: v for k, v in document.items() if k in ("spec", "status")}
    return Resource(key.kind, key.name, {"kind": key.kind, "apiVersion": V3, "metadata": metadata, **rest})


# --- writing -----------------------------------------------------------------------------------------------


def encode(key: Key, value: Value, group: Group, name: str, origin: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the object to send: for a new one made from nothing, else ``origin`` with our fields replaced."""
    metadata: dict[str, Any] = dict(mapping((origin or {}).get("metadata"))) or {"name": name}
    metadata.pop("managedFields", None)
    kind, spec, labels = _spec(key, value, group)
    if isinstance(value, Resource):
        _resource_metadata(metadata, value.with_labels(labels) if labels else value, group)
    elif labels:
        metadata["labels"] = {**mapping(metadata.get("labels")), **labels}
    if not group.v3 and not isinstance(value, Resource):
        note = serialise({"labels": sorted_map(labels)}) if labels else "{}"
        metadata["annotations"] = {**mapping(metadata.get("annotations")), METADATA: note}
    document = {"apiVersion": group.api_version, "kind": kind, "metadata": metadata, "spec": spec}
    if isinstance(value, Resource) and "status" in value.document:
        document["status"] = value.document["status"]
    return document


def _spec(key: Key, value: Value, group: Group) -> tuple[str, dict[str, Any], dict[str, str]]:
    """Return (kind, spec, labels)."""
    spec: dict[str, Any]
    match key, value:
        case BlockKey(), Block():
            return "IPAMBlock", _block_spec(value), {}
        case AffinityKey(), Affinity():
            spec = {
                "state": value.state,
                "node": key.owner.host,
                "type": key.owner.kind,
                "cidr": str(key.cidr),
                "deleted": value.deleted if group.v3 else ("true" if value.deleted else "false"),
            }
            return "BlockAffinity", {**spec, **value.extra}, names.affinity_labels(key.owner, key.cidr)
        case HandleKey(), Handle():
            spec = {"handleID": key.id, "block": sorted_map(value.blocks), "deleted": value.deleted}
            return "IPAMHandle", {**spec, **value.extra}, {}
        case ConfigKey(), IPAMConfig():
            return group.config_kind, _config_spec(value), {}
        case ResourceKey(kind="IPAMConfiguration"), Resource():
            return group.config_kind, dict(value.spec), {}
        case ResourceKey(kind="BlockAffinity"), Resource():
            return key.kind, *_row_resource(value, group)
        case ResourceKey(), Resource():
            return key.kind, dict(value.spec), {}
        case _:
            raise TypeError(f"{key} cannot hold a {type(value).__name__}")


def _row_resource(value: Resource, group: Group) -> tuple[dict[str, Any], dict[str, str]]:
    """Return spec and labels of an affinity row that is written as a v3 resource. Raises InvalidInput."""
    if value.spec.get("deleted") in (True, "true"):
        raise InvalidInput(
            "error with field spec.Deleted = 'true' (spec.Deleted cannot be set)",
            subject=f"{value.kind}({value.name})",
            hint="Delete the resource instead.",
        )
    spec = {**value.spec, "deleted": False if group.v3 else "false"}
    try:
        row = key_of(value.kind, {"spec": spec})
    except BadDocument as error:
        raise InvalidInput(f"{value.kind}({value.name}): {error}", subject=value.name) from None
    assert isinstance(row, AffinityKey)  # noqa: S101  # that is what rows of this kind have
    return spec, names.affinity_labels(row.owner, row.cidr)


def _block_spec(block: Block) -> dict[str, Any]:
    spec: dict[str, Any] = {"cidr": str(block.cidr)}
    if block.affinity is not None:
        spec["affinity"] = block.affinity
    if block.claim_time is not None:
        spec["affinityClaimTime"] = format_time(block.claim_time)
    spec |= {
        "allocations": list(block.allocations),
        "unallocated": list(block.unallocated),
        "attributes": [attribute_document(attribute) for attribute in block.attributes],
        "sequenceNumber": block.sequence_number,
        "sequenceNumberForAllocation": sorted_map({str(o): n for o, n in block.sequence_for.items()}),
        "deleted": block.deleted,
        "strictAffinity": False,  # unused, but the schema requires it
    }
    return {**spec, **block.extra}


def _config_spec(config: IPAMConfig) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "strictAffinity": config.strict_affinity,
        "autoAllocateBlocks": config.auto_allocate_blocks,
    }
    if config.max_blocks_per_host:
        spec["maxBlocksPerHost"] = config.max_blocks_per_host
    if config.kubevirt_persistence is not None:
        spec["kubeVirtVMAddressPersistence"] = config.kubevirt_persistence
    if config.cooldown_seconds:
        spec["ipCooldownSeconds"] = config.cooldown_seconds
    return {**spec, **config.extra}


def _resource_metadata(metadata: dict[str, Any], resource: Resource, group: Group) -> None:
    """Put a resource's labels and annotations where the group keeps them.

    In the v1 group all are in Calico's own annotation, and those whose keys say so on the object too. What somebody
    else put on the object stays there (datastore §14.12). What is not given any more goes, unless Calico never knew of
    it; of an object without that annotation the labels are Calico's.
    """
    given = resource.metadata
    labels = {str(k): str(v) for k, v in mapping(given.get("labels")).items()}
    annotations = {str(k): str(v) for k, v in mapping(given.get("annotations")).items()}
    if group.v3:
        for field, items in (("labels", labels), ("annotations", annotations)):
            if items:
                metadata[field] = items
            else:
                metadata.pop(field, None)
        return
    note = mapping(metadata.get("annotations")).get(METADATA)
    before = {"labels": metadata.get("labels")} if note is None else _calico_metadata(note)
    calico: dict[str, Any] = {}
    if given.get("creationTimestamp"):
        calico["creationTimestamp"] = given["creationTimestamp"]
    for field, items in (("labels", labels), ("annotations", annotations)):
        if items:
            calico[field] = sorted_map(items)
        there, known = mapping(metadata.get(field)), mapping(before.get(field))
        kept = {k: items.get(k, v) for k, v in there.items() if k in items or not (k in known or _owned(k))}
        metadata[field] = kept | {k: v for k, v in items.items() if _owned(k)}
        if not metadata[field]:
            del metadata[field]
    metadata["annotations"] = {**metadata.get("annotations", {}), METADATA: serialise(calico)}


def _owned(key: str) -> bool:
    return any(mark in key for mark in OWNED_KEYS)


def _calico_metadata(text: Any) -> Mapping[str, Any]:
    try:
        return mapping(json.loads(text or "{}"))
    except (ValueError, TypeError):
        return {}
