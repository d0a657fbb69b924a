"""Predicates and changes of the table of exceptions that need nothing but the recorded documents."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from calico_ipam.errors import InvalidInput, IPAMError, MaxAllocReached
from calico_ipam.model.addresses import contains, overlaps, parse_network
from calico_ipam.model.handle import sanitise_handle
from calico_ipam.model.pool import enabled_pools, parse_pools, pool_for
from calico_ipam.model.resource import IP_POOL, Resource
from calico_ipam.model.selector import parse_selector
from tests.golden.library_documents import (
    CONFIG,
    HANDLES,
    RESOURCES,
    attribute,
    block_key,
    blocks,
    canonical,
    empty,
    exact_pool_counts,
    give_up,
    held,
    held_by,
    matured,
    released_at,
    renumbered,
    renumbering,
    reservations,
    row_key,
    rows,
)
from tests.golden.library_kube import REST
from tests.golden.library_scenario import Expectation, Moment, State

SATURATED = 2**63 - 1


# --- handle counts (L1, L2, L10) ----------------------------------------------------------------------------


def beside_others(moment: Moment, state: State) -> State:
    """Return a state with what others write and delete during the step."""
    state = dict(state)
    for hook in moment.step.hooks:
        for key in hook.delete:
            state.pop(key, None)
        for write in hook.put:
            state[write["key"]] = write["value"]
    return state


def exact(moment: Moment, ours: State, after: State, handle: str) -> dict[str, Any] | None:
    """Return our handle document after a step: what it was, and exactly what the blocks gained or lost.

    What somebody else writes during the step is what the library starts from.
    """
    document = beside_others(moment, ours).get(HANDLES + handle)
    if (document or {}).get("deleted"):
        document = None  # marked and not yet removed: for everybody it is gone
    counts = Counter((document or {}).get("block") or {})
    counts.update(held(after).get(handle, Counter()))
    counts.subtract(held(beside_others(moment, moment.before)).get(handle, Counter()))
    left = {cidr: number for cidr, number in counts.items() if number > 0}
    return {**(document or {"deleted": False}), "block": left} if left else None


def miscounted(moment: Moment, ours: State, after: State) -> dict[str, dict[str, Any] | None]:
    """Return the exact documents of handles that ``after`` counts otherwise than by the addresses that change hands."""
    then, now = held(beside_others(moment, moment.before)), held(after)
    concerned = {key[len(HANDLES) :] for key in moment.step.changed if key.startswith(HANDLES)}
    concerned |= {h for h in {*then, *now} if then.get(h) != now.get(h)}
    documents = {h: exact(moment, ours, after, h) for h in sorted(concerned)}
    return {h: document for h, document in documents.items() if document != after.get(HANDLES + h)}


def miscounts(*operations: str) -> Callable[[Moment, State], bool]:
    return lambda moment, ours: moment.step.op in operations and bool(miscounted(moment, ours, moment.after))


def count_exactly(moment: Moment, expected: Expectation, ours: State) -> None:
    for handle, document in miscounted(moment, ours, expected.after).items():
        if document is None:
            expected.after.pop(HANDLES + handle, None)
        else:
            expected.after[HANDLES + handle] = document


def _handle(moment: Moment) -> str:
    return HANDLES + sanitise_handle(moment.step.args.get("handle"))


def leaves_handle(moment: Moment, ours: State) -> bool:
    released = moment.step.op == "release_by_handle" and moment.step.error is None
    return released and _handle(moment) in moment.after and _handle(moment) in ours


def remove_handle(moment: Moment, expected: Expectation, ours: State) -> None:
    expected.after.pop(_handle(moment), None)


def handle_is_gone(moment: Moment, ours: State) -> bool:
    looked_up = moment.step.op in ("release_by_handle", "ips_by_handle") and moment.step.error is None
    return looked_up and _handle(moment) in moment.before and _handle(moment) not in ours


def no_such_handle(moment: Moment, expected: Expectation, ours: State) -> None:
    handle = _handle(moment)[len(HANDLES) :]
    key, cause = f"IPAMHandleKey(id={handle})", "<nil>"
    if moment.scenario.backend == "kubernetes":
        key, cause = f"IPAMHandle({handle})", f'ipamhandles.crd.projectcalico.org "{handle}" not found'
    text = f"resource does not exist: {key} with error: {cause}"
    expected.error = {"type": "errors.ErrorResourceDoesNotExist", "text": text, "identifier": key}
    expected.after.pop(_handle(moment), None)


# --- assigning (L4, L15, L26, L27, L29, L30) ----------------------------------------------------------------


WRONG_FAMILY = "provided IPv6 IPPools list contains one or more IPv4 IPPools"


def late_refusal(moment: Moment, ours: State) -> bool:
    """Tell whether IPv4 came first, with success or with another error, although the list for IPv6 is wrong."""
    args = moment.step.args
    wrong = {
        version: bool(args.get(f"num{version}")) and any((":" in c) == (version == 4) for c in args[name] or ())
        for version in (4, 6)
        if (name := f"ipv{version}_pools") in args
    }
    if moment.step.op != "auto_assign" or not wrong.get(6) or wrong.get(4):
        return False
    return bool(moment.step.changed) or (moment.step.error or {}).get("text") != WRONG_FAMILY


def nothing_done(moment: Moment, expected: Expectation, ours: State) -> None:
    expected.after = dict(moment.before)
    expected.result = {"ipv4": None, "ipv6": None}
    expected.error = {"type": "*errors.errorString", "text": WRONG_FAMILY}


def _cap_outcomes(moment: Moment, ours: State) -> dict[int, list[str] | MaxAllocReached]:
    """Return, by family, what ours does for a handle at its cap: what it holds, or a refusal if that is not enough."""
    args = moment.step.args
    cap, handle = args.get("max_alloc_per_handle", 0), args.get("handle")
    if moment.step.op != "auto_assign" or cap <= 0 or not handle or late_refusal(moment, ours):
        return {}
    ours = beside_others(moment, ours)
    found: dict[int, list[str] | MaxAllocReached] = {}
    for version in (4, 6):
        wanted = args.get(f"num{version}", 0)
        document = (ours.get(HANDLES + handle) or {}).get("block") or {}
        counted = sum(n for cidr, n in document.items() if (":" in cidr) == (version == 6))
        have = held_by(ours, handle, version)
        reached = (moment.step.result or {}).get(f"ipv{version}") is not None
        if wanted <= 0 or counted + wanted <= cap or not reached:
            continue
        if len(have) >= wanted:
            found[version] = have[:wanted]
        elif len(have) == counted:
            found[version] = MaxAllocReached(handle, counted, cap)
            break
    return found


def _addresses(result: Any, family: str) -> list[str]:
    return ((result or {}).get(family) or {}).get("ips") or []


def at_cap(moment: Moment, ours: State) -> bool:
    return any(
        isinstance(outcome, MaxAllocReached)
        or _addresses(moment.step.result, f"ipv{version}") != outcome
        or any(f"/ipv{version}/" in key and not _given_back(moment, key) for key in moment.step.changed)
        for version, outcome in _cap_outcomes(moment, ours).items()
    )


def give_held(moment: Moment, expected: Expectation, ours: State) -> None:
    error, outcomes = moment.step.error or {}, _cap_outcomes(moment, ours)
    failed = 6 if (moment.step.result or {}).get("ipv6") is not None else 4
    full = error.get("is") == "ErrBlockLimit" or error.get("text") == "failed to find or claim a block"
    if full and failed in outcomes:
        expected.error = None
    for version, outcome in outcomes.items():
        wanted = moment.step.args[f"num{version}"]
        ips = [] if isinstance(outcome, MaxAllocReached) else outcome
        short = None if ips else f"Assigned 0 out of {wanted} requested IPv{version} addresses"
        family = {"ips": ips, "ip_version": version, "num_requested": wanted, "msgs": [], "partial_error": short}
        reserved = moment.step.args.get(f"host_reserved_attr_ipv{version}")
        if reserved:
            family["host_reserved_attr"] = reserved
            family["partial_error"] = short and f"{short}; HostReservedAttr: {reserved['handle']}"
        expected.result[f"ipv{version}"] = family
        stale = {row_key(owner, cidr) for owner, cidr in _stale_rows(moment)}
        for key in moment.step.changed:
            if f"/ipv{version}/" in key and key not in stale and not _given_back(moment, key):
                _put_back(moment, expected, key)
        if isinstance(outcome, MaxAllocReached):
            expected.error = outcome
            for later in range(version + 2, 8, 2):  # a family that is not reached then
                expected.result[f"ipv{later}"] = None
                for key in moment.step.changed:
                    if f"/ipv{later}/" in key:
                        _put_back(moment, expected, key)
    count_exactly(moment, expected, ours)


def _given_back(moment: Moment, key: str) -> bool:
    """Tell whether a key is of a block that the host has given back, because its pool does not select it any more."""
    cidr = key.rpartition("/")[2].replace("-", "/")
    own = f"host:{moment.step.args['hostname']}"
    row, block = row_key(own, cidr), block_key(cidr)
    had = row in moment.before and (moment.before.get(block) or {}).get("affinity") == own
    gone = row in moment.before and row not in moment.after and moment.after.get(key) is None
    return gone and (had or (key == row and _deselected(moment, cidr)))


def _put_back(moment: Moment, expected: Expectation, key: str) -> None:
    """Expect a document to be as it was, but for what others did to it."""
    before = beside_others(moment, moment.before)
    if key in before:
        expected.after[key] = before[key]
    else:
        expected.after.pop(key, None)


NEVER_BORROWED = "No more free affine blocks and a tunnel address is never borrowed from another host's block"


def tunnel_borrows(moment: Moment, ours: State) -> bool:
    """A tunnel address was borrowed, or would have been, had there been any."""
    step = moment.step
    borrowing = any(m.startswith("No IPs available") for f in ("ipv4", "ipv6") for m in _messages(step.result, f))
    return step.op == "auto_assign" and step.args["intended_use"] == "Tunnel" and (borrowing or bool(_borrowed(moment)))


def _messages(result: Any, family: str) -> list[str]:
    return ((result or {}).get(family) or {}).get("msgs") or []


def _borrowed(moment: Moment) -> dict[str, list[str]]:
    """Return, by block, the addresses of the result that lie in blocks which are not the host's."""
    found: dict[str, list[str]] = {}
    for family in ("ipv4", "ipv6"):
        for ip in _addresses(moment.step.result, family):
            key = block_key(str(parse_network(ip)))
            block = moment.after.get(key)  # there is none where a cap gave what the handle holds, as a /32
            if block is not None and block.get("affinity") != f"host:{moment.step.args['hostname']}":
                found.setdefault(key, []).append(ip)
    return found


