"""Leftovers, and the memory of them: nothing is believed before it was seen twice, ten minutes apart. Values only."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

VETH, ROUTE, NETNS, CACHE, LOCK = "veth", "route", "netns", "cni-cache", "lock"
CONNTRACK, IPAM, VOLUME, SLICE = "conntrack", "ipam", "volume", "endpoint-slice"
KINDS = (VETH, ROUTE, NETNS, CACHE, LOCK, CONNTRACK, IPAM, VOLUME, SLICE)
#: kinds that ``--apply`` may name; the others are somebody else's to remove (ruling 8)
REMOVABLE = (VETH, ROUTE, NETNS, CONNTRACK)

#: seconds between the two looks
APART = 600.0
#: a record of something that was not looked for again is forgotten after so many seconds
FORGET = 86_400.0


@dataclass(frozen=True, slots=True)
class Residue:
    """One leftover. ``mark``: what makes it this very one: a link's index, a file's inode, a sequence number.

    ``detail`` is for people and may change between two looks; ``mark`` may not.
    """

    kind: str
    name: str
    mark: str
    detail: str = ""

    @property
    def key(self) -> tuple[str, str]:
        return self.kind, self.name


@dataclass(frozen=True, slots=True)
class Seen:
    """How often a leftover was seen. ``first`` and ``last``: seconds since the node started."""

    residue: Residue
    first: float
    last: float
    looks: int = 1

    @property
    def confirmed(self) -> bool:
        return self.looks > 1 and self.last - self.first >= APART


Memory = Mapping[tuple[str, str], Seen]


def observe(
    before: Memory, found: Iterable[Residue], judged: Collection[str], now: float
) -> dict[tuple[str, str], Seen]:
    """Return the memory after another look.

    The same again counts, anything else under its name begins anew, and what is not there any more is forgotten. A kind
    that could not be judged this time neither counts nor is forgotten, for a day.
    """
    after = {k: s for k, s in before.items() if k[0] not in judged and now - s.last < FORGET}
    for residue in found:
        known = before.get(residue.key)
        if known is not None and known.residue.mark == residue.mark:
            after[residue.key] = replace(known, residue=residue, last=now, looks=known.looks + 1)
        else:
            after[residue.key] = Seen(residue, now, now)
    return after


def document_of(memory: Memory, boot: str) -> dict[str, Any]:
    """Return the memory as its file holds it. ``boot``: which start of the node its times count from."""
    return {"schema": 1, "boot": boot, "seen": [asdict(seen) for seen in memory.values()]}


def loaded(text: str, boot: str) -> dict[tuple[str, str], Seen]:
    """Return a memory from the text of its file; an empty one when it is of another start, or damaged."""
    try:
        document = json.loads(text)
        if document["schema"] != 1 or document["boot"] != boot:
            return {}
        found = [_seen(item) for item in document["seen"]]
    except (ValueError, KeyError, TypeError):
        return {}
    return {seen.residue.key: seen for seen in found}


def _seen(item: Mapping[str, Any]) -> Seen:
    residue = Residue(**{name: str(item["residue"][name]) for name in ("kind", "name", "mark", "detail")})
    return Seen(residue, float(item["first"]), float(item["last"]), int(item["looks"]))
