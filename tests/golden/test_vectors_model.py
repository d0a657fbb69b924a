"""Replays the recorded tables of functions that need no store (``library/vectors``), every row of every file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from calico_ipam.errors import IPAMError
from tests.golden.exceptions import EXCEPTIONS, Exception_, Row
from tests.golden.library_compare import differences, error_differences
from tests.golden.vector_rows import TABLES, Table
from tests.shared import golden, recordings

FOLDER = golden("library/vectors")

#: tables of the stored form of keys and values; tests/golden/test_vectors_encoding.py replays them
CODEC_TABLES = frozenset({"affinity-list-prefix", "affinity-values", "block-roundtrip", "key-paths"})

#: fields of a file beside its rows
FILE_FIELDS = {"name", "about", "spec", "rows", "label_maps"}


def row_differences(recorded: Row, table: Table, ours: dict[str, Any]) -> list[str]:
    """Return how the fields that ours gives differ from those that are recorded; none may be missing or unknown."""
    expected = {field: value for field, value in recorded.items() if field not in table.inputs}
    found = []
    for field in sorted({*expected, *ours}):
        if field not in ours or field not in expected:
            found.append(f"{field}: {'not given by ours' if field in expected else 'not recorded'}")
            continue
        wanted, given = expected[field], ours[field]
        if isinstance(given, IPAMError) and isinstance(wanted, str):
            wanted, given = wanted, str(given)
        if isinstance(given, IPAMError) or (isinstance(wanted, dict) and field == "error"):
            found += _errors(wanted, given)
        else:
            found += differences(wanted, given, field)
    return found


def _errors(wanted: Any, given: Any) -> list[str]:
    if isinstance(wanted, dict) and wanted["type"] == "errors.ErrorValidation":
        wanted = {**wanted, "type": "*errors.errorString"}  # a refused argument, whatever upstream's class of it
    return error_differences(wanted, given)


def row_problems(name: str, row: Row, document: Row, exceptions: Iterable[Exception_]) -> list[str]:
    """Return what is wrong with ours for one row, exceptions considered; an exception without need is wrong too."""
    table = TABLES[name]
    ours = table.ours(row, document)
    found = row_differences(row, table, ours)
    applying = [exception for exception in exceptions if exception.where(name, row)]
    if not applying:
        return found
    if not found:
        return [f"exception {exception.limit} is not needed any more" for exception in applying]
    for exception in applying:
        row = exception.expect(row)
    return [f"in spite of an exception: {line}" for line in row_differences(row, table, ours)]


@pytest.mark.parametrize("path", recordings(FOLDER))
def test_vectors(path: Path) -> None:
    document = json.loads(path.read_text())
    name = document["name"]
    if name in CODEC_TABLES:
        return
    assert name in TABLES, f"{path} is a table that nobody replays"
    assert set(document) <= FILE_FIELDS, f"{path} has unknown fields {set(document) - FILE_FIELDS}"
    assert document["rows"], f"{path} has no rows"
    problems = [
        f"row {number}: {line}\n  {json.dumps(row, ensure_ascii=False)[:300]}"
        for number, row in enumerate(document["rows"])
        for line in row_problems(name, row, document, EXCEPTIONS)
    ]
    assert not problems, "\n".join(problems)


def test_an_exception_without_need_fails() -> None:
    row = {"host": "node-1", "seed": 568266919}
    needless = Exception_("L0", lambda name, _: name == "host-seed", "nothing", lambda r: r)
    assert row_problems("host-seed", row, {}, []) == []
    assert row_problems("host-seed", row, {}, [needless]) == ["exception L0 is not needed any more"]


def test_a_wrong_value_an_unknown_field_and_a_missing_one_fail() -> None:
    assert row_problems("host-seed", {"host": "node-1", "seed": 1}, {}, [])
    assert row_problems("host-seed", {"host": "node-1", "seed": 568266919, "new": 1}, {}, []) == [
        "new: not given by ours"
    ]
    assert row_problems("host-seed", {"host": "node-1"}, {}, []) == ["seed: not recorded"]


def test_an_exception_must_be_met_exactly() -> None:
    wrong = Exception_("L0", lambda name, _: name == "host-seed", "another number", lambda r: {**r, "seed": 7})
    assert row_problems("host-seed", {"host": "node-1", "seed": 1}, {}, [wrong])
