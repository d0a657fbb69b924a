"""An allocation's attribute as every datastore stores it (datastore §2.1, §3.1)."""

from __future__ import annotations

from typing import Any

from calico_ipam.datastore.gojson import Schema, sorted_map
from calico_ipam.model.block import Attribute
from calico_ipam.model.timestamps import format_time, parse_time

ATTRIBUTE = Schema(
    "AllocationAttribute",
    {
        "handle_id": "string",
        "secondary": "map[string]string",
        "alternateOwnerAttrs": "map[string]string",
        "releasedAt": "string",
    },
)


def attribute_of(document: Any) -> Attribute:
    """Return the attribute that a document says. Raises BadDocument."""
    fields = ATTRIBUTE.read(document)
    released = fields.text_or_none("releasedAt")
    return Attribute(
        fields.text_or_none("handle_id"),
        fields.texts("secondary"),
        fields.texts("alternateOwnerAttrs"),
        None if released is None else parse_time(released),
        fields.extra,
    )


def attribute_document(attribute: Attribute) -> dict[str, Any]:
    """Return the document of an attribute, fields that this library does not know included."""
    document: dict[str, Any] = {}
    if attribute.handle is not None:
        document["handle_id"] = attribute.handle
    if attribute.active:
        document["secondary"] = sorted_map(attribute.active)
    if attribute.alternate:
        document["alternateOwnerAttrs"] = sorted_map(attribute.alternate)
    if attribute.released_at is not None:
        document["releasedAt"] = format_time(attribute.released_at)
    return {**document, **attribute.extra}
