"""What a run over recordings says at its end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.etcd_tools import Etcd
from tests.golden.cli_summary import summary as cli_summary
from tests.golden.library_summary import summary


@pytest.fixture(scope="session")
def etcd() -> Iterator[Etcd]:
    """One real etcd for all recordings of a worker; each begins with an empty one."""
    with Etcd() as running:
        yield running


#: A part of the names of tests, what their recordings are, and what makes lines of what they recorded.
SUMMARIES = (
    ("library_scenarios", "recorded library scenarios", summary),
    ("golden/test_cli.py", "recorded operator commands", cli_summary),
)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what of the recordings was replayed, excepted and pending (ruling 26)."""
    reports = [
        report
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "call"
    ]
    for part, title, lines_of in SUMMARIES:
        properties = [
            (str(name), str(value))
            for report in reports
            if part in report.nodeid
            for name, value in report.user_properties
        ]
        lines = lines_of(properties)
        if lines:
            terminalreporter.section(title)
        for line in lines:
            terminalreporter.write_line(line)
