"""Requests side by side: what one consistent read is elsewhere takes as long as its slowest request here."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

#: requests of one ``read`` that are under way at once
SIDE_BY_SIDE = 8


class Abreast:
    """Threads that make calls at once; made at the first need, made anew in a child of ``fork``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
        self._pid = 0

    def run(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """Return the results in the order of the calls; of several errors the first in that order is raised."""
        if len(calls) < 2:
            return [call() for call in calls]
        threads = self._ready()
        futures: list[Future[Any]] = [threads.submit(call) for call in calls[1:]]
        # The first runs here: one thread fewer to wake up.
        outcomes = [_outcome(calls[0]), *(_outcome(future.result) for future in futures)]
        for _, error in outcomes:
            if error is not None:
                raise error
        return [result for result, _ in outcomes]

    def _ready(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._threads is None or self._pid != os.getpid():
                self._threads = ThreadPoolExecutor(SIDE_BY_SIDE, thread_name_prefix="calico-ipam-read")
                self._pid = os.getpid()
            return self._threads

    def close(self) -> None:
        with self._lock:
            threads, self._threads = self._threads, None
        if threads is not None and self._pid == os.getpid():
            threads.shutdown(wait=False, cancel_futures=True)


def _outcome(call: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return call(), None
    except Exception as error:  # handed on by run(), after every call has ended
        return None, error
