"""``kill -9`` of the real program at moments spread over ADD and DEL: the next call heals it."""

from __future__ import annotations

import fcntl
import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from calico_ipam.model.resource import CLUSTER_INFORMATION, IP_POOL, NODE
from tests.clock import LONG
from tests.golden.cni_host import CaseHost, Outcome, case_host
from tests.netns_tools import inside, require_root, wait_for

CUTS = 6


@pytest.fixture
def host() -> Iterator[CaseHost]:
    require_root()
    with case_host({}) as found:
        for kind, name, spec in (
            (CLUSTER_INFORMATION, "default", {"datastoreReady": True}),
            (NODE, "worker-1", {}),
            (IP_POOL, "pool4", {"cidr": "10.65.0.0/24", "blockSize": 26}),
            (IP_POOL, "pool6", {"cidr": "fd00:65::/64", "blockSize": 122}),
        ):
            metadata = {"name": name}
            document = {"kind": kind, "apiVersion": "projectcalico.org/v3", "metadata": metadata, "spec": spec}
            found.bench.put_text(f"/calico/resources/v3/projectcalico.org/{kind.lower()}s/{name}", json.dumps(document))
        yield found


def call(host: CaseHost, verb: str) -> tuple[dict[str, str], bytes]:
    environ = {
        "CNI_COMMAND": verb,
        "CNI_CONTAINERID": "0a1b2c3d4e5f",
        "CNI_NETNS": host.inputs["NETNS"],
        "CNI_IFNAME": "eth0",
        "CNI_PATH": host.inputs["CNI_PATH"],
    }
    netconf: dict[str, Any] = {
        "cniVersion": "1.0.0",
        "name": "net1",
        "type": "calico",
        "nodename": "worker-1",
        "nodename_file_optional": True,
        "datastore_type": "sqlite",
        "sqlite_path": str(host.folder / "store" / "ipam.db"),
        "ipam_lock_file": host.inputs["LOCK_FILE"],
        "ipam": {"type": "calico-ipam", "assign_ipv6": "true"},
    }
    return environ, json.dumps(netconf).encode()


def run(host: CaseHost, verb: str) -> Outcome:
    environ, stdin = call(host, verb)
    outcome = host.run("calico", (), environ, stdin)
    assert outcome.exit_code == 0, outcome.stdout + outcome.stderr
    return outcome


def start(host: CaseHost, verb: str) -> subprocess.Popen[bytes]:
    """Start a call; it has its configuration."""
    environ, stdin = call(host, verb)
    pipe = subprocess.PIPE
    with inside(host.node.path):
        process = subprocess.Popen(host.command("calico", (), environ), stdin=pipe, stdout=pipe, stderr=pipe)
    assert process.stdin is not None
    process.stdin.write(stdin)
    process.stdin.close()
    process.stdin = None
    return process


