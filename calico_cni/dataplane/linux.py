"""The Linux dataplane: the link of one sandbox, made, looked at and removed (cni.md §8).

Two sockets do the work, one opened in each namespace; the thread is inside the pod's namespace only to open one and to
write kernel settings. Nothing forks, and nothing stays open after a call.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import IPv6Address

from . import sysctl
from .api import ContainerLink, DataplaneError, HostLink, LinkExpectation, LinkRequest, LinkResult, RouteTarget
from .check import check
from .netlink import NetlinkRefused
from .netns import Namespace, NamespaceGone, entered, is_own_namespace
from .pair import HOST_MAC, HostMac, make_pair, undo_pair
from .peers import container_link, host_link
from .routes import add_host_routes, add_pod_addresses, add_pod_routes_ipv4, add_pod_routes_ipv6, doing
from .rtnl import Link, Rtnl

logger = logging.getLogger(__name__)

#: seconds that removing the link of one sandbox may take (cni.md §8.1)
REMOVE_SECONDS = 20.0
#: seconds to wait for an IPv6 address, and between two looks. The kernel makes and approves them in the background:
#: within milliseconds as a rule, but a link whose other end is up already may be left waiting for a second.
ADDRESS_SECONDS = 10.0
ADDRESS_PAUSE = 0.005
#: tries to have it made from the right hardware address
LINK_LOCAL_TRIES = 10
#: seconds after the last setting of the host end's hardware address before it is trusted (``systemd/systemd#3374``)
MAC_QUIET = 0.08


@dataclass(frozen=True, slots=True)
class _Site:
    """What one call works with: both namespaces and a socket in each."""

    host: Namespace
    pod: Namespace
    host_rtnl: Rtnl
    pod_rtnl: Rtnl


class LinuxDataplane:
    """Works on the namespace of the calling thread, as the host, and on the one that a request names.

    ``mac_quiet``: seconds for which the host end's hardware address must have stayed as it is before an ADD succeeds.
    """

    def __init__(self, *, mac_quiet: float = MAC_QUIET, remove_seconds: float = REMOVE_SECONDS) -> None:
        self._mac_quiet = mac_quiet
        self._remove_seconds = remove_seconds

    def same_namespace(self, netns: str) -> bool:
        """Tell whether ``netns`` is the namespace of the calling thread; False for a path that cannot be opened."""
        return is_own_namespace(netns)

    def host_link(self, name: str, netns: str) -> HostLink | None:
        """Return the host's link of that name, or None. Raises DataplaneError."""
        with ExitStack() as stack, doing(f"look at link {name}"):
            rtnl = stack.enter_context(Rtnl.open())
            try:
                sandbox = stack.enter_context(Namespace.open(netns)) if netns else None
            except DataplaneError:
                sandbox = None
            return host_link(rtnl, name, sandbox)

    def container_link(self, netns: str, name: str) -> ContainerLink | None:
        """Return the sandbox's link of that name, or None; None for one that is gone, too. Raises DataplaneError."""
        with ExitStack() as stack, doing(f"look for link {name} in the sandbox"):
            try:
                sandbox = stack.enter_context(Namespace.open(netns))
            except DataplaneError:
                return None
            host = stack.enter_context(Namespace.own())
            host_rtnl = stack.enter_context(Rtnl.open())
            with entered(sandbox):
                pod_rtnl = stack.enter_context(Rtnl.open())
            return container_link(pod_rtnl, host_rtnl, host, name)

    def add(self, request: LinkRequest) -> LinkResult:
        """Make the pair, or leave nothing of it behind. Raises DataplaneError, AddressInUse."""
        with ExitStack() as stack:
            pod = stack.enter_context(Namespace.open(request.netns))
            host = stack.enter_context(Namespace.own())
            host_rtnl = stack.enter_context(Rtnl.open())
            with entered(pod):
                pod_rtnl = stack.enter_context(Rtnl.open())
            site = _Site(host, pod, host_rtnl, pod_rtnl)
            self._clear_name(site, request)
            try:
                host_end = make_pair(host_rtnl, pod_rtnl, host, pod, request)
            except NetlinkRefused as refused:
                raise _not_made(refused, request) from None
            try:
                with doing(f"set up link {request.host_name}"):
                    mac = self._set_up(site, host_end, request)
            except BaseException as error:
                self._undo(site, request, error)
                raise
            return LinkResult(mac=mac, host_name=request.host_name)

    def remove(self, netns: str, container_name: str, host_name: str | None) -> None:
        """Remove the link inside ``netns``, then the host's link ``host_name`` unless that is None.

        Repeatable; an empty or vanished ``netns`` is fine. The work runs in a thread of its own, because the kernel may
        hold a thread that deletes a device for as long as anybody uses it. Raises DataplaneError.
        """

        def work() -> None:
            try:
                _remove_inside(netns, container_name)
            finally:
                # Even if the sandbox cannot be entered: the link is ours, and a repeated call would find it again.
                if host_name is not None:
                    _remove_by_name(host_name)

        _within(self._remove_seconds, work, f"timed out deleting device in netns {netns}")

    def masquerade(self, pools: Sequence[RouteTarget]) -> None:
        """Masquerade what leaves ``pools``, and nothing else any more. Raises DataplaneError."""
        from .nat import masquerade

        masquerade(pools)

    def check(self, expectation: LinkExpectation) -> list[str]:
        """Return one sentence for each thing that is not as expected. Raises DataplaneError."""
        return check(expectation)

    def _clear_name(self, site: _Site, request: LinkRequest) -> None:
        """Remove the host's link of the wanted name, if the caller has looked at it; refuse otherwise."""
        link = site.host_rtnl.link(request.host_name)
        if link is None:
            return
        if not request.replace_existing:
            raise DataplaneError(
                f"link {request.host_name} already exists on the host",
                hint="It may belong to another sandbox: delete that one first, or the link itself if it is a leftover.",
            )
        with doing(f"remove the old link {request.host_name}"):
            site.host_rtnl.delete_link(link.index)

    def _set_up(self, site: _Site, host_end: Link, request: LinkRequest) -> str:
        """Configure both ends of a new pair; return the container end's hardware address."""
        versions: set[int] = {interface.version for interface in request.addresses}
        host_mac = HostMac(site.host_rtnl, host_end)
        host_mac.hold()
        if 6 in versions:
            with entered(site.pod):
                sysctl.apply(sysctl.CONTAINER_END_IPV6, request.container_name)
        sysctl.apply(sysctl.host_end_settings(versions), request.host_name)
        container_end = self._raise_ends(site, host_end, request)
        if 4 in versions:
            add_pod_routes_ipv4(site.pod_rtnl, container_end.index, request)
        if 6 in versions:
            with entered(site.pod):
                sysctl.apply(sysctl.POD_IPV6)
            gateway = _link_local(site.host_rtnl, host_end, host_mac)
            add_pod_routes_ipv6(site.pod_rtnl, container_end.index, request, gateway)
        add_pod_addresses(site.pod_rtnl, container_end.index, request)
        with entered(site.pod):
            sysctl.apply(sysctl.forwarding_settings(versions, request.ip_forwarding))
        if request.host_routes:
            add_host_routes(site.host_rtnl, host_end, request, site.pod)
        host_mac.settle(self._mac_quiet)
        if 6 in versions:
            _await_usable(site.pod_rtnl, container_end)
        return container_end.mac

    def _raise_ends(self, site: _Site, host_end: Link, request: LinkRequest) -> Link:
        """Set the host end up, then the container end, which then gets the hardware address asked for."""
        with doing(f"set {host_end.name} up"):
            site.host_rtnl.set_up(host_end.index)
        container_end = _container_end(site, request)
        with doing(f"set {container_end.name} up in the sandbox"):
            site.pod_rtnl.set_up(container_end.index)
        if request.mac is None:
            return container_end
        mac = parse_mac(request.mac)
        with doing(f"set the hardware address of {container_end.name} to {mac}"):
            site.pod_rtnl.set_mac(container_end.index, mac)
        return _container_end(site, request)

    def _undo(self, site: _Site, request: LinkRequest, error: BaseException) -> None:
        """Remove the pair after ``error``. Raises DataplaneError with ``left_behind`` if that fails, too."""
        try:
            undo_pair(site.pod_rtnl, request.container_name)
        except (NetlinkRefused, DataplaneError) as second:
            logger.error("link %s could not be removed after a failure: %s", request.host_name, second)
            raise DataplaneError(
                str(error),
                hint=f"Link {request.host_name} is still there ({second}): keep its addresses until it is gone.",
                left_behind=True,
            ) from error


