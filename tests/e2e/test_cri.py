"""Pod sandboxes of containerd's CRI plugin, networked by our plugins; a real API server holds pods and addresses.

Two machines, each with a network, a host name and a containerd of its own, are nodes of one bare cluster: the shipped
examples of network configurations as they stand, the shipped role, ``ipamctl init``. A kubelet's part is crictl's.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest

from calico_ipam.datastore.kube.store import KubernetesStore
from calico_ipam.model.addresses import address_at
from calico_ipam.model.endpoint_names import veth_name_for_workload
from calico_ipam.model.keys import Blocks, Handles
from tests.clock import LONG, seconds_since
from tests.containerd import SOCKET, wait_until
from tests.cri import CRIError, CRINode, Sandbox, cri_node
from tests.installed import EXAMPLES, PROGRAMS, plugin_folder, run
from tests.kube_tools import KubeServer
from tests.netns_tools import Node, require_root
from tests.shared import REPOSITORY
from tests.tunnel import Tunnel

pytestmark = pytest.mark.timeout(300)  # the first test starts the API server and both machines

PREFIX = "cni.projectcalico.org/"
ACCOUNT = "calico-cni"  # of gc/deploy/rbac-plugin.yaml
IPV4_POOL, IPV6_POOL, TEAM_POOL = "10.65.0.0/16", "fd00:65::/112", "10.66.0.0/24"
#: node -> example of a network configuration on it
NODES = {"worker-1": "20-bare-kubernetes.conflist", "worker-2": "21-dual-stack.conflist"}


@dataclass(frozen=True)
class Cluster:
    """Two nodes and their API server."""

    kube: KubeServer
    one: CRINode
    two: CRINode

    def pod(self, node: CRINode, annotations: Mapping[str, str] | None = None, namespace: str = "") -> dict[str, Any]:
        """Make a pod of a fresh name on a node."""
        name = f"p{time.monotonic_ns():x}"
        return self.kube.pod(namespace or self.kube.namespace(), name, node.name, annotations)

    def annotations(self, pod: Mapping[str, Any]) -> dict[str, str]:
        """Return what the plugins have written about a pod by now."""
        found = self.kube.get(_path(pod))["metadata"].get("annotations", {})
        return {key.removeprefix(PREFIX): value for key, value in found.items()}

    def holders(self) -> dict[str, str]:
        """Return who holds which address: the container's ID by address."""
        with KubernetesStore(self.kube.settings()) as store:
            return {
                str(address_at(block.cidr, ordinal)): block.attributes[index].clean_handle.rpartition(".")[2]
                for block in (entry.value for entry in store.list(Blocks()))
                for ordinal, index in enumerate(block.allocations)
                if index is not None and block.attributes[index].clean_handle.startswith("k8s-pod-network.")
            }

    def blocks(self, node: CRINode) -> list[str]:
        """Return the IPv4 blocks of a node."""
        with KubernetesStore(self.kube.settings()) as store:
            blocks = [entry.value for entry in store.list(Blocks())]
        return [str(b.cidr) for b in blocks if b.owner and b.owner.host == node.name and b.cidr.version == 4]

    def handles(self) -> list[str]:
        with KubernetesStore(self.kube.settings()) as store:
            return [str(entry.key) for entry in store.list(Handles())]


def _path(pod: Mapping[str, Any]) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


# --- the cluster --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(kube: KubeServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    require_root()
    folder = tmp_path_factory.mktemp("cri")
    kube.clear()
    kube.apply(REPOSITORY / "gc" / "deploy" / "rbac-plugin.yaml")
    pools = ("--ipv4-pool", IPV4_POOL, "--ipv6-pool", IPV6_POOL)
    for node in NODES:
        kube.node(node)
        environ = {"KUBECONFIG": str(kube.folder / "kubeconfig")}
        run(PROGRAMS / "ipamctl", "--datastore", "kubernetes://", "init", *pools, "--node", node, environ=environ)
    team = {"cidr": TEAM_POOL, "blockSize": 29, "nodeSelector": "!all()"}  # only for those who ask for it by name
    body = {"apiVersion": kube.api_version, "kind": "IPPool", "metadata": {"name": "team"}, "spec": team}
    kube.create(kube.collection("ippools"), body)
    with ExitStack() as stack:
        networks = stack.enter_context(_routed_network())
        machines = [
            stack.enter_context(_machine(kube, name, folder / name, network))
            for name, network in zip(NODES, networks, strict=True)
        ]
        yield Cluster(kube, *machines)


