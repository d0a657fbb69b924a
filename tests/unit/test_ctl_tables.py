"""Tables for people: what fits is chosen, nothing is broken, names from elsewhere move no cursor."""

from __future__ import annotations

import re

import pytest

from calico_ipam.ctl.output import Cell, Column, Row
from calico_ipam.ctl.show import bar
from calico_ipam.ctl.tables import lines_for_people, width_of
from tests.ctl import plain

COLUMNS = [Column("NAME"), Column("CIDR"), Column("USED", right=True), Column("FILL", optional=True)]
ROWS: list[Row] = [["a", "10.0.0.0/16", Cell("5", "alarm"), "##"], ["long-name", "fd00::/48", "12345", "#."]]


def shown(width: int) -> list[str]:
    return plain("\n".join(lines_for_people(COLUMNS, ROWS, width))).split("\n")


@pytest.mark.parametrize(
    ("width", "lines"),
    [
        (
            43,
            [
                "+-----------+-------------+-------+------+",
                "| NAME      | CIDR        |  USED | FILL |",
                "+-----------+-------------+-------+------+",
                "| a         | 10.0.0.0/16 |     5 | ##   |",
                "| long-name | fd00::/48   | 12345 | #.   |",
                "+-----------+-------------+-------+------+",
            ],
        ),
        (
            41,
            [
                "+-----------+-------------+-------+",
                "| NAME      | CIDR        |  USED |",
                "+-----------+-------------+-------+",
                "| a         | 10.0.0.0/16 |     5 |",
                "| long-name | fd00::/48   | 12345 |",
                "+-----------+-------------+-------+",
            ],
        ),
        (
            34,
            [
                "NAME       CIDR          USED",
                "a          10.0.0.0/16      5",
                "long-name  fd00::/48    12345",
            ],
        ),
        (28, ["a 10.0.0.0/16", "  USED 5", "long-name fd00::/48", "  USED 12345"]),
    ],
)
def test_the_widest_form_that_fits(width: int, lines: list[str]) -> None:
    assert shown(width) == lines


def test_paragraphs_break_between_cells_only() -> None:
    columns = [Column(name) for name in ("A", "B", "CCC", "DDD", "EEE")]
    lines = lines_for_people(columns, [["x", "y", "1" * 9, "2" * 9, ""]], 24)
    assert plain("\n".join(lines)).split("\n") == ["x y", "  CCC 111111111", "  DDD 222222222"]


def test_names_from_elsewhere_move_no_cursor() -> None:
    lines = lines_for_people([Column("A")], [["a\x1b[2J\nb\u202e"]], 80)
    assert "| a\\x1b[2J\\nb\\u202e |" in lines


def test_wide_characters_keep_the_frame() -> None:
    lines = [plain(line) for line in lines_for_people([Column("A")], [["日本"], ["caf\u00e9"], ["cafe\u0301"]], 80)]
    assert {width_of(line) for line in lines} == {8}


def test_tones_are_colours() -> None:
    text = "\n".join(lines_for_people(COLUMNS, ROWS, 80))
    assert "\x1b[31m\x1b[1m5\x1b[0m" in text
    assert re.search("\x1b\\[1mNAME", text)


@pytest.mark.parametrize(
    ("part", "tenths"), [(0, 0), (1, 1), (15, 2), (50, 5), (94, 9), (99, 9), (100, 10), (5, 1), (55, 6)]
)
def test_a_bar_tells_none_and_all_apart_from_nearly(part: int, tenths: int) -> None:
    assert bar(part, 100).count(bar(1, 1)[0]) == tenths
    assert len(bar(part, 100)) == 10
