"""How long the etcd backend waits for what."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Patience:
    """Times in seconds. A caller's deadline shortens each of them.

    ``request``: one operation, all its tries together; also upstream's dial timeout. ``connect``: how long endpoints
    that all refuse are asked again, long enough for a server that restarts. ``keepalive``, ``keepalive_answer``: a
    connection without traffic is tested that often, and given up without an answer. ``pulse``: a watch without events
    is tested that often and tells its position. ``outage``: a watch without any contact fails (datastore §7).
    """

    request: float = 10.0
    connect: float = 3.0
    keepalive: float = 30.0
    keepalive_answer: float = 10.0
    pulse: float = 10.0
    outage: float = 600.0
