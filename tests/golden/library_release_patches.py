"""Predicates and changes of the table of exceptions about releases and affinity rows, by the recorded documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from calico_ipam.errors import InvalidInput
from calico_ipam.model.addresses import contains, parse_network
from calico_ipam.model.pool import Pool, enabled_pools, parse_pools, pool_for
from calico_ipam.model.resource import IP_POOL, Resource
from tests.golden.library_documents import (
    CONFIG,
    RESOURCES,
    addresses,
    attribute,
    block_key,
    blocks,
    canonical,
    empty,
    give_up,
    matured,
    parses,
    released_at,
    renumbered,
    renumbering,
    row_key,
    rows,
)
from tests.golden.library_kube import REST
from tests.golden.library_scenario import Expectation, Moment, State

# --- releasing (L8, L11, L22, §14.4) ------------------------------------------------------------------------


def _released(moment: Moment, state: State) -> Iterator[tuple[str, str]]:
    """Yield (owner, CIDR) of the rows in ``state`` that an operation is asked to release."""
    op, args = moment.step.op, moment.step.args
    for _, owner, cidr in list(rows(state)):
        kind = args.get("affinity_type") or "host"
        if op == "release_affinity":
            wanted = owner == f"host:{args['host']}" and _within(args["cidr"], cidr)
        elif op in ("release_host_affinities", "remove_ipam_host"):
            wanted = owner == f"{kind}:{args['host']}"
        elif op == "release_pool_affinities":
            wanted = _is_network(cidr) and _within(args["pool"], str(parse_network(cidr).network_address))
        elif op == "auto_assign":
            wanted = owner == f"host:{args['hostname']}" and _is_network(cidr) and deselected(moment, cidr)
        else:
            wanted = False
        if wanted:
            yield owner, cidr


def _is_network(text: str) -> bool:
    try:
        parse_network(text)
    except InvalidInput:
        return False
    return True


def deselected(moment: Moment, cidr: str) -> bool:
    """Tell whether an assignment finds the pool of one of the host's blocks enabled and not selecting the host."""
    args = moment.step.args
    version = 6 if ":" in cidr else 4
    if not args.get(f"num{version}") or (moment.step.result or {}).get(f"ipv{version}") is None:
        return False
    asked = [parse_network(text) for text in args.get(f"ipv{version}_pools") or ()]
    pool = _unselecting(moment.before, args["hostname"], cidr)
    return pool is not None and pool.cidr not in asked


def _unselecting(state: State, host: str, cidr: str) -> Pool | None:
    """Return the enabled pool of a block if it does not select a node that exists."""
    place, base = f"{RESOURCES}nodes/{host}", parse_network(cidr).network_address
    node = state.get(place)
    if node is None:
        return None
    resources = (Resource(IP_POOL, key.rpartition("/")[2], state[key]) for key in _pool_keys(state))
    pool = pool_for(enabled_pools(parse_pools(resources)[0], base.version), base)
    labels = (node.get("metadata") or state.get(REST + place, {}).get("metadata") or {}).get("labels") or {}
    return pool if pool is not None and not pool.selects_node(labels) else None


def _pool_keys(state: State) -> list[str]:
    return sorted(key for key in state if key.startswith(RESOURCES + "ippools/"))


def _within(network: str, cidr: str) -> bool:
    return contains(parse_network(network), parse_network(cidr))


def _taken_away(moment: Moment) -> set[str]:
    """Return what somebody deletes during the step."""
    return {key for hook in moment.step.hooks for key in hook.delete}


def stale_rows(moment: Moment) -> list[tuple[str, str]]:
    """Return the rows that upstream leaves although their block is missing or somebody else's."""
    if moment.step.error is not None and moment.step.op in ("release_affinity", "release_pool_affinities"):
        return []  # it has stopped on the way
    found = []
    gone = _taken_away(moment)
    for owner, cidr in _released(moment, moment.after):
        block = None if block_key(cidr) in gone else moment.before.get(block_key(cidr))
        stale = block is None or (block.get("affinity") or owner) != owner
        if stale and (moment.step.op != "auto_assign" or row_key(owner, cidr) in moment.before):
            found.append((owner, cidr))
    return found


