"""Public reports P15, P16, P18, P19, P20 and P25 where they happened: real links, and the programs as processes."""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from calico_cni.dataplane import linux, routes
from calico_cni.dataplane.linux import LinuxDataplane
from calico_cni.dispatch import handle
from calico_cni.protocol import CALICO_IPAM, Request, Response
from calico_cni.stopping import Stop
from calico_cni.system import system_context
from calico_ipam.datastore.config import open_datastore
from tests.cluster import memory_folder
from tests.cni_bench import CNIBench, answer, told
from tests.disturbers import LINK_LOCAL, WANTED, noise, nothing_kept, rewriter
from tests.installed import PROGRAMS, Site
from tests.invariants import violations
from tests.link_requests import HOST_NAME, link_request
from tests.netns_tools import Namespace, Node, private_node, require_root

ADDRESSES = ("10.65.0.7", "fd00:65::7")
OTHER_NAME = "califfffffffff"


@pytest.fixture
def node() -> Iterator[Node]:
    require_root()
    with private_node() as made:
        yield made


@pytest.fixture
def pod(node: Node) -> Namespace:
    return node.sandbox()


class Bench(CNIBench):
    """Calls as values, on real links: a dual-stack network, each call in one sandbox unless told otherwise."""

    def __init__(self, folder: Path, pod: Namespace, dataplane: LinuxDataplane) -> None:
        super().__init__(folder, dataplane=dataplane)  # type: ignore[arg-type]  # instead of the fake
        self.pod = pod
        self.extra = {"ipam": {"type": "calico-ipam", "assign_ipv6": "true"}}
        self.prepare()

    def do(self, verb: str, **changes: Any) -> Any:
        return self.call(verb, **{"netns": self.pod.path, **changes})

    def left(self) -> tuple[list[str], ...]:
        """Return what the store holds of sandboxes."""
        return self.addresses(), self.handles(), [record.name for record in self.records()]


NOTHING: tuple[list[str], ...] = ([], [], [])


@pytest.fixture
def bench(tmp_path: Path, pod: Namespace) -> Bench:
    return Bench(tmp_path, pod, LinuxDataplane(mac_quiet=0))


def devices_of(node: Node, address: str) -> list[str]:
    return [route["dev"] for route in node.routes() if route["dst"] == address]


# --- P15: the host's route exists already -----------------------------------------------------------------------


def another_pod(node: Node, address: str) -> Namespace:
    """Make a sandbox that has the route to ``address``; nobody lives in it yet."""
    other = node.sandbox()
    LinuxDataplane(mac_quiet=0).add(link_request(other, address, host_name=OTHER_NAME))
    return other


@pytest.mark.parametrize("address", ADDRESSES)
def test_p15_a_route_of_a_dead_sandbox_makes_way(bench: Bench, node: Node, address: str) -> None:
    another_pod(node, address + ("/128" if ":" in address else "/32"))
    answer(bench.do("ADD", runtimeConfig={"ips": [address]}))
    assert devices_of(node, address) == [HOST_NAME]
    assert node.link(OTHER_NAME) is None


@pytest.mark.parametrize("address", ADDRESSES)
def test_p15_a_route_of_a_live_sandbox_is_never_stolen(bench: Bench, node: Node, address: str) -> None:
    resident = another_pod(node, address + ("/128" if ":" in address else "/32")).settle_in()
    text = told(bench.do("ADD", runtimeConfig={"ips": [address]}))
    assert HOST_NAME in text and OTHER_NAME in text and f"Process {resident.pid} " in text
    assert devices_of(node, address) == [OTHER_NAME]
    assert [link["ifname"] for link in node.links()] == [OTHER_NAME]
    assert bench.pod.links() == []
    assert bench.left() == NOTHING