@contextmanager
def _routed_network() -> Iterator[list[Node]]:
    """Yield two hosts with a cable between them, forwarding, with the other one as default gateway."""
    hosts = [Node(), Node()]
    try:
        ends = [word for host in hosts for word in ("name", "uplink", "netns", host.name)]
        run("ip", "link", "add", *ends[:4], "type", "veth", "peer", *ends[4:])
        for number, host in enumerate(hosts, 1):
            host.ip("link", "set", "uplink", "up")
            host.ip("address", "add", f"192.0.2.{number}/24", "dev", "uplink")
            host.ip("route", "add", "default", "via", f"192.0.2.{3 - number}")
            host.set_sysctl("net/ipv4/ip_forward", 1)
        yield hosts
    finally:
        for host in hosts:
            host.destroy()


@contextmanager
def _machine(kube: KubeServer, name: str, folder: Path, network: Node) -> Iterator[CRINode]:
    configurations = folder / "net.d"
    configurations.mkdir(parents=True)
    shutil.copy(EXAMPLES / "kubernetes" / NODES[name], configurations)
    tunnel = Tunnel(network.path, kube.port)
    try:
        token = _token(kube)
        kubeconfig = configurations / "calico-kubeconfig"
        kubeconfig.write_text(kube.kubeconfig(token, server=f"https://127.0.0.1:{tunnel.port}"))
        kubeconfig.chmod(0o600)
        plugins = plugin_folder(folder / "bin")
        with cri_node(name, folder / "m", network, configurations=configurations, plugins=plugins) as machine:
            yield machine
    finally:
        tunnel.close()


def _token(kube: KubeServer, account: str = ACCOUNT) -> str:
    path = f"/api/v1/namespaces/kube-system/serviceaccounts/{account}/token"
    return str(kube.create(path, {"spec": {"expirationSeconds": 7200}})["status"]["token"])


@pytest.fixture(autouse=True)
def nothing_is_left(cluster: Cluster) -> Iterator[None]:
    """Whatever a test did, once it is over no sandbox, address, handle or link of it is there."""
    yield
    left = [Sandbox(node, sandbox) for node in (cluster.one, cluster.two) for sandbox in node.sandboxes()]
    gone(*left)  # of a test that failed: the next one begins with an empty cluster all the same
    assert left == []
    for node in (cluster.one, cluster.two):
        assert [link["ifname"] for link in node.network.links()] == ["uplink"]
    assert cluster.holders() == {}
    assert not [handle for handle in cluster.handles() if "k8s-pod-network" in handle]


def gone(*sandboxes: Sandbox) -> None:
    for sandbox in sandboxes:
        sandbox.stop()
        sandbox.remove()


# --- what is promised ---------------------------------------------------------------------------------------


def test_pods_of_two_nodes(cluster: Cluster) -> None:
    pods = [cluster.pod(cluster.one), cluster.pod(cluster.two)]
    first, second = cluster.one.run_sandbox(pods[0]), cluster.two.run_sandbox(pods[1])
    (ip,), (ip4, ip6) = first.addresses, second.addresses

    assert cluster.annotations(pods[0]) == {"podIP": f"{ip}/32", "podIPs": f"{ip}/32", "containerID": first.id}
    told = {"podIP": f"{ip4}/32", "podIPs": f"{ip4}/32,{ip6}/128", "containerID": second.id}
    assert cluster.annotations(pods[1]) == told
    assert first.links()["eth0"] == [f"{ip}/32"] and second.links()["eth0"] == [f"{ip4}/32", f"{ip6}/128"]
    assert cluster.holders() == {ip: first.id, ip4: second.id, ip6: second.id}

    (block,), (other,) = cluster.blocks(cluster.one), cluster.blocks(cluster.two)
    assert block != other and ip_address(ip) in ip_network(block) and ip_address(ip4) in ip_network(other)
    assert cluster.one.network.pings(ip) and cluster.two.network.pings(ip4)
    # Routes between nodes are the user's part: one for each block is enough.
    cluster.one.network.ip("route", "add", other, "via", "192.0.2.2")
    assert first.pings(ip4) and second.pings(ip)
    cluster.one.network.ip("route", "delete", other)

    first.stop()
    assert first.state == "NOTREADY" and cluster.holders() == {ip4: second.id, ip6: second.id}
    # The container stays named, so that one more DEL still knows its sandbox.
    assert cluster.annotations(pods[0]) == {"podIP": "", "podIPs": "", "containerID": first.id}
    first.remove()
    gone(second)
    assert cluster.annotations(pods[1])["podIPs"] == ""


