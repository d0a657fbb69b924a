"""The installed plugins with pods of a real API server, as their own account, in network namespaces."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from calico_ipam.engine.client import IPAM
from calico_ipam.model.addresses import blocks_in
from calico_ipam.model.affinity import HOST, BlockOwner
from calico_ipam.model.keys import Blocks
from tests.clock import LONG
from tests.kube_site import Site, kube_site, prepare
from tests.kube_tools import KubeServer
from tests.netns_tools import inside, require_root

#: Requests of one call on a warm node (ruling 30).
MOST_FOR_ADD, MOST_FOR_DEL = 11, 10

pytestmark = pytest.mark.timeout(300)  # the first test starts the API server


@pytest.fixture
def site(kube: KubeServer, tmp_path: Path) -> Iterator[Site]:
    require_root()
    with kube_site(kube, tmp_path) as made:
        prepare(made)
        yield made


def test_pods_reach_each_other(site: Site) -> None:
    sandboxes = [site.node.sandbox() for _ in range(2)]
    dual = {"ipam": {"type": "calico-ipam", "assign_ipv6": "true"}}
    found = []
    for index, sandbox in enumerate(sandboxes):
        site.pod(f"p{index}")
        found.append([ip["address"].partition("/")[0] for ip in site.call("ADD", f"p{index}", sandbox, **dual)["ips"]])
        assert site.pod_now(f"p{index}")["podIPs"] == f"{found[-1][0]}/32,{found[-1][1]}/128"
    site.node.set_sysctl("net/ipv4/ip_forward", 1)
    assert sandboxes[0].pings(found[1][0]) and sandboxes[1].pings(found[0][0])
    for index, sandbox in enumerate(sandboxes):
        site.call("DEL", f"p{index}", sandbox, **dual)
        assert site.pod_now(f"p{index}")["podIPs"] == "" and not sandbox.links()
    assert site.held() == 0 and [link["ifname"] for link in site.node.links()] == ["uplink-far", "uplink"]


def test_an_address_of_an_annotation_has_a_route(site: Site) -> None:
    """Upstream takes such a pod for the target of a migration and leaves the route out (§15.3)."""
    sandbox = site.node.sandbox()
    site.pod("fixed", {"ipAddrs": '["10.65.3.7"]', "hwAddr": "ca:fe:ca:fe:ca:fe"})
    site.call("ADD", "fixed", sandbox)
    assert any(route["dst"] == "10.65.3.7" for route in site.node.routes())
    link = sandbox.link("eth0")
    assert link is not None and link["address"] == "ca:fe:ca:fe:ca:fe"
    site.node.set_sysctl("net/ipv4/ip_forward", 1)
    other = site.node.sandbox()
    site.pod("other")
    site.call("ADD", "other", other)
    assert other.pings("10.65.3.7")


def test_check_compares_the_sandbox_with_its_pod(site: Site) -> None:
    sandbox = site.node.sandbox()
    site.pod("p")
    result = site.call("ADD", "p", sandbox)
    assert site.call("CHECK", "p", sandbox, prevResult=result) == {}
    sandbox.ip("link", "set", "eth0", "down")
    process = site.start("CHECK", "p", sandbox, prevResult=result)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1 and "eth0" in json.loads(out)["msg"], out + err


def test_requests_of_a_warm_node(site: Site, record_property: Any) -> None:
    """Counted from the API server's log: neither blocks nor pods make them more (issue's figures, ruling 30)."""
    sandbox = site.node.sandbox()
    for name in ("warm", "few", "many"):
        site.pod(name)
    site.call("ADD", "warm", sandbox)
    site.call("DEL", "warm", sandbox)
    add, delete = site.counted("ADD", "few", sandbox), site.counted("DEL", "few", sandbox)
    assert len(add) <= MOST_FOR_ADD, [str(request) for request in add]
    assert len(delete) <= MOST_FOR_DEL, [str(request) for request in delete]
    assert all(request.authorised for request in (*add, *delete)), "the role of cni.md §4 is enough"
    record_property("requests", f"ADD {len(add)}, DEL {len(delete)}")

    ipam = IPAM(site.store, hostname="elsewhere")
    for number in range(20):
        site.kube.node(f"other-{number}") if number < 2 else None
        network = next(iter(site.store.list(Blocks()))).cidr
        other = list(blocks_in(network.supernet(new_prefix=20), 28))[number + 60]
        ipam.claim_affinity(other, BlockOwner(HOST, f"other-{number % 2}"))
    assert len(site.store.list(Blocks())) > 16
    assert len(site.counted("ADD", "many", sandbox)) == len(add)
    assert len(site.counted("DEL", "many", sandbox)) == len(delete)


def test_many_at_once(site: Site) -> None:
    """Eight sandboxes begin together; each gets an address of its own and all end well."""
    sandboxes = [site.node.sandbox() for _ in range(8)]
    for index in range(8):
        site.pod(f"m{index}")
    for verb in ("ADD", "DEL"):
        running = [site.start(verb, f"m{index}", sandbox) for index, sandbox in enumerate(sandboxes)]
        for process in running:
            out, err = process.communicate(timeout=110)
            assert process.returncode == 0, out + err
        assert site.held() == (8 if verb == "ADD" else 0)


def test_the_api_server_is_down_during_delete(site: Site) -> None:
    """The error can be repeated, the link is gone, and the next DEL finds everything else (§15.10, §15.19)."""
    sandbox = site.node.sandbox()
    site.pod("p")
    site.call("ADD", "p", sandbox)
    dead = {"kubernetes": {"kubeconfig": str(site.kubeconfig), "k8s_api_root": "https://127.0.0.1:1"}}
    process = site.start("DEL", "p", sandbox, **dead)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1 and json.loads(out)["code"] == 11, out + err
    assert not sandbox.links() and site.held() == 1 and site.pod_now("p")["podIP"]
    site.call("DEL", "p", sandbox)
    assert site.held() == 0 and site.pod_now("p")["podIP"] == ""


def run_inside(site: Site, program: list[str], netconf: Mapping[str, Any]) -> subprocess.CompletedProcess[str]:
    with inside(site.node.path):
        return subprocess.run(program, input=json.dumps(netconf), capture_output=True, text=True, timeout=LONG)


def test_the_connection_test(site: Site) -> None:
    """``calico -t`` asks the datastore and the API server."""
    program = [sys.executable, "-c", "from calico_cni.entry import main; main()", "-t"]
    netconf: dict[str, Any] = {
        "name": "n",
        "datastore_type": "kubernetes",
        "calico_api_group": site.kube.api_version,
        "kubernetes": {"kubeconfig": str(site.kubeconfig)},
    }
    deadline = time.monotonic() + LONG
    while (done := run_inside(site, program, netconf)).returncode != 0 and time.monotonic() < deadline:
        # Two seconds is all that the text gives it; a busy machine may need more for a first connection.
        assert "out of time" in done.stdout or "does not answer" in done.stdout, done.stdout + done.stderr
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
    netconf["kubernetes"]["k8s_api_root"] = "https://127.0.0.1:1"
    done = run_inside(site, program, netconf)
    assert done.returncode == 1 and json.loads(done.stdout)["code"] == 100
