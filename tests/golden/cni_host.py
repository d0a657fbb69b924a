"""The host of one recorded CNI case: fresh namespaces, a store, a working folder, and the real programs run on it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calico_ipam.datastore.sqlite import SQLiteStore
from tests.cluster import memory_folder
from tests.golden.cni_kube import KubeSide
from tests.golden.library_backends import DocumentBench
from tests.kube_tools import KubeServer
from tests.netns_tools import Namespace, host_state, inside, sandbox_state, unique

#: Where the distribution keeps the reference plugins.
REFERENCE_PLUGINS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
FOREIGN = ("host-local", "static")

#: Seconds after which a program is given up; upstream's answers in the recordings took at most 30.
PATIENCE = 110.0

_PROGRAM = """#!{python}
from calico_cni.entry import main
main()
"""

#: Private views of /run and /var/lib, so that markers and files of the node agent are this case's own. Namespaces made
#: meanwhile, or removed, are seen: mounts come in from outside (slave), none go out.
_PRIVATE = """
mount --rbind /run/netns "$1/run/netns" && mount --rbind "$1/run" /run && mount --bind "$1/varlib" /var/lib || exit 99
shift
exec "$@"
"""


def foreign_plugins() -> Path | None:
    """Return the folder that has all reference plugins the recordings use, or None."""
    return next((f for f in REFERENCE_PLUGINS if all((f / name).exists() for name in FOREIGN)), None)


@dataclass(slots=True)
class Outcome:
    """What one run of a program left behind, in the recording's terms."""

    exit_code: int
    stdout: str
    stderr: str
    datastore_changed: dict[str, Any]
    container: dict[str, Any]
    host: dict[str, Any]
    files: dict[str, str]


