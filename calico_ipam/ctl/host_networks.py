"""Which networks this host uses, from what the kernel shows in /proc: no netlink, no other program."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from calico_ipam.model.addresses import Network, make_network, parse_network

PROC_NET = Path("/proc/net")


def networks_in_use(proc: Path = PROC_NET) -> list[Network]:
    """Return the networks of routes and the addresses of this host, the default route left out.

    What cannot be read counts as nothing: this is advice for a first choice, not a rule.
    """
    return [
        network
        for network in (*_routes4(proc), *_addresses4(proc), *_routes6(proc))
        if network.prefixlen and not network.is_loopback and not network.is_link_local and not network.is_multicast
    ]


def _lines(path: Path) -> list[list[str]]:
    try:
        return [line.split() for line in path.read_text(encoding="ascii", errors="replace").splitlines()]
    except OSError:
        return []


def _routes4(proc: Path) -> Iterator[Network]:
    for fields in _lines(proc / "route")[1:]:
        if len(fields) > 7:
            base, mask = (_host_order(fields[index]) for index in (1, 7))
            length = mask.bit_count()
            yield make_network(4, base & mask, length)


def _host_order(text: str) -> int:
    """Return an address that the kernel printed as a number in its own byte order."""
    return int.from_bytes(int(text, 16).to_bytes(4, sys.byteorder), "big")


def _addresses4(proc: Path) -> Iterator[Network]:
    """Yield the host's own addresses: a tunnel end may have one without a route."""
    leaf = ""
    for fields in _lines(proc / "fib_trie"):
        if fields[:1] == ["|--"] and len(fields) == 2:
            leaf = fields[1]
        elif fields[:3] == ["/32", "host", "LOCAL"] and leaf:
            yield parse_network(leaf)


def _routes6(proc: Path) -> Iterator[Network]:
    for fields in _lines(proc / "ipv6_route"):
        if len(fields) > 2 and fields[-1] != "lo":
            yield make_network(6, int(fields[0], 16), int(fields[1], 16))
