"""Health, as Kubernetes' probes and those that were made for upstream's controller ask for it (gc §1.1, §15)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from calico_gc.kcc import read
from calico_gc.main import main
from calico_gc.probes import BAD_PAUSE, GOOD_PAUSE, NOT_ASKED, Probes, Said, table
from calico_gc.web.server import Router, Sources

from calico_ipam.errors import DeadlineExceeded, StoreUnavailable
from calico_ipam.model.resource import KUBE_CONTROLLERS_CONFIGURATION, Resource
from tests.memory import MemoryStore


class FakeLoop:
    stuck = ""
    waits: tuple[str, ...] = ()

    def alive(self) -> str:
        return self.stuck

    def waiting_for(self) -> list[str]:
        return list(self.waits)


class FakeApi:
    """Answers ``/healthz``, or raises."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.asked: list[tuple[str, float]] = []

    def open_stream(self, request: Any, seconds: float) -> Any:
        self.asked.append((request.path, seconds))
        if self.error is not None:
            raise self.error
        return self

    def close(self) -> None: ...


class Scene:
    def __init__(self, path: Path | None = None) -> None:
        self.loop, self.api, self.store = FakeLoop(), FakeApi(), MemoryStore()
        self.probes = Probes(self.store, self.api, self.loop, path)  # type: ignore[arg-type]  # a fake in its place
        sources = Sources(self.probes.not_live, self.probes.not_ready, lambda: table(self.probes.said()))
        self.router = Router(sources)

    def codes(self) -> dict[str, int]:
        paths = ("/healthz", "/liveness", "/readyz", "/readiness")
        return {path: int(self.router.answer(path).status) for path in paths}


