"""The views of ``ipamctl ipam show`` (cli §3, §17): pools and blocks, borrowed addresses, settings, one address."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from calico_ipam.ctl.output import (
    Cell,
    Column,
    Row,
    can_write,
    document,
    plain_count,
    plain_share,
    readable_count,
    readable_share,
    say,
)
from calico_ipam.errors import AddressInCooldown
from calico_ipam.model.timestamps import format_time

if TYPE_CHECKING:
    from calico_ipam.ctl.session import Session
    from calico_ipam.engine.holder import Holding
    from calico_ipam.engine.utilization import BlockUtilization, PoolUtilization, Utilization
    from calico_ipam.model.addresses import Address

_WARN, _ALARM = 80, 95  # per cent in use


# --- pools and blocks --------------------------------------------------------------------------------------


def show_pools(session: Session, *, blocks: bool, order: str | None = None) -> None:
    """Write the utilisation of every pool, with ``blocks`` of every block too, those in ``order``."""
    from calico_ipam.engine.utilization import get_utilization

    usage = get_utilization(session.engine)
    _warn(session, usage)
    if session.wants_document:
        document(usage_document(usage) if session.output != "csv" else _sheet(usage, blocks=blocks), session.output)
        return
    people = session.for_people
    wide = session.output == "wide"
    columns = ["GROUPING", "CIDR", "IPS TOTAL", "IPS IN USE", "IPS RESERVED", "IPS FREE"]
    if people and not wide and not any(pool.reserved for pool in usage.pools):
        columns.remove("IPS RESERVED")
    if wide or (people and any(b.cooling for pool in usage.pools for b in pool.blocks)):
        columns.insert(4, "OF THEM COOLING")
    if people:
        columns.insert(columns.index("IPS IN USE") + 1, "FILL")
    if wide:
        columns += ["AFFINITY", "NODES USING", "CLAIMED"]
    lefts = ("GROUPING", "CIDR", "FILL", "AFFINITY", "NODES USING", "CLAIMED")
    rows = [
        [cells[column] for column in columns]
        for cells in _usage_cells(usage, with_blocks=blocks, people=people, order=order)
    ]
    session.table([Column(c, right=c not in lefts, optional=c == "FILL") for c in columns], rows)
    if people and not usage.unreadable and all(pool.orphans for pool in usage.pools):
        session.note("there are no pools; 'ipamctl init' or 'ipamctl pool create CIDR' makes one.")


def _usage_cells(
    usage: Utilization, *, with_blocks: bool, people: bool, order: str | None
) -> Iterator[dict[str, Cell]]:
    """Yield the cells of each row by column: a pool, then its blocks."""
    for pool in usage.pools:
        if not pool.orphans and (people or pool.cidr.prefixlen):  # calicoctl's name for no pool is 0.0.0.0/0
            yield _cells("IP Pool", pool, people=people)
        if not with_blocks:
            continue
        ordered = pool.blocks
        if people or order:  # calicoctl's order is that of the keys as text, 10.0.10.0 before 10.0.2.0
            ordered = tuple(sorted(ordered, key=_ORDERS[order or "cidr"]))
        for block in ordered:
            yield {
                **_cells("Block", block, people=people),
                "AFFINITY": Cell(block.affinity or "<none>", "" if block.affinity else "dim"),
                "NODES USING": Cell(" ".join(block.nodes)),
                "CLAIMED": Cell(format_time(block.claim_time) if block.claim_time else ""),
            }


_ORDERS: Mapping[str, Callable[[BlockUtilization], Any]] = {
    "cidr": lambda block: block.cidr,
    "used": lambda block: (-block.in_use, block.cidr),
    "free": lambda block: (-block.available, block.cidr),
    "node": lambda block: (block.affinity or "~", block.cidr),
}


def _cells(grouping: str, counts: PoolUtilization | BlockUtilization, *, people: bool) -> dict[str, Cell]:
    whole = counts.capacity
    used = 100 * counts.in_use / whole
    tone = "alarm" if used >= _ALARM else "warn" if used >= _WARN else ""
    count, share = (readable_count, readable_share) if people else (plain_count, plain_share)
    return {
        "GROUPING": Cell(grouping),
        "CIDR": Cell(str(counts.cidr)),
        "IPS TOTAL": Cell(count(whole)),
        "IPS IN USE": Cell(share(counts.in_use, whole), tone),
        "FILL": Cell(bar(counts.in_use, whole), tone),
        "OF THEM COOLING": Cell(count(counts.cooling)),
        "IPS RESERVED": Cell(share(counts.reserved, whole)),
        "IPS FREE": Cell(share(counts.available, whole)),
        **dict.fromkeys(("AFFINITY", "NODES USING", "CLAIMED"), Cell("")),
    }


def bar(part: int, whole: int) -> str:
    """Return a share as ten signs; something is never drawn as nothing, and not quite all never as all."""
    full, empty = "█░" if can_write("█░") else "#."
    tenths = round(10 * part / whole)
    tenths = max(tenths, 1) if part else 0
    tenths = min(tenths, 9) if part < whole else 10
    return full * tenths + empty * (10 - tenths)


def _warn(session: Session, usage: Utilization) -> None:
    for name, reason in usage.unreadable:
        session.note(f"pool {name} is left out: {reason}", label="warning")
    for entry in usage.ignored_reservations:
        session.note(f"reservation {entry!r} is neither a CIDR nor an address and reserves nothing.", label="warning")
    for pool in usage.pools:
        for block in pool.blocks:
            if block.problem:
                session.note(f"block {block.cidr} is damaged: {block.problem}", label="warning")
    for damaged in usage.damaged:
        session.note(f"{damaged.path} cannot be understood: {damaged.reason}", label="warning")


def usage_document(usage: Utilization) -> dict[str, Any]:
    """Return pools and blocks with exact counts."""
    return {
        "pools": [
            {"name": p.name, "cidr": p.cidr_text, **_counts(p), "blocks": [_block_document(b) for b in p.blocks]}
            for p in usage.pools
            if not p.orphans
        ],
        "orphanBlocks": [_block_document(block) for block in usage.orphans],
    }


def _sheet(usage: Utilization, *, blocks: bool) -> list[dict[str, Any]]:
    """Return a row for each pool, with ``blocks`` for each block too."""
    rows: list[dict[str, Any]] = []
    for pool in usage.pools:
        if not pool.orphans:
            rows.append({"grouping": "pool", "name": pool.name, "cidr": pool.cidr_text, **_counts(pool)})
        if blocks:
            name = "" if pool.orphans else pool.name
            rows += [{"grouping": "block", "name": name, **_block_document(block)} for block in pool.blocks]
    return rows


def _block_document(block: BlockUtilization) -> dict[str, Any]:
    claimed = format_time(block.claim_time) if block.claim_time else None
    return {
        "cidr": str(block.cidr),
        "affinity": block.affinity,
        "nodes": list(block.nodes),
        "claimed": claimed,
        **_counts(block),
    }


def _counts(of: PoolUtilization | BlockUtilization) -> dict[str, int]:
    return {
        "capacity": of.capacity,
        "inUse": of.in_use,
        "reserved": of.reserved,
        "available": of.available,
        "cooling": of.cooling,
    }


# --- borrowed addresses, settings --------------------------------------------------------------------------


def show_borrowed(session: Session) -> None:
    """Write the addresses that nodes hold in other nodes' blocks."""
    from calico_ipam.engine.borrowed import list_borrowed

    found = list_borrowed(session.engine)
    heads = ("IP", "BORROWING-NODE", "BLOCK", "BLOCK OWNER", "TYPE", "ALLOCATED-TO")
    rows = [(str(b.address), b.node, str(b.block), b.owner, b.kind, b.holder) for b in found.addresses]
    if session.wants_document:
        names = ("ip", "node", "block", "blockOwner", "type", "allocatedTo")
        items = [dict(zip(names, row, strict=True)) for row in rows]
        document({"borrowed": items, "withoutNode": found.without_node}, session.output)
        return
    session.table([Column(head) for head in heads], rows)
    if found.without_node:
        say()
        say(
            f"Note: found {found.without_node} IP allocations without an explicit node association. "
            "Unable to determine if they are borrowed."
        )


