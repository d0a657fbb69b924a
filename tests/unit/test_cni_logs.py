"""Log lines: their form, their file, rotation by several processes, and that no log ever fails a call (cni.md §11)."""

from __future__ import annotations

import fcntl
import io
import logging
import multiprocessing
import os
import re
import time
from pathlib import Path

import pytest

from calico_cni.logs import IPAM, PLUGIN, Log, SharedFileHandler, logging_to
from calico_cni.netconf import LogConf

LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} \[(\w+)\]\[\d+\] ([\w-]+)/([\w.]+) (\d+): (.*)")


def written(conf: LogConf | None = None, name: str = PLUGIN, **fields: object) -> list[re.Match[str]]:
    stderr = io.StringIO()
    with logging_to(stderr, conf):
        log = Log(name, {"container": "abc"})
        log.debug("Debug", **fields)
        log.info("Info", **fields)
        log.warning("Warning", **fields)
        log.error("Error", **fields)
    found = [LINE.fullmatch(line) for line in stderr.getvalue().splitlines()]
    assert all(found), stderr.getvalue()
    return [match for match in found if match]


def test_form_of_a_line() -> None:
    info, *_ = written(num=3, text='a "b"\n', error=ValueError("bad"))
    assert info[1] == "INFO"
    assert (info[2], info[3]) == ("cni-plugin", Path(__file__).name), "the place that logged, not the logger's own"
    assert info[5] == 'Info container="abc" error=bad num=3 text="a \\"b\\"\\n"'


@pytest.mark.parametrize(
    ("name", "component"), [(PLUGIN, "cni-plugin"), (IPAM, "ipam"), ("calico_ipam.engine", "ipam")]
)
def test_components(name: str, component: str) -> None:
    assert {match[2] for match in written(name=name)} == {component}


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("debug", ["DEBUG", "INFO", "WARNING", "ERROR"]),
        ("info", ["INFO", "WARNING", "ERROR"]),
        ("error", ["ERROR"]),
    ],
)
def test_levels(level: str, expected: list[str]) -> None:
    assert [match[1] for match in written(LogConf(level=level))] == expected


def test_handlers_are_gone_afterwards() -> None:
    before = {name: list(logging.getLogger(name).handlers) for name in (PLUGIN, "calico_ipam")}
    written()
    assert {name: list(logging.getLogger(name).handlers) for name in before} == before


def test_the_file_gets_what_stderr_gets(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "dir" / "cni.log"
    stderr = io.StringIO()
    with logging_to(stderr, LogConf(path=str(path))):
        Log(PLUGIN).info("Hello")
    assert path.read_text() == stderr.getvalue()
    assert path.stat().st_mode & 0o777 == 0o644 & ~_umask()
    assert path.parent.stat().st_mode & 0o777 == 0o755 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize("path", ["/dev/full", "/proc/no/such", "/dev/null/x"])
def test_a_log_that_cannot_be_written_is_one_warning(path: str) -> None:
    stderr = io.StringIO()
    with logging_to(stderr, LogConf(path=path)):
        for _ in range(3):
            Log(PLUGIN).info("Hello")
    assert stderr.getvalue().count("Hello") == 3
    assert stderr.getvalue().count("Cannot write the log file") == 1


def test_a_stderr_that_is_closed_is_nothing() -> None:
    stderr = io.StringIO()
    stderr.close()
    with logging_to(stderr):
        Log(PLUGIN).info("Hello")


# --- rotation -----------------------------------------------------------------------------------------------


class SmallHandler(SharedFileHandler):
    """Rotates at 2 kB, since the setting counts megabytes."""

    _unit = 1


def small(path: Path, *, max_count: int = 10, max_age: int = 30) -> SmallHandler:
    handler = SmallHandler(LogConf(path=str(path), max_size=2000, max_count=max_count, max_age=max_age))
    handler.setFormatter(logging.Formatter("%(message)s"))
    return handler


def record(text: str) -> logging.LogRecord:
    return logging.LogRecord(PLUGIN, logging.INFO, __file__, 1, text, None, None)


def _write_many(path: str, who: int, lines: int) -> None:
    handler = small(Path(path), max_count=10_000)
    for number in range(lines):
        handler.emit(record(f"{who}-{number} " + "x" * 80))


def test_no_line_is_lost_or_torn_when_processes_rotate_at_once(tmp_path: Path) -> None:
    path = tmp_path / "cni.log"
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_write_many, args=(str(path), who, 200)) for who in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    files = list(tmp_path.glob("cni*.log"))
    assert len(files) > 4, "it was rotated"
    lines = [line for file in files for line in file.read_text().splitlines()]
    assert sorted(line.split()[0] for line in lines) == sorted(f"{w}-{n}" for w in range(4) for n in range(200))
    assert all(line.endswith("x" * 80) for line in lines)


def test_only_one_process_rotates_at_a_time_and_nobody_waits_for_it(tmp_path: Path) -> None:
    """One that was stopped in the middle of it would otherwise hang every call on its node."""
    path = tmp_path / "cni.log"
    path.write_text("x" * 3000)
    with (tmp_path / "cni.log.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        small(path).emit(record("y"))
        assert path.read_text() == "x" * 3000 + "y\n" and not list(tmp_path.glob("cni-*.log"))
    small(path).emit(record("z"))
    (rotated,) = tmp_path.glob("cni-*.log")
    assert rotated.read_text() == "x" * 3000 + "y\nz\n"


def test_a_file_that_another_process_has_just_moved_is_no_failure(tmp_path: Path) -> None:
    """The line was written, to what is now the other one's rotated file."""
    path, complaints = tmp_path / "cni.log", io.StringIO()

    class Late(SmallHandler):
        def _rotate(self) -> None:
            path.rename(tmp_path / "cni-2026-01-01T00-00-00.000.log")
            super()._rotate()

    handler = Late(small(path)._conf)
    handler.setFormatter(logging.Formatter("%(message)s"))
    with logging_to(complaints):
        handler.emit(record("x" * 3000))
    assert complaints.getvalue() == "" and not path.exists()


def test_old_and_surplus_files_go(tmp_path: Path) -> None:
    path = tmp_path / "cni.log"
    strangers = ["cni-notes.log", "cni.log.bak", "other-2026-01-01T00-00-00.000.log"]
    for name in strangers:
        (tmp_path / name).touch()
    for day in range(1, 9):
        (tmp_path / f"cni-2026-01-0{day}T00-00-00.000.log").touch()
    ancient = tmp_path / "cni-2026-01-09T00-00-00.000.log.zst"  # upstream compresses what it rotates
    ancient.touch()
    os.utime(ancient, (time.time() - 31 * 86400,) * 2)
    handler = small(path, max_count=3)
    for number in range(120):
        handler.emit(record(f"{number} " + "x" * 80))
    rotated = sorted(p.name for p in tmp_path.glob("cni-2*"))
    assert len(rotated) == 3
    assert not ancient.exists()
    assert all((tmp_path / name).exists() for name in strangers)
