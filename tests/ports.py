"""Ports for servers of tests: below those that the system gives to outgoing connections, which take any at any time."""

from __future__ import annotations

import random
import socket

FIRST, LAST = 15_000, 32_000


def free_ports(number: int) -> list[int]:
    """Return different ports on which nobody listens now. Chance keeps tests that run side by side apart."""
    found: list[int] = []
    for port in random.SystemRandom().sample(range(FIRST, LAST), 1000):
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


def free_port() -> int:
    return free_ports(1)[0]
