"""What recorded documents say, read with as little code as possible: the oracles of the table of exceptions.

Nothing here comes from the library under test except names, addresses and the clock's unit.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping
from ipaddress import ip_address, ip_network
from typing import Any

from calico_ipam.model.addresses import Network, collapse, parse_network
from calico_ipam.model.handle import WINDOWS_RESERVED, sanitise_handle
from calico_ipam.model.timestamps import SECOND, parse_time
from tests.golden.library_scenario import State

BLOCKS = "/calico/ipam/v2/assignment/"
HANDLES = "/calico/ipam/v2/handle/"
CONFIG = "/calico/ipam/v2/config"
RESOURCES = "/calico/resources/v3/projectcalico.org/"

Document = dict[str, Any]


# --- blocks -------------------------------------------------------------------------------------------------


def blocks(state: Mapping[str, Any]) -> Iterator[tuple[str, Document]]:
    """Yield (key, document) of every readable block."""
    for key, block in state.items():
        if key.startswith(BLOCKS) and isinstance(block, dict) and isinstance(block.get("allocations"), list):
            yield key, block


def block_key(cidr: str) -> str:
    return f"{BLOCKS}ipv{6 if ':' in cidr else 4}/block/{cidr.replace('/', '-')}"


def attribute(block: Document, ordinal: int) -> Document | None:
    """Return the attribute of a slot; None for a free one."""
    index = block["allocations"][ordinal]
    attributes = block.get("attributes") or []
    return attributes[index] if isinstance(index, int) and index < len(attributes) else None


def released_at(block: Document, ordinal: int) -> int | None:
    """Return when a cooling slot was released (Unix nanoseconds); None for one that is not cooling."""
    text = (attribute(block, ordinal) or {}).get("releasedAt")
    return parse_time(text) if text else None


def windows_reserved(block: Document, ordinal: int) -> bool:
    return ((attribute(block, ordinal) or {}).get("handle_id") or "").lower() == WINDOWS_RESERVED


def empty(block: Document) -> bool:
    return all(i is None or windows_reserved(block, o) for o, i in enumerate(block["allocations"]))


def address(block: Document, ordinal: int) -> str:
    """Return the address of an ordinal, without a prefix."""
    return str(ip_network(block["cidr"])[ordinal])


def held_by(state: Mapping[str, Any], handle: str, version: int) -> list[str]:
    """Return the addresses that a handle holds in a family, with the block's prefix, in the order of its document."""
    order = [str(cidr) for cidr in (state.get(HANDLES + handle) or {}).get("block") or {}]
    found = []
    for cidr in order:
        block = state.get(block_key(cidr))
        if block and parse_network(cidr).version == version:
            for ordinal in range(len(block["allocations"])):
                holder = attribute(block, ordinal) or {}
                if sanitise_handle(holder.get("handle_id")) == handle and not holder.get("releasedAt"):
                    found.append(f"{address(block, ordinal)}/{parse_network(cidr).prefixlen}")
    return found


# --- handles ------------------------------------------------------------------------------------------------


def held(state: Mapping[str, Any]) -> dict[str, Counter[str]]:
    """Return, by handle, how many addresses it really holds in which block."""
    found: dict[str, Counter[str]] = {}
    for _, block in blocks(state):
        for ordinal in range(len(block["allocations"])):
            holder = attribute(block, ordinal)
            if holder is not None and not holder.get("releasedAt"):
                handle = sanitise_handle(holder.get("handle_id"))
                if handle and handle.lower() != WINDOWS_RESERVED:
                    found.setdefault(handle, Counter())[str(block.get("cidr"))] += 1
    return found


# --- affinity rows ------------------------------------------------------------------------------------------


