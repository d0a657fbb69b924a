"""Which code an error of the library gets, and how errors are told (cni.md §2.4)."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from calico_cni.errors import CODES, CNIError, cni_error, code_of, joined
from calico_ipam import errors as library
from calico_ipam.errors import (
    Conflict,
    DeadlineExceeded,
    InvalidInput,
    IPAMError,
    NotFound,
    OutcomeUnknown,
    RetriesExhausted,
    StoreUnavailable,
)
from tests.cni_bench import CNIBench, failure


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StoreUnavailable("x"), 11),
        (DeadlineExceeded("x"), 11),
        (OutcomeUnknown("x"), 11),
        (RetriesExhausted(), 999),
        (Conflict("x"), 999),
        (NotFound("x"), 999),
        (InvalidInput("x"), 999),
        (ValueError("x"), 999),
        (CNIError("x", code=7), 7),
    ],
)
def test_codes(error: Exception, code: int) -> None:
    assert code_of(error) == code


def test_every_error_of_the_library_has_a_row() -> None:
    classes = [c for _, c in inspect.getmembers(library, inspect.isclass) if issubclass(c, IPAMError)]
    assert len(classes) > 20
    for found in classes:
        assert any(issubclass(found, row) for row, _ in CODES), found
    for index, (row, _) in enumerate(CODES):
        later = [other for other, _ in CODES[index + 1 :] if issubclass(other, row)]
        assert not later, f"{later} stand behind {row}, which takes everything of theirs"


def test_the_hint_becomes_the_details() -> None:
    error = cni_error(InvalidInput("bad", hint="Do this."), "while trying: ")
    assert error.document() == {"code": 999, "msg": "while trying: bad", "details": "Do this."}


def test_no_details_no_key() -> None:
    assert CNIError("x").document() == {"code": 999, "msg": "x"}


def test_a_cni_error_goes_out_unchanged_unless_it_is_wrapped() -> None:
    error = CNIError("x", "d", code=4)
    assert cni_error(error) is error
    assert cni_error(error, "y: ").document() == {"code": 4, "msg": "y: x", "details": "d"}


def test_several_errors_are_told_as_one() -> None:
    both = joined([CNIError("a", "1", code=11), StoreUnavailable("b", hint="2")])
    assert both.document() == {"code": 11, "msg": "a; b", "details": "1; 2"}
    assert joined([CNIError("a", code=11), CNIError("b", code=7)]).code == 999
    single = CNIError("a", code=7)
    assert joined([single]) is single


def test_objects_of_others_are_read_whatever_they_hold() -> None:
    assert CNIError.from_document({"code": "x", "msg": None, "details": 1}).document() == {"code": 0, "msg": ""}


def test_an_error_object_of_the_library_in_a_call(tmp_path: Path) -> None:
    bench = CNIBench(tmp_path).prepare()
    found = failure(bench.ipam("ADD", ipam={"type": "calico-ipam", "ipv4_pools": ["10.99.0.0/24"]}))
    assert found["msg"] == "the given pool (10.99.0.0/24) does not exist, or is not enabled"
    assert "ipamctl pool list" in found["details"]
