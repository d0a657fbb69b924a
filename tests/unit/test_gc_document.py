"""docs/gc.md explains every decision that the collector can take."""

from __future__ import annotations

import re

import pytest
from calico_gc import handles, suspicion
from calico_gc.settings import ALL
from calico_gc.sweep.residue import KINDS, REMOVABLE
from calico_gc.web import words

from tests.golden.gc_exceptions import EXCEPTIONS
from tests.shared import REPOSITORY

TEXT = (REPOSITORY / "docs" / "gc.md").read_text()
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in TEXT.splitlines() if line.startswith("|")]
FIRST = {row[0].strip("`"): row for row in ROWS}


@pytest.mark.parametrize("reason", suspicion.REASONS)
def test_every_reason(reason: str) -> None:
    assert reason in FIRST
    assert reason in words.SENTENCES, "and the page has a sentence for it"


@pytest.mark.parametrize("kind", [kind for kind in handles.CLASSES if kind != handles.GOOD])
def test_every_class_of_handles(kind: str) -> None:
    assert kind in FIRST


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_residue_and_whether_it_can_be_removed(kind: str) -> None:
    assert FIRST[kind][2].startswith("no:") == (kind not in REMOVABLE)


@pytest.mark.parametrize("exception", EXCEPTIONS, ids=lambda exception: exception.limit)
def test_every_difference_from_the_recordings(exception: object) -> None:
    assert any(exception.ours == row[-1] for row in ROWS)  # type: ignore[attr-defined]  # an exception of the table


def test_every_flag_that_is_named_exists() -> None:
    ours = {f"--{setting.flag}" for setting in ALL}
    elsewhere = {"--apply", "--every", "--metrics-file", "--host", "--ip", "--help"}
    assert set(re.findall(r"--[a-z][a-z-]+", TEXT)) - ours - elsewhere == set()
