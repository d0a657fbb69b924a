"""Administration of who owns which block (ipam-library §14, §18.3)."""

from __future__ import annotations

import logging

from calico_ipam.datastore.api import Delete, Entry, Update, lost
from calico_ipam.engine.affinity_release import release_affinity as release_one
from calico_ipam.engine.claim import LOST, claim_block, drop_row
from calico_ipam.engine.results import ClaimResult
from calico_ipam.engine.search import list_blocks
from calico_ipam.engine.world import Engine
from calico_ipam.errors import (
    BlockClaimConflict,
    Conflict,
    InvalidInput,
    InvalidSize,
    IPAMError,
    NotFound,
    NotSupported,
    OutcomeUnknown,
    RefusedError,
    RetriesExhausted,
    StoreDamaged,
)
from calico_ipam.model.addresses import Network, blocks_in, overlaps
from calico_ipam.model.affinity import BlockOwner
from calico_ipam.model.block import Block
from calico_ipam.model.config import IPAMConfig
from calico_ipam.model.keys import Affinities, HostKey
from calico_ipam.model.pool import Pool, pool_for

log = logging.getLogger(__name__)

#: most blocks that one call claims or releases; a pool of 2^64 addresses is not walked by mistake
MOST_BLOCKS = 1 << 16


def _pool_of(engine: Engine, cidr: Network) -> Pool:
    """Return the enabled pool a CIDR begins in, if it is not smaller than a block. Raises InvalidInput, InvalidSize."""
    pool = pool_for(engine.look().enabled, cidr.network_address)
    if pool is None:
        raise InvalidInput(f"The requested CIDR ({cidr}) is not within any configured pools.", subject=str(cidr))
    if cidr.prefixlen > pool.block_size:
        raise InvalidSize(
            f"The requested CIDR ({cidr}) is smaller than the minimum.",
            subject=str(cidr),
            hint=f"Pool {pool.name} has blocks of /{pool.block_size}.",
        )
    if 1 << (pool.block_size - cidr.prefixlen) > MOST_BLOCKS:
        raise InvalidSize(
            f"The requested CIDR ({cidr}) holds more than {MOST_BLOCKS} blocks of /{pool.block_size}",
            subject=str(cidr),
            hint="Name smaller CIDRs, one after the other.",
        )
    return pool


def claim_affinity(engine: Engine, cidr: Network, owner: BlockOwner) -> ClaimResult:
    """Claim every block of ``cidr`` for ``owner``; blocks of others, and places they overlap, are *failed* (§14.1).

    Raises InvalidInput, InvalidSize; another error carries what had been done as ``error.partial``.
    """
    pool = _pool_of(engine, cidr)
    existing = list_blocks(engine, cidr.version)
    other_sizes = [other for other in existing.cidrs() if other.prefixlen != pool.block_size and overlaps(cidr, other)]
    claimed: list[Network] = []
    failed: list[Network] = []
    for block in blocks_in(cidr, pool.block_size):
        if block not in existing and any(overlaps(block, other) for other in other_sizes):
            failed.append(block)  # public report P01
            continue
        try:
            claim_block(engine, owner, block, known=None if block in existing else (None, None))
            claimed.append(block)
        except (BlockClaimConflict, StoreDamaged) as error:
            log.info("%s is not claimed for %s: %s", block, owner, error)
            failed.append(block)
        except IPAMError as error:
            error.partial = ClaimResult(tuple(claimed), tuple(failed))
            raise
    return ClaimResult(tuple(claimed), tuple(failed))


def release_affinity(engine: Engine, cidr: Network, owner: BlockOwner, *, must_be_empty: bool) -> None:
    """Release every block of ``cidr`` that ``owner`` has (§14.2). Stops at the first block that is not empty."""
    pool = _pool_of(engine, cidr)
    for block in blocks_in(cidr, pool.block_size):
        _release_patiently(engine, owner, block, must_be_empty=must_be_empty)


