"""The order in which a host tries the blocks of a pool (ipam-library §10.7).

A host starts at a block that its name determines and goes on in ascending order, around the end of the pool. So the
processes of one host converge on the same block, and hosts spread over the pool. The start is upstream's, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from calico_ipam.model.addresses import WIDTH, Network, contains, make_network
from calico_ipam.model.go_random import GoRandom


def host_seed(host: str) -> int:
    """Return the 32-bit FNV-1 hash of a host name: multiply, then XOR."""
    value = 2166136261
    for byte in host.encode("utf-8", "surrogateescape"):
        value = (value * 16777619 & 0xFFFFFFFF) ^ byte
    return value


@dataclass(frozen=True, slots=True)
class BlockOrder:
    """All blocks of a pool, each once, beginning at the block with index ``start``. Nothing is stored per block."""

    pool: Network
    block_size: int  #: prefix length
    start: int

    @classmethod
    def of_host(cls, pool: Network, block_size: int, host: str, now: int) -> BlockOrder:
        """Return the order for a host.

        ``now`` (Unix nanoseconds) takes the place of the name where a block is one address: no host would keep such
        a block for its next address anyway.
        """
        order = cls(pool, block_size, 0)
        if not order.count:
            return order
        seed = now if block_size == WIDTH[pool.version] else host_seed(host)
        return cls(pool, block_size, GoRandom(seed).below(order.count))

    @property
    def count(self) -> int:
        """Number of blocks; 0 when a block is larger than the pool."""
        spread = self.block_size - self.pool.prefixlen
        return 1 << spread if spread >= 0 else 0

    def at(self, position: int) -> Network:
        """Return the block that comes at ``position`` (0: the first) of the order."""
        width = WIDTH[self.pool.version]
        index = (self.start + position) % self.count
        base = int(self.pool.network_address) + (index << (width - self.block_size))
        return make_network(self.pool.version, base, self.block_size)

    def position(self, block: Network) -> int | None:
        """Return where in the order a block comes, or None when it is no block of this pool."""
        if block.prefixlen != self.block_size or not contains(self.pool, block):
            return None
        shift = WIDTH[self.pool.version] - self.block_size
        index = int(block.network_address) - int(self.pool.network_address) >> shift
        return (index - self.start) % self.count

    def __iter__(self) -> Iterator[Network]:
        position, count = 0, self.count
        while position < count:
            yield self.at(position)
            position += 1


def block_order(pool: Network, block_size: int, host: str, now: int) -> Iterator[Network]:
    """Yield the blocks of a pool in the order in which ``host`` tries them, lazily; see :class:`BlockOrder`."""
    return iter(BlockOrder.of_host(pool, block_size, host, now))
