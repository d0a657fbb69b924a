"""Blocks, affinity rows and handles for ``get``: in the form of custom resources, on every datastore (cli §16)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from calico_ipam.datastore.api import Entry
from calico_ipam.datastore.kube.codec import V1, Group, encode
from calico_ipam.engine.survey import BLOCKS, HANDLES, ROWS, affinity_host
from calico_ipam.errors import NotFound
from calico_ipam.model import names
from calico_ipam.model.block import Block
from calico_ipam.model.keys import Scope
from calico_ipam.model.resource import Resource
from calico_ipam.model.timestamps import parse_attribute_time

if TYPE_CHECKING:
    from calico_ipam.ctl.get import Found
    from calico_ipam.ctl.kinds import Kind
    from calico_ipam.engine.world import Engine

_SCOPES: Mapping[str, Scope] = {"IPAMBlock": BLOCKS, "BlockAffinity": ROWS, "IPAMHandle": HANDLES}
_GROUP = Group(V1)


def look_up(engine: Engine, kind: Kind, name: str) -> Found:
    """Return all objects of a kind, or the one of this name: a block also by its CIDR. Raises NotFound."""
    from calico_ipam.ctl.get import Found

    listing = engine.store.list(_SCOPES[kind.name])
    blocks = engine.store.list(BLOCKS) if kind.name == "IPAMHandle" else None
    held = _handles_in(blocks) if blocks is not None else {}
    resources = [_resource(kind.name, entry, held, engine.clock.now()) for entry in listing]
    if not name:
        return Found(kind, resources, listing.revision, is_list=True)
    for resource, entry in zip(resources, listing, strict=True):
        if name in _names(resource, entry):
            return Found(kind, [resource])
    raise NotFound(f"{kind.name}({name})", hint=f"'ipamctl get {kind.aliases[0]}' lists them.")


def _names(resource: Resource, entry: Entry) -> set[str]:
    found = {resource.name, str(resource.spec.get("handleID") or resource.name)}
    if isinstance(entry.value, Block):
        found |= {str(entry.value.cidr), str(entry.value.cidr).replace("/", "-")}
    return found


def _handles_in(blocks: Any) -> dict[str, list[int]]:
    """Return, by handle, when its addresses were assigned as far as they say."""
    found: dict[str, list[int]] = {}
    for entry in blocks:
        for _, attribute in entry.value.taken():
            if attribute.handle and not attribute.cold:
                found.setdefault(attribute.clean_handle, []).append(
                    parse_attribute_time(attribute.active.get("timestamp", "")) or 0
                )
    return found


def _resource(kind: str, entry: Entry, held: dict[str, list[int]], now: int) -> Resource:
    value: Any = entry.value
    if kind == "IPAMBlock":
        name = names.cidr_name(value.cidr)
    elif kind == "BlockAffinity":
        name = names.affinity_name(entry.key.owner.host, entry.cidr)  # type: ignore[union-attr]  # rows have affinity keys
    else:
        name = names.handle_name(value.id)
    document = encode(entry.key, value, _GROUP, name, None)
    metadata = {**document.get("metadata", {}), "resourceVersion": entry.revision}
    metadata.pop("annotations", None)
    if entry.uid:
        metadata["uid"] = entry.uid
    return Resource(kind, name, {**document, "metadata": metadata, "counts": _counts(entry, held, now)})


def _counts(entry: Entry, held: dict[str, list[int]], now: int) -> dict[str, str]:
    value: Any = entry.value
    if isinstance(value, Block):
        host = affinity_host(value)
        taken = [attribute for _, attribute in value.taken()]
        borrowed = sum(1 for each in taken if each.active.get("node") and each.active["node"] != host)
        return {
            "USED": str(len(taken)),
            "FREE": str(len(value.unallocated)),
            "COOLING": str(value.cooling),
            "BORROWED": str(borrowed),
        }
    if hasattr(value, "id"):
        mine = held.get(value.id, [])
        oldest = min((at for at in mine if at), default=0)
        return {
            "AGE": age(now - oldest) if oldest else "",
            "REVISION": entry.revision,
            "MATCHED": str(bool(mine)).lower(),
        }
    return {}


def age(nanoseconds: int) -> str:
    """Return a duration for people: ``3d``, ``5h``, ``42s``."""
    seconds = max(0, nanoseconds // 1_000_000_000)
    for size, letter in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{letter}"
    return f"{seconds}s"
