"""Times in documents (datastore §2.8)."""

from __future__ import annotations

import pytest

from calico_ipam.errors import InvalidInput
from calico_ipam.model.timestamps import (
    SECOND,
    format_attribute_time,
    format_time,
    parse_attribute_time,
    parse_time,
)

AT = 1767323045 * SECOND  # 2026-01-02T03:04:05Z


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("2026-01-02T03:04:05Z", AT),
        ("2026-01-02T03:04:05+00:00", AT),
        ("2026-01-02T05:04:05+02:00", AT),
        ("2026-01-01T22:34:05-04:30", AT),
        ("2026-01-02T03:04:05.25Z", AT + SECOND // 4),
        ("2026-01-02T03:04:05.123456789Z", AT + 123456789),
        ("2026-01-02T03:04:05.1234567891Z", AT + 123456789),
        ("2026-01-02T05:04:05.5+02:00", AT + SECOND // 2),
        ("1970-01-01T00:00:00Z", 0),
        ("0001-01-01T00:00:00Z", -62135596800 * SECOND),
    ],
)
def test_parse(text: str, nanoseconds: int) -> None:
    assert parse_time(text) == nanoseconds


@pytest.mark.parametrize("text", ["", "yesterday", "2026-01-02", "2026-01-02T03:04:05", "2026-13-02T03:04:05Z", "."])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="invalid time"):
        parse_time(text)


def test_the_fraction_is_dropped_when_stored() -> None:
    assert format_time(AT + SECOND - 1) == "2026-01-02T03:04:05Z"
    assert parse_time(format_time(AT + 7)) == AT


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (AT + 123456789, "2026-01-02 03:04:05.123456789 +0000 UTC"),
        (AT + SECOND // 2, "2026-01-02 03:04:05.5 +0000 UTC"),
        (AT + 10, "2026-01-02 03:04:05.00000001 +0000 UTC"),
        (AT, "2026-01-02 03:04:05 +0000 UTC"),
    ],
)
def test_attribute(nanoseconds: int, text: str) -> None:
    assert format_attribute_time(nanoseconds) == text
    assert parse_attribute_time(text) == nanoseconds


def test_attribute_of_another_zone_and_with_a_monotonic_reading() -> None:
    assert parse_attribute_time("2026-01-02 05:04:05 +0200 CEST m=+0.5") == AT


@pytest.mark.parametrize("text", ["", "x", "2026-01-02 03:04:05", "a b c d", "2026-01-02 03:04:05 UTC +0000"])
def test_attribute_of_another_form_is_none(text: str) -> None:
    assert parse_attribute_time(text) is None
