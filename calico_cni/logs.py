"""Log lines as upstream's plugins write them, to stderr and a file that many processes share (cni.md §11).

Never logged: stdin, the parsed configuration, tokens, keys. A log that cannot be written never fails a call.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import TextIO

from calico_cni.netconf import LogConf

PLUGIN = "calico_cni"
IPAM = "calico_cni.ipam"
LIBRARY = "calico_ipam"

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "error": logging.ERROR}
_MEGABYTE = 1024 * 1024
_DAY = 86400.0
_ROTATED = re.compile(r"-\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d\.\d{3}")


class Log:
    """Writes messages with fields; the fields given at the start go with every message."""

    def __init__(self, name: str, fields: Mapping[str, object] | None = None) -> None:
        self._logger = logging.getLogger(name)
        self._fields = dict(fields or {})

    def debug(self, message: str, **fields: object) -> None:
        self._write(logging.DEBUG, message, fields)

    def info(self, message: str, **fields: object) -> None:
        self._write(logging.INFO, message, fields)

    def warning(self, message: str, **fields: object) -> None:
        self._write(logging.WARNING, message, fields)

    def error(self, message: str, **fields: object) -> None:
        self._write(logging.ERROR, message, fields)

    def _write(self, level: int, message: str, fields: Mapping[str, object]) -> None:
        if self._logger.isEnabledFor(level):
            shown = " ".join(f"{key}={_field(value)}" for key, value in sorted({**self._fields, **fields}.items()))
            self._logger.log(level, "%s", f"{message} {shown}".rstrip(), stacklevel=3)


def _field(value: object) -> str:
    """Return a field as it is shown: texts in quotes, numbers and errors bare. Line breaks never leave the line."""
    if isinstance(value, int | float | BaseException):
        return str(value).replace("\n", "\\n")
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


class LineFormatter(logging.Formatter):
    """``2026-08-22 13:33:20.123 [INFO][4711] cni-plugin/add.py 434: Message key="text" num=3``"""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created)
        stamp = f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03d}"
        of_ipam = record.name.startswith((IPAM, LIBRARY))
        component = "ipam" if of_ipam else "cni-plugin"
        text = record.getMessage().replace("\n", "\\n")
        return f"{stamp} [{record.levelname}][{record.process}] {component}/{record.filename} {record.lineno}: {text}"


class QuietStreamHandler(logging.StreamHandler[TextIO]):
    """Writes to a stream, and says nothing when nobody reads it any more."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # the base class named it
        """A closed stderr is no reason to fail a call."""


class SharedFileHandler(logging.Handler):
    """Appends whole lines to a file that other processes append to, and moves it aside when it is full.

    Each line is one ``write`` on a descriptor opened for appending, so lines of several processes never mix. Rotation
    renames under a lock; a line that another process wrote meanwhile goes to the renamed file and is not lost.
    Nothing is ever truncated. Rotated files are not compressed: a call of some milliseconds is not the place for it.
    """

    _unit = _MEGABYTE

    def __init__(self, conf: LogConf) -> None:
        super().__init__()
        self._path = Path(conf.path)
        self._conf = conf
        self._complained = False

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = (self.format(record) + "\n").encode("utf-8", "backslashreplace")
            self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                full = os.fstat(descriptor).st_size + len(line) > self._conf.max_size * self._unit
                os.write(descriptor, line)
            finally:
                os.close(descriptor)
            if full:
                self._rotate()
        except OSError as error:
            self._complain(error)

    def _complain(self, error: OSError) -> None:
        if not self._complained:
            self._complained = True  # before the line goes out: it comes back to this handler
            logging.getLogger(PLUGIN).warning("Cannot write the log file %s: %s", self._path, error)

    def _rotate(self) -> None:
        """Move the file aside unless somebody else just did, or does: a log is not worth waiting for."""
        with self._path.with_name(self._path.name + ".lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            with contextlib.suppress(FileNotFoundError):  # somebody else moved it, and nobody has written since
                if self._path.stat().st_size > self._conf.max_size * self._unit:
                    self._path.rename(self._free_name())
                    self._prune()

    def _free_name(self) -> Path:
        """Return a name that nothing has yet: two files may fill up within a millisecond, and rename overwrites."""
        moment = datetime.now()
        while True:
            stamp = f"{moment:%Y-%m-%dT%H-%M-%S}.{moment.microsecond // 1000:03d}"
            found = self._path.with_name(f"{self._path.stem}-{stamp}{self._path.suffix}")
            if not found.exists():
                return found
            moment += timedelta(milliseconds=1)

    def _prune(self) -> None:
        """Remove rotated files beyond the number and the age that are kept."""
        rotated = sorted(
            (found for found in self._path.parent.glob(f"{self._path.stem}-*") if self._is_rotated(found)),
            key=lambda found: found.name,
            reverse=True,
        )
        oldest = time.time() - self._conf.max_age * _DAY
        for index, found in enumerate(rotated):
            if index >= self._conf.max_count or found.stat().st_mtime < oldest:
                found.unlink(missing_ok=True)

    def _is_rotated(self, found: Path) -> bool:
        return bool(_ROTATED.match(found.name[len(self._path.stem) :]))


@contextlib.contextmanager
def logging_to(stderr: TextIO, conf: LogConf | None = None) -> Iterator[None]:
    """Send the product's log lines to ``stderr``, and to the file of ``conf``, while the block runs.

    Without a configuration (before it is known) lines of level info go to stderr.
    """
    conf = conf or LogConf()
    handlers: list[logging.Handler] = [QuietStreamHandler(stderr)]
    if conf.path:
        handlers.append(SharedFileHandler(conf))
    loggers = [logging.getLogger(PLUGIN), logging.getLogger(LIBRARY)]
    before = [(logger.handlers, logger.level, logger.propagate) for logger in loggers]
    for handler in handlers:
        handler.setFormatter(LineFormatter())
    for logger in loggers:
        logger.handlers = list(handlers)
        logger.setLevel(_LEVELS.get(conf.level, logging.INFO))
        logger.propagate = False
    try:
        yield
    finally:
        for logger, (old, level, propagate) in zip(loggers, before, strict=True):
            logger.handlers, logger.level, logger.propagate = old, level, propagate
        for handler in handlers:
            handler.close()
