"""A way from inside a network namespace to a server outside of it.

A socket belongs to the namespace in which it was made, whoever uses it later: the listener is made inside, connections
to the server are made outside, and threads carry the bytes.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from tests.netns_tools import inside


class Tunnel:
    """Listens on 127.0.0.1 inside a namespace and passes connections on to ``port`` of 127.0.0.1 outside."""

    def __init__(self, path: str, port: int) -> None:
        self._port = port
        with inside(path):
            self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()  # a socket that is shut down is not closed meanwhile
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    @property
    def port(self) -> int:
        """The port inside the namespace."""
        return int(self._listener.getsockname()[1])

    def close(self) -> None:
        """Stop listening and cut every connection."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join(15)  # before its descriptor may become another listener's
        self._listener.close()
        with self._lock:
            for each in self._open:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self._port), timeout=10)
                except OSError:
                    near.close()
                    continue
                far.settimeout(None)
                with self._lock:
                    self._open |= {near, far}
                threading.Thread(target=self._serve, args=(near, far), daemon=True).start()

    def _serve(self, near: socket.socket, far: socket.socket) -> None:
        """Carry both ways; whoever comes last closes both, so that nobody uses a descriptor that is closed."""
        back = threading.Thread(target=_carry, args=(far, near), daemon=True)
        back.start()
        _carry(near, far)
        back.join()
        with self._lock:
            self._open -= {near, far}
            near.close()
            far.close()


def _carry(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
