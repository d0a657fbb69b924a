"""What must be true of an allocator, said without blocks: which address is whose, which is cooling, which is free."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from calico_ipam.model.addresses import Address, Network, parse_network
from calico_ipam.model.handle import WINDOWS_RESERVED
from calico_ipam.model.timestamps import SECOND

#: name -> (CIDR, block prefix length); small, so that everything fills up within a few steps
POOLS: dict[str, tuple[Network, int]] = {
    "pool-a": (parse_network("10.0.0.0/28"), 30),
    "pool-b": (parse_network("10.1.0.0/29"), 29),
    "pool-c": (parse_network("fd00:10::/124"), 126),
}
HOSTS = ("node-a", "node-b", "node-c")
HANDLES = ("h-1", "h-2", "h-3", None)
RESERVABLE = ("10.0.0.1/32", "10.0.0.4/30", "10.1.0.0/30", "fd00:10::/126", "10.1.0.6")


@dataclass(frozen=True)
class Held:
    """An address in use: under which handle, and which allocation it is."""

    handle: str | None
    sequence_number: int


@dataclass
class Model:
    """``held`` and ``cold`` (released, second of release in nanoseconds) share no address."""

    held: dict[Address, Held] = field(default_factory=dict)
    numbers: dict[Address, int] = field(default_factory=dict)  #: of the last allocation, never given again
    cold: dict[Address, int] = field(default_factory=dict)
    enabled: set[str] = field(default_factory=set)
    disabled: set[str] = field(default_factory=set)
    reserved: tuple[Network, ...] = ()

    def pool_of(self, address: Address) -> str | None:
        """Return the enabled pool that holds an address."""
        for name in sorted(self.enabled):
            if address in POOLS[name][0]:
                return name
        return None

    def versions(self) -> set[int]:
        """Return the families that have an enabled pool."""
        return {POOLS[name][0].version for name in self.enabled}

    def is_reserved(self, address: Address) -> bool:
        return any(address in network for network in self.reserved)

    def is_cooling(self, address: Address, now: int, cooldown: int) -> bool:
        released = self.cold.get(address)
        return released is not None and cooldown > 0 and released > now - cooldown * SECOND

    def free(self, version: int, now: int, cooldown: int) -> set[Address]:
        """Return what an automatic assignment of a family may choose from."""
        return {
            address
            for name in self.enabled
            if POOLS[name][0].version == version
            for address in POOLS[name][0]
            if address not in self.held
            and not self.is_reserved(address)
            and not self.is_cooling(address, now, cooldown)
        }

    def take(self, address: Address, handle: str | None, sequence_number: int) -> None:
        assert address not in self.held, f"{address} was given away twice"
        assert handle == WINDOWS_RESERVED or sequence_number > self.numbers.get(address, -1), (
            f"{address} has a number that it had before"
        )
        self.numbers[address] = sequence_number
        self.cold.pop(address, None)
        self.held[address] = Held(handle, sequence_number)

    def release(self, addresses: Iterable[Address], now: int, cooldown: int) -> None:
        for address in addresses:
            del self.held[address]
            if cooldown > 0:
                self.cold[address] = now // SECOND * SECOND

    def of_handle(self, handle: str) -> set[Address]:
        return {address for address, held in self.held.items() if held.handle == handle}


def every_address() -> list[Address]:
    """Return all addresses of all pools, and one of no pool."""
    inside = [address for cidr, _ in POOLS.values() for address in cidr]
    return [*inside, parse_network("192.0.2.7").network_address]
