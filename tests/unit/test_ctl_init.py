"""``ipamctl init``: from nothing to a datastore that the plugins can use; again and again."""

from __future__ import annotations

import json
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from calico_ipam.ctl import host_networks
from calico_ipam.ctl import init as command
from calico_ipam.datastore.sqlite import SQLiteStore
from calico_ipam.model.keys import ResourceKey
from calico_ipam.model.resource import CLUSTER_INFORMATION, NODE
from tests.cluster import memory_folder
from tests.ctl import Ctl


@pytest.fixture
def ctl(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ctl]:
    import tempfile

    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        monkeypatch.setattr(command, "NODENAME_FILE", f"{folder}/nodename")
        monkeypatch.setattr(host_networks, "networks_in_use", list)
        yield Ctl(Path(folder) / "store" / "ipam.db")


def get(ctl: Ctl, kind: str, name: str) -> dict[str, Any]:
    store = SQLiteStore(ctl.path)
    try:
        return dict(store.get(ResourceKey(kind, name)).value.document)
    finally:
        store.close()


def result_of(ctl: Ctl, *argv: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ctl.ok("init", *argv, "-o", "json"))
    return found


def test_from_nothing(ctl: Ctl) -> None:
    made = result_of(ctl, "--node", "node-1")
    assert made["datastore"] == ctl.url
    assert made["node"] == {"name": "node-1", "state": "created"}
    assert made["pools"] == [{"name": "default-ipv4-ippool", "cidr": "10.244.0.0/16", "state": "created"}]
    assert made["cluster"]["ready"] is True
    assert get(ctl, CLUSTER_INFORMATION, "default")["spec"] == {
        "clusterGUID": made["cluster"]["guid"],
        "datastoreReady": True,
    }
    assert len(made["cluster"]["guid"]) == 32
    node = get(ctl, NODE, "node-1")
    assert (node["kind"], node["metadata"]["name"], node["spec"]) == ("Node", "node-1", {})
    assert stat.S_IMODE(ctl.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(ctl.path.parent.stat().st_mode) == 0o700


def test_a_node_that_init_made_gets_an_address(ctl: Ctl) -> None:
    from calico_ipam.engine.client import IPAM

    result_of(ctl, "--node", "node-1", "--ipv6-pool", "auto")
    store = SQLiteStore(ctl.path)
    assigned = IPAM(store, hostname="node-1").auto_assign(use="Workload", num4=1, num6=1, handle="net.c")
    store.close()
    assert len(assigned.addresses) == 2


def test_again(ctl: Ctl) -> None:
    first = result_of(ctl, "--node", "node-1", "--ipv6-pool", "fd00::/64")
    before = ctl.path.read_bytes()
    for argv in ((), ("--ipv4-pool", "10.244.0.0/16"), ("--ipv6-pool", "auto"), ("--ipv4-pool", "none")):
        again = result_of(ctl, "--node", "node-1", *argv)
        assert again["cluster"] == {**first["cluster"], "state": "exists"}
        assert again["node"]["state"] == "exists"
        assert [(pool["name"], pool["state"]) for pool in again["pools"]] == [
            ("default-ipv4-ippool", "exists"),
            ("default-ipv6-ippool", "exists"),
        ]
        assert again["networkConfiguration"] == first["networkConfiguration"]
    assert ctl.path.read_bytes() == before


def test_a_second_host_joins(ctl: Ctl) -> None:
    result_of(ctl, "--node", "node-1")
    second = result_of(ctl, "--node", "node-2")
    assert (second["node"]["state"], second["cluster"]["state"]) == ("created", "exists")


@pytest.mark.parametrize(
    ("pools", "families"),
    [
        ((), {}),
        (("--ipv6-pool", "fd00::/64"), {"assign_ipv4": "true", "assign_ipv6": "true"}),
        (("--ipv4-pool", "none", "--ipv6-pool", "fd00::/64"), {"assign_ipv4": "false", "assign_ipv6": "true"}),
        (("--ipv4-pool", "none"), {}),
    ],
)
def test_network_configuration(ctl: Ctl, pools: tuple[str, ...], families: dict[str, str]) -> None:
    made = result_of(ctl, "--node", "node-1", *pools)["networkConfiguration"]
    (plugin,) = made["plugins"]
    assert plugin == {
        "type": "calico",
        "datastore_type": "sqlite",
        "sqlite_path": str(ctl.path),
        "nodename": "node-1",
        "nodename_file_optional": True,
        "ipam": {"type": "calico-ipam", **families},
    }


def test_network_configuration_of_shared_datastores() -> None:
    from calico_ipam.datastore.settings import Settings

    etcd = Settings(
        "etcdv3", etcd_endpoints=("https://a:2379", "https://b:2379"), etcd_ca_cert_file="/ca", etcd_password="secret"
    )
    (plugin,) = command.network_configuration(etcd, "n", ())["plugins"]
    assert plugin["datastore_type"] == "etcdv3"
    assert plugin["etcd_endpoints"] == "https://a:2379,https://b:2379"
    assert plugin["etcd_ca_cert_file"] == "/ca"
    assert "secret" not in json.dumps(plugin)
    (plugin,) = command.network_configuration(Settings("kubernetes", kubeconfig="/k"), "n", ())["plugins"]
    assert plugin["kubernetes"] == {"kubeconfig": "/k"}


def test_the_random_ipv6_range_is_unique_local(ctl: Ctl) -> None:
    (_, six) = result_of(ctl, "--node", "n", "--ipv6-pool", "auto")["pools"]
    assert six["cidr"].startswith("fd")
    assert six["cidr"].endswith("/48")


def test_what_people_read(ctl: Ctl) -> None:
    code, screen = ctl.on_terminal("init", "--node", "node-1", "--ipv4-pool", "10.244.0.0/16", columns=60)
    assert code == 0
    assert f"Datastore  {ctl.url}" in screen
    assert "Node       node-1  [created]" in screen
    assert "IPv4 pool  default-ipv4-ippool: 10.244.0.0/16, 1024 blocks of 64" in screen
    assert "/etc/cni/net.d/10-calico.conflist" in screen
    assert '"nat_outgoing": true' in screen  # ruling 22: nobody masquerades for a bare host by itself
    assert "Felix" in screen
    prose = screen[screen.index("Outbound") :]
    assert max(map(len, prose.splitlines())) <= 60


def test_no_pool_at_all(ctl: Ctl) -> None:
    assert "Pools      none; 'ipamctl pool create CIDR' makes one\n" in ctl.ok(
        "init", "--node", "n", "--ipv4-pool", "none"
    )


def test_a_locked_datastore_is_told(ctl: Ctl) -> None:
    from calico_ipam.datastore.api import Create
    from calico_ipam.model.resource import Resource

    store = SQLiteStore(ctl.path)
    locked = Resource.new(CLUSTER_INFORMATION, "default", {"clusterGUID": "a" * 32, "datastoreReady": False})
    store.commit(Create(ResourceKey(CLUSTER_INFORMATION, "default"), locked))
    store.close()
    result = ctl("init", "--node", "n")
    assert result.exit_code == 0
    assert "warning: the datastore is locked" in result.stderr
    assert get(ctl, CLUSTER_INFORMATION, "default")["spec"]["datastoreReady"] is False


# --- the node's name ----------------------------------------------------------------------------------------


def test_the_name_of_the_host(ctl: Ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    from calico_ipam.engine import world

    monkeypatch.setattr(world, "own_hostname", lambda: "os-name")
    assert result_of(ctl)["node"]["name"] == "os-name"
    Path(command.NODENAME_FILE).write_text("from-file\n")
    assert result_of(ctl)["node"]["name"] == "from-file"
    assert result_of(ctl, "--node", "given")["node"]["name"] == "given"


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a:b", "a%b", "a\tb", "a\nb"])
def test_names_that_cannot_be(ctl: Ctl, name: str) -> None:
    stderr = ctl.refused("init", "--node", name)
    assert f"{name!r} cannot be the name of a node" in stderr
    assert "hint: Give --node a name" in stderr
    assert not ctl.path.exists()


# --- bad pools ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (("--ipv4-pool", "fd00::/48"), "fd00::/48 is not an IPv4 network\nhint: Give it as --ipv6-pool."),
        (("--ipv6-pool", "10.0.0.0/8"), "10.0.0.0/8 is not an IPv6 network\nhint: Give it as --ipv4-pool."),
        (("--ipv4-pool", "10.0.0.5/8"), "IPPool CIDR is not strictly masked"),
        (("--ipv4-pool", "Auto"), "IPPool CIDR must be a valid subnet"),
        (("--ipv4-pool", "10.0.0.0/28"), "IP pool size is too small"),
        (("--ipv6-pool", "fe80::/64"), "link local range"),
    ],
)
def test_bad_pools(ctl: Ctl, argv: tuple[str, ...], text: str) -> None:
    assert text in ctl.refused("init", "--node", "n", *argv)
    assert json.loads(ctl.ok("pool", "list", "-o", "json"))["items"] == []


