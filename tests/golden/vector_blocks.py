"""Rows of the vector tables that work on one block: read by the codec, changed by the model, written by the codec."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from calico_ipam.datastore.api import Entry
from calico_ipam.datastore.codec import decode, encode
from calico_ipam.datastore.paths import path_of
from calico_ipam.errors import IPAMError
from calico_ipam.model.addresses import network_of, parse_address, parse_network
from calico_ipam.model.affinity import HOST, BlockOwner
from calico_ipam.model.block import Block, HostReserved, ReleaseOption
from calico_ipam.model.keys import BlockKey
from calico_ipam.model.owner import held_elsewhere
from calico_ipam.model.reservation import Reservations
from calico_ipam.model.timestamps import parse_time

Row = Mapping[str, Any]


def stored(document: Row) -> Entry:
    """Return the entry that a stored block document is read as."""
    key = BlockKey(parse_network(document["cidr"]))
    entry = decode(key, path_of(key), json.dumps(document), "1")
    assert isinstance(entry, Entry), entry
    assert not entry.value.problems, entry.value.problems
    return entry


def written(entry: Entry, block: Block) -> Any:
    """Return the document that a block is written as in place of ``entry``."""
    return json.loads(encode(entry.key, block, entry.origin))


def block_new(row: Row, _table: Row) -> dict[str, Any]:
    reserved = row["host_reserved_attr"]
    cidr = parse_network(row["cidr"])
    block = Block.new(cidr, now=row["now_ns"], reserved=HostReserved(**reserved) if reserved else None)
    return {"block": json.loads(encode(BlockKey(cidr), block))}


def block_info(row: Row, _table: Row) -> dict[str, Any]:
    block = stored(row["block"]).value
    owner = block.owner
    # The recordings reserve the whole block, nothing, or its first two addresses; the row has their number.
    head = network_of(
        block.cidr.network_address, block.cidr.prefixlen + (block.size // (row["reserved"] or 1)).bit_length() - 1
    )
    reservations = Reservations((head,) if row["reserved"] else ())
    return {
        "empty": block.empty,
        "free": block.free(reservations),
        "in_use": [str(block.address(o)) for o, _ in block.taken()],
        "affinity_type": owner.kind if owner else "",
        "host": owner.host if owner else "",
        "non_affine": [{"ip": str(block.address(o)), "host": node} for o, node in held_elsewhere(block)],
    }


def block_gc(row: Row, _table: Row) -> dict[str, Any]:
    entry = stored(row["block"])
    after = entry.value.mature(row["cooldown"], parse_time(row["now"]))
    return {"changed": after is not entry.value, "block_after": written(entry, after)}


def block_release(row: Row, _table: Row) -> dict[str, Any]:
    entry = stored(row["block"])
    options = [
        ReleaseOption(parse_address(o["address"]), o.get("handle"), o.get("sequence_number")) for o in row["options"]
    ]
    try:
        after, what = entry.value.release(options, cooldown=row["cooldown"], now=parse_time(row["now"]))
    except IPAMError as error:
        return {"error": error, "count_by_handle": None, "unallocated": [], "block_after": written(entry, entry.value)}
    return {
        "error": None,
        "count_by_handle": dict(what.counts),
        "unallocated": [str(address) for address in what.already_free],
        "block_after": written(entry, after),
    }


def block_release_by_handle(row: Row, _table: Row) -> dict[str, Any]:
    entry = stored(row["block"])
    after, ordinals = entry.value.release_handle(
        row["handle"], cooldown=row["cooldown"], now=parse_time(row["now"]), sequence_number=row["sequence_number"]
    )
    return {"released": len(ordinals), "block_after": written(entry, after)}


def block_auto_assign(row: Row, _table: Row) -> dict[str, Any]:
    entry = stored(row["block"])
    try:
        after, ordinals = entry.value.assign(
            row["num"],
            handle=row["handle"],
            attrs=row["attrs"] or {},
            owner=BlockOwner(HOST, row["host"]) if row["affinity_check"] else None,
            reservations=Reservations.of(row["reserved"]),
        )
    except IPAMError as error:
        return {"error": error, "ips": [], "block_after": written(entry, entry.value)}
    addresses = [f"{after.address(o)}/{after.cidr.prefixlen}" for o in ordinals]
    return {"error": None, "ips": addresses, "block_after": written(entry, after)}


#: name of the table -> input fields, and what gives the others
BLOCK_TABLES: Mapping[str, tuple[frozenset[str], Callable[[Row, Row], dict[str, Any]]]] = {
    "block-new": (frozenset({"cidr", "host_reserved_attr", "now_ns"}), block_new),
    "block-info": (frozenset({"block", "reserved"}), block_info),
    "block-gc": (frozenset({"block", "cooldown", "now"}), block_gc),
    "block-release": (frozenset({"block", "options", "cooldown", "now"}), block_release),
    "block-release-by-handle": (
        frozenset({"block", "handle", "sequence_number", "cooldown", "now"}),
        block_release_by_handle,
    ),
    "block-auto-assign": (
        frozenset({"block", "num", "handle", "attrs", "host", "affinity_check", "reserved"}),
        block_auto_assign,
    ),
}
