"""A signal that ends ``ipam gc --lock``: whenever it comes, and whatever it breaks, the lock goes and it is told."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from calico_ipam.ctl import gc
from calico_ipam.ctl.gc import _locked
from calico_ipam.ctl.session import Session
from calico_ipam.engine.lock import state
from calico_ipam.engine.survey import CLUSTER
from tests.anywhere import at_line
from tests.cluster import memory_folder
from tests.ctl import Ctl


@pytest.fixture
def session() -> Iterator[Session]:
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        ctl = Ctl(Path(folder) / "ipam.db")
        ctl.ok("init", "--node", "node-1", "--ipv4-pool", "10.0.0.0/24")
        opened = Session()
        opened.datastore = ctl.url
        try:
            yield opened
        finally:
            opened.close()


def is_locked(session: Session) -> bool:
    return state(session.store.get(CLUSTER)).locked


def test_a_failure_that_a_signal_caused_is_not_told_instead_of_it(session: Session) -> None:
    """A store that undoes a transaction which never began fails with words of its own."""

    def fail() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            raise RuntimeError("cannot rollback")

    with pytest.raises(KeyboardInterrupt):
        _locked(session, fail)
    assert not is_locked(session)


def test_other_failures_are_told(session: Session) -> None:
    def fail() -> None:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        _locked(session, fail)
    assert not is_locked(session)


@pytest.mark.parametrize("number", [1, 2])
def test_signals_before_any_line(session: Session, number: int) -> None:
    """``number`` of them, of one shutdown say: the lock goes, and the first that was heard is told afterwards."""
    outside: list[int] = []
    signals = (signal.SIGTERM, signal.SIGHUP)[:number]
    before = {each: signal.signal(each, lambda number, _frame: outside.append(number)) for each in signals}

    def act() -> None:
        try:
            signal.raise_signal(signals[0])
        finally:
            signal.raise_signal(signals[-1])

    def work() -> None:
        assert is_locked(session)

    place, came = 0, True
    try:
        while came:
            place += 1
            outside.clear()
            ended: BaseException | None = None
            with at_line(place, act, gc) as lines:
                try:
                    _locked(session, work)
                except BaseException as error:
                    ended = error
            came = len(lines) >= place
            where = lines[place - 1] if came else "the end"
            assert not is_locked(session), where
            assert ended is None or isinstance(ended, SystemExit), (where, ended)
            assert bool(outside) == came, where
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert place > 20, "hardly any line was tried"
