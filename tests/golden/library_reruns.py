"""What the exceptions expect where the recorded documents alone do not tell: the step is run once more.

Where ours is expected to do as if something were otherwise, the step runs on a store of its own in which it is: that
run is the expectation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from calico_ipam.errors import IPAMError
from calico_ipam.model.addresses import Network, contains, parse_network
from calico_ipam.model.reservation import Reservations
from calico_ipam.model.timestamps import SECOND
from tests.golden import library_patches as patch
from tests.golden.library_backends import quick_bench
from tests.golden.library_compare import error_differences
from tests.golden.library_documents import (
    CONFIG,
    HANDLES,
    RESOURCES,
    block_key,
    blocks,
    canonical,
    held_by,
    matured,
    released_at,
    reservations,
    row_key,
    rows,
    windows_reserved,
)
from tests.golden.library_patches import bad_pools
from tests.golden.library_scenario import Expectation, Hook, Moment, State, exact_text
from tests.golden.replay import carry_out, prepared


def rerun(moment: Moment, state: State, hooks: Iterable[Hook]) -> Expectation:
    """Return what our library does in this step from another state, or with other hooks."""
    return _run(moment, state, hooks)[0]


def hooks_missed(moment: Moment, ours: State) -> list[Hook]:
    """Return the hooks of a step that wait for calls which our library does not make."""
    missed = _run(moment, ours, moment.step.hooks)[1]
    return [moment.step.hooks[position] for position in missed]


def _run(moment: Moment, state: State, hooks: Iterable[Hook]) -> tuple[Expectation, list[int]]:
    bench = quick_bench(moment.scenario.backend)
    for key, document in state.items():
        bench.put_text(key, exact_text(document))
    store, ipam = prepared(bench, moment.step.now)
    store.set_hooks(tuple(hooks))
    result, error = carry_out(ipam, bench, moment.step)
    return Expectation(result, error, bench.state()), store.missed()


def _raised(outcome: Expectation) -> IPAMError | None:
    assert not isinstance(outcome.error, Mapping), "a run of ours raises errors of ours"
    return outcome.error


def take(expected: Expectation, other: Expectation, moment: Moment) -> None:
    expected.result, expected.error, expected.after = other.result, other.error, other.after
    expected.hooks_that_may_miss = set(range(len(moment.step.hooks)))


def hooks_of(moment: Moment, **wanted: str) -> list[Hook]:
    return [h for h in moment.step.hooks if all(getattr(h, name) == value for name, value in wanted.items())]


def as_if_undisturbed(moment: Moment, expected: Expectation, ours: State) -> None:
    take(expected, rerun(moment, ours, ()), moment)


# --- caps (L1, L15) ------------------------------------------------------------------------------------------


def cap_reached_by_counts(moment: Moment, ours: State) -> bool:
    """Upstream's handle counts addresses that it does not hold (L1, L2), and reaches its cap only by them."""
    args, key = moment.step.args, HANDLES + (moment.step.args.get("handle") or "")
    cap, one = args.get("max_alloc_per_handle", 0), moment.step.op == "assign_ip"
    if not (one or moment.step.op == "auto_assign") or cap <= 0:
        return False

    def reached(state: State, version: int) -> bool:
        wanted = 1 if one else args.get(f"num{version}", 0)
        counts = (state.get(key) or {}).get("block") or {}
        return bool(sum(n for cidr, n in counts.items() if (":" in cidr) == (version == 6)) + wanted > cap)

    def stopped(version: int) -> bool:
        # In one call, too: what is still missing is counted with each block.
        family = (moment.step.result or {}).get(f"ipv{version}") if not one else None
        return reached(moment.before, version) or bool(family and 0 < len(family["ips"]) < family["num_requested"])

    if not any(stopped(version) and not reached(ours, version) for version in (4, 6)):
        return False
    outcome = rerun(moment, ours, moment.step.hooks)
    return outcome.result != moment.step.result or (outcome.error is None) != (moment.step.error is None)


