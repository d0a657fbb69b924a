"""A call that somebody stops: what it did is undone, and the runtime hears an error instead of silence.

A signal is noted and heeded a moment later, where nothing is half done: before the next request to a datastore, pause,
or look at a program that runs. An exception that came in the middle of anything would find a link that is made and not
yet known, or be dropped where Python drops them: in a finalizer, in a callback of a weak reference.

Only SIGKILL cannot be answered; after it, the next call for the sandbox heals what is left.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from calico_cni.errors import TRY_AGAIN_LATER, CNIError
from calico_cni.protocol import ADD
from calico_ipam.datastore.passing import PassingStore

if TYPE_CHECKING:
    from calico_ipam.datastore.api import Datastore, Deadline, Entry, Listing, Snapshot, Write
    from calico_ipam.model.keys import Key, Scope

#: Seconds within which a call should come to a place where it can heed a signal; then it is interrupted where it is.
HEED_SECONDS = 5
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


class Stop:
    """Whether the call was asked to end, and the only place that raises CallStopped for it.

    Where it was raised once, undoing begins, and :meth:`heed` lets everything pass.
    """

    def __init__(self) -> None:
        self._name = ""
        self._told = False

    def heed(self) -> None:
        """Raise CallStopped if a signal came, the first time; called wherever nothing is half done."""
        if self._name and not self._told:
            self._tell()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Note in the block a signal that asks the process to end; a second one changes nothing.

        A signal that was ignored before stays ignored. Afterwards all are: the answer is on its way, and nobody could
        take it back any more. A block that ends without having heeded a signal was quicker, and its answer holds.
        """
        heard = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]

        def note(number: int, _frame: FrameType | None) -> None:
            for other in heard:
                signal.signal(other, signal.SIG_IGN)
            self._name = signal.Signals(number).name
            signal.signal(signal.SIGALRM, self._lose_patience)
            signal.setitimer(signal.ITIMER_REAL, HEED_SECONDS, HEED_SECONDS)

        try:
            for number in heard:
                signal.signal(number, note)
            yield
        finally:
            for number in heard:
                signal.signal(number, signal.SIG_IGN)
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _tell(self) -> None:
        self._told = True
        signal.setitimer(signal.ITIMER_REAL, UNDO_SECONDS, UNDO_SECONDS)
        raise CallStopped(self._name)

    def _lose_patience(self, _number: int, _frame: FrameType | None) -> None:
        """Interrupt what does not come to an end by itself: first the call, then the undoing."""
        if self._told:
            raise CallStopped(self._name, undone=False)
        self._tell()


class HeedingStore(PassingStore):
    """A store before each of whose requests a signal is heeded: what was sent is also waited for."""

    def __init__(self, inner: Datastore, stop: Stop) -> None:
        super().__init__(inner)
        self._stop = stop

    def within(self, deadline: Deadline | None) -> HeedingStore:
        return HeedingStore(self.inner.within(deadline), self._stop)

    def get(self, key: Key) -> Entry:
        self._stop.heed()
        return self.inner.get(key)

    def list(self, scope: Scope) -> Listing:
        self._stop.heed()
        return self.inner.list(scope)

    def read(self, *wanted: Key | Scope) -> Snapshot:
        self._stop.heed()
        return self.inner.read(*wanted)

    def commit(self, *writes: Write) -> Sequence[Entry]:
        self._stop.heed()
        return self.inner.commit(*writes)
