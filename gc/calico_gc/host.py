"""A host without Kubernetes: the container runtime, libcni's cache and the network namespaces say who lives (ruling 7).

An address is dead only if every source that is configured answered, none of them knows the container, and no network
namespace with a process in it has the address. A source that does not answer keeps everything.
"""

from __future__ import annotations

import errno
import json
import logging
import shlex
import subprocess
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from calico_gc import intake
from calico_gc.decide import UNREADABLE, LiveNode, Standing, Unreadable
from calico_gc.facts import Allocation, PodKey, VirtualMachines
from calico_gc.feed import SYNCED, Sink, Source
from calico_gc.intake import Change
from calico_ipam.errors import InvalidInput
from calico_ipam.model.addresses import Address, make_address, parse_address

log = logging.getLogger(__name__)

PERIOD = 30.0  #: seconds between looks at the host
#: what reading of a process that has ended, or is a zombie, gives
ENDED = frozenset({errno.ENOENT, errno.ESRCH, errno.EINVAL})
RUNTIME_SECONDS = 20.0  #: longest time the runtime's command may take


class NoAnswer(Exception):
    """A source could not be asked."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """Who lives on this host. ``complete``: every configured source answered."""

    complete: bool = False
    containers: frozenset[str] = frozenset()
    addresses: frozenset[Address] = frozenset()
    reasons: tuple[str, ...] = ()  #: why it is not complete

    @property
    def machines(self) -> VirtualMachines | None:
        return None

    def pod(self, key: PodKey) -> Unreadable:
        """Nobody here knows pods."""
        del key
        return UNREADABLE

    def container_gone(self, allocation: Allocation) -> bool:
        """Tell whether the container of an allocation is certainly gone."""
        if not self.complete or allocation.address in self.addresses:
            return False
        _, dot, container = allocation.clean_handle.partition(".")
        return bool(dot and container) and not any(part in self.containers for part in (container, *_tails(container)))


def _tails(container: str) -> Iterator[str]:
    """A network's name may have dots in it: whatever follows one of them may be the container's ID."""
    while "." in container:
        container = container.partition(".")[2]
        yield container


@dataclass(frozen=True, slots=True)
class Sources:
    """Where to look. Empty: that source is not configured. ``processes``: where /proc is."""

    cache: str = "/var/lib/cni/results"
    namespaces: str = "/var/run/netns"
    command: str = ""
    processes: str = "/proc"

    def look(self) -> Runtime:
        """Ask every source."""
        containers: set[str] = set()
        addresses: set[Address] = set()
        reasons = []
        for ask in (self._cached, self._listed):
            try:
                containers |= ask()
            except NoAnswer as error:
                reasons.append(str(error))
        try:
            addresses = self._in_use()
        except NoAnswer as error:
            reasons.append(str(error))
        return Runtime(not reasons, frozenset(containers), frozenset(addresses), tuple(reasons))

    def _cached(self) -> set[str]:
        """Return the containers that libcni remembers an ADD of."""
        if not self.cache:
            return set()
        found = set()
        try:
            files = sorted(Path(self.cache).iterdir())
        except OSError as error:
            raise NoAnswer(f"the cache of network results {self.cache} cannot be read: {error.strerror}") from None
        for file in files:
            try:
                document = json.loads(file.read_text(encoding="utf-8"))
                found.add(str(document["containerId"]))
            except FileNotFoundError:
                continue  # its container was removed this moment
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise NoAnswer(f"{file} cannot be understood: {error}") from None
        return found

    def _listed(self) -> set[str]:
        """Return the containers that the runtime's command lists, one identifier a line."""
        if not self.command:
            return set()
        try:
            done = subprocess.run(  # noqa: S603  # the operator names the command
                shlex.split(self.command), capture_output=True, text=True, timeout=RUNTIME_SECONDS, check=False
            )
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            raise NoAnswer(f"the runtime's command {self.command!r} does not answer: {error}") from None
        if done.returncode:
            raise NoAnswer(f"the runtime's command {self.command!r} fails: {' '.join(done.stderr.split())[:200]}")
        return {word for line in done.stdout.splitlines() for word in line.split()[:1]}

    def _in_use(self) -> set[Address]:
        """Return every address of a network namespace that has a process in it."""
        found: set[Address] = set()
        seen: set[int] = set()
        try:
            processes = [path for path in Path(self.processes).iterdir() if path.name.isdigit()]
        except OSError as error:
            raise NoAnswer(f"processes cannot be listed: {error.strerror}") from None
        for process in processes:
            try:
                # Not of ns/net, which security modules guard for some processes even against root: the files below
                # net are others in each namespace, too.
                namespace = (process / "net" / "fib_trie").stat().st_ino
                if namespace in seen:
                    continue
                found.update(_four((process / "net" / "fib_trie").read_text(encoding="ascii")))
                found.update(_six((process / "net" / "if_inet6").read_text(encoding="ascii")))
                seen.add(namespace)
            except OSError as error:
                if error.errno in ENDED:
                    continue  # it ended meanwhile; another process of its namespace is asked
                raise NoAnswer(f"the addresses of process {process.name} cannot be read: {error.strerror}") from None
        return found


def _four(trie: str) -> Iterator[Address]:
    """Yield the local addresses in the kernel's table of IPv4 routes."""
    last = ""
    for line in trie.splitlines():
        text = line.strip()
        if text.startswith(("|--", "+--")):
            last = text[3:].strip().partition("/")[0].split(" ")[0]
        elif text.startswith("/32 host LOCAL"):
            try:
                yield parse_address(last)
            except InvalidInput:
                continue


def _six(table: str) -> Iterator[Address]:
    for line in table.splitlines():
        head = line.split(" ", 1)[0]
        if len(head) == 32:
            yield make_address(6, int(head, 16))


@dataclass(frozen=True, slots=True)
class HostLive:
    """Live reads on a host without Kubernetes: this host exists, of others nothing is known."""

    host: str
    sources: Sources | None  #: None: nobody was asked for; then nothing is ever dead

    def workloads(self, pods: Collection[PodKey]) -> Runtime:
        del pods
        return self.sources.look() if self.sources is not None else Runtime()

    def nodes(self, names: Collection[str]) -> dict[str, LiveNode]:
        here, elsewhere = LiveNode(Standing.PRESENT, self.host, True), LiveNode(Standing.FOREIGN)
        return {name: here if name == self.host else elsewhere for name in names}


class HostSource(Source):
    """Looks at the host from time to time."""

    def __init__(self, sources: Sources, sink: Sink, period: float = PERIOD) -> None:
        super().__init__("host", sink)
        self._sources = sources
        self._period = period

    def _run(self) -> None:
        told: Sequence[str] = ()
        while not self._stop.is_set():
            runtime = self._sources.look()
            if runtime.reasons and runtime.reasons != told:
                log.warning("nothing is collected on this host: %s", "; ".join(runtime.reasons))
            told = runtime.reasons
            self._sink.put(Change(intake.RUNTIME, "", runtime))
            self._sink.put(Change(SYNCED, self.name, True))
            self._stop.wait(self._period)
