"""The file of the embedded store: making it, recognising it, its schema, and what its failures mean.

A file that is not ours is never written: everything here looks first.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
from contextlib import closing
from enum import Enum
from pathlib import Path

from calico_ipam.errors import IPAMError, StoreDamaged, StoreError, StoreUnavailable

APPLICATION_ID = 0x43414C49  # "CALI", in the header of every store of ours

#: statements that lead from one schema version to the next; the version is their number
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE objects (
            key TEXT PRIMARY KEY NOT NULL,
            document TEXT NOT NULL CHECK (typeof(document) = 'text'),
            revision INTEGER NOT NULL
        )""",
        # The newest row carries the revision of the whole store, so this table is never emptied.
        """CREATE TABLE changes (
            revision INTEGER PRIMARY KEY NOT NULL,
            key TEXT NOT NULL,
            kind TEXT NOT NULL CHECK (kind IN ('added', 'modified', 'deleted')),
            document TEXT NOT NULL,
            previous INTEGER NOT NULL  -- revision of the row before, 0 when there was none
        )""",
    ),
)
SCHEMA_VERSION = len(MIGRATIONS)


class Missing(Enum):
    """What it means that the file is not there, or has nothing in it."""

    NEW = "the store is made"
    REFUSED = "there is no store, and whoever opens it must not make one"
    VANISHED = "it was there when this store was opened"


_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


def is_busy(error: sqlite3.Error) -> bool:
    """Tell whether another process or thread holds the lock, so that the same call may succeed soon."""
    return _code(error) in _BUSY


def _code(error: sqlite3.Error) -> int:
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF  # the rest of the bits says more of the same


def open_file(path: Path, missing: Missing) -> sqlite3.Connection:
    """Return a connection to a store that is there, is ours, and has the present schema.

    ``missing``: what to do where there is no store yet. Raises StoreError, StoreDamaged, and sqlite3's own error when
    the file is locked (:func:`is_busy`).
    """
    _look(path, missing)
    try:
        connection = sqlite3.connect(
            path, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=64
        )
    except sqlite3.Error as error:
        raise explain(error, path, "open") from error
    try:
        connection.text_factory = _text
        # An answer given is an answer kept: the journal is on the disk before a commit returns.
        connection.execute("PRAGMA synchronous=FULL")
        _recognise(connection, path)
    except BaseException as error:
        connection.close()
        if isinstance(error, sqlite3.Error) and not is_busy(error):
            raise explain(error, path, "open") from error
        raise
    return connection


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")  # one bad byte in one document must not hide the others


