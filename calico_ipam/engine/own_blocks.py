"""Where the next address comes from: a block the host owns, or one that it claims now (ipam-library §11.3, §11.4)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import takewhile

from calico_ipam.datastore.api import Delete, Entry, Snapshot, lost
from calico_ipam.engine.affinity_release import release_affinity
from calico_ipam.engine.claim import block_of_row, claim_block
from calico_ipam.engine.prepare import Family, in_pools
from calico_ipam.engine.request import Request
from calico_ipam.engine.search import (
    BlockMap,
    fresh_candidates,
    learn_owners,
    list_blocks,
    order_of,
    reclaim_candidates,
)
from calico_ipam.engine.world import Engine
from calico_ipam.errors import (
    BlockClaimConflict,
    BlockLimitReached,
    DeadlineExceeded,
    IPAMError,
    NoFreeBlocks,
    NotFound,
    OutcomeUnknown,
    RefusedError,
    StaleAffinity,
    StoreDamaged,
    StoreError,
    StoreUnavailable,
)
from calico_ipam.model.addresses import Network
from calico_ipam.model.block import Block
from calico_ipam.model.block_order import BlockOrder
from calico_ipam.model.keys import Affinities, BlockKey, Blocks

log = logging.getLogger(__name__)

#: blocks read in one go; etcd allows 128 operations in a transaction
READ_AT_ONCE = 64
#: the same where each costs a request: it begins with one, since that nearly always has room, and doubles up to this
SIDE_BY_SIDE = 8


class BlockSource:
    """Hands out blocks with room, one after the other: the host's own in list order, then newly claimed ones.

    A block is handed out once. ``limit``: whether the number of blocks per host is limited (EnsureBlock does not).
    """

    def __init__(self, engine: Engine, family: Family, request: Request, *, limited: bool = True) -> None:
        self._engine = engine
        self._family = family
        self._request = request
        self._limited = limited
        self.looked: list[Network] = []  #: blocks of ours that were looked at, the one handed out last at the end
        self._own = self._owned_blocks(family.rows)
        self._consistent = engine.store.capabilities.snapshot_reads
        self._owned = 0
        self._free = 0
        self._map: BlockMap | None = None
        self._looked_again = False
        self._claimed: set[Network] = set()  # in this call
        self._again: set[Network] = set()  # offered once more

    def next(self, at_least: int) -> Entry:
        """Return the next block with ``at_least`` free addresses.

        Raises BlockLimitReached, NoFreeBlocks, RefusedError when new blocks may not be claimed automatically.
        """
        for block in self._own:
            if self._room(block.value) >= at_least:
                return block
        unseen = self._unseen_rows()
        if unseen:
            self._own = self._owned_blocks(unseen)
            return self.next(at_least)
        config = self._family.world.config
        limit, source = config.block_limit(self._request.max_blocks)
        if self._limited and self._owned >= limit:
            raise BlockLimitReached(
                hint=f"The limit of {limit} blocks comes from {source}; {self._request.host} owns {self._owned} blocks "
                f"with {self._free} free addresses in the pools in play. Raise the limit, or use larger blocks."
            )
        if not config.auto_allocate_blocks:
            raise RefusedError(
                "failed to find or claim a block",
                hint="AutoAllocateBlocks is off and the blocks this host owns are full: claim one for it first.",
            )
        block = self._claim(at_least)
        if all(row.cidr != block.cidr for row in self._family.rows):
            self._claimed.add(block.cidr)
        self.looked.append(block.cidr)
        self._owned += 1
        return block

    def offer_again(self, block: Entry, *, gone: bool = False) -> bool:
        """Let a block that could not be written, or is ``gone``, be found once more before others are claimed.

        False: it was claimed in this call, and it is the second time. Then no other would do better, and each try
        would leave one more empty block behind (limit L29).
        """
        cidr = block.cidr
        again, claimed = cidr in self._again, cidr in self._claimed
        self._again.add(cidr)
        if again:
            return not claimed
        if self._map is not None:
            self._map.offer(cidr)
            if gone:
                self._map.forget(cidr)
        self._owned -= claimed
        return True

    def blocks(self) -> BlockMap:
        """Return all blocks of the family: listed at the first call, corrected since."""
        if self._map is None:
            self._map = list_blocks(self._engine, self._family.version, recent=True)
        return self._map

    def _fresh(self, block: Block) -> Block:
        return self._engine.fresh(block, self._family.world.config)

    def _room(self, block: Block) -> int:
        return self._fresh(block).free(self._family.reservations)

    # --- blocks of our own ---------------------------------------------------------------------------------

    def _unseen_rows(self) -> tuple[Entry, ...]:
        """Return rows of ours that the first list did not show, before another block is claimed (prelude.py).

        For a host without any, a recent list will do, read after the blocks are: what another process of the host has
        claimed before that shows as taken there, and as the host's here.
        """
        if self._looked_again or self._consistent:
            return ()
        self._looked_again = True
        owner, known = self._request.owner, {row.cidr for row in self._family.rows}
        if not known:
            self.blocks()
        listing = self._engine.store.list(Affinities(owner.kind, owner.host, self._family.version, recent=not known))
        return tuple(row for row in listing if row.cidr not in known and in_pools(self._family.pools, row))

    def _looks(self, rows: Sequence[Entry]) -> Iterator[tuple[Sequence[Entry], Snapshot]]:
        """Yield our rows with a snapshot of their blocks: first those that were read on a guess and are as expected."""
        guessed = list(takewhile(self._guessed, rows))
        if guessed:
            yield guessed, self._family.world.snapshot
        for batch in self._batches(rows[len(guessed) :]):
            try:
                yield batch, self._engine.store.read(*(BlockKey(row.cidr) for row in batch))
            except StoreError as error:
                # The list of all blocks, which comes next, may still show their room.
                self._owned += len(batch)
                log.warning("blocks of this host cannot be read: %s", error)

    def _guessed(self, row: Entry) -> bool:
        """Tell whether a row's block is in the first read already, and fits the row (:mod:`prelude`)."""
        snapshot, key = self._family.world.snapshot, BlockKey(row.cidr)
        if key not in snapshot:
            return False
        try:
            stored = snapshot.entry(key)
        except StoreDamaged:
            return False
        return stored is not None and stored.value.owned_by(self._request.owner) and row.value.usable

    def _batches(self, rows: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
        start, size = 0, READ_AT_ONCE if self._consistent else 1
        while start < len(rows):
            yield rows[start : start + size]
            start, size = start + size, size if self._consistent else min(2 * size, SIDE_BY_SIDE)

    def _owned_blocks(self, rows: Sequence[Entry]) -> Iterator[Entry]:
        """Yield our blocks; count them only once they are known to be ours (limit L17)."""
        for batch, snapshot in self._looks(rows):
            for row in batch:
                cidr = row.cidr
                try:
                    stored = snapshot.entry(BlockKey(cidr))
                    if self._family.reservations.covers(cidr):
                        self._owned += stored is not None and stored.value.owned_by(self._request.owner)
                        continue
                    block = block_of_row(self._engine, self._request.owner, row, stored)
                except StaleAffinity as error:
                    log.info("%s", error)
                    continue
                except (DeadlineExceeded, StoreUnavailable):
                    raise
                except IPAMError as error:
                    self._owned += 1  # it cannot be looked at, so it must be assumed to be ours
                    log.warning("block %s of this host cannot be used: %s", cidr, error)
                    continue
                self._owned += 1
                self._free += self._room(block.value)
                self.looked.append(cidr)
                yield block

    # --- new blocks ----------------------------------------------------------------------------------------

    def _claim(self, at_least: int) -> Entry:
        """Claim the first free place, or else the first empty block of somebody else (§10.6).

        A free place may be found in a recent list, since claiming it tells; that nothing is free is concluded, and
        empty blocks of others are chosen, from a list that shows everything as it is now (prelude.py).
        """
        block = self._claim_free(at_least)
        if block is None and not self._consistent:
            self._consistent = True
            self._map = self.blocks().renewed(self._engine.store.list(Blocks(self._family.version)))
            block = self._claim_free(at_least)
        if block is None:
            self.blocks().decode()
            block = self._claim_empty(at_least)
        if block is None:
            raise NoFreeBlocks
        return block

    def _orders(self) -> list[BlockOrder]:
        orders = [order_of(pool, self._request.host, self._engine) for pool in self._family.pools]
        if not orders:
            raise RefusedError(f"no configured Calico pools for {self._request.owner.kind}:{self._request.host}")
        return orders

    def _claim_free(self, at_least: int) -> Entry | None:
        blocks, engine, config = self.blocks(), self._engine, self._family.world.config
        for order in self._orders():
            learn_owners(order, blocks, self._family.reservations, engine)
            found = fresh_candidates(order, blocks, self._request.owner, self._family.reservations, engine, config)
            for candidate in found:
                block = self._try(candidate.cidr, at_least, fresh=candidate.entry is None)
                if block is not None:
                    return block
        return None

    def _claim_empty(self, at_least: int) -> Entry | None:
        blocks, engine, config = self.blocks(), self._engine, self._family.world.config
        for order in self._orders():
            for empty in reclaim_candidates(order, blocks, self._family.reservations, engine, config):
                if self._reclaim(empty):
                    block = self._try(empty.value.cidr, at_least, fresh=True)
                    if block is not None:
                        return block
        return None

    def _try(self, cidr: Network, at_least: int, *, fresh: bool) -> Entry | None:
        """Claim one CIDR; None when somebody was quicker, or it was filled in the meantime (limit L5)."""
        blocks, engine = self.blocks(), self._engine
        blocks.set_aside(cidr)
        known = (None, None) if fresh and all(row.cidr != cidr for row in self._family.rows) else None
        reserved = self._request.host_reserved.get(self._family.version)
        try:
            block = claim_block(engine, self._request.owner, cidr, reserved=reserved, known=known)
        except (BlockClaimConflict, StoreDamaged) as error:
            log.info("%s; trying another block", error)
            found = error.block if isinstance(error, BlockClaimConflict) else None
            self._learn(cidr, found)
            return None
        blocks.learn(block)
        room = self._room(block.value)
        if room >= at_least:
            return block
        if fresh and block.value.sequence_for == {}:
            raise RefusedError(
                f"Block '{cidr}' has {room} free ips which is less than {at_least} ips required.", subject=str(cidr)
            )
        return None

    def _learn(self, cidr: Network, entry: Entry | None) -> None:
        try:
            entry = entry or self._engine.store.read(BlockKey(cidr)).entry(BlockKey(cidr))
        except StoreDamaged:
            return
        if entry is not None:
            self.blocks().learn(entry)

    def _reclaim(self, empty: Entry) -> bool:
        """Take an empty block from its owner; it must still be as it was listed.

        When somebody else, or our own write whose answer was lost, has removed it, the place is free all the same.
        """
        for _ in range(2):
            try:
                self._take_empty(empty)
            except (DeadlineExceeded, StoreUnavailable):
                raise
            except (NotFound, OutcomeUnknown) as error:
                if isinstance(error, NotFound) and lost(error) is None:
                    break  # there was neither row nor block of the owner
                log.debug("taking empty block %s: %s; looking again", empty.cidr, error)
                continue
            except IPAMError as error:
                log.info("empty block %s of %s could not be taken over: %s", empty.cidr, empty.affinity, error)
                return False
            break
        else:
            return False
        self.blocks().forget(empty.cidr)
        return True

    def _take_empty(self, empty: Entry) -> None:
        block: Block = empty.value
        owner = block.owner
        if owner is None:
            # Nobody owns it, so nobody will ever delete it: limit L9. Gone already is as good.
            with suppress(NotFound):
                self._engine.store.commit(Delete(empty))
        else:
            release_affinity(self._engine, owner, block.cidr, must_be_empty=True, sequence_number=block.sequence_number)
