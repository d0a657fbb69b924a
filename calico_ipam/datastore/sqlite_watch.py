"""Following the change log of a SQLite store."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from calico_ipam.datastore.api import Revision
from calico_ipam.datastore.documents import RawChange, Row
from calico_ipam.datastore.paths import PathRange
from calico_ipam.errors import IPAMError, StoreUnavailable

if TYPE_CHECKING:
    from calico_ipam.datastore.sqlite import SQLiteStore

SHORTEST_POLL = 0.02  # seconds; doubled while nothing happens
LONGEST_POLL = 0.25
BATCH = 1000  # changes read at once
BOOKMARK_EVERY = 1000  # revisions without a change of the scope, after which the position is told
OUTAGE = 600.0  # seconds without any answer after which the watch fails (datastore §7)

_LOGGED = "SELECT revision, key, kind, document, previous FROM changes WHERE revision > ? ORDER BY revision LIMIT ?"
#: two questions, each answered from one end of the index; asked as one they would read the whole log
_BOUNDS = "SELECT (SELECT min(revision) FROM changes), (SELECT max(revision) FROM changes)"


class Changes(Iterator[RawChange | Revision]):
    """Changes of some ranges after a revision, for ever.

    The rows that were there are remembered, so that what happened while the log was too short to tell (or another file
    took the place of the old one) is found by listing again, deletions included.
    """

    def __init__(self, store: SQLiteStore, ranges: Sequence[PathRange], since: int) -> None:
        self._store = store
        self._ranges = ranges
        self._position = since
        self._told = since
        self._known: dict[str, Row] | None = None
        self._queue: deque[RawChange | Revision] = deque()
        self._looked: tuple[sqlite3.Connection, int, int] | None = None  #: at which state of the file
        self._closed = threading.Event()

    def close(self) -> None:
        """End the iteration, also one that waits in another thread."""
        self._closed.set()

    def __next__(self) -> RawChange | Revision:
        pause = SHORTEST_POLL
        answered = time.monotonic()
        while not self._ended():
            if self._queue:
                return self._queue.popleft()
            before = self._position
            try:
                self._store._run("watch", self._poll)
                answered = time.monotonic()
            except IPAMError as error:
                if self._ended():
                    break
                if not isinstance(error, StoreUnavailable) or time.monotonic() - answered > OUTAGE:
                    raise
            if self._queue:
                continue
            pause = SHORTEST_POLL if self._position != before else min(LONGEST_POLL, pause * 2)
            self._closed.wait(pause)
        raise StopIteration

    def _ended(self) -> bool:
        return self._closed.is_set() or self._store._connections.closed.is_set()

    def _poll(self, connection: sqlite3.Connection) -> None:
        """Read what happened in one transaction; nothing is taken over unless all of it was read."""
        # Whether anybody committed since, others or this connection, is known without a transaction.
        state = connection, connection.execute("PRAGMA data_version").fetchone()[0], connection.total_changes
        if state == self._looked:
            return
        connection.execute("BEGIN")
        oldest, newest = connection.execute(_BOUNDS).fetchone()
        newest = newest or 0
        gap = (oldest is not None and self._position + 1 < oldest) or newest < self._position
        # At first the whole log is read, so that the rows of this moment are those that its end leads to.
        limit = BATCH if self._known is not None else -1
        logged = [] if gap else connection.execute(_LOGGED, (self._position, limit)).fetchall()
        current = self._rows(connection) if gap or self._known is None else {}
        connection.execute("COMMIT")
        if gap:
            self._list_again(current, newest)
            return
        if self._known is None:
            self._known = current
        for item in logged:
            change = self._change(*item)
            if change is not None:
                self._tell(change)
        self._position = logged[-1][0] if logged else newest
        if self._position == newest:
            self._looked = state
        self._bookmark()

    def _rows(self, connection: sqlite3.Connection) -> dict[str, Row]:
        from calico_ipam.datastore.sqlite import rows_of

        return {row.path: row for each in self._ranges for row in rows_of(connection, each)}

    def _change(
        self, revision: int, path: str, kind: Literal["added", "modified", "deleted"], text: str, previous: int
    ) -> RawChange | None:
        if not any(each.holds(path) for each in self._ranges):
            return None
        row = Row(path, text, str(previous if kind == "deleted" else revision))
        return RawChange(kind, row, str(revision))

    def _tell(self, change: RawChange) -> None:
        assert self._known is not None  # noqa: S101  # set before anything is told
        if change.kind == "deleted":
            self._known.pop(change.row.path, None)
        else:
            self._known[change.row.path] = change.row
        self._queue.append(change)
        self._told = int(change.revision)

    def _list_again(self, current: dict[str, Row], newest: int) -> None:
        known = self._known or {}
        for path in sorted(known.keys() - current.keys()):
            self._queue.append(RawChange("deleted", known[path], str(newest)))
        for path, row in current.items():
            old = known.get(path)
            if old is None or (old.revision, old.text) != (row.revision, row.text):
                self._queue.append(RawChange("added" if old is None else "modified", row, row.revision))
        self._queue.append(str(newest))
        self._known = current
        self._position = self._told = newest

    def _bookmark(self) -> None:
        if self._position - self._told >= BOOKMARK_EVERY:
            self._queue.append(str(self._position))
            self._told = self._position
