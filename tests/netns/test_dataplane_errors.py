"""Bad input and half-way failures: one sentence, and nothing left behind (cni.md §8, §15 item 17)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from calico_cni.dataplane import linux, pair, sysctl
from calico_cni.dataplane.api import DataplaneError, LinkRequest
from calico_cni.dataplane.linux import LinuxDataplane, link_local_of, parse_mac
from calico_cni.dataplane.netlink import NetlinkRefused
from tests.link_requests import HOST_NAME, IPV4, link_request
from tests.netns_tools import Namespace, Node, host_state, sandbox_state, wait_for


def refused(dataplane: LinuxDataplane, request: LinkRequest) -> DataplaneError:
    with pytest.raises(DataplaneError) as caught:
        dataplane.add(request)
    return caught.value


def elsewhere(request: LinkRequest, netns: str) -> LinkRequest:
    return LinkRequest(request.host_name, request.container_name, netns, request.addresses, request.routes)


def test_namespace_that_does_not_exist(node: Node, pod: Namespace, dataplane: LinuxDataplane) -> None:
    error = refused(dataplane, elsewhere(link_request(pod), "/var/run/netns/nowhere"))
    assert str(error) == 'failed to Statfs "/var/run/netns/nowhere": no such file or directory'


def test_path_that_is_no_namespace(node: Node, pod: Namespace, dataplane: LinuxDataplane, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.touch()
    error = refused(dataplane, elsewhere(link_request(pod), str(plain)))
    assert str(error).startswith(f'unknown FS magic on "{plain}": ')
    assert int(str(error).rpartition(" ")[2], 16) > 0


@pytest.mark.timeout(20)
def test_pipe_that_nobody_writes_to_does_not_hang_the_call(
    node: Node, pod: Namespace, dataplane: LinuxDataplane, tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert str(refused(dataplane, elsewhere(link_request(pod), str(pipe)))).startswith("unknown FS magic on")


@pytest.mark.parametrize("path", ["/proc/self/ns/pid", "/proc/self/ns", "/dev/null"])
def test_other_things_than_network_namespaces(path: str, node: Node, pod: Namespace, dataplane: LinuxDataplane) -> None:
    assert str(refused(dataplane, elsewhere(link_request(pod), path))).startswith("unknown FS magic on")


def test_interface_name_taken_in_the_sandbox(node: Node, pod: Namespace, dataplane: LinuxDataplane) -> None:
    pod.ip("link", "add", "eth0", "type", "veth", "peer", "name", "x1")
    error = refused(dataplane, link_request(pod))
    assert str(error) == "file exists"
    assert node.links() == []
    assert {link["ifname"] for link in pod.links()} == {"eth0", "x1"}


def test_host_name_taken_is_refused_unless_it_may_be_replaced(
    node: Node, pod: Namespace, dataplane: LinuxDataplane
) -> None:
    node.ip("link", "add", HOST_NAME, "type", "veth", "peer", "name", "stale0")
    before = node.link(HOST_NAME)
    assert "already exists" in str(refused(dataplane, link_request(pod)))
    assert node.link(HOST_NAME) == before
    dataplane.add(link_request(pod, replace_existing=True))
    assert [link["ifname"] for link in node.links()] == [HOST_NAME]


@pytest.mark.parametrize("written", ["garbage", "ca:fe", "", "ca:fe:ca:fe:ca:fe:00:00", "zz:fe:ca:fe:ca:fe"])
def test_hardware_address_that_is_none(written: str, node: Node, pod: Namespace, dataplane: LinuxDataplane) -> None:
    assert "invalid MAC address" in str(refused(dataplane, link_request(pod, mac=written)))
    assert node.links() == pod.links() == []


def test_multicast_hardware_address_is_refused_by_the_kernel(
    node: Node, pod: Namespace, dataplane: LinuxDataplane
) -> None:
    error = refused(dataplane, link_request(pod, mac="01:00:5e:00:00:01"))
    assert str(error).startswith("failed to set the hardware address of eth0 to 01:00:5e:00:00:01: cannot assign")
    assert node.links() == pod.links() == []


def test_mtu_that_no_link_can_have(node: Node, pod: Namespace, dataplane: LinuxDataplane) -> None:
    refused(dataplane, link_request(pod, mtu=10_000_000))
    assert node.links() == pod.links() == []


@pytest.mark.parametrize("sizes", [{"mtu": 1 << 32}, {"queues": 1 << 40}])
def test_sizes_that_no_request_can_hold(
    sizes: dict[str, Any], node: Node, pod: Namespace, dataplane: LinuxDataplane
) -> None:
    with pytest.raises(DataplaneError, match="is more than any link can have"):
        dataplane.add(link_request(pod, **sizes))
    assert node.links() == pod.links() == []


def test_the_same_route_twice_is_fatal(node: Node, pod: Namespace, dataplane: LinuxDataplane) -> None:
    error = refused(dataplane, link_request(pod, IPV4, routes=("0.0.0.0/0", "0.0.0.0/0")))
    assert str(error) == "failed to add IPv4 route for 0.0.0.0/0 via 169.254.1.1: file exists"
    assert node.links() == pod.links() == []


def test_the_same_address_twice_is_fatal(node: Node, pod: Namespace, dataplane: LinuxDataplane) -> None:
    error = refused(dataplane, link_request(pod, IPV4, IPV4))
    assert "failed to add address 192.168.226.64 to eth0 in the sandbox: file exists" in str(error)
    assert node.links() == pod.links() == []


def test_setting_that_the_kernel_lacks_ends_the_call_if_it_is_needed(
    node: Node, pod: Namespace, dataplane: LinuxDataplane, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = sysctl.Setting("net/ipv4/conf/{link}/no_such_setting", 1)
    monkeypatch.setattr(sysctl, "HOST_END", sysctl.HOST_END | {4: (missing,)})
    error = refused(dataplane, link_request(pod, IPV4))
    path = f"/proc/sys/net/ipv4/conf/{HOST_NAME}/no_such_setting"
    assert str(error) == f"failed to set {path} to 1: no such file or directory"
    assert node.links() == pod.links() == []


def test_setting_that_is_not_needed_is_only_logged(
    node: Node,
    pod: Namespace,
    dataplane: LinuxDataplane,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    missing = sysctl.Setting("net/ipv4/conf/{link}/no_such_setting", 1, needed=False)
    monkeypatch.setattr(sysctl, "HOST_END", sysctl.HOST_END | {None: (missing,)})
    dataplane.add(link_request(pod, IPV4))
    assert "no_such_setting" in caplog.text


def test_second_interface_of_one_sandbox_is_refused_and_the_first_untouched(
    node: Node, pod: Namespace, dataplane: LinuxDataplane
) -> None:
    """P19: the plugin refuses it before it allocates anything; this is the second line."""
    dataplane.add(link_request(pod))
    # The kernel gives both ends a link-local address some time after they are up, and its route after the address.
    wait_for(lambda: any(r["dst"] == "fe80::/64" for r in pod.routes()), "a link-local address")
    wait_for(lambda: any(r["dst"] == "fe80::/64" for r in node.routes()), "a link-local address")
    before = sandbox_state(pod), host_state(node)
    error = refused(dataplane, link_request(pod, "10.1.1.1/32", name="net1", host_name="calinet1"))
    assert str(error) == "failed to add route inside the container: file exists"
    assert (sandbox_state(pod), host_state(node)) == before


STEPS = (
    "add_pod_routes_ipv4",
    "add_pod_routes_ipv6",
    "add_pod_addresses",
    "add_host_routes",
    "_link_local",
    "_container_end",
)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("failure", [DataplaneError("cut"), NetlinkRefused(5), KeyboardInterrupt()])
def test_a_failure_at_any_step_leaves_nothing(
    step: str,
    failure: BaseException,
    node: Node,
    pod: Namespace,
    dataplane: LinuxDataplane,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def cut(*_: object) -> None:
        raise failure

    before = sandbox_state(pod)["links"]
    monkeypatch.setattr(linux, step, cut)
    expected = KeyboardInterrupt if isinstance(failure, KeyboardInterrupt) else DataplaneError
    with pytest.raises(expected):
        dataplane.add(link_request(pod))
    assert node.links() == []
    assert sandbox_state(pod)["links"] == before == []
    assert node.routes() == pod.routes() == []
    assert dataplane.same_namespace(node.path)
    monkeypatch.undo()
    dataplane.add(link_request(pod))


def test_a_pair_that_cannot_be_undone_is_reported(
    node: Node, pod: Namespace, dataplane: LinuxDataplane, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*_: object) -> None:
        raise NetlinkRefused(16)

    monkeypatch.setattr(linux, "undo_pair", cut)
    error = refused(dataplane, link_request(pod, IPV4, mac="garbage"))
    assert error.left_behind
    assert "invalid MAC address" in str(error)
    assert HOST_NAME in error.hint


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), DataplaneError("no answer")])
def test_a_pair_of_which_it_is_unknown_whether_it_was_made(
    failure: BaseException, node: Node, pod: Namespace, dataplane: LinuxDataplane, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = pair.make_veth

    def made_but_cut(*args: Any) -> None:
        real(*args)
        raise failure

    monkeypatch.setattr(pair, "make_veth", made_but_cut)
    with pytest.raises(type(failure)):
        dataplane.add(link_request(pod))
    assert node.links() == pod.links() == []


def test_host_end_that_is_renamed_at_once(
    node: Node, pod: Namespace, dataplane: LinuxDataplane, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = pair.make_veth

    def made_and_renamed(*args: Any) -> None:
        real(*args)
        node.ip("link", "set", HOST_NAME, "name", "ens7")

    monkeypatch.setattr(pair, "make_veth", made_and_renamed)
    assert "vanished" in str(refused(dataplane, link_request(pod)))
    assert node.links() == pod.links() == []


def test_netkit_that_this_kernel_lacks_becomes_veth(node: Node, pod: Namespace, dataplane: LinuxDataplane) -> None:
    dataplane.add(link_request(pod, device_type="netkit"))
    link = node.link(HOST_NAME)
    assert link is not None
    assert link["linkinfo"]["info_kind"] in ("veth", "netkit")


@pytest.mark.parametrize(("code", "fatal"), [(95, False), (22, True), (17, True), (1, True)])
def test_only_a_missing_netkit_falls_back(
    code: int,
    fatal: bool,
    node: Node,
    pod: Namespace,
    dataplane: LinuxDataplane,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def cut(*_: object) -> None:
        raise NetlinkRefused(code)

    monkeypatch.setattr(pair, "make_netkit", cut)
    request = link_request(pod, device_type="netkit")
    if fatal:
        refused(dataplane, request)
        assert node.links() == pod.links() == []
    else:
        dataplane.add(request)


def test_link_local_addresses() -> None:
    assert str(link_local_of("ee:ee:ee:ee:ee:ee")) == "fe80::ecee:eeff:feee:eeee"
    assert str(link_local_of("00:00:00:00:00:00")) == "fe80::200:ff:fe00:0"
    assert str(link_local_of("11:22:33:44:55:66")) == "fe80::1322:33ff:fe44:5566"


def test_hardware_addresses_are_brought_to_one_form() -> None:
    assert parse_mac("0A-58-0a-f4-00-05") == "0a:58:0a:f4:00:05"
