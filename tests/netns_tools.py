"""Private network namespaces for tests: a "host", its sandboxes, and what ``ip -j`` says about them.

``private_node()`` moves the calling thread into a fresh namespace that plays the host, so that code under test, and
every program it starts, sees an empty host. Names are unique; everything is removed at the end, whatever happens.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.clock import LONG, SOON

CLONE_NEWNET = 0x40000000
RUN_DIR = Path("/run/netns")

LINK_KEYS: tuple[str, ...] = (
    "link",
    "ifname",
    "flags",
    "mtu",
    "qdisc",
    "linkmode",
    "txqlen",
    "link_type",
    "address",
    "broadcast",
)
LINK_KEYS += ("linkinfo", "num_tx_queues", "num_rx_queues")
ADDRESS_KEYS = ("dev", "family", "local", "prefixlen", "scope", "label")
ROUTE_KEYS = ("type", "dst", "gateway", "dev", "protocol", "scope", "metric", "flags")
STEADY_FLAGS = ("BROADCAST", "MULTICAST", "UP", "NOARP", "LOOPBACK", "POINTOPOINT")
POD_SYSCTLS = (
    "net/ipv4/ip_forward",
    "net/ipv6/conf/all/forwarding",
    "net/ipv6/conf/all/disable_ipv6",
    "net/ipv6/conf/default/disable_ipv6",
    "net/ipv6/conf/lo/disable_ipv6",
)
POD_LINK_SYSCTLS = ("accept_dad", "disable_ipv6", "accept_ra")
HOST_LINK_SYSCTLS = (
    "net/ipv4/conf/{}/route_localnet",
    "net/ipv4/conf/{}/proxy_arp",
    "net/ipv4/conf/{}/forwarding",
    "net/ipv4/conf/{}/rp_filter",
    "net/ipv4/conf/{}/arp_ignore",
    "net/ipv4/conf/{}/accept_local",
    "net/ipv4/neigh/{}/proxy_delay",
    "net/ipv6/neigh/{}/proxy_delay",
    "net/ipv6/conf/{}/accept_dad",
    "net/ipv6/conf/{}/disable_ipv6",
    "net/ipv6/conf/{}/proxy_ndp",
    "net/ipv6/conf/{}/forwarding",
    "net/ipv6/conf/{}/accept_ra",
)


def require_root() -> None:
    """Skip the test where namespaces cannot be made."""
    if os.geteuid() != 0:
        pytest.skip("needs root: network namespaces are made and entered")


def unique(prefix: str) -> str:
    """Return a name that no other test uses."""
    return f"{prefix}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


class Namespace:
    """A named network namespace; every method works from whatever namespace the caller is in."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.path = str(RUN_DIR / name)
        self._residents: list[subprocess.Popen[bytes]] = []
        subprocess.run(["ip", "netns", "add", name], check=True)
        self.ip("link", "set", "lo", "up")

    def command(self, *args: str, check: bool = True, timeout: float = LONG) -> subprocess.CompletedProcess[str]:
        """Run a program inside."""
        done = subprocess.run(
            ["nsenter", f"--net={self.path}", "--", *args], capture_output=True, text=True, timeout=timeout
        )
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(args)} in {self.name}: {done.stderr or done.stdout}")
        return done

    def ip(self, *args: str, check: bool = True) -> str:
        """Run ``ip`` inside and return its output."""
        return self.command("ip", *args, check=check).stdout

    def ip_json(self, *args: str) -> list[dict[str, Any]]:
        """Run ``ip -j -d`` inside and return what it says."""
        answer: list[dict[str, Any]] = json.loads(self.ip("-j", "-d", *args) or "[]")
        return [item for item in answer if item]

    def link(self, name: str) -> dict[str, Any] | None:
        """Return a link as ``ip -j -d link`` shows it, or None."""
        return next((link for link in self.links() if link["ifname"] == name), None)

    def links(self) -> list[dict[str, Any]]:
        """Return all links but the loopback."""
        return [link for link in self.ip_json("link", "show") if link["ifname"] != "lo"]

    def addresses(self, link: str) -> dict[str, int]:
        """Return address -> prefix length of a link, both families."""
        found = self.ip_json("addr", "show", "dev", link)
        return {info["local"]: info["prefixlen"] for item in found for info in item["addr_info"]}

    def routes(self) -> list[dict[str, Any]]:
        """Return the main table, IPv4 first."""
        return self.ip_json("-4", "route", "show", "table", "main") + self.ip_json(
            "-6", "route", "show", "table", "main"
        )

    def sysctl(self, file: str) -> int | None:
        """Return a value below /proc/sys as seen inside, or None if the file does not exist."""
        with inside(self.path):
            path = Path("/proc/sys", file)
            return int(path.read_text()) if path.exists() else None

    def set_sysctl(self, file: str, value: int) -> None:
        """Set a value below /proc/sys as seen inside."""
        with inside(self.path):
            Path("/proc/sys", file).write_text(str(value))

    def pings(self, address: str, *, size: int = 56, seconds: int = round(SOON)) -> bool:
        """Tell whether ``address`` answers a ping from inside; one a second until it does, or ``seconds`` are over."""
        until = ("-c", "1", "-W", "1", "-w", str(seconds))
        return self.command("ping", *until, "-M", "do", "-s", str(size), address, check=False).returncode == 0

    def settle_in(self) -> subprocess.Popen[bytes]:
        """Start a process that lives inside until the test ends."""
        process = subprocess.Popen(["nsenter", f"--net={self.path}", "--", "sleep", "600"])
        self._residents.append(process)
        wanted = Path(self.path).stat().st_ino
        seen = Path(f"/proc/{process.pid}/ns/net")
        wait_for(lambda: seen.stat().st_ino == wanted, "the resident entered the namespace")
        return process

    def forget_name(self) -> None:
        """Remove the file that names the namespace; processes inside keep living in it."""
        subprocess.run(["ip", "netns", "del", self.name], check=True)

    def destroy(self) -> None:
        """End the residents and remove the namespace."""
        for process in self._residents:
            process.kill()
            process.wait()
        subprocess.run(["ip", "netns", "del", self.name], check=False, capture_output=True)


