"""Running ipamctl in tests: in this process, and as a program on a terminal of a given width."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner, Result

from calico_ipam.ctl.main import cli

PROGRAM = (sys.executable, "-m", "calico_ipam.ctl.main")


@dataclass(frozen=True)
class Ctl:
    """ipamctl on one store file, with nothing of this host's settings."""

    path: Path

    @property
    def url(self) -> str:
        return f"sqlite://{self.path}"

    def __call__(self, *argv: str, env: Mapping[str, str | None] | None = None) -> Result:
        """Run a command in this process; standard output is no terminal."""
        return CliRunner().invoke(cli, ["--datastore", self.url, *argv], env=env)

    def ok(self, *argv: str) -> str:
        """Run a command that must succeed and return its standard output."""
        result = self(*argv)
        assert result.exit_code == 0, result.stderr
        return result.stdout

    def refused(self, *argv: str) -> str:
        """Run a command that must be refused politely and return its standard error."""
        result = self(*argv)
        assert result.exit_code == 1, (result.exit_code, result.stdout, result.stderr)
        assert "Traceback" not in result.output and "internal error" not in result.output
        return result.stderr

    def on_terminal(self, *argv: str, columns: int = 80, answer: str = "") -> tuple[int, str]:
        """Run a command on a terminal; return its exit code and what a person sees, without colours."""
        code, screen = on_terminal([*PROGRAM, "--datastore", self.url, *argv], columns=columns, answer=answer)
        return code, plain(screen)


def on_terminal(
    argv: Sequence[str], *, columns: int, answer: str = "", limit: float = 60.0, env: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Run a program on a terminal of its own, type ``answer`` when it asks, and return exit code and screen text."""
    child, screen = pty.fork()
    if child == 0:  # pragma: no cover - another process
        try:
            kept = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
            os.execvpe(argv[0], list(argv), {**kept, "TERM": "xterm", **(env or {})})
        finally:
            os._exit(127)
    seen = b""
    end = time.monotonic() + limit
    try:
        while time.monotonic() < end:
            if not select.select([screen], [], [], 0.1)[0]:
                continue
            try:
                part = os.read(screen, 65536)
            except OSError:  # the program has gone, and its side of the terminal with it
                break
            if not part:
                break
            seen += part
            if answer and seen.endswith(b"[y/N]: "):
                os.write(screen, answer.encode() + b"\n")
        else:
            raise AssertionError(f"still running after {limit} s: {seen.decode()}")
    finally:
        os.close(screen)
        _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), seen.decode().replace("\r\n", "\n")


def plain(screen: str) -> str:
    """Return screen text without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", screen)
