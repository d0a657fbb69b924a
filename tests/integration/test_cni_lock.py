"""The host-wide lock against upstream's way of taking it: a process that blocks in flock(2) (rulings 16)."""

from __future__ import annotations

import fcntl
import io
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from calico_cni.ipam.lock import host_lock
from calico_cni.logs import IPAM, Log, logging_to
from tests.shared import REPOSITORY

OURS = 50


def go_on() -> None:
    """Nobody stops these calls."""


def _add_one(counter: Path) -> None:
    """Read, wait a moment, write: two at once would lose a step."""
    value = int(counter.read_text())
    time.sleep(0.001)
    counter.write_text(str(value + 1))


def _ours(lock: str, counter: str) -> None:
    with host_lock(lock, Log(IPAM), go_on, patience=150):
        _add_one(Path(counter))


def _theirs(lock: str, counter: str, stop: str, count: str) -> None:
    """What upstream's plugin does, again and again."""
    done = 0
    while not Path(stop).exists():
        descriptor = os.open(lock, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        _add_one(Path(counter))
        done += 1
        os.close(descriptor)
    Path(count).write_text(str(done))


def _crowd(folder: Path) -> int:
    """Let ours and theirs meet; return how many steps of the counter were lost. A process in which nothing else runs:
    a fork copies whatever threads of other tests are in the middle of."""
    lock, counter, stop, count = (str(folder / name) for name in ("ipam.lock", "counter", "stop", "count"))
    Path(counter).write_text("0")
    context = multiprocessing.get_context("fork")
    theirs = context.Process(target=_theirs, args=(lock, counter, stop, count), daemon=True)
    ours = [context.Process(target=_ours, args=(lock, counter), daemon=True) for _ in range(OURS)]
    for process in (theirs, *ours):
        process.start()
    for process in ours:
        process.join(180)
        assert process.exitcode == 0
    Path(stop).touch()
    theirs.join(60)
    assert theirs.exitcode == 0
    return OURS + int(Path(count).read_text()) - int(Path(counter).read_text())


@pytest.mark.timeout(300)  # the quicker the machine, the shorter the moments in which their lock is free
def test_fifty_of_ours_against_a_loop_of_theirs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.integration.test_cni_lock", str(tmp_path)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr}"


def test_a_lock_that_stays_held_is_gone_without_after_the_wait(tmp_path: Path) -> None:
    lock = tmp_path / "ipam.lock"
    descriptor = os.open(lock, os.O_CREAT | os.O_RDWR)
    stderr = io.StringIO()
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        began = time.monotonic()
        with logging_to(stderr), host_lock(str(lock), Log(IPAM), go_on, patience=0.3):
            assert time.monotonic() - began >= 0.3
    finally:
        os.close(descriptor)
    assert "still held by another process; going on without it" in stderr.getvalue()


def test_waiting_costs_next_to_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that starts has a hundred calls in line: were they busy asking, none would get on.

    The clock is one that only waiting moves, else the tries of a busy machine would be counted.
    """
    lock = tmp_path / "ipam.lock"
    tries: list[float] = []
    now = 0.0
    really = fcntl.flock

    def sleep(seconds: float) -> None:
        nonlocal now
        now += max(seconds, 1e-6)  # what is too little for the number would be waited for for ever

    def counted(descriptor: int, operation: int) -> None:
        tries.append(now)
        really(descriptor, operation)

    descriptor = os.open(lock, os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        monkeypatch.setattr(fcntl, "flock", counted)
        monkeypatch.setattr(time, "perf_counter", lambda: now)
        monkeypatch.setattr(time, "sleep", sleep)
        with host_lock(str(lock), Log(IPAM), go_on, patience=4.0):
            over = now
    finally:
        monkeypatch.undo()
        os.close(descriptor)
    assert over >= 4.0
    eager = [at for at in tries if at < 1.0]
    assert len(eager) >= 50, "the first second is for those who ask often"
    assert 1 <= len(tries) - len(eager) <= 3.0 / 0.05 + 3, "the longer wait asks as often as the short one"


def test_the_lock_is_free_again_and_its_file_stays(tmp_path: Path) -> None:
    lock = tmp_path / "ipam.lock"
    with host_lock(str(lock), Log(IPAM), go_on):
        inode = lock.stat().st_ino
        descriptor = os.open(lock, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            raise AssertionError("somebody else got the lock")
        except BlockingIOError:
            pass
        finally:
            os.close(descriptor)
    assert lock.stat().st_ino == inode
    descriptor = os.open(lock, os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(descriptor)


if __name__ == "__main__":
    sys.exit(_crowd(Path(sys.argv[1])))
