"""Removing a link: repeatable, bounded, and by name only where asked (cni.md §8.1, rulings 1, report P16)."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from calico_cni.dataplane import linux
from calico_cni.dataplane.api import ContainerLink, DataplaneError
from calico_cni.dataplane.linux import LinuxDataplane
from tests.clock import LONG, SOON, seconds_since
from tests.link_requests import HOST_NAME, link_request
from tests.netns_tools import Namespace, Node


def test_both_ends_and_the_host_routes_go(node: Node, pod: Namespace, dataplane: LinuxDataplane) -> None:
    dataplane.add(link_request(pod))
    dataplane.remove(pod.path, "eth0", None)
    assert node.links() == pod.links() == node.routes() == []


def test_what_is_gone_is_fine(node: Node, pod: Namespace, dataplane: LinuxDataplane) -> None:
    for netns in (pod.path, "/nowhere", ""):
        dataplane.remove(netns, "eth0", None)
        dataplane.remove(netns, "eth0", HOST_NAME)


def test_only_the_named_link_of_the_sandbox_goes(node: Node, pod: Namespace, dataplane: LinuxDataplane) -> None:
    dataplane.add(link_request(pod, "10.1.1.1/32"))
    node.ip("link", "add", "calinet1", "type", "veth", "peer", "name", "net1", "netns", pod.name)
    dataplane.remove(pod.path, "net1", None)
    assert [link["ifname"] for link in pod.links()] == ["eth0"]
    assert [link["ifname"] for link in node.links()] == [HOST_NAME]
    assert {route["dst"] for route in pod.ip_json("-4", "route")} == {"default", "169.254.1.1"}


def test_four_deletes_of_a_sandbox_whose_name_is_gone(node: Node, pod: Namespace, dataplane: LinuxDataplane) -> None:
    """P16: the name of the namespace is gone, the pair still stands because a process keeps the namespace."""
    dataplane.add(link_request(pod))
    pod.settle_in()
    pod.forget_name()
    assert node.link(HOST_NAME) is not None
    for netns in (pod.path, "", pod.path, ""):
        dataplane.remove(netns, "eth0", HOST_NAME)
        assert node.links() == []


def test_without_the_host_name_a_vanished_sandbox_keeps_its_host_link(
    node: Node, pod: Namespace, dataplane: LinuxDataplane
) -> None:
    dataplane.add(link_request(pod))
    dataplane.remove("/nowhere", "eth0", None)
    dataplane.remove("", "eth0", None)
    assert node.link(HOST_NAME) is not None


def test_path_that_is_no_namespace_is_an_error_but_the_host_link_goes(
    node: Node, pod: Namespace, dataplane: LinuxDataplane, tmp_path: Path
) -> None:
    dataplane.add(link_request(pod))
    plain = tmp_path / "plain"
    plain.touch()
    with pytest.raises(DataplaneError, match=f'^failed to enter netns: unknown FS magic on "{plain}": [0-9a-f]+$'):
        dataplane.remove(str(plain), "eth0", HOST_NAME)
    assert node.links() == []


def test_a_link_that_cannot_be_removed_is_an_error(node: Node, pod: Namespace, dataplane: LinuxDataplane) -> None:
    with pytest.raises(DataplaneError, match=r"^failed to clean up workload's pod interface inside netns: .+"):
        dataplane.remove(pod.path, "lo", None)


def test_where_a_link_of_the_sandbox_leads(node: Node, pod: Namespace, dataplane: LinuxDataplane) -> None:
    """That is how DEL tells its own link from one of another attachment, and from what it never made."""
    dataplane.add(link_request(pod))
    other = node.sandbox()
    node.ip("link", "add", "far0", "netns", pod.name, "type", "veth", "peer", "name", "far1", "netns", other.name)
    pod.ip("link", "add", "in0", "type", "veth", "peer", "name", "in1")
    assert dataplane.container_link(pod.path, "eth0") == ContainerLink("veth", HOST_NAME)
    assert dataplane.container_link(pod.path, "far0") == ContainerLink("veth")
    assert dataplane.container_link(pod.path, "in0") == ContainerLink("veth")
    loopback = dataplane.container_link(pod.path, "lo")
    assert loopback is not None and not loopback.is_pair
    assert dataplane.container_link(pod.path, "eth1") is None
    assert dataplane.container_link("/nowhere", "eth0") is None


def test_a_device_that_never_goes_away_ends_the_wait(
    node: Node, pod: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    monkeypatch.setattr(linux, "undo_pair", lambda *_: released.wait(LONG))
    started = time.monotonic()
    try:
        with pytest.raises(DataplaneError, match=f"^timed out deleting device in netns {pod.path}$"):
            LinuxDataplane(remove_seconds=0.2).remove(pod.path, "eth0", None)
        assert seconds_since(started) < SOON
    finally:
        released.set()
        for thread in threading.enumerate():
            if thread.name == "dataplane-remove":
                thread.join(LONG)


def test_the_calling_thread_stays_on_the_host(node: Node, pod: Namespace, dataplane: LinuxDataplane) -> None:
    dataplane.add(link_request(pod))
    dataplane.remove(pod.path, "eth0", HOST_NAME)
    assert dataplane.same_namespace(node.path)
