"""An HTTP server that behaves badly in one way at a time, where an API server is expected.

::

    with BadApi(hanging) as bad:
        store = KubernetesStore(bad.settings())
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from calico_ipam.datastore.settings import KUBERNETES, Settings

Behaviour = Callable[[socket.socket, "Received"], None]


class Received:
    """One request: method, path with query, headers (lower case), body."""

    def __init__(self, head: bytes, body: bytes) -> None:
        first, *rest = head.decode().split("\r\n")
        self.method, self.path, _ = first.split(" ", 2)
        self.headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in rest if line)}
        self.body = body

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class BadApi:
    """Serves ``behaviour`` on a port of its own; ``requests`` are those that came in. It can be changed at any time."""

    def __init__(self, behaviour: Behaviour, host: str = "127.0.0.1") -> None:
        self.behaviour = behaviour
        self.requests: list[Received] = []
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family)
        self.port = int(self._listener.getsockname()[1])
        self.url = f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"
        self._closing = threading.Event()
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()  # a socket that is shut down is not closed meanwhile
        self._accepting = threading.Thread(target=self._accept, daemon=True)

    def settings(self, **more: Any) -> Settings:
        return Settings(KUBERNETES, "the test", **{"k8s_api_endpoint": self.url, "calico_api_group": "v1", **more})

    def __enter__(self) -> BadApi:
        self._accepting.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join(10)  # before its descriptor may become another listener's
        self._listener.close()
        with self._lock:
            for each in self._open:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self._open.add(client)
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            self._answer(client)
        finally:
            with self._lock:
                self._open.discard(client)
            client.close()

    def _answer(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            received = b""
            while True:
                while b"\r\n\r\n" not in received:
                    piece = client.recv(65536)
                    if not piece:
                        return
                    received += piece
                head, _, received = received.partition(b"\r\n\r\n")
                length = int(Received(head, b"").headers.get("content-length", 0))
                while len(received) < length:
                    piece = client.recv(65536)
                    if not piece:
                        return
                    received += piece
                request, received = Received(head, received[:length]), received[length:]
                self.requests.append(request)
                self.behaviour(client, request)


# --- what it may do -----------------------------------------------------------------------------------------


def respond(
    client: socket.socket,
    status: int,
    body: bytes,
    headers: Mapping[str, str] | None = None,
    content_type: str = "application/json",
) -> None:
    lines = [f"HTTP/1.1 {status} X", f"Content-Type: {content_type}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    client.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)


def status_body(code: int, reason: str, message: str) -> bytes:
    return json.dumps(
        {"kind": "Status", "status": "Failure", "reason": reason, "message": message, "code": code}
    ).encode()


def answering(status: int, document: Any = None, **headers: str) -> Behaviour:
    """Every request gets this answer; header names are given with ``_`` for ``-``."""
    body = document if isinstance(document, bytes) else json.dumps(document or {}).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda client, request: respond(client, status, body, named)


def html(status: int) -> Behaviour:
    page = b"<html><body><h1>It works!</h1></body></html>"
    return lambda client, request: respond(client, status, page, content_type="text/html")


def hanging(client: socket.socket, request: Received) -> None:
    """Take the request and never say a word."""
    client.recv(1)


def dripping(client: socket.socket, request: Received) -> None:
    """Five bytes a second, beginning with the status line."""
    for byte in b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n" + b" " * 1000:
        client.sendall(bytes([byte]))
        time.sleep(0.2)


def dripping_body(client: socket.socket, request: Received) -> None:
    """Headers at once, then a byte now and then."""
    client.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n")
    for _ in range(1000):
        client.sendall(b" ")
        time.sleep(0.2)


def closing(client: socket.socket, request: Received) -> None:
    """Close without an answer."""
    client.shutdown(socket.SHUT_RDWR)


def half(client: socket.socket, request: Received) -> None:
    """Promise more than is sent."""
    client.sendall(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n{"kind":')
    client.shutdown(socket.SHUT_RDWR)


def in_turn(*behaviours: Behaviour) -> Behaviour:
    """One behaviour after the other, the last one for ever."""
    left = list(behaviours)

    def serve(client: socket.socket, request: Received) -> None:
        (left.pop(0) if len(left) > 1 else left[0])(client, request)

    return serve