def _container_end(site: _Site, request: LinkRequest) -> Link:
    link = site.pod_rtnl.link(request.container_name)
    if link is None:
        raise DataplaneError(f"{request.container_name} was removed from the sandbox while it was being set up")
    return link


def _not_made(refused: NetlinkRefused, request: LinkRequest) -> DataplaneError:
    """Upstream shows the bare text of the refusal; ours says beside it what was to be made."""
    text = str(NetlinkRefused(refused.code))
    detail = f" ({refused.detail})" if refused.detail else ""
    return DataplaneError(
        text,
        hint=f"Refused{detail}: {request.container_name} in {request.netns} with {request.host_name} on the host.",
    )


def parse_mac(text: str) -> str:
    """Return a hardware address written with colons, hyphens or dots in the kernel's form. Raises DataplaneError."""
    digits = re.sub(r"[:.\-]", "", text)
    if (
        not re.fullmatch(r"[0-9a-fA-F]{2}([:-]?[0-9a-fA-F]{2})+|([0-9a-fA-F]{4}\.)+[0-9a-fA-F]{4}", text)
        or len(digits) != 12
    ):
        raise DataplaneError(f"address {text}: invalid MAC address", hint="Write six bytes, as in 0a:58:0a:f4:00:05.")
    return ":".join(digits[at : at + 2] for at in range(0, 12, 2)).lower()


