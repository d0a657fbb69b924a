"""Recorded CNI cases with pods in a Kubernetes API, replayed on a real API server as the plugins' own account.

Cases whose Calico data was in etcd find it in the embedded store here; their pods are in the API server all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from tests.golden.cni_exceptions import DEVIATIONS
from tests.golden.cni_exceptions_failed import FAILED_DEVIATIONS
from tests.golden.cni_exceptions_pods import POD_DEVIATIONS
from tests.golden.cni_host import foreign_plugins
from tests.golden.cni_replay import Moment, check_format, needs_kubernetes, replay
from tests.golden.test_cni import FOLDER, recorded, uses_foreign_plugin
from tests.kube_tools import KubeServer
from tests.netns_tools import require_root
from tests.shared import recordings

pytestmark = pytest.mark.timeout(300)  # the first test starts the API server

ALL_DEVIATIONS = (*DEVIATIONS, *POD_DEVIATIONS, *FAILED_DEVIATIONS)


def cases() -> Iterator[Any]:
    if not FOLDER.is_dir() or not any(FOLDER.glob("*.json")):
        yield from recordings(FOLDER)
        return
    for topic, case in recorded():
        if needs_kubernetes(case):
            yield pytest.param(case, id=f"{topic}-{case['name']}")


@pytest.mark.xdist_group("cni-kubernetes")
@pytest.mark.parametrize("case", list(cases()))
def test_replay(case: Mapping[str, Any], kube: KubeServer, record_property: Callable[[str, object], None]) -> None:
    check_format(case)
    require_root()
    if uses_foreign_plugin(case) and foreign_plugins() is None:
        pytest.skip("needs the reference plugins host-local and static: install containernetworking-plugins")
    report = replay(case, ALL_DEVIATIONS, kube)
    record_property("replayed", f"{report.steps} cni/{case['name']}")
    for limit in report.excepted:
        record_property("excepted", f"{limit} cni/{case['name']}")
    assert not report.problems, "\n".join(report.problems)


def test_every_exception_meets_a_recorded_run() -> None:
    """An exception that no recording needs has to go; one that a run does not need fails in that run."""
    if not FOLDER.is_dir():
        pytest.skip(f"{FOLDER} is absent")
    unmet = list(POD_DEVIATIONS)
    for _topic, case in recorded():
        for index, step in enumerate(case["steps"]):
            if step["op"] == "exec":
                unmet = [deviation for deviation in unmet if not deviation.where(Moment(case, index))]
    assert not [f"{deviation.limit}: {deviation.ours}" for deviation in unmet]
