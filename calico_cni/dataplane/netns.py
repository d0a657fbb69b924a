"""Network namespaces: opening, entering, comparing, and whether anybody lives in one.

Namespace switches are per thread. ``entered`` goes in and comes back within one thread and never forks; a socket opened
inside belongs to that namespace for good, so the thread need not stay (rulings 32).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from .api import DataplaneError
from .netlink import error_text

CLONE_NEWNET = 0x40000000
NS_GET_NSTYPE = 0xB703  # linux/nsfs.h
#: the namespace of the calling thread; /proc/self would be that of the thread group's leader
OWN = "/proc/thread-self/ns/net"


class NamespaceGone(DataplaneError):
    """The path names nothing: the sandbox was removed, or never was."""


@dataclass(frozen=True, slots=True)
class Resident:
    """A process that lives in a namespace."""

    pid: int
    command: str


class Namespace:
    """An open network namespace; close it after use."""

    __slots__ = ("fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self.fd = fd

    @classmethod
    def open(cls, path: str) -> Self:
        """Open the namespace that ``path`` names.

        Raises NamespaceGone if the path does not exist, DataplaneError if it is no network namespace; texts are
        upstream's (cni.md §8 step 2).
        """
        try:
            # Without O_NONBLOCK a path that names a pipe would hang the call.
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            text = f'failed to Statfs "{path}": {error_text(error.errno or errno.EIO)}'
            if error.errno == errno.ENOENT:
                raise NamespaceGone(text, hint="The sandbox is gone, or the runtime did not make it.") from None
            raise DataplaneError(text) from None
        try:
            if _namespace_type(fd) != CLONE_NEWNET:
                raise DataplaneError(
                    f'unknown FS magic on "{path}": {_filesystem_magic(fd):x}',
                    hint="CNI_NETNS must name a network namespace, such as /run/netns/<name> or /proc/<pid>/ns/net.",
                )
        except BaseException:
            os.close(fd)
            raise
        return cls(path, fd)

    @classmethod
    def own(cls) -> Self:
        """Open the namespace that the calling thread is in."""
        return cls.open(OWN)

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode: equal for two paths of one namespace, and only for them."""
        status = os.fstat(self.fd)
        return status.st_dev, status.st_ino

    def close(self) -> None:
        """Close the namespace; it lives on while anybody else holds it."""
        os.close(self.fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


@contextmanager
def entered(namespace: Namespace) -> Iterator[None]:
    """Run the body with the calling thread inside ``namespace``. Raises DataplaneError."""
    with Namespace.own() as home:
        try:
            _setns(namespace)
            yield
        finally:
            _setns(home)


def is_own_namespace(path: str) -> bool:
    """Tell whether ``path`` names the namespace of the calling thread; False if it cannot be looked at."""
    try:
        other, own = Path(path).stat(), Path(OWN).stat()
    except OSError:
        return False
    return (other.st_dev, other.st_ino) == (own.st_dev, own.st_ino)


def census() -> dict[tuple[int, int], list[int]]:
    """Return the IDs of the processes that live in each network namespace, by its device and inode.

    Raises DataplaneError if some process may live in a namespace that is not among them: then nobody can say that a
    namespace is uninhabited.
    """
    found: dict[tuple[int, int], list[int]] = {}
    hidden: list[int] = []
    with os.scandir("/proc") as entries:
        for entry in entries:
            if not entry.name.isdigit():
                continue
            try:
                status = Path(f"/proc/{entry.name}/ns/net").stat()
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended
            except OSError:
                hidden.append(int(entry.name))
            else:
                found.setdefault((status.st_dev, status.st_ino), []).append(int(entry.name))
    if hidden:
        _place_hidden(hidden, found)
    return found


def _place_hidden(hidden: list[int], found: dict[tuple[int, int], list[int]]) -> None:
    """Make sure that processes whose namespace must not be looked at live in one of those found.

    Security modules guard ``/proc/<pid>/ns`` of some processes even against root, but not ``/proc/<pid>/net``, whose
    files are other inodes in each namespace.
    """
    views = {_view(pid) for pids in found.values() for pid in pids}
    for pid in hidden:
        view = _view(pid)
        if view is not None and view not in views:
            raise DataplaneError(f"cannot see the network namespace of process {pid}")


def _view(pid: int) -> int | None:
    try:
        return Path(f"/proc/{pid}/net/dev").stat().st_ino
    except (FileNotFoundError, ProcessLookupError):
        return None
    except OSError as error:
        code = error.errno or errno.EIO
        raise DataplaneError(f"cannot see the network namespace of process {pid}: {error_text(code)}") from None


def describe(pid: int) -> Resident:
    """Return a process with its command name, which is empty if the process has just ended."""
    try:
        command = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        command = ""
    return Resident(pid, command)


def _setns(namespace: Namespace) -> None:
    libc = ctypes.CDLL(None, use_errno=True)  # os.setns exists from Python 3.12 on
    if libc.setns(namespace.fd, CLONE_NEWNET) != 0:
        code = ctypes.get_errno()
        raise DataplaneError(
            f'cannot enter network namespace "{namespace.path}": {error_text(code)}',
            hint="The plugin must run as root." if code == errno.EPERM else "",
        )


def _namespace_type(fd: int) -> int:
    try:
        return fcntl.ioctl(fd, NS_GET_NSTYPE)
    except OSError:
        return 0


def _filesystem_magic(fd: int) -> int:
    """Return the type of the file system that holds an open file, as statfs(2) tells it."""
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(512)  # struct statfs is 120 bytes at most; its first member is f_type
    if libc.fstatfs(fd, buffer) != 0:
        return 0
    return int(ctypes.c_ulong.from_buffer(buffer).value)
