"""How full pools and blocks are (ipam-library §17): exact integers, whatever the size of an IPv6 pool (limit L19)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from calico_ipam.datastore.api import Damaged, Listing
from calico_ipam.engine.world import POOLS, RESERVATIONS, Engine
from calico_ipam.model.addresses import Network, collapse, contains, overlaps, parse_network
from calico_ipam.model.block import Block
from calico_ipam.model.keys import BlockKey, Blocks
from calico_ipam.model.pool import Pool, parse_pools
from calico_ipam.model.reservation import Reservations

BLOCKS = Blocks(writable=False)
ORPHANS = "orphaned allocation blocks"


@dataclass(frozen=True, slots=True)
class BlockUtilization:
    """Addresses of one block. ``in_use`` counts whatever is not in the free queue, cooling addresses included."""

    cidr: Network
    affinity: str | None
    claim_time: int | None  #: Unix nanoseconds
    capacity: int
    in_use: int
    cooling: int  #: of ``in_use``: released, not reusable yet
    reserved: int  #: covered by a reservation, allocated or not
    available: int  #: free and not reserved
    nodes: tuple[str, ...] = ()  #: of the holders, sorted; those that their attributes name
    problem: str = ""  #: why the block cannot be read; all of it then counts as in use


@dataclass(frozen=True, slots=True)
class PoolUtilization:
    """Addresses of one pool and its blocks, which are in the store's key order.

    ``orphans`` marks the pseudo pool of blocks that lie in no pool: its totals are 0.
    """

    name: str
    cidr: Network
    cidr_text: str  #: as written in the pool
    capacity: int
    in_use: int
    cooling: int
    reserved: int
    available: int
    blocks: tuple[BlockUtilization, ...]
    orphans: bool = False


@dataclass(frozen=True, slots=True)
class Utilization:
    """Pools in name order, and what could not be counted."""

    pools: tuple[PoolUtilization, ...]
    unknown: tuple[str, ...] = ()  #: names asked for that are neither a pool's name nor its CIDR
    unreadable: tuple[tuple[str, str], ...] = ()  #: (name, reason) of pools whose document cannot be used
    ignored_reservations: tuple[str, ...] = ()
    damaged: tuple[Damaged, ...] = field(default=(), repr=False)  #: blocks whose very key cannot be understood

    @property
    def orphans(self) -> tuple[BlockUtilization, ...]:
        """Blocks that lie in no pool, IPv4 first."""
        return tuple(block for pool in self.pools if pool.orphans for block in pool.blocks)


def get_utilization(engine: Engine, names: Iterable[str] = ()) -> Utilization:
    """Return the utilisation of the pools with these names or CIDR texts; of all pools, and of blocks in none, when
    no name is given. Reads once, writes nothing; blocks are counted as they are stored, expired cooldowns included.
    """
    asked = tuple(names)
    snapshot = engine.store.read(POOLS, RESERVATIONS, BLOCKS)
    unreadable: list[tuple[str, str]] = []
    if engine.pools is not None:
        pools = sorted(engine.pools(), key=lambda pool: pool.name)
    else:
        pools, unreadable = parse_pools(entry.value for entry in snapshot.listing(POOLS))
    if engine.reservations is not None:
        reservations = engine.reservations()
    else:
        reservations = Reservations.from_resources(entry.value for entry in snapshot.listing(RESERVATIONS))
    known = {pool.name for pool in pools} | {pool.cidr_text for pool in pools}
    kept = [pool for pool in pools if not asked or pool.name in asked or pool.cidr_text in asked]
    listing = snapshot.listing(BLOCKS)
    homes = _sort_into(kept, _block_counts(listing, reservations))
    counted = [_pool_counts(pool, homes[index], reservations) for index, pool in enumerate(kept)]
    unreadable += [(damaged.path, damaged.reason) for damaged in snapshot.listing(POOLS).damaged]
    return Utilization(
        pools=tuple(counted) + (() if asked else _orphans(homes[len(kept)])),
        unknown=tuple(name for name in asked if name not in known),
        unreadable=tuple(unreadable),
        ignored_reservations=reservations.ignored,
        damaged=tuple(d for d in listing.damaged if not isinstance(d.key, BlockKey)),
    )


def _block_counts(listing: Listing, reservations: Reservations) -> list[BlockUtilization]:
    """Return the counts of every block: in the store's key order, then those that cannot be read."""
    counts = [_count(entry.value, reservations) for entry in listing]
    for damaged in listing.damaged:
        if isinstance(damaged.key, BlockKey):
            counts.append(_count_damaged(damaged.key.cidr, damaged.reason, reservations))
    return counts


def _count(block: Block, reservations: Reservations) -> BlockUtilization:
    return BlockUtilization(
        cidr=block.cidr,
        affinity=block.affinity,
        claim_time=block.claim_time,
        capacity=block.size,
        in_use=block.size - len(block.unallocated),
        cooling=block.cooling,
        reserved=reservations.count_in(block.cidr),
        available=block.free(reservations),
        nodes=tuple(sorted({node for attribute in block.attributes if (node := attribute.active.get("node"))})),
        problem="; ".join(block.problems),
    )


def _count_damaged(cidr: Network, reason: str, reservations: Reservations) -> BlockUtilization:
    size = cidr.num_addresses
    return BlockUtilization(cidr, None, None, size, size, 0, reservations.count_in(cidr), 0, problem=reason)


def _sort_into(pools: Sequence[Pool], blocks: Iterable[BlockUtilization]) -> list[list[BlockUtilization]]:
    """Return the blocks of each pool, a block going to the first pool that it overlaps; the last list has the rest."""
    homes: list[list[BlockUtilization]] = [[] for _ in range(len(pools) + 1)]
    for block in blocks:
        index = next((i for i, pool in enumerate(pools) if overlaps(pool.cidr, block.cidr)), len(pools))
        homes[index].append(block)
    return homes


def _pool_counts(pool: Pool, blocks: Sequence[BlockUtilization], reservations: Reservations) -> PoolUtilization:
    taken = _count_within(pool.cidr, [*reservations.networks, *(block.cidr for block in blocks)])
    outside = pool.cidr.num_addresses - taken
    return PoolUtilization(
        name=pool.name,
        cidr=pool.cidr,
        cidr_text=pool.cidr_text,
        capacity=pool.cidr.num_addresses,
        in_use=sum(block.in_use for block in blocks),
        cooling=sum(block.cooling for block in blocks),
        reserved=reservations.count_in(pool.cidr),
        available=outside + sum(block.available for block in blocks),
        blocks=tuple(blocks),
    )


def _count_within(cidr: Network, networks: Iterable[Network]) -> int:
    """Return how many addresses of ``cidr`` the union of ``networks`` covers."""
    inside = [cidr if contains(network, cidr) else network for network in networks if overlaps(network, cidr)]
    return sum(network.num_addresses for network in collapse(inside))


def _orphans(blocks: Iterable[BlockUtilization]) -> tuple[PoolUtilization, ...]:
    """Return the pseudo pools of blocks in no pool: the IPv4 one always, as upstream, IPv6 when there is any."""
    everywhere = {4: parse_network("0.0.0.0/0"), 6: parse_network("::/0")}
    by_family: dict[int, list[BlockUtilization]] = {4: [], 6: []}
    for block in blocks:
        by_family[block.cidr.version].append(block)
    return tuple(
        PoolUtilization(ORPHANS, cidr, str(cidr), 0, 0, 0, 0, 0, tuple(by_family[version]), orphans=True)
        for version, cidr in everywhere.items()
        if version == 4 or by_family[version]
    )
