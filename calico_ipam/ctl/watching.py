"""``--watch``: showing the same again whenever the data changes."""

from __future__ import annotations

import gc
import io
import json
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from calico_ipam.ctl.session import Session

CLEAR = "\x1b[H\x1b[2J"


class _Screen(io.StringIO):
    """Text that is written for the same reader as standard output."""

    def __init__(self, people: bool) -> None:
        super().__init__()
        self._people = people

    def isatty(self) -> bool:
        return self._people


def repeat(
    session: Session, once: Callable[[], None], *, every: float, lines: bool = False, rounds: int | None = None
) -> None:
    """Run ``once`` every so many seconds and show its output when it differs: on a terminal in place of the last,
    elsewhere one after the other, JSON (``lines``, or as the session's format says) as one line a time. An interrupt
    ends it quietly."""
    shown = ""
    done = 0
    with suppress(KeyboardInterrupt):
        while True:
            text = _look(session, once, lines=lines or session.output == "json")
            if text != shown:
                people = session.for_people
                click.echo((CLEAR if people else "") + text, nl=False, color=people or None)
                sys.stdout.flush()
                shown = text
            done += 1
            if done == rounds:
                return
            gc.collect()  # a call is not expected to last; this one does
            time.sleep(every)


def _look(session: Session, once: Callable[[], None], *, lines: bool) -> str:
    """Return what ``once`` shows, or why it shows nothing."""
    from calico_ipam.ctl.failures import ProblemsFound
    from calico_ipam.errors import IPAMError

    screen = _Screen(session.for_people)
    try:
        with redirect_stdout(screen):
            once()
    except ProblemsFound:
        pass  # what was found is on the screen
    except IPAMError as error:
        screen.write(f"{error}\n")
    text = screen.getvalue()
    if lines and text[:1] in ("{", "["):
        return json.dumps(json.loads(text), ensure_ascii=False) + "\n"
    return text
