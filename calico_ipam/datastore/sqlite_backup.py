"""A copy of a live SQLite store."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from calico_ipam.errors import InvalidInput, StoreError


def backup(connection: sqlite3.Connection, source: Path, target: Path) -> None:
    """Write a consistent copy of ``source`` to the new file ``target``, mode 0600; writers are not held up."""
    try:
        descriptor = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise InvalidInput(
            f"{target} exists", subject=str(target), hint="Name a new file; a backup never overwrites one."
        ) from None
    except OSError as error:
        raise StoreError(
            f"the backup {target} cannot be made: {error.strerror}",
            subject=str(target),
            hint=f"Name a file in a folder that can be written, other than that of {source}.",
        ) from None
    try:
        connection.execute("VACUUM INTO ?", (str(target),))
        os.fsync(descriptor)
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
