"""Handles: how many addresses one holder has in which block (ipam-library §9)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from calico_ipam.errors import InvalidInput, MaxAllocReached
from calico_ipam.model.addresses import Network, parse_network

#: most addresses of a block that a document can count; a larger number is one that nobody can read again
MOST_COUNTED = (1 << 63) - 1

#: handle of the addresses that Windows hosts keep for themselves; compared in lower case
WINDOWS_RESERVED = "windows-reserved-ipam-handle"


def sanitise_handle(handle: str | None) -> str:
    """Return what precedes the first carriage return; old migrations wrote more (ipam-library §8.7)."""
    return (handle or "").partition("\r")[0]


def check_handle(handle: str) -> None:
    """Refuse a new handle ID that no datastore could keep, before anything is written. Raises InvalidInput."""
    if not isinstance(handle, str):
        raise InvalidInput(f"handle {handle!r} is no text", subject=repr(handle))
    for bad, name in (("/", "a slash"), ("\r", "a carriage return"), ("\n", "a line feed"), ("\0", "a NUL")):
        if bad in handle:
            raise InvalidInput(
                f"handle {handle!r} contains {name}, so it could be stored but never listed",
                subject=handle,
                hint="Choose a network name and container ID without it.",
            )


@dataclass(frozen=True, slots=True)
class Handle:
    """The value of a handle object: block CIDR text to number of addresses, as they are stored.

    A sound document names each block once, by its canonical text, and counts at least 1. What changes a handle makes
    it sound: entries that name no block, or count nothing, go, and several spellings of a block become one.
    """

    id: str
    blocks: Mapping[str, int] = field(default_factory=dict)
    deleted: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)  #: unknown fields of the document, kept on rewrite

    @property
    def empty(self) -> bool:
        return not self.blocks

    def counts(self) -> dict[Network, int]:
        """Return the number of addresses by block: what names no block, or counts nothing, is left out."""
        counts: dict[Network, int] = {}
        for text, number in self.blocks.items():
            try:
                block = parse_network(text)
            except InvalidInput:
                continue  # nothing can be held there
            if number > 0:
                counts[block] = min(counts.get(block, 0) + number, MOST_COUNTED)
        return counts

    def count(self, version: int) -> int:
        """Return the number of addresses of a family."""
        return sum(number for block, number in self.counts().items() if block.version == version)

    def incremented(self, block: Network, number: int, cap: int = 0) -> Handle:
        """Return the handle with ``number`` more addresses in ``block``. Raises MaxAllocReached over ``cap``."""
        current = self.count(block.version)
        if cap > 0 and current + number > cap:
            raise MaxAllocReached(self.id, current, cap)
        counts = self.counts()
        return self._counting({**counts, block: min(counts.get(block, 0) + number, MOST_COUNTED)})

    def decremented(self, block: Network, number: int) -> Handle:
        """Return the handle with up to ``number`` fewer addresses in ``block``.

        A handle may count too many after a crash, and one entry may already be gone; taking away what is not there
        is no error, since the block is the truth.
        """
        counts = self.counts()
        return self._counting({**counts, block: counts[block] - number} if block in counts else counts)

    def without(self, block: Network) -> Handle:
        """Return the handle without its entries for ``block``."""
        return self._counting({other: number for other, number in self.counts().items() if other != block})

    def _counting(self, counts: Mapping[Network, int]) -> Handle:
        return replace(self, blocks={str(block): number for block, number in counts.items() if number > 0})
