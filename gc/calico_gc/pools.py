"""Which pool a block belongs to, for the labels of metrics (gc §4, §14)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from calico_ipam.errors import InvalidInput
from calico_ipam.model.addresses import Network, contains, parse_network
from calico_ipam.model.reservation import Reservations
from calico_ipam.model.resource import Resource

NO_POOL = "no_ippool"
MOST_RESERVED = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class KnownPool:
    """A pool as it was first seen: its CIDR never changes."""

    name: str
    cidr: Network
    block_size: int

    @property
    def size(self) -> int:
        return self.cidr.num_addresses

    def reserved(self, reservations: Reservations) -> int:
        """Return how many of its addresses are reserved, as far as a Go integer can count."""
        return min(reservations.count_in(self.cidr), MOST_RESERVED)


class PoolIndex:
    """Pools, and the pool of each block: chosen when the block is first seen, kept until one of the two goes."""

    def __init__(self) -> None:
        self.pools: dict[str, KnownPool] = {}
        self.of_block: dict[str, str] = {}
        self.blocks: dict[str, set[str]] = {}
        self._networks: dict[str, Network] = {}

    def put_pool(self, resource: Resource) -> str | None:
        """Take note of a pool. Returns a complaint when it cannot be understood; it is then as if it were not there."""
        if resource.metadata.get("deletionTimestamp"):
            self.drop_pool(resource.name)
            return None
        known = self.pools.get(resource.name)
        try:
            cidr = parse_network(str(resource.spec.get("cidr") or ""))
        except InvalidInput as error:  # limit U13: an update that cannot be understood changes nothing
            return None if known else f"pool {resource.name} has no CIDR that can be read and is left out: {error}"
        if known is not None and known.cidr == cidr:
            return None
        self.drop_pool(resource.name)  # one that went and came again with another CIDR
        size = resource.spec.get("blockSize")
        if not isinstance(size, int) or not cidr.prefixlen <= size <= cidr.max_prefixlen:
            size = max(cidr.prefixlen, 26 if cidr.version == 4 else 122)
        pool = KnownPool(resource.name, cidr, size)
        self.pools[pool.name] = pool
        self.blocks[pool.name] = set()
        for block in [b for b in self.blocks.get(NO_POOL, ()) if contains(cidr, self._networks[b])]:
            self._move(block, pool.name)
        return None

    def drop_pool(self, name: str) -> None:
        if self.pools.pop(name, None) is None:
            return
        for block in list(self.blocks[name]):
            self._move(block, NO_POOL)
        del self.blocks[name]

    def put_block(self, block: str, network: Network) -> None:
        if block in self.of_block:
            return
        self._networks[block] = network
        name = next((p.name for p in self.pools.values() if contains(p.cidr, network)), NO_POOL)
        self.of_block[block] = name
        self.blocks.setdefault(name, set()).add(block)

    def drop_block(self, block: str) -> None:
        name = self.of_block.pop(block, None)
        if name is None:
            return
        del self._networks[block]
        self.blocks[name].discard(block)
        if name == NO_POOL and not self.blocks[name]:
            del self.blocks[name]

    def _move(self, block: str, name: str) -> None:
        network = self._networks[block]
        self.drop_block(block)
        self._networks[block] = network
        self.of_block[block] = name
        self.blocks.setdefault(name, set()).add(block)


def reserved_by(resources: Mapping[str, Resource]) -> Reservations:
    """Return the union of all reservations; entries that cannot be read are skipped."""
    return Reservations.from_resources(resources.values())
