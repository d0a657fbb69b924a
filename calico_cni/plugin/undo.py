"""What an ADD has made so far, and how it is taken back (rulings 5, cni.md §15.5, §15.17)."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from calico_cni.dataplane.api import DataplaneError
from calico_cni.errors import CNIError, cni_error
from calico_cni.logs import Log
from calico_cni.stopping import Stop, not_undone

Step = Callable[[], None]


class Attempt:
    """A guard around everything that follows an address: unless committed, link, record and address are taken back.

    In that order: an address is free again only when nothing uses it any more. A link that cannot be removed keeps its
    address, and the error says so.
    """

    def __init__(self, log: Log, stop: Stop) -> None:
        self._log = log
        self._stop = stop
        self._committed = False
        self.link: Step | None = None
        self.record: Step | None = None
        self.address: Step | None = None

    def commit(self) -> None:
        """Keep what was made."""
        self._committed = True

    def __enter__(self) -> Attempt:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._committed:
            return
        with self._stop.undoing():
            if not self._undo(error):
                not_undone(error)

    def _undo(self, error: BaseException | None) -> bool:
        """Take everything back; return whether nothing is left."""
        kept = "" if not _left_behind(error) else str(error)
        if not kept and self.link is not None:
            kept = self._failure_of(self.link, "the link")
        if kept:
            self._say_kept(error, kept)
            return False
        steps = ((self.record, "the endpoint record"), (self.address, "the address"))
        failures = [self._failure_of(step, what) for step, what in steps if step is not None]
        return not any(failures)

    def _failure_of(self, step: Step, what: str) -> str:
        """Do a step; return why it failed, which is only a warning: the runtime's DEL comes anyway."""
        try:
            step()
        except Exception as error:  # undoing goes on, whatever kind of failure this is
            self._log.warning(f"Could not take back {what} of a failed ADD", error=error)
            return str(error) or type(error).__name__
        return ""

    def _say_kept(self, error: BaseException | None, why: str) -> None:
        note = f"A link of this attempt could not be removed ({why}), so its address stays assigned; DEL releases both."
        self._log.error("The address of a failed ADD is kept, because its link could not be removed", reason=why)
        if isinstance(error, Exception):
            told = cni_error(error)
            details = f"{told.details} {note}" if told.details else note
            raise CNIError(told.message, details, code=told.code) from error


def _left_behind(error: BaseException | None) -> bool:
    return isinstance(error, DataplaneError) and error.left_behind
