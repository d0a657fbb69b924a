"""What is wrong in a cluster (cli §4, §18): findings of a survey, looked at once more before anybody is told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from calico_ipam.datastore.api import Entry
from calico_ipam.engine.survey import (
    NODES,
    ROWS,
    SEEN_BLOCKS,
    SEEN_HANDLES,
    USES,
    Allocation,
    Survey,
    affinity_host,
    overlapping,
)
from calico_ipam.engine.world import POOLS
from calico_ipam.model.addresses import Address, Network, overlaps
from calico_ipam.model.affinity import HOST
from calico_ipam.model.block import Block
from calico_ipam.model.block_faults import fault
from calico_ipam.model.findings import Finding
from calico_ipam.model.keys import Scope
from calico_ipam.model.timestamps import SECOND, parse_attribute_time

#: an allocation younger than this may belong to a workload whose endpoint is just being written
YOUNG_SECONDS = 60


def leaked(survey: Survey) -> list[Address]:
    """Return the addresses that are allocated and that nobody uses, in order. Cooling ones are not among them."""
    return sorted(
        (
            address
            for address, group in survey.allocations.items()
            if address not in survey.users and not any(each.cooling for each in group)
        ),
        key=_order,
    )


def unallocated_in_use(survey: Survey) -> list[Address]:
    """Return the addresses that somebody uses and that no block has allocated, in order."""
    return sorted((address for address in survey.users if address not in survey.allocations), key=_order)


def _order(address: Address) -> tuple[int, int]:
    return address.version, int(address)


def findings(survey: Survey) -> list[Finding]:
    """Return everything that is wrong, in the order of kinds, then of addresses."""
    return [
        *_addresses(survey),
        *_blocks(survey),
        *_pools(survey),
        *_handles(survey),
        *_rows(survey),
        *_documents(survey),
    ]


# --- addresses -----------------------------------------------------------------------------------------------


def _addresses(survey: Survey) -> Iterator[Finding]:
    shared = (address for address, users in survey.users.items() if len(users) > 1)
    for address in sorted(shared, key=_order):
        users = [user for user in survey.users[address] if user.kind != "windows"]
        if len({user.name for user in users}) > 1:
            names = " and ".join(dict.fromkeys(user.name for user in users))
            yield Finding("multiple-owners", str(address), f"{address} is used by {names}")
    twice = (address for address, group in survey.allocations.items() if len(group) > 1)
    for address in sorted(twice, key=_order):
        blocks = " and ".join(str(each.block.cidr) for each in survey.allocations[address])
        yield Finding("allocated-twice", str(address), f"{address} is allocated in {blocks}")
    yield from _unknown(survey)
    yield from _leaks(survey)
    yield from _misplaced(survey)


def _unknown(survey: Survey) -> Iterator[Finding]:
    active = survey.active_pools
    for address in unallocated_in_use(survey):
        names = " and ".join(user.name for user in survey.users[address])
        if survey.pool_of(address, active) is None:
            length = 24 if address.version == 4 else 64
            network = f"{address}/{length}"
            yield Finding(
                "not-in-pool",
                str(address),
                f"{address} is in use by {names}, outside every enabled pool",
                data={"network": network},
            )
        else:
            yield Finding("not-allocated", str(address), f"{address} is in use by {names}, but not allocated")


def _leaks(survey: Survey) -> Iterator[Finding]:
    for address in leaked(survey):
        for each in survey.allocations[address]:
            if is_young(each, survey.now):
                continue
            attribute = each.attribute
            active = attribute.active
            whose = active.get("pod") or active.get("type") or active.get("service") or ""
            who = f"{active['namespace']}/{whose}" if active.get("namespace") and whose else whose
            known = bool(attribute.handle or active.get("pod") or active.get("type"))
            at = f" on {each.node}" if each.node else ""
            yield Finding(
                "leaked" if known else "unattributed",
                str(address),
                f"{address} is allocated to {who or attribute.handle or 'nobody'}{at}, and nothing uses it",
                block=str(each.block.cidr),
                data={"allocation": each},
            )


def is_young(allocation: Allocation, now: int, seconds: int = YOUNG_SECONDS) -> bool:
    """Tell whether an allocation was made so recently that its workload may not be known yet."""
    at = parse_attribute_time(allocation.attribute.active.get("timestamp", ""))
    return at is not None and 0 <= now - at < seconds * SECOND


def _misplaced(survey: Survey) -> Iterator[Finding]:
    """Addresses whose recorded node is not the one their workload runs on (public report P30)."""
    for address, group in survey.allocations.items():
        recorded = group[0].attribute.active.get("node", "")
        if not recorded or recorded in survey.nodes:
            continue
        for user in survey.users.get(address, ()):
            node = _node_of_endpoint(user.name) if user.kind == "workload" else ""
            if node and node != recorded:
                yield Finding(
                    "wrong-pod", str(address), f"{address} is recorded for node {recorded}, but {user.name} uses it"
                )


def _node_of_endpoint(name: str) -> str:
    """Return the node in an endpoint's name, ``Workload(ns/node--1-k8s-pod-eth0)``; empty when there is none."""
    inner = name.partition("/")[2].partition("-k8s-")[0]
    return inner.replace("--", "-") if "-k8s-" in name else ""


