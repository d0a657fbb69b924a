"""Who lives and what they have, as the hammer itself made it: the judge of the collector.

A holder is entered after it has its address and before anybody could think it dead, and is taken out before its pod
goes. So whatever is in the ledger during the whole of a look at the blocks must be there in the blocks.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from calico_ipam.model.addresses import Address
from calico_ipam.model.block import Block


@dataclass(frozen=True, slots=True)
class Holder:
    """One living holder. ``name``: pod or tunnel, for people."""

    name: str
    handle: str
    addresses: tuple[Address, ...]


@dataclass
class Ledger:
    """Safe to share between threads."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _living: dict[str, Holder] = field(default_factory=dict)  #: by handle
    _owners: dict[Address, str] = field(default_factory=dict)  #: address -> handle
    violations: list[str] = field(default_factory=list)
    looks: int = 0

    def enter(self, holder: Holder) -> None:
        """A holder lives from now on. An address that another living one has is a violation."""
        with self._lock:
            for address in holder.addresses:
                other = self._owners.get(address)
                if other is not None and other != holder.handle:
                    name = self._living[other].name if other in self._living else other
                    self.violations.append(f"{address} was given to {holder.name} while {name} has it")
                self._owners[address] = holder.handle
            self._living[holder.handle] = holder

    def leave(self, handle: str) -> None:
        """A holder is about to go; it may be released from now on."""
        with self._lock:
            holder = self._living.pop(handle, None)
            for address in holder.addresses if holder is not None else ():
                if self._owners.get(address) == handle:
                    del self._owners[address]

    def living(self) -> dict[str, Holder]:
        with self._lock:
            return dict(self._living)

    def compare(self, before: Mapping[str, Holder], blocks: Iterable[Block]) -> list[str]:
        """Check blocks that were read after ``before`` was taken; returns what is wrong, and keeps it too."""
        held = held_in(blocks)
        after = self.living()
        wrong = [
            f"{address} of {holder.name}, which lives, is {_whose(held.get(address))}"
            for handle, holder in before.items()
            if after.get(handle) is holder
            for address in holder.addresses
            if held.get(address) != handle
        ]
        with self._lock:
            self.looks += 1
            self.violations += [text for text in wrong if text not in self.violations]
        return wrong


def held_in(blocks: Iterable[Block]) -> dict[Address, str]:
    """Return address -> handle of everything that blocks hold, cooling addresses left out."""
    return {
        block.address(ordinal): attribute.clean_handle
        for block in blocks
        for ordinal, attribute in block.taken()
        if not attribute.cold
    }


def _whose(handle: str | None) -> str:
    return "free" if handle is None else f"held by {handle or 'nobody'}"