def releases_stale_rows(moment: Moment, ours: State) -> bool:
    return bool(stale_rows(moment))


def drop_stale_rows(moment: Moment, expected: Expectation, ours: State) -> None:
    for owner, cidr in stale_rows(moment):
        expected.after.pop(row_key(owner, cidr), None)


def _rowless(moment: Moment) -> list[tuple[str, str]]:
    """Return the blocks of an owner, named in the call, that upstream does not release because their row is missing."""
    op, args = moment.step.op, moment.step.args
    if op == "release_affinity" and (moment.step.error or {}).get("text", "").startswith("The requested CIDR"):
        return []  # it was refused
    found = []
    gone = _taken_away(moment)
    for key, block in blocks(moment.after):
        owner = block.get("affinity") or ""
        if op == "release_affinity":
            wanted = owner == f"host:{args['host']}" and _within(args["cidr"], block["cidr"])
        else:
            wanted = op == "release_block_affinity" and args["cidr"] == block["cidr"] and bool(owner)
            wanted = wanted and args.get("passed_affinity", owner) == owner
        if op in ("release_ips", "release_by_handle") and key in moment.step.changed and empty(block):
            host = owner.partition(":")[2]
            wanted = bool(host) and _unselecting(moment.before, host, block["cidr"]) is not None  # §13.4
        row = row_key(owner, block["cidr"])
        if wanted and key in moment.before and (row not in moment.before or row in gone):
            found.append((owner, str(block["cidr"])))
    return found


def releases_rowless(moment: Moment, ours: State) -> bool:
    return bool(_rowless(moment))


def give_up_rowless(moment: Moment, expected: Expectation, ours: State) -> None:
    for owner, cidr in _rowless(moment):
        cooldown = (ours.get(CONFIG) or {}).get("ipCooldownSeconds", 0)
        block = matured(expected.after[block_key(cidr)], cooldown, moment.step.now)
        if moment.step.args.get("must_be_empty") and not empty(block):
            expected.error = {"type": "ipam.errBlockNotEmpty", "text": f"block '{cidr}' is not empty"}
            return
        give_up(expected.after, owner, cidr, moment.step.now)


def _unconfirmed_own(moment: Moment) -> list[str]:
    """Return the blocks that are claimed by whom they belong to already, by a row that does not say so."""
    args = moment.step.args
    if moment.step.op != "claim_affinity":
        return []
    owner = f"{args.get('affinity_type') or 'host'}:{args['host']}"
    return [
        key
        for key, block in blocks(moment.before)
        if block.get("affinity") == owner
        and _within(args["cidr"], block["cidr"])
        and (moment.before.get(row_key(owner, block["cidr"])) or {}).get("state") != "confirmed"
        and moment.after.get(row_key(owner, block["cidr"])) != moment.before.get(row_key(owner, block["cidr"]))
    ]


def claims_own(moment: Moment, ours: State) -> bool:
    return bool(_unconfirmed_own(moment))


def rewrite_own(moment: Moment, expected: Expectation, ours: State) -> None:
    for key in _unconfirmed_own(moment):
        expected.after[key] = {**expected.after[key], "sequenceNumber": expected.after[key]["sequenceNumber"] + 1}


def _virtual(moment: Moment, ours: State) -> list[tuple[str, str]]:
    if moment.step.op != "release_pool_affinities":
        return []
    return [(o, c) for o, c in _released(moment, ours) if o.startswith("virtual:") and row_key(o, c) in moment.after]


def virtual_in_pool(moment: Moment, ours: State) -> bool:
    return bool(_virtual(moment, ours))


def release_virtual(moment: Moment, expected: Expectation, ours: State) -> None:
    for owner, cidr in _virtual(moment, ours):
        give_up(expected.after, owner, cidr, moment.step.now)


