"""`make demo`: what it promises, and what it says where it cannot run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import demo
from tests.clock import LONG
from tests.installed import need_root
from tests.shared import REPOSITORY


@pytest.mark.timeout(240)
def test_the_demo_shows_what_it_promises() -> None:
    need_root()
    command = [sys.executable, str(REPOSITORY / "scripts" / "demo.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3 * LONG, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[-1].endswith("Nothing is left: no link, no route, no address, no handle.")
    pings = [line for line in lines if "bytes from" in line]
    assert len(pings) == 2 * 6, "two families; red to blue, blue to red, host to and from each"
    assert "| Block" in done.stdout
    assert not [name for name in ("red", "blue") if Path("/run/netns", name).exists()]


def test_without_root_it_says_what_it_would_have_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert demo.main() == 1
    said = capsys.readouterr().out
    assert "needs root: sudo make demo" in said
    assert "What it would have done" in said
