"""``--watch``: showing the same again whenever the data changes."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from calico_ipam.ctl.session import Session

EVERY = 2.0  # seconds between two looks
CLEAR = "\x1b[H\x1b[2J"


class _Screen(io.StringIO):
    """Text that is written for the same reader as standard output."""

    def __init__(self, people: bool) -> None:
        super().__init__()
        self._people = people

    def isatty(self) -> bool:
        return self._people


def repeat(session: Session, once: Callable[[], None], *, rounds: int | None = None) -> None:
    """Run ``once`` every two seconds and show its output when it differs: on a terminal in place of the last, elsewhere
    one after the other. An interrupt ends it quietly."""
    from calico_ipam.errors import IPAMError

    people = session.for_people
    shown = ""
    while rounds is None or rounds > 0:
        screen = _Screen(people)
        try:
            with redirect_stdout(screen):
                once()
            text = screen.getvalue()
        except IPAMError as error:
            text = f"{error}\n"
        if text != shown:
            click.echo((CLEAR if people else "") + text, nl=False, color=people or None)
            sys.stdout.flush()
            shown = text
        if rounds is not None:
            rounds -= 1
            if not rounds:
                return
        try:
            time.sleep(EVERY)
        except KeyboardInterrupt:
            return