def _release_patiently(engine: Engine, owner: BlockOwner, cidr: Network, *, must_be_empty: bool) -> bool | None:
    """Release one block, again after each lost race or lost answer. False: it belongs to somebody else; None: there
    was neither row nor block of the owner.
    """
    for _ in engine.retry.tries(f"releasing block {cidr}"):
        try:
            release_one(engine, owner, cidr, must_be_empty=must_be_empty)
        except BlockClaimConflict:
            return False
        except (Conflict, NotFound, OutcomeUnknown) as error:
            if isinstance(error, NotFound) and lost(error) is None:
                return None
            # What went while it was written may have been half of it: only a new look tells what is left.
            log.debug("releasing %s: %s; looking again", cidr, error)
            continue
        return True
    raise AssertionError("tries() never ends quietly")


def release_host_affinities(engine: Engine, owner: BlockOwner, *, must_be_empty: bool) -> None:
    """Release all blocks of a host, whether or not their pools exist (§14.3).

    A block that fails does not stop the others; the last error is raised.
    """
    failure: IPAMError | None = None
    for version in (4, 6):
        for row in engine.store.list(Affinities(owner.kind, owner.host, version)):
            try:
                _release_patiently(engine, owner, row.cidr, must_be_empty=must_be_empty)
            except (RefusedError, RetriesExhausted) as error:
                failure = error
    if failure is not None:
        raise failure


def release_pool_affinities(engine: Engine, pool: Network) -> None:
    """Take every block that begins in ``pool`` from its owner, virtual hosts included (§14.4, datastore §14.9)."""
    for _ in engine.retry.tries(f"releasing the blocks of pool {pool}"):
        again = False
        released: set[Network] = set()
        for row in engine.store.list(Affinities(version=pool.version)):
            key = row.key
            if row.value.deleted or row.cidr.network_address not in pool:
                continue
            owner = getattr(key, "owner", None)
            if row.cidr in released:
                again = not drop_row(engine, row) or again  # a stale one of another host: the block is nobody's now
            elif isinstance(owner, BlockOwner):
                done = _release_patiently(engine, owner, row.cidr, must_be_empty=False)
                if done:
                    released.add(row.cidr)
                # A stale row of another host has only been removed now: the right one is in the next round's list.
                again = done is False or again
        if not again:
            return


def release_block_affinity(engine: Engine, block: Block, *, must_be_empty: bool) -> None:
    """Release a block that was read before, from the owner it had then (§14.5). One attempt.

    Raises BlockNotEmpty, Conflict, InvalidInput for an owner text that cannot be understood.
    """
    if not block.affinity:
        return
    owner = block.owner
    if owner is None:
        raise InvalidInput("could not parse affinity config", subject=str(block.cidr), reason=block.affinity)
    try:
        release_one(engine, owner, block.cidr, must_be_empty=must_be_empty)
    except (BlockClaimConflict, NotFound) as error:
        log.debug("block %s is not %s's any more: %s", block.cidr, owner, error)


def remove_ipam_host(engine: Engine, owner: BlockOwner) -> None:
    """Forget a host: its blocks become nobody's, addresses stay with their holders (§14.6)."""
    key = HostKey(owner.host)
    for _ in engine.retry.tries(f"removing host {owner.host}"):
        release_host_affinities(engine, owner, must_be_empty=False)
        try:
            engine.store.commit(Delete(engine.store.get(key)))
        except (NotFound, NotSupported):
            return
        except (*LOST, OutcomeUnknown) as error:
            log.debug("removing %s: %s; trying again", key, error)
            continue
        return


def collect_cold_addresses(engine: Engine, config: IPAMConfig, entry: Entry) -> None:
    """Free the addresses of a block whose cooldown is over (§18.3). One attempt, nothing is written in vain.

    A block that nobody owns and that becomes empty so is deleted (limit L9). Raises Conflict, NotFound.
    """
    block = engine.fresh(entry.value, config)
    if block == entry.value:
        return
    if block.empty and block.affinity is None:
        engine.store.commit(Delete(entry))
    else:
        engine.store.commit(Update(entry, block.bumped()))
