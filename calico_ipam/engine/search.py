"""Which block a host takes next, decided in memory from one list of blocks (ipam-library §10.6, §10.7).

Upstream asks the store about one candidate after the other; public report P02 waited minutes for that. Here a walk
costs as many steps as there are blocks and reservations in the pool, never as many as the pool has room for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from calico_ipam.datastore.api import Damaged, Entry, Listing
from calico_ipam.datastore.lazy import LazyBlock
from calico_ipam.engine.world import Engine
from calico_ipam.errors import StoreDamaged
from calico_ipam.model.addresses import WIDTH, Network
from calico_ipam.model.affinity import BlockOwner
from calico_ipam.model.block import Block
from calico_ipam.model.block_order import BlockOrder
from calico_ipam.model.config import IPAMConfig
from calico_ipam.model.keys import BlockKey, Blocks
from calico_ipam.model.pool import Pool
from calico_ipam.model.reservation import Reservations
from calico_ipam.model.timestamps import SECOND

#: an empty block of somebody else may be taken this many seconds after it was claimed
RECLAIM_AGE_SECONDS = 60
#: blocks that are looked at because one might be the host's own
NEAREST = 8


class BlockMap:
    """The blocks of one call: listed once, corrected by what the call learns afterwards."""

    def __init__(self, listing: Listing) -> None:
        self._entries: dict[Network, Entry | None] = {}  # None: exists, but cannot be understood
        self._tried: set[Network] = set()
        for entry in listing:
            self.learn(entry)
        for damaged in listing.damaged:
            self._learn_damaged(damaged)

    def learn(self, entry: Entry) -> None:
        """Note a block as it is now."""
        self._entries[entry.cidr] = entry

    def _learn_damaged(self, damaged: Damaged) -> None:
        # A block that cannot be understood holds its CIDR: nobody may build another over it (limit L30).
        if isinstance(damaged.key, BlockKey):
            self._entries[damaged.key.cidr] = None

    def decode(self) -> None:
        """Decode every block: what is in those of others matters from now on."""
        for entry in list(self._entries.values()):
            whole = entry.whole if isinstance(entry, LazyBlock) else entry
            if isinstance(whole, Damaged):
                self._learn_damaged(whole)
            elif whole is not None:
                self.learn(whole)

    def renewed(self, listing: Listing) -> BlockMap:
        """Return the map of a newer list; what was tried in this call is not offered again."""
        newer = BlockMap(listing)
        newer._tried = self._tried
        return newer

    def forget(self, cidr: Network) -> None:
        """Note that a block is gone."""
        self._entries.pop(cidr, None)

    def set_aside(self, cidr: Network) -> None:
        """Do not offer this CIDR again in this call."""
        self._tried.add(cidr)

    def offer(self, cidr: Network) -> None:
        """Offer a CIDR again that was set aside."""
        self._tried.discard(cidr)

    def tried(self, cidr: Network) -> bool:
        return cidr in self._tried

    def get(self, cidr: Network) -> Entry | None:
        return self._entries.get(cidr)

    def __contains__(self, cidr: Network) -> bool:
        return cidr in self._entries

    def items(self) -> Iterable[tuple[Network, Entry | None]]:
        return self._entries.items()

    def cidrs(self) -> Iterable[Network]:
        return self._entries.keys()


def list_blocks(engine: Engine, version: int, *, recent: bool = False) -> BlockMap:
    """List the blocks of a family, damaged ones included; ``recent``: see :class:`Blocks`."""
    return BlockMap(engine.store.list(Blocks(version, recent)))


@dataclass(frozen=True, slots=True)
class Candidate:
    """A CIDR that may be claimed now. ``entry`` is the block of ours that is there already, if any."""

    cidr: Network
    entry: Entry | None = None


def order_of(pool: Pool, host: str, engine: Engine) -> BlockOrder:
    """Return the order in which a host tries the blocks of a pool."""
    return BlockOrder.of_host(pool.cidr, pool.block_size, host, engine.clock.now())


def fresh_candidates(
    order: BlockOrder,
    blocks: BlockMap,
    owner: BlockOwner,
    reservations: Reservations,
    engine: Engine,
    config: IPAMConfig,
) -> Iterator[Candidate]:
    """Yield what a host may claim in a pool, in its order: free places, and blocks of ours with room (§10.6 step 2).

    A place is free only if *no* existing block overlaps it, whatever its size (public report P01). A block of ours
    that has room was made by another process of this host a moment ago; taking it keeps one host at one block.
    """

    mine = str(owner)

    def usable(cidr: Network, entry: Entry | None) -> bool:
        if entry is None or cidr.prefixlen != order.block_size:
            return False
        try:
            return entry.affinity == mine and engine.fresh(entry.value, config).free(reservations) > 0
        except StoreDamaged:
            return False  # taken, by whatever it is (limit L30)

    taken = _spans(order, (cidr for cidr, entry in blocks.items() if not usable(cidr, entry)), whole=False)
    reserved = _spans(order, reservations.networks, whole=True)
    for position in _gaps(order, taken + reserved):
        cidr = order.at(position)
        if not blocks.tried(cidr):
            yield Candidate(cidr, blocks.get(cidr))


def learn_owners(order: BlockOrder, blocks: BlockMap, reservations: Reservations, engine: Engine) -> None:
    """Where the list does not say whose blocks are, read those nearest before the first free place of the order.

    A block of the host that has no row any more, which the host would take instead, was the first free place once.
    """
    if not any(_unknown(entry) for _, entry in blocks.items()):
        return
    taken = _spans(order, blocks.cidrs(), whole=False) + _spans(order, reservations.networks, whole=True)
    free = next(_gaps(order, taken), 0)
    near = (blocks.get(order.at(position)) for position in range(max(0, free - NEAREST), free))
    unknown = [entry.key for entry in near if entry is not None and _unknown(entry)]
    snapshot = engine.store.read(*unknown)
    for key in unknown:
        try:
            entry = snapshot.entry(key)
        except StoreDamaged:
            continue  # taken, by whatever it is (limit L30)
        if entry is not None:
            blocks.learn(entry)


def _unknown(entry: Entry | None) -> bool:
    return isinstance(entry, LazyBlock) and not entry.tells_owner


def _spans(order: BlockOrder, cidrs: Iterable[Network], *, whole: bool) -> list[tuple[int, int]]:
    """Return the half-open index ranges of the pool's blocks that ``cidrs`` touch (``whole``: cover completely)."""
    found = []
    base, size = int(order.pool.network_address), 1 << (WIDTH[order.pool.version] - order.block_size)
    for cidr in cidrs:
        if cidr.version != order.pool.version:
            continue
        first = int(cidr.network_address) - base
        end = first + (1 << WIDTH[cidr.version] - cidr.prefixlen)  # num_addresses costs ten times as much
        low, high = (-(-first // size), end // size) if whole else (first // size, -(-end // size))
        low, high = max(low, 0), min(high, order.count)
        if low < high:
            found.append((low, high))
    return found


def _gaps(order: BlockOrder, spans: Sequence[tuple[int, int]]) -> Iterator[int]:
    """Yield the positions of an order outside all index ``spans``, ascending and lazily."""
    closed: list[tuple[int, int]] = []
    for low, high in spans:
        # Index ranges become position ranges; one that straddles the start of the order falls in two.
        for a, b in ((low, min(high, order.start)), (max(low, order.start), high)):
            if a < b:
                first = (a - order.start) % order.count
                closed.append((first, first + b - a))
    position = 0
    for low, high in [*sorted(closed), (order.count, order.count)]:
        while position < low:  # not a range: a pool may have more blocks than a C integer holds
            yield position
            position += 1
        position = max(position, high)


def reclaim_candidates(
    order: BlockOrder, blocks: BlockMap, reservations: Reservations, engine: Engine, config: IPAMConfig
) -> list[Entry]:
    """Return empty blocks of others that were claimed at least 60 seconds ago, in the walk's order (§10.6 step 3)."""
    limit = engine.clock.now() - RECLAIM_AGE_SECONDS * SECOND
    found = []
    for cidr, entry in blocks.items():
        position = order.position(cidr)
        if entry is None or position is None or blocks.tried(cidr) or reservations.covers(cidr):
            continue
        block: Block = engine.fresh(entry.value, config)
        old = block.claim_time is None or block.claim_time <= limit
        if old and block.empty and block.free(reservations) > 0:
            found.append((position, entry))
    return [entry for _, entry in sorted(found, key=lambda item: item[0])]


def borrow_order(order: BlockOrder, blocks: BlockMap, reservations: Reservations) -> list[Network]:
    """Return the existing blocks of a pool in the host's order, for taking single addresses from them (§11.5)."""
    places = ((order.position(cidr), cidr) for cidr, entry in blocks.items() if entry is not None)
    found = [(place, cidr) for place, cidr in places if place is not None and not reservations.covers(cidr)]
    return [cidr for _, cidr in sorted(found, key=lambda item: item[0])]
