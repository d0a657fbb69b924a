"""What is there on this node: links, routes, namespaces, locks, connections, folders. Reads only."""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from calico_cni.dataplane.api import PAIRS, DataplaneError, Peer
from calico_cni.dataplane.netns import census, describe
from calico_cni.dataplane.peers import look_behind
from calico_cni.dataplane.rtnl import Rtnl
from calico_gc.sweep.living import NoAnswer
from calico_ipam.errors import InvalidInput
from calico_ipam.model.addresses import Address, parse_address

#: how libcni's callers name namespaces: ``cni-`` and a UUID
NAMESPACE_NAME = re.compile(r"cni-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
CONNTRACK_SECONDS = 60.0
FELIX = frozenset({"calico-felix", "calico-node"})
Identity = tuple[int, int]  #: device and inode


@dataclass(frozen=True, slots=True)
class Trace:
    """A host link that may be a pod's. ``abandoned``: it is known that nobody lives behind it (ruling 8)."""

    name: str
    index: int
    peer: Peer
    routes: tuple[Address, ...] = ()

    @property
    def abandoned(self) -> bool:
        return self.peer in (Peer.EMPTY, Peer.HOST)


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds the allocation lock; ``started`` tells it from another of the same number."""

    pid: int
    started: str
    command: str


@dataclass(frozen=True, slots=True)
class Places:
    """Where things are on a node."""

    netns: Path = Path("/var/run/netns")
    results: Path = Path("/var/lib/cni/results")
    lock: Path = Path("/var/run/calico/ipam.lock")
    volumes: Path = Path("/var/lib/kubelet/pods")
    proc: Path = Path("/proc")


@dataclass(frozen=True, slots=True)
class Traces:
    """What was found. ``unknown``: kind -> why it could not be looked for."""

    links: tuple[Trace, ...] = ()
    namespaces: Mapping[str, Identity] = field(default_factory=dict)  #: path -> which one
    inhabited: frozenset[Identity] = frozenset()
    holders: tuple[Holder, ...] = ()
    connections: Mapping[Address, int] = field(default_factory=dict)
    volumes: Mapping[str, int] = field(default_factory=dict)  #: name of the folder -> inode
    felix: bool = True
    unknown: Mapping[str, str] = field(default_factory=dict)


def pod_link_names(prefixes: str) -> re.Pattern[str]:
    """Return what matches the names of pods' host links; only such a link is ever touched."""
    return re.compile(re.escape(prefixes.partition(",")[0] or "cali") + "[0-9a-f]{11}")


def links(prefixes: str) -> tuple[Trace, ...]:
    """Return the pairs of this namespace whose names are those of pods' links. Raises NoAnswer."""
    pattern = pod_link_names(prefixes)
    try:
        names = sorted(name for _, name in socket.if_nameindex() if pattern.fullmatch(name))
        if not names:
            return ()
        found = []
        with Rtnl.open() as rtnl:
            for name in names:
                link = rtnl.link(name)
                if link is None or link.kind not in PAIRS:
                    continue
                routes = tuple(
                    route.destination
                    for version in (4, 6)
                    for route in rtnl.routes_of(link.index, version)
                    if route.gateway is None and route.prefix_length == route.destination.max_prefixlen
                )
                found.append(Trace(name, link.index, look_behind(rtnl, link, None).peer, routes))
    except (OSError, DataplaneError) as error:
        raise NoAnswer(f"links cannot be listed: {error}") from None
    return tuple(found)


def namespaces(folder: Path) -> dict[str, Identity]:
    """Return the namespaces that a runtime made, by path."""
    found: dict[str, Identity] = {}
    try:
        paths = sorted(folder.iterdir())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise NoAnswer(f"{folder} cannot be read: {error.strerror}") from None
    for path in paths:
        if NAMESPACE_NAME.fullmatch(path.name):
            try:
                status = path.stat()
            except FileNotFoundError:
                continue  # it was removed this moment
            found[str(path)] = (status.st_dev, status.st_ino)
    return found


def inhabited() -> frozenset[Identity]:
    """Return the namespaces that some process lives in. Raises NoAnswer if it cannot be known of any."""
    try:
        return frozenset(census())
    except (OSError, DataplaneError) as error:
        raise NoAnswer(str(error)) from None


def holders(lock: Path, proc: Path) -> tuple[Holder, ...]:
    """Return who holds the allocation lock; the file itself is never touched (its identity is the lock)."""
    try:
        status = lock.stat()
        lines = (proc / "locks").read_text(encoding="ascii").splitlines()
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise NoAnswer(f"locks cannot be listed: {error.strerror}") from None
    found = []
    for line in lines:
        fields = line.split()
        # 1: FLOCK ADVISORY WRITE 4711 fd:01:123456 0 EOF; "->" marks one that waits
        if len(fields) < 6 or fields[1] != "FLOCK" or fields[5].rpartition(":")[2] != str(status.st_ino):
            continue
        pid = int(fields[4])
        if pid > 0:
            found.append(Holder(pid, _started(proc, pid), describe(pid).command))
    return tuple(found)


def _started(proc: Path, pid: int) -> str:
    """Return when a process started, in ticks since the node did; empty when it has ended."""
    try:
        return (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(") ")[2].split()[19]
    except (OSError, IndexError):
        return ""


def connections() -> dict[Address, int]:
    """Return how many tracked connections each address has a part in. Raises NoAnswer."""
    found: dict[Address, int] = {}
    for family in ("ipv4", "ipv6"):
        try:
            done = subprocess.run(  # noqa: S603  # fixed words
                ["conntrack", "-L", "-f", family],  # noqa: S607  # wherever the system has it
                capture_output=True,
                text=True,
                timeout=CONNTRACK_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NoAnswer(f"connections cannot be listed: {error}") from None
        if done.returncode:
            raise NoAnswer(f"conntrack fails: {' '.join(done.stderr.split())[:200]}")
        for line in done.stdout.splitlines():
            for address in {text for text in re.findall(r"\b(?:src|dst)=(\S+)", line)}:
                _count(found, address)
    return found


def _count(found: dict[Address, int], text: str) -> None:
    try:
        address = parse_address(text)
    except InvalidInput:
        return
    found[address] = found.get(address, 0) + 1


def volumes(folder: Path) -> dict[str, int]:
    """Return the folders of pods below the kubelet's."""
    try:
        return {path.name: path.stat().st_ino for path in sorted(folder.iterdir()) if path.is_dir()}
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise NoAnswer(f"{folder} cannot be read: {error.strerror}") from None


def felix_runs(proc: Path) -> bool:
    """Tell whether Felix runs on this node; it removes foreign routes on its links by itself."""
    return any(path.name.isdigit() and describe(int(path.name)).command in FELIX for path in proc.iterdir())
