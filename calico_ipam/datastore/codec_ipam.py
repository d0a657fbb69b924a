"""Blocks, affinities, handles and the IPAM settings <-> their documents in etcd and SQLite (datastore §3).

Apart from :mod:`calico_ipam.datastore.codec`, so that who reads nothing but resources, as STATUS of the plugins does,
need not make the classes of all these values first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from calico_ipam.datastore.api import Value
from calico_ipam.datastore.attributes import attribute_document, attribute_of
from calico_ipam.datastore.gojson import (
    MAX_INT64,
    MAX_UINT64,
    BadDocument,
    Schema,
    parse,
    serialise,
    sorted_map,
)
from calico_ipam.errors import NotSupported
from calico_ipam.model.addresses import Network, parse_network
from calico_ipam.model.affinity import Affinity
from calico_ipam.model.block import Block
from calico_ipam.model.config import IPAMConfig
from calico_ipam.model.handle import Handle
from calico_ipam.model.keys import AffinityKey, BlockKey, ConfigKey, HandleKey, HostKey, Key
from calico_ipam.model.timestamps import format_time, parse_time

#: a block longer than this is not padded slot by slot when its allocations are too few; no pool allows one
MAX_PADDED_BLOCK = 65536
MOST_DIGITS = 20  # of an ordinal

BLOCK = Schema(
    "AllocationBlock",
    {
        "cidr": "string",
        "affinity": "string",
        "affinity_claim_time": "string",
        "allocations": "[]*int",
        "unallocated": "[]int",
        "attributes": "[]model.AllocationAttribute",
        "sequenceNumber": "uint64",
        "sequenceNumberForAllocation": "map[string]uint64",
        "deleted": "bool",
    },
)
AFFINITY = Schema("BlockAffinity", {"state": "model.BlockAffinityState", "deleted": "bool"})
HANDLE = Schema("IPAMHandle", {"block": "map[string]int", "deleted": "bool"})
CONFIG = Schema(
    "IPAMConfig",
    {
        "strict_affinity": "bool",
        "auto_allocate_blocks": "bool",
        "maxBlocksPerHost": "int",
        "kubeVirtVMAddressPersistence": "model.VMAddressPersistence",
        "ipCooldownSeconds": "int",
    },
)

#: deprecated field of blocks that nobody reads; upstream writes it back right behind the known ones
HOST_AFFINITY = "hostAffinity"

ATTRIBUTES_NULL = "attributes"
SEQUENCES_NULL = "sequenceNumberForAllocation"


# --- reading -----------------------------------------------------------------------------------------------


def decode(key: Key, text: str) -> tuple[Any, Any]:
    """Return the value of a document, and its entry's ``origin``. Raises BadDocument, InvalidInput."""
    match key:
        case BlockKey(cidr):
            return _block(cidr, text)
        case AffinityKey():
            return _affinity(text), None
        case HandleKey(handle):
            return _handle(handle, text), None
        case ConfigKey():
            return _config(text), None
    return parse(text) if text else {}, None  # a host's legacy tree


def _block(cidr: Network, text: str) -> tuple[Block, tuple[str, ...]]:
    fields = BLOCK.read(parse(text))
    stored = fields.text("cidr")
    if stored != str(cidr) and parse_network(stored) != cidr:
        raise BadDocument(f"the document says it is block {stored}, not {cidr}")
    allocations = fields.array("allocations")
    if cidr.num_addresses > MAX_PADDED_BLOCK and len(allocations) != cidr.num_addresses:
        raise BadDocument(f"{len(allocations)} allocation slots for {cidr.num_addresses} addresses")
    numbers = fields.integers("sequenceNumberForAllocation", 0, MAX_UINT64)
    odd = [key for key in numbers if not (key.isascii() and key.isdigit() and len(key) <= MOST_DIGITS)]
    block = Block.load(
        cidr=cidr,
        affinity=fields.text_or_none("affinity"),
        claim_time=_time(fields.text_or_none("affinity_claim_time")),
        allocations=allocations,
        unallocated=fields.array("unallocated"),
        attributes=[attribute_of(item) for item in fields.array("attributes")],
        sequence_number=fields.integer("sequenceNumber", 0, MAX_UINT64),
        sequence_for={int(key): number for key, number in numbers.items() if key not in odd},
        deleted=fields.flag("deleted"),
        extra=_host_affinity_first(fields.extra),
    )
    if odd:
        shown = [key[: MOST_DIGITS + 1] for key in odd[:5]]
        problem = f"sequence numbers are stored for {shown}, which are no ordinals; they are skipped"
        block = replace(block, problems=(*block.problems, problem))
    return block, tuple(name for name in (ATTRIBUTES_NULL, SEQUENCES_NULL) if fields.is_null(name))