def corrects_handle(moment: Moment, ours: State) -> bool:
    """Our handle, too, counts more than it holds and is at its cap by that: nobody is half-way, so it is corrected."""
    args, cap = moment.step.args, moment.step.args.get("max_alloc_per_handle", 0)
    if moment.step.op not in ("auto_assign", "assign_ip") or cap <= 0 or moment.step.hooks:
        return False
    handle = args.get("handle") or ""
    counts = (ours.get(HANDLES + handle) or {}).get("block") or {}
    for version in (4, 6):
        wanted = args.get(f"num{version}", 0) if moment.step.op == "auto_assign" else 1
        counted = sum(n for cidr, n in counts.items() if (":" in cidr) == (version == 6))
        if wanted > 0 and counted + wanted > cap and len(held_by(ours, handle, version)) < min(counted, wanted):
            outcome = rerun(moment, ours, ())
            return outcome.result != moment.step.result or outcome.after != moment.after
    return False


def give_held(moment: Moment, expected: Expectation, ours: State) -> None:
    """See the patch. Where upstream ended at IPv4, ours goes on with IPv6, as if nothing else had been asked for."""
    patch.give_held(moment, expected, ours)
    ended = moment.step.error is not None and (moment.step.result or {}).get("ipv6") is None
    if ended and expected.error is None and moment.step.args.get("num6"):
        args = {name: value for name, value in moment.step.args.items() if name != "num4"}
        outcome = rerun(replace(moment, step=replace(moment.step, args=args)), ours, ())
        expected.result["ipv6"] = outcome.result["ipv6"]
        expected.error, expected.after = outcome.error, outcome.after


# --- which error is told (§13.2) -----------------------------------------------------------------------------


def _told_of_another(moment: Moment, ours: State) -> Expectation | None:
    """Return what ours does when it tells of another failing block than upstream, which leaves the choice open."""
    told = (moment.step.error or {}).get("identifier")
    options = moment.step.args.get("options") or ()
    if moment.step.op != "release_ips" or told is None or len(options) < 2:
        return None
    outcome = rerun(moment, ours, moment.step.hooks)
    if outcome.error is None or outcome.error.subject == told:
        return None
    block = next((parse_network(b["cidr"]) for _, b in blocks(ours) if _holds(b, told)), None)
    same_block = [o for o in options if block is not None and canonical(o["address"]) in _texts(block)]
    alone = rerun(replace(moment, step=replace(moment.step, args={"options": same_block})), ours, ())
    return outcome if same_block and not error_differences(moment.step.error, _raised(alone)) else None


def _holds(block: dict[str, Any], address: str) -> bool:
    return contains(parse_network(block["cidr"]), parse_network(address))


def _texts(block: Network) -> set[str]:
    return {str(address) for address in block}


def told_of_another(moment: Moment, ours: State) -> bool:
    return _told_of_another(moment, ours) is not None


def the_other_error(moment: Moment, expected: Expectation, ours: State) -> None:
    outcome = _told_of_another(moment, ours)
    assert outcome is not None
    expected.error = outcome.error


# --- where an address is looked for (§15) --------------------------------------------------------------------


LOOKS = ("get_assignment_attributes", "set_owner_attributes")


def _hidden_block(moment: Moment, ours: State) -> tuple[str, int] | None:
    """Return the CIDR of a block with somebody in the address of this step that upstream does not find, and its prefix.

    It looks only where the enabled pool of the address has a block today.
    """
    text = (moment.step.error or {}).get("text", "")
    if moment.step.hooks:
        return None  # it goes away in the middle
    lost = ("No valid IPPool", "is not in a configured pool", "with error: <nil>")
    if moment.step.op not in LOOKS or not any(words in text for words in lost):
        return None
    for _, block in blocks(ours):
        if _holds(block, canonical(moment.step.args["ip"])):
            cidr = parse_network(block["cidr"])
            ordinal = int(parse_network(moment.step.args["ip"]).network_address) - int(cidr.network_address)
            now = matured(block, (ours.get(CONFIG) or {}).get("ipCooldownSeconds", 0), moment.step.now)
            return (block["cidr"], cidr.prefixlen) if now["allocations"][ordinal] is not None else None
    return None


