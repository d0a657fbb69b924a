"""The lock of ``ipam gc --lock`` goes whatever comes, whenever it comes (ruling 10)."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from calico_ipam.datastore.api import Create
from calico_ipam.datastore.sqlite import SQLiteStore
from calico_ipam.engine import lock
from calico_ipam.errors import StoreUnavailable
from calico_ipam.model.handle import Handle
from calico_ipam.model.keys import HandleKey
from tests.cluster import memory_folder
from tests.ctl import Ctl

GC = ("ipam", "gc", "--lock", "--yes")
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.fixture
def ctl() -> Iterator[Ctl]:
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        made = Ctl(Path(folder) / "ipam.db")
        made.ok("init", "--node", "node-1", "--ipv4-pool", "10.0.0.0/24")
        yield made


def is_locked(ctl: Ctl) -> bool:
    return "not locked" not in ctl.ok("datastore", "lock", "--status")


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("when", ["lock", "unlock"])
def test_a_signal_while_the_lock_is_changed(
    ctl: Ctl, monkeypatch: pytest.MonkeyPatch, when: str, number: signal.Signals
) -> None:
    """The lock was just written, or is just being removed: neither may be cut in half."""
    original = getattr(lock, when)

    def change(*arguments: Any, **more: Any) -> Any:
        done = original(*arguments, **more)
        os.kill(os.getpid(), number)
        return done

    again: list[int] = []
    monkeypatch.setattr(lock, when, change)
    monkeypatch.setattr(signal, "raise_signal", again.append)
    result = ctl(*GC)
    assert not is_locked(ctl)
    assert (result.exit_code, again) == (128 + number, [] if number == signal.SIGINT else [number])
    assert ("Nothing is leaked" in result.stdout) == (when == "unlock"), "nothing is done after the signal"


def test_a_lock_that_cannot_be_undone_is_told(ctl: Ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise StoreUnavailable("the datastore is away")

    monkeypatch.setattr(lock, "unlock", fail)
    assert "hint: The datastore stays locked: 'ipamctl datastore unlock'" in ctl.refused(*GC)
    assert is_locked(ctl)


def test_a_lock_that_was_there_stays(ctl: Ctl) -> None:
    ctl.ok("datastore", "lock")
    ctl.ok(*GC)
    assert is_locked(ctl)


def test_a_check_interrupted_between_its_two_looks(ctl: Ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    from calico_ipam.engine.policy import SystemClock

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    store = SQLiteStore(ctl.path)
    store.commit(Create(HandleKey("stray"), Handle("stray", {})))
    store.close()
    monkeypatch.setattr(SystemClock, "sleep", interrupt)
    result = ctl("ipam", "check", "--confirm-after", "60")
    assert (result.exit_code, result.stderr.strip()) == (130, "error: interrupted")
    assert "Check complete" not in result.stdout
