"""Documents as comma-separated values (RFC 4180): one row for each thing in them, whole numbers, a header first."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from typing import Any


def as_csv(value: Any) -> str:
    """Return a document as comma-separated values.

    A list makes a row of each item; of a mapping that holds lists of things the first such list does, and any other
    mapping is one row. Fields within fields are named with dots; lists of things inside a row are left out.
    """
    rows = [dict(_cells(item)) for item in _things(value)]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _things(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    if isinstance(value, Mapping):
        lists = [each for each in value.values() if _is_things(each)]
        if lists:
            return list(lists[0])
    return [value]


def _is_things(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, Mapping) for item in value)


def _cells(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _cells(item, f"{path}.{key}" if path else str(key))
    elif not _is_things(value):
        yield path or "value", _text(value)


def _text(value: Any) -> str:
    if value is None or value == {}:
        return ""
    if isinstance(value, list):
        return " ".join(_text(item) for item in value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
