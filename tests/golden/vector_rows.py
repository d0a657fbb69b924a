"""What ours gives for a row of a vector table: the fields that upstream gave, computed from the fields that it got.

``TABLES`` names for each table the fields of a row that are input, and the function that returns the others. A row must
consist of exactly these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from calico_ipam import errors
from calico_ipam.datastore.paths import path_of
from calico_ipam.engine.request import Request
from calico_ipam.engine.results import AssignedAddress, Assignments
from calico_ipam.errors import InvalidInput, IPAMError
from calico_ipam.model.addresses import address_at, make_network, ordinal_of, parse_address, parse_network
from calico_ipam.model.affinity import BlockOwner
from calico_ipam.model.block import HostReserved
from calico_ipam.model.block_order import block_order, host_seed
from calico_ipam.model.endpoint_names import EndpointIds, invalid_field, veth_name_for_workload
from calico_ipam.model.handle_names import length_limited, vm_handle
from calico_ipam.model.keys import AffinityKey, BlockKey, HandleKey
from calico_ipam.model.names import (
    affinity_labels,
    affinity_name,
    affinity_selector,
    cidr_name,
    convert_uid,
    handle_name,
    hostname_hash,
)
from calico_ipam.model.owner import Owner
from calico_ipam.model.pool import Pool, max_prefix_length
from calico_ipam.model.reservation import Reservations
from calico_ipam.model.selector import parse_selector
from tests.golden.vector_blocks import BLOCK_TABLES

Row = Mapping[str, Any]
INT64 = (1 << 63) - 1  # upstream's counts end here


@dataclass(frozen=True, slots=True)
class Table:
    """``inputs``: fields that upstream got. ``ours``: from a row and its table, the fields that upstream gave."""

    inputs: frozenset[str]
    ours: Callable[[Row, Row], dict[str, Any]]


def attempt(call: Callable[[], Any]) -> tuple[Any, IPAMError | None]:
    """Return a result, or the error instead."""
    try:
        return call(), None
    except IPAMError as error:
        return None, error


def host_reserved(document: Row | None) -> HostReserved | None:
    return None if document is None else HostReserved(**document)


# --- selectors ---------------------------------------------------------------------------------------------


def selectors(row: Row, table: Row) -> dict[str, Any]:
    text = row["selector"]
    selector, error = attempt(lambda: parse_selector(text))
    if error is not None:
        return {"valid": False, "error": str(error), "normalised": text.strip()}
    return {
        "valid": True,
        "canonical": selector.canonical,
        "normalised": selector.canonical,
        "unique_id": selector.unique_id,
        "matches": [selector.matches(labels) for labels in table["label_maps"]],
    }


def node_selects(row: Row, _table: Row) -> dict[str, Any]:
    cidr = parse_network("10.0.0.0/24")
    pool = Pool("p", cidr, "10.0.0.0/24", 26, node_selector=row["node_selector"])
    selects, error = attempt(lambda: pool.selects_node(row["labels"] or {}))
    return {"selects": bool(selects), "error": error}


# --- the order of blocks -----------------------------------------------------------------------------------


def block_generator(row: Row, _table: Row) -> dict[str, Any]:
    order = block_order(parse_network(row["pool"]), row["block_size"], row["host"], row.get("now_ns", 0))
    return {"first": [str(block) for block in islice(order, 20)]}


def seed(row: Row, _table: Row) -> dict[str, Any]:
    return {"seed": host_seed(row["host"])}


# --- names -------------------------------------------------------------------------------------------------


def cidr_names(row: Row, _table: Row) -> dict[str, Any]:
    cidr, error = attempt(lambda: parse_network(row["text"]))
    if error is not None:
        return {"valid": False, "error": str(error)}
    return {
        "valid": True,
        "canonical": str(cidr),
        "version": cidr.version,
        "prefix_length": cidr.prefixlen,
        "num_addresses": str(cidr.num_addresses),
        "name": cidr_name(cidr),
        "kubernetes_block_name": cidr_name(cidr),
        "block_key_text": str(BlockKey(cidr)),
        "etcd_block_key": path_of(BlockKey(cidr)),
    }


def affinity_names(row: Row, _table: Row) -> dict[str, Any]:
    cidr = parse_network(row["cidr"])
    owner = BlockOwner(row["affinity_type"], row["host"])
    key = AffinityKey(owner, cidr)
    name = affinity_name(owner.host, cidr)
    return {
        "kubernetes_name": name,
        "name_length": len(name.encode()),
        "labels": affinity_labels(owner, cidr),
        "list_label_selector": affinity_selector(owner.kind, owner.host, cidr.version),
        "key_text": str(key),
        "etcd_key": path_of(key),
        "etcd_list_prefix": path_of(key).rpartition("/")[0],
    }


def handle_names(row: Row, _table: Row) -> dict[str, Any]:
    handle = row["handle"]
    key = HandleKey(handle)
    return {
        "kubernetes_name": handle_name(handle),
        "key_text": str(key),
        "etcd_key": path_of(key),
        "listed_as": None if "/" in handle else handle,
    }


def length_limits(row: Row, _table: Row) -> dict[str, Any]:
    text, error = attempt(lambda: length_limited(row["prefix"], row["suffix"], row["max"]))
    return {"refused": True} if isinstance(error, InvalidInput) else {"id": text}


def vm_handles(row: Row, _table: Row) -> dict[str, Any]:
    handle, error = attempt(lambda: vm_handle(row["network"], row["namespace"], row["vm"]))
    return {"refused": True} if isinstance(error, InvalidInput) else {"handle": handle}


def uid(row: Row, _table: Row) -> dict[str, Any]:
    converted, error = attempt(lambda: convert_uid(row["uid_in"]))
    return {"error": error} if error is not None else {"uid": converted}


_ID_FIELDS = {
    "Node": "node",
    "Orchestrator": "orchestrator",
    "Endpoint": "endpoint",
    "Workload": "workload",
    "Pod": "pod",
    "ContainerID": "container_id",
}


def endpoint_names(row: Row, _table: Row) -> dict[str, Any]:
    ids = EndpointIds(**{_ID_FIELDS[field]: value for field, value in row["ids"].items()})
    name, error = attempt(ids.prefix if row["prefix_allowed"] else ids.name)
    return {"name": name or "", "error": error}


def endpoint_name_parse(row: Row, _table: Row) -> dict[str, Any]:
    ids, error = attempt(lambda: EndpointIds.parse(row["name"]))
    found = ids or EndpointIds()
    return {"error": error, "ids": {field: getattr(found, ours) for field, ours in _ID_FIELDS.items()}}


def veth_names(row: Row, _table: Row) -> dict[str, Any]:
    return {"name": veth_name_for_workload(row["namespace"], row["pod"])}


# --- addresses, reservations, results, owners --------------------------------------------------------------


def ordinals(row: Row, _table: Row) -> dict[str, Any]:
    block = parse_network(row["block"])
    places = []
    for asked in row["asked_ordinals"]:
        address = address_at(block, asked)
        back, error = attempt(partial(ordinal_of, block, address))
        assert error is not None or back == asked
        place = {"ip": str(address), "ordinal": asked}
        places.append(place if error is None else place | {"error": str(error)})
    addresses = []
    for text in row["asked_ips"]:
        ordinal, error = attempt(partial(ordinal_of, block, parse_address(text)))
        addresses.append({"ip": text, "error": str(error)} if error is not None else {"ip": text, "ordinal": ordinal})
    return {"num_addresses": block.num_addresses, "ordinals": places, "ips": addresses}


def reservation_filter(row: Row, _table: Row) -> dict[str, Any]:
    reserved = Reservations.of(row["reserved"])
    candidate = parse_network(row["candidate"])
    return {
        "covers_whole": reserved.covers(candidate),
        "matches_base_ip": reserved.contains(candidate.network_address),
        "overlaps": reserved.overlaps(candidate),
    }


def reserved_in_cidr(row: Row, _table: Row) -> dict[str, Any]:
    reserved = Reservations.of(row["reserved_cidrs"])
    return {"count": min(reserved.count_in(parse_network(row["cidr"])), INT64), "error": None}


def max_prefix(row: Row, _table: Row) -> dict[str, Any]:
    reserved = host_reserved(row["host_reserved_attr"])
    length, error = attempt(lambda: max_prefix_length(row["ip_version"], reserved))
    return {"max_prefix_len": length or 0, "error": error}


def partial_fulfilment(row: Row, _table: Row) -> dict[str, Any]:
    block = make_network(row["ip_version"], 0, 8)
    result = Assignments(
        row["ip_version"],
        row["want"],
        tuple(AssignedAddress(address_at(block, o), block) for o in range(row["got"])),
        tuple(row["msgs"]),
        host_reserved(row["host_reserved_attr"]),
    )
    return {"text": result.shortfall}


def owner_match(row: Row, _table: Row) -> dict[str, Any]:
    return {"matches": Owner(**row["owner"]).matches(row["attrs"])}


# --- texts of errors ---------------------------------------------------------------------------------------


def _without_identifier() -> IPAMError:
    _, error = attempt(lambda: path_of(HandleKey("")))
    assert error is not None
    return error


def _without_use() -> IPAMError:
    _, error = attempt(Request(use="", host="node-1", numbers={4: 1}).check)
    assert error is not None
    return error


def _invalid_field(name: str, value: str | None, reason: str) -> IPAMError:
    return invalid_field(name, value, reason)


#: name of an error in the table -> how we make it. What has no entry is raised nowhere by this library.
_ERRORS: Mapping[str, Callable[[Row], IPAMError]] = {
    "already_exists": lambda a: errors.AlreadyExists(a["identifier_text"], a["cause"] or ""),
    "does_not_exist": lambda a: errors.NotFound(a["identifier_text"], a["cause"] or ""),
    "update_conflict": lambda a: errors.Conflict(a["identifier_text"], a["cause"] or ""),
    "not_supported": lambda a: errors.NotSupported(a["operation"], a["identifier_text"], a["reason"]),
    "unauthorized": lambda a: errors.Unauthorized(a["cause"]),
    "datastore": lambda a: errors.StoreError(a["cause"]),
    "bad_handle": lambda a: errors.BadHandle(a["requested"], a["expected"]),
    "bad_sequence_number": lambda a: errors.BadSequenceNumber(a["requested"], a["expected"]),
    "block_claim_conflict": lambda a: errors.BlockClaimConflict(a["cidr"], a["affinity"]),
    "block_not_empty": lambda a: errors.BlockNotEmpty(a["cidr"]),
    "alternate_owner_empty": lambda a: errors.AlternateOwnerEmpty(),
    "alternate_owner_mismatch": lambda a: errors.AlternateOwnerMismatch(),
    "use_required": lambda a: _without_use(),
    "block_limit": lambda a: errors.BlockLimitReached(),
    "in_cooldown": lambda a: errors.AddressInCooldown(a["ip"]),
    "insufficient_identifiers": lambda a: _without_identifier(),
    "validation": lambda a: _invalid_field(**a["fields"][0]),
    "max_alloc_reached": lambda a: errors.MaxAllocReached(a["handle"], a["current"], a["max"]),
    "no_free_blocks": lambda a: errors.NoFreeBlocks(),
    "no_qualified_pool": lambda a: errors.NoQualifiedPool(),
}


def error_texts(row: Row, _table: Row) -> dict[str, Any]:
    make = _ERRORS.get(row["name"])
    args = row["args"]
    if make is None or (row["name"] == "validation" and len(args["fields"]) != 1):
        return {"not_raised": True}
    return {"text": str(make(args))}


_R = frozenset
TABLES: Mapping[str, Table] = {
    "selectors": Table(_R({"selector"}), selectors),
    "node-selects": Table(_R({"node_selector", "labels"}), node_selects),
    "block-generator": Table(_R({"pool", "block_size", "host", "now_ns"}), block_generator),
    "host-seed": Table(_R({"host"}), seed),
    "cidr-names": Table(_R({"text"}), cidr_names),
    "affinity-names": Table(_R({"host", "cidr", "affinity_type"}), affinity_names),
    "hostname-hash": Table(_R({"host"}), lambda row, _: {"label": hostname_hash(row["host"])}),
    "handle-names": Table(_R({"handle"}), handle_names),
    "length-limited": Table(_R({"prefix", "suffix", "max"}), length_limits),
    "vm-handles": Table(_R({"network", "namespace", "vm"}), vm_handles),
    "uid": Table(_R({"uid_in"}), uid),
    "endpoint-names": Table(_R({"ids", "prefix_allowed"}), endpoint_names),
    "endpoint-name-parse": Table(_R({"name"}), endpoint_name_parse),
    "veth-names": Table(_R({"namespace", "pod"}), veth_names),
    "ordinals": Table(_R({"block", "asked_ordinals", "asked_ips"}), ordinals),
    "reservation-filter": Table(_R({"reserved", "candidate"}), reservation_filter),
    "reserved-in-cidr": Table(_R({"cidr", "reserved_cidrs"}), reserved_in_cidr),
    "max-prefix-length": Table(_R({"ip_version", "host_reserved_attr"}), max_prefix),
    "partial-fulfilment": Table(_R({"got", "want", "ip_version", "msgs", "host_reserved_attr"}), partial_fulfilment),
    "owner-match": Table(_R({"owner", "attrs"}), owner_match),
    "error-texts": Table(_R({"name", "args", "type"}), error_texts),
    **{name: Table(inputs, ours) for name, (inputs, ours) in BLOCK_TABLES.items()},
}
