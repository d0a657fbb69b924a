"""One call at a time for each sandbox: calico_cni/turns.py."""

from __future__ import annotations

import fcntl
import io
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from calico_cni.context import Context
from calico_cni.logs import PLUGIN, Log, logging_to
from calico_cni.turns import link_turn, own_turn
from tests.clock import LONG, SOON
from tests.cni_bench import HOST_NAME, CNIBench
from tests.disturbers import nothing_kept
from tests.pod_bench import HOST_NAME as POD_LINK
from tests.pod_bench import STORES, PodBench

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

    def context() -> Context:
        def turn(netns: str, log: Log, heed: Callable[[], None]) -> AbstractContextManager[None]:
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


# --- links of the host ------------------------------------------------------------------------------------------

HOLDER = """
import sys
from pathlib import Path
from calico_cni.logs import Log
from calico_cni.turns import link_turn

with link_turn(Path(sys.argv[1]), sys.argv[2], Log("none"), lambda: None):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def held(file: Path, name: str) -> Iterator[subprocess.Popen[str]]:
    """Let another process hold a link's turn."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", HOLDER, str(file), name]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def test_a_call_for_a_link_waits_for_another_one(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "turns"
    with held(file, "cali1") as other:
        asked = []

        def heed() -> None:
            asked.append(other.poll())
            other.kill()

        with link_turn(file, "cali1", LOG, heed, LONG):
            assert other.wait(SOON) != 0 and asked[0] is None
    assert file.stat().st_size == 0 and file.stat().st_mode & 0o777 == 0o600


def test_a_call_for_another_link_does_not(tmp_path: Path) -> None:
    def never() -> None:
        raise AssertionError("it waits")

    file = tmp_path / "turns"
    with held(file, "cali1"), nothing_kept(), link_turn(file, "cali2", LOG, never):
        pass


def test_a_link_whose_turn_never_comes_is_a_warning(tmp_path: Path) -> None:
    file, stderr = tmp_path / "turns", io.StringIO()
    with held(file, "cali1"), logging_to(stderr), link_turn(file, "cali1", LOG, go_on, patience=0.1):
        pass
    assert "Another call for this link has not ended" in stderr.getvalue()
    (tmp_path / "file").touch()
    with logging_to(stderr), link_turn(tmp_path / "file" / "turns", "cali1", LOG, go_on):
        pass
    assert "Calls for one link cannot be kept apart" in stderr.getvalue()


@pytest.mark.parametrize("kind", ["workload", *STORES])
def test_the_turn_lasts_from_the_first_look_to_the_last_write(tmp_path: Path, kind: str) -> None:
    """A DEL of the pod's old sandbox, which asks for the same turn, meets the new one's link with its record only."""
    bench = CNIBench(tmp_path).prepare() if kind == "workload" else PodBench(tmp_path, kind).prepare()
    seen: list[tuple[str, int, int, int]] = []
    real = bench.context

    def look(name: str) -> None:
        seen.append((name, len(bench.opened), len(bench.dataplane.pairs), len(bench.records())))

    @contextmanager
    def turn(name: str, log: Log, heed: Callable[[], None]) -> Iterator[None]:
        look(name)
        yield
        look(name)

    bench.context = lambda: replace(real(), link_turn=turn)  # type: ignore[method-assign]  # this bench's own
    assert bench.call("ADD").exit_code == 0
    assert bench.call("DEL").exit_code == 0
    name = HOST_NAME if kind == "workload" else POD_LINK
    assert seen == [(name, 0, 0, 0), (name, 1, 1, 1), (name, 1, 1, 1), (name, 2, 0, 0)]
