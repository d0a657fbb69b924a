"""Outbound traffic of a bare host: pods reach the world with the host's address (rulings 22).

Where Calico's Felix runs it does this, and this module must not. Without it, ``"nat_outgoing": true`` in the network
configuration asks for one nftables table of ours: what leaves a pool for anywhere but a pool is masqueraded. The table
is written, as one transaction, and read back by the program ``nft``: pyroute2's classes for nftables need the whole of
that package, and leave intervals and the reading of sets to the caller. Nobody else's rules are touched.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from ipaddress import collapse_addresses

from . import sysctl
from .api import DataplaneError, RouteTarget
from .routes import doing
from .rtnl import Rtnl

TABLE = "calico_ipam_nat"
#: runtimes start plugins with whatever PATH they have themselves
PROGRAM_PATH = "/usr/sbin:/sbin:/usr/local/sbin:/usr/bin:/bin"
NFT_SECONDS = 10.0
#: the address type and keyword of each IP version in nftables
WORDS = {4: ("ipv4_addr", "ip"), 6: ("ipv6_addr", "ip6")}


def masquerade(pools: Sequence[RouteTarget]) -> None:
    """Make the table say exactly this: traffic from ``pools`` to anywhere else takes the host's address.

    Repeatable; without pools the table is removed. The host's uplinks are made to forward, which is never undone: other
    programs may rely on it by then. Raises DataplaneError.
    """
    wanted = {version: _collapsed(pools, version) for version in WORDS}
    if wanted != _current():
        _run("-f", "-", script=_script(wanted))
    for version, networks in wanted.items():
        if networks:
            _forward(version)


def _collapsed(pools: Sequence[RouteTarget], version: int) -> list[str]:
    """Return the pools of one IP version without overlaps, which a set of intervals refuses."""
    mine = [pool for pool in pools if pool.version == version]
    return [str(network) for network in collapse_addresses(mine)]  # type: ignore[type-var]  # all of one version


def _script(wanted: dict[int, list[str]]) -> str:
    """Return the transaction: the table is declared first so that deleting it cannot fail."""
    lines = [f"table inet {TABLE} {{}}", f"delete table inet {TABLE}"]
    if not any(wanted.values()):
        return "\n".join(lines)
    lines.append(f"table inet {TABLE} {{")
    for version, networks in wanted.items():
        if networks:
            lines.append(f"set pools{version} {{ type {WORDS[version][0]}; flags interval;")
            lines.append(f"elements = {{ {', '.join(networks)} }} }}")
    lines.append("chain postrouting { type nat hook postrouting priority 100; policy accept;")
    for version, networks in wanted.items():
        if networks:
            word = WORDS[version][1]
            lines.append(f"{word} saddr @pools{version} {word} daddr != @pools{version} masquerade")
    lines += ["}", "}"]
    return "\n".join(lines)


def _current() -> dict[int, list[str]]:
    """Return the pools that the table holds now, by IP version; nothing where there is no table."""
    found: dict[int, list[str]] = {version: [] for version in WORDS}
    tables = json.loads(_run("-j", "list", "tables"))["nftables"]
    if not any(item.get("table", {}).get("name") == TABLE for item in tables):
        return found
    for item in json.loads(_run("-j", "list", "table", "inet", TABLE))["nftables"]:
        elements = item.get("set")
        for version in WORDS:
            if elements is not None and elements["name"] == f"pools{version}":
                found[version] = [_network(element, version) for element in elements.get("elem", [])]
    return found


def _network(element: object, version: int) -> str:
    if isinstance(element, dict) and "prefix" in element:
        return f"{element['prefix']['addr']}/{element['prefix']['len']}"
    return f"{element}/{32 if version == 4 else 128}"


def _forward(version: int) -> None:
    """Let answers from the world in: they arrive at the uplinks, the links of the default routes."""
    if version == 6:
        # The kernel forwards IPv6 only as a whole, and a host that forwards no longer listens to routers unless it is
        # told to (2): without that it would lose its own default route.
        for name in _uplinks(6):
            if sysctl.read(f"net/ipv6/conf/{name}/accept_ra") == 1:
                sysctl.write(f"net/ipv6/conf/{name}/accept_ra", 2)
        _write_if_other("net/ipv6/conf/all/forwarding")
        return
    for name in _uplinks(4):
        _write_if_other(f"net/ipv4/conf/{name}/forwarding")


def _write_if_other(file: str) -> None:
    if sysctl.read(file) != 1:
        sysctl.write(file, 1)


def _uplinks(version: int) -> list[str]:
    with Rtnl.open() as rtnl, doing("look for the uplink"):
        links = [rtnl.link_at(index) for index in rtnl.default_route_links(version)]
        return [link.name for link in links if link is not None]


def _run(*arguments: str, script: str | None = None) -> str:
    program = shutil.which("nft", path=PROGRAM_PATH)
    if program is None:
        raise DataplaneError(
            "nat_outgoing needs the program nft, which is not installed",
            hint="Install the package nftables, or take nat_outgoing out of the network configuration.",
        )
    try:
        done = subprocess.run(  # noqa: S603  # full path, arguments of our own
            [program, *arguments], input=script, capture_output=True, text=True, timeout=NFT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise DataplaneError(f"nft did not answer within {NFT_SECONDS:.0f} s") from None
    if done.returncode != 0:
        raise DataplaneError(f"nft refused the table {TABLE}: {done.stderr.strip()}")
    return done.stdout
