"""Findings -> guarded writes (gc §8 to §11). Runs in workers on copies; nothing here touches the state.

Every release carries handle and sequence number, and is preceded by a live look. A block is written before its
handles. What a write found is answered as a value; the loop draws the conclusions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from calico_gc.decide import Group, LiveNode, Rules, Workloads, still_leaked
from calico_gc.facts import Allocation, PodKey
from calico_ipam.datastore.api import Entry
from calico_ipam.engine.admin import collect_cold_addresses, release_block_affinity, release_host_affinities
from calico_ipam.engine.release import release_from_block
from calico_ipam.engine.world import Engine
from calico_ipam.errors import BlockNotEmpty, Conflict, IPAMError, NotFound, StaleError, StoreDamaged
from calico_ipam.model.addresses import parse_network
from calico_ipam.model.affinity import HOST, BlockOwner
from calico_ipam.model.block import Block
from calico_ipam.model.config import IPAMConfig
from calico_ipam.model.keys import AffinityKey, BlockKey, HandleKey

log = logging.getLogger(__name__)

#: how often a block whose numbers were stale is read again and the rest of its addresses tried
STALE_ROUNDS = 5


class Live(Protocol):
    """Live reads of the cluster; all of them may be answered from one list when many are asked for."""

    def workloads(self, pods: Collection[PodKey]) -> Workloads:
        """Return the pods as they are now. One that cannot be read answers UNREADABLE; never raises."""

    def nodes(self, names: Collection[str]) -> Mapping[str, LiveNode]:
        """Return what each Calico node is now. One that cannot be read is UNKNOWN; never raises."""


# --- addresses -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Release:
    """A group of leaks to be looked at once more and released.

    ``unreadable``: blocks that cannot be read, among other objects; ``blind``: even their CIDR is not known of some.
    """

    group: Group
    rules: Rules
    unreadable: frozenset[str] = frozenset()
    blind: bool = False

    @property
    def key(self) -> tuple[str, str]:
        return "release", self.group.key


@dataclass(frozen=True, slots=True)
class Released:
    """What became of a group.

    ``freed``: we released it. ``free``: it was free already. ``alive``: a live look found a holder. ``stale``: it was
    assigned again, so it is judged anew. ``failed``: stays for later, with ``error``.
    """

    freed: tuple[Allocation, ...] = ()
    free: tuple[Allocation, ...] = ()
    alive: tuple[Allocation, ...] = ()
    stale: tuple[Allocation, ...] = ()
    failed: tuple[Allocation, ...] = ()
    error: IPAMError | None = None


def release(engine: Engine, live: Live, action: Release, progress: Callable[[Released], None]) -> Released:
    """Look at a group again, live, and release what is still leaked, block by block.

    ``progress`` is told of each block as soon as it is done.
    """
    group = action.group
    leaks = look_again(live, action)
    chosen = {a.key for a in leaks}
    total = Released(alive=tuple(a for a in group.allocations if a.key not in chosen))
    if total.alive:
        progress(total)
    hidden = _hidden(engine, action, leaks)
    if hidden.failed:
        progress(hidden)
        total = _sum(total, hidden)
        leaks = [a for a in leaks if a not in hidden.failed]
    for cidr in dict.fromkeys(a.block for a in leaks):
        part = _release_block(engine, cidr, [a for a in leaks if a.block == cidr])
        progress(part)
        total = _sum(total, part)
    return total


def look_again(live: Live, action: Release) -> list[Allocation]:
    """Return which of a group are leaked on a live look."""
    group = action.group
    nodes = live.nodes({a.node for a in group.allocations if a.node})
    pods = live.workloads({a.pod for a in group.allocations if a.of_pod and not a.of_vm})
    return still_leaked(group, nodes, pods, action.rules)


def _hidden(engine: Engine, action: Release, leaks: Sequence[Allocation]) -> Released:
    """Return the leaks whose handle may also hold an address in a block that nobody can read: they stay.

    A pod that reports one of its two addresses may use both, so a handle is never returned in part (safety rule 3);
    here only the handle itself tells where its other addresses are.
    """
    if not action.unreadable:
        return Released()
    mine: dict[str, set[str]] = {}
    for allocation in leaks:
        mine.setdefault(allocation.clean_handle, set()).add(allocation.block)
    mine.pop("", None)
    unsure = set()
    try:
        snapshot = engine.store.read(*(HandleKey(handle) for handle in mine))
        for handle, blocks in mine.items():
            entry = snapshot.entry(HandleKey(handle))
            others = {str(cidr) for cidr in entry.value.counts()} - blocks if entry is not None else set()
            if entry is None or (others if action.blind else others & action.unreadable):
                unsure.add(handle)
    except IPAMError as error:
        return Released(failed=tuple(leaks), error=error)
    held = tuple(a for a in leaks if a.clean_handle in unsure)
    text = f"handle {sorted(unsure)[0]} may hold more in a block that cannot be read" if unsure else ""
    return Released(failed=held, error=StoreDamaged(text, hint="Repair or delete that block.") if held else None)


def _sum(one: Released, other: Released) -> Released:
    return Released(
        one.freed + other.freed,
        one.free + other.free,
        one.alive + other.alive,
        one.stale + other.stale,
        one.failed + other.failed,
        one.error or other.error,
    )


def _release_block(engine: Engine, cidr: str, leaks: Sequence[Allocation]) -> Released:
    """Release addresses of one block; those that were assigned anew meanwhile are left out, the rest goes (U9)."""
    network = parse_network(cidr)
    stale: list[Allocation] = []
    rest = list(leaks)
    try:
        for _ in range(STALE_ROUNDS):
            if not rest:
                return Released(stale=tuple(stale))
            try:
                unallocated = set(release_from_block(engine, network, [a.option() for a in rest]))
            except StaleError as error:
                log.info("block %s changed since it was looked at: %s", cidr, error)
                fresh = engine.store.read(BlockKey(network)).entry(BlockKey(network))
                changed = [a for a in rest if fresh is None or not _is_still(fresh.value, a)]
                stale += changed
                rest = [a for a in rest if a not in changed]
                continue
            free = tuple(a for a in rest if a.address in unallocated)
            freed = tuple(a for a in rest if a.address not in unallocated)
            return Released(freed=freed, free=free, stale=tuple(stale))
    except IPAMError as error:
        return Released(stale=tuple(stale), failed=tuple(rest), error=error)
    return Released(stale=tuple(stale), failed=tuple(rest), error=Conflict(str(BlockKey(network))))


def _is_still(block: Block, allocation: Allocation) -> bool:
    """Tell whether an ordinal still has the handle and the number that it was looked at with."""
    ordinal = allocation.key[1]
    attribute = block.attribute(ordinal)
    if attribute is None or attribute.cold:
        return block.sequence_of(ordinal) == allocation.sequence
    return attribute.clean_handle == allocation.clean_handle and block.sequence_of(ordinal) == allocation.sequence


# --- cooling addresses -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Thaw:
    """A block with addresses whose cooldown is over."""

    cidr: str
    revision: str
    config: IPAMConfig

    @property
    def key(self) -> tuple[str, str]:
        return "thaw", self.cidr


@dataclass(frozen=True, slots=True)
class Done:
    """What became of an action: nothing more to do, or an error. ``entry``: the object as it was found."""

    error: IPAMError | None = None
    entry: Entry | None = None
    gone: bool = False
    note: str = ""


def thaw(engine: Engine, action: Thaw) -> Done:
    """Free what has cooled down. A block that changed meanwhile is somebody else's work or next time's."""
    key = BlockKey(parse_network(action.cidr))
    try:
        entry = engine.store.read(key).entry(key)
        if entry is None:
            return Done(gone=True)
        collect_cold_addresses(engine, action.config, entry)
    except (Conflict, NotFound) as error:
        log.info("cooling addresses of block %s: %s", action.cidr, error)
        return Done()
    except IPAMError as error:
        return Done(error)
    return Done()


# --- blocks and nodes ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GiveBack:
    """An empty block that its host gives back. ``repair``: also when no affinity row says so (limit U27)."""

    cidr: str
    host: str
    block: Block
    repair: bool = False

    @property
    def key(self) -> tuple[str, str]:
        return "give-back", self.cidr


def give_back(engine: Engine, action: GiveBack) -> Done:
    """Release an empty block, and read whether it is gone: only then may it be forgotten (limit U27)."""
    network = parse_network(action.cidr)
    key = BlockKey(network)
    row = AffinityKey(BlockOwner(HOST, action.host), network)
    try:
        before = engine.store.read(key, row)
        if before.entry(key) is not None and before.entry(row) is None and not action.repair:
            return Done(entry=before.entry(key), note="no-affinity-row")
        release_block_affinity(engine, action.block, must_be_empty=True)
        entry = engine.store.read(key).entry(key)
    except BlockNotEmpty as error:
        return Done(error, note="not-empty")
    except IPAMError as error:
        return Done(error)
    return Done(entry=entry, gone=entry is None)


NOT_GONE = "not-gone"  #: a live look found the node, or could not tell


@dataclass(frozen=True, slots=True)
class ReleaseNode:
    """A node that is gone and holds nothing any more: its blocks go."""

    node: str

    @property
    def key(self) -> tuple[str, str]:
        return "node", self.node


def release_node(engine: Engine, live: Live, action: ReleaseNode) -> Done:
    """Release every empty block of a node that is still gone on a live look."""
    if not live.nodes([action.node])[action.node].gone:
        return Done(note=NOT_GONE)
    try:
        release_host_affinities(engine, BlockOwner(HOST, action.node), must_be_empty=True)
    except IPAMError as error:
        return Done(error)
    return Done()