def do_not_borrow(moment: Moment, expected: Expectation, ours: State) -> None:
    borrowed = _borrowed(moment)
    for version in (4, 6):
        family = expected.result[f"ipv{version}"]
        if family is None or version in _cap_outcomes(moment, ours):
            continue
        family["ips"] = [ip for ip in family["ips"] if not any(ip in ips for ips in borrowed.values())]
        if len(family["ips"]) < family["num_requested"]:
            family["msgs"] = [NEVER_BORROWED]
            got = f"Assigned {len(family['ips'])} out of {family['num_requested']} requested IPv{version} addresses"
            reserved = family.get("host_reserved_attr")
            tail = f"; HostReservedAttr: {reserved['handle']}" if reserved else ""
            family["partial_error"] = f"{got}; {NEVER_BORROWED}{tail}"
    for key in borrowed:
        _put_back(moment, expected, key)
    count_exactly(moment, expected, ours)


def bad_pools(state: State) -> list[str]:
    """Return the keys of pools with a selector that does not parse."""
    found = []
    for key, pool in state.items():
        if key.startswith(RESOURCES + "ippools/"):
            try:
                for field in ("nodeSelector", "namespaceSelector"):
                    parse_selector(pool["spec"].get(field) or "all()")
            except IPAMError:
                found.append(key)
    return found


