"""A private etcd for tests, certificates for it, and a bad network in front of it.

::

    with Etcd() as etcd:                       # one member, empty, on free ports, gone afterwards
        store = EtcdStore(etcd.settings())

A missing ``etcd`` skips with the way to get it, and fails in CI.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from calico_ipam.datastore.etcd.library import load
from calico_ipam.datastore.settings import ETCD, Settings
from tests.clock import LONG
from tests.ports import free_ports

READY = 100.0  # seconds a server may take to start on a machine that is busy with tests; it takes about one
MISSING = "etcd is not installed: apt-get install etcd-server (etcd-client for etcdctl)"


def wait_until(true: Callable[[], Any], seconds: float = LONG, what: str = "the condition") -> Any:
    """Return the first true answer; fail when none comes."""
    until = time.monotonic() + seconds
    while not (answer := true()):
        assert time.monotonic() < until, f"waited {seconds} s in vain for {what}"
        time.sleep(0.005)
    return answer


class Etcd:
    """One etcd process, a cluster of its own. ``arguments`` go to it as they are."""

    def __init__(
        self,
        *arguments: str,
        scheme: str = "http",
        certificates: Path | None = None,
        durable: bool = False,
        ports: Sequence[int] = (),
    ) -> None:
        if shutil.which("etcd") is None:
            pytest.skip(MISSING)
        self.arguments = [*arguments, *(() if durable else ("--unsafe-no-fsync",))]
        self.scheme = scheme
        self.certificates = certificates
        self.folder = Path(tempfile.mkdtemp(prefix="etcd-test-"))
        self.port, peer_port = ports or free_ports(2)
        self.name = "test"
        self.peer = f"http://127.0.0.1:{peer_port}"
        self.members = [self]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def endpoint(self) -> str:
        return f"{self.scheme}://{self.address}"

    def settings(self, **more: Any) -> Settings:
        return Settings(ETCD, **{"etcd_endpoints": (self.endpoint,), **more})

    def __enter__(self) -> Etcd:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        self.launch()
        wait_until(self.ready, READY, "etcd to start")

    def launch(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *("etcd", "--name", self.name, "--data-dir", str(self.folder / "data")),
                    *("--listen-client-urls", self.endpoint, "--advertise-client-urls", self.endpoint),
                    *("--listen-peer-urls", self.peer, "--initial-advertise-peer-urls", self.peer),
                    *("--initial-cluster", ",".join(f"{member.name}={member.peer}" for member in self.members)),
                    *self.arguments,
                ],
                stdout=log,
                stderr=log,
            )

    def ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "log").read_text()
        library = load()
        channel = self.channel()
        try:
            library.unary(channel, "Maintenance/Status", "StatusResponse")(
                library.message("StatusRequest")(), timeout=10
            )
            return True
        except library.grpc.RpcError:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=10):
                # A server that wants a client certificate, or shows a bad one, is ready when it listens.
                return self.scheme == "https"
            return False
        finally:
            channel.close()

    def _status(self, channel: Any) -> Any:
        library = load()
        status = library.unary(channel, "Maintenance/Status", "StatusResponse")
        return status(library.message("StatusRequest")(), timeout=10)

    def leads(self) -> bool:
        """Whether it says that it is the leader of its cluster."""
        channel = self.channel()
        try:
            status = self._status(channel)
        except load().grpc.RpcError:
            return False
        finally:
            channel.close()
        return bool(status.leader == status.header.member_id)

    def channel(self) -> Any:
        grpc = load().grpc
        if self.certificates is None:
            return grpc.insecure_channel(self.address)
        ca = (self.certificates / "ca.pem").read_bytes()
        pair = [(self.certificates / f"client.{part}").read_bytes() for part in ("key", "pem")]
        return grpc.secure_channel(self.address, grpc.ssl_channel_credentials(ca, *pair))

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def begin_anew(self) -> None:
        """Lose everything, and start as another cluster at the same address."""
        self.stop()
        shutil.rmtree(self.folder / "data")
        self.start()

    def freeze(self) -> None:
        """Let it stand still: the kernel takes connections and bytes, nobody answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)  # all its threads, and not only soon

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    # --- behind the back of the library --------------------------------------------------------------------

    def control(self, *arguments: str) -> str:
        """Run etcdctl."""
        if shutil.which("etcdctl") is None:
            pytest.skip(MISSING)
        done = subprocess.run(
            ["etcdctl", "--endpoints", self.endpoint, "--dial-timeout=30s", "--command-timeout=30s", *arguments],
            env={**os.environ, "ETCDCTL_API": "3"},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def put(self, key: str, text: str | bytes) -> int:
        """Store any text; returns its revision."""
        value = text if isinstance(text, bytes) else text.encode()
        return int(self._ask("Put", key=key.encode(), value=value).header.revision)

    def delete(self, key: str) -> None:
        self._ask("DeleteRange", key=key.encode())

    def texts(self) -> dict[str, str]:
        answer = self._ask("Range", key=b"\0", range_end=b"\0")
        return {pair.key.decode(): pair.value.decode() for pair in answer.kvs}

    def clear(self) -> None:
        self._ask("DeleteRange", key=b"\0", range_end=b"\0")

    def compact(self) -> int:
        """Forget all history; returns the revision that is still there."""
        revision = int(self._ask("Range", key=b"a").header.revision)
        self._ask("Compact", "Compaction", revision=revision, physical=True)
        return revision

    def _ask(self, method: str, message: str = "", **fields: Any) -> Any:
        library, channel = load(), self.channel()
        message = message or method
        try:
            call = library.unary(channel, f"KV/{method}", f"{message}Response")
            return call(library.message(f"{message}Request")(**fields), timeout=30)
        finally:
            channel.close()


@contextlib.contextmanager
def etcd_cluster(size: int) -> Iterator[list[Etcd]]:
    """Run a cluster of several members, that elect a leader in a second or two and not because one was slow."""
    ports = free_ports(2 * size)
    times = ("--heartbeat-interval=100", "--election-timeout=1000")
    members = [Etcd(*times, ports=ports[2 * number : 2 * number + 2]) for number in range(size)]
    for number, member in enumerate(members):
        member.name, member.members = f"m{number}", members
    try:
        for member in members:
            member.launch()
        for member in members:
            wait_until(member.ready, READY, "the cluster to start")
        yield members
    finally:
        for member in members:
            member.__exit__()


# --- certificates -------------------------------------------------------------------------------------------


def make_certificates(folder: Path) -> Path:
    """Make a CA (``ca``), a foreign one (``other``), and certificates of all kinds, each as .pem and .key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: apt-get install openssl")
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("ca", "other"):
        _openssl(folder, f"req -x509 {_NEW} -keyout {name}.key -out {name}.pem -subj /CN=test-{name} -days 30")
    here = "subjectAltName=IP:127.0.0.1,DNS:localhost"
    _sign(folder, "server", here)
    _sign(folder, "server-expired", here, days=-1)
    _sign(folder, "server-elsewhere", "subjectAltName=DNS:elsewhere.example")
    ours = "extendedKeyUsage=clientAuth"
    _sign(folder, "client", ours)
    _sign(folder, "client-expired", ours, days=-1)
    _sign(folder, "client-foreign", ours, ca="other")
    return folder


_NEW = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"


def _sign(folder: Path, name: str, extension: str, ca: str = "ca", days: int = 10) -> None:
    _openssl(folder, f"req {_NEW} -keyout {name}.key -out {name}.csr -subj /CN={name.partition('-')[0]}")
    (folder / "extension").write_text(f"{extension}\n")
    _openssl(
        folder,
        f"x509 -req -in {name}.csr -CA {ca}.pem -CAkey {ca}.key -CAcreateserial -days {days} -out {name}.pem "
        "-extfile extension",
    )


def _openssl(folder: Path, arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments.split()], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def tls_arguments(folder: Path, server: str = "server", *, client_certificates: bool = False) -> Sequence[str]:
    """Arguments of an etcd that shows the certificate ``server``."""
    wanted = ("--client-cert-auth=true", f"--trusted-ca-file={folder / 'ca.pem'}") if client_certificates else ()
    return (f"--cert-file={folder / server}.pem", f"--key-file={folder / server}.key", *wanted)


# --- a bad network ------------------------------------------------------------------------------------------


@dataclass
class Weather:
    """What a proxy does to bytes. ``answers`` False: what the server says never arrives, as on a half-open line."""

    requests: bool = True
    answers: bool = True
    delay: float = 0.0  #: seconds before each piece that comes from the server
    rate: float = 0.0  #: bytes per second from the server; 0 means as fast as it can


class Proxy:
    """A TCP proxy on a port of its own; ``weather`` may change at any time."""

    def __init__(self, target: int) -> None:
        self.weather = Weather()
        self.connections = 0
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._open: set[socket.socket] = set()
        self._dead: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._accepting = threading.Thread(target=self._accept, daemon=True)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Proxy:
        self._accepting.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join(10)  # before its descriptor may become another listener's
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """Break all connections."""
        with self._lock:
            for each in self._open:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def die_unseen(self) -> None:
        """From now on nothing comes through the connections that there are; new ones work."""
        with self._lock:
            self._dead |= self._open

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            try:
                server = socket.create_connection(("127.0.0.1", self._target), timeout=5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            with self._lock:
                self._open |= {client, server}
            threading.Thread(target=self._serve, args=(client, server), daemon=True).start()

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        """Carry both ways; whoever comes last closes both, so that nobody uses a descriptor that is closed."""
        back = threading.Thread(target=self._carry, args=(server, client, True), daemon=True)
        back.start()
        self._carry(client, server, False)
        back.join()
        with self._lock:
            self._open -= {client, server}
            client.close()
            server.close()

    def _carry(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(65536):
                weather = self.weather
                if answers and weather.delay:
                    time.sleep(weather.delay)
                if source in self._dead or not (weather.answers if answers else weather.requests):
                    continue
                if answers and weather.rate:
                    for byte in piece:
                        sink.sendall(bytes([byte]))
                        time.sleep(1 / weather.rate)
                else:
                    sink.sendall(piece)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def proxied(etcd: Etcd) -> Iterator[Proxy]:
    with Proxy(etcd.port) as proxy:
        yield proxy
