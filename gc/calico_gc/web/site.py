"""All pages of one view: which path shows what, and the HTML of it. Pure: nothing is read but the view."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from calico_gc.view import View
from calico_gc.web import rows, words
from calico_gc.web.cells import PAGE_CELLS, Charts, owner_of
from calico_gc.web.links import CANDIDATES, HANDLES, LOG, NODES, OVERVIEW, PROBLEMS, Links, ServerLinks, numbered, path

if TYPE_CHECKING:
    from jinja2 import Environment

#: lines of a table on one page
PAGE_ROWS = 200
#: lines of what the overview shows of a longer list
FEW = 10
NAVIGATION = (
    (OVERVIEW, "Pools"),
    (NODES, "Nodes"),
    (CANDIDATES, "Candidates"),
    (HANDLES, "Handles"),
    (LOG, "Actions"),
    (PROBLEMS, "Problems"),
)
FIND = "/find"


class NoSuchPage(Exception):
    """There is nothing at this path, or nothing any more."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page. ``body``: HTML of what stands below the navigation."""

    path: str
    title: str
    body: str


@dataclass(frozen=True, slots=True)
class Part:
    """One page of a long list, counted from 1."""

    items: Sequence[Any]
    number: int
    pages: int
    total: int
    base: str

    @property
    def first(self) -> int:
        return (self.number - 1) * PAGE_ROWS + 1

    def at(self, number: int) -> str:
        return numbered(self.base, number)