def bad_selector(moment: Moment, ours: State) -> bool:
    pools = [k for k in moment.before if k.startswith(RESOURCES + "ippools/")]
    others = len(pools) > len(bad_pools(moment.before)) > 0
    text = (moment.step.error or {}).get("text", "")
    return moment.step.op == "auto_assign" and others and text.startswith("expected ")


def _unconfirmed_row(moment: Moment, ours: State) -> str | None:
    """Return the key of a row that AssignIP finds unconfirmed although the block is the host's own."""
    refused = moment.step.error is not None and moment.step.error["type"] != "errors.ErrorResourceAlreadyExists"
    if moment.step.op != "assign_ip" or refused:
        return None
    owner = f"host:{moment.step.args['hostname']}"
    target = parse_network(canonical(moment.step.args["ip"]))
    for _, block in blocks(ours):
        if block.get("affinity") == owner and contains(parse_network(block["cidr"]), target):
            row = ours.get(row_key(owner, block["cidr"]))
            if isinstance(row, dict) and row.get("state") not in ("confirmed", ""):
                return row_key(owner, block["cidr"])
    return None


def unconfirmed(moment: Moment, ours: State) -> bool:
    key = _unconfirmed_row(moment, ours)
    return key is not None and moment.after.get(key, {}).get("state") != "confirmed"


