"""Optional masquerading on a bare host (rulings 22)."""

from __future__ import annotations

import subprocess
from ipaddress import ip_network

import pytest

from calico_cni.dataplane import nat
from calico_cni.dataplane.api import DataplaneError
from calico_cni.dataplane.linux import LinuxDataplane
from calico_cni.dataplane.nat import TABLE, masquerade
from tests.link_requests import link_request
from tests.netns_tools import Namespace, Node

POOLS = [ip_network("192.168.0.0/16"), ip_network("fd00:10:244::/64")]


def ruleset(node: Node) -> str:
    return node.command("nft", "list", "ruleset").stdout


def world(node: Node) -> Namespace:
    """Make a namespace beyond the host's uplink that knows the way to the host only, not to any pool."""
    far = node.sandbox()
    node.ip("link", "add", "uplink", "type", "veth", "peer", "name", "eth0", "netns", far.name)
    for place, name, number in ((node, "uplink", 1), (far, "eth0", 2)):
        place.ip("addr", "add", f"203.0.113.{number}/24", "dev", name)
        place.ip("addr", "add", f"2001:db8::{number}/64", "dev", name, "nodad")
        place.ip("link", "set", name, "up")
    node.ip("route", "add", "default", "via", "203.0.113.2")
    node.ip("-6", "route", "add", "default", "via", "2001:db8::2")
    return far


def test_pods_reach_the_world_only_with_it(node: Node, pod: Namespace, dataplane: LinuxDataplane) -> None:
    world(node)
    dataplane.add(link_request(pod))
    assert not pod.pings("203.0.113.2", seconds=2)
    masquerade(POOLS)
    assert pod.pings("203.0.113.2")
    assert pod.pings("2001:db8::2")


def test_pods_see_each_other_with_their_own_addresses(node: Node, pod: Namespace, dataplane: LinuxDataplane) -> None:
    node.add_uplink()
    other = node.sandbox()
    dataplane.add(link_request(pod, "192.168.1.1/32"))
    dataplane.add(link_request(other, "192.168.1.2/32", host_name="cali2"))
    masquerade(POOLS)
    # Only what comes from the pod's own address is let in.
    other.command(
        "nft",
        "table inet t { chain c { type filter hook input priority 0; policy drop; ip saddr 192.168.1.1 accept; }; }",
    )
    assert pod.pings("192.168.1.2")


def test_repeating_it_changes_nothing(node: Node) -> None:
    masquerade(POOLS)
    first = node.command("nft", "-a", "list", "ruleset").stdout
    masquerade(list(reversed(POOLS)))
    assert node.command("nft", "-a", "list", "ruleset").stdout == first


def test_pools_come_and_go_and_the_table_with_the_last(node: Node) -> None:
    more = [*POOLS, ip_network("10.1.0.0/24"), ip_network("10.1.1.0/24"), ip_network("10.9.9.9/32")]
    masquerade(more)
    assert "10.1.0.0/23" in ruleset(node) and "10.9.9.9" in ruleset(node)
    masquerade(POOLS[:1])
    assert "10.1.0.0/23" not in ruleset(node) and "192.168.0.0/16" in ruleset(node)
    assert "fd00:10:244::" not in ruleset(node)
    masquerade([])
    assert ruleset(node) == ""
    masquerade([])


def test_rules_of_others_stay(node: Node) -> None:
    node.command("nft", "add", "table", "inet", "theirs")
    masquerade(POOLS)
    masquerade([])
    assert "theirs" in ruleset(node) and TABLE not in ruleset(node)


def test_host_keeps_listening_to_its_router(node: Node) -> None:
    world(node)
    assert node.sysctl("net/ipv6/conf/uplink/accept_ra") == 1
    masquerade(POOLS)
    assert node.sysctl("net/ipv6/conf/uplink/accept_ra") == 2
    assert node.sysctl("net/ipv6/conf/all/forwarding") == 1
    assert node.sysctl("net/ipv4/conf/uplink/forwarding") == 1


def test_missing_program_is_named(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nat, "PROGRAM_PATH", "/nowhere")
    with pytest.raises(DataplaneError, match="nft, which is not installed") as caught:
        masquerade(POOLS)
    assert "nftables" in caught.value.hint


def test_program_that_hangs_is_given_up(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*args: object, **options: object) -> None:
        raise subprocess.TimeoutExpired("nft", 10)

    monkeypatch.setattr(subprocess, "run", hang)
    with pytest.raises(DataplaneError, match="did not answer"):
        masquerade(POOLS)
