"""Every shipped network configuration, driven by cnitool, CNI's own reference runtime."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.installed import EXAMPLES, IPV4_POOL, IPV6_POOL, Site, cnitool, fresh_site, network_namespace, run

pytestmark = pytest.mark.usefixtures("private_host")

HOST_LOCAL = ("10.89.0.0/24", "fd00:89::/64")


@dataclass(frozen=True, slots=True)
class Expected:
    """What an attachment of an example looks like."""

    networks: tuple[str, ...]  #: the ranges its addresses come from, in order
    mtu: int = 1500
    environ: Mapping[str, str] = field(default_factory=dict)  #: what the runtime adds
    address: str | None = None  #: the one address it must be
    ours: bool = True  #: the addresses are in our store


EXPECTED = {
    "10-sqlite-ipv4.conflist": Expected((IPV4_POOL,)),
    "11-sqlite-dual-stack.conflist": Expected((IPV4_POOL, IPV6_POOL), mtu=1450),
    "12-sqlite-status-gc.conflist": Expected((IPV4_POOL,)),
    "13-host-local.conflist": Expected(HOST_LOCAL, ours=False),
    "14-fixed-ip.conflist": Expected(
        (IPV4_POOL,), environ={"CAP_ARGS": '{"ips": ["10.89.64.77/32"]}'}, address="10.89.64.77"
    ),
}


def test_every_example_is_expected_here() -> None:
    assert set(EXPECTED) == {path.name for path in EXAMPLES.glob("*.conf*")}


@dataclass(frozen=True, slots=True)
class Runtime:
    """cnitool on a site. Its cache of results is the site's own: it has no setting for that, so a mount hides it."""

    site: Site
    network: str
    environ: Mapping[str, str]

    def __call__(self, verb: str, namespace: Path) -> str:
        cache = self.site.folder / "cni-cache"
        cache.mkdir(exist_ok=True)
        private = 'mkdir -p /var/lib/cni && mount --bind "$0" /var/lib/cni && exec "$@"'
        return run(
            *("unshare", "--mount", "sh", "-c", private, cache),
            *(cnitool(), verb, self.network, namespace),
            environ={
                "NETCONFPATH": str(self.site.configurations),
                "CNI_PATH": str(self.site.plugins),
                **self.environ,
            },
        )


def inside(namespace: Path) -> dict[str, Any]:
    """Return eth0 as the kernel shows it inside a namespace; empty when there is none."""
    done = subprocess.run(
        ["ip", "-json", "-netns", namespace.name, "address", "show", "dev", "eth0"],
        capture_output=True,
        text=True,
        check=False,
    )
    found: list[dict[str, Any]] = json.loads(done.stdout or "[]")
    return found[0] if found else {}


def global_addresses(link: Mapping[str, Any]) -> dict[str, int]:
    return {info["local"]: info["prefixlen"] for info in link["addr_info"] if info["scope"] == "global"}


def container_id(namespace: Path) -> str:
    """Return the container ID that cnitool makes of the path of a namespace."""
    return "cnitool-" + hashlib.sha512(str(namespace).encode()).hexdigest()[:20]


@pytest.mark.parametrize("example", EXPECTED)
def test_add_check_and_del(tmp_path: Path, example: str) -> None:
    expected = EXPECTED[example]
    with network_namespace() as namespace:
        site = fresh_site(tmp_path / "site")
        document = site.install(example)
        runtime = Runtime(site, document["name"], expected.environ)

        result = json.loads(runtime("add", namespace))

        assert result["cniVersion"] == document["cniVersion"]
        link = inside(namespace)
        addresses = global_addresses(link)
        assert link["mtu"] == expected.mtu
        assert [f"{ip}/{length}" for ip, length in addresses.items()] == [ip["address"] for ip in result["ips"]]
        for (ip, length), network in zip(addresses.items(), expected.networks, strict=True):
            assert ipaddress.ip_address(ip) in ipaddress.ip_network(network)
            assert length == ipaddress.ip_address(ip).max_prefixlen
            run("ping", "-c", "1", "-w", "15", ip)
        if expected.address:
            assert list(addresses) == [expected.address]
        handle = f"{document['name']}.{container_id(namespace)}"
        assert site.holders() == (dict.fromkeys(addresses, handle) if expected.ours else {})

        runtime("check", namespace)
        runtime("del", namespace)

        assert inside(namespace) == {}
        assert site.holders() == {}
        assert site.records() == []
        runtime("del", namespace)  # a second one is no error


def test_check_sees_a_lost_address(tmp_path: Path) -> None:
    with network_namespace() as namespace:
        site = fresh_site(tmp_path / "site")
        runtime = Runtime(site, site.install("10-sqlite-ipv4.conflist")["name"], {})
        (address,) = [ip["address"] for ip in json.loads(runtime("add", namespace))["ips"]]
        run("ip", "-netns", namespace.name, "address", "delete", address, "dev", "eth0")
        with pytest.raises(AssertionError, match=address.removesuffix("/32").replace(".", r"\.")):
            runtime("check", namespace)
        runtime("del", namespace)


def test_status_and_gc_of_the_newest_version(tmp_path: Path) -> None:
    """STATUS is silent when an ADD would work, GC makes the runtime delete what it still knew (CNI 1.1.0)."""
    with network_namespace() as namespace:
        site = fresh_site(tmp_path / "site")
        runtime = Runtime(site, site.install("12-sqlite-status-gc.conflist")["name"], {})
        assert runtime("status", namespace) == ""
        runtime("add", namespace)
        runtime("gc", namespace)
        assert inside(namespace) == {}
        assert site.holders() == {}


def test_status_of_a_node_that_cannot_add(tmp_path: Path) -> None:
    with network_namespace() as namespace:
        site = fresh_site(tmp_path / "site")
        runtime = Runtime(site, site.install("12-sqlite-status-gc.conflist")["name"], {})
        site.store.write_text("no database")
        with pytest.raises(AssertionError, match=r"not a database|no database"):
            runtime("status", namespace)
