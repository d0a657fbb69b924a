"""The sweep of a node on real links, namespaces, connections and locks."""

from __future__ import annotations

import fcntl
import json
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from calico_gc.node_sweep import Busy, NodeSweep, Options, Swept
from calico_gc.sweep.residue import APART
from calico_gc.sweep.traces import Places

from calico_ipam.datastore.api import Create
from calico_ipam.datastore.kube.api import Request
from calico_ipam.errors import StoreUnavailable
from calico_ipam.model.endpoint_names import veth_name_for_workload
from calico_ipam.model.keys import BlockKey
from calico_ipam.model.timestamps import SECOND, format_time
from tests.gc_views import block
from tests.gc_world import GcClock
from tests.kube_tools import wait_until
from tests.memory import MemoryStore
from tests.netns_tools import Namespace, Node

NODE = "node-1"


@dataclass
class Api:
    """Answers as the Kubernetes API of a small cluster does."""

    pods: list[Mapping[str, Any]] = field(default_factory=list)
    slices: list[Mapping[str, Any]] = field(default_factory=list)
    ready_since: int = 0
    down: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)

    def call(self, request: Request, deadline: Any) -> dict[str, Any]:
        self.asked.append(request.method)
        if request.path in self.down:
            raise StoreUnavailable("the API server does not answer")
        if request.path == f"/api/v1/nodes/{NODE}":
            ready = {"type": "Ready", "status": "True", "lastTransitionTime": format_time(self.ready_since)}
            return {"status": {"conditions": [ready]}}
        kind, items = ("EndpointSlice", self.slices) if "endpointslices" in request.path else ("Pod", self.pods)
        return {"kind": f"{kind}List", "items": items, "metadata": {}}


@dataclass
class Case:
    """A node with one sweep after the other, each later than the one before."""

    node: Node
    folder: Path
    clock: GcClock = field(default_factory=GcClock)
    api: Api = field(default_factory=Api)
    store: MemoryStore = field(default_factory=MemoryStore)
    sandboxes: list[Mapping[str, Any]] = field(default_factory=list)
    proc: Path = Path("/proc")

    def __post_init__(self) -> None:
        self.netns = self.folder / "netns"
        for name in ("netns", "results", "pods"):
            (self.folder / name).mkdir()

    def link(self, name: str, peer: Namespace, address: str = "10.65.0.9") -> int:
        """Make a pod's link whose other end lies in ``peer``; return its index."""
        self.node.ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", peer.name)
        self.node.ip("link", "set", name, "up")
        self.node.ip("route", "add", address, "dev", name, "scope", "link")
        found = self.node.link(name)
        assert found is not None
        return int(found["ifindex"])

    def see_only(self, *processes: int) -> None:
        """Let only these processes be on the node: other tests of this machine have some of their own."""
        self.proc = self.folder / "proc"
        for pid in processes:
            (self.proc / str(pid)).mkdir(parents=True)
        self.proc.mkdir(exist_ok=True)

    def has(self, name: str) -> bool:
        return self.node.link(name) is not None

    def pod(self, name: str, uid: str = "u") -> None:
        self.api.pods.append({"metadata": {"namespace": "d", "name": name, "uid": uid}, "spec": {}, "status": {}})

    def sweep(self, *apply: str, later: float = APART + 1, felix: bool = False) -> Swept:
        self.clock.advance(later)
        listing = self.folder / "sandboxes"
        listing.write_text(json.dumps({"items": self.sandboxes}))
        options = Options(
            node=NODE,
            apply=frozenset(apply),
            runtime=f"cat {listing}",
            places=Places(
                netns=self.netns,
                results=self.folder / "results",
                lock=self.folder / "ipam.lock",
                volumes=self.folder / "pods",
                proc=self.proc,
            ),
            state=self.folder / "state.json",
            lock=self.folder / "sweep.lock",
        )
        api: Any = self.api
        return NodeSweep(options, self.clock, lambda: ("boot", self.clock.mono), api=api, store=self.store).run()


@pytest.fixture
def case(node: Node, tmp_path: Path) -> Case:
    return Case(node, tmp_path)


def actions(swept: Swept, kind: str) -> dict[str, str]:
    assert swept.skipped == ""
    return {line.seen.residue.name: line.action for line in swept.lines if line.seen.residue.kind == kind}


STALE = "cali0123456789a"


