"""Ports for servers of tests: below those that the system gives to outgoing connections, which take any at any time."""

from __future__ import annotations

import os
import random
import socket

FIRST, LAST = 15_000, 32_000


def free_ports(number: int) -> list[int]:
    """Return different ports on which nobody listens now.

    Workers of one run have ports of their own, since a server takes a while to listen; chance keeps two runs apart.
    """
    found: list[int] = []
    for port in random.SystemRandom().sample(_of_this_worker(), 500):
        if len(found) == number:
            return found
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
    raise AssertionError(f"no {number} free ports from {FIRST} to {LAST}")


def _of_this_worker() -> range:
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    return range(FIRST + worker, LAST, workers)


def free_port() -> int:
    return free_ports(1)[0]
