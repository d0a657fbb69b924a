"""What ADD leaves behind is what upstream leaves behind: links, addresses, routes, kernel settings (cni.md §8)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from calico_cni.dataplane import linux
from calico_cni.dataplane.api import DataplaneError
from calico_cni.dataplane.linux import LinuxDataplane
from calico_cni.dataplane.rtnl import AssignedAddress, Rtnl
from tests.clock import LONG
from tests.link_requests import HOST_NAME, IPV4, IPV6, link_request
from tests.netns_tools import Namespace, Node, host_state, sandbox_state
from tests.shared import golden


def recorded_links() -> list[Any]:
    """Return one recorded ADD for each kind of request that the plugin can make of the dataplane."""
    chosen: dict[str, Any] = {}
    for file in ("dataplane.json", "etcd-cni.json"):
        path = golden("cni") / file
        if not path.is_file():
            return [pytest.param({}, id="absent", marks=pytest.mark.skip(reason=f"no recordings: {path} is absent"))]
        for case in json.loads(path.read_text())["cases"]:
            for number, step in enumerate(case["steps"]):
                options = _options(step)
                if options is not None:
                    chosen.setdefault(json.dumps(options), pytest.param(step, id=f"{case['name']}[{number}]"))
    return list(chosen.values())


def _options(step: dict[str, Any]) -> dict[str, Any] | None:
    """Return what distinguishes this ADD's request from others; None for anything but an ADD that made one link."""
    if step.get("op") != "exec" or step["env"].get("CNI_COMMAND") != "ADD" or step.get("exit_code") != 0:
        return None
    if list(step.get("container", {})) != ["{NETNS}"] or len(step.get("host", {})) != 1:
        return None
    if len(step["container"]["{NETNS}"]["links"]) != 1 or not isinstance(step.get("stdin"), dict):
        return None
    network = step["stdin"]
    return {
        "name": step["env"]["CNI_IFNAME"],
        "queues": network.get("num_queues", 1),
        "device_type": network.get("device_type") or "veth",
        "mtu": network.get("mtu", 0),
        "ip_forwarding": network.get("container_settings", {}).get("allow_ip_forwarding", False),
        "versions": sorted({4 if address["family"] == "inet" else 6 for address in _addresses(step)}),
    }


def _addresses(step: dict[str, Any]) -> list[dict[str, Any]]:
    return [address for address in step["container"]["{NETNS}"]["addrs"] if address["scope"] == "global"]


@pytest.mark.parametrize("step", recorded_links())
def test_state_is_as_recorded(step: dict[str, Any], node: Node, pod: Namespace, dataplane: LinuxDataplane) -> None:
    options = _options(step)
    assert options is not None
    del options["versions"]
    (host_name,) = step["host"]
    addresses = [f"{address['local']}/{address['prefixlen']}" for address in _addresses(step)]
    result = dataplane.add(link_request(pod, *addresses, host_name=host_name, **options))

    known: dict[str, str] = {}
    expected = step["container"]["{NETNS}"]
    assert differences(expected, sandbox_state(pod), known) == []
    assert known[expected["links"][0]["address"]] == result.mac
    assert differences(step["host"], host_state(node), known) == []


def differences(expected: Any, found: Any, known: dict[str, str], where: str = "") -> list[str]:
    """Compare with placeholders: each stands for one value. The kernel's order of routes and addresses is kept."""
    if isinstance(expected, dict) and isinstance(found, dict):
        lines = [f"{where}/{key}: unexpected" for key in found.keys() - expected.keys()]
        for key, value in expected.items():
            lines += differences(value, found.get(key), known, f"{where}/{key}")
        return lines
    if isinstance(expected, list) and isinstance(found, list):
        # The link-local address of a new link appears some milliseconds later, and is its own affair.
        expected, found = _without_link_local(expected), _without_link_local(found)
        if len(expected) != len(found):
            return [f"{where}: {expected} but found {found}"]
        lines = []
        for position, (left, right) in enumerate(zip(expected, found, strict=True)):
            lines += differences(left, right, known, f"{where}[{position}]")
        return lines
    if isinstance(expected, str) and expected.startswith("{"):
        expected = known.setdefault(expected, found)
    return [] if expected == found else [f"{where}: {expected!r} but found {found!r}"]


def _without_link_local(items: list[Any]) -> list[Any]:
    return [
        item
        for item in items
        if not (isinstance(item, dict) and (item.get("scope") == "link" and item.get("family") == "inet6"))
        and not (isinstance(item, dict) and item.get("dst") == "fe80::/64")
    ]


def test_both_ends_reach_each_other(node: Node, pod: Namespace, dataplane: LinuxDataplane) -> None:
    other = node.sandbox()
    node.add_uplink()
    node.ip("addr", "add", "10.99.0.1/32", "dev", "lo")
    node.ip("addr", "add", "fd99::1/128", "dev", "lo")
    node.set_sysctl("net/ipv6/conf/all/forwarding", 1)
    node.set_sysctl("net/ipv4/ip_forward", 1)
    dataplane.add(link_request(pod))
    dataplane.add(link_request(other, "192.168.226.65/26", "fd00:10:244::2a41/122", host_name="cali1"))
    for target in ("10.99.0.1", "fd99::1", "192.168.226.65", "fd00:10:244::2a41"):
        assert pod.pings(target), target
    for target in ("192.168.226.64", "fd00:10:244::2a40"):
        assert node.pings(target), target
        assert other.pings(target), target