def _host_affinity_first(extra: dict[str, Any]) -> dict[str, Any]:
    found = [key for key in extra if key.casefold() == HOST_AFFINITY.casefold()]
    if not found:
        return extra
    value = extra[found[-1]]
    rest = {key: item for key, item in extra.items() if key not in found}
    return rest if value is None else {HOST_AFFINITY: value, **rest}


def _time(text: str | None) -> int | None:
    return None if text is None else parse_time(text)


def _affinity(text: str) -> Affinity:
    if not text:
        return Affinity(state="")  # data older than 3.0.7
    fields = AFFINITY.read(parse(text))
    return Affinity(fields.text("state"), fields.flag("deleted"), fields.extra)


def _handle(handle: str, text: str) -> Handle:
    fields = HANDLE.read(parse(text))
    return Handle(handle, fields.integers("block", -MAX_INT64 - 1, MAX_INT64), fields.flag("deleted"), fields.extra)


def _config(text: str) -> IPAMConfig:
    fields = CONFIG.read(parse(text))
    return IPAMConfig(
        strict_affinity=fields.flag("strict_affinity"),
        auto_allocate_blocks=fields.flag("auto_allocate_blocks"),  # absent in an object that exists means false
        max_blocks_per_host=fields.integer("maxBlocksPerHost", -MAX_INT64 - 1, MAX_INT64),
        kubevirt_persistence=fields.text_or_none("kubeVirtVMAddressPersistence"),
        cooldown_seconds=fields.integer("ipCooldownSeconds", -MAX_INT64 - 1, MAX_INT64),
        extra=fields.extra,
    )


# --- writing -----------------------------------------------------------------------------------------------


def encode(key: Key, value: Value, nulls: tuple[str, ...]) -> str:
    """Return the text to store; ``nulls``: the fields of a block that are ``null`` there."""
    match key, value:
        case BlockKey(), Block():
            return _block_text(value, nulls)
        case AffinityKey(), Affinity():
            return serialise({"state": value.state, "deleted": value.deleted, **value.extra})
        case HandleKey(), Handle():
            return serialise({"block": sorted_map(value.blocks), "deleted": value.deleted, **value.extra})
        case ConfigKey(), IPAMConfig():
            return _config_text(value)
        case HostKey(), _:
            raise NotSupported("Create", str(key), "nothing writes this legacy object")
        case _:
            raise TypeError(f"{key} cannot hold a {type(value).__name__}")


def rewritten(value: Value, text: str) -> Any:
    """Return the origin of an entry that was just written as ``text``."""
    if not isinstance(value, Block):
        return None
    empty = []
    if not value.attributes and '"attributes":null,' in text:
        empty.append(ATTRIBUTES_NULL)
    if not value.sequence_for and '"sequenceNumberForAllocation":null,' in text:
        empty.append(SEQUENCES_NULL)
    return tuple(empty)


def _block_text(block: Block, nulls: tuple[str, ...]) -> str:
    document: dict[str, Any] = {"cidr": str(block.cidr), "affinity": block.affinity}
    if block.claim_time is not None:
        document["affinity_claim_time"] = format_time(block.claim_time)
    document["allocations"] = block.allocations
    document["unallocated"] = block.unallocated
    attributes = [attribute_document(attribute) for attribute in block.attributes]
    document["attributes"] = None if not attributes and ATTRIBUTES_NULL in nulls else attributes
    document["sequenceNumber"] = block.sequence_number
    numbers = {str(ordinal): number for ordinal, number in block.sequence_for.items()}
    null_numbers = not numbers and SEQUENCES_NULL in nulls
    document["sequenceNumberForAllocation"] = None if null_numbers else sorted_map(numbers)
    document["deleted"] = block.deleted
    return serialise({**document, **block.extra})


def _config_text(config: IPAMConfig) -> str:
    document: dict[str, Any] = {}
    if config.strict_affinity:
        document["strict_affinity"] = True
    if config.auto_allocate_blocks:
        document["auto_allocate_blocks"] = True
    if config.max_blocks_per_host:
        document["maxBlocksPerHost"] = config.max_blocks_per_host
    if config.kubevirt_persistence is not None:
        document["kubeVirtVMAddressPersistence"] = config.kubevirt_persistence
    if config.cooldown_seconds:
        document["ipCooldownSeconds"] = config.cooldown_seconds
    return serialise({**document, **config.extra})
