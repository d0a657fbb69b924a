"""A dataplane in memory: pairs by name, and whether anybody lives in a sandbox. For tests of the verbs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from calico_cni.dataplane.api import (
    ContainerLink,
    DataplaneError,
    HostLink,
    LinkExpectation,
    LinkRequest,
    LinkResult,
    Peer,
    RouteTarget,
)


@dataclass(frozen=True, slots=True)
class Pair:
    """A link between the host and a sandbox. ``netns`` empty: both ends are on the host."""

    host_name: str
    netns: str
    container_name: str
    request: LinkRequest | None = None


@dataclass
class FakeDataplane:
    """``inhabited``: sandboxes with a process in them. ``gone``: paths that name nothing any more.

    ``devices``: what every sandbox has beside pairs, and nobody can remove.
    ``fail``: called with the name of each operation before it is done; what it raises is what the operation raises.
    ``effects``: called after each change, so that a test can look at what a ``kill -9`` would leave.
    """

    pairs: dict[str, Pair] = field(default_factory=dict)
    inhabited: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    devices: frozenset[str] = frozenset({"lo"})
    fail: Callable[[str], object] = lambda _operation: None
    effects: Callable[[], None] = lambda: None
    problems: list[str] = field(default_factory=list)
    own_namespace: str = "/proc/self/ns/net"
    calls: list[str] = field(default_factory=list)
    masqueraded: list[str] | None = None

    def same_namespace(self, netns: str) -> bool:
        return netns == self.own_namespace

    def host_link(self, name: str, netns: str) -> HostLink | None:
        self._start("host_link")
        pair = self.pairs.get(name)
        if pair is None:
            return None
        return HostLink(name, 7, "veth", self._peer(pair, netns), pair.container_name)

    def _peer(self, pair: Pair, netns: str) -> Peer:
        if not pair.netns:
            return Peer.HOST
        if pair.netns == netns:
            return Peer.OURS
        return Peer.INHABITED if pair.netns in self.inhabited else Peer.EMPTY

    def container_link(self, netns: str, name: str) -> ContainerLink | None:
        self._start("container_link")
        if name in self.devices and netns not in self.gone:
            return ContainerLink("")
        pair = self._inside(netns, name)
        return ContainerLink("veth", pair.host_name) if pair is not None else None

    def add(self, request: LinkRequest) -> LinkResult:
        self._start("add")
        if request.netns in self.gone:
            raise DataplaneError(f'failed to Statfs "{request.netns}": no such file or directory')
        if request.host_name in self.pairs:
            if not request.replace_existing:
                raise DataplaneError(f"link {request.host_name} already exists on the host")
            del self.pairs[request.host_name]
            self.effects()
        if self._inside(request.netns, request.container_name) is not None:
            raise DataplaneError("file exists")
        self.pairs[request.host_name] = Pair(request.host_name, request.netns, request.container_name, request)
        self.effects()
        return LinkResult("0a:58:00:00:00:01", request.host_name)

    def remove(self, netns: str, container_name: str, host_name: str | None) -> None:
        self._start("remove")
        if container_name in self.devices:
            raise DataplaneError("failed to clean up workload's pod interface inside netns: operation not supported")
        pair = self._inside(netns, container_name)
        if pair is not None and netns not in self.gone:
            del self.pairs[pair.host_name]
            self.effects()
        if host_name is not None and self.pairs.pop(host_name, None) is not None:
            self.effects()

    def masquerade(self, pools: Sequence[RouteTarget]) -> None:
        self._start("masquerade")
        self.masqueraded = [str(pool) for pool in pools]

    def check(self, expectation: LinkExpectation) -> list[str]:
        self._start("check")
        found = list(self.problems)
        if self._inside(expectation.netns, expectation.container_name) is None:
            found.append(f"there is no {expectation.container_name} in {expectation.netns}")
        return found

    def lose_namespace(self, netns: str) -> None:
        """Remove the path of a sandbox; its links stay, as when a process still holds the namespace."""
        self.gone.add(netns)

    def copy(self) -> FakeDataplane:
        """Return the links as they are now, without the hooks."""
        return replace(
            self,
            pairs=dict(self.pairs),
            inhabited=set(self.inhabited),
            gone=set(self.gone),
            fail=lambda _operation: None,
            effects=lambda: None,
            calls=[],
        )

    def _start(self, operation: str) -> None:
        self.calls.append(operation)
        self.fail(operation)

    def _inside(self, netns: str, name: str) -> Pair | None:
        if not netns or netns in self.gone:
            return None
        return next((p for p in self.pairs.values() if (p.netns, p.container_name) == (netns, name)), None)
