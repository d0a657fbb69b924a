"""The real world of a call: this machine's clock, files, namespaces, programs and stores."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from calico_cni.context import Cluster, Context, Finished, Paths
from calico_cni.logs import logging_to
from calico_cni.netconf import LogConf
from calico_cni.stopping import HeedingServer, HeedingStore, Stop
from calico_cni.turns import link_turn, own_turn

if TYPE_CHECKING:
    from calico_cni.dataplane.api import Dataplane
    from calico_ipam.datastore.api import Datastore


#: Seconds after which whoever waits looks whether a signal came.
MOMENT = 0.1


class PlainClock:
    """The machine's clock, without the engine's imports: STATUS and GC of ``calico`` never load the engine."""

    def __init__(self, stop: Stop) -> None:
        self._stop = stop

    def now(self) -> int:
        """Unix time in nanoseconds."""
        return time.time_ns()

    def sleep(self, seconds: float) -> None:
        """Wait; a signal that comes meanwhile is heeded within a moment."""
        over = time.monotonic() + seconds
        while True:
            self._stop.heed()
            left = over - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, MOMENT))


def system_context(stderr: TextIO, stop: Stop) -> Context:
    """Return the context of a call in this process; log lines and other programs' stderr go to ``stderr``."""
    # No partial(): the type checker does not look at what is left of its arguments.
    return Context(
        open_store=lambda settings, environ: open_store(stop, settings, environ),
        dataplane=linux_dataplane,
        clock=PlainClock(stop),
        hostname=hostname,
        same_namespace=same_namespace,
        logging=_logging(stderr),
        run_program=lambda path, environ, stdin, timeout: run_program(stop, path, environ, stdin, timeout),
        fetch=lambda url, timeout: stop.waited(lambda: fetch(url, timeout)),
        note=_note(stderr),
        open_cluster=lambda settings, environ, store: open_cluster(stop, settings, environ, store),
        turn=own_turn,
        link_turn=lambda name, log, heed: link_turn(Paths().turns, name, log, heed),
        stop=stop,
    )


@contextlib.contextmanager
def open_store(stop: Stop, settings: Mapping[str, Any], environ: Mapping[str, str]) -> Iterator[Datastore]:
    """Open the store that a network configuration and the environment name, as upstream detects it (rulings 3)."""
    from calico_ipam.datastore.config import open_plugin_datastore

    store = stop.waited(lambda: open_plugin_datastore(settings, environ))
    try:
        yield HeedingStore(store, stop)
    finally:
        store.close()


def open_cluster(stop: Stop, settings: Mapping[str, Any], environ: Mapping[str, str], store: Datastore) -> Cluster:
    """Return the Kubernetes cluster that a network configuration and the environment name."""
    from calico_ipam.datastore import config
    from calico_ipam.datastore.kube import cluster

    found = config.open_cluster(settings, environ, store.inner if isinstance(store, HeedingStore) else store)
    return cluster.Cluster(HeedingServer(found.api, stop))


def linux_dataplane() -> Dataplane:
    """Return the dataplane of this machine."""
    from calico_cni.dataplane.linux import LinuxDataplane

    return LinuxDataplane()


def hostname() -> str:
    """Return the name of this machine, as it is used for a node's name."""
    import socket

    return socket.gethostname().strip().lower()


def same_namespace(netns: str) -> bool:
    """Tell whether a path is the network namespace of this process; False for one that cannot be looked at."""
    try:
        ours, theirs = Path("/proc/self/ns/net").stat(), Path(netns).stat()
    except (OSError, ValueError):
        return False
    return (ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino)


def run_program(stop: Stop, path: Path, environ: Mapping[str, str], stdin: bytes, timeout: float) -> Finished:
    """Run another plugin and wait for it; after ``timeout`` seconds, or a signal, it and its children are killed."""
    import subprocess

    stop.heed()
    deadline = time.monotonic() + timeout
    given: bytes | None = stdin
    with subprocess.Popen(  # noqa: S603  # the program is the plugin that the configuration names
        [str(path)],
        env=dict(environ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            while True:
                left = deadline - time.monotonic()
                try:
                    stdout, stderr = process.communicate(given, min(left, MOMENT))
                    break
                except subprocess.TimeoutExpired:
                    given = None  # it is on its way, and nothing that came back is lost
                    if left <= MOMENT:
                        raise TimeoutError(f"{path.name} did not end within {timeout:g} s") from None
                    stop.heed()
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            raise
    return Finished(process.returncode, stdout, stderr)


def fetch(url: str, timeout: float) -> int:
    """Return the HTTP status of a GET. Raises OSError when there is no answer within ``timeout`` seconds."""
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.parse import quote
    from urllib.request import Request, urlopen

    # Blanks and letters beyond ASCII are sent escaped, as the runtimes' language does; Python would refuse them.
    escaped = quote(url, safe="%/:?#[]@!$&'()*+,;=~")
    try:
        with urlopen(Request(escaped, method="GET"), timeout=timeout) as answer:  # noqa: S310  # the user's own URL
            return int(answer.status)
    except HTTPError as error:
        return error.code
    except HTTPException as error:
        raise OSError(str(error)) from error


def _logging(stderr: TextIO) -> Callable[[LogConf], AbstractContextManager[None]]:
    return lambda conf: logging_to(stderr, conf)


def _note(stderr: TextIO) -> Callable[[bytes], None]:
    def note(text: bytes) -> None:
        with contextlib.suppress(OSError, ValueError):
            stderr.write(text.decode("utf-8", "replace"))
            stderr.flush()

    return note