def test_a_link_that_nobody_lives_behind_goes_at_the_second_look(case: Case) -> None:
    case.link(STALE, case.node.sandbox())
    assert actions(case.sweep("veth"), "veth") == {STALE: "watch"}
    assert actions(case.sweep("veth", later=60), "veth") == {STALE: "watch"}
    assert case.has(STALE)
    assert actions(case.sweep("veth"), "veth") == {STALE: "removed"}
    assert not case.has(STALE)
    assert actions(case.sweep("veth"), "veth") == {}
    assert set(case.api.asked) == {"GET"}


def test_a_process_in_the_peers_namespace_always_keeps_the_link(case: Case) -> None:
    sandbox = case.node.sandbox()
    case.link(STALE, sandbox)
    resident = sandbox.settle_in()
    for _ in range(3):
        assert actions(case.sweep("veth", "route"), "veth") == {}
    assert case.has(STALE)
    resident.kill()
    resident.wait()
    case.sweep("veth")
    assert actions(case.sweep("veth"), "veth") == {STALE: "removed"}


def test_somebody_who_moves_in_between_the_looks_keeps_the_link(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even when the list was made before: the last look is the one of the moment."""
    sandbox = case.node.sandbox()
    case.link(STALE, sandbox)
    case.sweep("veth")
    import calico_gc.node_sweep as module
    from calico_gc.sweep.judge import judge as judged

    def judge_and_move_in(*args: Any) -> Any:
        answer = judged(*args)
        sandbox.settle_in()
        return answer

    monkeypatch.setattr(module, "judge", judge_and_move_in)
    swept = case.sweep("veth")
    [line] = [line for line in swept.lines if line.seen.residue.kind == "veth"]
    assert line.action == "kept" and "somebody may live behind it: process" in line.result
    assert case.has(STALE)


def test_nothing_is_removed_unless_its_kind_was_named(case: Case) -> None:
    case.link(STALE, case.node.sandbox())
    for apply in ((), (), ("netns", "conntrack")):
        swept = case.sweep(*apply)
    assert actions(swept, "veth") == {STALE: "report"}
    assert swept.confirmed["veth"] == 1
    assert case.has(STALE)


def test_links_of_pods_and_links_of_others_are_not_leftovers(case: Case) -> None:
    sandbox = case.node.sandbox()
    case.pod("web")
    mine = veth_name_for_workload("d", "web")
    others = (mine, "calico-eth0", "vethabc", "cali0123456789Z")
    for position, name in enumerate(others):
        case.node.ip("link", "add", name, "type", "veth", "peer", "name", f"p{position}", "netns", sandbox.name)
    case.sweep("veth")
    assert actions(case.sweep("veth"), "veth") == {}
    assert all(case.has(name) for name in others)


def test_a_link_that_was_made_again_begins_anew(case: Case) -> None:
    sandbox = case.node.sandbox()
    first = case.link(STALE, sandbox)
    case.sweep("veth")
    case.node.ip("link", "del", STALE)
    assert case.link(STALE, sandbox) != first
    assert actions(case.sweep("veth"), "veth") == {STALE: "watch"}
    assert case.has(STALE)


def test_a_silent_source_keeps_what_was_seen_and_removes_nothing(case: Case) -> None:
    case.link(STALE, case.node.sandbox())
    case.sweep("veth")
    case.api.down.add("/api/v1/pods")
    swept = case.sweep("veth")
    assert "does not answer" in swept.unjudged["veth"]
    assert case.has(STALE)
    case.api.down.clear()
    assert actions(case.sweep("veth"), "veth") == {STALE: "removed"}, "the first look still counts"


def test_routes_go_without_their_link_only_where_felix_does_not_run(case: Case) -> None:
    case.link(STALE, case.node.sandbox())
    case.node.ip("-6", "route", "add", "fd00::9", "dev", STALE)
    names = {f"10.65.0.9 dev {STALE}", f"fd00::9 dev {STALE}"}
    case.see_only()
    case.sweep("route")
    swept = case.sweep("route")
    assert actions(swept, "route") == dict.fromkeys(names, "removed")
    left = {route["dst"] for route in case.node.routes() if route.get("dev") == STALE}
    assert case.has(STALE) and not left & {"10.65.0.9", "fd00::9"}


def test_felix_is_left_its_routes(case: Case, tmp_path: Path) -> None:
    program = tmp_path / "calico-felix"
    program.symlink_to("/bin/sleep")
    felix = subprocess.Popen([program, "600"])
    case.see_only(felix.pid)
    try:
        case.link(STALE, case.node.sandbox())
        case.sweep("route")
        assert actions(case.sweep("route"), "route") == {f"10.65.0.9 dev {STALE}": "kept"}
    finally:
        felix.kill()
        felix.wait()


@pytest.fixture
def stray(case: Case) -> Iterator[Path]:
    """A namespace as a runtime leaves it behind, in a folder where no sweep of another test finds it."""
    found = case.netns / f"cni-{uuid.uuid4()}"
    found.touch()
    subprocess.run(["unshare", f"--net={found}", "true"], check=True)
    yield found
    subprocess.run(["umount", "--lazy", found], check=False, capture_output=True)


def test_a_namespace_without_processes_goes(case: Case, stray: Path) -> None:
    assert actions(case.sweep("netns"), "netns")[str(stray)] == "watch"
    swept = case.sweep("netns")
    assert actions(swept, "netns")[str(stray)] == "removed"
    assert not stray.exists()


def test_a_namespace_with_a_process_stays(case: Case, stray: Path) -> None:
    process = subprocess.Popen(["nsenter", f"--net={stray}", "--", "sleep", "600"])
    try:
        entered = Path(f"/proc/{process.pid}/ns/net")
        wait_until(lambda: entered.stat().st_ino == stray.stat().st_ino, what="the process to move in")
        for _ in range(3):
            assert str(stray) not in actions(case.sweep("netns"), "netns")
        assert stray.exists()
    finally:
        process.kill()
        process.wait()


def test_a_namespace_that_libcni_remembers_stays(case: Case, stray: Path) -> None:
    document = {"containerId": "c" * 64, "result": {"interfaces": [{"sandbox": f"/var{stray}"}]}}
    (case.folder / "results" / "net-c-eth0").write_text(json.dumps(document))
    case.sweep("netns")
    assert str(stray) not in actions(case.sweep("netns"), "netns")
    assert stray.exists()


def test_connections_of_an_address_that_left_are_forgotten(case: Case) -> None:
    if not Path("/proc/sys/net/netfilter/nf_conntrack_max").exists():
        pytest.skip("this kernel tracks no connections: modprobe nf_conntrack")
    made = block("10.65.0.0/29", NODE, 1)
    case.store.commit(Create(BlockKey(made.cidr), made))
    for address in ("10.65.0.0", "10.65.0.3", "10.99.0.1"):
        flags = ["-p", "udp", "--sport", "1000", "--dport", "53", "--timeout", "600", "-s", address, "-d", "192.0.2.1"]
        case.node.command("conntrack", "-I", *flags)
    case.sweep("conntrack")
    assert actions(case.sweep("conntrack"), "conntrack") == {"10.65.0.3": "removed"}
    left = case.node.command("conntrack", "-L").stdout
    assert "src=10.65.0.0 " in left and "src=10.99.0.1 " in left and "10.65.0.3" not in left


def test_a_lock_held_for_ten_minutes_is_reported_and_never_broken(case: Case) -> None:
    lock = case.folder / "ipam.lock"
    code = f"exec 9>{lock}; flock 9; echo held; exec sleep 600"
    process = subprocess.Popen(["bash", "-c", code], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        case.sweep()
        swept = case.sweep()
        assert set(actions(swept, "lock").values()) == {"report"}
        inode = lock.stat().st_ino
    finally:
        process.kill()
        process.communicate()
    assert lock.stat().st_ino == inode


def test_folders_and_slices_of_dead_pods_are_reported_only(case: Case) -> None:
    case.pod("web", "uid-1")
    for uid in ("uid-1", "uid-2"):
        (case.folder / "pods" / uid).mkdir()
    target = {"kind": "Pod", "name": "old", "uid": "uid-2"}
    endpoint = {"addresses": ["10.65.0.4"], "nodeName": NODE, "targetRef": target}
    case.api.slices.append({"metadata": {"namespace": "d", "name": "web-1", "uid": "s"}, "endpoints": [endpoint]})
    case.sweep("veth")
    swept = case.sweep("veth")
    assert actions(swept, "volume") == {"uid-2": "report"}
    assert actions(swept, "endpoint-slice") == {"d/web-1 10.65.0.4": "report"}
    assert (case.folder / "pods" / "uid-2").is_dir()


def test_a_node_that_became_ready_just_now_is_left_alone(case: Case) -> None:
    case.link(STALE, case.node.sandbox())
    case.sweep("veth")
    case.api.ready_since = case.clock.now() + round((APART - 200) * SECOND)
    assert "has been ready for" in case.sweep("veth").skipped
    assert case.has(STALE)


def test_two_sweeps_at_once_are_one(case: Case) -> None:
    with (case.folder / "sweep.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(Busy):
            case.sweep()
