"""The slots of a block as documents hold them: recognising damage, and making the best of it (limit L13).

What cannot be understood counts as *in use*. Nothing that may be somebody's address ever becomes free by being damaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_SLOT_TYPES = {int, type(None)}
_SHOWN = 5  # pieces of damage of one kind that are named
_SHOWN_CHARACTERS = 40  # of each


@dataclass(frozen=True, slots=True)
class MendedSlots:
    """Slots that can be worked with. A slot with the index ``unknown`` is in use, by nobody knows whom."""

    allocations: tuple[int | None, ...]
    unallocated: tuple[int, ...]
    unknown: int | None  #: set when such a slot exists
    problems: tuple[str, ...]  #: one sentence for each kind of damage


def sound(size: int, allocations: Sequence[Any], free: Sequence[Any], attributes: int) -> bool:
    """Tell whether nothing has to be mended; the usual case, told from few set operations."""
    if len(allocations) != size or not {type(i) for i in allocations} <= _SLOT_TYPES:
        return False
    indexes = {i for i in allocations if i is not None}
    if indexes and not (min(indexes) >= 0 and max(indexes) < attributes):
        return False
    places = {o for o, i in enumerate(allocations) if i is None}
    return len(free) == len(places) and {type(o) for o in free} <= {int} and set(free) == places


def mended(size: int, allocations: Sequence[Any], free: Sequence[Any], attributes: int) -> MendedSlots:
    """Return what can be made of the stored slots of a block with ``size`` addresses and so many ``attributes``."""
    problems: list[str] = []
    slots = list(allocations[:size])
    if len(allocations) != size:
        problems.append(f"{len(allocations)} allocation slots for {size} addresses; the missing ones count as in use")
        slots += [-1] * (size - len(slots))
    bad = [o for o, i in enumerate(slots) if i is not None and not is_index(i, attributes)]
    if bad:
        problems.append(f"ordinals {bad[:_SHOWN]} point at no attribute; they count as in use")
        for ordinal in bad:
            slots[ordinal] = attributes
    queue: list[int] = []
    seen: set[int] = set()
    skipped: list[Any] = []
    for ordinal in free:
        if is_index(ordinal, size) and ordinal not in seen and slots[ordinal] is None:
            seen.add(ordinal)
            queue.append(ordinal)
        else:
            skipped.append(ordinal)
    problems += [
        f"ordinal {repr(each)[:_SHOWN_CHARACTERS]} of the free queue is out of range, doubled or in use; it is skipped"
        for each in skipped[:_SHOWN]
    ]
    if len(skipped) > _SHOWN:
        problems.append(f"so are {len(skipped) - _SHOWN} more of the free queue")
    lost = sum(1 for o, i in enumerate(slots) if i is None and o not in seen)
    if lost:
        problems.append(f"{lost} free ordinals are missing from the queue and cannot be assigned")
    return MendedSlots(tuple(slots), tuple(queue), attributes if bad else None, tuple(problems))


def is_index(value: Any, size: int) -> bool:
    """Tell whether a stored value is an integer from 0 up to, not including, ``size``."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < size
