"""What can be wrong with the structure of a block, in upstream's words (cli §4.3); the first fault counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from calico_ipam.model.block import Block
from calico_ipam.model.block_slots import is_index


def fault(block: Block, now: int) -> str:
    """Return the first structural fault of a block at ``now`` (Unix nanoseconds); empty when there is none."""
    return next(_faults(block, now), "")


def _faults(block: Block, now: int) -> Iterator[str]:
    if block.stored is not None:
        slots: Sequence[Any] = block.stored.allocations
        free: Sequence[Any] = block.stored.unallocated
        known = block.stored.attributes
    else:
        slots, free, known = block.allocations, block.unallocated, len(block.attributes)
    size = block.cidr.num_addresses
    for ordinal, index in enumerate(slots[:size]):
        if index is not None and not is_index(index, known):
            yield f"allocation {ordinal} indexes a nonexistent attribute {index}"
    yield from _attribute_faults(block, slots, known, now)
    yield from _queue_faults(slots, free, size)
    taken = sum(1 for index in slots[:size] if index is not None)
    if len(free) + taken != size:
        yield (
            f"expected {size} addresses in this block, but Unallocated ({len(free)}) + Allocated ({taken}) "
            f"= {len(free) + taken}"
        )
    if len(slots) != size:
        yield f"the list of allocations has {len(slots)} entries for {size} addresses"


def _attribute_faults(block: Block, slots: Sequence[Any], known: int, now: int) -> Iterator[str]:
    used = {index for index in slots[: block.cidr.num_addresses] if is_index(index, known)}
    for index, attribute in enumerate(block.attributes[:known]):
        if index not in used:
            yield f"attribute index {index} exists but is not indexed by an allocation"
        if attribute.released_at is not None and attribute.released_at > now:
            yield f"attribute index {index} has releasedAt in the future, suggesting clock skew"


def _queue_faults(slots: Sequence[Any], free: Sequence[Any], size: int) -> Iterator[str]:
    seen: set[Any] = set()
    for ordinal in free:
        if not is_index(ordinal, size):
            yield f"ordinal {ordinal} appears in the Unallocated array but is out of the block"
            continue
        if ordinal in seen:
            yield f"ordinal {ordinal} appears more than once in Unallocated array"
        seen.add(ordinal)
        if ordinal < len(slots) and slots[ordinal] is not None:
            yield f"ordinal {ordinal} is allocated but appears in Unallocated"
