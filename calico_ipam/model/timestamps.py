"""Times as they stand in documents: RFC 3339 UTC in whole seconds (datastore §2.8).

Inside the library a time is an integer of Unix nanoseconds: exact, comparable, and what sequence numbers start from.
"""

from __future__ import annotations

from datetime import UTC, datetime

from calico_ipam.errors import InvalidInput

SECOND = 1_000_000_000  # nanoseconds


def parse_time(text: str) -> int:
    """Return the Unix nanoseconds of an RFC 3339 time with any offset.

    Raises InvalidInput, also for a time that is not in the years 1 to 9999 of UTC: it could not be written again.
    """
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
    if not _FIRST_SECOND <= seconds <= _LAST_SECOND:
        raise InvalidInput(f"time out of range: {text}", subject=text)
    return seconds * SECOND + int(fraction[:9].ljust(9, "0") or 0)


def format_time(nanoseconds: int) -> str:
    """Return the stored form of a time; the fraction of a second is dropped."""
    return f"{_moment(nanoseconds).isoformat()}Z"


def format_attribute_time(nanoseconds: int) -> str:
    """Return a time as the free-text ``timestamp`` attribute holds it: ``2026-01-02 03:04:06.5 +0000 UTC``."""
    whole = _moment(nanoseconds).isoformat(" ")
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


def _moment(nanoseconds: int) -> datetime:
    # Not strftime: it writes the year 1, which is Go's zero time, with one digit.
    return datetime.fromtimestamp(nanoseconds // SECOND, UTC).replace(tzinfo=None)


_FIRST_SECOND = -62135596800  # 0001-01-01T00:00:00Z
_LAST_SECOND = 253402300799  # 9999-12-31T23:59:59Z
_ONE_SECOND = datetime(1970, 1, 1, 0, 0, 1) - datetime(1970, 1, 1)