def looks_too_narrowly(moment: Moment, ours: State) -> bool:
    return _hidden_block(moment, ours) is not None


def as_if_pooled(moment: Moment, expected: Expectation, ours: State) -> None:
    """As if the block were one of an enabled pool of its own, and no other pool were there."""
    found = _hidden_block(moment, ours)
    assert found is not None
    pools = {key: ours[key] for key in ours if key.startswith(RESOURCES + "ippools/")}
    own = {"kind": "IPPool", "metadata": {"name": "own"}, "spec": {"cidr": found[0], "blockSize": found[1]}}
    key = RESOURCES + "ippools/own"
    take(expected, rerun(moment, {k: v for k, v in ours.items() if k not in pools} | {key: own}, ()), moment)
    expected.after = {k: v for k, v in expected.after.items() if k != key} | pools


# --- blocks and rows of nobody (L8, L9, L17) -----------------------------------------------------------------


GHOST = "host:ghost"


def _empty_and_unowned(moment: Moment, state: State) -> dict[str, dict[str, Any]]:
    """Return the blocks that nobody owns and that are empty, once what has cooled down is free."""
    cooldown = (state.get(CONFIG) or {}).get("ipCooldownSeconds", 0)
    found = {}
    for key, block in blocks(state):
        taken = [o for o, i in enumerate(block["allocations"]) if i is not None and not windows_reserved(block, o)]
        times = [released_at(block, o) for o in taken]
        ripe = [t is not None and (cooldown <= 0 or t <= moment.step.now - cooldown * SECOND) for t in times]
        if block.get("affinity") is None and all(ripe):
            found[key] = block
    return found


def _owner(moment: Moment) -> str:
    args = moment.step.args
    return f"{'virtual' if args.get('intended_use') == 'LoadBalancer' else 'host'}:{args.get('hostname')}"


def _rowless(moment: Moment, state: State) -> dict[str, str]:
    """Return the missing rows of blocks that belong to another host, by block: without them it cannot be relieved."""
    own = _owner(moment)
    owners = {key: block.get("affinity") or own for key, block in blocks(state)}
    rows_of = {key: row_key(owner, state[key]["cidr"]) for key, owner in owners.items() if owner != own}
    return {key: row for key, row in rows_of.items() if row not in state}


def _with_ghost(moment: Moment, ours: State) -> Expectation:
    """Return what ours does when the empty blocks of nobody belong to a host that may be relieved of them.

    So may every host whose row is missing (limit L8).
    """
    unowned = _empty_and_unowned(moment, ours)
    owned = {key: {**block, "affinity": GHOST} for key, block in unowned.items()}
    names = [row_key(GHOST, block["cidr"]) for block in owned.values()] + list(_rowless(moment, ours).values())
    ghosts = {name: {"state": "confirmed", "deleted": False} for name in names}
    outcome = rerun(moment, {**ours, **owned, **ghosts}, moment.step.hooks)
    back = {key: unowned[key] for key, block in outcome.after.items() if key in unowned and block == owned[key]}
    for key, block in outcome.after.items():
        if key in unowned and key not in back and block.get("affinity") == GHOST:
            block["affinity"] = None  # only borrowed from
    outcome.after = {key: value for key, value in outcome.after.items() if key not in ghosts} | back
    return outcome


def reclaims_unowned(moment: Moment, ours: State) -> bool:
    disturbed = bool(moment.step.hooks) and moment.step.error is not None
    claims = moment.step.op in ("auto_assign", "ensure_block")
    rowless = _rowless(moment, ours) if claims else {}
    if not claims or disturbed or not (_empty_and_unowned(moment, ours) or rowless):
        return False
    outcome = _with_ghost(moment, ours)
    taken = (outcome.after.get(key) for key in _empty_and_unowned(moment, ours))
    if any((outcome.after.get(key) or {}).get("affinity") != ours[key]["affinity"] for key in rowless):
        return True
    return any(block and block["affinity"] for block in taken) or any(
        ip not in str(moment.step.result) for ip in _all_addresses(outcome.result)
    )


