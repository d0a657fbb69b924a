"""Where a link leads: to a path of the server, or to a section of the one file."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote

#: pages that are there in any case
OVERVIEW, NODES, CANDIDATES, HANDLES, LOG, PROBLEMS = "/", "/nodes", "/candidates", "/handles", "/log", "/problems"


def path(kind: str, name: str, number: int = 1) -> str:
    """Return the path of a page about one thing: ``/block/10.0.0.0/26``, ``/pool/default?page=2``."""
    return numbered(f"/{kind}/{quote(name, safe='/:')}", number)


def numbered(base: str, number: int) -> str:
    return base if number == 1 else f"{base}?page={number}"


class Links(Protocol):
    """Turns the path of a page into what stands in ``href``; None: there is nothing to lead to."""

    @property
    def live(self) -> bool:
        """Whether pages are fetched one by one, so that a search can be answered."""

    def to(self, target: str) -> str | None: ...


@dataclass(frozen=True, slots=True)
class ServerLinks:
    """``root``: what a proxy puts before every path."""

    root: str = ""
    live: bool = True

    def to(self, target: str) -> str | None:
        return self.root + target


@dataclass(frozen=True, slots=True)
class FileLinks:
    """``there``: the paths of the pages that the file holds."""

    there: Collection[str]
    live: bool = False

    def to(self, target: str) -> str | None:
        return f"#{section(target)}" if target in self.there else None


def section(target: str) -> str:
    """Return the name of the section that holds a page."""
    return "p" + re.sub(r"[^A-Za-z0-9.:-]", lambda found: f"_{ord(found[0]):x}_", target)
