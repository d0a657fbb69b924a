"""Compares what was recorded with what ours gives; placeholders of the recording stand for what differs on each run.

Within one case equal placeholders mean equal values (README of the recordings, "Placeholders").
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_PLACEHOLDER = re.compile(r"\{[A-Z0-9_]+(?:\+\d+)?\}")
_SEQUENCE = re.compile(r"\{SEQ\+(\d+)\}")

#: What a volatile placeholder may stand for. Those ending in a number keep their value through a case.
VOLATILE: Mapping[str, str] = {
    "MAC": r"[0-9a-f]{2}(?::[0-9a-f]{2}){5}",
    "LL": r"fe80::[0-9a-f:]+",
    "UID": r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    "TIME": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ",
    "TIMESTAMP": r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,9})? \+0000 UTC",
    "IFINDEX": r"\d+",
    "STACK": r"[\s\S]*",
    "PTR": r"0x[0-9a-f]+",
    "LOG": r"[\s\S]+",
}


class Any_:
    """Stands in an expectation for a value that is not compared."""

    def __repr__(self) -> str:
        return "ANY"


ANY = Any_()


class Matcher:
    """Holds what the placeholders of one case stand for. ``inputs``: those that were chosen, without braces."""

    def __init__(self, inputs: Mapping[str, str]) -> None:
        self.inputs = dict(inputs)
        self._bound: dict[str, str] = {}
        self._sequences: dict[str, int] = {}

    def filled(self, value: Any) -> Any:
        """Return a recorded input with the chosen values in place of its placeholders."""
        if isinstance(value, str):
            return _PLACEHOLDER.sub(lambda found: self.inputs.get(found[0][1:-1], found[0]), value)
        if isinstance(value, list):
            return [self.filled(item) for item in value]
        if isinstance(value, dict):
            return {self.filled(key): self.filled(item) for key, item in value.items()}
        return value

    def differences(self, expected: Any, actual: Any, where: str) -> list[str]:
        """Return one line for each place where ``actual`` is not what was recorded."""
        if expected is ANY:
            return []
        if isinstance(expected, str) and (found := _SEQUENCE.fullmatch(expected)):
            return self._sequence(int(found[1]), actual, where)
        if isinstance(expected, str) and isinstance(actual, str):
            return [] if self._text(expected, actual) else [f"{where}: recorded {expected!r}, ours {actual!r}"]
        if isinstance(expected, Mapping) and isinstance(actual, Mapping):
            return self._mapping(expected, actual, where)
        if isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
            pairs = zip(expected, actual, strict=True)
            return [line for i, (e, a) in enumerate(pairs) for line in self.differences(e, a, f"{where}[{i}]")]
        if type(expected) is type(actual) and expected == actual:
            return []
        return [f"{where}: recorded {expected!r}, ours {actual!r}"]

    def _mapping(self, expected: Mapping[str, Any], actual: Mapping[str, Any], where: str) -> list[str]:
        names = {self.filled(key): key for key in expected}
        lines = [
            f"{where}: ours lacks {name}" for name in names if name not in actual and expected[names[name]] is not ANY
        ]
        lines += [f"{where}: only ours has {name}: {actual[name]!r}" for name in actual if name not in names]
        for name, key in names.items():
            if name in actual:
                lines += self.differences(expected[key], actual[name], f"{where}.{name}")
        return lines

    def _sequence(self, above: int, actual: Any, where: str) -> list[str]:
        """A sequence number is told as its distance from the lowest one of its block (``where`` names the block)."""
        if not isinstance(actual, int) or isinstance(actual, bool):
            return [f"{where}: recorded a sequence number, ours {actual!r}"]
        block = where.partition(".sequenceNumber")[0].partition("datastore_changed.")[2]
        base = self._sequences.setdefault(block, actual - above)
        if actual - base == above:
            return []
        return [f"{where}: recorded {above} above the block's first number, ours {actual - base}"]

    def _text(self, expected: str, actual: str) -> bool:
        """Tell whether a text is the recorded one, and remember what its placeholders stand for."""
        pattern, names, at = "", [], 0
        for found in _PLACEHOLDER.finditer(expected):
            pattern += re.escape(expected[at : found.start()])
            at = found.end()
            name = found[0][1:-1]
            kind = name.rstrip("0123456789")
            if name in self.inputs:
                pattern += re.escape(self.inputs[name])
            elif name in self._bound:
                pattern += re.escape(self._bound[name])
            elif name in names:
                pattern += f"(?P={name})"
            elif kind in VOLATILE and kind != name:
                pattern += f"(?P<{name}>{VOLATILE[kind]})"
                names.append(name)
            elif kind in VOLATILE:
                pattern += f"(?:{VOLATILE[kind]})"
            else:
                pattern += re.escape(found[0])
        match = re.fullmatch(pattern + re.escape(expected[at:]), actual)
        if match is None:
            return False
        self._bound.update({name: match[name] for name in names})
        return True