def rows(state: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield (key, owner, CIDR text) of every affinity row; the owner as blocks write it: ``host:node-1``."""
    for key in state:
        parts = key.split("/")
        if len(parts) == 9 and parts[4] in ("host", "virtual") and parts[7] == "block":
            yield key, f"{parts[4]}:{parts[5]}", parts[8].replace("-", "/")


def row_key(owner: str, cidr: str) -> str:
    kind, _, host = owner.partition(":")
    return f"/calico/ipam/v2/{kind}/{host}/ipv{6 if ':' in cidr else 4}/block/{cidr.replace('/', '-')}"


def give_up(state: State, owner: str, cidr: str, now: int) -> None:
    """Take a block from its owner in ``state``: an empty one goes, another is nobody's afterwards (spec §10.5)."""
    state.pop(row_key(owner, cidr), None)
    block = state.get(block_key(cidr))
    if block is None or block.get("affinity") != owner:
        return
    block = matured(block, (state.get(CONFIG) or {}).get("ipCooldownSeconds", 0), now)
    if empty(block):
        del state[block_key(cidr)]
    else:
        block["affinity"] = None
        block.pop("affinity_claim_time", None)
        block["sequenceNumber"] += 1
        state[block_key(cidr)] = block


def matured(block: Document, cooldown: int, now: int) -> Document:
    """Return a copy of a block as it is at ``now`` (nanoseconds) for a cooldown (seconds) (spec §8.2, limit L22)."""
    block = copy.deepcopy(block)
    slots = block["allocations"]
    times = {o: released_at(block, o) for o in range(len(slots))}
    ripe = sorted((at, o) for o, at in times.items() if at is not None and at <= now - cooldown * SECOND)
    for _, ordinal in ripe:
        slots[ordinal] = None
        block["unallocated"].append(ordinal)
        (block.get("sequenceNumberForAllocation") or {}).pop(str(ordinal), None)
    used = sorted({i for i in slots if i is not None})
    if len(used) < len(block["attributes"] or ()):
        block["attributes"] = [block["attributes"][i] for i in used]
        block["allocations"] = [None if i is None else used.index(i) for i in slots]
    return block


# --- the order in which addresses mature --------------------------------------------------------------------


def renumbering(before: Document, after: Document) -> dict[int, int]:
    """Return, for addresses that matured in a step, whose place in the queue they have with us (limit L22).

    What had cooled down when the block was read comes first: in the order of ordinals with upstream, of releases with
    us. What the step itself releases comes behind it, by ordinal in both.
    """
    size = len(before["allocations"])

    def ripened(ordinal: int) -> bool:
        gone = released_at(after, ordinal) is None
        return before["allocations"][ordinal] is not None and gone and released_at(before, ordinal) is not None

    ripe = [o for o in range(size) if ripened(o)]
    ours = sorted(ripe, key=lambda o: (released_at(before, o), o))
    return {theirs: mine for theirs, mine in zip(ripe, ours, strict=True) if theirs != mine}


def renumbered(after: Document, places: Mapping[int, int]) -> Document:
    """Return a block after a step as it is when ordinals have swapped their places in the queue."""
    document = copy.deepcopy(after)
    for theirs, mine in places.items():
        document["allocations"][mine] = after["allocations"][theirs]
    document["unallocated"] = [places.get(o, o) for o in after["unallocated"]]
    numbers = after.get("sequenceNumberForAllocation") or {}
    moved = {str(places.get(int(o), int(o))): n for o, n in numbers.items()}
    document["sequenceNumberForAllocation"] = dict(sorted(moved.items()))
    return document


# --- pools --------------------------------------------------------------------------------------------------


def exact_pool_counts(pool: Document, state: Mapping[str, Any]) -> Document:
    """Return a pool of a utilisation result with whole numbers in place of saturated ones (limit L19)."""
    cidr = parse_network(pool["cidr"])
    reserved = [n for n in reservations(state) if n.version == cidr.version and n.overlaps(cidr)]
    inside = [parse_network(block["cidr"]) for block in pool["blocks"]]
    return {
        **pool,
        "capacity": cidr.num_addresses,
        "reserved": _covered(cidr, reserved),
        "available": cidr.num_addresses
        - _covered(cidr, [*reserved, *inside])
        + sum(block["available"] for block in pool["blocks"]),
    }


def reservations(state: Mapping[str, Any]) -> list[Network]:
    found = []
    for key, document in state.items():
        if key.startswith(RESOURCES + "ipreservations/"):
            for text in document["spec"].get("reservedCIDRs") or ():
                try:
                    ip_network(text.strip(), strict=False)
                except ValueError:
                    continue
                found.append(parse_network(text.strip()))
    return found


def _covered(cidr: Network, networks: list[Network]) -> int:
    clipped = [cidr if n.prefixlen <= cidr.prefixlen else n for n in networks if n.overlaps(cidr)]
    return sum(n.num_addresses for n in collapse(clipped))


def canonical(text: str) -> str:
    """Return an address in the one spelling that our values have."""
    found = ip_address(text)
    return str(getattr(found, "ipv4_mapped", None) or found)


def parses(text: str) -> bool:
    """Tell whether a text is an address."""
    try:
        canonical(text)
    except ValueError:
        return False
    return True


def addresses(result: Any, family: str) -> list[str]:
    """Return the addresses of a family in the result of an assignment."""
    return ((result or {}).get(family) or {}).get("ips") or []
