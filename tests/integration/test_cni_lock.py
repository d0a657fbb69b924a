"""The host-wide lock against upstream's way of taking it: a process that blocks in flock(2) (rulings 16)."""

from __future__ import annotations

import fcntl
import io
import multiprocessing
import os
import time
from pathlib import Path

import pytest

from calico_cni.ipam.lock import host_lock
from calico_cni.logs import IPAM, Log, logging_to

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


@pytest.mark.timeout(300)  # the quicker the machine, the shorter the moments in which their lock is free
def test_fifty_of_ours_against_a_loop_of_theirs(tmp_path: Path) -> None:
    lock, counter, stop, count = (str(tmp_path / name) for name in ("ipam.lock", "counter", "stop", "count"))
    Path(counter).write_text("0")
    context = multiprocessing.get_context("fork")
    theirs = context.Process(target=_theirs, args=(lock, counter, stop, count))
    ours = [context.Process(target=_ours, args=(lock, counter)) for _ in range(OURS)]
    for process in (theirs, *ours):
        process.start()
    for process in ours:
        process.join(180)
        assert process.exitcode == 0
    Path(stop).touch()
    theirs.join(60)
    assert theirs.exitcode == 0
    assert int(Path(counter).read_text()) == OURS + int(Path(count).read_text())


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
    """A node that starts has a hundred calls in line: were they busy asking, none would get on."""
    lock = tmp_path / "ipam.lock"
    tries: list[float] = []
    really = fcntl.flock

    def counted(descriptor: int, operation: int) -> None:
        tries.append(time.monotonic())
        really(descriptor, operation)

    descriptor = os.open(lock, os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        monkeypatch.setattr(fcntl, "flock", counted)
        with host_lock(str(lock), Log(IPAM), go_on, patience=4.0):
            over = time.monotonic()
    finally:
        os.close(descriptor)
    began = tries[0]  # what came before was not waiting, but a busy machine
    late = [at for at in tries if at - began > 1.2]
    assert len(tries) > 10, "the first second is for those who ask often"
    assert 1 <= len(late) <= (over - began - 1.2) / 0.05 + 1, "the longer wait asks as often as the short one"


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