def test_p15_a_route_on_the_very_link_is_fine(bench: Bench, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Felix programs the same routes a moment before us."""

    def felix_first(rtnl: Any, host_end: Any, request: Any, sandbox: Any) -> None:
        node.ip("route", "add", f"{ADDRESSES[0]}/32", "dev", HOST_NAME, "scope", "link")
        node.ip("route", "add", f"{ADDRESSES[1]}/128", "dev", HOST_NAME)
        routes.add_host_routes(rtnl, host_end, request, sandbox)

    monkeypatch.setattr(linux, "add_host_routes", felix_first)
    answer(bench.do("ADD", runtimeConfig={"ips": list(ADDRESSES)}))
    assert [devices_of(node, address) for address in ADDRESSES] == [[HOST_NAME], [HOST_NAME]]


# --- P16: a namespace that vanished -----------------------------------------------------------------------------


@pytest.mark.parametrize("kept_by", ["a process", "a descriptor"])
def test_p16_del_after_the_namespaces_file_is_gone(bench: Bench, node: Node, kept_by: str) -> None:
    answer(bench.do("ADD"))
    with ExitStack() as stack:
        if kept_by == "a process":
            bench.pod.settle_in()
        else:
            stack.enter_context(Path(bench.pod.path).open("rb"))
        bench.pod.forget_name()
        assert node.link(HOST_NAME) is not None, "the kernel took the link itself: nothing is tested"
        began = time.monotonic()
        for netns in (bench.pod.path, "", bench.pod.path, ""):
            response = bench.do("DEL", netns=netns)
            assert (response.exit_code, response.stdout) == (0, "")
            assert node.links() == []
            assert bench.left() == NOTHING
        assert time.monotonic() - began < 4 * linux.REMOVE_SECONDS


# --- P18: a device manager rewrites hardware addresses ----------------------------------------------------------


def test_p18_a_rewritten_hardware_address_is_set_again(tmp_path: Path, node: Node, pod: Namespace) -> None:
    bench = Bench(tmp_path, pod, LinuxDataplane())
    with rewriter(node, delay=0.05, times=1) as written:
        answer(bench.do("ADD"))
        assert written
    link = node.link(HOST_NAME)
    assert link is not None and link["address"] == WANTED
    assert [address for address in node.addresses(HOST_NAME) if address.startswith("fe80")] == [LINK_LOCAL]
    assert [route["gateway"] for route in pod.ip_json("-6", "route", "show", "default")] == [LINK_LOCAL]


def test_p18_one_that_is_rewritten_for_ever_is_given_up(tmp_path: Path, node: Node, pod: Namespace) -> None:
    bench = Bench(tmp_path, pod, LinuxDataplane())
    with rewriter(node, delay=0.01, times=100_000):
        assert f"did not stay {WANTED}" in told(bench.do("ADD"))
    assert node.links() == pod.links() == []
    assert bench.left() == NOTHING


# --- P19: a second interface ------------------------------------------------------------------------------------


def test_p19_a_second_interface_is_refused_and_costs_the_first_nothing(bench: Bench, node: Node) -> None:
    answer(bench.do("ADD"))

    def everything() -> object:
        links = [(link["ifname"], link["address"]) for at in (node, bench.pod) for link in at.links()]
        addresses = [text for text in bench.pod.addresses("eth0") if not text.startswith("fe80")]
        return bench.left(), links, addresses, [devices_of(node, address) for address in addresses]

    before = everything()
    assert "a second interface net1 is not possible" in told(bench.do("ADD", name="net2", ifname="net1"))
    assert everything() == before
    for network in ("net2", "net1"):
        assert bench.do("DEL", name=network, ifname="net1").exit_code == 0
        assert everything() == before
    assert bench.do("DEL").exit_code == 0
    assert bench.left() == NOTHING


# --- P20: a busy node -------------------------------------------------------------------------------------------


@pytest.mark.timeout(240)
def test_p20_a_hundred_adds_while_links_come_and_go(bench: Bench, node: Node) -> None:
    """500 links of others; the thousand pairs of links in one process are in netns/test_dataplane_busy.py."""
    answer(bench.do("ADD"))
    bench.do("DEL")
    with noise(node, pairs=250), nothing_kept():
        for number in range(100):
            container = f"{number:011d}"
            answer(bench.do("ADD", container=container))
            assert bench.do("DEL", container=container).exit_code == 0
    assert bench.pod.links() == []
    assert bench.left() == NOTHING


# --- the programs as processes ----------------------------------------------------------------------------------

#: A library that prints when it is imported, and one that writes past Python's own streams.
NOISY = """
import builtins, os
real = builtins.__import__
def noisy(name, *rest, **more):
    if name.partition(".")[0] in ("filelock", "sqlite3", "pyroute2"):
        print("noise of", name)
        os.write(1, b"raw noise\\n")
    return real(name, *rest, **more)
builtins.__import__ = noisy
"""


class Machine:
    """A node with a store of its own, on which the installed programs run."""

    def __init__(self, folder: Path, netns: str) -> None:
        self.site = Site(folder)
        self.netns = netns
        self.site.store.parent.mkdir(mode=0o700, parents=True)
        self.site.ipamctl("init", "--ipv4-pool", "10.65.0.0/20", "--ipv6-pool", "fd00:65::/112")

    def netconf(self, **changes: Any) -> bytes:
        found = {
            "cniVersion": "1.1.0",
            "name": "net1",
            "type": "calico",
            "nodename_file_optional": True,
            "datastore_type": "sqlite",
            "sqlite_path": str(self.site.store),
            "ipam_lock_file": str(self.site.folder / "ipam.lock"),
            "log_file_path": str(self.site.folder / "cni.log"),
            "ipam": {"type": "calico-ipam"},
        }
        return json.dumps({**found, **changes}).encode()

    def run(
        self,
        verb: str,
        stdin: bytes | None = None,
        *,
        program: str = "calico",
        redirect: str = "",
        environ: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a program; ``redirect``: what the shell does to its streams."""
        command = f"exec {shlex.quote(str(PROGRAMS / program))} {redirect}"
        given = self.netconf() if stdin is None else stdin
        return subprocess.run(
            ["sh", "-c", command],
            env=self.environ(verb, environ),
            input=given,
            capture_output=True,
            timeout=300,
            check=False,
        )

    def start(self, verb: str) -> subprocess.Popen[bytes]:
        """Start calico and leave it running; it waits for its configuration."""
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [PROGRAMS / "calico"], env=self.environ(verb), stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL
        )

    def environ(self, verb: str, changes: Mapping[str, str] | None = None) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": "0a1b2c3d4e5f",
            "CNI_NETNS": self.netns,
            "CNI_IFNAME": "eth0",
            "CNI_PATH": str(PROGRAMS),
            **(changes or {}),
        }

    def clean(self) -> bool:
        return self.site.holders() == {} and self.site.records() == []


