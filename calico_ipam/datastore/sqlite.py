"""The embedded datastore: one SQLite file that many processes of one host share (design §4, rulings 13).

Keys and documents are those of etcd, so a dump moves between the two. A revision is the number of a change in the
whole store, as etcd's is.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Self, TypeVar

from calico_ipam.datastore.api import Deadline, Revision
from calico_ipam.datastore.documents import DocumentStore, RawChange, RawLoss, RawWrite, Row
from calico_ipam.datastore.paths import PathRange
from calico_ipam.datastore.sqlite_connections import Connections
from calico_ipam.datastore.sqlite_file import Missing, explain, is_busy
from calico_ipam.datastore.sqlite_watch import Changes
from calico_ipam.errors import InvalidInput, OutcomeUnknown, StoreUnavailable

T = TypeVar("T")

PATIENCE = 10.0  # seconds that an operation without a deadline waits for the lock
FIRST_PAUSE = 0.0002  # seconds; a commit takes about as long
LONGEST_PAUSE = 0.01
KEPT_CHANGES = 8192  # changes that watchers can still read; older ones go, a thousandth part of the time
TRIM_EVERY = 256
MOST_DIGITS = 18  # of a revision, a signed number of 64 bits

_GET = "SELECT document, revision FROM objects WHERE key = ?"
_RANGE = "SELECT key, document, revision FROM objects WHERE key >= ? AND key < ? ORDER BY key"
_NEWEST = "SELECT max(revision) FROM changes"
_LOG = "INSERT INTO changes (revision, key, kind, document, previous) VALUES (?, ?, ?, ?, ?)"
_CREATE = "INSERT INTO objects (key, document, revision) VALUES (?, ?, ?) ON CONFLICT (key) DO NOTHING"
_UPDATE = "UPDATE objects SET document = ?, revision = ? WHERE key = ?"
_DELETE = "DELETE FROM objects WHERE key = ?"
_TRIM = "DELETE FROM changes WHERE revision <= ?"


class SQLiteStore(DocumentStore):
    """A datastore in the file ``path``, which is made if it is not there (mode 0600, in a folder of mode 0700).

    ``missing``: REFUSED opens only what somebody has made before.

    Safe between threads and processes; a child after ``fork`` opens the file anew. ``now`` gives creation times (Unix
    nanoseconds). Raises StoreError and StoreDamaged for a file that cannot be a store; such a file is left as it is.
    """

    def __init__(
        self, path: str | Path, *, now: Callable[[], int] = time.time_ns, missing: Missing = Missing.NEW
    ) -> None:
        super().__init__(now=now)
        self.path = Path(path).absolute()
        self._connections = Connections(self.path, missing)
        self._run("open", newest)  # now, so that a file that cannot be a store is told at once

    @property
    def name(self) -> str:
        return f"sqlite://{self.path}"

    def close(self) -> None:
        """Close the file for every view of this store; watches end."""
        self._connections.close()

    def backup(self, target: str | Path) -> None:
        """Write a consistent copy of the live store to a new file. Raises InvalidInput when the file exists."""
        from calico_ipam.datastore.sqlite_backup import backup

        self._run("back up", lambda connection: backup(connection, self.path, Path(target).absolute()))

    # --- DocumentStore -------------------------------------------------------------------------------------

    def _copy(self) -> Self:
        view = object.__new__(type(self))
        view.__dict__.update(self.__dict__)
        return view

    def _raw_read(
        self, paths: Sequence[str], ranges: Sequence[PathRange]
    ) -> tuple[list[Row | None], list[list[Row]], Revision]:
        def work(connection: sqlite3.Connection) -> tuple[list[Row | None], list[list[Row]], Revision]:
            if len(paths) == 1 and not ranges:
                return [_row(connection, paths[0])], [], ""
            connection.execute("BEGIN")
            rows = [_row(connection, path) for path in paths]
            lists = [rows_of(connection, each) for each in ranges]
            revision = str(newest(connection))
            connection.execute("COMMIT")
            return rows, lists, revision

        return self._run("read", work)

    def _raw_commit(self, writes: Sequence[RawWrite]) -> list[Revision]:
        return self._run("write", lambda connection: _commit(connection, writes, self.path))

    def _raw_watch(self, ranges: Sequence[PathRange], since: Revision) -> Iterator[RawChange | Revision]:
        if not (since.isascii() and since.isdigit() and len(since) <= MOST_DIGITS):
            raise InvalidInput(f"error with field ResourceVersion = '{since}' (not a revision of this datastore)")
        return Changes(self, ranges, int(since))

    # --- patience ------------------------------------------------------------------------------------------

    def _run(self, doing: str, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do ``work``, from the beginning each time somebody else holds the lock, until the deadline."""
        if self.deadline is not None:
            self.deadline.check(f"about to {doing} {self.name}")
        deadline = self.deadline or Deadline.after(PATIENCE)
        session = self._connections.session()
        pause = FIRST_PAUSE
        while True:
            with session.lock:
                try:
                    return work(self._connections.connection(session))
                except sqlite3.Error as error:
                    session.abandon()
                    if not is_busy(error):
                        raise explain(error, self.path, doing) from error
                except BaseException:
                    session.abandon()
                    raise
            from random import uniform  # a millisecond that only they pay who must wait

            wait = uniform(pause / 2, pause)
            if deadline.remaining() <= wait:
                raise StoreUnavailable(
                    f"cannot {doing} the datastore {self.path}: another process keeps it locked",
                    subject=str(self.path),
                    hint="Try again; if it persists, look for a program that holds the file ('fuser' names it).",
                )
            time.sleep(wait)
            pause = min(LONGEST_PAUSE, pause * 2)