def test_another_default_pool_exists(ctl: Ctl) -> None:
    result_of(ctl, "--node", "n")
    stderr = ctl.refused("init", "--node", "n", "--ipv4-pool", "10.9.0.0/16")
    assert "resource already exists: IPPool(default-ipv4-ippool)" in stderr
    assert "hint: Pool default-ipv4-ippool has CIDR 10.244.0.0/16; 'ipamctl pool create" in stderr


def test_a_folder_that_cannot_be_made() -> None:
    stderr = Ctl(Path("/proc/no/such/ipam.db")).refused("init", "--node", "n")
    assert "the datastore file /proc/no/such/ipam.db cannot be made" in stderr


# --- networks of the host -----------------------------------------------------------------------------------

ROUTE = """\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
tun0\t0000F40A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
short line
"""
TRIE = """\
Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     |-- 10.77.0.1
        /32 host LOCAL
     |-- 127.0.0.1
        /32 host LOCAL
     |-- 192.0.2.255
        /32 link BROADCAST
"""
ROUTE6 = "".join(
    f"{base} {length} {'0' * 32} 00 {'0' * 32} 00000100 00000001 00000000 00000001 {device:>8}\n"
    for base, length, device in (
        ("fd00".ljust(32, "0"), 40, "eth0"),
        ("fe80".ljust(32, "0"), 40, "eth0"),
        ("fd77".ljust(32, "0"), 40, "lo"),
        ("0" * 32, "00", "lo"),
    )
)


