"""Connections to one SQLite file: one for each thread, none across ``fork``."""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from pathlib import Path

from calico_ipam.datastore.sqlite_file import Missing, open_file
from calico_ipam.errors import StoreError


class Session:
    """A thread's connection. ``lock`` is held while it is used, so that a fork in another thread can wait."""

    def __init__(self, path: Path) -> None:
        self.lock = threading.RLock()
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._identity = (0, 0)

    def connection(self, missing: Missing) -> sqlite3.Connection:
        """Return the connection; opens it, and opens it anew when another file has taken the place of ours."""
        if self._connection is not None:
            self.abandon()  # again: an exception that a signal raises may have cut the first time short
            if self._connection is not None and _identity_of(self._path) == self._identity:
                return self._connection
            # SQLite itself would go on writing to a file that has no name any more.
            self.disconnect()
        # The identity of before: if another file takes the place while ours is opened, the next use sees that.
        before = _identity_of(self._path)
        connection = open_file(self._path, missing)
        self._identity = before or _identity_of(self._path) or (0, 0)
        self._connection = connection
        return connection

    def abandon(self) -> None:
        """Roll back whatever an error left open; a connection that cannot even do that is given up."""
        if self._connection is not None and self._connection.in_transaction:
            try:
                self._connection.execute("ROLLBACK")
            except sqlite3.Error:
                self.disconnect()

    def disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _identity_of(path: Path) -> tuple[int, int] | None:
    """Return what tells a file from another one of the same name; None when there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116  # the quick way, on the path of every operation
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino


class Connections:
    """All sessions of a store. ``closed`` is set once and for all by :meth:`close`.

    ``missing``: what the first of them does where there is no store.
    """

    def __init__(self, path: Path, missing: Missing = Missing.NEW) -> None:
        self.path = path
        self._missing = missing
        self.closed = threading.Event()
        self._lock = threading.RLock()
        self._local = threading.local()
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        self._held: list[Session] = []
        # SQLite's locks belong to a process and its memory of them to the library: a child that inherits an open
        # connection would believe in locks it does not hold. So there is none to inherit; both sides open again.
        this = weakref.ref(self)
        os.register_at_fork(
            before=lambda: _call(this, Connections._before_fork),
            after_in_parent=lambda: _call(this, Connections._after_fork),
            after_in_child=lambda: _call(this, Connections._after_fork),
        )

    def session(self) -> Session:
        """Return the session of the calling thread."""
        session: Session | None = getattr(self._local, "session", None)
        if session is None:
            session = Session(self.path)
            with self._lock:
                self._sessions.add(session)
            self._local.session = session
        return session

    def connection(self, session: Session) -> sqlite3.Connection:
        """Return the connection of a session whose lock is held. Raises StoreError once the store is closed."""
        if self.closed.is_set():
            raise StoreError(f"the datastore {self.path} has been closed", subject=str(self.path))
        # A file that vanishes under a running program is an error, not the beginning of an empty store.
        connection = session.connection(self._missing)
        self._missing = Missing.VANISHED
        return connection

    def close(self) -> None:
        self.closed.set()
        with self._lock:
            sessions = list(self._sessions)
        for session in sessions:
            with session.lock:
                session.disconnect()

    def _before_fork(self) -> None:
        self._lock.acquire()
        self._held = list(self._sessions)
        for session in self._held:
            session.lock.acquire()
            session.disconnect()

    def _after_fork(self) -> None:
        for session in self._held:
            session.lock.release()
        self._held = []
        self._lock.release()


def _call(reference: weakref.ref[Connections], action: object) -> None:
    connections = reference()
    if connections is not None and callable(action):
        action(connections)
