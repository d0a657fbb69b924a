"""Where ours differs from the recorded vectors on purpose (ruling 26): the limit, the rows, and what ours does instead.

An entry is keyed by a limit of ipam-library §23 and a predicate over the row, not by a file, so that other recordings
in the same format replay too. ``expect`` turns the recorded row into the one that ours must give, so the comparison
stays exact. A row that an entry covers although ours does what upstream does makes the replay fail: the entry is not
needed any more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import Any

from calico_ipam.model.timestamps import parse_time

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Exception_:
    """``where`` gets the name of the vector table and a row; ``ours`` says for people what ours does instead."""

    limit: str
    where: Callable[[str, Row], bool]
    ours: str
    expect: Callable[[Row], Row]


def _crashes(table: str, row: Row) -> bool:
    return table in ("vm-handles", "length-limited") and row.get("panic") is True


def _refused(row: Row) -> Row:
    return {**{k: v for k, v in row.items() if k != "panic"}, "refused": True}


def _empty_attributes(table: str, row: Row) -> bool:
    """An empty map of attributes where an equal entry without a map exists: upstream makes a second one."""
    if table != "block-auto-assign" or row["attrs"] != {}:
        return False
    return {"handle_id": row["handle"]} in (row["block"]["attributes"] or [])


def _shared_attribute(row: Row) -> Row:
    after = row["block_after"]
    attributes = after["attributes"]
    doubled = len(attributes) - 1
    first = attributes.index(attributes[doubled])
    slots = [first if index == doubled else index for index in after["allocations"]]
    return {**row, "block_after": {**after, "allocations": slots, "attributes": attributes[:doubled]}}


def _matured(row: Row) -> list[tuple[int, int]]:
    """Return (time of release, ordinal) of the addresses that became free in a row, in upstream's order."""
    before = row["block"]
    known = set(before["unallocated"])
    found = []
    for ordinal in row["block_after"]["unallocated"]:
        if ordinal not in known:
            attribute = before["attributes"][before["allocations"][ordinal]]
            found.append((parse_time(attribute.get("releasedAt") or row["now"]), ordinal))
    return found


def _out_of_order(table: str, row: Row) -> bool:
    """Addresses that were released at different times became free together, an older one behind a younger one."""
    return table.startswith("block-") and {"block", "block_after", "now"} <= set(row) and _sorted(row) != _matured(row)


def _sorted(row: Row) -> list[tuple[int, int]]:
    return sorted(_matured(row))


def _oldest_first(row: Row) -> Row:
    queue = [*row["block"]["unallocated"], *(ordinal for _, ordinal in _sorted(row))]
    return {**row, "block_after": {**row["block_after"], "unallocated": queue}}


def _mapped_cidr(table: str, row: Row) -> bool:
    """An IPv4 network in IPv6 notation: upstream understands it and then has no key for it."""
    return table == "cidr-names" and row["text"].startswith("::ffff:") and "key_error" in row


def _as_ipv4(row: Row) -> Row:
    cidr = IPv4Network(row["canonical"])
    dashed = str(cidr).replace("/", "-")
    return {
        "text": row["text"],
        "valid": True,
        "canonical": str(cidr),
        "version": 4,
        "prefix_length": cidr.prefixlen,
        "num_addresses": str(cidr.num_addresses),
        "name": dashed.replace(".", "-"),
        "kubernetes_block_name": dashed.replace(".", "-"),
        "block_key_text": f"BlockKey(cidr={cidr})",
        "etcd_block_key": f"/calico/ipam/v2/assignment/ipv4/block/{dashed}",
    }


def _empty_cidr(table: str, row: Row) -> bool:
    return table == "cidr-names" and row["text"] == "" and row["valid"]


def _invalid(row: Row) -> Row:
    return {"text": row["text"], "valid": False, "error": f"invalid CIDR address: {row['text']}"}


def _error_text(*names: str) -> Callable[[str, Row], bool]:
    return lambda table, row: table == "error-texts" and row["name"].startswith(names)


def _several_fields(table: str, row: Row) -> bool:
    return table == "error-texts" and row["name"] == "validation" and len(row["args"]["fields"]) != 1


def _not_raised(row: Row) -> Row:
    return {**{k: v for k, v in row.items() if k != "text"}, "not_raised": True}


EXCEPTIONS: tuple[Exception_, ...] = (
    Exception_("L21", _crashes, "InvalidInput names the machine and the way out", _refused),
    Exception_(
        "§8.3 empty attributes",
        _empty_attributes,
        "an empty map of attributes is no map: the entry that exists is shared, as it reads the same when stored",
        _shared_attribute,
    ),
    Exception_("L22", _out_of_order, "what was released first is handed out first", _oldest_first),
    Exception_("§5 mapped", _mapped_cidr, "an IPv4 network in IPv6 notation is that IPv4 network", _as_ipv4),
    Exception_("§5 empty", _empty_cidr, "an empty text is no CIDR", _invalid),
    Exception_(
        "§9 over-counting",
        _error_text("handle_decrement_"),  # of a block it has not, or by more than it has
        "a handle that counts too little is tolerated: the block is the truth",
        _not_raised,
    ),
    Exception_(
        "L15",
        _error_text("insufficient_ips_by_handle"),
        "with a cap the handle is looked at first, so what it holds is returned without this detour",
        _not_raised,
    ),
    Exception_("Linux", _error_text("strict_affinity"), "Windows nodes are not served", _not_raised),
    Exception_(
        "no bulk writes",
        _error_text("partial_failure"),
        "a commit that stopped half way says what was applied",
        _not_raised,
    ),
    Exception_("one field", _several_fields, "the first wrong field is refused, one at a time", _not_raised),
)