def test_from_the_start_to_being_ready_and_back(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    assert scene.codes() == {"/healthz": 200, "/liveness": 200, "/readyz": 503, "/readiness": 503}
    assert scene.probes.status() == dict.fromkeys(("Startup", "CalicoDatastore", "KubeAPIServer"), NOT_ASKED)
    assert scene.probes.round() == GOOD_PAUSE
    assert set(scene.codes().values()) == {200}
    scene.api.error = StoreUnavailable("the Kubernetes API server does not answer")
    assert [scene.probes.round() for _ in range(4)] == [BAD_PAUSE] * 4
    assert [seconds for _, seconds in scene.api.asked] == [4.0, 4.0, 8.0, 16.0, 16.0]
    assert scene.codes() == {"/healthz": 200, "/liveness": 200, "/readyz": 503, "/readiness": 503}
    [said] = [s for s in scene.probes.said() if s.ready]
    assert said == Said("KubeAPIServer", "", "Error reaching apiserver: the Kubernetes API server does not answer")
    assert caplog.text.count("the Kubernetes API server does not answer") == 1, "it is said once, not every two seconds"
    scene.api.error = None
    assert scene.probes.round() == GOOD_PAUSE
    assert set(scene.codes().values()) == {200}


def test_an_error_that_nobody_thought_of_is_not_ready_and_ends_nothing() -> None:
    """With the thread gone the last good answer would be shown for ever."""
    scene = Scene()
    scene.probes.round()
    scene.api.error = RuntimeError("oops")
    assert scene.probes.round() == BAD_PAUSE
    assert scene.probes.not_ready() == "KubeAPIServer: Error reaching apiserver: oops"
    scene.api.error = None
    assert scene.probes.round() == GOOD_PAUSE


def test_a_datastore_that_does_not_answer() -> None:
    scene = Scene()
    scene.probes.round()

    def away(scope: Any) -> Any:
        raise DeadlineExceeded("out of time")

    scene.store.list = away  # type: ignore[method-assign]  # a fake in its place
    scene.probes.round()
    assert scene.probes.status() == {
        "Startup": "",
        "CalicoDatastore": "Error verifying datastore: out of time",
        "KubeAPIServer": "",
    }


def test_a_loop_that_is_stuck_is_not_live_and_one_that_lists_is_not_ready() -> None:
    scene = Scene()
    scene.probes.round()
    scene.loop.waits = ("pods",)
    assert scene.codes() == {"/healthz": 200, "/liveness": 200, "/readyz": 503, "/readiness": 503}
    assert scene.router.answer("/readyz").body == "IPAMCollector: waiting for lists of pods\n"
    assert not any(scene.probes.status().values()), "upstream's probe for liveness must not end it for being slow"
    scene.loop.waits, scene.loop.stuck = (), "the loop has not come round for 900 s"
    assert scene.codes() == {"/healthz": 503, "/liveness": 503, "/readyz": 200, "/readiness": 200}
    assert scene.probes.status()["IPAMCollector"] == scene.loop.stuck


def test_the_table_is_as_upstream_shows_it() -> None:
    assert table([Said("CalicoDatastore"), Said("KubeAPIServer", "", "status 500")]) == (
        "+-----------------+---------+----------------+---------------------+------------+\n"
        "|    COMPONENT    | TIMEOUT |    LIVENESS    |      READINESS      |   DETAIL   |\n"
        "+-----------------+---------+----------------+---------------------+------------+\n"
        "| CalicoDatastore | -       | reporting live | reporting ready     |            |\n"
        "| KubeAPIServer   | -       | reporting live | reporting non-ready | status 500 |\n"
        "+-----------------+---------+----------------+---------------------+------------+"
    )


def test_where_there_is_nothing_to_show_there_is_no_content() -> None:
    router = Router(Sources(str, lambda: "waits"))
    assert [(int(a.status), a.body) for a in map(router.answer, ("/liveness", "/readiness"))] == [(204, ""), (503, "")]


@pytest.mark.parametrize("path", ["/", "/metrics", "/block/10.0.0.0/26", "/healthz/x"])
def test_the_health_port_answers_nothing_else(path: str) -> None:
    answer = Router(Sources(str, str)).answer(path)
    assert (int(answer.status), answer.body) == (404, "404 page not found\n")


def test_the_status_file_is_upstreams(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "status" / "status.json"
    scene = Scene(path)
    scene.probes.write()
    assert main(["check-status", "--live", "--file", str(path)], {}) == 1
    assert capsys.readouterr().out == "; ".join([NOT_ASKED] * 3) + "\n"
    scene.probes.round()
    scene.probes.write()
    good = {"Ready": True, "Reason": ""}
    expected = {"Readiness": {"Startup": good, "CalicoDatastore": good, "KubeAPIServer": good}}
    assert json.loads(path.read_text()) == expected
    assert path.stat().st_mode & 0o777 == 0o644
    for flag in ("-l", "-r", "--live", "--ready"):
        assert main(["check-status", flag, "-f", str(path)], {}) == 0
        assert capsys.readouterr().out == "Ready\n"


def test_with_the_checks_off_only_the_start_is_told(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "status.json")
    scene.probes.round()
    scene.probes.checks = read(None, {"HEALTH_ENABLED": "false"}).health_checks
    scene.api.error = StoreUnavailable("away")
    scene.probes.round()
    assert scene.probes.status() == {"Startup": ""}
    spec = {"healthChecks": "Disabled"}
    assert not read(Resource.new(KUBE_CONTROLLERS_CONFIGURATION, "default", spec)).health_checks
    assert read(None).health_checks


def test_a_status_file_that_cannot_be_written_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    scene = Scene(tmp_path / "file" / "status.json")
    scene.probes.write()
    scene.probes.write()
    assert caplog.text.count("status.json cannot be written") == 1


def test_under_the_name_of_upstreams_probe_it_is_that_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "status.json"
    path.write_text('{"Readiness":{}}')
    monkeypatch.setattr(sys, "argv", ["/usr/bin/check-status", "-r", "-f", str(path)])
    assert main() == 1
    assert capsys.readouterr().out == "nothing is known yet\n"


def test_it_asks_by_itself_until_it_is_stopped() -> None:
    from tests.kube_tools import wait_until

    scene = Scene()
    scene.probes.start()
    try:
        wait_until(lambda: set(scene.codes().values()) == {200}, 20.0, "the first answers")
    finally:
        scene.probes.stop()
