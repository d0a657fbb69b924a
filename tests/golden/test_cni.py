"""Recorded CNI cases (``golden/cni``) replayed with the real programs in network namespaces, one test per case."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.golden.cni_exceptions import DEVIATIONS
from tests.golden.cni_exceptions_failed import FAILED_DEVIATIONS
from tests.golden.cni_host import foreign_plugins
from tests.golden.cni_replay import Moment, check_format, needs_kubernetes, replay
from tests.netns_tools import require_root
from tests.shared import golden, recordings

FOLDER = golden("cni")
#: Cases in the same form that were worked out from the specification: what recordings happen not to reach.
MADE = Path(__file__).parent / "made_cni"

HERE_DEVIATIONS = (*DEVIATIONS, *FAILED_DEVIATIONS)


def recorded() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (topic, case) of every file, by listing the folders."""
    for path in (*sorted(FOLDER.glob("*.json")), *sorted(MADE.glob("*.json"))):
        content = json.loads(path.read_text(encoding="utf-8"))
        for case in content["cases"]:
            yield path.stem, case


def cases() -> Iterator[Any]:
    if not FOLDER.is_dir() or not any(FOLDER.glob("*.json")):
        yield from recordings(FOLDER)
        return
    for topic, case in recorded():
        if not needs_kubernetes(case):
            yield pytest.param(case, id=f"{topic}-{case['name']}")


def uses_foreign_plugin(case: Mapping[str, Any]) -> bool:
    return any(kind in json.dumps(case["steps"]) for kind in ('"host-local"', '"static"'))


@pytest.mark.parametrize("case", list(cases()))
def test_replay(case: Mapping[str, Any], record_property: Callable[[str, object], None]) -> None:
    check_format(case)
    require_root()
    if uses_foreign_plugin(case) and foreign_plugins() is None:
        pytest.skip("needs the reference plugins host-local and static: install containernetworking-plugins")
    report = replay(case, HERE_DEVIATIONS)
    record_property("replayed", f"{report.steps} cni/{case['name']}")
    for limit in report.excepted:
        record_property("excepted", f"{limit} cni/{case['name']}")
    assert not report.problems, "\n".join(report.problems)


def test_every_exception_meets_a_recorded_run() -> None:
    """An exception that no recording needs has to go; one that a run does not need fails in that run."""
    if not FOLDER.is_dir():
        pytest.skip(f"{FOLDER} is absent")
    unmet = list(HERE_DEVIATIONS)
    for _topic, case in recorded():
        for index, step in enumerate(case["steps"]):
            if step["op"] == "exec":
                unmet = [deviation for deviation in unmet if not deviation.where(Moment(case, index))]
    assert not [f"{deviation.limit}: {deviation.ours}" for deviation in unmet]
