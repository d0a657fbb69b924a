"""Report files that are none, or were damaged on the way: nothing is released by them (cli §5.2)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from calico_ipam.ctl.failures import Told
from calico_ipam.ctl.report import read


def refused(folder: Path, text: str) -> Told:
    (folder / "r.json").write_text(text)
    with pytest.raises(Told) as error:
        read(str(folder / "r.json"))
    return error.value


@pytest.mark.parametrize(
    ("text", "exact"),
    [
        ("", "unexpected end of JSON input"),
        ("hello", "invalid character 'h' looking for beginning of value"),
        ('{"a": 1}x', "invalid character 'x' after top-level value"),
        ("[]", "json: cannot unmarshal array into Go value of type ipam.CheckReport"),
        ('"text"', "json: cannot unmarshal string into Go value of type ipam.CheckReport"),
        (
            '{"allocations": []}',
            "json: cannot unmarshal array into Go struct field CheckReport.allocations of type "
            "map[string][]*ipam.Allocation",
        ),
    ],
)
def test_what_is_no_report(tmp_path: Path, text: str, exact: str) -> None:
    told = refused(tmp_path, text)
    assert told.exact == exact
    assert "is no report" in told.message
    assert "ipam check -o" in told.hint


def test_a_folder_is_no_report(tmp_path: Path) -> None:
    with pytest.raises(Told, match=r"^read .*: is a directory$"):
        read(str(tmp_path))


@pytest.mark.parametrize("number", [1.7557e18, -1, True, "5"])
def test_a_damaged_sequence_number_is_not_taken_for_none(tmp_path: Path, number: object) -> None:
    """Without a number an address is released unguarded; jq and JavaScript write large ones as fractions."""
    entry = {"ip": "10.0.0.1", "handle": "h", "sequenceNumber": number, "inUse": False}
    told = refused(tmp_path, json.dumps({"allocations": {"10.0.0.1": [entry]}}))
    assert "which is no whole number" in told.message


def test_an_entry_may_lack_its_number(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(json.dumps({"allocations": {"10.0.0.1": [{"ip": "10.0.0.1"}], "10.0.0.2": None}}))
    assert [leak.sequence_number for leak in read(str(path)).leaks.values()] == [None]
