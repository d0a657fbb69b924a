"""The map of a pool: one cell for each block, or for each run of neighbouring blocks (values only)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from zlib import crc32

from calico_gc.facts import Tracked
from calico_gc.pools import NO_POOL, KnownPool
from calico_gc.view import View
from calico_ipam.model.addresses import Network, make_network

#: cells of one page of a map
PAGE_CELLS = 1024
#: a pool is drawn with the places that nobody claimed as long as these are at most so many times the blocks
SPARSE = 8
#: owners share so many colours; the name under the pointer and in the list tells them apart
HUES = 12
#: no name of a node, so that none can be taken for one
NOBODY, VIRTUAL, SEVERAL = "(nobody)", "virtual:", "(several)"


@dataclass(frozen=True, slots=True)
class Fill:
    """Addresses by state. ``held`` counts the suspected ones too."""

    size: int = 0
    held: int = 0
    cooling: int = 0
    suspected: int = 0

    @property
    def level(self) -> int:
        """0: nothing is taken; 1 to 5: up to a fifth, … up to all."""
        taken = self.held + self.cooling
        return min(5, -(-5 * taken // self.size)) if self.size else 0


def hue(owner: str) -> int:
    """Return the colour of an owner: always the same for the same name."""
    return crc32(owner.encode()) % HUES


@dataclass(frozen=True, slots=True)
class Cell:
    """``name``: the block, or first and last of a run. ``claimed``: blocks in it, of ``places``."""

    name: str
    places: int
    claimed: tuple[str, ...]
    owners: tuple[str, ...]  #: hosts, ``(nobody)`` or ``virtual:…``
    fill: Fill
    damaged: bool = False

    @property
    def owner(self) -> str:
        """The one owner, or what there is instead of one; empty when nothing is claimed."""
        return self.owners[0] if len(self.owners) == 1 else SEVERAL if self.owners else ""

    @property
    def marks(self) -> str:
        """Classes of the cell: how full it is, whose it is, and what is odd about it."""
        if not self.claimed:
            return "bad" if self.damaged else "none"
        marks = [f"f{self.fill.level}", _colour(self.owner)]
        marks += ["sus"] if self.fill.suspected else []
        marks += ["cold"] if self.fill.cooling else []
        marks += ["bad"] if self.damaged else []
        return " ".join(marks)

    @property
    def title(self) -> str:
        """What is said about the cell when it is pointed at."""
        if not self.claimed:
            return f"{self.name}: " + ("cannot be read" if self.damaged else "not claimed")
        fill = self.fill
        parts = [f"{fill.held} of {fill.size} held"]
        parts += [f"{fill.suspected} suspected"] if fill.suspected else []
        parts += [f"{fill.cooling} cooling"] if fill.cooling else []
        whose = f"{len(self.owners)} owners" if self.owner == SEVERAL else self.owner
        blocks = f", {len(self.claimed)} of {self.places} blocks claimed" if self.places > 1 else ""
        return f"{self.name}: {', '.join(parts)}{blocks}, {whose}"


def _colour(owner: str) -> str:
    if owner.startswith(VIRTUAL):
        return "virtual"
    return {NOBODY: "nobody", SEVERAL: "several"}.get(owner) or f"o{hue(owner)}"


def owner_of(tracked: Tracked) -> str:
    """Return whose a block is, for people."""
    if tracked.host:
        return tracked.host
    owner = tracked.block.owner
    return f"{VIRTUAL}{owner.host}" if owner is not None else NOBODY


class Charts:
    """All maps of a view; counted once."""

    def __init__(self, view: View) -> None:
        self.view = view

    @cached_property
    def suspected(self) -> Mapping[str, int]:
        """Block -> addresses in it that look leaked."""
        found: dict[str, int] = {}
        for block, _ in self.view.suspects:
            found[block] = found.get(block, 0) + 1
        return found

    @cached_property
    def fills(self) -> Mapping[str, Fill]:
        """Block -> how full it is."""
        return {cidr: self._fill(tracked) for cidr, tracked in self.view.blocks.items()}

    def _fill(self, tracked: Tracked) -> Fill:
        cooling = tracked.block.cooling if tracked.cold_since is not None else 0
        return Fill(tracked.block.size, tracked.used - cooling, cooling, self.suspected.get(tracked.cidr, 0))

    @cached_property
    def members(self) -> Mapping[str, list[str]]:
        """Pool -> its blocks in the order of addresses; ``no_ippool`` holds those of no pool."""
        found: dict[str, list[str]] = {name: [] for name in self.view.pools}
        for cidr, pool in self.view.pool_of.items():
            if cidr in self.view.blocks:
                found.setdefault(pool, []).append(cidr)
        for blocks in found.values():
            blocks.sort(key=self._position)
        return found

    def _position(self, cidr: str) -> tuple[int, int, int]:
        network = self.view.blocks[cidr].block.cidr
        return network.version, int(network.network_address), network.prefixlen

    def chart(self, pool: str) -> Chart:
        """Return the map of a pool. Raises KeyError for a pool that is not there."""
        return Chart(self, pool, self.view.pools.get(pool), self.members[pool])

    def charts(self) -> list[Chart]:
        """Return the maps of all pools, blocks without a pool last."""
        names = sorted(self.view.pools) + [n for n in sorted(self.members) if n not in self.view.pools]
        return [self.chart(name) for name in names]


@dataclass(frozen=True)
class Chart:
    """One pool as a row of places. ``pool`` is None for blocks that no pool covers."""

    of: Charts
    name: str
    pool: KnownPool | None
    blocks: Sequence[str]

    @property
    def title(self) -> str:
        return "blocks without a pool" if self.pool is None and self.name == NO_POOL else self.name

    @cached_property
    def dense(self) -> bool:
        """Whether places that nobody claimed are drawn too; else the map would hold little more than these."""
        return self.pool is not None and self._even and self.every_place <= max(PAGE_CELLS, SPARSE * len(self.blocks))

    @cached_property
    def every_place(self) -> int:
        """Number of blocks that fit into the pool; of no pool: those that are there."""
        if self.pool is None:
            return len(self.blocks)
        return 1 << max(0, self.pool.block_size - self.pool.cidr.prefixlen)

    @cached_property
    def _even(self) -> bool:
        """All blocks have the pool's own block size, so that each has its place."""
        return self.pool is not None and all(
            self.of.view.blocks[c].block.cidr.prefixlen == self.pool.block_size for c in self.blocks
        )

    @cached_property
    def places(self) -> int:
        return self.every_place if self.dense else len(self.blocks)

    @property
    def pages(self) -> int:
        return max(1, -(-self.places // PAGE_CELLS))

    @cached_property
    def fill(self) -> Fill:
        """All addresses of the pool, those of blocks that nobody claimed included."""
        fill = _sum(self.of.fills[cidr] for cidr in self.blocks)
        size = self.pool.size if self.pool is not None else fill.size
        return Fill(size, fill.held, fill.cooling, fill.suspected)

    def run(self) -> int:
        """Return how many places a cell of the whole map stands for, so that it has one page at most."""
        run = 1
        while -(-self.places // run) > PAGE_CELLS:
            run *= 2
        return run

    def overview(self) -> list[Cell]:
        """Return the whole map in at most one page of cells."""
        return list(self._cells(0, self.places, self.run()))

    def page(self, number: int) -> list[Cell]:
        """Return one page of the map, a cell for each place; pages count from 1."""
        start = (number - 1) * PAGE_CELLS
        return list(self._cells(start, min(self.places, start + PAGE_CELLS), 1))

    def page_of(self, place: int) -> int:
        return place // PAGE_CELLS + 1

    def _cells(self, start: int, end: int, run: int) -> Iterator[Cell]:
        pool = self.pool if self.dense else None
        networks = {cidr: self.of.view.blocks[cidr].block.cidr for cidr in self.blocks}
        by_place = {_place(pool, network): cidr for cidr, network in networks.items()} if pool is not None else {}
        for first in range(start, end, run):
            places = range(first, min(first + run, end))
            if pool is None:
                there = names = [self.blocks[place] for place in places]
            else:
                names = [str(_network(pool, place)) for place in (places[0], places[-1])]
                there = [by_place[place] for place in places if place in by_place]
            yield self._cell(names, there, len(places))

    def _cell(self, names: Sequence[str], there: Sequence[str], places: int) -> Cell:
        view = self.of.view
        owners = tuple(dict.fromkeys(owner_of(view.blocks[cidr]) for cidr in there))
        name = names[0] if places == 1 else f"{names[0]} to {names[-1]}"
        fill = _sum(self.of.fills[cidr] for cidr in there)
        if places > 1 and there:  # what nobody claimed is free: a run is as full as its addresses
            fill = Fill(fill.size * places // len(there), fill.held, fill.cooling, fill.suspected)
        damaged = names[0] in view.damaged if places == 1 else any(view.blocks[c].block.problems for c in there)
        return Cell(name, places, tuple(there), owners, fill, damaged)


def _place(pool: KnownPool, block: Network) -> int:
    return (int(block.network_address) - int(pool.cidr.network_address)) >> (block.max_prefixlen - pool.block_size)


def _network(pool: KnownPool, place: int) -> Network:
    base = int(pool.cidr.network_address) + (place << (pool.cidr.max_prefixlen - pool.block_size))
    return make_network(pool.cidr.version, base, pool.block_size)


def _sum(fills: Iterable[Fill]) -> Fill:
    size = held = cooling = suspected = 0
    for fill in fills:
        size += fill.size
        held += fill.held
        cooling += fill.cooling
        suspected += fill.suspected
    return Fill(size, held, cooling, suspected)
