"""Kernel settings (cni.md §8 step 7): /proc/sys/net shows those of the namespace that the calling thread is in."""

from __future__ import annotations

import errno
import logging
import os
from dataclasses import dataclass
from pathlib import Path

from .api import DataplaneError
from .netlink import error_text

logger = logging.getLogger(__name__)

ROOT = "/proc/sys"


@dataclass(frozen=True, slots=True)
class Setting:
    """One file and its value. ``{link}`` stands for the link's name; ``needed``: its failure ends the call."""

    file: str
    value: int
    needed: bool = True


#: the host end, by IP version of the pod's addresses; the None entry always applies, after the others
HOST_END: dict[int | None, tuple[Setting, ...]] = {
    4: (
        # Lets the pod reach services that listen on the node's loopback address.
        Setting("net/ipv4/conf/{link}/route_localnet", 1),
        # The kernel waits up to 0.8 s before it answers for others; nobody else can answer here.
        Setting("net/ipv4/neigh/{link}/proxy_delay", 0, needed=False),
        # The host answers for 169.254.1.1, an address that nobody has.
        Setting("net/ipv4/conf/{link}/proxy_arp", 1),
        Setting("net/ipv4/conf/{link}/forwarding", 1),
    ),
    6: (
        # Every host end has the same MAC and so the same link-local address: it must not be looked for.
        Setting("net/ipv6/conf/{link}/accept_dad", 0),
        Setting("net/ipv6/conf/{link}/disable_ipv6", 0),
        Setting("net/ipv6/conf/{link}/proxy_ndp", 1),
        Setting("net/ipv6/conf/{link}/forwarding", 1),
    ),
    None: (
        # A pod must not be able to tell its node about routes.
        Setting("net/ipv6/conf/{link}/accept_ra", 0, needed=False),
    ),
}

#: the pod's end before it is set up, when it will have an IPv6 address: usable at once, not after a second
CONTAINER_END_IPV6 = (Setting("net/ipv6/conf/{link}/accept_dad", 0),)

#: the pod, when it will have an IPv6 address: some runtimes switch IPv6 off in a new sandbox
POD_IPV6 = (
    Setting("net/ipv6/conf/all/disable_ipv6", 0),
    Setting("net/ipv6/conf/default/disable_ipv6", 0),
    Setting("net/ipv6/conf/lo/disable_ipv6", 0),
)

#: whether the pod forwards, by IP version
POD_FORWARDING = {4: "net/ipv4/ip_forward", 6: "net/ipv6/conf/all/forwarding"}


def host_end_settings(versions: set[int]) -> tuple[Setting, ...]:
    """Return the settings of a host end whose pod has addresses of these IP versions, in the order of writing."""
    chosen: tuple[Setting, ...] = ()
    for version in (4, 6):
        if version in versions:
            chosen += HOST_END[version]
    return chosen + HOST_END[None]


def forwarding_settings(versions: set[int], wanted: bool) -> tuple[Setting, ...]:
    """Return the settings that make a pod forward, or not."""
    return tuple(Setting(POD_FORWARDING[version], int(wanted)) for version in sorted(versions))


def apply(settings: tuple[Setting, ...], link: str = "") -> None:
    """Write settings in order. Raises DataplaneError at the first needed one that fails; others are logged."""
    for setting in settings:
        file = setting.file.format(link=link)
        try:
            write(file, setting.value)
        except DataplaneError as error:
            if setting.needed:
                raise
            logger.warning("going on without a kernel setting: %s", error)


def write(file: str, value: int) -> None:
    """Write one value below /proc/sys; a file that does not exist is never made. Raises DataplaneError."""
    path = f"{ROOT}/{file}"
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, b"%d" % value)
        finally:
            os.close(fd)
    except OSError as error:
        code = error.errno or errno.EIO
        raise DataplaneError(
            f"failed to set {path} to {value}: {error_text(code)}", hint=_HINTS.get(code, "")
        ) from None


def read(file: str) -> int:
    """Return a value below /proc/sys. Raises DataplaneError."""
    path = Path(ROOT, file)
    try:
        return int(path.read_text(encoding="ascii"))
    except OSError as error:
        code = error.errno or errno.EIO
        raise DataplaneError(f"failed to read {path}: {error_text(code)}", hint=_HINTS.get(code, "")) from None


_HINTS = {
    errno.EROFS: "/proc/sys is mounted read-only here: the plugin must run in the host's mount namespace.",
    errno.ENOENT: "The kernel lacks this setting (is IPv6 switched off?), or the link is gone.",
    errno.EACCES: "The plugin must run as root.",
}
