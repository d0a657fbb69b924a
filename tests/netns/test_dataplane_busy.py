"""P20: a node on which links come and go all the time, and a process that makes thousands of links."""

from __future__ import annotations

import threading

import pytest

from calico_cni.dataplane.linux import LinuxDataplane
from tests.disturbers import noise, nothing_kept
from tests.link_requests import expectation_of, link_request
from tests.netns_tools import Namespace, Node, inside


@pytest.mark.timeout(300)  # the kernel makes and removes links one after the other, those of other tests too
def test_adds_and_deletes_under_noise(node: Node, dataplane: LinuxDataplane) -> None:
    pods = [node.sandbox() for _ in range(10)]
    with noise(node, pairs=100):
        for turn in range(10):
            for number, pod in enumerate(pods):
                address = f"10.50.{turn}.{number}/32"
                request = link_request(pod, address, f"fd50::{turn}:{number}/128", host_name=f"cali{number}")
                result = dataplane.add(request)
                assert dataplane.check(expectation_of(request, mac=result.mac)) == []
            for number, pod in enumerate(pods):
                dataplane.remove(pod.path, "eth0", f"cali{number}")
                assert pod.links() == []
        assert not [link for link in node.links() if link["ifname"].startswith("cali")]


@pytest.mark.timeout(300)
def test_a_thousand_pairs_leave_no_descriptor_and_no_child(node: Node, dataplane: LinuxDataplane) -> None:
    """In eight threads, because each removal waits for the kernel; threads must not disturb each other anyway."""
    pods = [node.sandbox() for _ in range(8)]
    failures: list[BaseException] = []

    def work(number: int, pairs: int) -> None:
        try:
            with inside(node.path):
                for _ in range(pairs):
                    pod, name = pods[number], f"cali{number}"
                    dataplane.add(link_request(pod, f"10.60.0.{number}/32", f"fd60::{number}/128", host_name=name))
                    dataplane.remove(pod.path, "eth0", name)
        except BaseException as error:
            failures.append(error)

    work(0, 1)
    threads = [threading.Thread(target=work, args=(number, 125)) for number in range(len(pods))]
    with nothing_kept():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []
    assert node.links() == node.routes() == []


def test_failures_leave_no_descriptor(node: Node, pod: Namespace, dataplane: LinuxDataplane) -> None:
    with nothing_kept():
        for request in (link_request(pod, mac="garbage"), link_request(pod, mtu=10_000_000)):
            for _ in range(20):
                with pytest.raises(Exception, match="invalid"):
                    dataplane.add(request)