def part(items: Sequence[Any], number: int, base: str) -> Part:
    """Return one page of a list. Raises NoSuchPage when it ends before."""
    pages = max(1, -(-len(items) // PAGE_ROWS))
    if not 1 <= number <= pages:
        raise NoSuchPage(f"page {number} of {pages}")
    start = (number - 1) * PAGE_ROWS
    return Part(items[start : start + PAGE_ROWS], number, pages, len(items), base)


def templates() -> Environment:
    """Return what makes HTML of values; text is escaped everywhere. Costs some milliseconds: keep it."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("calico_gc.web"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        auto_reload=False,
    )
    made.filters |= {
        "count": words.count,
        "duration": words.duration,
        "time": words.clock_time,
        "sentence": words.sentence,
        "short": words.short,
        "deed": words.deed,
        "remark": words.remark,
    }
    made.globals |= {"share": words.share, "path": path}
    return made


class Site:
    """The pages of one view. ``origin``: what the numbers are from, for the headline."""

    def __init__(self, view: View, made: Environment, links: Links | None = None, *, origin: str = "calico-gc") -> None:
        self.view = view
        self.links: Links = links if links is not None else ServerLinks()
        self.origin = origin
        self._templates = made

    # --- what several pages need, made once ------------------------------------------------------------------

    @cached_property
    def charts(self) -> Charts:
        return Charts(self.view)

    @cached_property
    def nodes(self) -> list[rows.NodeRow]:
        return rows.node_rows(self.view)

    @cached_property
    def nodes_by_name(self) -> Mapping[str, rows.NodeRow]:
        return {row.name: row for row in self.nodes}

    @cached_property
    def blocks_of(self) -> Mapping[str, list[str]]:
        """Node -> blocks that are its, or that hold an address of it."""
        found: dict[str, list[str]] = {}
        for cidr, tracked in self.view.blocks.items():
            for name in {tracked.host, *tracked.tally}:
                found.setdefault(name, []).append(cidr)
        return found

    @cached_property
    def candidates(self) -> list[rows.Candidate]:
        return rows.candidates(self.view)

    # --- pages -----------------------------------------------------------------------------------------------

    def page(self, target: str, query: Mapping[str, str] | None = None) -> Page:
        """Return the page at a path, for instance ``/block/10.0.0.0/26``. Raises NoSuchPage."""
        asked = query or {}
        number = _number(asked.get("page", "1"))
        if target == FIND:
            return self._find(asked.get("q", ""))
        fixed: Mapping[str, Callable[[int], Page]] = {
            OVERVIEW: self._overview,
            NODES: self._nodes,
            CANDIDATES: self._candidates,
            HANDLES: self._handles,
            LOG: self._log,
            PROBLEMS: self._problems,
        }
        if target in fixed:
            return fixed[target](number)
        kind, _, name = target.lstrip("/").partition("/")
        about: Mapping[str, Callable[[str, int], Page]] = {"pool": self._pool, "block": self._block, "node": self._node}
        if kind not in about or not name:
            raise NoSuchPage(target)
        return about[kind](unquote(name), number)

    def document(self, page: Page) -> str:
        """Return a page as a whole document."""
        return self.render("document.html.j2", page=page, navigation=NAVIGATION)

    def render(self, template: str, **values: Any) -> str:
        made = self._templates.get_template(template)
        return made.render(
            view=self.view, site=self, links=self.links, to=self.links.to, origin=self.origin, find=FIND, **values
        )

    def style(self) -> str:
        return self._templates.get_template("style.css").render()

    def script(self) -> str:
        return self._templates.get_template("keys.js").render()

    def policy(self) -> str:
        """Return the Content-Security-Policy of a document: its own style and script, nothing from anywhere."""
        style, script = (_digest(text) for text in (self.style(), self.script()))
        return (
            f"default-src 'none'; style-src '{style}'; script-src '{script}'; img-src data:; form-action 'self'; "
            "base-uri 'none'; frame-ancestors 'none'"
        )

    def paths(self) -> Iterator[tuple[str, int]]:
        """Yield path and page number of every page there is, the search aside; the overview comes last."""
        for cidr in self.view.blocks:
            yield path("block", cidr), 1
        for row in self.nodes:
            yield path("node", row.name), 1
        for chart in self.charts.charts():
            for number in range(1, chart.pages + 1):
                yield path("pool", chart.name), number
        lists: Mapping[str, Sequence[Any]] = {
            NODES: self.nodes,
            CANDIDATES: self.candidates,
            HANDLES: rows.handle_rows(self.view.handles) if self.view.handles else (),
            LOG: self.view.actions,
            PROBLEMS: self._all_problems(),
        }
        for base, items in lists.items():
            for number in range(1, max(1, -(-len(items) // PAGE_ROWS)) + 1):
                yield base, number
        yield OVERVIEW, 1

    # --- one page each ---------------------------------------------------------------------------------------

    def _made(self, target: str, title: str, template: str, **values: Any) -> Page:
        return Page(target, title, self.render(template, **values))

    def _overview(self, number: int) -> Page:
        if number != 1:
            raise NoSuchPage(OVERVIEW)
        charts = self.charts.charts()
        return self._made(
            OVERVIEW,
            "Pools",
            "overview.html.j2",
            charts=charts,
            totals=self._totals(),
            state=_state_of(self.view),
            candidates=self.candidates[:FEW],
            actions=list(reversed(self.view.actions))[:FEW],
            problems=self._all_problems()[:FEW],
        )

    def _totals(self) -> Mapping[str, int]:
        suspects = self.view.suspects.values()
        return {
            "held": sum(fill.held for fill in self.charts.fills.values()),
            "cooling": sum(fill.cooling for fill in self.charts.fills.values()),
            "candidates": sum(s.candidate for s in suspects),
            "confirmed": sum(s.confirmed for s in suspects),
            "reclaimed": sum(self.view.counts.reclaimed.values()),
            "gone": sum(row.standing.startswith("gone") for row in self.nodes),
        }

    def _pool(self, name: str, number: int) -> Page:
        try:
            chart = self.charts.chart(name)
        except KeyError:
            raise NoSuchPage(f"pool {name}") from None
        if not 1 <= number <= chart.pages:
            raise NoSuchPage(f"page {number} of pool {name}")
        cells = chart.page(number)
        blocks = [rows.block_row(self.view, c, self.charts.suspected) for cell in cells for c in cell.claimed]
        base = path("pool", name)
        shown = Part(cells, number, chart.pages, chart.places, base)
        first = (number - 1) * PAGE_CELLS + 1
        title = f"Pool {name}" if chart.pool is not None else chart.title.capitalize()
        return self._made(
            numbered(base, number), title, "pool.html.j2", chart=chart, shown=shown, blocks=blocks, first=first
        )

    def _block(self, cidr: str, number: int) -> Page:
        if number != 1:
            raise NoSuchPage(f"page {number} of block {cidr}")
        tracked = self.view.blocks.get(cidr)
        if tracked is None:
            if cidr in self.view.damaged:
                return self._made(path("block", cidr), f"Block {cidr}", "damaged.html.j2", cidr=cidr)
            raise NoSuchPage(f"block {cidr}")
        found = rows.addresses(self.view, tracked)
        return self._made(
            path("block", cidr),
            f"Block {cidr}",
            "block.html.j2",
            tracked=tracked,
            row=rows.block_row(self.view, cidr, self.charts.suspected),
            owner=owner_of(tracked),
            pool=self.view.pool_of.get(cidr, ""),
            found=found,
            lines=rows.folded(found),
        )

    def _nodes(self, number: int) -> Page:
        return self._made(numbered(NODES, number), "Nodes", "nodes.html.j2", shown=part(self.nodes, number, NODES))

    def _node(self, name: str, number: int) -> Page:
        row = self.nodes_by_name.get(name)
        if row is None:
            raise NoSuchPage(f"node {name}")
        view = self.view
        mine = self.blocks_of.get(name, [])
        blocks = [rows.block_row(view, cidr, self.charts.suspected) for cidr in mine]
        suspects = [c for c in self.candidates if c.node == name] if row.suspected else []
        base = path("node", name)
        return self._made(
            numbered(base, number),
            f"Node {name}",
            "node.html.j2",
            row=row,
            shown=part(blocks, number, base),
            tallies={cidr: view.blocks[cidr].tally.get(name, 0) for cidr in mine},
            candidates=suspects[:PAGE_ROWS],
            more=len(suspects) > PAGE_ROWS,
        )

    def _candidates(self, number: int) -> Page:
        shown = part(self.candidates, number, CANDIDATES)
        return self._made(numbered(CANDIDATES, number), "Candidates", "candidates.html.j2", shown=shown)

    def _handles(self, number: int) -> Page:
        look = self.view.handles
        shown = part(rows.handle_rows(look) if look is not None else (), number, HANDLES)
        return self._made(numbered(HANDLES, number), "Handles", "handles.html.j2", look=look, shown=shown)

    def _log(self, number: int) -> Page:
        shown = part(list(reversed(self.view.actions)), number, LOG)
        return self._made(numbered(LOG, number), "Actions", "log.html.j2", shown=shown)

    def _problems(self, number: int) -> Page:
        shown = part(self._all_problems(), number, PROBLEMS)
        return self._made(numbered(PROBLEMS, number), "Problems", "problems.html.j2", shown=shown)

    def _all_problems(self) -> list[tuple[str, str, str, str]]:
        """Return (kind, subject, text, since) of all that a person should know."""
        view = self.view
        found = [("damaged", name, why, "") for name, why in sorted(view.damaged.items())]
        found += [
            (
                "failing",
                f"{kind} {subject}",
                f"{words.attempt(kind)} {subject} failed {times} time{'' if times == 1 else 's'} in a row",
                "",
            )
            for (kind, subject), times in sorted(view.failing.items())
        ]
        return found + [(f.kind, f.subject, f.detail, words.clock_time(f.first.wall)) for f in view.findings]

    def _find(self, wanted: str) -> Page:
        found = list(islice(rows.matching(self.view, wanted), PAGE_ROWS + 1))
        lines = [
            (tracked.cidr, next(a for a in rows.addresses(self.view, tracked) if a.ordinal == allocation.key[1]))
            for tracked, allocation in found[:PAGE_ROWS]
        ]
        block = next((c for c in (wanted.strip(),) if c in self.view.blocks), "")
        return self._made(
            FIND, "Search", "find.html.j2", wanted=wanted, lines=lines, block=block, more=len(found) > PAGE_ROWS
        )


def _number(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise NoSuchPage(f"page {text}")
    return int(text)


def _state_of(view: View) -> list[tuple[str, str]]:
    """Return what the collector is up to, as (how good, sentence); the first says why nothing is done, if so."""
    said: list[tuple[str, str]] = []
    if not view.ready:
        said.append(("bad", "The datastore is locked (datastoreReady is false): nothing is looked at or released."))
    if not view.in_sync:
        said.append(("warn", "Not everything has been listed yet: nothing is released until it is."))
    if not view.leader:
        said.append(("warn", "Another instance is the leader: this one only watches."))
    if view.options.dry_run:
        said.append(("warn", "This is a dry run: what would be done is shown, nothing is written."))
    grace = view.options.rules.leak_grace
    if not grace:
        why = "is absent" if grace is None else "is 0"
        said.append(("warn", f"The leak grace period {why}: addresses of pods on live nodes are not released."))
    return said or [("good", "Everything is in sight and the collector may act.")]


def _digest(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"
