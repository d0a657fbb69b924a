"""One call at a time for each sandbox, and for each link of the host.

Runtimes must not call a plugin twice at once for one sandbox, and yet do when a call takes longer than they wait. Two
ADDs would each make what the other then replaces, and the one that fails would give back the address of the one that
did not: a sandbox would live on an address that is free for others. So the later call waits for the earlier; an ADD
then finds everything made, a DEL finds all there is to remove.

Old and new sandbox of a pod have different namespaces, but one host link. Until the new one's ADD has written its
record, a late DEL of the old one would take that link for its own (rulings 1).
"""

from __future__ import annotations

import fcntl
import os
import time
from binascii import crc32
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from calico_cni import timers
from calico_cni.logs import Log

_POLL = 0.05  # seconds


@contextmanager
def own_turn(netns: str, log: Log, heed: Callable[[], None], patience: float = timers.TURN) -> Iterator[None]:
    """Hold the sandbox's turn while the block runs; after ``patience`` seconds go on without it.

    The lock is on the namespace itself, which all its paths share, and ends with the process whatever happens. A
    namespace that is gone, or a path that is none, has nothing to wait for: the call will say what is wrong with it.
    """
    with ExitStack() as stack:
        try:
            # Without O_NONBLOCK a path that names a pipe would hang the call.
            descriptor = os.open(netns, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (OSError, ValueError):
            yield
            return
        stack.callback(os.close, descriptor)
        if not _take(partial(fcntl.flock, descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB), heed, patience):
            log.warning("Another call for this sandbox has not ended; going on beside it", netns=netns)
        yield


@contextmanager
def link_turn(
    file: Path, name: str, log: Log, heed: Callable[[], None], patience: float = timers.TURN
) -> Iterator[None]:
    """Hold the turn of the host link ``name`` while the block runs; after ``patience`` seconds go on without it.

    Each link of each namespace that is a host has a byte of its own in ``file``, which stays empty: there is nothing to
    clean up. Where it cannot be opened, that is a warning.
    """
    with ExitStack() as stack:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, descriptor)
            host = Path("/proc/thread-self/ns/net").stat().st_ino
        except OSError as error:
            log.warning("Calls for one link cannot be kept apart; going on all the same", file=file, error=error)
            yield
            return
        byte = (crc32(name.encode()) << 28) + host % (1 << 28)
        if not _take(partial(fcntl.lockf, descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte), heed, patience):
            log.warning("Another call for this link has not ended; going on beside it", link=name)
        yield


def _take(lock: Callable[[], object], heed: Callable[[], None], patience: float) -> bool:
    """Tell whether the lock could be had in time; a file system without locks has none to wait for."""
    deadline = time.monotonic() + patience
    while True:
        try:
            lock()
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            heed()
            time.sleep(_POLL)
        except OSError:
            return True
        else:
            return True
