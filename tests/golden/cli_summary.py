"""The last lines of a run over recorded operator commands: replayed, excepted, pending (ruling 26)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


def summary(properties: Iterable[tuple[str, str]]) -> list[str]:
    """Return the lines for what the replays recorded with ``record_property``."""
    found: dict[str, Counter[str]] = {"replayed": Counter(), "excepted": Counter(), "pending": Counter()}
    for name, value in properties:
        if name in found:
            found[name][value] += 1
    if not any(found.values()):
        return []
    replayed = found.pop("replayed")
    lines = [
        f"replayed: {replayed.total()} commands: " + ", ".join(f"{n} {what}" for what, n in replayed.most_common())
    ]
    lines += [f"{name}: {what}: {n} commands" for name, counts in found.items() for what, n in sorted(counts.items())]
    return lines