class Node(Namespace):
    """The namespace that plays the host, and its sandboxes."""

    def __init__(self) -> None:
        super().__init__(unique("ctn-host"))
        self.sandboxes: list[Namespace] = []

    def sandbox(self) -> Namespace:
        """Make another sandbox."""
        made = Namespace(unique("ctn-pod"))
        self.sandboxes.append(made)
        return made

    def add_uplink(self) -> None:
        """Give the host a default route, as any real one has.

        The kernel answers ARP requests for 169.254.1.1 only if it has a route to it by some other link (proxy ARP).
        """
        self.ip("link", "add", "uplink", "type", "veth", "peer", "name", "uplink-far")
        for name in ("uplink", "uplink-far"):
            self.ip("link", "set", name, "up")
        self.ip("-4", "route", "add", "default", "dev", "uplink")

    def destroy(self) -> None:
        """Remove the sandboxes and the host."""
        for sandbox in self.sandboxes:
            sandbox.destroy()
        super().destroy()


@contextmanager
def private_node() -> Iterator[Node]:
    """Yield a fresh host with the calling thread inside it."""
    node = Node()
    try:
        with inside(node.path):
            yield node
    finally:
        node.destroy()


@contextmanager
def inside(path: str) -> Iterator[None]:
    """Run the body with the calling thread inside a namespace."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        target = os.open(path, os.O_RDONLY)
        try:
            _setns(target)
        finally:
            os.close(target)
        try:
            yield
        finally:
            _setns(home)
    finally:
        os.close(home)


def _setns(fd: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(fd, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def wait_for(condition: Callable[[], bool], what: str, *, seconds: float = SOON) -> None:
    """Wait until a condition holds; fail after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.01)


# --- state in the shape of the recorded vectors -------------------------------------------------------------


def sandbox_state(namespace: Namespace) -> dict[str, Any]:
    """Return links, addresses, routes, neighbours and settings of a sandbox as the recordings hold them."""
    links = namespace.links()
    settings = list(POD_SYSCTLS)
    for link in links:
        settings += [f"net/ipv6/conf/{link['ifname']}/{key}" for key in POD_LINK_SYSCTLS]
    return {
        "links": [_link(link) for link in links],
        "addrs": [
            {"dev": item["ifname"], **_pick(info, ADDRESS_KEYS)}
            for item in namespace.ip_json("addr", "show")
            if item["ifname"] != "lo"
            for info in item["addr_info"]
        ],
        "routes": [_pick(route, ROUTE_KEYS) for route in namespace.routes()],
        "neigh": namespace.ip_json("neigh", "show", "nud", "permanent"),
        "sysctls": {file: namespace.sysctl(file) for file in settings},
    }


def host_state(namespace: Namespace) -> dict[str, Any]:
    """Return the same of a host, by link."""
    routes = namespace.routes()
    state = {}
    for link in namespace.links():
        name = link["ifname"]
        addresses = [info for item in namespace.ip_json("addr", "show", "dev", name) for info in item["addr_info"]]
        own_routes = [route for route in routes if route.get("dev") == name]
        state[name] = {
            "link": _link(link),
            "addrs": [_pick(info, ADDRESS_KEYS) for info in addresses],
            "routes": [_pick(route, tuple(key for key in ROUTE_KEYS if key != "dev")) for route in own_routes],
            "neigh": namespace.ip_json("neigh", "show", "dev", name, "nud", "permanent"),
            "sysctls": {file.format(name): namespace.sysctl(file.format(name)) for file in HOST_LINK_SYSCTLS},
        }
    return state


def _link(link: dict[str, Any]) -> dict[str, Any]:
    picked = _pick(link, LINK_KEYS)
    picked["flags"] = [flag for flag in picked["flags"] if flag in STEADY_FLAGS]
    if "linkinfo" in picked:
        picked["linkinfo"] = _pick(picked["linkinfo"], ("info_kind",))
    return picked


def _pick(item: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: item[key] for key in keys if key in item}
