"""Answers whose time limit is for the whole of them.

urllib3 bounds each single read of a socket: a server that sends one byte a second keeps a request with a limit of ten
seconds alive for as long as it likes. Here the limit that urllib3 has set when it begins to wait for an answer is
spent once, by status line, headers and body together.
"""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import time
from typing import Any

from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import NewConnectionError
from urllib3.util.ssl_match_hostname import CertificateError


def bound_answers(pool_manager: Any) -> None:
    """Make every answer of a pool manager keep its limit as a whole."""
    pool_manager.pool_classes_by_scheme = {"http": _BoundHTTP, "https": _BoundHTTPS}


class _Draining(io.RawIOBase):
    """The bytes of one answer, read from a socket whose timeout shrinks as time passes."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__()
        self._socket = connection
        self._inner: Any = connection.makefile("rb", buffering=0)  # keeps the socket open, as the original does
        limit = connection.gettimeout()
        self._ends = None if limit is None else time.monotonic() + limit

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self._ends is not None:
            left = self._ends - time.monotonic()
            if left <= 0:
                raise TimeoutError("timed out")
            self._socket.settimeout(left)
        count: int | None = self._inner.readinto(buffer)
        return count

    def close(self) -> None:
        self._inner.close()
        super().close()


class _Source:
    """Stands for the socket where http.client asks it for a file to read from."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Draining(self._socket))


class _Answer(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *arguments: Any, **named: Any) -> None:
        source: Any = _Source(sock)
        super().__init__(source, *arguments, **named)


class _HTTP(HTTPConnection):
    response_class = _Answer


class _HTTPS(HTTPSConnection):
    response_class = _Answer

    def connect(self) -> None:
        """Connect. A handshake that fails is told apart from TLS that breaks later: nothing has been sent yet."""
        try:
            super().connect()
        except (ssl.SSLError, CertificateError, TimeoutError) as error:
            raise NewConnectionError(self, str(error)) from error


class _BoundHTTP(HTTPConnectionPool):
    ConnectionCls = _HTTP


class _BoundHTTPS(HTTPSConnectionPool):
    ConnectionCls = _HTTPS
