"""Predicates and changes of the table of exceptions about owners, counts, settings and fields of documents."""

from __future__ import annotations

import copy
from typing import Any

from calico_ipam.errors import InvalidInput
from calico_ipam.model.addresses import contains, overlaps, parse_network
from tests.golden.library_documents import (
    CONFIG,
    attribute,
    blocks,
    canonical,
    exact_pool_counts,
    parses,
    reservations,
)
from tests.golden.library_scenario import Expectation, Moment, State

SATURATED = 2**63 - 1


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
    after: dict[str, Any] = copy.deepcopy(state[key])
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
    if _broken_bound(moment) is None:
        return False
    # Set once more as they are, they are no change, and nobody looks at them.
    return moment.step.error is not None or ours.get(CONFIG) != moment.after.get(CONFIG)


def refuse_settings(moment: Moment, expected: Expectation, ours: State) -> None:
    expected.error = {"type": "*errors.errorString", "text": _broken_bound(moment)}
    expected.hooks_that_may_miss = set(range(len(moment.step.hooks)))
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
    return moment.step.op == "release_ips" and not all(parses(o["address"]) for o in moment.step.args["options"])


def invalid_input(moment: Moment, expected: Expectation, ours: State) -> None:
    wrong = next(o["address"] for o in moment.step.args["options"] if not parses(o["address"]))
    expected.error = InvalidInput(f"invalid IP address: {wrong}", subject=wrong)


def _respelled(result: Any) -> Any:
    released = [{**o, "address": canonical(o["address"])} for o in result["released"]]
    return {"released": released, "unallocated": [canonical(a) for a in result["unallocated"]]}


def other_spelling(moment: Moment, ours: State) -> bool:
    result = moment.step.result
    return moment.step.op == "release_ips" and result is not None and _respelled(result) != result


def one_spelling(moment: Moment, expected: Expectation, ours: State) -> None:
    expected.result = _respelled(expected.result)
