"""Predicates and changes of the table of exceptions about assignments and handles, by the recorded documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from calico_ipam.errors import IPAMError, MaxAllocReached
from calico_ipam.model.addresses import contains, parse_network
from calico_ipam.model.handle import sanitise_handle
from calico_ipam.model.selector import parse_selector
from tests.golden.library_documents import (
    HANDLES,
    RESOURCES,
    addresses,
    block_key,
    blocks,
    canonical,
    held,
    held_by,
    row_key,
)
from tests.golden.library_release_patches import deselected, stale_rows
from tests.golden.library_scenario import Expectation, Moment, State

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
    then, now = held(beside_others(moment, moment.before)).get(handle), held(after).get(handle)
    if then == now:
        return document
    counts = Counter((document or {}).get("block") or {})
    counts.update(now or Counter())
    counts.subtract(then or Counter())
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
    expected.hooks_that_may_miss |= {
        i for i, h in enumerate(moment.step.hooks) if (h.kind, h.call) == ("handle", "update")
    }


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
    expected.hooks_that_may_miss = set(range(len(moment.step.hooks)))


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


def at_cap(moment: Moment, ours: State) -> bool:
    return any(
        isinstance(outcome, MaxAllocReached)
        or addresses(moment.step.result, f"ipv{version}") != outcome
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
        stale = {row_key(owner, cidr) for owner, cidr in stale_rows(moment)}
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
    return gone and (had or (key == row and deselected(moment, cidr)))


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
        for ip in addresses(moment.step.result, family):
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
        if any(message.startswith("Need to allocate") for message in family["msgs"]):
            continue  # the limit of blocks ended it before anything was borrowed
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
    error = moment.step.error or {}
    late = "IP(s) allocated" in error.get("text", "") or error.get("type") == "errors.ErrorResourceAlreadyExists"
    refused = bool(error) and not late  # before the block was looked at
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
    expected.hooks_that_may_miss = set(range(len(moment.step.hooks)))


def unreadable(moment: Moment, ours: State) -> bool:
    return (
        moment.step.op == "auto_assign" and (moment.step.error or {}).get("type") == "errors.ErrorParsingDatastoreEntry"
    )
