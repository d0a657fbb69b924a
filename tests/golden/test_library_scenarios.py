"""Recorded library scenarios (``golden/library``) replayed on every store that can hold them, one test per file.

``made/`` beside this file holds a few in the same form that were worked out from the specification: what recordings
could reach, and happen not to.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.golden.library_backends import BENCHES, QUICK, open_bench
from tests.golden.library_exceptions import EXCEPTIONS
from tests.golden.library_operations import check_known
from tests.golden.library_scenario import Scenario, UnknownRecording, find_scenarios, load_scenario
from tests.golden.replay import replay
from tests.shared import golden

LIBRARY = golden("library")
FOLDERS = ("etcd", "kubernetes", "random")
MADE = Path(__file__).parent / "made"


def files() -> list[Path]:
    """Return every scenario, by listing the folders."""
    folders = [LIBRARY / folder for folder in FOLDERS if LIBRARY.is_dir()]
    return [path for folder in (*folders, MADE) for path in find_scenarios(folder, "*.json")]


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def backend_of(path: Path) -> str:
    """Return the datastore type of a recording without keeping it in memory."""
    return str(json.loads(path.read_text(encoding="utf-8"))["backend"])


def cases() -> Iterator[object]:
    if not LIBRARY.is_dir():
        reason = f"no recordings: {LIBRARY} is absent (set CALICO_IPAM_SHARED to the folder that holds golden/)"
        yield pytest.param("", LIBRARY, id="absent:library", marks=pytest.mark.skip(reason=reason))
    for path in files():
        for bench in BENCHES[backend_of(path)]:
            yield pytest.param(bench, path, id=f"{bench}-{name_of(path)}")


@pytest.mark.parametrize(("bench_name", "path"), list(cases()))
def test_replay(
    bench_name: str, path: Path, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> None:
    scenario = load_scenario(path, name_of(path))
    with open_bench(bench_name, request.getfixturevalue) as bench:
        report = replay(scenario, bench, EXCEPTIONS)
    for limits in report.excepted.values():
        for limit in limits:
            record_property("excepted", f"{limit} {scenario.name}")
    if report.pending is not None:
        record_property("pending", f"{report.pending} {scenario.name}")
    record_property("replayed", f"{report.steps} {scenario.name}")
    assert not report.problems, "\n".join(report.problems)


def test_recordings_without_a_bench_are_named(record_property: Callable[[str, object], None]) -> None:
    """Recordings of a datastore that has no bench yet are counted in the summary, and read all the same."""
    if not LIBRARY.is_dir():
        pytest.skip(f"{LIBRARY} is absent")
    for path in files():
        if not BENCHES[backend_of(path)]:
            scenario = load_scenario(path, name_of(path))
            for index, step in enumerate(scenario.steps):
                check_known(step.op, step.args, f"{scenario.name}: step {index}")
            record_property("pending", f"datastore-{scenario.backend} {scenario.name}")


def test_every_exception_is_needed() -> None:
    """An exception that no recorded step needs any more has to go; one that a step does not need fails in that step."""
    if not LIBRARY.is_dir():
        pytest.skip(f"{LIBRARY} is absent")
    unused = {id(exception): exception for exception in EXCEPTIONS}
    for path in sorted(files(), key=lambda path: path.parent != MADE):  # the short ones first
        if unused and BENCHES[backend_of(path)]:
            with open_bench(QUICK[backend_of(path)]) as bench:
                for used in replay(load_scenario(path, name_of(path)), bench, EXCEPTIONS).used:
                    unused.pop(used, None)
    assert not unused, [f"{exception.limit}: {exception.ours}" for exception in unused.values()]


# --- the harness can fail -----------------------------------------------------------------------------------


@pytest.fixture
def first_address(tmp_path: Path) -> Path:
    """A copy of a small recording, to be spoiled."""
    source = LIBRARY / "etcd" / "alloc-first-address.json"
    if not source.is_file():
        pytest.skip(f"{source} is absent")
    return Path(shutil.copy(source, tmp_path))


def spoiled(path: Path, change: Callable[[dict[str, Any]], object]) -> Scenario:
    document = json.loads(path.read_text(encoding="utf-8"))
    change(document)
    path.write_text(json.dumps(document), encoding="utf-8")
    return load_scenario(path, "etcd/alloc-first-address")


def test_an_empty_folder_fails(tmp_path: Path) -> None:
    with pytest.raises(UnknownRecording, match="nothing would be replayed"):
        find_scenarios(tmp_path, "*.json")


def test_an_unknown_operation_fails(first_address: Path) -> None:
    scenario = spoiled(first_address, lambda d: d["steps"][1].update(op="steal_address"))
    with open_bench("sqlite") as bench, pytest.raises(UnknownRecording, match="unknown operation 'steal_address'"):
        replay(scenario, bench, EXCEPTIONS)


def test_an_unknown_argument_fails(first_address: Path) -> None:
    scenario = spoiled(first_address, lambda d: d["steps"][0]["args"].update(colour="blue"))
    with open_bench("sqlite") as bench, pytest.raises(UnknownRecording, match="colour"):
        replay(scenario, bench, EXCEPTIONS)


@pytest.mark.parametrize("place", ["file", "step", "error", "setup"])
def test_an_unknown_field_fails(first_address: Path, place: str) -> None:
    def change(document: dict[str, object]) -> None:
        steps = document["steps"]
        setup = document["setup"]
        assert isinstance(steps, list)
        assert isinstance(setup, list)
        {"file": document, "step": steps[0], "error": steps[2]["error"], "setup": setup[0]}[place]["novelty"] = 1

    with pytest.raises(UnknownRecording, match="novelty"):
        spoiled(first_address, change)


BLOCK = "/calico/ipam/v2/assignment/ipv4/block/10.0.0.128-26"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda d: d["steps"][0]["result"]["ipv4"].update(ips=["10.0.0.129/26"]), "result.ipv4.ips"),
        (lambda d: d["steps"][0]["changed"][BLOCK].update(sequenceNumber=1), "sequenceNumber"),
        (lambda d: d["steps"][0]["changed"].update({BLOCK: None}), "must not be stored"),
        (lambda d: d["steps"][0]["changed"].update({"/calico/ipam/v2/handle/x": {}}), "is not stored"),
        (lambda d: d["steps"][1].update(error={"type": "*errors.errorString", "text": "x"}), "none raised"),
        (lambda d: d["steps"][2].pop("error"), "none expected"),
        (lambda d: d["steps"][2]["error"].update(text="something else"), "expected text"),
        (lambda d: d["steps"][2]["error"].update(identifier="something else"), "expected about"),
        (lambda d: d["steps"][2]["error"].update(type="errors.ErrorIPInCooldown"), "expected errors.ErrorIPInCooldown"),
        (lambda d: d["steps"][2]["error"].update(type="*errors.errorString"), "expected one without a class"),
        (lambda d: d["final"][BLOCK].update(deleted=True), "final"),
        (lambda d: d["raw"].update({BLOCK: d["raw"][BLOCK].replace('"deleted"', ' "deleted"')}), "raw"),
    ],
)
def test_a_difference_fails(first_address: Path, change: Callable[[dict[str, Any]], object], complaint: str) -> None:
    with open_bench("sqlite") as bench:
        report = replay(spoiled(first_address, change), bench, ())
    assert any(complaint in line for line in report.differences), report.differences


def test_an_exception_without_need_fails(first_address: Path) -> None:
    class Needless:
        limit = "L0"
        resync = False

        def applies(self, moment: object, ours: object) -> bool:
            return True

        def expect(self, moment: object, expected: object, ours: object) -> None:
            return None

    scenario = spoiled(first_address, lambda d: None)
    with open_bench("sqlite") as bench:
        report = replay(scenario, bench, [Needless()])
    assert any("is not needed any more" in line for line in report.needless)


def test_a_hook_that_does_not_fire_fails(first_address: Path) -> None:
    never = {"when": "before", "call": "delete", "kind": "node", "nth": 1, "do": {"error": "datastore"}}
    scenario = spoiled(first_address, lambda d: d["steps"][0].update(hooks=[never]))
    with open_bench("sqlite") as bench:
        report = replay(scenario, bench, ())
    assert any("did not fire" in line for line in report.differences)