def confirm(moment: Moment, expected: Expectation, ours: State) -> None:
    key = _unconfirmed_row(moment, ours)
    assert key is not None
    expected.after[key] = {**expected.after[key], "state": "confirmed"}


def unlistable(moment: Moment, ours: State) -> bool:
    handle = moment.step.args.get("handle") or ""
    return moment.step.op in ("auto_assign", "assign_ip") and any(c in handle for c in "/\r\n\0")


def refuse_handle(moment: Moment, expected: Expectation, ours: State) -> None:
    handle = moment.step.args["handle"]
    name = next(
        name for c, name in (("/", "a slash"), ("\r", "a carriage return"), ("\n", "a line feed")) if c in handle
    )
    expected.error = {
        "type": "*errors.errorString",
        "text": f"handle {handle!r} contains {name}, so it could be stored but never listed",
    }
    expected.after = dict(moment.before)
    expected.result = {"ipv4": None, "ipv6": None} if moment.step.op == "auto_assign" else None


def unreadable(moment: Moment, ours: State) -> bool:
    return (
        moment.step.op == "auto_assign" and (moment.step.error or {}).get("type") == "errors.ErrorParsingDatastoreEntry"
    )


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
            wanted = _within(args["pool"], cidr)
        elif op == "auto_assign":
            wanted = owner == f"host:{args['hostname']}" and _is_network(cidr) and _deselected(moment, cidr)
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


def _deselected(moment: Moment, cidr: str) -> bool:
    """Tell whether an assignment finds the pool of one of the host's blocks enabled and not selecting the host."""
    args = moment.step.args
    version = 6 if ":" in cidr else 4
    place = f"{RESOURCES}nodes/{args['hostname']}"
    node = moment.before.get(place)
    if not args.get(f"num{version}") or node is None or (moment.step.result or {}).get(f"ipv{version}") is None:
        return False
    resources = (Resource(IP_POOL, key.rpartition("/")[2], moment.before[key]) for key in _pool_keys(moment.before))
    pools = enabled_pools(parse_pools(resources)[0], version)
    pool = pool_for(pools, parse_network(cidr).network_address)
    asked = [parse_network(text) for text in args.get(f"ipv{version}_pools") or ()]
    metadata = node.get("metadata") or moment.before.get(REST + place, {}).get("metadata") or {}
    labels = metadata.get("labels") or {}
    return pool is not None and pool.cidr not in asked and not pool.selects_node(labels)


def _pool_keys(state: State) -> list[str]:
    return sorted(key for key in state if key.startswith(RESOURCES + "ippools/"))


def _within(network: str, cidr: str) -> bool:
    return contains(parse_network(network), parse_network(cidr))


def _stale_rows(moment: Moment) -> list[tuple[str, str]]:
    """Return the rows that upstream leaves although their block is missing or somebody else's."""
    if moment.step.error is not None and moment.step.op in ("release_affinity", "release_pool_affinities"):
        return []  # it has stopped on the way
    found = []
    for owner, cidr in _released(moment, moment.after):
        block = moment.before.get(block_key(cidr))
        stale = block is None or (block.get("affinity") or owner) != owner
        if stale and (moment.step.op != "auto_assign" or row_key(owner, cidr) in moment.before):
            found.append((owner, cidr))
    return found


def releases_stale_rows(moment: Moment, ours: State) -> bool:
    return bool(_stale_rows(moment))


def drop_stale_rows(moment: Moment, expected: Expectation, ours: State) -> None:
    for owner, cidr in _stale_rows(moment):
        expected.after.pop(row_key(owner, cidr), None)