class CaseHost:
    """Everything a case touches. ``inputs``: the values of its input placeholders."""

    def __init__(self, folder: Path, setup: Mapping[str, Any], kube: KubeServer | None = None) -> None:
        self.folder = folder
        self.tmp = folder / "work"
        for name in ("work", "run/netns", "varlib", "lock", "bin", "empty", "store"):
            (folder / name).mkdir(parents=True)
        self.node = Namespace(unique("cnr-host"))
        self.node.set_sysctl("net/ipv4/conf/default/forwarding", 0)  # as it was where the recordings were made
        self.pods: dict[str, Namespace] = {}
        for placeholder in setup.get("netns", ["{NETNS}"]):
            self.add_pod(placeholder)
        self._install()
        self._server: subprocess.Popen[bytes] | None = None
        self._store = SQLiteStore(folder / "store" / "ipam.db")
        self.bench = DocumentBench("sqlite", self._store)
        self.kube = KubeSide(kube, self.node, folder) if kube is not None else None
        self.inputs = self._inputs() | (self.kube.inputs if self.kube else {})
        self._given: set[Path] = set()
        self._later: list[tuple[float, threading.Timer]] = []

    def _inputs(self) -> dict[str, str]:
        absent = {f"NETNS{n}": f"/run/netns/{self.node.name}-absent{n}" for n in ("", "2", "3")}
        return {
            **absent,
            **{placeholder[1:-1]: pod.path for placeholder, pod in self.pods.items()},
            "HOST_NETNS": "/proc/self/ns/net",
            "CNI_PATH": str(self.folder / "bin"),
            "CNI_PATH2": str(self.folder / "empty"),
            "TMP": str(self.tmp),
            "NODENAME_FILE": str(self.tmp / "nodename"),
            "LOCK_FILE": str(self.folder / "lock" / "ipam.lock"),
            "STATUS_DIR": str(self.tmp / "endpoint-status"),
            "MTU_FILE": "/var/lib/calico/mtu",
            "UPGRADE_MARKER": "/var/run/calico/cni/ipam_upgraded",
            "ETCD_ENDPOINTS": "http://127.0.0.1:2379",
        }

    def _install(self) -> None:
        for name in ("calico", "calico-ipam"):
            program = self.folder / "bin" / name
            program.write_text(_PROGRAM.format(python=sys.executable))
            program.chmod(0o755)
        foreign = foreign_plugins()
        for name in FOREIGN:
            if foreign is not None:
                (self.folder / "bin" / name).symlink_to(foreign / name)

    # --- surroundings ---------------------------------------------------------------------------------------

    def add_pod(self, placeholder: str) -> None:
        """Make a sandbox as it was where the recordings were made: there the host did not forward."""
        pod = Namespace(unique("cnr-pod"))
        for setting in ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"):
            pod.set_sysctl(setting, 0)
        self.pods[placeholder] = pod

    def remove_pod(self, placeholder: str) -> None:
        self.pods.pop(placeholder).destroy()

    def ip(self, args: Sequence[str], placeholder: str | None) -> None:
        """Run the ip command; the recording's own names of namespaces become this case's."""
        where = self.node if placeholder is None else self.pods[placeholder]
        names = {f"pod{i}": pod.name for i, pod in enumerate(self.pods.values(), 1)}
        where.ip(*(names.get(arg, arg) if i and args[i - 1] == "netns" else arg for i, arg in enumerate(args)))

    def write_file(self, path: str, content: str | None) -> None:
        """Write or remove a file as the programs see it."""
        real = self._real(path)
        if content is None:
            real.unlink(missing_ok=True)
            return
        real.parent.mkdir(parents=True, exist_ok=True)
        real.write_text(content)

    def give_file(self, path: str, content: str) -> None:
        """Write a file that is there from the start; the recording does not tell it as a result."""
        self.write_file(path, content)
        self._given.add(self._real(path))

    def write_file_later(self, path: str, content: str, delay: float) -> None:
        timer = threading.Timer(delay, self.write_file, (path, content))
        self._later.append((time.monotonic() + delay, timer))
        timer.start()

    def _write_what_is_due(self) -> None:
        """Wait for files that are due by now: this process may have stood still while the program ran."""
        for due, timer in self._later:
            if time.monotonic() >= due:
                timer.join()

    def _real(self, path: str) -> Path:
        for seen, real in (("/var/lib/", "varlib"), ("/var/run/", "run"), ("/run/", "run")):
            if path.startswith(seen):
                return self.folder / real / path.removeprefix(seen)
        return Path(path)

    def answer_http(self) -> None:
        """Answer on the address that stands for etcd's, for cases whose readiness gate it is."""
        with inside(self.node.path):
            self._server = subprocess.Popen([sys.executable, "-c", _HEALTH], stdout=subprocess.PIPE)
        assert self._server.stdout is not None
        self._server.stdout.readline()  # it says when it listens

    def command(self, program: str, argv: Sequence[str], environ: Mapping[str, str]) -> list[str]:
        """Return the command that runs a program with the private view; it stays one process throughout."""
        command = ["unshare", "--mount", "--propagation", "slave", "sh", "-c", _PRIVATE, "sh", str(self.folder)]
        command += ["env", "-i", f"PATH={os.environ['PATH']}", *(f"{k}={v}" for k, v in environ.items())]
        return [*command, str(self.folder / "bin" / program), *argv]

    # --- running and looking --------------------------------------------------------------------------------

    def run(self, program: str, argv: Sequence[str], environ: Mapping[str, str], stdin: bytes) -> Outcome:
        """Run a program and return what it did."""
        before = self.state()
        with inside(self.node.path):
            done = subprocess.run(
                self.command(program, argv, environ), input=stdin, capture_output=True, timeout=PATIENCE, check=False
            )
        self._write_what_is_due()
        assert done.returncode != 99, f"the private view of /run and /var/lib cannot be made: {done.stderr!r}"
        return Outcome(
            exit_code=done.returncode,
            stdout=done.stdout.decode(),
            stderr=done.stderr.decode(errors="replace"),
            datastore_changed=self._changed(before),
            container=self._container(),
            host=self._host(),
            files=self._files(),
        )

    def look_again(self, outcome: Outcome) -> None:
        """Read the links anew: the kernel gives them link-local addresses in its own time."""
        outcome.container, outcome.host = self._container(), self._host()

    def _container(self) -> dict[str, Any]:
        return {pod.path: sandbox_state(pod) for pod in self.pods.values() if pod.links()}

    def _host(self) -> dict[str, Any]:
        return host_state(self.node) if self.node.links() else {}

    def forget_files(self) -> None:
        """Remove lock file and marker, as if no run had made them."""
        for name in ("LOCK_FILE", "UPGRADE_MARKER"):
            self._real(self.inputs[name]).unlink(missing_ok=True)

    def state(self) -> dict[str, Any]:
        """Return what the datastore holds, and the API server of a case that has one."""
        return {**self.bench.state(), **(self.kube.state() if self.kube else {})}

    def _changed(self, before: Mapping[str, Any]) -> dict[str, Any]:
        after = self.state()
        changed = {key: value for key, value in after.items() if before.get(key) != value}
        return {**changed, **{key: None for key in before if key not in after}}

    def _files(self) -> dict[str, str]:
        found = {str(path): path for path in self.tmp.rglob("*") if path.is_file() and path not in self._given}
        for name in ("LOCK_FILE", "UPGRADE_MARKER"):
            path = self._real(self.inputs[name])
            if path.exists():
                found[self.inputs[name]] = path
        return {name: path.read_text(errors="replace") for name, path in sorted(found.items())}

    def close(self) -> None:
        for _, timer in self._later:
            timer.cancel()
            timer.join()
        if self._server is not None:
            self._server.kill()
            self._server.communicate()
        self.bench.close()
        if self.kube is not None:
            self.kube.close()
        for pod in self.pods.values():
            pod.destroy()
        self.node.destroy()


_HEALTH = """
import http.server
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *args):
        pass
server = http.server.HTTPServer(("127.0.0.1", 2379), Health)
print("listening", flush=True)
server.serve_forever()
"""


@contextmanager
def case_host(setup: Mapping[str, Any], kube: KubeServer | None = None) -> Iterator[CaseHost]:
    """Yield a host with nothing on it but what ``setup`` names; gone afterwards. ``kube``: for cases with pods."""
    folder = Path(tempfile.mkdtemp(prefix="cnr-", dir=memory_folder()))
    host = None
    try:
        host = CaseHost(folder, setup, kube)
        yield host
    finally:
        if host is not None:
            host.close()
        shutil.rmtree(folder, ignore_errors=True)


def wait(seconds: float) -> None:
    """A recorded pause."""
    time.sleep(seconds)
