"""The rules of tests/conftest.py, seen from outside: a run of pytest on a small file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clock import LONG
from tests.shared import REPOSITORY, recordings

PROBE = """
import time
import pytest

def test_passes():
    pass

def test_skips():
    pytest.skip("no server")

@pytest.mark.skip(reason="marked so")
def test_marked():
    pass

@pytest.mark.xfail
def test_known_to_fail():
    assert False
"""
SLOW = """
import time
import pytest

@pytest.mark.timeout(1)
def test_slow():
    time.sleep(30)
"""
SHARED_SERVER = """
import time
import pytest

@pytest.fixture(scope="module")
def server():
    time.sleep(1.5)

@pytest.mark.timeout(1)
def test_that_comes_first(server):
    pass

@pytest.mark.timeout(1)
def test_slow(server):
    time.sleep(30)
"""
LOGGING = """
import logging, sys
import pytest

@pytest.mark.parametrize("number", range(2))
def test_program(number, capsys):
    assert logging.getLogger().level == logging.WARNING
    logging.getLogger().warning("said")
    assert capsys.readouterr().err == ""
    logging.basicConfig(stream=sys.stderr, level="DEBUG", force=True)
"""
SIGNALS = """
import signal, subprocess, sys

def test_programs():
    code = "import signal; print(signal.getsignal(signal.SIGINT).__name__, signal.getsignal(signal.SIGHUP).name)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told == "default_int_handler SIG_DFL\\n"
    signal.raise_signal(signal.SIGHUP)
"""
MODULE = """
import pytest
pytest.skip("not on this system", allow_module_level=True)
"""


def outcome(folder: Path, source: str, ci: str, *before: str) -> tuple[dict[str, int], str]:
    """Run pytest, by the words ``before``, on a file under our rules; return the counts of its summary, its output."""
    probe = folder / "test_probe.py"
    probe.write_text(source)
    plugins = ["-p", "tests.conftest", "-p", "no:hypothesispytest", "-p", "no:xdist"]
    done = subprocess.run(
        [*before, sys.executable, "-m", "pytest", *plugins, "--rootdir", folder, "-c", os.devnull, "-ra", probe],
        cwd=REPOSITORY,
        env={**os.environ, "CI": ci, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
    )
    summary = done.stdout.rstrip().rpartition("\n")[2]
    return {what.rstrip("s"): int(count) for count, what in re.findall(r"(\d+) (\w+)", summary)}, done.stdout


def test_a_skip_is_a_skip_at_home(tmp_path: Path) -> None:
    counts, _ = outcome(tmp_path, PROBE, "")
    assert (counts["passed"], counts["skipped"], counts["xfailed"]) == (1, 2, 1)


@pytest.mark.parametrize("ci", ["1", "true"])
def test_a_skip_is_a_failure_in_ci(tmp_path: Path, ci: str) -> None:
    counts, said = outcome(tmp_path, PROBE, ci)
    assert (counts["passed"], counts["xfailed"]) == (1, 1)
    assert counts.get("failed", 0) + counts.get("error", 0) == 2
    assert "skipped" not in counts
    assert "no server" in said and "marked so" in said


def test_a_skipped_module_is_a_failure_in_ci(tmp_path: Path) -> None:
    counts, said = outcome(tmp_path, MODULE, "1")
    assert counts.get("error") == 1
    assert "not on this system" in said


def test_a_test_that_takes_too_long_ends(tmp_path: Path) -> None:
    counts, said = outcome(tmp_path, SLOW, "")
    assert counts["failed"] == 1
    assert "took more than" in said


def test_what_tests_share_is_made_in_nobodys_time(tmp_path: Path) -> None:
    counts, said = outcome(tmp_path, SHARED_SERVER, "")
    assert counts == {"passed": 1, "failed": 1}, said
    assert "took more than 1 s: test_probe.py::test_slow" in said


def test_what_a_program_made_of_the_log_ends_with_its_test(tmp_path: Path) -> None:
    counts, said = outcome(tmp_path, LOGGING, "")
    assert counts == {"passed": 2}, said


def test_who_is_started_in_the_background_or_by_nohup_stops_programs_all_the_same(tmp_path: Path) -> None:
    counts, said = outcome(tmp_path, SIGNALS, "", "sh", "-c", 'trap "" INT HUP; exec "$@"', "sh")
    assert counts == {"passed": 1}, said


def test_absent_recordings_skip_by_name(tmp_path: Path) -> None:
    (only,) = recordings(tmp_path / "nothing-here")
    assert "absent:nothing-here" in str(only.id)
    assert [mark.name for mark in only.marks] == ["skip"]
