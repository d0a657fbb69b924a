"""Tables for people: fitted to the terminal, with colour where that helps. Scripts read calicoctl's (output.py)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from calico_ipam.ctl.output import Cell, Column, Row

_TONES: dict[str, dict[str, Any]] = {
    "": {},
    "bold": {"bold": True},
    "warn": {"fg": "yellow"},
    "alarm": {"fg": "red", "bold": True},
    "dim": {"dim": True},
}


def lines_for_people(columns: Sequence[Column], rows: Sequence[Row], width: int) -> list[str]:
    """Return the first of these that ``width`` columns hold: a box, a box without what is optional, bare columns, one
    paragraph a row. Cells are never broken: half an address is no address."""
    needed = [position for position, column in enumerate(columns) if not column.optional]
    for chosen, framed in ((range(len(columns)), True), (needed, True), (needed, False)):
        grid = [[_plain(row[position]) for position in chosen] for row in rows]
        heads = [columns[position] for position in chosen]
        widths = [max(width_of(head.header), *(width_of(line[i]) for line in grid), 0) for i, head in enumerate(heads)]
        if sum(widths) + (3 * len(widths) + 1 if framed else 2 * len(widths) - 2) <= width:
            cells = [[row[position] for position in chosen] for row in rows]
            return [*(_boxed if framed else _bare)(heads, cells, widths)]
    return [line for row in rows for line in _paragraph(columns, row, width)]


def _boxed(heads: Sequence[Column], rows: Sequence[Row], widths: Sequence[int]) -> Iterator[str]:
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    yield rule
    yield "|" + "|".join(f" {_cell(h.header, w, h, 'bold')} " for h, w in zip(heads, widths, strict=True)) + "|"
    yield rule
    for row in rows:
        cells = zip(row, widths, heads, strict=True)
        yield "|" + "|".join(f" {_cell(cell, width, head)} " for cell, width, head in cells) + "|"
    yield rule


def _bare(heads: Sequence[Column], rows: Sequence[Row], widths: Sequence[int]) -> Iterator[str]:
    yield "  ".join(_cell(h.header, w, h, "bold") for h, w in zip(heads, widths, strict=True)).rstrip()
    for row in rows:
        yield "  ".join(_cell(cell, w, h) for cell, w, h in zip(row, widths, heads, strict=True)).rstrip()


def _paragraph(columns: Sequence[Column], row: Row, width: int) -> Iterator[str]:
    """Yield a row as text: its first two cells, and under them the others with their headers, as many as fit."""
    yield click.style(" ".join(text for text in map(_plain, row[:2]) if text), bold=True)
    line, position = "", 0
    for column, cell in zip(columns[2:], row[2:], strict=True):
        text = _plain(cell)
        if not text or column.optional:
            continue
        part = width_of(column.header) + 1 + width_of(text)
        if line and position + 2 + part > width:
            yield line
            line, position = "", 0
        line += f"  {column.header} {_toned(text, cell)}"
        position += 2 + part
    if line:
        yield line


def _cell(cell: str | Cell, width: int, column: Column, tone: str = "") -> str:
    text = _plain(cell)
    gap = " " * (width - width_of(text))
    shown = _toned(text, cell, tone)
    return gap + shown if column.right else shown + gap


def _toned(text: str, cell: str | Cell, tone: str = "") -> str:
    style = _TONES[tone or getattr(cell, "tone", "")]
    return click.style(text, **style) if style and text else text


def _plain(cell: str | Cell) -> str:
    """Return the text of a cell, what would move the cursor written out: names come from elsewhere."""
    text = str(cell)
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def width_of(text: str) -> int:
    """Return how many columns a terminal needs for a text."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)
