"""A host for one test: a network namespace that looks like a machine with an uplink.

Programs that the test starts are on that host. What is already there, links and routes of the real machine and of
other tests, cannot disturb the test, and the kernel removes everything with the namespace.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator

import pytest

from tests.installed import need_root, run
from tests.shared import REPOSITORY

IPV4, IPV6 = "192.0.2.1", "2001:db8::1"
CLONE_NEWNET = 0x40000000


def _checked(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@pytest.fixture
def private_host() -> Iterator[None]:
    """Be on a host of one's own. Namespaces are per thread: tests run in the main thread, and so start programs."""
    need_root()
    libc = ctypes.CDLL(None, use_errno=True)
    real = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _checked(libc.unshare(CLONE_NEWNET))
        try:
            run(REPOSITORY / "scripts" / "private-host")
            yield
        finally:
            _checked(libc.setns(real, CLONE_NEWNET))
    finally:
        os.close(real)
