"""CHECK looks at the real state, and says each thing that is wrong (cni.md §2.7)."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from calico_cni.dataplane.linux import LinuxDataplane
from calico_cni.dataplane.rtnl import Rtnl
from tests.clock import LONG
from tests.link_requests import HOST_NAME, IPV4, expectation_of, link_request
from tests.netns_tools import Namespace, Node, inside

Damage = Callable[[Node, Namespace], object]

DAMAGES: list[tuple[str, Damage, str]] = [
    ("link gone", lambda n, p: p.ip("link", "del", "eth0"), f"the host has no link {HOST_NAME}"),
    ("pod end down", lambda n, p: p.ip("link", "set", "eth0", "down"), "link eth0 of the sandbox is down"),
    ("pod end renamed", lambda n, p: rename(p), "the sandbox has no link eth0"),
    ("host end down", lambda n, p: n.ip("link", "set", HOST_NAME, "down"), f"link {HOST_NAME} of the host is down"),
    (
        "mac changed",
        lambda n, p: p.ip("link", "set", "eth0", "address", "02:00:00:00:00:01"),
        "link eth0 of the sandbox has hardware address 02:00:00:00:00:01, not",
    ),
    (
        "IPv4 address gone",
        lambda n, p: p.ip("addr", "del", "192.168.226.64/32", "dev", "eth0"),
        "link eth0 of the sandbox lacks address 192.168.226.64/32",
    ),
    (
        "IPv6 address gone",
        lambda n, p: p.ip("addr", "del", "fd00:10:244::2a40/128", "dev", "eth0"),
        "link eth0 of the sandbox lacks address fd00:10:244::2a40/128",
    ),
    (
        "IPv4 default route gone",
        lambda n, p: p.ip("-4", "route", "del", "default"),
        "the sandbox has no IPv4 default route via 169.254.1.1 on eth0",
    ),
    (
        "IPv4 default route elsewhere",
        lambda n, p: (p.ip("-4", "route", "del", "default"), p.ip("route", "add", "default", "dev", "eth0")),
        "the sandbox has no IPv4 default route via 169.254.1.1 on eth0",
    ),
    (
        "IPv6 default route gone",
        lambda n, p: p.ip("-6", "route", "del", "default"),
        "the sandbox has no IPv6 default route via fe80::ecee:eeff:feee:eeee on eth0",
    ),
    (
        "host route gone",
        lambda n, p: n.ip("route", "del", "192.168.226.64"),
        f"the host has no route to 192.168.226.64 on {HOST_NAME}",
    ),
    (
        "IPv6 host route gone",
        lambda n, p: n.ip("-6", "route", "del", "fd00:10:244::2a40"),
        f"the host has no route to fd00:10:244::2a40 on {HOST_NAME}",
    ),
]


def rename(pod: Namespace) -> None:
    pod.ip("link", "set", "eth0", "down")
    pod.ip("link", "set", "eth0", "name", "eth1")


def test_nothing_to_complain_of(node: Node, pod: Namespace, dataplane: LinuxDataplane) -> None:
    request = link_request(pod)
    result = dataplane.add(request)
    assert dataplane.check(expectation_of(request, mac=result.mac.upper())) == []


@pytest.mark.parametrize(("damage", "complaint"), [pytest.param(d, c, id=i) for i, d, c in DAMAGES])
def test_damage_is_named(damage: Damage, complaint: str, node: Node, pod: Namespace, dataplane: LinuxDataplane) -> None:
    request = link_request(pod)
    result = dataplane.add(request)
    damage(node, pod)
    complaints = dataplane.check(expectation_of(request, mac=result.mac))
    assert any(line.startswith(complaint) for line in complaints), complaints


def test_custom_routes_need_no_default_route(node: Node, pod: Namespace, dataplane: LinuxDataplane) -> None:
    request = link_request(pod, routes=("10.5.0.0/16",))
    dataplane.add(request)
    assert dataplane.check(expectation_of(request, default_routes=False)) == []
    assert len(dataplane.check(expectation_of(request))) == 2


def test_sandbox_that_is_gone(node: Node, pod: Namespace, dataplane: LinuxDataplane) -> None:
    request = link_request(pod)
    dataplane.add(request)
    pod.forget_name()
    complaints = dataplane.check(expectation_of(request))
    assert f'failed to Statfs "{pod.path}": no such file or directory' in complaints


@pytest.mark.parametrize("question", ["routes_of", "addresses"])
def test_links_that_go_while_they_are_looked_at(
    node: Node, pod: Namespace, dataplane: LinuxDataplane, monkeypatch: pytest.MonkeyPatch, question: str
) -> None:
    """The kernel takes the links of a sandbox that ended away whenever it comes to it."""
    request = link_request(pod)
    dataplane.add(request)
    really = getattr(Rtnl, question)

    def gone(rtnl: Rtnl, index: int, version: int) -> object:
        with inside(node.path):
            if node.link(HOST_NAME) is not None:
                node.ip("link", "del", HOST_NAME)
        return really(rtnl, index, version)

    monkeypatch.setattr(Rtnl, question, gone)
    complaints = dataplane.check(expectation_of(request, patience=0.0))
    assert f"the sandbox has no link {request.container_name}" in complaints


def test_the_host_side_may_take_a_moment(node: Node, pod: Namespace, dataplane: LinuxDataplane) -> None:
    """Felix takes a route away and puts it back while CHECK looks."""
    request = link_request(pod, IPV4)
    dataplane.add(request)
    node.ip("route", "del", "192.168.226.64")

    def put_back() -> None:
        with inside(node.path):
            node.ip("route", "add", "192.168.226.64", "dev", HOST_NAME, "scope", "link")

    felix = threading.Timer(0.3, put_back)
    felix.start()
    try:
        assert dataplane.check(expectation_of(request, patience=LONG)) == []
    finally:
        felix.join()