def _look(path: Path, missing: Missing) -> None:
    try:
        status = path.stat()
    except FileNotFoundError:
        if missing is not Missing.NEW:
            raise _no_store(path, missing, "has been removed while it was in use", "does not exist") from None
        _make(path)
        return
    except ValueError:  # Python's word for a NUL in a path
        raise StoreError(
            f"the datastore file {str(path)!r} cannot exist: its path has a NUL in it",
            subject=repr(str(path)),
            hint="Name another file.",
        ) from None
    except OSError as error:
        raise _denied(path, error) from None
    if status.st_size == 0 and missing is not Missing.NEW:
        raise _no_store(path, missing, "is empty, and was not when it was opened", "is empty")
    if stat.S_ISDIR(status.st_mode):
        raise StoreError(
            f"the datastore file {path} is a folder",
            subject=str(path),
            hint=f"Name a file, for example {path}/ipam.db.",
        )
    if not stat.S_ISREG(status.st_mode):
        raise StoreError(f"the datastore file {path} is no regular file", subject=str(path), hint="Name another file.")
    if not os.access(path, os.R_OK, effective_ids=True):
        raise _denied(path, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
    if status.st_size == 1:
        raise _no_database(path)  # SQLite takes a single byte for an empty file
    _look_inside(path)


def _look_inside(path: Path) -> None:
    """Refuse a file that is no database, before a journal that lies beside it is taken for its own.

    SQLite looks itself. Were the file opened and closed here, the kernel would drop the locks that other connections
    of this process hold on it, and another process that takes itself for the last one would remove the write-ahead log
    under them: whatever they write from then on is lost.
    """
    quoted = str(path).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    try:
        with closing(sqlite3.connect(f"file://{quoted}?mode=ro&immutable=1", uri=True)) as connection:
            connection.execute("PRAGMA application_id")
    except sqlite3.DatabaseError as error:
        # Any other failure is that of a file in use, looked at without its log; to open it in earnest will tell.
        if _code(error) == sqlite3.SQLITE_NOTADB:
            raise _no_database(path) from None


def _no_store(path: Path, missing: Missing, vanished: str, absent: str) -> StoreError:
    if missing is Missing.VANISHED:
        return StoreError(
            f"the datastore file {path} {vanished}",
            subject=str(path),
            hint="Put the file back, or start again to make a new store.",
        )
    return StoreError(
        f"the datastore file {path} {absent}",
        subject=str(path),
        hint=f"Correct its path, or make the store: ipamctl --datastore sqlite://{path} init",
    )


def _make(path: Path) -> None:
    folder = path.parent
    try:
        if not folder.exists():
            # Only a folder made here is closed to others; the mode of one that exists is its owner's choice.
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
        # SQLite gives its journal and shared memory the mode of the file. It is made without being opened: to close it
        # again would drop the locks of another thread that was quicker (_look_inside).
        os.mknod(path, 0o600 | stat.S_IFREG)
    except FileExistsError:
        if not folder.is_dir():
            raise StoreError(
                f"the folder {folder} of the datastore cannot be made: a file of that name is in the way",
                subject=str(path),
                hint="Name a file in a folder that exists.",
            ) from None
    except OSError as error:
        raise StoreError(
            f"the datastore file {path} cannot be made: {error.strerror}",
            subject=str(path),
            hint=f"Make the folder {folder} writable for this user, or name another file.",
        ) from None


def _denied(path: Path, error: OSError) -> StoreError:
    return StoreError(
        f"the datastore file {path} cannot be read: {error.strerror}",
        subject=str(path),
        hint="Run as the user that owns it (normally root).",
    )


def _no_database(path: Path) -> StoreDamaged:
    return StoreDamaged(
        f"the file {path} is not a database",
        subject=str(path),
        hint="It was left as it is: move it away or name another file.",
    )


def _recognise(connection: sqlite3.Connection, path: Path) -> None:
    """Check that the file is ours and bring its schema up to date."""
    version = _version(connection, path)
    if version == SCHEMA_VERSION:
        return
    if connection.execute("PRAGMA journal_mode=WAL").fetchone()[0] != "wal":
        raise StoreError(
            f"the datastore file {path} cannot have a write-ahead log",
            subject=str(path),
            hint="Keep it on a local disk, not on a network file system.",
        )
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Another process may have been first.
        for statements in MIGRATIONS[_version(connection, path) :]:
            for statement in statements:
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _version(connection: sqlite3.Connection, path: Path) -> int:
    """Return the schema version of a store of ours, 0 for an empty file. Raises StoreError for any other."""
    application, version, tables = _header(connection)
    if application != APPLICATION_ID:
        if application or version or tables:
            raise StoreDamaged(
                f"the file {path} is a database of another application",
                subject=str(path),
                hint="It was left as it is: name another file.",
            )
        return 0
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"the datastore file {path} has schema version {version}; this program knows up to {SCHEMA_VERSION}",
            subject=str(path),
            hint="Use the newer version of calico-ipam that wrote it.",
        )
    return version


def _header(connection: sqlite3.Connection) -> tuple[int, int, bool]:
    """Return application, version and whether there are tables, of one moment: somebody may be making the store."""
    inside = connection.in_transaction
    if not inside:
        connection.execute("BEGIN")
    try:
        application = int(connection.execute("PRAGMA application_id").fetchone()[0])
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        tables = connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is not None
    finally:
        if not inside and connection.in_transaction:
            connection.execute("ROLLBACK")
    return application, version, tables


def explain(error: sqlite3.Error, path: Path, doing: str) -> IPAMError:
    """Return the error that says in one sentence what a failure of SQLite means for its user."""
    subject = str(path)
    match _code(error):
        case sqlite3.SQLITE_NOTADB:
            return _no_database(path)
        case sqlite3.SQLITE_CORRUPT:
            return StoreDamaged(
                f"the datastore file {path} is damaged: {error}",
                subject=subject,
                hint="Stop all programs that use it and restore a backup.",
            )
        case sqlite3.SQLITE_FULL:
            return StoreError(
                f"cannot {doing} the datastore {path}: the disk is full",
                subject=subject,
                hint="Free space on its disk and try again; nothing was changed.",
            )
        case sqlite3.SQLITE_READONLY:
            return StoreError(
                f"cannot {doing} the datastore {path}: the file or its disk is read-only",
                subject=subject,
                hint="Make file, folder and disk writable for this user.",
            )
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
            return StoreError(
                f"cannot {doing} the datastore {path}: {error}",
                subject=subject,
                hint=f"This user must be able to write the file and the folder {path.parent}.",
            )
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED | sqlite3.SQLITE_INTERRUPT | sqlite3.SQLITE_NOMEM:
            return StoreUnavailable(f"cannot {doing} the datastore {path}: {error}", subject=subject)
        case _:
            return StoreError(
                f"cannot {doing} the datastore {path}: {error}", subject=subject, hint="Check its disk, then try again."
            )
