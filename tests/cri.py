"""A node of a cluster: containerd with its CRI plugin, driven by crictl as a kubelet would.

Each node is a machine of its own: namespaces for network, mounts, processes and host name. The first process only
waits, so containerd can be killed and started again while its sandboxes live on, as on a real machine.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest

from tests.clock import LONG
from tests.containerd import (
    ISOLATED,
    PRIVATE_VIEW,
    SOCKET,
    children,
    end,
    need_containerd,
    remove_control_groups,
    wait_until,
)
from tests.netns_tools import Node

PAUSE = "localhost/pause:test"

#: /run and /var are private too: the plugins' lock and log, and no file of a node agent. $1 is the host's name. The
#: shell that waits also reaps what containerd leaves behind.
_MACHINE = """
set -eu
hostname "$1"
mount -t tmpfs none "$2"
mkdir "$2/upper" "$2/work"
mount -t overlay -o "lowerdir=/var,upperdir=$2/upper,workdir=$2/work" none /var
for place in calico cni; do mkdir -p "/var/lib/$place"; mount -t tmpfs none "/var/lib/$place"; done
mkdir -p /var/log/calico
mount -t tmpfs none /var/log/calico
mount -t tmpfs none /run
mkdir /run/containerd
touch "$2/ready"
while :; do sleep 600; done
"""

#: Control groups and processes of this machine may not be allowed to raise their chance to survive: restricted.
_CONFIG = """
version = 2
root = "{folder}/root"
state = "{folder}/state"
[grpc]
  address = "{socket}"
[ttrpc]
  address = "{socket}.ttrpc"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