def test_annotations_of_pod_and_namespace_decide(cluster: Cluster) -> None:
    namespace = cluster.kube.namespace({f"{PREFIX}ipv4pools": '["team"]'})
    fixed = cluster.pod(cluster.one, {f"{PREFIX}ipAddrs": '["10.65.77.7"]'})
    pooled = cluster.pod(cluster.two, namespace=namespace)
    one, two = cluster.one.run_sandbox(fixed), cluster.two.run_sandbox(pooled)
    assert one.addresses == ["10.65.77.7"] and cluster.annotations(fixed)["podIP"] == "10.65.77.7/32"
    assert ip_address(two.addresses[0]) in ip_network(TEAM_POOL)
    assert cluster.annotations(pooled)["podIP"] == f"{two.addresses[0]}/32"
    assert cluster.one.network.pings("10.65.77.7") and cluster.two.network.pings(two.addresses[0])

    same = cluster.pod(cluster.one, {f"{PREFIX}ipAddrs": '["10.65.77.7"]'})
    with pytest.raises(CRIError, match=r"10\.65\.77\.7"):
        cluster.one.run_sandbox(same)
    assert cluster.holders()["10.65.77.7"] == one.id and not cluster.annotations(same).get("podIP")
    assert cluster.one.network.pings("10.65.77.7"), "who has it keeps it"
    gone(one, two)


def test_a_pod_that_is_gone_is_refused(cluster: Cluster) -> None:
    pod = cluster.pod(cluster.one)
    cluster.kube.delete(_path(pod))
    with pytest.raises(CRIError, match=pod["metadata"]["name"]):
        cluster.one.run_sandbox(pod)


def test_the_next_sandbox_of_a_pod_outlives_the_removal_of_the_last(cluster: Cluster) -> None:
    """A kubelet makes a new sandbox when the old one died and removes that later: one more DEL, without a namespace."""
    pod = cluster.pod(cluster.one)
    old = cluster.one.run_sandbox(pod)
    old.stop()
    new = cluster.one.run_sandbox(pod, attempt=1)
    (ip,) = new.addresses
    old.remove()
    assert cluster.holders() == {ip: new.id} and cluster.one.network.pings(ip)
    assert cluster.annotations(pod)["containerID"] == new.id and cluster.annotations(pod)["podIP"] == f"{ip}/32"
    gone(new)


def test_a_sandbox_outlives_containerd(cluster: Cluster) -> None:
    pod = cluster.pod(cluster.one)
    sandbox = cluster.one.run_sandbox(pod)
    (ip,) = sandbox.addresses
    cluster.one.kill_containerd()
    assert cluster.one.network.pings(ip)
    cluster.one.start()
    assert cluster.one.sandboxes() == [sandbox.id] and sandbox.state == "READY"
    assert sandbox.addresses == [ip] and sandbox.links()["eth0"] == [f"{ip}/32"]
    assert cluster.holders() == {ip: sandbox.id} and cluster.annotations(pod)["podIP"] == f"{ip}/32"
    later = cluster.one.run_sandbox(cluster.pod(cluster.one))
    assert later.addresses != [ip] and cluster.one.network.pings(later.addresses[0])
    gone(sandbox, later)
    assert cluster.annotations(pod)["podIP"] == ""


def test_the_api_server_is_down_while_a_sandbox_stops(cluster: Cluster) -> None:
    """The kubelet repeats what failed; until it worked the address stays the sandbox's, and nobody else gets it."""
    pods = [cluster.pod(cluster.one) for _ in range(3)]
    sandbox, neighbour = (cluster.one.run_sandbox(pod) for pod in pods[:2])
    before = cluster.holders()
    cluster.kube.stop()
    try:
        began = time.monotonic()
        with pytest.raises(CRIError, match=r"failed to destroy network.*API server .* does not answer"):
            sandbox.stop()
        assert seconds_since(began) < LONG
        assert len(cluster.one.network.links()) == 2, "uplink and the neighbour's: a dead sandbox keeps no link"
    finally:
        cluster.kube.start()
    assert cluster.holders() == before and cluster.annotations(pods[0])["podIP"] == f"{sandbox_ip(before, sandbox)}/32"
    third = cluster.one.run_sandbox(pods[2])
    assert sandbox_ip(cluster.holders(), third) not in before
    gone(sandbox)
    assert set(cluster.holders().values()) == {neighbour.id, third.id}
    assert cluster.annotations(pods[0])["podIP"] == ""
    assert cluster.one.network.pings(neighbour.addresses[0])
    gone(neighbour, third)


def sandbox_ip(holders: Mapping[str, str], sandbox: Sandbox) -> str:
    (ip,) = (ip for ip, holder in holders.items() if holder == sandbox.id)
    return ip


# --- what a sandbox leaves that the runtime forgot ------------------------------------------------------------


