"""Handles: how many addresses one holder has in which block (ipam-library §9)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from calico_ipam.errors import InvalidInput, MaxAllocReached
from calico_ipam.model.addresses import Network

#: handle of the addresses that Windows hosts keep for themselves; compared in lower case
WINDOWS_RESERVED = "windows-reserved-ipam-handle"


def sanitise_handle(handle: str | None) -> str:
    """Return what precedes the first carriage return; old migrations wrote more (ipam-library §8.7)."""
    return (handle or "").partition("\r")[0]


def check_handle(handle: str) -> None:
    """Refuse a new handle ID that no datastore could keep, before anything is written. Raises InvalidInput."""
    for bad, name in (("/", "a slash"), ("\r", "a carriage return"), ("\n", "a line feed"), ("\0", "a NUL")):
        if bad in handle:
            raise InvalidInput(
                f"handle {handle!r} contains {name}, so it could be stored but never listed",
                subject=handle,
                hint="Choose a network name and container ID without it.",
            )


@dataclass(frozen=True, slots=True)
class Handle:
    """The value of a handle object: block CIDR text to number of addresses, each at least 1."""

    id: str
    blocks: Mapping[str, int] = field(default_factory=dict)
    deleted: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)  #: unknown fields of the document, kept on rewrite

    @property
    def empty(self) -> bool:
        return not self.blocks

    def count(self, version: int) -> int:
        """Return the number of addresses of a family."""
        return sum(n for cidr, n in self.blocks.items() if (6 if ":" in cidr else 4) == version)

    def incremented(self, block: Network, number: int, cap: int = 0) -> Handle:
        """Return the handle with ``number`` more addresses in ``block``. Raises MaxAllocReached over ``cap``."""
        current = self.count(block.version)
        if cap > 0 and current + number > cap:
            raise MaxAllocReached(self.id, current, cap)
        key = str(block)
        return replace(self, blocks={**self.blocks, key: self.blocks.get(key, 0) + number})

    def decremented(self, block: Network, number: int) -> Handle:
        """Return the handle with up to ``number`` fewer addresses in ``block``.

        A handle may count too many after a crash, and one entry may already be gone; taking away what is not there
        is no error, since the block is the truth.
        """
        key = str(block)
        left = self.blocks.get(key, 0) - number
        blocks = {k: v for k, v in self.blocks.items() if k != key}
        if left > 0:
            blocks = {k: (left if k == key else v) for k, v in self.blocks.items()}
        return replace(self, blocks=blocks)

    def without(self, block: Network) -> Handle:
        """Return the handle without its entry for ``block``."""
        return replace(self, blocks={k: v for k, v in self.blocks.items() if k != str(block)})
