"""The host-wide lock of calico-ipam (cni.md §7.3, rulings 16).

It spares processes of one host the races that compare-and-swap would settle anyway, so a lock that cannot be had is a
warning. It is a real ``flock(2)`` on upstream's path: Go and Python plugins on one node exclude each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from calico_cni import timers
from calico_cni.logs import Log

# Seconds between two tries. Short at first, because upstream's plugin waits inside flock(2) and would otherwise always
# be first; longer after a while, because each try costs a quarter of a millisecond: a hundred pods of a node that has
# just started would spend more of its processors on asking than on allocating.
_POLL = 0.01
_EAGER = 1.0
_SLOW_POLL = 0.05


@contextmanager
def host_lock(path: str, log: Log, heed: Callable[[], None], patience: float = timers.LOCK) -> Iterator[None]:
    """Hold the lock while the block runs; after ``patience`` seconds, or on any failure, go on without it.

    ``heed`` is called while one waits, and may raise what ends the call.
    """
    from filelock import Timeout, UnixFileLock

    def cancelled() -> bool:
        heed()
        return False

    lock = None
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        # Without flock there is no lock: a marker file would exclude nobody of upstream's, and outlive a kill -9.
        lock = UnixFileLock(path, mode=0o644, fallback_to_soft=False)
        try:
            lock.acquire(min(patience, _EAGER), _POLL, cancel_check=cancelled)
        except Timeout:
            lock.acquire(max(0.0, patience - _EAGER), _SLOW_POLL, cancel_check=cancelled)
    except Timeout:
        log.warning("The host-wide lock is still held by another process; going on without it", file=path)
    except (OSError, NotImplementedError) as error:
        log.warning("The host-wide lock cannot be taken; going on without it", file=path, error=error)
    try:
        yield
    finally:
        if lock is not None and lock.is_locked:
            lock.release()
