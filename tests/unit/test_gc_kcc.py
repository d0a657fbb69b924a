"""Upstream's configuration object: what it says, and the status as recorded from upstream (gc §1.3, §19.5)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from calico_gc.durations import format_duration, parse_duration
from calico_gc.kcc import DEFAULT_SPEC, misread, read, status_of, unknown_controllers

from calico_ipam.errors import InvalidInput
from calico_ipam.model.resource import KUBE_CONTROLLERS_CONFIGURATION, Resource
from tests.shared import golden, recordings


@pytest.mark.parametrize("path", recordings(golden("gc")))
def test_status_is_what_upstream_wrote(path: Path) -> None:
    case = json.loads(path.read_text(encoding="utf-8"))
    environ = {**case["config"]["env"]}
    if case["backend"] == "kubernetes":
        environ["DATASTORE_TYPE"] = "kubernetes"
    first = (case.get("phases") or [case])[0]["state_changed"]
    written = [v for k, v in first.items() if "kubecontrollersconfiguration" in k.lower()]
    if "process_exit_code" in case and not written:
        return  # the program did not start
    assert written, "every recording has this write"
    assert status_of(written[0]["spec"], environ) == written[0]["status"]


def test_absent_configuration_is_created_as_upstream_does() -> None:
    path = golden("gc") / "kcc-absent-etcd.json"
    if not path.is_file():
        pytest.skip(f"{path} is absent")
    changed = json.loads(path.read_text(encoding="utf-8"))["state_changed"]
    (written,) = [v for k, v in changed.items() if "kubecontrollersconfiguration" in k]
    assert written["spec"] == DEFAULT_SPEC


def resource(spec: dict[str, Any]) -> Resource:
    return Resource.new(KUBE_CONTROLLERS_CONFIGURATION, "default", spec)


def test_missing_object_reads_as_the_defaults() -> None:
    told = read(None)
    assert (told.leak_grace, told.metrics_port, told.complaints) == (900.0, 9094, ())


def test_absent_grace_is_not_the_default_and_says_so() -> None:
    told = read(resource({"controllers": {"node": {}}}))
    assert told.leak_grace is None
    assert "--leak-grace" in told.complaints[0]


@pytest.mark.parametrize("text", ["soon", "15", "15 minutes", ""])
def test_grace_that_is_no_duration_counts_as_absent(text: str) -> None:
    told = read(resource({"controllers": {"node": {"leakGracePeriod": text}}}))
    assert told.leak_grace is None
    assert "counts as absent" in told.complaints[0]


@pytest.mark.parametrize("damage", [{"controllers": None}, {"controllers": []}, {"controllers": {"node": "x"}}, {}])
def test_damaged_configuration_reads_as_absent(damage: dict[str, Any]) -> None:
    assert read(resource(damage)).leak_grace is None


def test_environment_wins_and_is_listed() -> None:
    environ = {
        "ENABLED_CONTROLLERS": "node,policy",
        "LOG_LEVEL": "debug",
        "HEALTH_ENABLED": "false",
        "SYNC_NODE_LABELS": "false",
    }
    status = status_of(DEFAULT_SPEC, environ)
    running = status["runningConfig"]
    assert running["logSeverityScreen"] == "Debug"
    assert running["healthChecks"] == "Disabled"
    assert running["controllers"]["node"]["syncLabels"] == "Disabled"
    assert running["controllers"]["policy"] == {"reconcilerPeriod": "5m0s"}
    assert "loadBalancer" not in running["controllers"]
    assert status["environmentVars"] == environ


def test_periods_of_the_environment_win_and_are_printed_as_go_does() -> None:
    environ = {"ENABLED_CONTROLLERS": "node,policy", "RECONCILER_PERIOD": "90s", "COMPACTION_PERIOD": "5m"}
    status = status_of(DEFAULT_SPEC, environ)
    running = status["runningConfig"]
    assert running["controllers"]["policy"] == {"reconcilerPeriod": "1m30s"}
    assert running["etcdV3CompactionPeriod"] == "5m0s"
    assert "reconcilerPeriod" not in running["controllers"]["node"]
    assert {**environ, "LOG_LEVEL": "info"} == status["environmentVars"]


def test_environment_wins_over_what_is_stored() -> None:
    stored = resource({"logSeverityScreen": "Warning", "controllers": {"node": {"syncLabels": "Enabled"}}})
    assert (read(stored).log_level, read(stored).sync_labels) == ("Warning", True)
    told = read(stored, {"LOG_LEVEL": "debug", "SYNC_NODE_LABELS": "f"})
    assert (told.log_level, told.sync_labels) == ("debug", False)
    assert read(resource({"controllers": {"node": {"syncLabels": "Disabled"}}}), {"SYNC_NODE_LABELS": "1"}).sync_labels


def test_a_changed_level_is_news_and_an_unchanged_spec_is_none() -> None:
    """gc §19.5: only what the merged configuration says counts."""
    spec = {"logSeverityScreen": "Info", "controllers": {"node": {"leakGracePeriod": "15m0s"}}}
    assert read(resource(spec)) == read(resource({**spec, "etcdV3CompactionPeriod": "1m0s"}))
    assert read(resource(spec)) != read(resource({**spec, "logSeverityScreen": "Debug"}))
    overridden = {"LOG_LEVEL": "error"}
    changed = resource({**spec, "logSeverityScreen": "Debug"})
    assert read(resource(spec), overridden) == read(changed, overridden)


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({"NODE_WORKERS": "many"}, "NODE_WORKERS is 'many', which is no number"),
        ({"HEALTH_ENABLED": "yes"}, "HEALTH_ENABLED is 'yes'"),
        ({"SYNC_NODE_LABELS": "maybe"}, "SYNC_NODE_LABELS"),
        ({"RECONCILER_PERIOD": "soon"}, "RECONCILER_PERIOD"),
        ({"COMPACTION_PERIOD": "10"}, "COMPACTION_PERIOD"),
        ({"AUTO_HOST_ENDPOINTS": "x"}, "AUTO_HOST_ENDPOINTS"),
        ({"NODE_WORKERS": "1", "HEALTH_ENABLED": "T", "RECONCILER_PERIOD": "1m", "AUTO_HOST_ENDPOINTS": "Enabled"}, ""),
        ({"NODE_WORKERS": "", "HEALTH_ENABLED": "", "RECONCILER_PERIOD": ""}, ""),
    ],
)
def test_what_upstream_would_not_start_with(environ: dict[str, str], text: str) -> None:
    assert text in misread(environ)
    assert bool(misread(environ)) == bool(text)


def test_without_a_list_the_stored_controllers_run() -> None:
    controllers = status_of(DEFAULT_SPEC, {})["runningConfig"]["controllers"]
    assert set(controllers) == set(DEFAULT_SPEC["controllers"])
    assert "reconcilerPeriod" not in controllers["node"]


def test_items_are_not_trimmed() -> None:
    assert unknown_controllers({"ENABLED_CONTROLLERS": "node, policy,what"}) == [" policy", "what"]
    assert unknown_controllers({"ENABLED_CONTROLLERS": "node,"}) == [""]
    assert unknown_controllers({"ENABLED_CONTROLLERS": ""}) == []


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("15m0s", 900.0), ("1h30m", 5400.0), ("0", 0.0), ("0s", 0.0), ("500ms", 0.5), ("1.5s", 1.5), ("10m0s", 600.0)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["15m0s", "1s", "1h0m5s", "500ms", "0s", "10m0s", "1.5s"])
def test_durations_are_printed_as_go_does(text: str) -> None:
    assert format_duration(parse_duration(text)) == text


@pytest.mark.parametrize("text", ["", "5", "m", "5x", "1m x", "-"])
def test_no_duration(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not a duration"):
        parse_duration(text)
