"""Waiting for Felix: a status file of this very endpoint ends it, one of an earlier pod does not (§6.4, §15.11)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cni_bench import answer, failure
from tests.pod_bench import HOST_NAME, STORES, PodBench

MAC = "0a:58:00:00:00:01"  # of the fake dataplane


@pytest.fixture(params=STORES)
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> PodBench:
    return PodBench(tmp_path, request.param).prepare()


def add(bench: PodBench, seconds: int = 3) -> float:
    """Run ADD; return the seconds it waited."""
    before = bench.clock.slept
    answer(bench.call("ADD", policy_setup_timeout_seconds=seconds, endpoint_status_dir=str(bench.folder / "status")))
    return bench.clock.slept - before


def write(bench: PodBench, content: Any) -> None:
    folder = bench.folder / "status"
    folder.mkdir(exist_ok=True)
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / "k8s test%2Fnginx eth0").write_text(text)


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"ifaceName": HOST_NAME, "mac": MAC.upper()},
        {"ifaceName": "", "mac": "", "ipv4Nets": [], "ipv6Nets": None},
        [],
        "",
        "ready",
    ],
)
def test_a_file_that_fits_is_waited_for_no_longer(bench: PodBench, content: Any) -> None:
    write(bench, content)
    assert add(bench) == 0


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"ifaceName": "cali0ther"}, "it is of an earlier pod: interface cali0ther"),
        ({"mac": "02:00:00:00:00:09"}, "it is of an earlier pod: hardware address 02:00:00:00:00:09"),
        ({"ipv4Nets": ["10.9.9.9/32"]}, "it is of an earlier pod: addresses 10.9.9.9/32"),
        ("{", "it is being written: unexpected end of JSON input"),
    ],
)
def test_a_stale_file_is_not_taken_for_this_pods(bench: PodBench, content: Any, reason: str) -> None:
    write(bench, content)
    assert add(bench) == pytest.approx(3)
    assert "was not in place in time" in bench.log() and reason in bench.log()


def test_no_file_is_a_warning_after_the_time_is_over(bench: PodBench) -> None:
    assert add(bench, 2) == pytest.approx(2)
    assert "there is no such file" in bench.log()
    assert len(bench.records()) == len(bench.addresses()) == 1


def test_without_the_setting_nobody_waits(bench: PodBench) -> None:
    assert add(bench, 0) == 0


def test_a_file_that_comes_later_ends_the_wait(bench: PodBench) -> None:
    clock: Any = bench.clock
    sleep = clock.sleep

    def sleeping(seconds: float) -> None:
        sleep(seconds)
        if bench.clock.slept >= 1:
            write(bench, {"ifaceName": HOST_NAME})

    clock.sleep = sleeping
    assert 1 <= add(bench) < 1.2


def test_a_negative_time_is_refused_before_anything_is_made(bench: PodBench) -> None:
    found = failure(bench.call("ADD", policy_setup_timeout_seconds=-1))
    assert found["msg"] == "invalid pod startup delay of -1"
    assert bench.addresses() == [] and bench.records() == [] and not bench.dataplane.pairs
