"""Links and routes that are there already: whose are they? (rulings 1 and 2, report P15)"""

from __future__ import annotations

import pytest

from calico_cni.dataplane import netns
from calico_cni.dataplane.api import AddressInUse, LinkRequest, Peer
from calico_cni.dataplane.linux import LinuxDataplane
from calico_cni.dataplane.netns import census
from calico_cni.dataplane.rtnl import Link, Rtnl
from tests.link_requests import HOST_NAME, link_request
from tests.netns_tools import Namespace, Node

HOLDER = "calif6cb5368383"
ADDRESSES = ["172.25.136.1/32", "fd00:25:136::1/128"]


def hold_route(node: Node, address: str, *, peer: Namespace | None, name: str = HOLDER) -> None:
    """Make a link with a route to the address; its other end in ``peer``, or beside it on the host."""
    place = ["netns", peer.name] if peer is not None else []
    node.ip("link", "add", name, "type", "veth", "peer", "name", "gone0", *place)
    node.ip("link", "set", name, "up")
    node.ip("route", "add", address, "dev", name)


def host_devices_of(node: Node, address: str) -> list[str]:
    wanted = address.partition("/")[0]
    return [route["dev"] for route in node.routes() if route["dst"] == wanted]


@pytest.mark.parametrize("address", ADDRESSES)
def test_route_on_a_link_whose_other_end_is_in_an_empty_namespace(
    address: str, node: Node, pod: Namespace, dataplane: LinuxDataplane
) -> None:
    hold_route(node, address, peer=node.sandbox())
    dataplane.add(link_request(pod, address))
    assert host_devices_of(node, address) == [HOST_NAME]
    assert node.link(HOLDER) is None


@pytest.mark.parametrize("address", ADDRESSES)
def test_route_on_a_link_that_leads_nowhere(
    address: str, node: Node, pod: Namespace, dataplane: LinuxDataplane
) -> None:
    hold_route(node, address, peer=None)
    dataplane.add(link_request(pod, address))
    assert host_devices_of(node, address) == [HOST_NAME]
    assert node.link(HOLDER) is None


@pytest.mark.parametrize("address", ADDRESSES)
def test_route_of_a_live_sandbox_is_never_taken(
    address: str, node: Node, pod: Namespace, dataplane: LinuxDataplane
) -> None:
    other = node.sandbox()
    resident = other.settle_in()
    hold_route(node, address, peer=other)
    with pytest.raises(AddressInUse) as caught:
        dataplane.add(link_request(pod, address))
    error = caught.value
    assert (error.address, error.device, error.holder) == (address.partition("/")[0], HOST_NAME, HOLDER)
    assert str(error).startswith(f"error adding host side routes for interface: {HOST_NAME}, error: route (Ifindex: ")
    assert f"already exists for an interface other than '{HOST_NAME}'" in str(error)
    assert f"Iface: {HOLDER})" in str(error)
    assert str(resident.pid) in error.hint
    assert host_devices_of(node, address) == [HOLDER]
    assert node.link(HOST_NAME) is None
    assert pod.links() == []


def test_live_sandbox_whose_namespace_has_no_name_any_more(
    node: Node, pod: Namespace, dataplane: LinuxDataplane
) -> None:
    other = node.sandbox()
    other.settle_in()
    hold_route(node, ADDRESSES[0], peer=other)
    other.forget_name()
    with pytest.raises(AddressInUse):
        dataplane.add(link_request(pod, ADDRESSES[0]))


@pytest.mark.parametrize("address", ADDRESSES)
def test_route_on_a_link_of_another_program_is_never_taken(
    address: str, node: Node, pod: Namespace, dataplane: LinuxDataplane
) -> None:
    hold_route(node, address, peer=None, name="veth0815")
    with pytest.raises(AddressInUse):
        dataplane.add(link_request(pod, address))
    assert host_devices_of(node, address) == ["veth0815"]


@pytest.mark.parametrize("address", ADDRESSES)
def test_route_without_a_link_is_never_taken(
    address: str, node: Node, pod: Namespace, dataplane: LinuxDataplane
) -> None:
    node.ip("route", "add", "blackhole", address, *(["metric", "1024"] if ":" in address else []))
    with pytest.raises(AddressInUse):
        dataplane.add(link_request(pod, address))
    assert node.links() == []