def _rowless(moment: Moment) -> list[tuple[str, str]]:
    """Return the blocks of an owner, named in the call, that upstream does not release because their row is missing."""
    op, args = moment.step.op, moment.step.args
    found = []
    for key, block in blocks(moment.after):
        owner = block.get("affinity") or ""
        if op == "release_affinity":
            wanted = owner == f"host:{args['host']}" and _within(args["cidr"], block["cidr"])
        else:
            wanted = op == "release_block_affinity" and args["cidr"] == block["cidr"] and bool(owner)
            wanted = wanted and args.get("passed_affinity", owner) == owner
        if wanted and key in moment.before and row_key(owner, block["cidr"]) not in moment.before:
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
    options = [canonical(o["address"]) for o in moment.step.args["options"] if _parses(o["address"])]
    found = []
    for key, block in blocks(moment.before):
        network = parse_network(block["cidr"])
        inside = [a for a in options if contains(network, parse_network(a))]
        ordinals = [int(parse_network(a).network_address) - int(network.network_address) for a in inside]
        free = all(attribute(block, o) is None or released_at(block, o) is not None for o in ordinals)
        if key in moment.step.changed and free and len(set(inside)) < len(inside):
            found.append(key)
    return found


def _parses(text: str) -> bool:
    try:
        canonical(text)
    except ValueError:
        return False
    return True


def useless_write(moment: Moment, ours: State) -> bool:
    return bool(_released_in_vain(moment))


def not_written(moment: Moment, expected: Expectation, ours: State) -> None:
    for key in _released_in_vain(moment):
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
        for address in _addresses(moment.step.result, family)
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
            if _addresses(expected.result, family):
                expected.result[family]["ips"] = [swap.get(ip, ip) for ip in expected.result[family]["ips"]]


# --- owners, counts, settings, fields -----------------------------------------------------------------------


def _own_slot(moment: Moment) -> tuple[str, int] | None:
    """Return (block, ordinal) of an address whose shared attribute upstream changes for all of its holders."""
    if moment.step.op != "set_owner_attributes" or moment.step.error is not None:
        return None
    target = parse_network(canonical(moment.step.args["ip"]))
    for key, block in blocks(moment.before):
        network = parse_network(block["cidr"])
        if contains(network, target) and key in moment.step.changed:
            ordinal = int(target.network_address) - int(network.network_address)
            if block["allocations"].count(block["allocations"][ordinal]) > 1:
                return key, ordinal
    return None


def shared(moment: Moment, ours: State) -> bool:
    slot = _own_slot(moment)
    return slot is not None and _unshared(moment, *slot, moment.after) != moment.after[slot[0]]


def _unshared(moment: Moment, key: str, ordinal: int, state: State) -> dict[str, Any]:
    after = copy.deepcopy(state[key])
    index = after["allocations"][ordinal]
    old, new = attribute(moment.before[key], ordinal), after["attributes"][index]
    if old != new:
        after["attributes"][index] = old
        after["allocations"][ordinal] = len(after["attributes"])
        after["attributes"].append(new)
    return after


def unshare(moment: Moment, expected: Expectation, ours: State) -> None:
    slot = _own_slot(moment)
    assert slot is not None
    expected.after[slot[0]] = _unshared(moment, *slot, expected.after)


def _pools(moment: Moment) -> list[dict[str, Any]]:
    return list(moment.step.result["pools"]) if moment.step.op == "get_utilization" and moment.step.result else []


def saturated(moment: Moment, ours: State) -> bool:
    return any(pool["capacity"] == SATURATED for pool in _pools(moment))


def exact_counts(moment: Moment, expected: Expectation, ours: State) -> None:
    expected.result["pools"] = [
        exact_pool_counts(pool, moment.before) if pool["capacity"] == SATURATED else pool for pool in _pools(moment)
    ]


def _orphans(moment: Moment) -> list[dict[str, Any]]:
    """Return the counts of the IPv6 blocks in no pool, which upstream leaves out."""
    if not _pools(moment) or moment.step.args.get("pools"):
        return []
    pools = [parse_network(pool["cidr"]) for pool in _pools(moment)]
    found = []
    for _, block in sorted(blocks(moment.before)):
        cidr = parse_network(block["cidr"])
        if cidr.version == 6 and not any(overlaps(pool, cidr) for pool in pools):
            kept = [n for n in reservations(moment.before) if overlaps(n, cidr)]
            free = [o for o in block["unallocated"] if not any(cidr[o] in n for n in kept)]
            size = cidr.num_addresses
            reserved = size - exact_pool_counts({"cidr": block["cidr"], "blocks": []}, moment.before)["available"]
            counts = {"capacity": size, "in_use": size - len(block["unallocated"]), "available": len(free)}
            found.append({"cidr": block["cidr"], "reserved": reserved, **counts})
    return found