def show_configuration(session: Session) -> None:
    """Write the IPAM settings; where none are stored, those that hold then."""
    config = session.engine.look().config
    values: dict[str, bool | int | str | None] = {
        "StrictAffinity": config.strict_affinity,
        "AutoAllocateBlocks": config.auto_allocate_blocks,
        "MaxBlocksPerHost": config.max_blocks_per_host,
        "KubeVirtVMAddressPersistence": config.kubevirt_persistence,
        "IPCooldownSeconds": config.cooldown_seconds,
    }
    for problem in config.problems():
        session.note(f"the stored settings break a rule: {problem}", label="warning")
    if session.wants_document:
        # The names of the v3 resource; only the acronym at the front differs from the rows of the table.
        keys = (name.replace("IP", "ip") if name.startswith("IP") else name[0].lower() + name[1:] for name in values)
        document(dict(zip(keys, values.values(), strict=True)), session.output)
        return
    rows: list[Row] = [(name, _setting(value)) for name, value in values.items()]
    session.table([Column("PROPERTY"), Column("VALUE")], rows)


def _setting(value: bool | int | str | None) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "<unset>" if value in (None, "") else str(value)


# --- one address -------------------------------------------------------------------------------------------


def show_address(session: Session, address: Address) -> None:
    """Write who holds an address: its handle and attributes, on a terminal or with ``wide`` its block and times too."""
    from calico_ipam.engine.holder import find_holding

    held = find_holding(session.engine, address)
    if session.wants_document:
        document(holding_document(address, held), session.output)
    elif held is None or held.ripe or (session.compat and not _seen_by_calicoctl(session, held)):
        say(f"{address} is not assigned")
    elif session.compat and held.released_at is not None:
        raise AddressInCooldown(str(address))
    else:
        more = session.for_people or session.output == "wide"
        for line in holding_lines(held) + (details(held) if more else []):
            say(line)


