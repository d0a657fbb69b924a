"""All pages as one file that needs nothing else: each is a section, and the one that was asked for is shown.

Links between sections work without a script. The file is written piece by piece, so that a large cluster's costs
little memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from calico_gc.view import View
from calico_gc.web.links import OVERVIEW, FileLinks, numbered, path, section
from calico_gc.web.site import NAVIGATION, Site

if TYPE_CHECKING:
    from jinja2 import Environment

ALL_PAGES = tuple(path for path, _ in NAVIGATION)
#: blocks whose addresses one file holds at most; a browser still opens it in a few seconds
MOST_BLOCKS = 3000


@dataclass(frozen=True, slots=True)
class LeftOut:
    """``number`` blocks have no section of their own, ``kept`` have."""

    number: int
    kept: int


def one_file(
    view: View,
    made: Environment,
    *,
    origin: str = "calico-gc",
    most_blocks: int = MOST_BLOCKS,
    pages: Collection[str] = ALL_PAGES,
) -> Iterator[str]:
    """Yield the text of the file in pieces.

    Of more than ``most_blocks`` blocks those with suspected or cooling addresses, damage or emptiness come first; the
    others are on the maps and in the lists, but not opened into addresses, and the file says so. ``pages``: those of
    the navigation that there are to be.
    """
    links = FileLinks(frozenset())
    site = Site(view, made, links, origin=origin)
    left = [path for path in ALL_PAGES if path not in pages]
    every = [(target, number) for target, number in site.paths() if target not in left]
    opened = frozenset(
        path("block", cidr) for cidr in sorted(view.blocks, key=lambda c: _interest(view, site, c))[:most_blocks]
    )
    every = [(target, n) for target, n in every if not target.startswith("/block/") or target in opened]
    links = FileLinks(frozenset(numbered(target, number) for target, number in every))
    site.links = links
    missing = len(view.blocks) - len(opened)
    left_out = LeftOut(missing, len(opened)) if missing else None
    head = site.render(
        "one_file.html.j2",
        navigation=NAVIGATION,
        left_out=left_out,
        policy=site.policy().replace("frame-ancestors 'none'", ""),
    )
    yield head
    for target, number in every:
        page = site.page(target, {"page": str(number)})
        front = " front" if target == OVERVIEW else ""
        yield f'<section class="page{front}" id="{section(numbered(target, number))}">\n{page.body}</section>\n'
    yield f"</main>\n<script>{site.script()}</script>\n</body>\n</html>\n"


def _interest(view: View, site: Site, cidr: str) -> tuple[bool, bool, bool, bool, bool]:
    """Return what sorts blocks with something to tell before others."""
    tracked = view.blocks[cidr]
    return (
        not site.charts.suspected.get(cidr),
        not tracked.block.problems,
        tracked.cold_since is None,
        cidr not in view.empty,
        not tracked.allocations,
    )
