"""The distribution's containerd, started for a test and gone with it.

It runs in mount and process namespaces of its own. In that view ``/etc/cni/net.d`` and ``/opt/cni/bin`` are folders of
the test: ``ctr run --cni`` reads those two places whatever containerd's configuration says. The host's folders are
neither used nor made. Ending the first process of the process namespace ends containerd, its shims and every
container, so nothing can outlive a test.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

import pytest

from tests.clock import LONG

#: In containerd's view of the file system.
SOCKET = "/run/containerd/containerd.sock"

#: The shell of the private view: $1 scratch folder, $2 network configurations, $3 plugins, then what to become.
#: /etc and /opt become overlays whose upper layers are in memory, so that the two mount points can be made.
#: /run/containerd is private as well: runc and the shims keep state there by the name of the container, and the socket
#: must have a short path.
PRIVATE_VIEW = """
set -eu
mount -t tmpfs none "$1/upper"
for place in etc opt; do
    mkdir "$1/upper/$place" "$1/upper/$place.work"
    mount -t overlay -o "lowerdir=/$place,upperdir=$1/upper/$place,workdir=$1/upper/$place.work" none "/$place"
done
mkdir -p /etc/cni/net.d /opt/cni/bin /run/containerd
mount -t tmpfs none /run/containerd
mount --bind "$2" /etc/cni/net.d
mount --bind "$3" /opt/cni/bin
shift 3
exec "$@"
"""
#: Ending the first process of these namespaces ends all the others.
ISOLATED = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation=private")


def wait_until(what: str, condition: Callable[[], object], *, seconds: float = LONG) -> None:
    """Return when ``condition`` holds; fail with ``what`` when it does not within ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.05)


