"""Saying that something is under way, when it takes longer than a moment and a person is waiting (cli §17)."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from calico_ipam.ctl.session import Session

PATIENCE = 1.0  # seconds before anything is shown
_FRAMES = "|/-\\"


@contextmanager
def working(session: Session, doing: str) -> Iterator[None]:
    """Show ``doing`` with a turning bar on standard error, from a second on, while the body runs."""
    stream = sys.stderr
    if session.compat or stream is None or stream.closed or not stream.isatty():
        yield
        return
    done = threading.Event()

    def turn() -> None:
        if done.wait(PATIENCE):
            return
        frame = 0
        while not done.wait(0.15):
            stream.write(f"\r{_FRAMES[frame % len(_FRAMES)]} {doing} …")
            stream.flush()
            frame += 1
        if frame:
            stream.write("\r\x1b[K")
            stream.flush()

    thread = threading.Thread(target=turn, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
