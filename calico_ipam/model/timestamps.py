"""Times as they stand in documents: RFC 3339 UTC in whole seconds (datastore §2.8).

Inside the library a time is an integer of Unix nanoseconds: exact, comparable, and what sequence numbers start from.
"""

from __future__ import annotations

from datetime import UTC, datetime

from calico_ipam.errors import InvalidInput

SECOND = 1_000_000_000  # nanoseconds


def parse_time(text: str) -> int:
    """Return the Unix nanoseconds of an RFC 3339 time with any offset. Raises InvalidInput."""
    head, dot, tail = text.partition(".")
    fraction = ""
    if dot:
        digits = len(tail) - len(tail.lstrip("0123456789"))
        fraction, head = tail[:digits], head + tail[digits:]
    try:
        moment = datetime.fromisoformat(head)
    except ValueError:
        raise InvalidInput(f"invalid time: {text}", subject=text) from None
    if moment.tzinfo is None:
        raise InvalidInput(f"invalid time without an offset: {text}", subject=text)
    seconds = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // _ONE_SECOND
    return seconds * SECOND + int(fraction[:9].ljust(9, "0") or 0)


def format_time(nanoseconds: int) -> str:
    """Return the stored form of a time; the fraction of a second is dropped."""
    return datetime.fromtimestamp(nanoseconds // SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def format_attribute_time(nanoseconds: int) -> str:
    """Return a time as the free-text ``timestamp`` attribute holds it: ``2026-01-02 03:04:06.5 +0000 UTC``."""
    whole = datetime.fromtimestamp(nanoseconds // SECOND, UTC).strftime("%Y-%m-%d %H:%M:%S")
    fraction = f"{nanoseconds % SECOND:09d}".rstrip("0")
    return f"{whole}{'.' + fraction if fraction else ''} +0000 UTC"


def parse_attribute_time(text: str) -> int | None:
    """Return the Unix nanoseconds of a ``timestamp`` attribute, or None when it is not of that form."""
    parts = text.split(" ")
    if len(parts) < 3:
        return None
    offset = parts[2]
    try:
        return parse_time(f"{parts[0]}T{parts[1]}{offset[:3]}:{offset[3:]}")
    except InvalidInput:
        return None


_ONE_SECOND = datetime(1970, 1, 1, 0, 0, 1) - datetime(1970, 1, 1)
