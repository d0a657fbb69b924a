"""Requests side by side: what one consistent read is elsewhere takes as long as its slowest request here."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Executor, ThreadPoolExecutor
from typing import Any

#: requests of one ``read`` that are under way at once
SIDE_BY_SIDE = 8


class Abreast:
    """Threads that make calls at once; made at the first need, made anew in a child of ``fork``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
        self._pid = os.getpid()
        self._closed = False

    def run(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """Return the results in the order of the calls; of several errors the first in that order is raised.

        After :meth:`close` calls are made one after the other, and say themselves what they think of that.
        """
        threads = self._ready() if len(calls) > 1 else None
        if threads is None:
            return [call() for call in calls]
        waiting = [begun(threads, call) for call in calls[1:]]
        # The first runs here: one thread fewer to wake up.
        outcomes = [_outcome(call) for call in (calls[0], *waiting)]
        for _, error in outcomes:
            if error is not None:
                raise error
        return [result for result, _ in outcomes]

    def _ready(self) -> ThreadPoolExecutor | None:
        if self._pid != os.getpid():  # a child has one thread, and perhaps the lock of one that it has not
            self._lock, self._threads, self._pid = threading.Lock(), None, os.getpid()
        with self._lock:
            if self._threads is None and not self._closed:
                self._threads = ThreadPoolExecutor(SIDE_BY_SIDE, thread_name_prefix="calico-ipam-read")
            return self._threads

    def close(self) -> None:
        """End the threads; what they are doing is not waited for."""
        if self._pid != os.getpid():
            return
        with self._lock:
            self._closed = True
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)


def begun(threads: Executor, call: Callable[[], Any]) -> Callable[[], Any]:
    """Begin a call; return how to get its result. One that no thread will make is made by who wants the result."""
    try:
        future = threads.submit(call)
    except RuntimeError:  # closed in this moment, or the machine has no thread to spare
        return call

    def result() -> Any:
        try:
            return future.result()
        except CancelledError:  # closed before its turn came
            return call()

    return result


def _outcome(call: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return call(), None
    except Exception as error:  # handed on by run(), after every call has ended
        return None, error
