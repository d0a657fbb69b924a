"""A call that somebody stops: what it did is undone, and the runtime hears an error instead of silence.

Only SIGKILL cannot be answered; after it, the next call for the sandbox heals what is left.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from calico_cni.errors import TRY_AGAIN_LATER, CNIError
from calico_cni.protocol import ADD

#: Seconds that undoing may take; whoever stopped the call has little patience.
UNDO_SECONDS = 15

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class CallStopped(BaseException):
    """The call was stopped by a signal. It is no Exception, so that no retry and no guard takes it for a failure."""

    def __init__(self, name: str, *, undone: bool = True) -> None:
        super().__init__(name)
        self.name = name
        self.undone = undone

    def error(self, command: str) -> CNIError:
        """Return what the runtime hears of it."""
        if command != ADD:
            details = "Repeat the call; it goes on with what is left to do."
        elif self.undone:
            details = "What it had done by then was undone; repeat the call."
        else:
            details = "Not all that it had done by then could be undone in time; DEL removes the rest."
        return CNIError(f"{command or 'the call'} was stopped by {self.name}", details, code=TRY_AGAIN_LATER)


@contextmanager
def stoppable() -> Iterator[None]:
    """Raise CallStopped in the block when a signal asks the process to end; a second one changes nothing.

    A signal that was ignored before stays ignored. Afterwards all are: the answer is on its way, and nobody could take
    it back any more.
    """
    stopped: list[str] = []
    heeded = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]

    def stop(number: int, _frame: FrameType | None) -> None:
        for other in heeded:
            signal.signal(other, signal.SIG_IGN)
        stopped.append(signal.Signals(number).name)
        signal.signal(signal.SIGALRM, give_up)
        signal.alarm(UNDO_SECONDS)
        raise CallStopped(stopped[0])

    def give_up(_number: int, _frame: FrameType | None) -> None:
        raise CallStopped(stopped[0], undone=False)

    try:
        for number in heeded:
            signal.signal(number, stop)
        yield
    finally:
        for number in heeded:
            signal.signal(number, signal.SIG_IGN)
        signal.alarm(0)