def _released_in_vain(moment: Moment) -> list[str]:
    """Return the blocks that upstream writes for addresses which were free already, because one was asked for twice.

    Such a write has what a write has: cooled down addresses are freed, an empty block of nobody goes, and one whose
    pool does not select its host any more is given back.
    """
    if moment.step.op != "release_ips":
        return []
    options = [canonical(o["address"]) for o in moment.step.args["options"] if parses(o["address"])]
    found = []
    for key, block in blocks(moment.before):
        network = parse_network(block["cidr"])
        inside = [a for a in options if contains(network, parse_network(a))]
        ordinals = [int(parse_network(a).network_address) - int(network.network_address) for a in inside]
        free = all(attribute(block, o) is None or released_at(block, o) is not None for o in ordinals)
        if key in moment.step.changed and free and len(set(inside)) < len(inside):
            found.append(key)
    return found


def useless_write(moment: Moment, ours: State) -> bool:
    return bool(_released_in_vain(moment))


def not_written(moment: Moment, expected: Expectation, ours: State) -> None:
    in_vain = _released_in_vain(moment)
    expected.hooks_that_may_miss |= {i for i, hook in enumerate(moment.step.hooks) if hook.key in in_vain}
    for key in in_vain:
        block = moment.before[key]
        for unchanged in (key, row_key(block.get("affinity") or "", block["cidr"])):
            if unchanged in moment.before:
                expected.after[unchanged] = moment.before[unchanged]


def same_block(old: dict[str, Any], block: dict[str, Any]) -> bool:
    """Tell whether a block was not deleted and made again in between: numbers of a new one begin with the clock."""
    known = isinstance(old.get("allocations"), list)
    return known and bool(block["sequenceNumber"] - old.get("sequenceNumber", 0) < 1000)


def _renumberings(moment: Moment) -> dict[str, dict[int, int]]:
    found = {}
    for key, block in blocks(moment.after):
        old = moment.before.get(key)
        if key in moment.step.changed and isinstance(old, dict) and same_block(old, block):
            places = renumbering(old, block)
            if places:
                found[key] = places
    return found


def _queue(before: dict[str, Any], after: dict[str, Any]) -> list[int]:
    """Return upstream's queue of a block when it had been read: what was in it, and what had cooled down."""
    size = range(len(before["allocations"]))
    return [
        *before["unallocated"],
        *(o for o in size if released_at(before, o) is not None and released_at(after, o) is None),
    ]


def _in_our_order(moment: Moment, key: str, places: dict[int, int]) -> dict[str, Any]:
    """Return a block after the step with what had cooled down queued in the order of its release."""
    after = moment.after[key]
    if moment.step.op != "assign_ip":
        return renumbered(after, places)
    # The address was named; only the queue that is left differs.
    queue = [places.get(o, o) for o in _queue(moment.before[key], after)]
    return {**after, "unallocated": [o for o in queue if o in after["unallocated"]]}


def matures_by_ordinal(moment: Moment, ours: State) -> bool:
    # Where the matured addresses stand in the queue shows only if they are in it, or were taken from it.
    found = _renumberings(moment)
    return any(_in_our_order(moment, key, p) != moment.after[key] for key, p in found.items()) or any(
        address in _swapped(moment, key, p)
        for key, p in found.items()
        for family in ("ipv4", "ipv6")
        for address in addresses(moment.step.result, family)
    )


def _swapped(moment: Moment, key: str, places: Mapping[int, int]) -> dict[str, str]:
    network = parse_network(moment.after[key]["cidr"])
    return {f"{network[a]}/{network.prefixlen}": f"{network[b]}/{network.prefixlen}" for a, b in places.items()}


def by_release(moment: Moment, expected: Expectation, ours: State) -> None:
    for key, places in _renumberings(moment).items():
        if expected.after.get(key) != moment.after[key]:
            continue  # another exception has said what becomes of this block
        expected.after[key] = _in_our_order(moment, key, places)
        swap = _swapped(moment, key, places)
        for family in ("ipv4", "ipv6"):
            if addresses(expected.result, family):
                expected.result[family]["ips"] = [swap.get(ip, ip) for ip in expected.result[family]["ips"]]
