"""Automatic assignment (ipam-library §11): from the host's own blocks, from a new one, or borrowed.

The requests of a call: one read of everything that decides; one of the host's own blocks (none in a process that used
them before: :mod:`familiar`); one list of all blocks only
when none of those has room (ruling 15); a commit per claimed block and one per block that addresses are taken from.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from calico_ipam.datastore.api import Entry
from calico_ipam.engine.cap import held_instead
from calico_ipam.engine.claim import LOST
from calico_ipam.engine.own_blocks import BlockSource
from calico_ipam.engine.prelude import handle_is_read_first, look_for
from calico_ipam.engine.prepare import Family, prepare
from calico_ipam.engine.request import Request
from calico_ipam.engine.results import AssignedAddress, Assignments, AutoAssigned
from calico_ipam.engine.search import BlockMap, borrow_order, order_of
from calico_ipam.engine.transaction import Holding, write_assignment
from calico_ipam.engine.world import Engine, World
from calico_ipam.errors import (
    BlockLimitReached,
    BlockOwnerMismatch,
    IPAMError,
    MaxAllocReached,
    NoFreeBlocks,
    NotFound,
    StoreError,
)
from calico_ipam.model.affinity import BlockOwner
from calico_ipam.model.keys import HandleKey, Key
from calico_ipam.model.pool import TUNNEL

log = logging.getLogger(__name__)

WRITE_FAILED = "Failed to assign IPs in newly allocated block"
STRICT = "No more free affine blocks and strict affinity enabled"
NEVER_BORROWED = "No more free affine blocks and a tunnel address is never borrowed from another host's block"


def auto_assign(engine: Engine, request: Request) -> AutoAssigned:
    """Assign addresses. An error carries what was assigned before it as ``error.partial``."""
    request.check()
    versions = request.versions
    done: dict[int, Assignments] = {}
    if not versions:
        return AutoAssigned()
    world, holding = _look(engine, request, versions)
    for version in versions:
        job = _Job(engine, request, world, version, holding)
        try:
            done[version] = job.run()
        except IPAMError as error:
            if job.family is not None:
                done[version] = job.assignments()
            error.partial = AutoAssigned(done.get(4), done.get(6))
            raise
        holding = job.holding
    return AutoAssigned(done.get(4), done.get(6))


def _look(engine: Engine, request: Request, versions: Sequence[int]) -> tuple[World, Holding | None]:
    key = HandleKey(request.handle) if request.handle else None
    more = [key] if key is not None and handle_is_read_first(engine, request.cap) else []
    world = look_for(engine, request, versions, *more)
    if key is None:
        return world, None
    return world, Holding(key, world.snapshot.entry(key) if key in world.snapshot else None)


class _Job:
    """The assignment of one family: a short-lived worker that collects addresses and the reasons for missing ones."""

    def __init__(self, engine: Engine, request: Request, world: World, version: int, holding: Holding | None) -> None:
        self.engine = engine
        self.request = request
        self.world = world
        self.version = version
        self.wanted = request.numbers[version]
        self.holding = holding
        self.family: Family | None = None
        self.found: list[AssignedAddress] = []
        self.messages: list[str] = []
        self.hints: list[str] = []
        self.failure: IPAMError | None = None  #: why the block that was tried last could not be written

    @property
    def missing(self) -> int:
        return self.wanted - len(self.found)

    def assignments(self) -> Assignments:
        return Assignments(
            self.version,
            self.wanted,
            tuple(self.found),
            tuple(self.messages),
            self.request.host_reserved.get(self.version),
            tuple(self.hints),
        )

    def say(self, message: str) -> None:
        if message not in self.messages:
            self.messages.append(message)

    def run(self) -> Assignments:
        family = self.family = prepare(self.engine, self.request, self.world, self.version)
        if self.missing <= 0:
            return self.assignments()
        if self.request.cap > 0 and self.holding is not None:
            # Before looking for room: a full pool must not keep a VM from its own address (limit L15).
            self._take_held()
            if self.missing <= 0:
                return self.assignments()
        source = BlockSource(self.engine, family, self.request)
        try:
            self._from_own_blocks(source)
        except NoFreeBlocks:
            for pool in family.pools:
                if pool.block_size < pool.cidr.prefixlen:
                    self.hints.append(
                        f"Pool {pool.name} ({pool.cidr_text}) is smaller than one of its /{pool.block_size} blocks."
                    )
            if self.world.config.strict_affinity:
                self.say(STRICT)
            elif self.request.use == TUNNEL:
                self.say(NEVER_BORROWED)
            else:
                self._borrow(source.blocks())
        except BlockLimitReached:
            limit, _ = self.world.config.block_limit(self.request.max_blocks)
            self.say(f"Need to allocate an IPAM block but could not - limit of {limit} blocks reached for this node")
            raise
        return self.assignments()

    def _from_own_blocks(self, source: BlockSource) -> None:
        while self.missing > 0:
            block = source.next(at_least=1)
            owner = self.request.owner if self.world.config.strict_affinity else None
            self.failure = None
            taken = self.take(block, owner)
            gone = taken is None and self.failure is None
            if gone or (taken is not None and self.failure is not None):
                self.say(WRITE_FAILED)
            if (gone or self.failure is not None) and not source.offer_again(block, gone=gone):
                raise self.failure or NotFound(str(block.key))
        self.engine.familiar.note(self.request.owner, self.version, source.looked)

    def _borrow(self, blocks: BlockMap) -> None:
        """Take single addresses from blocks of others, in this host's order (§11.5, limit L6: no probing)."""
        assert self.family is not None  # noqa: S101  # run() prepares before it borrows
        exhausted = []
        self.failure = None
        for pool in self.family.pools:
            order = order_of(pool, self.request.host, self.engine)
            for cidr in borrow_order(order, blocks, self.world.reservations):
                if self.missing <= 0:
                    break
                self.take(blocks.get(cidr), None)
            if self.missing > 0:
                exhausted.append(pool.cidr_text)
        if exhausted:
            self.say(f"No IPs available in pools: [{' '.join(exhausted)}]")
            if self.failure is not None:
                self.hints.append(f"Blocks with free addresses could not be written: {self.failure}")

    def take(self, block: Entry | None, owner: BlockOwner | None) -> Entry | None:
        """Take what is missing from a block, as far as it has room, and return the block as it is then.

        ``owner`` is given when the block must be its own. A lost race reads the block again and decides again.
        """
        engine, request = self.engine, self.request
        for attempt in engine.retry.tries("assigning addresses"):
            if attempt:
                block = self._read_again(block)
            if block is None:
                return None
            current = engine.fresh(block.value, self.world.config)
            try:
                after, ordinals = current.assign(
                    self.missing,
                    handle=request.handle,
                    attrs=request.attrs,
                    owner=owner,
                    reservations=self.world.reservations,
                )
                if not ordinals:
                    return block
                written = write_assignment(engine, block, after, ordinals, self.holding, request.cap)
            except LOST as error:
                log.debug("assigning from %s: %s; deciding again", block.key, error)
                continue
            except MaxAllocReached:
                if self._take_held():
                    return block
                continue
            except (StoreError, BlockOwnerMismatch) as error:
                log.warning("cannot assign from %s: %s", block.key, error)
                self.failure = error
                return block
            self.holding = written.holding
            borrowed = not written.block.value.owned_by(request.owner)
            self.found += [AssignedAddress(after.address(o), after.cidr, borrowed) for o in ordinals]
            return written.block
        raise AssertionError("tries() never ends quietly")

    def _read_again(self, block: Entry | None) -> Entry | None:
        """Return the block as it is now; None when it is gone, or cannot be read, and another has to do."""
        assert block is not None  # noqa: S101  # only blocks that were read are read again
        keys: list[Key] = [block.key]
        if self.holding is not None:
            keys.append(self.holding.key)
        try:
            snapshot = self.engine.store.read(*keys)
            if self.holding is not None:
                self.holding = Holding(self.holding.key, snapshot.entry(self.holding.key))
            return snapshot.entry(block.key)
        except StoreError as error:
            log.warning("%s cannot be read again: %s", block.key, error)
            self.failure = error
            return None

    def _take_held(self) -> bool:
        """When the cap leaves no room for new addresses, take those that the handle holds; True when there are."""
        assert self.holding is not None  # noqa: S101  # a cap is only counted in a handle
        request = self.request
        held = held_instead(
            self.engine, self.world.config, self.holding, self.version, self.wanted, request.cap, request.owner
        )
        # Never more than asked for, and none twice after a partial fill.
        self.found += [address for address in held if address not in self.found][: self.missing]
        return bool(held)
