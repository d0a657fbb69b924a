"""Addresses that are never handed out automatically (ipam-library §7)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from calico_ipam.errors import InvalidInput
from calico_ipam.model.addresses import Address, Network, collapse, contains, network_of, overlaps, parse_network
from calico_ipam.model.resource import Resource


@dataclass(frozen=True, slots=True)
class Reservations:
    """The union of all reserved CIDRs, nested and doubled ones merged."""

    networks: tuple[Network, ...] = ()
    ignored: tuple[str, ...] = ()  #: entries that could not be understood, for the log

    @classmethod
    def of(cls, texts: Iterable[str]) -> Reservations:
        """Return the reservations that texts (CIDRs or bare addresses, blanks around them) name."""
        networks: list[Network] = []
        ignored: list[str] = []
        for text in texts:
            entry = str(text).strip()
            if not entry:
                continue
            try:
                networks.append(parse_network(entry))
            except InvalidInput:
                ignored.append(entry)
        return cls(tuple(collapse(networks)), tuple(ignored))

    @classmethod
    def from_resources(cls, resources: Iterable[Resource]) -> Reservations:
        """Return the union of every IPReservation's ``reservedCIDRs``."""
        texts: list[str] = []
        for resource in resources:
            entries = resource.spec.get("reservedCIDRs")
            if isinstance(entries, list):
                texts.extend(entry for entry in entries if isinstance(entry, str))
        return cls.of(texts)

    def contains(self, address: Address) -> bool:
        host = network_of(address, 32 if address.version == 4 else 128)
        return any(contains(network, host) for network in self.networks)

    def overlaps(self, cidr: Network) -> bool:
        return any(overlaps(network, cidr) for network in self.networks)

    def covers(self, cidr: Network) -> bool:
        """Tell whether every address of ``cidr`` is reserved, by one entry or by several together."""
        # The networks are collapsed: adjacent halves have already become their parent.
        return any(contains(network, cidr) for network in self.networks)

    def count_in(self, cidr: Network) -> int:
        """Return how many addresses of ``cidr`` are reserved."""
        return sum(min(n.num_addresses, cidr.num_addresses) for n in self.networks if overlaps(n, cidr))

    def ordinal_test(self, cidr: Network) -> Callable[[int], bool]:
        """Return a quick test of whether an ordinal of ``cidr`` is reserved."""
        base, size = int(cidr.network_address), cidr.num_addresses
        inside = [n for n in self.networks if overlaps(n, cidr)]
        if not inside:
            return _never
        starts = [max(0, int(n.network_address) - base) for n in inside]
        ends = [min(size, int(n.network_address) - base + n.num_addresses) for n in inside]

        def reserved(ordinal: int) -> bool:
            position = bisect_right(starts, ordinal) - 1
            return position >= 0 and ordinal < ends[position]

        return reserved


def _never(_ordinal: int) -> bool:
    return False


NO_RESERVATIONS = Reservations()
