"""The examples for pods as they stand, only paths replaced, on a node without calico/node that ipamctl prepared."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.etcd_tools import Etcd
from tests.golden.cni_host import foreign_plugins
from tests.installed import EXAMPLES, PROGRAMS
from tests.kube_site import Site, finished, kube_site
from tests.kube_tools import KubeServer
from tests.netns_tools import require_root
from tests.shared import REPOSITORY
from tests.tunnel import Tunnel

FOLDER = EXAMPLES / "kubernetes"
EXPECTED = {
    "20-bare-kubernetes.conflist": 1,
    "21-dual-stack.conflist": 2,
    "22-etcd.conflist": 1,
    "23-host-local-pod-cidr.conflist": 2,
}


pytestmark = pytest.mark.timeout(300)  # the first test starts the API server


@pytest.fixture
def site(kube: KubeServer, tmp_path: Path) -> Iterator[Site]:
    require_root()
    with kube_site(kube, tmp_path) as made:
        yield made


def ipamctl(site: Site, *words: str, **environ: str) -> None:
    """Run ipamctl as the cluster's administrator."""
    admin = site.folder / "admin"
    admin.write_text(site.kube.kubeconfig())
    whole = {"PATH": os.environ["PATH"], "KUBECONFIG": str(admin), **environ}
    done = subprocess.run([PROGRAMS / "ipamctl", *words], capture_output=True, text=True, env=whole)
    assert done.returncode == 0, done.stdout + done.stderr


def plugin_of(site: Site, name: str, etcd: str = "") -> dict[str, Any]:
    """Return what the runtime sends of an example, its paths replaced."""
    text = (FOLDER / name).read_text().replace("/etc/cni/net.d/calico-kubeconfig", str(site.kubeconfig))
    if etcd:
        text = text.replace("http://127.0.0.1:2379", etcd)
    conflist = json.loads(text)
    (plugin,) = conflist["plugins"]
    return {"name": conflist["name"], "cniVersion": conflist["cniVersion"], **plugin}


def node_of_this_host(site: Site) -> str:
    """Make the Kubernetes node of this host, as the kubelet does under the host's own name."""
    name = socket.gethostname().strip().lower()
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
    spec = {"podCIDR": "10.78.0.0/24", "podCIDRs": ["10.78.0.0/24", "fd00:78::/112"]}
    site.kube.put(f"/api/v1/nodes/{name}", {**node, "spec": spec})
    return name


def test_every_example_is_tried() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(EXPECTED)


@pytest.fixture
def etcd() -> Iterator[Etcd]:
    with Etcd() as made:
        yield made


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_an_example_networks_a_pod_of_a_bare_cluster(
    site: Site, name: str, etcd: Etcd, request: pytest.FixtureRequest
) -> None:
    if "host-local" in name and foreign_plugins() is None:
        pytest.skip("needs the reference plugin host-local: install containernetworking-plugins")
    node = node_of_this_host(site)
    where, tunnel = ["--datastore", "kubernetes://"], None
    if "etcd" in name:
        tunnel = Tunnel(site.node.path, etcd.port)
        request.addfinalizer(tunnel.close)
        where = ["--datastore", f"etcd://127.0.0.1:{etcd.port}"]
    ipamctl(site, "init", "--ipv4-pool", "10.79.0.0/16", "--ipv6-pool", "fd00:79::/64", "--node", node, *where)
    netconf = plugin_of(site, name, f"http://127.0.0.1:{tunnel.port}" if tunnel else "")
    sandbox = site.node.sandbox()
    site.pod("p", node=node)
    result = finished(site.start_with(netconf, "ADD", "p", sandbox))
    found = [ip["address"].partition("/")[0] for ip in result["ips"]]
    assert len(found) == EXPECTED[name]
    assert all(sandbox.addresses("eth0")[address] in (32, 128) for address in found)
    link = sandbox.link("eth0")
    assert link is not None and link["mtu"] == netconf.get("mtu", 1500)
    if not tunnel:
        assert site.pod_now("p")["podIP"] == f"{found[0]}/32"
    finished(site.start_with(netconf, "DEL", "p", sandbox))
    assert not sandbox.links() and site.held() == 0
    if "host-local" in name:
        assert not [f for f in (site.folder / "run" / "host-local").rglob("*") if f.name in found]


def test_the_definitions_and_the_role_are_where_the_document_says() -> None:
    assert any((REPOSITORY / "gc" / "deploy" / "crds").iterdir())
    assert (REPOSITORY / "gc" / "deploy" / "rbac-plugin.yaml").is_file()