def test_networks_in_use(tmp_path: Path) -> None:
    (tmp_path / "route").write_text(ROUTE)
    (tmp_path / "fib_trie").write_text(TRIE)
    (tmp_path / "ipv6_route").write_text(ROUTE6)
    found = [str(network) for network in host_networks.networks_in_use(tmp_path)]
    if sys.byteorder == "little":  # the kernel prints IPv4 routes as numbers in its own order
        assert found == ["192.0.2.0/24", "10.244.0.0/16", "10.77.0.1/32", "fd00::/64"]


def test_networks_that_cannot_be_read(tmp_path: Path) -> None:
    assert host_networks.networks_in_use(tmp_path) == []


def test_this_host_can_be_read() -> None:
    for network in host_networks.networks_in_use():
        assert network.prefixlen > 0


def test_the_default_avoids_them_and_a_choice_is_warned_of(ctl: Ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    from calico_ipam.model.addresses import parse_network

    monkeypatch.setattr(host_networks, "networks_in_use", lambda: [parse_network("10.244.1.0/24")])
    assert result_of(ctl, "--node", "n")["pools"][0]["cidr"] == "10.245.0.0/16"
    other = Ctl(ctl.path.with_name("other.db"))
    result = other("init", "--node", "n", "--ipv4-pool", "10.0.0.0/8")
    assert result.exit_code == 0
    assert (
        "warning: pool default-ipv4-ippool (10.0.0.0/8) overlaps 10.244.1.0/24, which this host uses" in result.stderr
    )
    assert "overlaps" not in other("init", "--node", "n").stderr
