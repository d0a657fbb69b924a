"""The last lines of a run over recorded library scenarios: replayed, excepted, pending (ruling 26)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable


def summary(properties: Iterable[tuple[str, str]]) -> list[str]:
    """Return the lines for what the replays recorded with ``record_property``."""
    replayed: set[str] = set()
    steps = 0
    pending: dict[str, set[str]] = defaultdict(set)
    excepted: Counter[str] = Counter()
    for name, value in properties:
        word, _, file = value.partition(" ")
        if name == "replayed":
            replayed.add(file)
            steps += int(word)
        elif name == "pending":
            pending[word].add(file)
        elif name == "excepted":
            excepted[word] += 1
    if not (replayed or pending):
        return []
    partly = {file for files in pending.values() for file in files} & replayed
    lines = [f"replayed: {len(replayed - partly)} files whole, {len(partly)} in part, {steps} steps"]
    lines += [f"excepted: {limit}: {number} steps" for limit, number in sorted(excepted.items(), key=_by_number)]
    lines += [f"pending: {what}: {len(files)} files" for what, files in sorted(pending.items())]
    return lines


def _by_number(item: tuple[str, int]) -> tuple[int, str]:
    limit, _ = item
    digits = limit.lstrip("L")
    return (int(digits) if digits.isdigit() else 1000, limit)
