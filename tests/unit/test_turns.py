"""One call at a time for each sandbox: calico_cni/turns.py."""

from __future__ import annotations

import fcntl
import io
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from calico_cni.logs import PLUGIN, Log, logging_to
from calico_cni.turns import own_turn
from tests.cni_bench import CNIBench
from tests.disturbers import nothing_kept

LOG = Log(PLUGIN)


def go_on() -> None:
    """Nobody stops these calls."""


def is_taken(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def test_a_turn_is_taken_and_given_back(tmp_path: Path) -> None:
    path = tmp_path / "netns"
    path.touch()
    with pytest.raises(KeyError), own_turn(str(path), LOG, go_on):
        assert is_taken(path)
        raise KeyError
    assert not is_taken(path)


def test_the_later_call_waits(tmp_path: Path) -> None:
    path = tmp_path / "netns"
    path.touch()
    order = []
    entered = threading.Event()

    def first() -> None:
        with own_turn(str(path), LOG, go_on):
            entered.set()
            time.sleep(0.2)
            order.append("first")

    thread = threading.Thread(target=first)
    thread.start()
    assert entered.wait(10)
    with own_turn(str(path), LOG, go_on):
        order.append("second")
    thread.join()
    assert order == ["first", "second"]


def test_a_turn_that_never_comes_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "netns"
    path.touch()
    stderr = io.StringIO()
    with logging_to(stderr), own_turn(str(path), LOG, go_on), own_turn(str(path), LOG, go_on, patience=0.1):
        pass
    assert "Another call for this sandbox has not ended" in stderr.getvalue()


@pytest.mark.parametrize("kind", ["absent", "empty", "nul", "pipe", "folder", "loop"])
def test_what_is_no_namespace_holds_up_nobody(tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path)
    with nothing_kept(), own_turn({"empty": "", "nul": "a\0b"}.get(kind, str(path)), LOG, go_on, patience=1.0):
        pass


def test_only_calls_that_touch_the_sandbox_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = CNIBench(tmp_path).prepare()
    asked: list[str] = []
    real = bench.context

    def context() -> object:
        from dataclasses import replace

        def turn(netns: str, log: Log, heed: Callable[[], None]) -> object:
            asked.append(netns)
            return own_turn("", log, heed)

        return replace(real(), turn=turn)

    monkeypatch.setattr(bench, "context", context)
    for verb in ("ADD", "CHECK", "DEL"):
        bench.ipam(verb)
    bench.call("CHECK")
    bench.call("DEL", netns="")
    assert asked == []
    bench.call("ADD", netns="/run/netns/a")
    bench.call("DEL", netns="/run/netns/a")
    assert asked == ["/run/netns/a"] * 2