@pytest.fixture
def machine(pod: Namespace) -> Iterator[Machine]:
    """In memory where that can be: a disk that others keep busy would be most of what is waited for."""
    with TemporaryDirectory(prefix="replay-", dir=memory_folder()) as folder:
        yield Machine(Path(folder) / "machine", pod.path)


def test_p25_stdout_holds_one_document_or_nothing(machine: Machine, tmp_path: Path, node: Node) -> None:
    """Every verb, with debug logging, secrets in the configuration and libraries that print at import."""
    (tmp_path / "noisy").mkdir()
    (tmp_path / "noisy" / "sitecustomize.py").write_text(NOISY)
    told_elsewhere = b""
    result: dict[str, Any] = {}
    secrets = {"policy": {"k8s_auth_token": "SECRET", "k8s_client_key": "SECRET"}, "log_level": "debug"}
    for verb, documents in (("VERSION", 1), ("STATUS", 0), ("ADD", 1), ("CHECK", 0), ("GC", 0), ("DEL", 0), ("DEL", 0)):
        listed = [{"containerID": "0a1b2c3d4e5f", "ifname": "eth0"}]
        stdin = machine.netconf(**secrets, prevResult=result or None, **{"cni.dev/valid-attachments": listed})
        done = machine.run(verb, stdin, environ={"PYTHONPATH": str(tmp_path / "noisy")})
        assert done.returncode == 0, (verb, done.stdout, done.stderr)
        told_elsewhere += done.stderr
        if documents:
            result = json.loads(done.stdout)
        else:
            assert done.stdout == b"", verb
    assert b"noise of filelock" in told_elsewhere and b"raw noise" in told_elsewhere
    assert b"SECRET" not in told_elsewhere + (machine.site.folder / "cni.log").read_bytes()
    assert machine.clean() and node.links() == []


@pytest.mark.parametrize("verb", ["ADD", "DEL", "CHECK", "GC", "STATUS"])
@pytest.mark.parametrize("redirect", ["<&-", "</dev/null"])
def test_p25_no_configuration_is_one_error_object(machine: Machine, verb: str, redirect: str) -> None:
    done = machine.run(verb, b"", redirect=redirect)
    assert done.returncode == 1
    assert json.loads(done.stdout)["code"] == 6
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("redirect", [">&-", ">/dev/full"])
def test_p25_an_answer_that_nobody_takes_leaves_nothing(machine: Machine, node: Node, redirect: str) -> None:
    done = machine.run("ADD", redirect=redirect)
    assert done.returncode == 1 and b"The answer could not be written" in done.stderr
    assert node.links() == [] and machine.clean()


@pytest.mark.parametrize("verb", ["ADD", "DEL", "CHECK"])
def test_p25_an_interface_name_of_sixteen_characters_is_code_4(machine: Machine, node: Node, verb: str) -> None:
    done = machine.run(verb, environ={"CNI_IFNAME": "sixteencharacter"})
    assert done.returncode == 1
    assert json.loads(done.stdout)["code"] == 4
    assert node.links() == [] and machine.clean()