def hides_orphans(moment: Moment, ours: State) -> bool:
    return bool(_orphans(moment))


def show_orphans(moment: Moment, expected: Expectation, ours: State) -> None:
    nothing = dict.fromkeys(("capacity", "in_use", "reserved", "available"), 0)
    name = "orphaned allocation blocks"
    expected.result["pools"].append({"name": name, "cidr": "::/0", **nothing, "blocks": _orphans(moment)})


def _broken_bound(moment: Moment) -> str | None:
    args = moment.step.args
    refused = moment.step.error is not None and moment.scenario.backend == "etcdv3"
    if moment.step.op != "set_ipam_config" or refused:
        return None
    if not 0 <= args.get("max_blocks_per_host", 0) <= 1_000_000:
        return "MaxBlocksPerHost must lie between 0 and 1000000"
    if not 0 <= args.get("ip_cooldown_seconds", 0) <= 1200:
        return "IPCooldownSeconds must lie between 0 and 1200"
    return None


def out_of_bounds(moment: Moment, ours: State) -> bool:
    return _broken_bound(moment) is not None


def refuse_settings(moment: Moment, expected: Expectation, ours: State) -> None:
    expected.error = {"type": "*errors.errorString", "text": _broken_bound(moment)}
    if CONFIG in moment.before:
        expected.after[CONFIG] = moment.before[CONFIG]
    else:
        expected.after.pop(CONFIG, None)


def _dropped(moment: Moment) -> dict[str, dict[str, Any]]:
    """Return, by block, the fields that upstream drops when it rewrites it."""
    found = {}
    for key, block in blocks(moment.after):
        old = moment.before.get(key)
        if key in moment.step.changed and isinstance(old, dict):
            known = {name.lower() for name in block} | {
                "affinity_claim_time",
                "affinity",
                "sequencenumberforallocation",
            }
            gone = {name: value for name, value in old.items() if name.lower() not in known}
            if gone:
                found[key] = gone
    return found


def drops_fields(moment: Moment, ours: State) -> bool:
    return bool(_dropped(moment))


def keep_fields(moment: Moment, expected: Expectation, ours: State) -> None:
    for key, fields in _dropped(moment).items():
        expected.after[key] = {**expected.after[key], **fields}


def _made_maps(moment: Moment) -> list[str]:
    name = "sequenceNumberForAllocation"
    return [
        key
        for key, block in blocks(moment.after)
        if key in moment.step.changed
        and isinstance(moment.before.get(key), dict)
        and moment.before[key].get(name) is None
        and block.get(name) == {}
    ]


def makes_map(moment: Moment, ours: State) -> bool:
    # A resource has no null: what is absent there, upstream and we write alike.
    return moment.scenario.backend == "etcdv3" and bool(_made_maps(moment))


def keep_absent(moment: Moment, expected: Expectation, ours: State) -> None:
    for key in _made_maps(moment):
        expected.after[key] = {**expected.after[key], "sequenceNumberForAllocation": None}


# --- typed arguments ----------------------------------------------------------------------------------------


def malformed(moment: Moment, ours: State) -> bool:
    return moment.step.op == "release_ips" and not all(_parses(o["address"]) for o in moment.step.args["options"])


def invalid_input(moment: Moment, expected: Expectation, ours: State) -> None:
    wrong = next(o["address"] for o in moment.step.args["options"] if not _parses(o["address"]))
    expected.error = InvalidInput(f"invalid IP address: {wrong}", subject=wrong)


def _respelled(result: Any) -> Any:
    released = [{**o, "address": canonical(o["address"])} for o in result["released"]]
    return {"released": released, "unallocated": [canonical(a) for a in result["unallocated"]]}


def other_spelling(moment: Moment, ours: State) -> bool:
    result = moment.step.result
    return moment.step.op == "release_ips" and result is not None and _respelled(result) != result


def one_spelling(moment: Moment, expected: Expectation, ours: State) -> None:
    expected.result = _respelled(expected.result)
