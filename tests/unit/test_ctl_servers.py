"""A datastore whose server is dead is told within ten seconds, by every command, under every name (cli §1.4)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.clock import LONG, SOON

PROGRAM = (sys.executable, "-m", "calico_ipam.ctl.main")
LIMIT = 10.0


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that takes connections and never says a word."""
    kept: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def take() -> None:
            try:
                while True:
                    kept.append(listening.accept()[0])
            except OSError:
                return

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        host, port = listening.getsockname()
        try:
            yield f"{host}:{port}"
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(10)
            for each in kept:
                each.close()


def environ(kind: str, address: str, folder: Path) -> dict[str, str]:
    plain = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    if kind == "etcd":
        return {**plain, "DATASTORE_TYPE": "etcdv3", "ETCD_ENDPOINTS": f"http://{address}"}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": f"https://{address}", "insecure-skip-tls-verify": True}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c",
    }
    (folder / "kubeconfig").write_text(yaml.safe_dump(config))
    return {**plain, "DATASTORE_TYPE": "kubernetes", "KUBECONFIG": str(folder / "kubeconfig")}


COMMANDS = (
    "ipam show",
    "ipam check",
    "ipam explain n1",
    "get ippools",
    "version",
    "datastore migrate lock",
    "pool list",
)


def run_all(env: dict[str, str]) -> dict[str, tuple[float, int, str, str]]:
    """Run every command at once; return what each took, its exit code and what it said."""
    began = time.monotonic()
    running = {
        command: subprocess.Popen(
            [*PROGRAM, *command.split()], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for command in COMMANDS
    }
    done = {}
    for command, process in running.items():
        try:
            stdout, stderr = process.communicate(timeout=2 * LONG)
        finally:
            process.kill()  # one that hangs, whatever the test makes of it
        done[command] = (time.monotonic() - began, process.returncode, stdout, stderr)
    return done


@pytest.mark.timeout(300)  # fourteen interpreters, seven at a time
@pytest.mark.parametrize("kind", ["etcd", "kubernetes"])
def test_a_dead_datastore_is_told_in_time(kind: str, silent: str, tmp_path: Path) -> None:
    """One that refuses is told at once; what interpreters that start side by side take then is not what is measured."""
    slack = 0.0
    for address in ("127.0.0.1:1", silent):
        for command, (seconds, code, _, stderr) in run_all(environ(kind, address, tmp_path)).items():
            assert code == 1, (command, stderr)
            assert address in stderr and "Traceback" not in stderr, (command, stderr)
            if address == silent:
                assert seconds < LIMIT + SOON + slack, (command, seconds)
            else:
                slack = max(slack, seconds)


def test_calicoctl_tells_it_with_the_way_round(silent: str, tmp_path: Path) -> None:
    """Upstream's words begin and end the message; what is between them is the library's."""
    code = "import sys; sys.argv[0] = 'calicoctl'; from calico_ipam.ctl.main import main; main()"
    env = environ("etcd", "127.0.0.1:1", tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", code, "ipam", "show"], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("unable to get Cluster Information to verify version mismatch: ")
    assert done.stderr.endswith("\nUse --allow-version-mismatch to override\n")
