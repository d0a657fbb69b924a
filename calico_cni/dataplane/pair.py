"""Making a pair of links, one end born in the pod and one on the host (cni.md §8 steps 3 and 4)."""

from __future__ import annotations

import errno
import logging
import struct
import time
from typing import Any

from .api import DataplaneError, LinkRequest
from .netlink import NetlinkRefused
from .netns import Namespace
from .rtnl import Link, Rtnl

logger = logging.getLogger(__name__)

#: every host end has this address, so that a pod's neighbour entry for its gateway outlives any change of the host end
HOST_MAC = "ee:ee:ee:ee:ee:ee"
#: seconds after which a host end whose address somebody keeps rewriting is given up, and between two tries
MAC_PATIENCE = 5.0
MAC_PAUSE = 0.1

#: the kernel's fields for an MTU and for queues have 32 bits
LARGEST_SIZE = (1 << 32) - 1

# linux/if_link.h, netkit
IFLA_NETKIT_PEER_INFO, IFLA_NETKIT_POLICY, IFLA_NETKIT_PEER_POLICY, IFLA_NETKIT_MODE = 1, 3, 4, 5
IFLA_LINKINFO = 18
NETKIT_L2 = 0
NETKIT_FORWARD = 0  # NETKIT_PASS
IFLA_INFO_KIND, IFLA_INFO_DATA = 1, 2
NLA_F_NESTED = 0x8000


def make_pair(host_rtnl: Rtnl, pod_rtnl: Rtnl, host: Namespace, pod: Namespace, request: LinkRequest) -> Link:
    """Make the pair and return its host end, whose name must be free. Raises NetlinkRefused, DataplaneError.

    After an error nothing is left. A kernel without netkit gets veth instead; every other refusal is final.
    """
    try:
        _create(host_rtnl, pod_rtnl, host, pod, request)
    except NetlinkRefused:
        raise
    except BaseException:
        # Whether it was made is unknown. The host's name was free, so what has it now is ours; the name in the sandbox
        # may have been taken all along.
        undo_pair(host_rtnl, request.host_name)
        raise
    try:
        link = host_rtnl.link(request.host_name)
        if link is None:
            raise DataplaneError(
                f"the host end {request.host_name} vanished as soon as it was made",
                hint="A program on this node renames or removes new links: exempt those of this plugin.",
            )
    except BaseException:
        undo_pair(pod_rtnl, request.container_name)
        raise
    return link


def _create(host_rtnl: Rtnl, pod_rtnl: Rtnl, host: Namespace, pod: Namespace, request: LinkRequest) -> None:
    if request.device_type == "netkit":
        try:
            make_netkit(host_rtnl, pod, request)
        except NetlinkRefused as refused:
            if refused.code != errno.EOPNOTSUPP:
                raise
            logger.info("this kernel has no netkit, %s becomes a veth", request.host_name)
        else:
            return
    make_veth(pod_rtnl, host, request)


def undo_pair(rtnl: Rtnl, name: str) -> None:
    """Remove a pair by the name of the end that ``rtnl`` sees, if it is there."""
    link = rtnl.link(name)
    if link is not None:
        rtnl.delete_link(link.index)


def make_veth(pod_rtnl: Rtnl, host: Namespace, request: LinkRequest) -> None:
    """Make a veth from inside the pod, so that no other program ever sees its pod end on the host.

    The host end asks for its hardware address at birth. A device manager leaves an address alone that was asked for;
    one that is set a moment later it may overwrite with its own (systemd/systemd#3374).
    """
    peer = [
        ("IFLA_IFNAME", request.host_name),
        ("IFLA_ADDRESS", HOST_MAC),
        ("IFLA_TXQLEN", 0),
        ("IFLA_NET_NS_FD", host.fd),
        *_sizes(request),
    ]
    pod_rtnl.create_link(
        [
            ("IFLA_IFNAME", request.container_name),
            *_sizes(request),
            (
                "IFLA_LINKINFO",
                {
                    "attrs": [
                        ("IFLA_INFO_KIND", "veth"),
                        ("IFLA_INFO_DATA", {"attrs": [("VETH_INFO_PEER", {"attrs": peer})]}),
                    ]
                },
            ),
        ]
    )


