"""Removing what belongs to nobody. Each thing is looked at once more the moment before (ruling 8)."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from calico_cni.dataplane.api import DataplaneError, Peer
from calico_cni.dataplane.netlink import NetlinkRefused
from calico_cni.dataplane.netns import census
from calico_cni.dataplane.peers import look_behind
from calico_cni.dataplane.rtnl import Rtnl
from calico_gc.sweep import residue as kinds
from calico_gc.sweep.residue import Residue
from calico_ipam.model.addresses import network_of, parse_address

MNT_DETACH = 2
REMOVED = "removed"


class Kept(Exception):
    """It was not removed; ``str()`` says why."""


def remove(residue: Residue, *, felix: bool, held: Callable[[str], bool]) -> str:
    """Remove one leftover; returns what became of it. Raises Kept.

    ``felix``: it runs here, and routes are its business. ``held``: reads afresh whether somebody holds an address.
    """
    try:
        if residue.kind == kinds.CONNTRACK:
            return _forget_connections(residue, held)
        if residue.kind == kinds.ROUTE and felix:
            raise Kept("Felix runs here and removes foreign routes by itself")
        return _REMOVERS[residue.kind](residue)
    except (DataplaneError, NetlinkRefused, OSError, subprocess.SubprocessError) as error:
        raise Kept(str(error)) from None


def _link(residue: Residue) -> str:
    with Rtnl.open() as rtnl:
        index = _abandoned(rtnl, residue.name, residue.mark)
        if index is None:
            return "gone already"
        rtnl.delete_link(index)
    return REMOVED


def _abandoned(rtnl: Rtnl, name: str, mark: str) -> int | None:
    """Return the index of a link behind which still nobody lives, None when it is gone. Raises Kept."""
    link = rtnl.link(name)
    if link is None:
        return None
    if str(link.index) != mark:
        raise Kept("it is another link by now")
    behind = look_behind(rtnl, link, None)
    if behind.peer not in (Peer.EMPTY, Peer.HOST):
        who = f": process {behind.resident.pid} ({behind.resident.command})" if behind.resident else ""
        raise Kept(f"somebody may live behind it{who}")
    return link.index


def _route(residue: Residue) -> str:
    text, _, name = residue.name.partition(" dev ")
    address = parse_address(text)
    with Rtnl.open() as rtnl:
        index = _abandoned(rtnl, name, residue.mark)
        if index is None:
            return "gone already"
        gone = rtnl.delete_route(network_of(address, address.max_prefixlen), index)
    return REMOVED if gone else "gone already"


def _namespace(residue: Residue) -> str:
    path = Path(residue.name)
    try:
        status = path.stat()
    except FileNotFoundError:
        return "gone already"
    identity = status.st_dev, status.st_ino
    if f"{identity[0]}:{identity[1]}" != residue.mark:
        raise Kept("it is another namespace by now")
    if residents := census().get(identity):
        raise Kept(f"process {residents[0]} lives in it")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(os.fsencode(path), MNT_DETACH) != 0:
        raise Kept(f"it cannot be unmounted: {os.strerror(ctypes.get_errno())}")
    path.unlink()
    return REMOVED


def _forget_connections(residue: Residue, held: Callable[[str], bool]) -> str:
    if held(residue.name):
        raise Kept("somebody holds the address by now")
    family = "ipv6" if ":" in residue.name else "ipv4"
    number = 0
    for side in ("--orig-src", "--orig-dst", "--reply-src", "--reply-dst"):
        done = subprocess.run(  # noqa: S603  # an address that was parsed
            ["conntrack", "-D", "-f", family, side, residue.name],  # noqa: S607  # wherever the system has it
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        # It ends with 1 when it found nothing, and says in its last words how many it removed.
        number += len(done.stdout.splitlines())
        if done.returncode not in (0, 1):
            raise Kept(f"conntrack fails: {' '.join(done.stderr.split())[:200]}")
    return f"{REMOVED} ({number} connections)"


_REMOVERS: Mapping[str, Callable[[Residue], str]] = {kinds.VETH: _link, kinds.ROUTE: _route, kinds.NETNS: _namespace}
