"""What prepares a machine goes on after a failure that passes, and never leaves half a program behind."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.clock import LONG

SCRIPTS = Path(__file__).parents[2] / "scripts"
#: fails until it was started $GOOD times; then it makes the program, if it is there to make one
GO = """#!/bin/sh
echo "$@" >>"$TRIES"
mkdir -p "${GOBIN:-.}"
[ -z "$GOBIN" ] || printf half >"$GOBIN/tool"
[ "$(wc -l <"$TRIES")" -ge "$GOOD" ] || exit 7
[ -z "$GOBIN" ] || { printf whole >"$GOBIN/tool"; chmod +x "$GOBIN/tool"; }
"""


class Machine:
    """A machine whose ``go`` fails at first."""

    def __init__(self, folder: Path) -> None:
        self.tries, self.made = folder / "tries", folder / "cache" / "tool"
        self._programs = folder / "bin"
        self._programs.mkdir()
        (self._programs / "go").write_text(GO)
        (self._programs / "go").chmod(0o755)

    def run(self, *command: str, good: int) -> int:
        env = {
            "PATH": f"{self._programs}:{os.environ['PATH']}",
            "TRIES": str(self.tries),
            "GOOD": str(good),
            "AGAIN_PAUSES": "0 0 0",
        }
        done = subprocess.run(command, env=env, cwd=self._programs, capture_output=True, timeout=LONG, check=False)
        return done.returncode

    @property
    def started(self) -> int:
        return len(self.tries.read_text().splitlines())


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize(("good", "code", "started"), [(1, 0, 1), (3, 0, 3), (4, 0, 4), (5, 7, 4)])
def test_a_command_is_tried_again_until_it_succeeds(machine: Machine, good: int, code: int, started: int) -> None:
    assert machine.run(str(SCRIPTS / "again"), "go", "mod tidy", good=good) == code
    assert machine.started == started


def test_a_program_is_built_once_and_is_whole(machine: Machine) -> None:
    build = (str(SCRIPTS / "build-tool"), str(machine.made), "example.invalid/tool@v1")
    assert machine.run(*build, good=9) == 7
    assert not machine.made.exists()
    assert machine.run(*build, good=6) == 0
    assert machine.made.read_text() == "whole"
    assert machine.run(*build, good=99) == 0
    assert machine.started == 6