def test_mtu_is_given_to_both_ends_and_kept(node: Node, pod: Namespace, dataplane: LinuxDataplane) -> None:
    node.add_uplink()
    node.ip("addr", "add", "10.99.0.1/32", "dev", "lo")
    dataplane.add(link_request(pod, mtu=1450))
    inner, outer = pod.link("eth0"), node.link(HOST_NAME)
    assert inner is not None and outer is not None
    assert (inner["mtu"], outer["mtu"]) == (1450, 1450)
    overhead = 28  # IPv4 and ICMP headers
    assert pod.pings("10.99.0.1", size=1450 - overhead)
    assert not pod.pings("10.99.0.1", size=1450 - overhead + 1, seconds=2)


def test_custom_routes_replace_the_default_route(node: Node, pod: Namespace, dataplane: LinuxDataplane) -> None:
    dataplane.add(link_request(pod, routes=("10.5.0.0/16", "fd05::/64")))
    gateways = {route["dst"]: route.get("gateway") for route in pod.routes()}
    assert gateways["10.5.0.0/16"] == "169.254.1.1"
    assert gateways["fd05::/64"] == "fe80::ecee:eeff:feee:eeee"
    assert "default" not in gateways


def test_routes_of_a_family_without_address_are_left_out(node: Node, pod: Namespace, dataplane: LinuxDataplane) -> None:
    dataplane.add(link_request(pod, IPV6))
    assert not [route for route in pod.ip_json("-4", "route", "show")]
    assert [route["gateway"] for route in pod.ip_json("-6", "route", "show", "default")] == [
        "fe80::ecee:eeff:feee:eeee"
    ]


@pytest.mark.parametrize("written", ["CA:FE:CA:FE:CA:FE", "ca-fe-ca-fe-ca-fe", "cafe.cafe.cafe"])
def test_hardware_address_asked_for(written: str, node: Node, pod: Namespace, dataplane: LinuxDataplane) -> None:
    result = dataplane.add(link_request(pod, IPV4, mac=written))
    link = pod.link("eth0")
    assert link is not None
    assert result.mac == link["address"] == "ca:fe:ca:fe:ca:fe"


def test_ipv6_works_in_a_sandbox_that_had_it_switched_off(
    node: Node, pod: Namespace, dataplane: LinuxDataplane
) -> None:
    for scope in ("all", "default", "lo"):
        pod.set_sysctl(f"net/ipv6/conf/{scope}/disable_ipv6", 1)
    dataplane.add(link_request(pod, IPV6))
    assert node.pings("fd00:10:244::2a40")


def test_ipv6_works_on_a_host_that_has_it_switched_off_for_new_links(
    node: Node, pod: Namespace, dataplane: LinuxDataplane
) -> None:
    node.set_sysctl("net/ipv6/conf/default/disable_ipv6", 1)
    dataplane.add(link_request(pod, IPV6))
    assert node.pings("fd00:10:244::2a40")


def test_no_address_is_tentative(node: Node, pod: Namespace, dataplane: LinuxDataplane) -> None:
    dataplane.add(link_request(pod, IPV6))
    infos = [info for item in pod.ip_json("addr", "show", "dev", "eth0") for info in item["addr_info"]]
    (ours,) = [info for info in infos if info["scope"] == "global"]
    assert not ours.get("tentative")


def test_address_is_waited_for_while_it_is_tentative(
    node: Node, pod: Namespace, dataplane: LinuxDataplane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel approves addresses in the background; a busy one takes its time."""
    real = Rtnl.addresses
    looks: list[bool] = []

    def slow(self: Rtnl, index: int, version: int) -> list[AssignedAddress]:
        found = real(self, index, version)
        if not any(str(address.ip).startswith("fd00") for address in found):
            return found
        looks.append(len(looks) < 3)
        return [AssignedAddress(address.ip, address.prefix_length, looks[-1]) for address in found]

    monkeypatch.setattr(Rtnl, "addresses", slow)
    monkeypatch.setattr(linux, "ADDRESS_SECONDS", LONG)
    dataplane.add(link_request(pod))
    assert looks == [True, True, True, False]
    monkeypatch.setattr(linux, "ADDRESS_SECONDS", 0.0)
    dataplane.remove(pod.path, "eth0", None)
    looks.clear()
    with pytest.raises(DataplaneError, match=r"could not be used within|no IPv6 link-local"):
        dataplane.add(link_request(pod))
    assert node.links() == []


def test_host_routes_can_be_left_to_another_program(node: Node, pod: Namespace, dataplane: LinuxDataplane) -> None:
    dataplane.add(link_request(pod, host_routes=False))
    assert "192.168.226.64" not in {route["dst"] for route in node.routes()}


def test_the_calling_thread_stays_on_the_host(node: Node, pod: Namespace, dataplane: LinuxDataplane) -> None:
    dataplane.add(link_request(pod))
    assert dataplane.same_namespace(node.path)
    assert not dataplane.same_namespace(pod.path)
    assert dataplane.same_namespace("/proc/self/task/../ns/net") is dataplane.same_namespace("/proc/self/ns/net")
    assert not dataplane.same_namespace("/nowhere")
    assert not dataplane.same_namespace("")