def ended(process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    """Wait for a call to end; return how it did and what it said."""
    stdout, stderr = process.communicate(timeout=LONG)
    return process.returncode, stdout.decode(), stderr.decode()


def signalled_after(host: CaseHost, verb: str, number: signal.Signals, seconds: float) -> tuple[int, str, str]:
    """Start a call and send it a signal after a while, if it still runs; return how it ended and what it said."""
    process = start(host, verb)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(number)
    return ended(process)


def killed_after(host: CaseHost, verb: str, seconds: float) -> bool:
    """Start a call, kill it after a while; tell whether it was still running."""
    return signalled_after(host, verb, signal.SIGKILL, seconds)[0] == -signal.SIGKILL


def signalled_in_line(host: CaseHost, number: signal.Signals) -> tuple[int, str, str]:
    """Send an ADD a signal while it waits for the host-wide lock; return how it ended and what it said."""
    sandbox = Path(host.inputs["NETNS"]).stat()

    def has_its_turn() -> bool:
        """It holds the sandbox open from its turn on, and can come no further than to the lock."""
        assert process.poll() is None
        files = []
        for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                files.append(descriptor.stat())
        return any((file.st_dev, file.st_ino) == (sandbox.st_dev, sandbox.st_ino) for file in files)

    with Path(host.inputs["LOCK_FILE"]).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = start(host, "ADD")
        wait_for(has_its_turn, "the call has its turn", seconds=LONG)
        process.send_signal(number)
        return ended(process)


def assert_nothing_left(host: CaseHost, outcome: Outcome | None = None) -> None:
    if outcome is None:
        links = [link["ifname"] for link in host.node.links()]
        assert not [name for name in links if name.startswith("cali")], links
    else:
        assert outcome.host == {} and outcome.container == {}
    state = host.bench.state()
    assert not [key for key in state if "/workloadendpoints/" in key or "/ipam/v2/handle/" in key]
    blocks = [value for key, value in state.items() if "/assignment/" in key]
    assert not [slot for block in blocks for slot in block["allocations"] if slot is not None]
    assert not host.bench.violations()


def duration(host: CaseHost, verb: str) -> float:
    began = time.monotonic()
    run(host, verb)
    return time.monotonic() - began


@pytest.mark.timeout(400)
@pytest.mark.parametrize("heal", ["DEL", "ADD"])
@pytest.mark.parametrize("verb", ["ADD", "DEL"])
def test_the_next_call_heals(host: CaseHost, verb: str, heal: str) -> None:
    took = {"ADD": duration(host, "ADD"), "DEL": duration(host, "DEL")}
    killed = cut = 0
    while cut < CUTS - 1 or killed < 2:
        cut += 1
        if verb == "DEL":
            run(host, "ADD")
        # Where the measure was of a busy moment, all those calls were over before: then earlier and earlier.
        seconds = took[verb] * cut / CUTS if cut < CUTS else took[verb] * 2.0 ** (CUTS - cut) / CUTS
        killed += killed_after(host, verb, seconds)
        if heal == "ADD":
            outcome = run(host, "ADD")
            assert list(outcome.host) == ["cali0a1b2c3d4e5"]
            assert [link["ifname"] for link in outcome.container[host.inputs["NETNS"]]["links"]] == ["eth0"]
            records = [value for key, value in host.bench.state().items() if "/workloadendpoints/" in key]
            told = [ip["address"] for ip in json.loads(outcome.stdout)["ips"]]
            assert [record["spec"]["ipNetworks"] for record in records] == [told]
        assert_nothing_left(host, run(host, "DEL"))


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_stopped_add_undoes_what_it_did(host: CaseHost, name: str) -> None:
    """No other call comes; the runtime hears one error object, and a person no traceback."""
    number = signal.Signals[name]
    for _ in range(2):  # the first one reads the programs from the disk
        took = duration(host, "ADD")
        run(host, "DEL")
    for cut in range(2, CUTS + 2):
        exit_code, stdout, stderr = signalled_after(host, "ADD", number, took * cut / (CUTS + 1))
        starting = before_our_first_line(stderr)
        assert starting or "Traceback" not in stderr, stderr
        if exit_code == 0:  # it was over already, or Python lost the signal
            run(host, "DEL")
        elif exit_code == -number or (starting and (exit_code, stdout) == (1, "")):
            assert stdout == ""
        else:
            assert_told(name, exit_code, stdout)
        assert_nothing_left(host)
    exit_code, stdout, stderr = signalled_in_line(host, number)
    assert_told(name, exit_code, stdout)
    assert "Traceback" not in stderr, stderr
    assert_nothing_left(host)


def before_our_first_line(stderr: str) -> bool:
    """Tell whether Python's own handler of SIGINT raised; the first line of ``main`` takes it away.

    Then Python says so in its own way, and ends by the signal; or, where it was still importing ``site``, with 1; or it
    drops the exception, where that was raised in a callback of its own, and goes on.
    """
    return "KeyboardInterrupt" in stderr and ", in run\n" not in stderr


def assert_told(name: str, exit_code: int, stdout: str) -> None:
    assert (exit_code, json.loads(stdout)["code"]) == (1, 11), stdout
    assert json.loads(stdout)["msg"] == f"ADD was stopped by {name}"