def _seen_by_calicoctl(session: Session, held: Holding) -> bool:
    """Tell whether the block is where an enabled pool has it: calicoctl looks nowhere else (cli §3.5)."""
    from calico_ipam.model.pool import pool_for

    pool = pool_for(session.engine.look().enabled, held.address)
    return pool is not None and pool.block_of(held.address) == held.block


def holding_lines(held: Holding) -> list[str]:
    """Return what calicoctl says of an address that is not free; a cooling one is told as what it is."""
    if held.released_at is not None:
        released = format_time(held.released_at)
        return [f"IP {held.address} is in cooldown (released {released}, free in ~{held.free_in} s)"]
    lines = [f"IP {held.address} is in use", f"Handle ID: {held.handle or '<none>'}"]
    if held.active:
        lines += ["Active Owner Attributes:", *_sorted_lines(held.active.items())]
    else:
        lines.append("No Active Owner attributes defined")
    if held.alternate:
        lines += ["Alternate Owner Attributes:", *_sorted_lines(held.alternate.items())]
    return lines


def _sorted_lines(items: Iterable[tuple[str, str]]) -> list[str]:
    return [f"  {key}: {value}" for key, value in sorted(items)]


def details(held: Holding) -> list[str]:
    """Return what calicoctl does not say of an address: its block, whether it is borrowed, since when it is held."""
    owner = f"of {held.block_owner.host}" if held.block_owner else "of no node"
    lines = [f"Block: {held.block}, {owner}, {f'in pool {held.pool}' if held.pool else 'in no pool'}"]
    if held.released_at is None:
        lines.append(f"Borrowed: {'yes, by ' + held.node if held.borrowed else 'no' if held.node else 'unknown'}")
        lines.append(f"Since: {format_time(held.since) if held.since else 'unknown'}")
    return lines


def holding_document(address: Address, held: Holding | None) -> dict[str, Any]:
    """Return an address and its holder as a document."""
    if held is None:
        return {"ip": str(address), "state": "free"}
    cooling = held.released_at is not None
    return {
        "ip": str(address),
        "state": "free" if held.ripe else "cooldown" if cooling else "in use",
        "handle": held.handle or None,
        "active": dict(held.active),
        "alternate": dict(held.alternate),
        "sequenceNumber": held.sequence_number,
        "block": str(held.block),
        "blockOwner": str(held.block_owner) if held.block_owner else None,
        "pool": held.pool or None,
        "borrowed": held.borrowed,
        "since": format_time(held.since) if held.since else None,
        "releasedAt": format_time(held.released_at) if held.released_at is not None else None,
        "freeInSeconds": held.free_in if cooling else None,
    }