def test_second_family_gets_its_route_when_the_first_was_there(
    node: Node, pod: Namespace, dataplane: LinuxDataplane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Upstream returns after the first route that exists (cni.md §15 item 4)."""
    from calico_cni.dataplane import linux, routes

    def felix_first(rtnl: Rtnl, host_end: Link, request: LinkRequest, sandbox: netns.Namespace) -> None:
        node.ip("route", "add", ADDRESSES[0], "dev", HOST_NAME, "scope", "link")
        node.ip("route", "add", ADDRESSES[1], "dev", HOST_NAME)
        routes.add_host_routes(rtnl, host_end, request, sandbox)

    monkeypatch.setattr(linux, "add_host_routes", felix_first)
    dataplane.add(link_request(pod, *ADDRESSES))
    for address in ADDRESSES:
        assert host_devices_of(node, address) == [HOST_NAME]


def test_the_long_list_of_routes_holds_many_entries(node: Node, pod: Namespace, dataplane: LinuxDataplane) -> None:
    """The kernel sends a long table in several pieces; the holder is in the last."""
    other = node.sandbox()
    other.settle_in()
    hold_route(node, "10.200.255.255/32", peer=other)
    batch = "\n".join(f"route add 10.200.{n // 250}.{n % 250}/32 dev {HOLDER}" for n in range(2000))
    node.command("sh", "-c", f"ip -batch - <<'END'\n{batch}\nEND")
    with pytest.raises(AddressInUse):
        dataplane.add(link_request(pod, "10.200.255.255/32"))


# --- who stands behind a link -------------------------------------------------------------------------------


def test_peers(node: Node, pod: Namespace, dataplane: LinuxDataplane) -> None:
    empty, lived_in = node.sandbox(), node.sandbox()
    lived_in.settle_in()
    for name, place in (("v-empty", empty), ("v-live", lived_in), ("v-ours", pod)):
        node.ip("link", "add", name, "type", "veth", "peer", "name", "eth9", "netns", place.name)
    node.ip("link", "add", "v-host", "type", "veth", "peer", "name", "v-other")
    node.ip("link", "add", "br9", "type", "bridge")
    expected = {
        "v-empty": (Peer.EMPTY, "eth9", False),
        "v-live": (Peer.INHABITED, "eth9", True),
        "v-ours": (Peer.OURS, "eth9", False),
        "v-host": (Peer.HOST, "v-other", False),
        "br9": (Peer.UNKNOWN, None, True),
    }
    for name, facts in expected.items():
        link = dataplane.host_link(name, pod.path)
        assert link is not None
        assert (link.peer, link.peer_name, link.alive) == facts, name
    assert dataplane.host_link("absent", pod.path) is None
    gone = dataplane.host_link("v-ours", "/nowhere")
    assert gone is not None and gone.peer is Peer.EMPTY


def test_sandbox_of_this_call_is_ours_even_when_somebody_lives_there(
    node: Node, pod: Namespace, dataplane: LinuxDataplane
) -> None:
    pod.settle_in()
    dataplane.add(link_request(pod))
    link, elsewhere = dataplane.host_link(HOST_NAME, pod.path), dataplane.host_link(HOST_NAME, "")
    assert link is not None and link.peer is Peer.OURS
    assert elsewhere is not None and elsewhere.peer is Peer.INHABITED


def test_alternative_names_are_not_names(node: Node, pod: Namespace, dataplane: LinuxDataplane) -> None:
    node.ip("link", "add", "precious", "type", "veth", "peer", "name", "far")
    node.ip("link", "property", "add", "dev", "precious", "altname", HOST_NAME)
    assert dataplane.host_link(HOST_NAME, "") is None
    dataplane.remove("", "eth0", HOST_NAME)
    assert node.link("precious") is not None


def test_census_finds_a_process(node: Node, pod: Namespace) -> None:
    from pathlib import Path

    status = Path(pod.path).stat()
    assert (status.st_dev, status.st_ino) not in census()
    resident = pod.settle_in()
    assert census()[status.st_dev, status.st_ino] == [resident.pid]
