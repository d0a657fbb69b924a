"""Connections to the members of a cluster: one for each endpoint and process."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from calico_ipam.datastore.etcd.endpoints import Cluster, Endpoint
from calico_ipam.datastore.etcd.identity import Identity
from calico_ipam.datastore.etcd.library import Library
from calico_ipam.datastore.etcd.patience import Patience
from calico_ipam.errors import StoreError

#: A member that has no leader says so instead of waiting for one (etcd's "require leader").
_LEADER = (("hasleader", "true"),)


class Stream(Protocol):
    """A use of a connection that lasts; it can be made anew."""

    def interrupt(self) -> None:
        """End it, because the process forks. Whoever reads it opens another one."""


class Link:
    """A connection to one member, in use by any number of threads.

    ``answered``: when it last carried an answer (monotonic seconds). ``token``: of our session there, None before the
    login, empty where none is needed; each link has its own, because a member may not have heard yet of a session that
    another one opened.
    """

    def __init__(self, endpoint: Endpoint, channel: Any, library: Library) -> None:
        self.endpoint = endpoint
        self.channel = channel
        self.range = library.unary(channel, "KV/Range", "RangeResponse")
        self.txn = library.unary(channel, "KV/Txn", "TxnResponse")
        self.authenticate = library.unary(channel, "Auth/Authenticate", "AuthenticateResponse")
        self.status = library.unary(channel, "Maintenance/Status", "StatusResponse")
        self.login = threading.Lock()
        self.token: str | None = None
        self.answered = float("-inf")
        self.users = 0

    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (*_LEADER, ("token", self.token)) if self.token else _LEADER

    def forget(self, token: str | None) -> None:
        """Drop a token that was not accepted, unless another thread has renewed it already."""
        with self.login:
            if self.token == token:
                self.token = None


@dataclass(slots=True)
class _State:
    """What belongs to one process."""

    pid: int
    #: re-entrant, because the garbage collector may end a forgotten watch in the middle of anything
    lock: Any = field(default_factory=threading.RLock)
    calm: Any = None  #: condition of that lock: told when nobody uses a connection, and when a fork is over
    forks: int = 0  #: that threads are just making
    users: int = 0  #: of all its connections, those who close one included
    links: dict[Endpoint, Link] = field(default_factory=dict)
    retired: set[Link] = field(default_factory=set)  #: given up, and still in use
    preferred: int = 0
    inherited: Any = None  #: never used, never closed: see Links._here

    def __post_init__(self) -> None:
        self.calm = threading.Condition(self.lock)

    def wait_for_forks(self, seconds: float) -> None:
        """Wait until none is under way, or for longer than any takes; whoever holds the lock may go inside of gRPC."""
        self.calm.wait_for(lambda: not self.forks, seconds)

    def used(self) -> None:
        """Tell that one user fewer is inside of gRPC."""
        with self.lock:
            self.users -= 1
            if not self.users:
                self.calm.notify_all()


class Links:
    """All connections of a store. ``closed`` is set once and for all by :meth:`close`."""

    def __init__(self, cluster: Cluster, identity: Identity, library: Library, patience: Patience) -> None:
        self.cluster = cluster
        self.closed = threading.Event()
        self._library = library
        self._identity = identity
        self._options = _options(patience)
        self._state = _State(os.getpid())
        self._streams: weakref.WeakSet[Stream] = weakref.WeakSet()
        self._longest = patience.request
        self._longest_fork = 6 * patience.request  # which waits once for each store of the process
        self._ready_for_forks = False

    @contextmanager
    def link(self) -> Iterator[Link]:
        """Lend the connection to the preferred member; it stays open at least as long. Raises StoreError if closed."""
        state = self._here()
        with state.lock:
            state.wait_for_forks(self._longest_fork)
            self.check_open()
            endpoint = self.cluster.endpoints[state.preferred]
            link = state.links.get(endpoint)
            if link is None:
                self._prepare_for_forks()
                link = state.links[endpoint] = Link(endpoint, self._channel(endpoint), self._library)
            link.users += 1
            state.users += 1
        try:
            yield link
        finally:
            with state.lock:
                link.users -= 1
                unused = link in state.retired and link.users == 0
                if unused:
                    state.retired.remove(link)
            if unused:
                link.channel.close()
            state.used()

    def follow(self, stream: Stream) -> None:
        """Have a stream interrupted when the process forks, also if it is about to."""
        state = self._here()
        with state.lock:
            self._streams.add(stream)
            if state.forks:
                stream.interrupt()

    def check_open(self) -> None:
        """Raise StoreError once the store is closed."""
        if self.closed.is_set():
            raise StoreError(f"the datastore {self.cluster} has been closed", subject=str(self.cluster))

    def leave(self, link: Link) -> None:
        """Give up a connection that failed, and prefer the next member.

        It is closed when nobody uses it any more: closing cancels what runs on it, and a write that is cancelled is a
        write whose outcome nobody knows. The next use of the member connects anew, without gRPC's own back-off.
        """
        state = self._here()
        with state.lock:
            if state.links.get(link.endpoint) is not link:
                return  # another thread was quicker
            del state.links[link.endpoint]
            if self.cluster.endpoints[state.preferred] == link.endpoint:
                state.preferred = (state.preferred + 1) % len(self.cluster.endpoints)
            if link.users:
                state.retired.add(link)
                return
            state.wait_for_forks(self._longest_fork)
            state.users += 1
        link.channel.close()
        state.used()

    def close(self) -> None:
        """Close all connections; what runs on them is cancelled."""
        self.closed.set()
        state = self._here()
        with state.lock:
            links, state.links = state.links, {}
            retired, state.retired = state.retired, set()  # exchanged, since a forgotten watch may end meanwhile
            state.wait_for_forks(self._longest_fork)
            state.users += 1
        for link in (*links.values(), *retired):
            link.channel.close()
        state.used()

    def _prepare_for_forks(self) -> None:
        """Have forks of this process wait for us, before the first connection.

        gRPC prepares for a fork only if no thread is inside of it; otherwise the child may hang or crash at its next
        call. So a fork waits for the requests under way, and streams end and begin anew. When the last channel goes,
        gRPC shuts itself down in a thread, for which a child would wait for ever: one channel, which never connects,
        stays with the hooks for the life of the process.
        """
        if self._ready_for_forks:
            return
        self._ready_for_forks = True
        this, kept = weakref.ref(self), self._library.grpc.insecure_channel("unix:/")
        os.register_at_fork(
            before=_AtFork(this, Links._before_fork, kept), after_in_parent=_AtFork(this, Links._after_fork, kept)
        )

    def _before_fork(self) -> None:
        state = self._here()
        with state.lock:
            state.forks += 1
            for stream in list(self._streams):
                stream.interrupt()
            state.calm.wait_for(lambda: not state.users, self._longest)

    def _after_fork(self) -> None:
        state = self._here()
        with state.lock:
            state.forks = max(0, state.forks - 1)  # this may be the end of a fork that began before there were hooks
            state.calm.notify_all()

    def _here(self) -> _State:
        """Return the connections of this process.

        A child of ``fork`` starts without any: two processes cannot share a TCP stream. It keeps the parent's objects,
        untouched, since even to free them would have gRPC wait for threads that exist in the parent only.
        """
        state = self._state
        if state.pid != os.getpid():
            state = self._state = _State(os.getpid(), preferred=state.preferred, inherited=state)
        return state

    def _channel(self, endpoint: Endpoint) -> Any:
        grpc = self._library.grpc
        if not self.cluster.secure:
            return grpc.insecure_channel(str(endpoint), options=self._options)
        identity = self._identity
        credentials = grpc.ssl_channel_credentials(identity.ca, identity.key, identity.cert)
        return grpc.secure_channel(str(endpoint), credentials, options=self._options)


@dataclass(frozen=True, slots=True)
class _AtFork:
    """A hook, which Python keeps for ever, of links that may go. ``kept`` lives as long as the hook."""

    links: weakref.ref[Links]
    action: Callable[[Links], None]
    kept: Any

    def __call__(self) -> None:
        links = self.links()
        if links is not None:
            self.action(links)


def _options(patience: Patience) -> list[tuple[str, Any]]:
    return [
        ("grpc.max_receive_message_length", -1),  # a page of big blocks is larger than gRPC's 4 MiB
        ("grpc.max_send_message_length", -1),
        ("grpc.keepalive_time_ms", int(patience.keepalive * 1000)),
        ("grpc.keepalive_timeout_ms", int(patience.keepalive_answer * 1000)),
        ("grpc.http2.max_pings_without_data", 0),  # a quiet watch is tested for ever
        ("grpc.use_local_subchannel_pool", 1),  # a new channel is a new connection, also when an old one hangs
        ("grpc.enable_http_proxy", 0),  # proxies of the environment are for the web; upstream uses none here
        ("grpc.enable_retries", 0),  # whether a request may be repeated is known here, not there
        ("grpc.service_config_disable_resolution", 1),  # no TXT look-up for each connection
        ("grpc.primary_user_agent", "calico-ipam"),
    ]