"""


def crictl() -> Path:
    """Return the path of crictl, the command line of CRI, which ``make test`` builds where Go is installed."""
    folder = Path(os.environ.get("CALICO_IPAM_CACHE") or Path.home() / ".cache" / "calico-ipam")
    built = sorted(folder.glob("crictl-*/crictl"))
    if built:
        return built[-1]
    found = shutil.which("crictl")
    if found is None:
        pytest.skip("no crictl: `make crictl` builds it where Go is installed (apt-get install golang-go)")
    return Path(found)


def pause_image(file: Path) -> Path:
    """Write an image that only sleeps, made of the host's static busybox, as ``docker save`` would."""
    busybox = shutil.which("busybox")
    if busybox is None:
        pytest.skip("no busybox: apt-get install busybox-static")
    layer = _tar({"bin/busybox": Path(busybox).read_bytes()})
    config = {
        "architecture": "amd64" if os.uname().machine == "x86_64" else "arm64",
        "os": "linux",
        "config": {"Entrypoint": ["/bin/busybox", "sleep", "86400"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [PAUSE], "Layers": ["layer.tar"]}]
    file.write_bytes(
        _tar(
            {
                "layer.tar": layer,
                "config.json": json.dumps(config).encode(),
                "manifest.json": json.dumps(manifest).encode(),
            }
        )
    )
    return file


def _tar(files: Mapping[str, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755
            archive.addfile(entry, io.BytesIO(content))
    return made.getvalue()


class CRIError(Exception):
    """crictl failed; the text is what it said."""


@dataclass
class CRINode:
    """A running machine. ``inside``: host PID of its first process; ``network``: its network namespace."""

    name: str
    folder: Path
    network: Node
    inside: int
    group: str
    program: Path
    _containerd: list[subprocess.Popen[bytes]] = field(default_factory=list)

    # --- containerd ----------------------------------------------------------------------------------------

    def command(self, *words: str, network: str = "") -> list[str]:
        """Return a command line that runs on this machine, in its own or another network namespace of it."""
        net = [f"--net={network}"] if network else []
        return ["nsenter", f"--target={self.inside}", "--mount", "--pid", "--uts", "--net", *_then(net), *words]

    def run(self, *words: str, network: str = "") -> str:
        """Run a command on this machine and return what it printed."""
        done = subprocess.run(self.command(*words, network=network), capture_output=True, text=True, timeout=LONG)
        assert done.returncode == 0, f"{' '.join(words)} on {self.name}: {done.stderr or done.stdout}"
        return done.stdout

    def start(self) -> None:
        """Start containerd; returns when CRI answers."""
        with (self.folder / "containerd.log").open("ab") as log:
            command = self.command("containerd", "--config", str(self.folder / "config.toml"))
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._containerd.append(process)

        def answers() -> bool:
            assert process.poll() is None, f"containerd ended: {self.log()}"
            try:
                status = json.loads(self.crictl("info"))["status"]["conditions"]
            except CRIError:
                return False
            return all(condition["status"] for condition in status)

        wait_until(f"CRI of {self.name} is ready", answers)

    def kill_containerd(self) -> None:
        """Kill containerd as a crash does; shims and sandboxes live on."""
        for child in children(self._containerd[-1].pid):
            os.kill(child, signal.SIGKILL)
        self.reap()

    def reap(self) -> None:
        """Wait for a containerd that was killed, or whose machine ended."""
        while self._containerd:
            self._containerd.pop().wait(timeout=LONG)

    def log(self) -> str:
        return (self.folder / "containerd.log").read_text(errors="replace")[-4000:]

    def load(self, image: Path) -> None:
        """Give containerd an image; returns when CRI, which hears of it by an event, knows it."""
        self.run("ctr", f"--address={SOCKET}", "--namespace=k8s.io", "images", "import", "--no-unpack", str(image))
        wait_until("CRI knows the pause image", lambda: PAUSE.partition(":")[0] in self.crictl("images"))

    # --- what a kubelet does -------------------------------------------------------------------------------

    def crictl(self, *words: str) -> str:
        """Run crictl; raises CRIError with its words when it fails."""
        where = f"unix://{SOCKET}"
        options = [f"--runtime-endpoint={where}", f"--image-endpoint={where}", "--timeout=100s"]
        command = self.command(str(self.program), *options, *words)
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        if done.returncode != 0:
            raise CRIError(done.stderr or done.stdout)
        return done.stdout

    def run_sandbox(self, pod: Mapping[str, Any], attempt: int = 0) -> Sandbox:
        """Run a sandbox for a pod of the API server."""
        metadata = {key: pod["metadata"][key] for key in ("name", "namespace", "uid")}
        config = {"metadata": {**metadata, "attempt": attempt}, "linux": {"cgroup_parent": f"/{self.group}"}}
        file = self.folder / f"{metadata['name']}-{attempt}.json"
        file.write_text(json.dumps(config))
        return Sandbox(self, self.crictl("runp", str(file)).strip())

    def sandboxes(self) -> list[str]:
        """Return the IDs of all sandboxes, also those that are stopped."""
        return self.crictl("pods", "--quiet", "--no-trunc").split()


def _then(words: list[str]) -> list[str]:
    return ["nsenter", *words, "--"] if words else ["--"]


@dataclass(frozen=True)
class Sandbox:
    """A pod sandbox that CRI knows."""

    node: CRINode
    id: str

    def inspect(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.node.crictl("inspectp", self.id))
        return found

    @property
    def state(self) -> str:
        return str(self.inspect()["status"]["state"]).removeprefix("SANDBOX_")

    @property
    def addresses(self) -> list[str]:
        """The addresses that CRI reports to the kubelet, the first one first."""
        network = self.inspect()["status"]["network"]
        return [network["ip"], *(more["ip"] for more in network.get("additionalIps", []))]

    def links(self) -> dict[str, list[str]]:
        """Return what is really inside: link -> addresses of global scope, with their prefix lengths."""
        found = json.loads(self.ip("-json", "address"))
        return {
            link["ifname"]: [f"{a['local']}/{a['prefixlen']}" for a in link["addr_info"] if a.get("scope") == "global"]
            for link in found
            if link
        }

    def ip(self, *words: str) -> str:
        """Run ``ip`` inside."""
        return self.node.run("ip", *words, network=self._network)

    def pings(self, address: str) -> bool:
        command = self.node.command("ping", "-c1", "-W1", "-w15", address, network=self._network)
        return subprocess.run(command, capture_output=True, timeout=LONG).returncode == 0

    def stop(self) -> None:
        self.node.crictl("stopp", self.id)

    def remove(self) -> None:
        self.node.crictl("rmp", self.id)

    @property
    def _network(self) -> str:
        spec = self.inspect()["info"]["runtimeSpec"]["linux"]["namespaces"]
        return next(str(found["path"]) for found in spec if found["type"] == "network")


@contextmanager
def cri_node(name: str, folder: Path, network: Node, *, configurations: Path, plugins: Path) -> Iterator[CRINode]:
    """Start a machine called ``name`` with containerd on it, in ``network``; end it with all its sandboxes."""
    need_containerd()
    program = crictl()
    for place in ("upper", "machine"):
        (folder / place).mkdir(parents=True)
    (folder / "config.toml").write_text(_CONFIG.format(folder=folder, socket=SOCKET, pause=PAUSE))
    group = f"t{token_hex(4)}"
    view = ["bash", "-c", PRIVATE_VIEW, "enter", str(folder), str(configurations), str(plugins)]
    wait = ["bash", "-c", _MACHINE, "machine", name, str(folder / "machine")]
    log = folder / "machine.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            ["nsenter", f"--net={network.path}", "--", *ISOLATED, "--uts", *view, *wait],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    with ExitStack() as stack:
        stack.callback(remove_control_groups, group)
        stack.callback(end, process)

        def inside() -> list[int]:
            assert process.poll() is None, f"the machine ended: {log.read_text()}"
            return [pid for pid in children(process.pid) if Path(f"/proc/{pid}/root{folder}/machine/ready").exists()]

        wait_until(f"machine {name} is up", inside)
        node = CRINode(name, folder, network, inside()[0], group, program)
        stack.callback(node.reap)
        stack.callback(end, process)
        node.start()
        node.load(pause_image(folder / "pause.tar"))
        yield node
        for sandbox in node.sandboxes():
            node.crictl("stopp", sandbox)
            node.crictl("rmp", sandbox)
