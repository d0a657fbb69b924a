"""The part of kubectl's JSONPath that people use: fields, indexes, slices, ``*``, ``..``, filters, ``range``, text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from calico_ipam.errors import InvalidInput

_STEP = re.compile(
    r"\.\.(?P<deep>[\w\\.\-/]+|\*)|\.(?P<field>(?:\\.|[^.\[\]{}\s])+)|"
    r"\[\?\(@(?P<path>[\w.\-]*)\s*(?P<op>==|!=|<=|>=|<|>)\s*(?P<value>[^)]+)\)\]|\[(?P<index>[^\]]*)\]"
)
_PIECE = re.compile(r"""\{((?:'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[^{}'"])*)\}""")


def find(value: Any, template: str) -> str:
    """Return what a template makes of a document. Raises InvalidInput for one that cannot be understood."""
    template = template if "{" in template else "{" + template + "}"
    return "".join(_rendered(value, value, _pieces(template)))


def _pieces(template: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    position = 0
    for match in _PIECE.finditer(template):
        if match.start() > position:
            found.append(("text", _text(template[position : match.start()])))
        found.append(("path", match.group(1).strip()))
        position = match.end()
    if position < len(template):
        found.append(("text", _text(template[position:])))
    return found


def _text(text: str) -> str:
    """Return text between expressions. Raises InvalidInput when an expression begins in it and never ends."""
    if "{" in text:
        raise InvalidInput(
            f"the expression {text[text.index('{') :]!r} of the jsonpath has no end", hint="Close it with }."
        )
    return text


def _unquoted(text: str) -> str:
    try:
        return text[1:-1].encode("latin-1", "backslashreplace").decode("unicode_escape")
    except UnicodeDecodeError:
        raise InvalidInput(f"{text} in the jsonpath holds a \\ that means nothing") from None


def _rendered(root: Any, here: Any, pieces: list[tuple[str, str]]) -> Iterator[str]:
    position = 0
    while position < len(pieces):
        kind, text = pieces[position]
        position += 1
        if kind == "text":
            yield text
        elif text.startswith("range"):
            inner, position = _until_end(pieces, position)
            for item in select(root, here, text.removeprefix("range").strip()):
                yield from _rendered(root, item, inner)
        elif text[:1] in ("'", '"'):
            yield _unquoted(text)
        else:
            yield " ".join(_shown(each) for each in select(root, here, text))


def _until_end(pieces: list[tuple[str, str]], start: int) -> tuple[list[tuple[str, str]], int]:
    depth = 0
    for position in range(start, len(pieces)):
        kind, text = pieces[position]
        if kind == "path" and text.startswith("range"):
            depth += 1
        elif kind == "path" and text == "end":
            if not depth:
                return pieces[start:position], position + 1
            depth -= 1
    raise InvalidInput("a range in the jsonpath has no end", hint="Close it with {end}.")


def select(root: Any, here: Any, path: str) -> list[Any]:
    """Return the values that a path leads to."""
    start = root if path.startswith("$") else here
    text = path.lstrip("$@")
    if text and text[0] not in ".[":
        text = f".{text}"
    found, position = [start], 0
    while position < len(text):
        match = _STEP.match(text, position)
        if match is None:
            raise InvalidInput(
                f"the jsonpath cannot be understood from {text[position:]!r} on",
                subject=path,
                hint="Examples: {.items[*].metadata.name}, {range .pools[*]}{.cidr}{'\\n'}{end}.",
            )
        found = [each for value in found for each in _step(value, match)]
        position = match.end()
    return found


def _step(value: Any, match: re.Match[str]) -> Iterator[Any]:
    if match["deep"] is not None:
        yield from _deep(value, match["deep"])
    elif match["field"] is not None:
        yield from _field(value, match["field"].replace("\\.", "."))
    elif match["op"] is not None:
        wanted = _literal(match["value"].strip())
        for item in _children(value):
            inner = select(item, item, match["path"]) if match["path"] else [item]
            if inner and _compared(inner[0], match["op"], wanted):
                yield item
    else:
        yield from _index(value, match["index"].strip())


def _field(value: Any, name: str) -> Iterator[Any]:
    if name == "*":
        yield from _children(value)
    elif isinstance(value, dict) and name in value:
        yield value[name]


def _index(value: Any, index: str) -> Iterator[Any]:
    if index == "*":
        yield from _children(value)
    elif index[:1] in ("'", '"'):
        yield from _field(value, index[1:-1])
    elif not re.fullmatch(r"(-?\d+)|(-?\d+)?:(-?\d+)?(:[1-9]\d*)?", index, re.ASCII):
        raise InvalidInput(
            f"[{index}] in the jsonpath is no index", hint="Examples: [0], [-1], [1:3], [*], ['name'], [?(@.a=='b')]."
        )
    elif isinstance(value, list):
        parts = [int(part) if part else None for part in index.split(":")]
        if len(parts) > 1:
            yield from value[slice(*parts)]
        elif parts[0] is not None and -len(value) <= parts[0] < len(value):
            yield value[parts[0]]


def _deep(value: Any, name: str) -> Iterator[Any]:
    yield from _field(value, name)
    for item in _children(value):
        yield from _deep(item, name)


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _literal(text: str) -> Any:
    if text[:1] in ("'", '"'):
        return text[1:-1]
    try:
        return json.loads(text)
    except ValueError:
        return text


def _compared(left: Any, operator: str, right: Any) -> bool:
    if operator in ("==", "!="):
        return bool((left == right) is (operator == "=="))
    try:
        order = {"<": left < right, ">": left > right, "<=": left <= right, ">=": left >= right}
    except TypeError:
        return False
    return bool(order[operator])


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
