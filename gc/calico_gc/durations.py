"""Durations as Go writes them, in both directions."""

from __future__ import annotations

import re

from calico_ipam.errors import InvalidInput

_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration(text: str) -> float:
    """Return the seconds of a duration such as ``15m0s``, ``1.5h`` or ``0``. Raises InvalidInput."""
    body = text.strip().removeprefix("+")
    if body == "0":
        return 0.0
    total, position = 0.0, 0
    for match in _PART.finditer(body):
        if match.start() != position:
            break
        total += float(match[1]) * _SECONDS[match[2]]
        position = match.end()
    if not body or position != len(body):
        raise InvalidInput(
            f"{text!r} is not a duration", subject=text, hint="Write a number and a unit: 90s, 15m or 1h30m."
        )
    return total


def format_duration(seconds: float) -> str:
    """Return a duration as Go prints it: ``15m0s``, ``1h0m5s``, ``500ms``."""
    if seconds == 0:
        return "0s"
    if 0 < seconds < 1:
        return f"{_trimmed(seconds * 1000)}ms" if seconds >= 0.001 else f"{_trimmed(seconds * 1e6)}µs"
    hours, rest = divmod(seconds, 3600)
    minutes, rest = divmod(rest, 60)
    text = f"{int(hours)}h" if hours else ""
    text += f"{int(minutes)}m" if hours or minutes else ""
    return f"{text}{_trimmed(rest)}s"


def _trimmed(number: float) -> str:
    return f"{number:.9f}".rstrip("0").rstrip(".") or "0"
