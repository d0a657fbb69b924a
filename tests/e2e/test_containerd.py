"""A container of the distribution's containerd, networked by our plugins from its own CNI folders (rulings 33, 34)."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.containerd import Container, busybox_rootfs, started
from tests.installed import fresh_site, run
from tests.private_host import IPV4

pytestmark = [pytest.mark.timeout(180), pytest.mark.usefixtures("private_host")]


def address_of(container: Container, family: str = "inet") -> str:
    """Return the address on eth0 inside, prefix length included."""
    shown = container.run("/bin/ip", "address", "show", "dev", "eth0", "scope", "global")
    (address,) = re.findall(rf"{family} (\S+)", shown)
    return str(address)


@pytest.mark.parametrize("example", ["10-sqlite-ipv4.conflist", "11-sqlite-dual-stack.conflist"])
def test_a_container_gets_an_address_and_talks(tmp_path: Path, example: str) -> None:
    site = fresh_site(tmp_path / "site")
    network = site.install(example)["name"]
    rootfs = busybox_rootfs(tmp_path / "rootfs")
    with started(tmp_path / "containerd", configurations=site.configurations, plugins=site.plugins) as runtime:
        with runtime.container("one", rootfs) as container:
            address = address_of(container)
            ip = address.removesuffix("/32")
            assert address == f"{ip}/32"
            assert site.holders()[ip] == f"{network}.{runtime.namespace}-one"
            assert container.run("/bin/ip", "route").splitlines() == [
                "default via 169.254.1.1 dev eth0 ",
                "169.254.1.1 dev eth0 scope link ",
            ]
            assert "1 packets received" in container.run("/bin/ping", "-c", "1", "-W", "15", IPV4)
            run("ping", "-c", "1", "-w", "15", ip)
            assert host_link(ip).startswith("cali")
            if "dual" in example:
                ipv6 = address_of(container, "inet6").removesuffix("/128")
                assert site.holders()[ipv6] == f"{network}.{runtime.namespace}-one"
                run("ping", "-6", "-c", "1", "-w", "15", ipv6)

            with runtime.container("two", rootfs) as other:
                assert address_of(other) != address
            assert set(site.holders().values()) == {f"{network}.{runtime.namespace}-one"}, (
                "only the stopped one is gone"
            )
            run("ping", "-c", "1", "-w", "15", ip)

        assert site.holders() == {}
        assert site.records() == []
        assert json.loads(run("ip", "-json", "route", "show", ip)) == []
        assert "is not assigned" in site.ipamctl("ipam", "show", "--ip", ip)


def host_link(ip: str) -> str:
    """Return the link that the host's route to an address goes out of."""
    (route,) = json.loads(run("ip", "-json", "route", "show", ip))
    return str(route["dev"])


def test_a_container_that_is_refused_leaves_nothing(tmp_path: Path) -> None:
    """Two sandboxes whose IDs agree in eleven characters would share a host link: refuse the second (rulings 2)."""
    site = fresh_site(tmp_path / "site")
    site.install("10-sqlite-ipv4.conflist")
    rootfs = busybox_rootfs(tmp_path / "rootfs")
    with started(tmp_path / "containerd", configurations=site.configurations, plugins=site.plugins) as runtime:
        with runtime.container("container1", rootfs) as first:
            address = address_of(first)
            refused = runtime.refused("container2", rootfs)
            assert "cali" in refused and f"{runtime.namespace}-container1" in refused
            assert list(site.holders()) == [address.removesuffix("/32")]
            run("ping", "-c", "1", "-w", "15", address.removesuffix("/32"))
        assert site.holders() == {}