@pytest.mark.parametrize("program", ["calico", "calico-ipam"])
def test_p25_version_needs_nothing_but_its_command(machine: Machine, program: str) -> None:
    only_command = {"CNI_CONTAINERID": "", "CNI_NETNS": "", "CNI_IFNAME": "", "CNI_PATH": ""}
    for stdin in (b'{"cniVersion":"1.0.0"}', b""):
        done = machine.run("VERSION", stdin, program=program, environ=only_command)
        assert done.returncode == 0
        assert "1.1.0" in json.loads(done.stdout)["supportedVersions"]


# --- two calls for one sandbox ----------------------------------------------------------------------------------


@pytest.mark.parametrize("other", ["ADD", "DEL"])
def test_calls_for_one_sandbox_wait_for_each_other(machine: Machine, node: Node, pod: Namespace, other: str) -> None:
    """A runtime that lost patience calls again while the first call runs: nobody harms what the other made."""
    running = [machine.start("ADD"), machine.start(other)]
    with ThreadPoolExecutor(2) as pool:
        ended = list(pool.map(lambda process: process.communicate(machine.netconf(), timeout=100), running))
    assert [process.returncode for process in running] == [0, 0], ended
    result = json.loads(ended[0][0])
    link, record = node.link("cali0a1b2c3d4e5"), machine.site.records()
    if other == "ADD":
        again = json.loads(ended[1][0])
        assert (again["interfaces"], again["ips"]) == (result["interfaces"], result["ips"]), "both made something"
    if other == "ADD" or link is not None:  # else DEL came last
        address = result["ips"][0]["address"].partition("/")[0]
        assert machine.site.holders() == {address: "net1.0a1b2c3d4e5f"}
        assert link is not None and len(record) == 2 and address in pod.addresses("eth0")
    assert machine.run("DEL").returncode == 0
    assert machine.clean() and node.links() == []


# --- two hundred at once ----------------------------------------------------------------------------------------

AT_ONCE = 200

#: A process for each call, all started by one signal. They are forked from one that has imported everything, so that
#: the calls themselves meet, and not two hundred starts of an interpreter.
CROWD = """
import os, sys
from pathlib import Path
from calico_cni import dispatch, entry, system
from calico_cni.ipam import add, lock
from calico_ipam.datastore import config, sqlite
from calico_ipam.engine import assign
import filelock

folder, count = Path(sys.argv[1]), int(sys.argv[2])
gate, signal = os.pipe()
crowd = []
for number in range(count):
    child = os.fork()
    if child == 0:
        os.close(signal)
        os.dup2(os.open(folder / "netconf", os.O_RDONLY), 0)
        os.dup2(os.open(folder / f"answer{number:03d}", os.O_CREAT | os.O_WRONLY), 1)
        environ = {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": f"c{number:03d}", "CNI_IFNAME": "eth0"}
        environ |= {"CNI_NETNS": "/x", "CNI_PATH": "/x"}
        os.read(gate, 1)
        os._exit(entry.run(["calico-ipam"], environ))
    crowd.append(child)
os.close(signal)
sys.exit(sum(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in crowd))
"""


@pytest.mark.timeout(300)
def test_two_hundred_adds_at_once(machine: Machine) -> None:
    """Everybody is served, no address twice, nobody went on without the lock, and all are free after DEL."""
    folder = machine.site.folder
    (folder / "netconf").write_bytes(machine.netconf())
    command = [sys.executable, "-c", CROWD, str(folder), str(AT_ONCE)]
    done = subprocess.run(command, capture_output=True, timeout=280, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    answers = [json.loads((folder / f"answer{number:03d}").read_bytes()) for number in range(AT_ONCE)]
    given = {
        answer["ips"][0]["address"].partition("/")[0]: f"net1.c{number:03d}" for number, answer in enumerate(answers)
    }
    assert len(given) == AT_ONCE, "an address was given twice"
    assert machine.site.holders() == given
    with closing(open_datastore(f"sqlite://{machine.site.store}")) as store:
        assert violations(store) == []
    assert b"going on without it" not in done.stderr
    context = system_context(io.StringIO(), Stop())
    for number in range(AT_ONCE):
        environ = {"CNI_COMMAND": "DEL", "CNI_CONTAINERID": f"c{number:03d}", "CNI_IFNAME": "eth0", "CNI_PATH": "/x"}
        assert handle(Request(CALICO_IPAM, environ, machine.netconf()), context) == Response()
    assert machine.clean()
