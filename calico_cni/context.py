"""What a verb gets from outside: stores, dataplane, time, files of the host. Everything a test wants to hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from calico_cni.errors import cni_error
from calico_cni.logs import Log
from calico_cni.netconf import LogConf, NetConf
from calico_cni.protocol import Request
from calico_cni.stopping import Stop
from calico_ipam.errors import IPAMError

if TYPE_CHECKING:
    from calico_cni.dataplane.api import Dataplane
    from calico_ipam.datastore.api import Datastore, Deadline
    from calico_ipam.engine.policy import Clock


class StoreOpener(Protocol):
    """Opens the datastore that a configuration names, for the length of a ``with`` block."""

    def __call__(
        self, settings: Mapping[str, Any], environ: Mapping[str, str]
    ) -> AbstractContextManager[Datastore]: ...


class Cluster(Protocol):
    """Reads objects of Kubernetes. Every method may raise NotFound, NotConfigured and the errors of a datastore."""

    def within(self, deadline: Deadline | None) -> Cluster: ...

    def pod(self, namespace: str, name: str) -> Mapping[str, Any]: ...

    def pod_now(self, namespace: str, name: str) -> Mapping[str, Any]: ...

    def namespace(self, name: str) -> Mapping[str, Any]: ...

    def node(self, name: str) -> Mapping[str, Any]: ...

    def machine_instance(self, namespace: str, name: str) -> Mapping[str, Any]: ...

    def machine(self, namespace: str, name: str) -> Mapping[str, Any]: ...

    def version(self) -> Mapping[str, Any]: ...

    def close(self) -> None: ...


class ClusterOpener(Protocol):
    """Returns the cluster that a configuration names; on the Kubernetes datastore it shares the store's connection."""

    def __call__(self, settings: Mapping[str, Any], environ: Mapping[str, str], store: Datastore) -> Cluster: ...


@dataclass(frozen=True, slots=True)
class Finished:
    """How another program ended. ``exit_code`` is negative for a signal."""

    exit_code: int
    stdout: bytes
    stderr: bytes


class ProgramRunner(Protocol):
    """Runs another plugin. Raises OSError when it cannot be started, TimeoutError when it does not end in time."""

    def __call__(self, path: Path, environ: Mapping[str, str], stdin: bytes, timeout: float) -> Finished: ...


@dataclass(frozen=True, slots=True)
class Paths:
    """Files of the host whose place is not configurable."""

    mtu_file: Path = Path("/var/lib/calico/mtu")
    upgrade_marker: Path = Path("/var/run/calico/cni/ipam_upgraded")
    installed_netconf: Path = Path("/etc/cni/net.d/10-calico.conflist")
    turns: Path = Path("/var/run/calico/cni/turns")


def no_cluster(settings: Mapping[str, Any], environ: Mapping[str, str], store: Datastore) -> Cluster:  # noqa: ARG001  # the protocol's
    """Stand in where nobody knows of Kubernetes, whatever the settings say."""
    from calico_ipam.datastore.config import open_cluster

    return open_cluster({}, {}, store)


class Turns(Protocol):
    """Keeps calls for one sandbox, or one link of the host, apart for the length of a ``with`` block.

    ``heed`` is called while one waits.
    """

    def __call__(self, what: str, log: Log, heed: Callable[[], None], /) -> AbstractContextManager[None]: ...


def _no_turn(_what: str, _log: Log, _heed: Callable[[], None]) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True, slots=True)
class Context:
    """The world of one call.

    ``logging``: starts logging as a configuration says. ``fetch``: HTTP GET of a URL within seconds, returns the
    status. ``note``: passes text of another program on to our stderr. ``stop``: whether the call was asked to end; for
    whoever waits, and for whoever takes back what was done.
    """

    open_store: StoreOpener
    dataplane: Callable[[], Dataplane]
    clock: Clock
    hostname: Callable[[], str]
    same_namespace: Callable[[str], bool]
    logging: Callable[[LogConf], AbstractContextManager[None]]
    run_program: ProgramRunner
    fetch: Callable[[str, float], int]
    note: Callable[[bytes], None]
    paths: Paths = Paths()
    open_cluster: ClusterOpener = no_cluster
    turn: Turns = _no_turn
    link_turn: Turns = _no_turn
    stop: Stop = field(default_factory=Stop)

    def sharing(self, store: Datastore) -> Context:
        """Return the context for a call inside this one: same store, and the log that is already open."""
        return replace(self, open_store=lambda _settings, _environ: nullcontext(store), logging=_already_logging)

    def knowing(self, cluster: Cluster) -> Context:
        """Return the context for a call inside this one that may use what was read of Kubernetes already."""
        return replace(self, open_cluster=lambda _settings, _environ, _store: cluster)


def _already_logging(_conf: LogConf) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True, slots=True)
class Call:
    """One verb's work: what was asked, how it is configured, and the world."""

    request: Request
    conf: NetConf
    context: Context
    log: Log

    @contextmanager
    def store(self, prefix: str = "") -> Iterator[Datastore]:
        """Open the configured datastore; ``prefix`` goes before the text of an error in doing so."""
        try:
            opened = self.context.open_store(self.conf.store_settings, self.request.environ)
            store = opened.__enter__()
        except IPAMError as error:
            raise cni_error(error, prefix) from error
        with _entered(opened):
            yield store

    def turn_of(self, link: str) -> AbstractContextManager[None]:
        """Return what keeps this call apart from those for other sandboxes with the same link of the host."""
        return self.context.link_turn(link, self.log, self.context.stop.heed)

    def cluster(self, store: Datastore) -> Cluster:
        """Return the cluster that knows the pods; nothing is sent yet. Raises NotConfigured, InvalidInput."""
        return self.context.open_cluster(self.conf.cluster_settings, self.request.environ, store)


@contextmanager
def _entered(opened: AbstractContextManager[Any]) -> Iterator[None]:
    """Leave a context that was entered elsewhere."""
    try:
        yield
    except BaseException as error:
        if not opened.__exit__(type(error), error, error.__traceback__):
            raise
    else:
        opened.__exit__(None, None, None)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a verb has to say. ``fresh``: it made something that a DEL of the same attachment would undo."""

    text: str = ""
    fresh: bool = False


Verb = Callable[[Call], Answer]