def _all_addresses(result: Any) -> list[str]:
    return [ip for family in ("ipv4", "ipv6") for ip in ((result or {}).get(family) or {}).get("ips") or []]


def reclaim(moment: Moment, expected: Expectation, ours: State) -> None:
    take(expected, _with_ghost(moment, ours), moment)


def _stale_rows(moment: Moment, state: State) -> list[str]:
    """Return the host's rows of blocks that belong to somebody else, or to nobody, or are missing and reserved."""
    own = _owner(moment)
    reserved = Reservations.of(str(network) for network in reservations(state))
    found = []
    for key, owner, cidr in rows(state):
        block = state.get(block_key(cidr))
        if owner == own and (block["affinity"] != own if block else reserved.covers(parse_network(cidr))):
            found.append(key)
    return found


def counts_stale_rows(moment: Moment, ours: State) -> bool:
    limited = moment.step.op == "auto_assign" and (moment.step.error or {}).get("is") == "ErrBlockLimit"
    otherwise = patch.at_cap(moment, ours) or patch.late_refusal(moment, ours)
    if not limited or moment.step.hooks or otherwise or not _stale_rows(moment, ours):
        return False
    return bool(rerun(moment, ours, ()).result != moment.step.result)


def without_stale_rows(moment: Moment, expected: Expectation, ours: State) -> None:
    stale = _stale_rows(moment, ours)
    take(expected, rerun(moment, {k: v for k, v in ours.items() if k not in stale}, ()), moment)
    expected.after |= {key: ours[key] for key in stale if key in moment.after}  # of pools that are not in play


def empties_unowned(moment: Moment, ours: State) -> bool:
    """A block of nobody becomes empty when what has cooled down is freed, and upstream leaves it."""
    key = block_key(moment.step.args.get("cidr") or "")
    block = moment.after.get(key) or {}
    collected = moment.step.op == "garbage_collect_cold_ips" and key in moment.step.changed
    return collected and block.get("affinity") is None and not any(i is not None for i in block["allocations"])


def remove_emptied(moment: Moment, expected: Expectation, ours: State) -> None:
    expected.after.pop(block_key(moment.step.args["cidr"]))


def tunnel_borrows(moment: Moment, ours: State) -> bool:
    return patch.tunnel_borrows(moment, ours) and not reclaims_unowned(moment, ours)


# --- what cannot be understood (L26, L30) --------------------------------------------------------------------


def without_bad_pools(moment: Moment, expected: Expectation, ours: State) -> None:
    bad = {key: ours[key] for key in bad_pools(ours)}
    take(expected, rerun(moment, {k: v for k, v in ours.items() if k not in bad}, ()), moment)
    expected.after |= bad


def beside_damaged(moment: Moment, expected: Expectation, ours: State) -> None:
    """As if a full block of somebody else were in the place of what cannot be read."""
    damaged = {key: ours[key] for key, _, _ in rows(ours) if not isinstance(ours[key], dict) and ours[key]}
    places = {block_key(cidr): _full(cidr) for key, _, cidr in rows(ours) if key in damaged}
    state = {k: v for k, v in ours.items() if k not in damaged}
    take(expected, rerun(moment, {**state, **places}, ()), moment)
    expected.after = {k: v for k, v in expected.after.items() if k not in places} | damaged


def _full(cidr: str) -> object:
    size = parse_network(cidr).num_addresses
    return {
        "cidr": cidr,
        "affinity": "host:somebody-else",
        "allocations": [0] * size,
        "unallocated": [],
        "attributes": [{"handle_id": "somebody-else"}],
        "sequenceNumber": 1,
        "sequenceNumberForAllocation": {},
        "deleted": False,
    }