def newest(connection: sqlite3.Connection) -> int:
    """Return the revision of the store: the number of its latest change."""
    return connection.execute(_NEWEST).fetchone()[0] or 0


def rows_of(connection: sqlite3.Connection, each: PathRange) -> list[Row]:
    """Return the rows of a range in path order."""
    found = connection.execute(_RANGE, (each.start, each.end))
    return [Row(path, text, str(revision)) for path, text, revision in found]


def _row(connection: sqlite3.Connection, path: str) -> Row | None:
    found = connection.execute(_GET, (path,)).fetchone()
    return Row(path, found[0], str(found[1])) if found else None


def _commit(connection: sqlite3.Connection, writes: Sequence[RawWrite], path: Path) -> list[Revision]:
    connection.execute("BEGIN IMMEDIATE")
    first = newest(connection) + 1
    for position, write in enumerate(writes):
        before = _row(connection, write.path) if write.kind != "create" else None
        if not _apply(connection, write, first + position, before):
            raise RawLoss(position, before or _row(connection, write.path))
    last = first + len(writes) - 1
    if last // TRIM_EVERY != (first - 1) // TRIM_EVERY:
        connection.execute(_TRIM, (last - KEPT_CHANGES,))
    try:
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        if is_busy(error) or error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_FULL:
            raise  # known not to have happened
        # The journal may have reached the disk although we were told otherwise.
        raise OutcomeUnknown(
            f"cannot tell whether the last write to the datastore {path} was kept: {error}",
            subject=str(path),
            hint="Check its disk.",
        ) from error
    return [str(first + position) for position in range(len(writes))]


def _apply(connection: sqlite3.Connection, write: RawWrite, revision: int, before: Row | None) -> bool:
    """Do one write and log it; False when its condition does not hold. Nothing intervenes: the write lock is ours."""
    text = write.text
    if write.kind == "create":
        if connection.execute(_CREATE, (write.path, text, revision)).rowcount != 1:
            return False
        kind = "added"
    elif before is None or before.revision != write.expected:
        return False
    elif write.kind == "update":
        connection.execute(_UPDATE, (text, revision, write.path))
        kind = "modified"
    else:
        connection.execute(_DELETE, (write.path,))
        kind, text = "deleted", before.text
    connection.execute(_LOG, (revision, write.path, kind, text, int(before.revision) if before else 0))
    return True
