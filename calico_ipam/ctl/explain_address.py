"""``ipamctl ipam explain ADDRESS``: everything that is known of one address, or of a block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from calico_ipam.ctl.output import document, paragraph, say

if TYPE_CHECKING:
    from calico_ipam.ctl.session import Session
    from calico_ipam.model.addresses import Address, Network


def explain_address(session: Session, text: str) -> None:
    """Say who holds an address, who uses it, and where it lies; of a block, what is in it."""
    from calico_ipam.errors import InvalidInput
    from calico_ipam.model.addresses import parse_address, parse_network

    try:
        _address(session, parse_address(text))
    except InvalidInput:
        _block(session, parse_network(text))


def _address(session: Session, address: Address) -> None:
    from calico_ipam.ctl.show import details, holding_document, holding_lines
    from calico_ipam.engine.holder import find_holding, live_users
    from calico_ipam.engine.world import RESERVATIONS
    from calico_ipam.model.pool import pool_for
    from calico_ipam.model.reservation import Reservations

    engine = session.engine
    held = find_holding(engine, address)
    users = live_users(engine, address)
    pool = pool_for(engine.look().pools, address)
    reserved = Reservations.from_resources(e.value for e in engine.store.list(RESERVATIONS)).contains(address)
    verdict = _verdict(address, held, users)
    if session.wants_document:
        content = holding_document(address, held) | {"users": users, "reserved": reserved, "verdict": verdict}
        document(content, session.output)
        return
    if held is None or held.ripe:
        say(f"{address} is not assigned")
        say(f"Pool: {f'{pool.name} ({pool.cidr_text})' if pool else 'none'}")
    else:
        for line in holding_lines(held) + details(held):
            say(line)
    say(f"Used by: {', '.join(users) or 'nothing that is recorded'}")
    if reserved:
        say("Reserved: yes, so it is never given out automatically")
    _block_lines(session, address)
    say(paragraph("→ " + verdict))


def _verdict(address: Address, held: Any, users: list[str]) -> str:
    if held is not None and held.released_at is not None and not held.ripe:
        return "It was released and rests; nobody has it."
    if held is None or held.ripe:
        if users:
            cure = f"ipamctl ipam repair --only not-allocated {address}"
            return f"It is in use but not allocated, so another may get it: {cure}"
        return "It is free."
    if users:
        return "Allocated and in use, as it should be."
    cure = f"ipamctl ipam release --ip {address}"
    return f"Allocated, but nothing uses it: a leak, unless its workload is just starting: {cure}"


def _block_lines(session: Session, address: Address) -> None:
    """Tell every block that holds an address: more than one is an outage waiting to happen."""
    from calico_ipam.engine.survey import BLOCKS
    from calico_ipam.model.addresses import contains, network_of

    host = network_of(address, address.max_prefixlen)
    blocks = [entry.value for entry in session.store.list(BLOCKS) if contains(entry.value.cidr, host)]
    if len(blocks) > 1:
        names = ", ".join(f"{block.cidr} ({block.affinity or 'of nobody'})" for block in blocks)
        say(paragraph(f"It lies in {len(blocks)} overlapping blocks: {names}"))


def _block(session: Session, cidr: Network) -> None:
    from calico_ipam.engine.survey import BLOCKS
    from calico_ipam.errors import NotFound
    from calico_ipam.model.addresses import overlaps
    from calico_ipam.model.block_faults import fault
    from calico_ipam.model.keys import BlockKey

    engine = session.engine
    blocks = [entry.value for entry in engine.store.list(BLOCKS) if overlaps(entry.value.cidr, cidr)]
    if not blocks:
        raise NotFound(str(BlockKey(cidr)), hint="'ipamctl get blocks' lists them.")
    content = []
    for block in blocks:
        holders: dict[str, int] = {}
        for _, attribute in block.taken():
            holders[attribute.active.get("node") or "no node"] = (
                holders.get(attribute.active.get("node") or "no node", 0) + 1
            )
        content.append(
            {
                "cidr": str(block.cidr),
                "affinity": block.affinity,
                "taken": block.size - len(block.unallocated),
                "free": len(block.unallocated),
                "cooling": block.cooling,
                "holders": holders,
                "fault": fault(block, engine.clock.now()) or None,
            }
        )
    if session.wants_document:
        document({"blocks": content}, session.output)
        return
    for each in content:
        say(
            f"Block {each['cidr']} of {each['affinity'] or 'nobody'}: "
            f"{each['taken']} taken, {each['free']} free, {each['cooling']} cooling"
        )
        for node, number in sorted(each["holders"].items()):
            say(f"  {number} held by {node}")
        if each["fault"]:
            say(f"  broken: {each['fault']}")
            say(f"  → ipamctl ipam repair --only invalid-block {each['cidr']}")
