"""An API server that misbehaves: plain HTTP on a port of this machine, answering as it is told."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

Behaviour = Callable[[socket.socket, str], None]


class MisbehavingApi:
    """Answers every connection with ``behaviour``, which gets the socket and the request line; it may be exchanged."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ended = threading.Event()
        self.requests: list[str] = []
        self._serving = threading.Thread(target=self._serve, daemon=True)
        self._serving.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        self._ended.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._serving.join(10)  # before its descriptor may become another listener's
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with suppress(OSError), connection:
            received = b""
            while b"\r\n\r\n" not in received:
                data = connection.recv(65536)
                if not data:
                    return
                received += data
            line = received.partition(b"\r\n")[0].decode()
            self.requests.append(line)
            self.behaviour(connection, line)

    # --- behaviours -----------------------------------------------------------------------------------------

    def hang(self, connection: socket.socket, _line: str) -> None:
        self._ended.wait(60)

    def drip(self, connection: socket.socket, _line: str) -> None:
        """Send one byte of a good answer each tenth of a second."""
        for byte in answer(200, "{}" + " " * 1000):
            connection.send(bytes([byte]))
            if self._ended.wait(0.1):
                return


def answer(status: int, body: str, content_type: str = "application/json", headers: str = "") -> bytes:
    """Return an HTTP answer that ends the connection."""
    head = f"HTTP/1.1 {status} Told\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Connection: close\r\n{headers}\r\n{body}".encode()


def saying(status: int, reason: str = "", message: str = "told", headers: str = "") -> Behaviour:
    """Return a behaviour that answers with a Status of Kubernetes."""
    body = json.dumps({"kind": "Status", "status": "Failure", "code": status, "reason": reason, "message": message})
    return lambda connection, _line: connection.sendall(answer(status, body, headers=headers))


def html(connection: socket.socket, _line: str) -> None:
    connection.sendall(answer(200, "<html><body>Sign in</body></html>", "text/html"))


def cut(connection: socket.socket, _line: str) -> None:
    connection.sendall(answer(200, "{}" + " " * 500)[:80])


def drop(connection: socket.socket, _line: str) -> None:
    """Close without an answer."""
