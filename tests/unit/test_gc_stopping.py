"""The collector is stopped at whatever moment: what follows and what elects ends, no signal is lost (gc §3)."""

from __future__ import annotations

import argparse
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from calico_gc import feed
from calico_gc.assembly import Collector, Place
from calico_gc.feed import DatastoreSource, KubeSource, KubeVirt, Source
from calico_gc.kinds import PODS
from calico_gc.main import Service, main
from calico_gc.node_sweep import Swept
from calico_gc.once import ShiftedClock
from calico_gc.settings import Settings
from calico_gc.sweep import main as sweeping

from calico_ipam.errors import StoreUnavailable
from calico_ipam.model.keys import Blocks
from tests.anywhere import at_line
from tests.clock import LONG
from tests.gc_lease import FakeApi
from tests.gc_world import GcClock
from tests.memory import MemoryStore


class Nobody:
    """Hears nothing."""

    def put(self, change: Any) -> None: ...


class Opened:
    """A watch, of the API server or of a store, that has to be closed and not read."""

    closed = False

    def stream(self, amt: Any) -> Iterator[bytes]:
        raise AssertionError("somebody waits for what nobody will close")
        yield b""

    def __iter__(self) -> Iterator[Any]:
        assert self.closed, "somebody waits for what nobody will close"
        return iter(())

    def close(self) -> None:
        self.closed = True


class Opening:
    """An API server, or a store, of which a watch is opened; ``meanwhile`` happens."""

    def __init__(self) -> None:
        self.opened = Opened()
        self.meanwhile: Callable[[], None] = lambda: None

    def open_stream(self, *_: Any) -> Opened:
        self.meanwhile()
        return self.opened

    def watch(self, *_: Any) -> Opened:
        self.meanwhile()
        return self.opened

    def call(self, *_: Any) -> dict[str, Any]:
        self.meanwhile()
        raise StoreUnavailable("it was closed")


def of_the_api_server(there: Any) -> Source:
    return KubeSource(there, PODS, Nobody())


def of_a_store(there: Any) -> Source:
    return DatastoreSource(there, Blocks(), Nobody())


@pytest.mark.parametrize("kind", [of_the_api_server, of_a_store])
def test_a_source_that_is_stopped_while_its_watch_is_opened_ends(kind: Callable[[Any], Source]) -> None:
    there = Opening()
    source = kind(there)
    there.meanwhile = source.stop
    source._watch()
    assert there.opened.closed


def test_a_source_that_is_stopped_while_its_watch_ends_is_stopped() -> None:
    """urllib3 calls what another thread has just taken away."""

    class Ending:
        def shutdown(self) -> None:
            raise TypeError("'NoneType' object is not callable")

    source = KubeSource(Opening(), PODS, Nobody())  # type: ignore[arg-type]  # a fake in its place
    source._response = Ending()
    source.stop()
    assert source._stop.is_set()


def test_a_source_that_was_stopped_does_not_complain(caplog: pytest.LogCaptureFixture) -> None:
    there = Opening()
    source = KubeSource(there, PODS, Nobody())  # type: ignore[arg-type]  # a fake in its place
    there.meanwhile = source.stop
    source._run_or_tell()
    assert "pods cannot be followed" not in caplog.text


def test_machines_are_not_followed_once_it_was_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    class Group:
        def call(self, *_: Any) -> dict[str, Any]:
            return {}

    class Late(KubeSource):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            source.stop()

        def start(self) -> None: ...

    source = KubeVirt(Group(), Nobody())  # type: ignore[arg-type]  # a fake in its place
    monkeypatch.setattr(feed, "KubeSource", Late)
    source._look()
    assert [each._stop.is_set() for each in source._inner] == [True, True]


def collector_of(api: Any) -> Collector:
    place = Place(MemoryStore(), api, host="n", instance="a")
    return Collector(place, Settings(events=False), ShiftedClock(GcClock()))


def test_an_election_that_breaks_ends_the_collector() -> None:
    """It would stand by for ever."""
    api = FakeApi()
    api.error = ZeroDivisionError("a bug")
    collector = collector_of(api)
    thread = collector._elect()
    assert thread is not None
    thread.join(LONG)
    calls, _ = collector.inbox.take(0.0)
    with pytest.raises(ZeroDivisionError):
        for call in calls:
            call.run()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_heard_wherever_it_comes(number: signal.Signals) -> None:
    """Also where the main thread is just starting another one."""
    collector = collector_of(None)
    service = Service(collector.settings, collector.place)
    stopped = threading.Event()
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        service._listen_to_signals(stopped.set)
        with threading._active_limbo_lock:  # type: ignore[attr-defined]  # what Thread.start() holds for a moment
            os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)  # a second one does no harm
        assert stopped.wait(LONG)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def test_sweeps_again_and_again_end_at_a_signal_wherever_it_comes() -> None:
    """The lines of ``threading`` too: what a handler may not touch is what the main thread may hold."""

    class Sweep:
        def run(self) -> Swept:
            self.runs += 1
            if self.runs > 2:  # the signal came before anybody listened to it
                signal.raise_signal(signal.SIGTERM)
            return Swept("n", 0, 0.0)

        runs = 0

    given = argparse.Namespace(every="1ms", json=False, metrics_file="")
    before = {each: signal.signal(each, lambda *_: None) for each in (signal.SIGTERM, signal.SIGINT)}
    place, came = 0, True
    try:
        while came:
            place += 1
            for each in before:
                signal.signal(each, lambda *_: None)
            sweep = Sweep()
            with at_line(place, lambda: signal.raise_signal(signal.SIGTERM), sweeping, threading) as lines:
                assert sweeping._again_and_again(sweep, given) == 0  # type: ignore[arg-type]  # a fake in its place
            came = len(lines) >= place
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert place > 10


@pytest.mark.parametrize("words", [["--once", "--host"], ["node-sweep", "--no-kubernetes"]])
def test_an_interrupt_of_a_program_that_runs_once_is_told_in_a_word(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("calico_ipam.datastore.config.load_settings", interrupted)
    assert main(words, {}) == 130
    assert capsys.readouterr().err == "calico-gc: interrupted\n"


def test_a_pause_between_sweeps_may_be_longer_than_any_machine_waits() -> None:
    class Sweep:
        def run(self) -> Swept:
            signal.raise_signal(signal.SIGTERM)
            return Swept("n", 0, 0.0)

    given = argparse.Namespace(every="9999999h", json=False, metrics_file="")
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        assert sweeping._again_and_again(Sweep(), given) == 0  # type: ignore[arg-type]  # a fake in its place
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