def make_netkit(host_rtnl: Rtnl, pod: Namespace, request: LinkRequest) -> None:
    """Make a netkit pair from the host, whose end is the primary one: layer 2, forwarding both ways.

    pyroute2 does not know the kind: the link information is encoded here.
    """
    peer = host_rtnl.formats.link()
    peer["attrs"] = [("IFLA_IFNAME", request.container_name), ("IFLA_NET_NS_FD", pod.fd), *_sizes(request)]
    peer.encode()
    header_bytes = 16  # the peer information is a link message without its netlink header
    data = b"".join(
        (
            _attribute(IFLA_NETKIT_MODE, struct.pack("=I", NETKIT_L2)),
            _attribute(IFLA_NETKIT_POLICY, struct.pack("=i", NETKIT_FORWARD)),
            _attribute(IFLA_NETKIT_PEER_POLICY, struct.pack("=i", NETKIT_FORWARD)),
            _attribute(IFLA_NETKIT_PEER_INFO | NLA_F_NESTED, bytes(peer.data[header_bytes:])),
        )
    )
    information = _attribute(IFLA_INFO_KIND, b"netkit\0") + _attribute(IFLA_INFO_DATA | NLA_F_NESTED, data)
    host_rtnl.create_link(
        [("IFLA_IFNAME", request.host_name), ("IFLA_TXQLEN", 0), *_sizes(request)],
        encoded=_attribute(IFLA_LINKINFO | NLA_F_NESTED, information),
    )


def _sizes(request: LinkRequest) -> list[tuple[str, Any]]:
    for what, size in (("mtu", request.mtu), ("num_queues", request.queues)):
        if size > LARGEST_SIZE:
            raise DataplaneError(f"{what} {size} is more than any link can have")
    sizes: list[tuple[str, Any]] = [
        # Asked for always: the kernel's own choice is one queue per processor.
        ("IFLA_NUM_TX_QUEUES", max(1, request.queues)),
        ("IFLA_NUM_RX_QUEUES", max(1, request.queues)),
    ]
    if request.mtu > 0:
        sizes.append(("IFLA_MTU", request.mtu))
    return sizes


def _attribute(kind: int, payload: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(payload), kind) + payload + bytes(-len(payload) % 4)


class HostMac:
    """Keeps the host end at HOST_MAC against programs that rewrite the address of new links.

    ``kept``: False once the kernel refused the address; then its own stays. ``since``: when the link was last seen
    with an address that had just been set, or was born (seconds of the monotonic clock).
    """

    def __init__(self, rtnl: Rtnl, link: Link) -> None:
        self.kept = True
        self._rtnl = rtnl
        self._link = link
        self._deadline = time.monotonic() + MAC_PATIENCE
        self._since = time.monotonic()

    def hold(self) -> None:
        """Set the address and read it back until it sticks. Raises DataplaneError after MAC_PATIENCE seconds."""
        first = True
        while self.kept:
            if self._read() == HOST_MAC:
                return
            if not first:
                self._expire_or_sleep(MAC_PAUSE)
            first = False
            self._since = time.monotonic()
            try:
                self._rtnl.set_mac(self._link.index, HOST_MAC)
            except NetlinkRefused as refused:
                logger.warning("%s keeps its own hardware address: %s", self._link.name, refused)
                self.kept = False

    def settle(self, quiet: float) -> None:
        """Return once the address has not been touched for ``quiet`` seconds. Raises DataplaneError as hold() does."""
        while self.kept:
            self.hold()
            remaining = self._since + quiet - time.monotonic()
            if remaining <= 0:
                return
            self._expire_or_sleep(remaining)

    def _read(self) -> str:
        link = self._rtnl.link_at(self._link.index)
        if link is None:
            raise DataplaneError(f"the host end {self._link.name} was removed while it was being set up")
        return link.mac

    def _expire_or_sleep(self, seconds: float) -> None:
        if time.monotonic() + seconds > self._deadline:
            raise DataplaneError(
                f"the hardware address of {self._link.name} did not stay {HOST_MAC} within {MAC_PATIENCE:.0f} s",
                hint="A device manager rewrites it: exempt these links "
                "(systemd: a .link file with MACAddressPolicy=none; NetworkManager: unmanaged-devices).",
            )
        time.sleep(seconds)
