"""What ipamctl writes: tables, documents, notes.

Results go to standard output, notes and questions to standard error. A table on a terminal is made for people: whole
numbers, colour, fitted to the width. Anywhere else it is calicoctl's, since scripts read it (cli §3.1).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TextIO

import click

Format = str
FORMATS: tuple[Format, ...] = ("table", "wide", "json", "yaml", "csv", "name")

#: above this a whole number is harder to read than its size
_READABLE = 10**9


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its header, whether its cells stand at the right, and whether people can do without it."""

    header: str
    right: bool = False
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """Text with a meaning that colour may underline: ``""``, ``"warn"``, ``"alarm"``, ``"dim"``."""

    text: str
    tone: str = ""

    def __str__(self) -> str:
        return self.text


Row = Sequence[str | Cell]


def on_terminal() -> bool:
    """Tell whether a person reads standard output."""
    return _is_terminal(sys.stdout)


def errors_on_terminal() -> bool:
    """Tell whether a person reads standard error."""
    return _is_terminal(sys.stderr)


def can_ask() -> bool:
    """Tell whether a person can be asked: both the answer and the question need a terminal."""
    return _is_terminal(sys.stdin) and _is_terminal(sys.stderr)


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and not stream.closed and stream.isatty()


def can_write(text: str) -> bool:
    """Tell whether standard output can show all characters of a text."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def say(text: str = "") -> None:
    """Write a line of the result."""
    click.echo(text)


def counted(number: int, noun: str) -> str:
    """Return a number of things in words: ``1 block``, ``2 addresses``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{'es' if noun.endswith('s') else 's'}"


def say_first(lines: Sequence[str], most: int, noun: str = "") -> None:
    """Write the first lines of a list, and how many more there are."""
    for line in lines[:most]:
        say(line)
    if len(lines) > most:
        say(f"  … and {len(lines) - most} more{noun and ' ' + noun}")


def note(text: str, *, label: str = "note", color: bool | None = None) -> None:
    """Write a line beside the result, to standard error; ``color`` says whether in colour, else the terminal does."""
    colour = {"error": "red", "warning": "yellow"}.get(label, "cyan")
    if text.startswith(label):  # many of upstream's texts begin with "error" themselves
        label, text = text[: len(label)], text[len(label) :]
    else:
        label, text = f"{label}:", f" {text}"
    if errors_on_terminal() and "\n" not in text:
        text = paragraph(label + text, hanging=" " * 6).removeprefix(label)
    plain = bool(os.environ.get("NO_COLOR")) if color is None else not color
    click.echo((label if plain else click.style(label, fg=colour)) + text, err=True, color=color)


def document(value: Any, form: Format) -> None:
    """Write a value as JSON, YAML or CSV, the names in it, or what a path in it leads to."""
    if form == "name":
        for name in names_in(value):
            say(name)
        return
    if form.startswith("jsonpath="):
        from calico_ipam.ctl.jsonpath import find

        click.echo(find(value, form.removeprefix("jsonpath=")), nl=False)
        return
    if form == "csv":
        from calico_ipam.ctl.sheets import as_csv

        click.echo(as_csv(value), nl=False)
        return
    if form == "json":
        import json

        say(json.dumps(value, indent=2, ensure_ascii=False))
        return
    import yaml

    click.echo(yaml.safe_dump(value, sort_keys=False, allow_unicode=True), nl=False)


def names_in(value: Any) -> list[str]:
    """Return the names of the things in a document: of a list the one of each item, by the field that names it."""
    if isinstance(value, list):
        return [name for item in value for name in names_in(item)]
    if not isinstance(value, dict):
        return [str(value)]
    metadata = value.get("metadata")
    if isinstance(metadata, dict) and metadata.get("name"):
        return [str(metadata["name"])]
    for key in ("name", "ip", "cidr", "id", "subject"):
        if isinstance(value.get(key), str):
            return [value[key]]
    return [name for item in value.values() if isinstance(item, list) for name in names_in(item)]


def table(columns: Sequence[Column], rows: Sequence[Row], *, people: bool | None = None) -> None:
    """Write a table, for ``people`` or as calicoctl's; not said, standard output decides."""
    if on_terminal() if people is None else people:
        import shutil

        from calico_ipam.ctl.tables import lines_for_people

        say("\n".join(lines_for_people(columns, rows, shutil.get_terminal_size().columns)))
    else:
        say(plain_table(columns, rows))


def plain_table(columns: Sequence[Column], rows: Sequence[Row]) -> str:
    """Return calicoctl's table: headers left, cells as the column says, as wide as the longest cell."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(c.header), *(len(row[i]) for row in texts), 0) for i, c in enumerate(columns)]
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    header = "|" + "|".join(f" {c.header:<{w}} " for c, w in zip(columns, widths, strict=True)) + "|"
    lines = [rule, header, rule]
    for row in texts:
        cells = zip(row, columns, widths, strict=True)
        lines.append("|" + "|".join(f" {t:>{w}} " if c.right else f" {t:<{w}} " for t, c, w in cells) + "|")
    return "\n".join([*lines, rule])


def paragraph(text: str, *, indent: str = "", hanging: str | None = None) -> str:
    """Return text broken into lines that the terminal can hold, at most 80 columns; not at a no-break space.

    Every line is indented, those after the first by ``hanging``, or by two more when there is an ``indent``.
    """
    import shutil
    import textwrap

    width = max(30, min(80, shutil.get_terminal_size().columns))
    return textwrap.fill(
        text,
        width,
        break_on_hyphens=False,
        break_long_words=False,
        initial_indent=indent,
        subsequent_indent=hanging if hanging is not None else indent and indent + "  ",
    ).replace("\N{NO-BREAK SPACE}", " ")


# --- numbers -----------------------------------------------------------------------------------------------


def plain_share(number: int, whole: int) -> str:
    """Return a count and its share as calicoctl writes them: ``%.5g``, whole per cent."""
    return f"{number:.5g} ({100 * number / whole:.0f}%)"


def plain_count(number: int) -> str:
    """Return a count as calicoctl writes it."""
    return f"{number:.5g}"


def readable_count(number: int) -> str:
    """Return a whole number, or the size of one that nobody can read."""
    return str(number) if number < _READABLE else f"{number:.4g}"


def readable_share(number: int, whole: int) -> str:
    """Return a count and its share for people; 0 % means none and 100 % means all, never nearly."""
    tenths = round(1000 * number / whole)
    if number and tenths == 0:
        share = "<0.1%"
    elif number < whole and tenths == 1000:
        share = ">99.9%"
    elif number in (0, whole):
        share = f"{tenths // 10}%"
    else:
        share = f"{tenths / 10:.1f}%"
    return f"{readable_count(number)} ({share})"
