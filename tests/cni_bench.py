"""A host for calls of the plugins as values: a store in memory, a fake dataplane, a clock that the test holds."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calico_cni.context import Context, Finished, Paths, ProgramRunner
from calico_cni.dispatch import handle
from calico_cni.logs import logging_to
from calico_cni.protocol import CALICO, CALICO_IPAM, Request, Response
from calico_cni.stopping import Stop
from calico_ipam.datastore.api import Create, Datastore
from calico_ipam.datastore.documents import DocumentStore
from calico_ipam.errors import IPAMError
from calico_ipam.model.keys import Blocks, Handles, ResourceKey, Resources
from calico_ipam.model.profiles import DEFAULT_ALLOW
from calico_ipam.model.resource import CLUSTER_INFORMATION, IP_POOL, NODE, PROFILE, WORKLOAD_ENDPOINT, Resource
from tests.cluster import ManualClock
from tests.fake_dataplane import FakeDataplane
from tests.memory import MemoryStore

CONTAINER = "0a1b2c3d4e5f60718293a4b5c6d7e8f9"
NETNS = "/run/netns/pod1"
HOST_NAME = "cali0a1b2c3d4e5"
NODE_NAME = "worker-1"


def _no_program(path: Path, environ: Mapping[str, str], stdin: bytes, timeout: float) -> Finished:
    raise AssertionError(f"{path} was not to be run")


def _no_fetch(url: str, timeout: float) -> int:
    raise AssertionError(f"{url} was not to be fetched")


@dataclass
class CNIBench:
    """``store``: what the plugins open, by itself ``base``. ``folder``: where lock file, marker and MTU file are."""

    folder: Path
    base: DocumentStore = field(default_factory=MemoryStore)
    dataplane: FakeDataplane = field(default_factory=FakeDataplane)
    clock: ManualClock = field(default_factory=ManualClock)
    run_program: ProgramRunner = _no_program
    fetch: Callable[[str, float], int] = _no_fetch
    open_error: IPAMError | None = None
    stderr: io.StringIO = field(default_factory=io.StringIO)

    def __post_init__(self) -> None:
        self.store: Datastore = self.base
        self.opened: list[Mapping[str, Any]] = []
        self.extra: dict[str, Any] = {}  # more of the network configuration, of every call
        self.noted = b""
        self.stop = Stop()

    def prepare(self) -> CNIBench:
        """Store what a ready cluster has: information, this node, a pool of each family."""
        self.put(CLUSTER_INFORMATION, "default", {"datastoreReady": True})
        self.put(NODE, NODE_NAME, {})
        self.put(IP_POOL, "pool4", {"cidr": "10.65.0.0/24", "blockSize": 28, "nodeSelector": "all()"})
        self.put(IP_POOL, "pool6", {"cidr": "fd00:65::/64", "blockSize": 124, "nodeSelector": "all()"})
        return self

    def put(self, kind: str, name: str, spec: Mapping[str, Any], namespace: str = "") -> None:
        self.base.commit(
            Create(ResourceKey(kind, name, namespace), Resource.new(kind, name, spec, namespace=namespace))
        )

    def context(self) -> Context:
        return Context(
            open_store=self._open,
            dataplane=lambda: self.dataplane,
            clock=self.clock,
            hostname=lambda: NODE_NAME,
            same_namespace=self.dataplane.same_namespace,
            logging=lambda _conf: nullcontext(),
            run_program=self.run_program,
            fetch=self.fetch,
            note=self._note,
            paths=Paths(self.folder / "mtu", self.folder / "marker" / "upgraded"),
            stop=self.stop,
        )

    @contextmanager
    def _open(self, settings: Mapping[str, Any], environ: Mapping[str, str]) -> Iterator[Datastore]:
        self.opened.append(settings)
        if self.open_error is not None:
            raise self.open_error
        yield self.store

    def _note(self, text: bytes) -> None:
        self.noted += text

    def netconf(self, **changes: Any) -> dict[str, Any]:
        found: dict[str, Any] = {
            "cniVersion": "1.0.0",
            "name": "net1",
            "type": "calico",
            "nodename_file_optional": True,
            "ipam_lock_file": str(self.folder / "ipam.lock"),
            "ipam": {"type": "calico-ipam"},
        }
        found.update(changes | self.extra)
        return {key: value for key, value in found.items() if value is not None}

    def call(
        self,
        verb: str,
        *,
        program: str = CALICO,
        container: str = CONTAINER,
        netns: str = NETNS,
        ifname: str = "eth0",
        args: str = "",
        environ: Mapping[str, str] | None = None,
        **changes: Any,
    ) -> Response:
        """Do a call; keyword arguments beyond the environment change the network configuration."""
        whole = {
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": container,
            "CNI_NETNS": netns,
            "CNI_IFNAME": ifname,
            "CNI_ARGS": f"IgnoreUnknown=1;{args}" if args else "IgnoreUnknown=1",
            "CNI_PATH": str(self.folder / "bin"),
            **(environ or {}),
        }
        with logging_to(self.stderr):
            return handle(Request(program, whole, json.dumps(self.netconf(**changes)).encode()), self.context())

    def ipam(self, verb: str, **changes: Any) -> Response:
        """Do a call of calico-ipam."""
        return self.call(verb, program=CALICO_IPAM, **changes)

    # --- what is left ---------------------------------------------------------------------------------------

    def addresses(self) -> list[str]:
        """Return every assigned address."""
        return [
            str(entry.value.address(ordinal))
            for entry in self.base.list(Blocks())
            for ordinal, attribute in entry.value.taken()
            if not attribute.cold
        ]

    def handles(self) -> list[str]:
        return [entry.value.id for entry in self.base.list(Handles())]

    def records(self) -> list[Resource]:
        return [entry.value for entry in self.base.list(Resources(WORKLOAD_ENDPOINT))]

    def profiles(self) -> list[str]:
        """Return the profiles that somebody made."""
        return [entry.value.name for entry in self.base.list(Resources(PROFILE)) if entry.key != DEFAULT_ALLOW]

    def log(self) -> str:
        return self.stderr.getvalue()


def ending(exit_code: int, stdout: bytes, stderr: bytes = b"") -> ProgramRunner:
    """Return a runner of programs that all end so."""

    def run(path: Path, environ: Mapping[str, str], stdin: bytes, timeout: float) -> Finished:
        return Finished(exit_code, stdout, stderr)

    return run


def answer(response: Response) -> dict[str, Any]:
    """Return the document on stdout; the call must have worked."""
    assert response.exit_code == 0, response.stdout
    found: dict[str, Any] = json.loads(response.stdout)
    return found


def failure(response: Response) -> dict[str, Any]:
    """Return the error object on stdout; the call must have failed."""
    assert response.exit_code == 1, response.stdout
    found: dict[str, Any] = json.loads(response.stdout)
    assert set(found) <= {"code", "msg", "details"}
    return found


def told(response: Response) -> str:
    """Return message and details of a failure."""
    found = failure(response)
    return f"{found['msg']} {found.get('details', '')}"
