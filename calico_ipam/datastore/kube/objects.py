"""Documents of the API as entries of the store, and which of them a scope means."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from calico_ipam.datastore.api import Damaged, Entry
from calico_ipam.datastore.gojson import BadDocument
from calico_ipam.datastore.kube import codec, nodes, pods, profiles
from calico_ipam.datastore.kube.codec import Group
from calico_ipam.datastore.kube.paths import VIEWS
from calico_ipam.datastore.lazy import LazyBlock
from calico_ipam.errors import InvalidInput, NotFound
from calico_ipam.model.keys import (
    Affinities,
    AffinityKey,
    BlockKey,
    Blocks,
    HandleKey,
    Key,
    ResourceKey,
    Resources,
    Scope,
)
from calico_ipam.model.names import named_cidr
from calico_ipam.model.resource import BLOCK_AFFINITY, NODE, PROFILE, WORKLOAD_ENDPOINT, Resource, mapping


def meta(document: Mapping[str, Any], name: str) -> str:
    """Return a text of an object's metadata, empty where there is none."""
    return str(mapping(document.get("metadata")).get(name) or "")


def shown_path(kind: str, document: Mapping[str, Any]) -> str:
    """Return kind, namespace and name of an object, which no two objects share: ``WorkloadEndpoint/default/pod-1``."""
    return "/".join(filter(None, (kind, meta(document, "namespace"), meta(document, "name"))))


def entry_of(
    kind: str, document: Mapping[str, Any], group: Group, only: Sequence[str] = (), *, use_pod_cidr: bool = False
) -> Entry | Damaged:
    """Return the entry of an object, marked as deleted or not.

    ``only``: as of Resources; ``use_pod_cidr``: as of :func:`nodes.node_of`.
    """
    metadata = mapping(document.get("metadata"))
    revision, uid = str(metadata.get("resourceVersion") or ""), str(metadata.get("uid") or "")
    key: Key | None = None
    value: Any
    try:
        if kind == WORKLOAD_ENDPOINT:
            value = pods.endpoint_of(document, only)
            key = ResourceKey(WORKLOAD_ENDPOINT, value.name, value.namespace)
        elif kind == NODE:
            value = nodes.node_of(document, use_pod_cidr=use_pod_cidr)
            key = ResourceKey(NODE, value.name)
        elif kind == PROFILE:
            value, revision = profiles.profile_of(document), profiles.revision_of(document)
            key = ResourceKey(PROFILE, value.name)
        elif kind in VIEWS:
            key = ResourceKey(VIEWS[kind], str(metadata.get("name") or ""))
            value = codec.decode(key, document, group)
        else:
            key = codec.key_of(kind, document)
            value = codec.decode(key, document, group)
    except (BadDocument, InvalidInput) as error:
        return Damaged(key, shown_path(kind, document), str(error), json.dumps(document.get("spec")), revision)
    return Entry(key, value, revision, uid, document)


def lazy_block(
    document: Mapping[str, Any], group: Group, fetch: Callable[[str], Mapping[str, Any]]
) -> Entry | Damaged | None:
    """Return a block of a list of names; it is fetched, by its name, when somebody looks at it.

    The list does not say whose a block is. One whose name is not that of a block is fetched at once, and an object that
    came whole is decoded; None for those that are marked as deleted.
    """
    name, cidr = meta(document, "name"), named_cidr(meta(document, "name"))
    if "spec" in document or cidr is None:
        try:
            found = entry_of("IPAMBlock", document if "spec" in document else fetch(name), group)
        except NotFound:
            return None
        return None if isinstance(found, Entry) and marked_deleted(found) else found
    key, revision = BlockKey(cidr), meta(document, "resourceVersion")

    def read() -> Entry | Damaged:
        try:
            return entry_of("IPAMBlock", fetch(name), group)
        except NotFound:
            return Damaged(key, f"IPAMBlock/{name}", "it is gone meanwhile", revision=revision)

    return _NamedBlock(key, revision, read)


class _NamedBlock(LazyBlock):
    """A block of which a list told the name."""

    __slots__ = ("_read",)
    _read: Callable[[], Entry | Damaged]

    def __init__(self, key: BlockKey, revision: str, read: Callable[[], Entry | Damaged]) -> None:
        super().__init__(key, revision)
        object.__setattr__(self, "_read", read)

    def decode(self) -> Entry | Damaged:
        return self._read()


def marked_deleted(entry: Entry) -> bool:
    """Tell whether upstream has marked a row as deleted and not removed it yet: for readers it is gone (§5)."""
    if isinstance(entry.value, Resource):
        return entry.value.kind == BLOCK_AFFINITY and entry.value.spec.get("deleted") in (True, "true")
    return bool(getattr(entry.value, "deleted", False))


def within_scope(scope: Scope, entry: Entry) -> bool:
    """Tell whether an entry belongs to a scope: label selectors and paths only sieve (datastore §3.2).

    Which pods are endpoints at all is found out before: those that are none need not be understood.
    """
    key = entry.key
    match scope:
        case Blocks(version):
            return isinstance(key, BlockKey) and version in (None, key.cidr.version)
        case Affinities(kind, host, version):
            return (
                isinstance(key, AffinityKey)
                and kind in (None, key.owner.kind)
                and host in (None, key.owner.host)
                and version in (None, key.cidr.version)
            )
        case Resources(kind, namespace, prefix):
            if not isinstance(key, ResourceKey) or key.kind != kind:
                return False
            return namespace in (None, key.namespace) and key.name.startswith(prefix)
        case _:
            return isinstance(key, HandleKey)
