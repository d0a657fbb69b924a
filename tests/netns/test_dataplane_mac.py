"""P18: a device manager rewrites the hardware address of new links (systemd/systemd#3374)."""

from __future__ import annotations

import re
import subprocess
import threading
import time
from typing import Any

import pytest

from calico_cni.dataplane import pair
from calico_cni.dataplane.api import DataplaneError
from calico_cni.dataplane.linux import LinuxDataplane
from calico_cni.dataplane.netlink import NetlinkRefused
from calico_cni.dataplane.rtnl import Rtnl
from tests.clock import LONG
from tests.disturbers import LINK_LOCAL, WANTED, rewriter
from tests.link_requests import HOST_NAME, link_request
from tests.netns_tools import Namespace, Node


def assert_right(node: Node) -> None:
    link = node.link(HOST_NAME)
    assert link is not None
    assert link["address"] == WANTED
    assert [a for a in node.addresses(HOST_NAME) if a.startswith("fe80")] == [LINK_LOCAL]


@pytest.mark.parametrize("delay", [0.0, 0.005, 0.05])
def test_address_that_is_rewritten_once_is_set_again(delay: float, node: Node, pod: Namespace) -> None:
    with rewriter(node, delay=delay, times=1) as written:
        LinuxDataplane().add(link_request(pod))
        assert written
        assert_right(node)
    gateways = [route["gateway"] for route in pod.ip_json("-6", "route", "show", "default")]
    assert gateways == [LINK_LOCAL]
    assert node.pings("fd00:10:244::2a40")


def test_address_that_is_rewritten_a_few_times(node: Node, pod: Namespace) -> None:
    with rewriter(node, delay=0.02, times=5) as written:
        LinuxDataplane().add(link_request(pod))
        assert len(written) == 5
        assert_right(node)


def test_address_that_is_rewritten_for_ever_is_an_error(node: Node, pod: Namespace) -> None:
    with rewriter(node, delay=0.01, times=100_000) as written:
        with pytest.raises(DataplaneError, match=f"did not stay {WANTED} within 5 s"):
            LinuxDataplane().add(link_request(pod))
        assert len(written) >= 2
    assert node.links() == pod.links() == []


def test_address_that_the_kernel_refuses_is_a_warning(
    node: Node, pod: Namespace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise NetlinkRefused(95)

    real = pair.make_veth

    def with_other_address(*args: Any) -> None:
        monkeypatch.setattr(pair, "HOST_MAC", "02:00:00:00:00:07")
        real(*args)
        monkeypatch.setattr(pair, "HOST_MAC", WANTED)

    monkeypatch.setattr(pair, "make_veth", with_other_address)
    monkeypatch.setattr(Rtnl, "set_mac", refuse)
    LinuxDataplane().add(link_request(pod))
    assert "keeps its own hardware address" in caplog.text
    gateways = [route["gateway"] for route in pod.ip_json("-6", "route", "show", "default")]
    assert gateways == ["fe80::ff:fe00:7"]
    assert node.pings("fd00:10:244::2a40")


def test_address_is_asked_for_at_birth(node: Node, pod: Namespace, dataplane: LinuxDataplane) -> None:
    """A device manager leaves alone what was asked for: no event ever shows another address."""
    with subprocess.Popen(
        ["ip", "-o", "monitor", "link"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as monitor:
        try:
            # Until the monitor prints an event it may not have begun to listen.
            ready = threading.Event()
            lines: list[str] = []

            def read() -> None:
                assert monitor.stdout is not None
                for line in monitor.stdout:
                    lines.append(line)
                    ready.set()

            reader = threading.Thread(target=read)
            reader.start()
            while not ready.wait(0.01):
                node.ip("link", "set", "lo", "down")
                node.ip("link", "set", "lo", "up")
            dataplane.add(link_request(pod))
            dataplane.remove(pod.path, "eth0", None)
            node.ip("link", "add", "marker", "type", "veth", "peer", "name", "marker2")
            deadline = time.monotonic() + LONG
            while not any("marker2" in line for line in list(lines)) and time.monotonic() < deadline:
                time.sleep(0.01)
        finally:
            monitor.kill()
            reader.join()
    seen = {match[1] for line in lines if HOST_NAME in line and (match := re.search(r"link/ether (\S+)", line))}
    assert seen == {WANTED}