@dataclass(frozen=True)
class Sweep:
    """``calico-gc node-sweep`` on a node, with the rights of its role and the node's own crictl."""

    node: CRINode
    environ: tuple[str, ...]
    memory: Path

    def run(self, *apply: str) -> set[tuple[str, str]]:
        """Sweep; return what was confirmed: kind and name."""
        runtime = f"{self.node.program} --runtime-endpoint=unix://{SOCKET} pods --output json"
        options = [f"--state={self.memory}", f"--runtime-command={runtime}", "--json", *apply]
        program = [sys.executable, "-m", "calico_gc.main", "node-sweep", f"--node={self.node.name}", *options]
        done = subprocess.run(self.node.command("env", *self.environ, *program), capture_output=True, text=True)
        assert done.returncode in (0, 3), done.stderr
        assert "not known" not in done.stderr, done.stderr
        found = json.loads(done.stdout)
        return {(each["kind"], each["name"]) for each in found["residue"] if each["action"] != "watch"}

    def wait(self) -> None:
        """Let eleven minutes pass."""
        document = json.loads(self.memory.read_text())
        for seen in document["seen"]:
            seen["first"] -= 660
            seen["last"] -= 660
        self.memory.write_text(json.dumps(document))


def _sweep(cluster: Cluster, node: CRINode, folder: Path) -> Sweep:
    kube = cluster.kube
    kube.apply(REPOSITORY / "gc" / "deploy" / "rbac-node-sweep.yaml")
    document = kube.get(f"/api/v1/nodes/{node.name}")
    since = (datetime.now(UTC) - timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    document["status"]["conditions"] = [{"type": "Ready", "status": "True", "lastTransitionTime": since}]
    kube.done("PUT", f"/api/v1/nodes/{node.name}/status", document)
    kubeconfig = folder / "kubeconfig"
    plugins = (node.folder.parent / "net.d" / "calico-kubeconfig").read_text()
    server = re.search(r"https://[0-9.:]+", plugins)
    assert server is not None
    kubeconfig.write_text(kube.kubeconfig(_token(kube, "calico-node-sweep"), server=server[0]))
    environ = (f"KUBECONFIG={kubeconfig}", "DATASTORE_TYPE=kubernetes", f"CALICO_API_GROUP={kube.api_version}")
    return Sweep(node, environ, folder / "memory.json")


def _forgotten(sandbox: Sandbox) -> None:
    """Take a sandbox from the runtime as a lost disk does: no CNI DEL, and nothing knows of it any more."""
    ctr = ("ctr", f"--address={SOCKET}", "--namespace=k8s.io")

    def killed() -> bool:
        # The task dies of it, and may be gone, or its shim be leaving, before it is deleted: then that is refused.
        with suppress(AssertionError):
            sandbox.node.run(*ctr, "tasks", "delete", "--force", sandbox.id)
        return sandbox.id not in sandbox.node.run(*ctr, "tasks", "list", "--quiet").split()

    wait_until("the task is gone", killed)
    sandbox.node.run(*ctr, "containers", "delete", sandbox.id)
    sandbox.node.kill_containerd()
    sandbox.node.start()
    assert sandbox.id not in sandbox.node.sandboxes()


def test_a_sandbox_that_the_runtime_forgot_is_swept_up_and_its_address_collected(
    cluster: Cluster, tmp_path: Path
) -> None:
    node = cluster.one
    kept, lost = cluster.pod(node), cluster.pod(node)
    lives, leaked = node.run_sandbox(kept), node.run_sandbox(lost)
    (ip,) = leaked.addresses
    host_links = {link["ifname"] for link in node.network.links()}
    _forgotten(leaked)
    cluster.kube.delete(_path(lost))
    link = veth_name_for_workload(lost["metadata"]["namespace"], lost["metadata"]["name"], "cali")
    assert link in host_links

    sweep = _sweep(cluster, node, tmp_path)
    assert sweep.run("--apply=veth") == set(), "one look is none"
    sweep.wait()
    found = sweep.run("--apply=veth")
    assert ("veth", link) in found and {kind for kind, _ in found} >= {"veth", "ipam", "cni-cache"}
    assert not [name for kind, name in found if lives.id in name or ip_of(lives) in name], found
    assert {link["ifname"] for link in node.network.links()} == host_links - {link}
    assert cluster.holders()[ip] == leaked.id, "the sweep releases no address"
    assert node.network.pings(ip_of(lives))

    environ = {"KUBECONFIG": str(cluster.kube.folder / "kubeconfig"), "DATASTORE_TYPE": "kubernetes"}
    once = ("-m", "calico_gc.main", "--once", "--leak-grace=1s", "--handle-gc=off", "--handle-repair=off")
    environ = {**os.environ, **environ, "CALICO_API_GROUP": cluster.kube.api_version}
    done = subprocess.run([sys.executable, *once], env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode in (0, 3), done.stderr
    assert cluster.holders() == {ip_of(lives): lives.id}
    assert node.network.pings(ip_of(lives))
    gone(lives)


def ip_of(sandbox: Sandbox) -> str:
    return sandbox.addresses[0]
