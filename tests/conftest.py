"""Rules that hold for every test: what CI makes of a skip, how long a test may take.

Tests run side by side, in as many processes as there are cores, those with links and servers too: each brings its own
host (a network namespace), its own folder and names that nobody else has, so two checkouts may test on one machine.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import pytest

from tests.shared import SHARED

if TYPE_CHECKING:
    from tests.kube_tools import KubeServer

#: Seconds a test may take, its own set-up and clean-up included, unless ``@pytest.mark.timeout(seconds)`` says more.
DEFAULT_TIMEOUT = 120.0
#: Seconds that making what several tests share may take: an API server, a browser, a machine.
SHARED_TIMEOUT = 300.0


def in_ci() -> bool:
    """Say whether this is continuous integration, where nothing may be left out."""
    return os.environ.get("CI", "").lower() in {"1", "true", "yes"}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "timeout(seconds): time this test may take instead of the default")
    _never_too_slow()
    _signals_are_heard()


def _signals_are_heard() -> None:
    """Tests stop programs by signals, and what is ignored here would be ignored by what we start: a shell ignores
    SIGINT for what it runs in the background, and nohup SIGHUP."""
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)  # this process itself goes on, as it was asked to


def _never_too_slow() -> None:
    """How long an example takes, or making it, says more about the machine than about us; in CI or elsewhere."""
    from hypothesis import HealthCheck, settings

    settings.register_profile("patient", settings(deadline=None, suppress_health_check=[HealthCheck.too_slow]))
    settings.load_profile("patient")


# --- a skip is a failure in CI ------------------------------------------------------------------------------


def _skip_fails(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip into a failure that keeps its reason: in CI a test that did not run proves nothing."""
    if not report.skipped or hasattr(report, "wasxfail") or not in_ci():
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    report.outcome = "failed"
    report.longrepr = f"{report.nodeid}: skips are failures in CI. {reason}"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _skip_fails(report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _skip_fails(report)
    return report


# --- time ---------------------------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """End a test that takes too long: by an exception that names it, or, stuck in C, with the process and a trace.

    SIGALRM needs the main thread, and tests do run there, under xdist too. The timer is this process's own: programs
    that a test starts and threads do not see it.
    """
    marker = item.get_closest_marker("timeout")
    seconds = float(marker.args[0]) if marker else DEFAULT_TIMEOUT
    if threading.current_thread() is not threading.main_thread():
        return (yield)
    before = signal.getsignal(signal.SIGALRM)
    _end_after(seconds, item.nodeid)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
    """Make what tests share in nobody's time: which of them comes first, and needs it, is chance."""
    left, _ = signal.getitimer(signal.ITIMER_REAL)
    if fixturedef.scope == "function" or not left or threading.current_thread() is not threading.main_thread():
        return (yield)
    expire = signal.getsignal(signal.SIGALRM)
    _end_after(SHARED_TIMEOUT, f"the fixture {fixturedef.argname}")
    try:
        return (yield)
    finally:
        signal.signal(signal.SIGALRM, expire)
        _start_clock(left)


def _end_after(seconds: float, what: str) -> None:
    def expire(signum: int, frame: FrameType | None) -> None:
        pytest.fail(f"took more than {seconds:g} s: {what}")

    signal.signal(signal.SIGALRM, expire)
    _start_clock(seconds)


def _start_clock(seconds: float) -> None:
    signal.setitimer(signal.ITIMER_REAL, seconds)
    assert sys.__stderr__ is not None, "a trace needs a standard error"
    faulthandler.dump_traceback_later(seconds + 30, exit=True, file=sys.__stderr__)


# --- logging ------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _log_of_its_own() -> Iterator[None]:
    """Undo what a program that ran in this process made of the log: whatever test comes next, it must not matter.

    Left there, its handler would write into a stream that was closed, and complain about that on standard error.
    """
    root = logging.getLogger()
    level = root.level
    yield
    root.setLevel(level)
    for handler in [each for each in root.handlers if type(each) is logging.StreamHandler]:  # pytest's are of its own
        root.removeHandler(handler)


# --- fixtures -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of recordings and specifications that the project is measured by; skips where it is absent."""
    if not SHARED.is_dir():
        pytest.skip(f"{SHARED} is absent: set CALICO_IPAM_SHARED to the folder that holds golden/")
    return SHARED


@pytest.fixture(scope="session")
def kube() -> Iterator[KubeServer]:
    """A real Kubernetes API server with Calico's v1 definitions, shared by the tests of a process: clear() it first."""
    from tests.kube_tools import KubeServer

    with KubeServer("v1") as running:
        yield running
