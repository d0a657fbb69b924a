"""A call that somebody stops: what it did is undone, and the runtime hears an error instead of silence.

A signal is noted and heeded a moment later, where nothing is half done: before the next request to a datastore, pause,
or look at a program that runs. A request that does not end is cut off, because whoever makes one looks afterwards what
became of it. Everything else comes to its end: an exception in the middle of it would find a link that is made and not
yet known, or tell that all was undone when all had been kept.

Only SIGKILL cannot be answered; after it, the next call for the sandbox heals what is left.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from calico_cni.errors import TRY_AGAIN_LATER, CNIError
from calico_cni.protocol import ADD
from calico_ipam.datastore.passing import PassingStore

if TYPE_CHECKING:
    from calico_ipam.datastore.api import Datastore, Deadline, Entry, Listing, Snapshot, Write
    from calico_ipam.datastore.kube.api import Request
    from calico_ipam.datastore.kube.cluster import Server
    from calico_ipam.datastore.settings import Settings
    from calico_ipam.model.keys import Key, Scope

A = TypeVar("A")

#: Seconds that a request may still take after a signal; then it is cut off.
HEED_SECONDS = 5.0
#: Seconds that undoing may take; whoever stopped the call has little patience.
UNDO_SECONDS = 15.0
#: Seconds between two looks at a request that is to be cut off.
_AGAIN = 0.5

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
            details = "Not all that it had done by then could be undone; DEL removes the rest."
        return CNIError(f"{command or 'the call'} was stopped by {self.name}", details, code=TRY_AGAIN_LATER)


def not_undone(error: BaseException | None) -> None:
    """Let the error of a call that was stopped say that something is left of it."""
    if isinstance(error, CallStopped):
        error.undone = False


class Stop:
    """Whether the call was asked to end, and the only place that raises CallStopped for it."""

    def __init__(self) -> None:
        self._name = ""
        self._waiting = False
        self._undoing = 0
        self._until: float | None = None  # when the time for undoing is over

    def heed(self) -> None:
        """Raise CallStopped if a signal came; called wherever nothing is half done. Undoing goes on in its time."""
        late = self._until is not None and time.monotonic() > self._until
        if self._name and (late or not self._undoing):
            raise CallStopped(self._name, undone=not late)

    def waited(self, ask: Callable[[], A]) -> A:
        """Return what ``ask`` returns, a request whose outcome is looked up when it is cut off. Raises CallStopped."""
        self.heed()
        try:
            self._waiting = True
            return ask()
        finally:
            self._waiting = False

    @contextmanager
    def undoing(self) -> Iterator[None]:
        """Let a block take back what a call did, whyever that fails: it is not stopped before its time is over."""
        self._undoing += 1
        self._time_undoing()
        try:
            yield
        finally:
            self._undoing -= 1

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Note in the block a signal that asks the process to end; a second one changes nothing.

        A signal that was ignored before stays ignored. Afterwards all are: the answer is on its way, and nobody could
        take it back any more. A block that ends without having heeded a signal was quicker, and its answer holds.
        """
        heard = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]

        def note(number: int, _frame: FrameType | None) -> None:
            if self._name:
                return  # not ignored from the first on: Python complains when another one waits for its turn already
            self._name = signal.Signals(number).name
            signal.signal(signal.SIGALRM, self._lose_patience)
            signal.setitimer(signal.ITIMER_REAL, HEED_SECONDS, _AGAIN)
            self._time_undoing()

        try:
            for number in heard:
                signal.signal(number, note)
            yield
        finally:
            for number in heard:
                signal.signal(number, signal.SIG_IGN)
            signal.setitimer(signal.ITIMER_REAL, 0)
            self._name = ""

    def _time_undoing(self) -> None:
        """Begin the time for undoing, once a signal came and something is undone."""
        if self._name and self._undoing and self._until is None:
            self._until = time.monotonic() + UNDO_SECONDS

    def _lose_patience(self, _number: int, _frame: FrameType | None) -> None:
        """Cut off a request that does not come to an end by itself: one of the call, or a late one of undoing."""
        if self._waiting:
            self._waiting = False  # whatever becomes of the exception, it is raised inside this request only
            self.heed()
            self._waiting = True


class HeedingStore(PassingStore):
    """A store before each of whose requests a signal is heeded, and during one after a while."""

    def __init__(self, inner: Datastore, stop: Stop) -> None:
        super().__init__(inner)
        self._stop = stop

    def within(self, deadline: Deadline | None) -> HeedingStore:
        return HeedingStore(self.inner.within(deadline), self._stop)

    def get(self, key: Key) -> Entry:
        return self._stop.waited(lambda: self.inner.get(key))

    def list(self, scope: Scope) -> Listing:
        return self._stop.waited(lambda: self.inner.list(scope))

    def read(self, *wanted: Key | Scope) -> Snapshot:
        return self._stop.waited(lambda: self.inner.read(*wanted))

    def commit(self, *writes: Write) -> Sequence[Entry]:
        return self._stop.waited(lambda: self.inner.commit(*writes))

    def upgrade(self, host: str) -> None:
        self._stop.waited(lambda: self.inner.upgrade(host))


class HeedingServer:
    """An API server to which the same applies."""

    def __init__(self, inner: Server, stop: Stop) -> None:
        self._inner = inner
        self._stop = stop

    @property
    def settings(self) -> Settings:
        return self._inner.settings

    def call(self, request: Request, deadline: Deadline | None) -> dict[str, Any]:
        return self._stop.waited(lambda: self._inner.call(request, deadline))

    def close(self) -> None:
        self._inner.close()
