"""Values <-> the documents of etcd and SQLite (datastore §3, §4, §9, §10).

What is written is upstream's text byte for byte. Fields that this library does not know follow the known ones, so a
read-modify-write loses nothing. What cannot be understood becomes a :class:`Damaged`, never an absence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from calico_ipam.datastore.api import Damaged, Entry, Value
from calico_ipam.datastore.gojson import (
    BadDocument,
    folded,
    parse,
    serialise,
)
from calico_ipam.errors import InvalidInput
from calico_ipam.model.keys import Key, ResourceKey
from calico_ipam.model.resource import Resource, mapping
from calico_ipam.model.timestamps import format_time

#: ``Entry.origin`` of a block: the fields that are stored as ``null``. Go keeps null and empty apart on rewriting.
FRESH_BLOCK = ("attributes",)

_METADATA_ORDER = (
    *("name", "generateName", "namespace", "uid", "generation", "creationTimestamp", "deletionTimestamp"),
    *("deletionGracePeriodSeconds", "labels", "annotations", "ownerReferences", "finalizers"),
)
_NEVER_STORED = ("resourceVersion", "selfLink")

_TOP = frozenset({"kind", "apiVersion", "metadata", "spec", "status"})
_METADATA = frozenset((*_METADATA_ORDER, *_NEVER_STORED))
#: fields of the kinds that addresses depend on
_SPEC = {
    "IPPool": frozenset(
        {
            *("cidr", "blockSize", "disabled", "nodeSelector", "namespaceSelector", "allowedUses", "assignmentMode"),
            *("ipipMode", "vxlanMode", "natOutgoing", "disableBGPExport"),
        }
    ),
    "IPReservation": frozenset({"reservedCIDRs"}),
    "ClusterInformation": frozenset({"clusterGUID", "clusterType", "calicoVersion", "datastoreReady", "variant"}),
}


# --- reading -----------------------------------------------------------------------------------------------


def decode(key: Key, path: str, text: str, revision: str) -> Entry | Damaged:
    """Return the object ``key``, which is stored under ``path`` as ``text``."""
    origin: Any = None
    value: Any
    try:
        if isinstance(key, ResourceKey):
            value = _resource(key, text, revision)
        else:
            from calico_ipam.datastore import codec_ipam

            value, origin = codec_ipam.decode(key, text)
    except (BadDocument, InvalidInput) as error:
        return Damaged(key, path, str(error), text, revision)
    uid = str(value.metadata.get("uid") or "") if isinstance(value, Resource) else ""
    return Entry(key, value, revision, uid, origin)


def decode_only(key: ResourceKey, path: str, text: str, revision: str, only: Sequence[str]) -> Entry | Damaged:
    """Return a resource with no more than some fields of its spec, as of :class:`Resources`."""
    try:
        spec = mapping(_object(key, text).get("spec"))
    except BadDocument as error:
        return Damaged(key, path, str(error), text, revision)
    kept = {name: spec[name] for name in only if name in spec}
    return Entry(key, Resource(key.kind, key.name, {"spec": kept}, key.namespace), revision)


def _object(key: ResourceKey, text: str) -> dict[str, Any]:
    document = parse(text)
    if not isinstance(document, dict):
        raise BadDocument(f"a {key.kind} must be a JSON object")
    return document


def _resource(key: ResourceKey, text: str, revision: str) -> Resource:
    document = folded(_object(key, text), _TOP)
    metadata = {**folded(mapping(document.get("metadata")), _METADATA), "resourceVersion": revision}
    document = {**document, "metadata": metadata}
    if key.kind in _SPEC and isinstance(document.get("spec"), dict):
        document["spec"] = folded(document["spec"], _SPEC[key.kind])
    return Resource(key.kind, key.name, document, key.namespace)


# --- writing -----------------------------------------------------------------------------------------------


def encode(key: Key, value: Value, origin: Any = FRESH_BLOCK) -> str:
    """Return the text to store. ``origin`` is the entry's that is replaced; the default is for a new object."""
    if isinstance(key, ResourceKey) and isinstance(value, Resource):
        return serialise(_stored_resource(key, value))
    from calico_ipam.datastore import codec_ipam

    return codec_ipam.encode(key, value, origin or ())


def rewritten(value: Value, text: str) -> Any:
    """Return the origin of an entry that was just written as ``text``."""
    if isinstance(value, Resource):
        return None
    from calico_ipam.datastore import codec_ipam

    return codec_ipam.rewritten(value, text)


def _stored_resource(key: ResourceKey, resource: Resource) -> dict[str, Any]:
    """Return the document as it is stored: in Go's order of fields, without what the store itself knows."""
    given = dict(resource.metadata)
    for name in _NEVER_STORED:
        given.pop(name, None)
    given["name"] = key.name
    if key.namespace:
        given["namespace"] = key.namespace
    metadata = {name: given.pop(name) for name in _METADATA_ORDER if name in given} | given
    rest = {k: v for k, v in resource.document.items() if k not in ("kind", "apiVersion", "metadata")}
    return {"kind": key.kind, "apiVersion": "projectcalico.org/v3", "metadata": metadata, **rest}


def created(resource: Resource, now: int) -> Resource:
    """Return a resource with the ``uid`` (random) and ``creationTimestamp`` (``now``, nanoseconds) it still lacks."""
    import uuid  # 2 ms that only a creation of a resource costs

    return _completed(resource, {"uid": str(uuid.uuid4()), "creationTimestamp": format_time(now)})


def updated(resource: Resource, before: Resource) -> Resource:
    """Return a resource with the ``uid`` and ``creationTimestamp`` that it had ``before``, where it lacks them."""
    return _completed(resource, {n: before.metadata[n] for n in ("uid", "creationTimestamp") if n in before.metadata})


def _completed(resource: Resource, defaults: Mapping[str, Any]) -> Resource:
    given = {name: value for name, value in resource.metadata.items() if value not in (None, "")}
    if all(name in given for name in defaults):
        return resource
    return replace(resource, document={**resource.document, "metadata": {**given, **defaults, **given}})


def at_revision(resource: Resource, key: ResourceKey, revision: str) -> Resource:
    """Return a resource as a reader would see it now that it is stored at ``revision``."""
    document = _stored_resource(key, resource)
    document["metadata"] = {**document["metadata"], "resourceVersion": revision}
    return Resource(key.kind, key.name, document, key.namespace)
