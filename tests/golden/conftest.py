"""What a run over recordings says at its end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.etcd_tools import Etcd
from tests.golden.library_summary import summary


@pytest.fixture(scope="session")
def etcd() -> Iterator[Etcd]:
    """One real etcd for all recordings of a worker; each begins with an empty one."""
    with Etcd() as running:
        yield running


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what of the recorded library scenarios was replayed, excepted and pending (ruling 26)."""
    properties = [
        (str(name), str(value))
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "call" and "library_scenarios" in report.nodeid
        for name, value in report.user_properties
    ]
    lines = summary(properties)
    if lines:
        terminalreporter.section("recorded library scenarios")
        for line in lines:
            terminalreporter.write_line(line)