def _link_local(rtnl: Rtnl, host_end: Link, host_mac: HostMac) -> IPv6Address:
    """Return the host end's link-local address, made from HOST_MAC unless the kernel refused that.

    One that was made from another address (``systemd/systemd#3374``) is made anew by setting the link down and up.
    """
    wanted = link_local_of(HOST_MAC)
    for _ in range(LINK_LOCAL_TRIES):
        found = _await_link_local(rtnl, host_end)
        if found == wanted or not host_mac.kept:
            return found
        with doing(f"make the link-local address of {host_end.name} anew"):
            rtnl.set_down(host_end.index)
            host_mac.hold()
            rtnl.set_up(host_end.index)
    raise DataplaneError(
        f"the link-local address of {host_end.name} is {found}, not {wanted}",
        hint="net.ipv6.conf.default.addr_gen_mode must be 0, and no program may rewrite the address of these links.",
    )


def _await_link_local(rtnl: Rtnl, host_end: Link) -> IPv6Address:
    deadline = time.monotonic() + ADDRESS_SECONDS
    while True:
        for address in rtnl.addresses(host_end.index, 6):
            if address.ip.is_link_local and isinstance(address.ip, IPv6Address):
                return address.ip
        if time.monotonic() > deadline:
            raise DataplaneError(
                f"{host_end.name} got no IPv6 link-local address within {ADDRESS_SECONDS:.0f} s",
                hint="Is IPv6 switched off on this node, or net.ipv6.conf.default.addr_gen_mode not 0?",
            )
        time.sleep(ADDRESS_PAUSE)


def _await_usable(rtnl: Rtnl, container_end: Link) -> None:
    """Wait until the container end's IPv6 addresses can be used: a program in the pod may bind to one at once."""
    deadline = time.monotonic() + ADDRESS_SECONDS
    while any(address.tentative for address in rtnl.addresses(container_end.index, 6) if not address.ip.is_link_local):
        if time.monotonic() > deadline:
            raise DataplaneError(
                f"the IPv6 address of {container_end.name} could not be used within {ADDRESS_SECONDS:.0f} s",
                hint="Duplicate address detection should be off there (accept_dad 0): what switched it on?",
            )
        time.sleep(ADDRESS_PAUSE)


def link_local_of(mac: str) -> IPv6Address:
    """Return the EUI-64 link-local address of a 6-byte hardware address (RFC 4291, appendix A)."""
    octets = bytes.fromhex(mac.replace(":", ""))
    middle = bytes((octets[0] ^ 0x02, *octets[1:3], 0xFF, 0xFE, *octets[3:]))
    return IPv6Address(b"\xfe\x80" + bytes(6) + middle)


def _remove_inside(netns: str, name: str) -> None:
    if not netns:
        return
    with ExitStack() as stack:
        try:
            namespace = stack.enter_context(Namespace.open(netns))
            with entered(namespace):
                rtnl = stack.enter_context(Rtnl.open())
        except NamespaceGone:
            return
        except DataplaneError as error:
            raise DataplaneError(f"failed to enter netns: {error}", hint=error.hint) from None
        with doing("clean up workload's pod interface inside netns"):
            undo_pair(rtnl, name)


def _remove_by_name(name: str) -> None:
    with Rtnl.open() as rtnl, doing(f"remove link {name} from the host"):
        undo_pair(rtnl, name)


def _within(seconds: float, work: Callable[[], None], too_late: str) -> None:
    """Run ``work`` in a thread that is given up after ``seconds``; raise what it raises, or DataplaneError."""
    failure: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, name="dataplane-remove", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise DataplaneError(too_late, hint="The kernel waits for somebody who still uses the device (see dmesg).")
    if failure:
        raise failure[0]