# --- blocks --------------------------------------------------------------------------------------------------


def _blocks(survey: Survey) -> Iterator[Finding]:
    for outer, inner in overlapping(block.cidr for block in survey.blocks):
        yield Finding("overlapping-blocks", str(inner), f"blocks {outer} and {inner} overlap", block=str(inner))
    for block in survey.blocks:
        what = fault(block, survey.now)
        if what:
            lost = block.stored is None and not what.startswith(("allocation", "attribute"))
            yield Finding(
                "lost-ordinals" if lost else "invalid-block",
                str(block.cidr),
                f"block {block.cidr}: {what}",
                block=str(block.cidr),
            )
        yield from _block_in_pool(survey, block)
        cold = [o for o, a in block.taken() if a.released_at is not None and _ripe(survey, a.released_at)]
        if cold:
            text = f"block {block.cidr} holds {len(cold)} addresses whose cooldown is over"
            yield Finding("old-cooldown", str(block.cidr), text, block=str(block.cidr))
        host = affinity_host(block)
        if host and survey.nodes and host not in survey.nodes:
            used = sum(1 for _ in block.taken())
            text = f"block {block.cidr} belongs to node {host}, which does not exist; {used} of its addresses are taken"
            yield Finding("no-node", str(block.cidr), text, block=str(block.cidr), data={"node": host})


def _ripe(survey: Survey, released_at: int) -> bool:
    return survey.now - released_at > (survey.config.cooldown_seconds + 3600) * SECOND


def _block_in_pool(survey: Survey, block: Block) -> Iterator[Finding]:
    pools = [pool for pool in survey.pools if overlaps(pool.cidr, block.cidr)]
    if not pools:
        yield Finding("no-pool", str(block.cidr), f"block {block.cidr} lies in no pool", block=str(block.cidr))
    for pool in pools[:1]:
        if pool.block_size != block.cidr.prefixlen:
            yield Finding(
                "block-size",
                str(block.cidr),
                f"block {block.cidr} is a /{block.cidr.prefixlen}; pool {pool.name} has blocks of /{pool.block_size}",
                block=str(block.cidr),
                data={"pool": pool.name, "size": pool.block_size},
            )


def _pools(survey: Survey) -> Iterator[Finding]:
    for position, one in enumerate(survey.pools):
        for other in survey.pools[position + 1 :]:
            if overlaps(one.cidr, other.cidr):
                text = f"pools {one.name} ({one.cidr_text}) and {other.name} ({other.cidr_text}) overlap"
                yield Finding("overlapping-pools", other.name, text, data={"pool": other.name})


# --- handles and rows ----------------------------------------------------------------------------------------


def _handles(survey: Survey) -> Iterator[Finding]:
    for handle, entry in sorted(survey.handles.items()):
        mine = survey.holdings.get(handle)
        if not mine:
            text = f"handle {handle} has no addresses"
            yield Finding("stray-handle", handle, text, data={"entry": entry})
            continue
        counted = {cidr: number for cidr, number in entry.value.blocks.items() if number}
        real = real_counts(mine)
        if counted != real:
            yield Finding(
                "handle-count",
                handle,
                f"handle {handle} counts {_counts(counted)} and has {_counts(real)}",
                data={"real": real},
            )
    for handle in sorted(survey.holdings.keys() - survey.handles.keys()):
        mine = survey.holdings[handle]
        where = ", ".join(str(each.address) for each in mine[:3])
        text = f"handle {handle} does not exist, and {where}{' …' if len(mine) > 3 else ''} name it"
        yield Finding("missing-handle", handle, text, data={"real": real_counts(mine)})


def real_counts(allocations: list[Allocation]) -> dict[str, int]:
    """Return how many addresses stand in which block."""
    found: dict[str, int] = {}
    for each in allocations:
        cidr = str(each.block.cidr)
        found[cidr] = found.get(cidr, 0) + 1
    return found


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{number} in {cidr}" for cidr, number in sorted(counts.items())) or "none"