@dataclass(frozen=True, slots=True)
class Containerd:
    """A running containerd. ``inside``: host PID of the first process of its namespaces."""

    folder: Path
    inside: int
    namespace: str

    def command(self, *arguments: str) -> list[str]:
        """Return the command line of ``ctr`` in containerd's view of the file system."""
        enter = ["nsenter", f"--target={self.inside}", "--mount", "--pid"]
        return [*enter, "ctr", f"--address={SOCKET}", f"--namespace={self.namespace}", *arguments]

    def ctr(self, *arguments: str) -> str:
        """Run ``ctr`` to its end and return what it printed; fail with its words when it fails."""
        done = subprocess.run(self.command(*arguments), capture_output=True, text=True, timeout=LONG, check=False)
        assert done.returncode == 0, f"ctr {' '.join(arguments)}: {done.stderr or done.stdout}"
        return done.stdout

    def _run(self, name: str, rootfs: Path) -> list[str]:
        return self.command("run", "--rm", "--cni", "--rootfs", str(rootfs), name, "/bin/sleep", "600")

    @contextmanager
    def container(self, name: str, rootfs: Path) -> Iterator[Container]:
        """Run a container with CNI networking. At the end it is stopped, and containerd has sent its DEL.

        In the foreground: a detached ``ctr run`` never sends a DEL.
        """
        log = self.folder / f"{name}.log"
        with log.open("w") as output:
            run = subprocess.Popen(self._run(name, rootfs), stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:

            def running() -> bool:
                assert run.poll() is None, f"ctr run ended early: {log.read_text()}"
                return re.search(rf"^{name}\s.*RUNNING", self.ctr("task", "list"), re.MULTILINE) is not None

            wait_until(f"container {name} runs", running)
            yield Container(self, name)
            self.ctr("task", "kill", "--signal=SIGKILL", name)
            run.wait(timeout=LONG)
            said = log.read_text()
            assert "error" not in said and "failed" not in said, said
        finally:
            if run.poll() is None:
                run.kill()
                run.wait()

    def refused(self, name: str, rootfs: Path) -> str:
        """Run a container that cannot be networked; return what ``ctr`` said about it."""
        done = subprocess.run(self._run(name, rootfs), capture_output=True, text=True, timeout=LONG, check=False)
        assert done.returncode != 0, f"container {name} was not refused: {done.stdout}"
        return done.stderr


@dataclass(frozen=True, slots=True)
class Container:
    """A running container."""

    runtime: Containerd
    name: str

    def run(self, *command: str) -> str:
        """Run a command inside, by its absolute path, and return what it printed."""
        return self.runtime.ctr("task", "exec", f"--exec-id=x{time.monotonic_ns()}", self.name, *command)


def busybox_rootfs(folder: Path) -> Path:
    """Make a container's root file system of the host's static busybox."""
    busybox = shutil.which("busybox")
    if busybox is None:
        pytest.skip("no busybox: apt-get install busybox-static")
    binaries = folder / "bin"
    binaries.mkdir(parents=True)
    shutil.copy(busybox, binaries / "busybox")
    for applet in ("sh", "sleep", "ip", "ping", "cat"):
        (binaries / applet).symlink_to("busybox")
    for mount_point in ("proc", "sys", "dev", "tmp", "etc"):
        (folder / mount_point).mkdir()
    return folder


@contextmanager
def started(folder: Path, *, configurations: Path, plugins: Path) -> Iterator[Containerd]:
    """Start containerd with ``configurations`` as /etc/cni/net.d and ``plugins`` as /opt/cni/bin."""
    need_containerd()
    (folder / "upper").mkdir(parents=True)
    config = folder / "config.toml"
    # The CRI plugin would want images and cgroup settings of a cluster; `ctr` needs none of it.
    config.write_text(
        f'version = 2\nroot = "{folder}/root"\nstate = "{folder}/state"\n'
        f'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
        f'[grpc]\n  address = "{SOCKET}"\n[ttrpc]\n  address = "{SOCKET}.ttrpc"\n'
    )
    log = folder / "containerd.log"
    # Also the name of a control group of the host, and short: a host link is named by the first eleven characters of
    # "<namespace>-<container>".
    namespace = f"t{token_hex(2)}"
    view = ["bash", "-c", PRIVATE_VIEW, "enter", str(folder), str(configurations), str(plugins)]
    with log.open("w") as output:
        process = subprocess.Popen(
            [*ISOLATED, *view, "containerd", "--config", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:

        def inside() -> list[int]:
            """Return the first process of the namespaces once containerd, which it becomes, listens there."""
            assert process.poll() is None, f"containerd ended: {log.read_text()[-2000:]}"
            return [pid for pid in children(process.pid) if Path(f"/proc/{pid}/root{SOCKET}").exists()]

        wait_until("containerd listens", inside)
        (first,) = inside()
        yield Containerd(folder, first, namespace)
    finally:
        end(process)
        remove_control_groups(namespace)


def need_containerd() -> None:
    """Skip where containerd, or what it takes to isolate it, is absent."""
    if os.geteuid() != 0:
        pytest.skip("containerd needs root")
    for program in ("containerd", "ctr", "runc", "nsenter", "unshare"):
        if shutil.which(program) is None:
            pytest.skip(f"no {program}: apt-get install containerd runc util-linux")


def end(process: subprocess.Popen[bytes]) -> None:
    """End the namespaces of an ``unshare --fork`` and everything in them."""
    for child in children(process.pid):
        os.kill(child, signal.SIGKILL)  # the first of its process namespace: all the others end with it
    process.wait(timeout=LONG)


def remove_control_groups(name: str) -> None:
    """Remove a control group of the host, in every hierarchy, with the groups of its dead containers."""
    for group in (*Path("/sys/fs/cgroup").glob(f"*/{name}"), *Path("/sys/fs/cgroup").glob(name)):
        for container in [path for path in group.iterdir() if path.is_dir()]:
            container.rmdir()
        group.rmdir()


def children(parent: int) -> list[int]:
    processes = (entry for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [int(entry.name) for entry in processes if _parent(entry / "stat") == parent]


def _parent(stat: Path) -> int | None:
    try:
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None
