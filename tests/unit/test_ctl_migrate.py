"""``datastore migrate export`` and what asks for the lock first: what is moved under which name (cli §7, §11)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from calico_ipam.ctl.main import cli
from calico_ipam.datastore.api import Create
from calico_ipam.engine.policy import Retry
from calico_ipam.engine.setup import ensure_cluster
from calico_ipam.engine.world import Engine
from calico_ipam.model.keys import ResourceKey
from calico_ipam.model.resource import Resource
from tests.cluster import Cluster, cluster
from tests.ctl import Ctl


@pytest.fixture
def world() -> Iterator[Cluster]:
    with cluster() as made:
        yield made


@pytest.fixture
def ctl(world: Cluster) -> Ctl:
    return Ctl(Path(world.store.inner.name.removeprefix("sqlite://")))


def add(world: Cluster, kind: str, name: str, namespace: str = "", **spec: object) -> None:
    resource = Resource.new(kind, name, spec, namespace=namespace)
    world.store.commit(Create(ResourceKey(kind, name, namespace), resource))


def test_settings_of_a_node_move_with_its_name(world: Cluster, ctl: Ctl) -> None:
    ensure_cluster(Engine(world.store, world.clock, Retry(clock=world.clock)), "0" * 32)
    references = [{"orchestrator": "k8s", "nodeName": "first"}, {"orchestrator": "k8s", "nodeName": "kube-a"}]
    add(world, "Node", "etcd-a", orchRefs=references)
    for name in ("default", "node.etcd-a", "node.unknown"):
        add(world, "BGPConfiguration", name, asNumber=64512)
        add(world, "FelixConfiguration", name, defaultEndpointToHostAction="ACCEPT", iptablesFilterDenyAction="drop")
    add(world, "NetworkPolicy", "knp.default.web", "shop")
    add(world, "NetworkPolicy", "default.db", "shop")
    ctl.ok("datastore", "migrate", "lock")
    first = ctl.ok("datastore", "migrate", "export").partition("===\n")[0]
    moved = {each["kind"].removesuffix("List"): each["items"] for each in yaml.safe_load_all(first) if each}
    names = {kind: [item["metadata"]["name"] for item in items] for kind, items in moved.items()}
    assert names["Node"] == ["kube-a"]
    assert names["BGPConfiguration"] == names["FelixConfiguration"] == ["default", "node.kube-a", "node.unknown"]
    assert names["NetworkPolicy"] == ["default.db"]
    actions = {"defaultEndpointToHostAction": "Accept", "iptablesFilterDenyAction": "Drop"}
    assert [item["spec"] for item in moved["FelixConfiguration"]] == [actions] * 3


@pytest.mark.parametrize("command", ["datastore migrate export", "ipam split 2 --name=a"])
def test_without_information_of_the_cluster(ctl: Ctl, command: str) -> None:
    result = CliRunner().invoke(cli, ["--datastore", ctl.url, *command.split()], prog_name="calicoctl")
    missing = (
        "error while checking if datastore was locked: error retrieving ClusterInformation: "
        "resource does not exist: ClusterInformation(default) with error: <nil>\n"
    )
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", missing)


def test_a_check_gives_up_at_an_address_that_is_none(world: Cluster, ctl: Ctl) -> None:
    ensure_cluster(Engine(world.store, world.clock, Retry(clock=world.clock)), "0" * 32)
    add(world, "WorkloadEndpoint", "node--1-k8s-web-eth0", "shop", node="node-1", ipNetworks=["10.0.0.1/99"])
    text = "failed to parse IP (10.0.0.1/99) of workload shop/node--1-k8s-web-eth0: invalid CIDR address: 10.0.0.1/99\n"
    assert ctl("ipam", "check").stderr == text
