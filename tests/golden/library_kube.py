"""Recorded custom resources in the form of etcd's documents and back, so that one replay and one table serve both.

Of each resource two things are shown: under etcd's key what etcd's document would hold, and under :data:`REST` and the
same key what only the resource has: name, labels, annotations, finalizers, what of the spec etcd has in its key.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from calico_ipam.model.affinity import HOST

State = dict[str, Any]

#: begins the key under which the rest of a resource stands
REST = "rest of "
V1 = "crd.projectcalico.org/v1"

IPAM = "/calico/ipam/v2/"
RESOURCES = "/calico/resources/v3/projectcalico.org/"

#: field of a resource's spec -> field of etcd's document, where they differ
_BLOCK = {"affinityClaimTime": "affinity_claim_time"}
_CONFIG = {"strictAffinity": "strict_affinity", "autoAllocateBlocks": "auto_allocate_blocks"}
_PLURALS = {
    "IPAMBlock": "ipamblocks",
    "BlockAffinity": "blockaffinities",
    "IPAMHandle": "ipamhandles",
    "IPAMConfig": "ipamconfigs",
    "IPPool": "ippools",
    "IPReservation": "ipreservations",
    "Node": "nodes",
}
PLURALS = tuple(_PLURALS.values())
KINDS = {plural: kind for kind, plural in _PLURALS.items()}
#: what the schema of a pool fills in; setups were recorded before it did
POOL_DEFAULTS = {"nodeSelector": "all()", "assignmentMode": "Automatic"}
_METADATA = ("name", "labels", "annotations", "finalizers")


def plural_of(resource: Mapping[str, Any]) -> str:
    return _PLURALS[resource["kind"]]


def key_of(resource: Mapping[str, Any]) -> str:
    """Return the etcd key that a resource would have; of one that says too little, a key of its own kind."""
    kind, name, spec = resource["kind"], resource["metadata"]["name"], resource.get("spec") or {}
    cidr = str(spec.get("cidr") or "")
    place = f"ipv{6 if ':' in cidr else 4}/block/{cidr.replace('/', '-')}"
    match kind:
        case "IPAMBlock":
            return f"{IPAM}assignment/{place}"
        case "BlockAffinity":
            return f"{IPAM}{spec.get('type') or HOST}/{spec.get('node')}/{place}"
        case "IPAMHandle":
            return f"{IPAM}handle/{spec.get('handleID') or name}"
        case "IPAMConfig":
            return f"{IPAM}config"
        case _:
            return f"{RESOURCES}{_PLURALS[kind]}/{name}"


def document_of(resource: Mapping[str, Any]) -> dict[str, Any]:
    """Return a resource in the form of etcd's document."""
    spec = copy.deepcopy(resource.get("spec") or {})
    match resource["kind"]:
        case "IPAMBlock":
            spec.pop("strictAffinity", None)
            return {"affinity": None, **{_BLOCK.get(field, field): value for field, value in spec.items()}}
        case "BlockAffinity":
            return {"state": spec.get("state"), "deleted": spec.get("deleted") in (True, "true")}
        case "IPAMHandle":
            spec.pop("handleID", None)
            return spec
        case "IPAMConfig":
            return {_CONFIG.get(field, field): value for field, value in spec.items() if value is not False}
        case "Node":
            return {"spec": {}}  # recorded with their metadata only
        case "IPPool":
            spec = {**POOL_DEFAULTS, **spec}
    return {"spec": spec, **({"status": resource["status"]} if resource.get("status") else {})}


def rest_of(resource: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a resource has beside etcd's document."""
    metadata, spec = resource["metadata"], resource.get("spec") or {}
    fields = {
        "IPAMBlock": ("strictAffinity",),
        "BlockAffinity": ("type", "node", "cidr"),
        "IPAMHandle": ("handleID",),
    }.get(resource["kind"], ())
    return {
        "kind": resource["kind"],
        "metadata": {field: metadata[field] for field in _METADATA if metadata.get(field)},
        "spec": {field: spec[field] for field in fields if field in spec},
    }


def shown(resource: Mapping[str, Any]) -> State:
    """Return a resource as the two entries of a state."""
    key = key_of(resource)
    return {key: document_of(resource), REST + key: rest_of(resource)}


def state_of(resources: Iterable[Mapping[str, Any]]) -> State:
    return {key: document for resource in resources for key, document in shown(resource).items()}


def resource_of(rest: Mapping[str, Any], document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the resource that a document and its rest are."""
    kind, body = rest["kind"], copy.deepcopy(dict(document))
    spec: dict[str, Any]
    match kind:
        case "IPAMBlock":
            back = {theirs: ours for ours, theirs in _BLOCK.items()}
            spec = {back.get(field, field): value for field, value in body.items() if value is not None}
            spec.setdefault("strictAffinity", False)
        case "BlockAffinity":
            spec = {"state": body["state"], "deleted": "true" if body["deleted"] else "false"}
        case "IPAMConfig":
            back = {theirs: ours for ours, theirs in _CONFIG.items()}
            spec = {back.get(field, field): value for field, value in body.items()}
            spec = {"strictAffinity": False, "autoAllocateBlocks": False, **spec}
        case "IPAMHandle":
            spec = body
        case _:
            spec = body["spec"]
    return {
        "apiVersion": "v1" if kind == "Node" else V1,
        "kind": kind,
        "metadata": dict(rest["metadata"]),
        **({} if kind == "Node" else {"spec": {**spec, **rest["spec"]}}),
        **({"status": body["status"]} if "status" in body else {}),
    }