def _rows(survey: Survey) -> Iterator[Finding]:
    blocks: dict[Network, Block] = {block.cidr: block for block in survey.blocks}
    confirmed: dict[Network, list[str]] = {}
    for row in survey.rows:
        owner, cidr = row.key.owner, row.cidr  # type: ignore[union-attr]  # rows have affinity keys
        block = blocks.get(cidr)
        if row.value.usable:
            confirmed.setdefault(cidr, []).append(str(owner))
        if block is None:
            text = f"{owner} has a row ({row.value.state or 'confirmed'}) for block {cidr}, which does not exist"
            yield Finding("row-without-block", str(cidr), text, block=str(cidr), data={"row": row})
        elif block.affinity != str(owner):
            text = f"{owner} has a row for block {cidr}, which belongs to {block.affinity or 'nobody'}"
            yield Finding("contested-block", str(cidr), text, block=str(cidr), data={"row": row})
    for block in survey.blocks:
        if block.affinity and block.owner is not None and str(block.owner) not in confirmed.get(block.cidr, ()):
            if any(str(row.key.owner) == block.affinity and row.cidr == block.cidr for row in survey.rows):  # type: ignore[union-attr]  # as above
                continue  # a claim is under way
            kind = "host" if block.owner.kind == HOST else "virtual owner"
            text = f"block {block.cidr} belongs to {kind} {block.owner.host}, which has no row for it"
            yield Finding("block-without-row", str(block.cidr), text, block=str(block.cidr))


def _documents(survey: Survey) -> Iterator[Finding]:
    for each in survey.damaged:
        yield Finding("unreadable", each.path, f"{each.path} cannot be understood: {each.reason}")
    for name, reason in survey.bad_pools:
        yield Finding("unreadable", f"IPPool({name})", f"pool {name} cannot be understood: {reason}")
    for problem in survey.config.problems():
        yield Finding("settings", "IPAMConfig", f"the IPAM settings break a rule: {problem}")
    for title, value, node in survey.bad_tunnels:
        yield Finding("bad-tunnel", node, f"{title} of node {node} is {value!r}, which is no address")
    if survey.stale_configuration:
        text = (
            "an IPAMConfiguration 'default' is stored that no program reads; the settings are those of 'ipam configure'"
        )
        yield Finding("stale-configuration", "default", text)


# --- once more -----------------------------------------------------------------------------------------------

#: what findings follow from; those of other kinds, from everything
READ_FROM: Mapping[str, tuple[Scope, ...]] = {
    **dict.fromkeys(("stray-handle", "missing-handle", "handle-count"), (SEEN_BLOCKS, SEEN_HANDLES)),
    **dict.fromkeys(("row-without-block", "contested-block", "block-without-row"), (SEEN_BLOCKS, ROWS)),
    **dict.fromkeys(("overlapping-blocks", "allocated-twice", "invalid-block", "lost-ordinals"), (SEEN_BLOCKS,)),
    **dict.fromkeys(("leaked", "unattributed", "wrong-pod"), (SEEN_BLOCKS, NODES, USES)),
    **dict.fromkeys(("not-allocated", "not-in-pool"), (SEEN_BLOCKS, POOLS, NODES, USES)),
    **dict.fromkeys(("no-pool", "block-size"), (SEEN_BLOCKS, POOLS)),
    "no-node": (SEEN_BLOCKS, NODES),
    "multiple-owners": (SEEN_BLOCKS, NODES, USES),
}


def to_read_again(found: Sequence[Finding]) -> list[Scope]:
    """Return what a second look at findings must read; nothing in particular when that is everything."""
    kinds = {each.kind for each in found}
    if not kinds <= READ_FROM.keys():
        return []
    return list(dict.fromkeys(scope for kind in kinds for scope in READ_FROM[kind]))


def confirmed(first: list[Finding], second: list[Finding]) -> list[Finding]:
    """Return the findings of ``second`` that ``first`` had too: what was found in both surveys is no accident of
    lists that were read one after the other (limit 18.22). An allocation, or a handle without any, must be the very
    same in both."""
    before = {(each.kind, each.subject): each for each in first}
    kept = []
    for each in second:
        earlier = before.get((each.kind, each.subject))
        if earlier is not None and _same(earlier, each):
            kept.append(each)
    return kept


def _same(one: Finding, other: Finding) -> bool:
    a, b = one.data.get("allocation"), other.data.get("allocation")
    if isinstance(a, Allocation) and isinstance(b, Allocation):
        return a.sequence_number == b.sequence_number and a.attribute == b.attribute
    handle, again = one.data.get("entry"), other.data.get("entry")
    if isinstance(handle, Entry) and isinstance(again, Entry):
        return handle.revision == again.revision
    return True
