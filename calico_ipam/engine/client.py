"""IPAM: the facade with every public operation (ipam-library §4)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address

from calico_ipam.datastore.api import Datastore, Deadline
from calico_ipam.engine.policy import Clock, Retry, SystemClock
from calico_ipam.engine.results import AssignmentAttributes, AutoAssigned, NamespaceLabels, ReleaseResult
from calico_ipam.model.addresses import Address, Network
from calico_ipam.model.block import HostReserved, ReleaseOption
from calico_ipam.model.config import IPAMConfig
from calico_ipam.model.pool import Pool
from calico_ipam.model.reservation import Reservations


class IPAM:
    """Assigns and releases addresses on a datastore. Immutable; safe to share between threads.

    ``hostname``: who allocates, unless a call says otherwise (default: the OS host name, trimmed, lower case).
    ``clock``: time. ``retry``: patience with lost races. ``pools`` and ``reservations``: instead of the store's.
    """

    def __init__(
        self,
        store: Datastore,
        *,
        hostname: str | None = None,
        clock: Clock | None = None,
        retry: Retry | None = None,
        pools: Callable[[], Sequence[Pool]] | None = None,
        reservations: Callable[[], Reservations] | None = None,
    ) -> None:
        self.store = store
        self.clock = clock or SystemClock()
        self.retry = retry or Retry(clock=self.clock)
        self._hostname = hostname

    def within(self, deadline: Deadline | None) -> IPAM:
        """Return the same IPAM with calls that end by ``deadline``."""
        raise NotImplementedError

    def auto_assign(
        self,
        *,
        use: str,
        num4: int = 0,
        num6: int = 0,
        handle: str | None = None,
        attrs: Mapping[str, str] | None = None,
        hostname: str | None = None,
        ipv4_pools: Sequence[Network] = (),
        ipv6_pools: Sequence[Network] = (),
        max_blocks_per_host: int = 0,
        host_reserved4: HostReserved | None = None,
        host_reserved6: HostReserved | None = None,
        max_per_handle: int = 0,
        namespace: NamespaceLabels | None = None,
    ) -> AutoAssigned:
        """Assign ``num4`` IPv4 and ``num6`` IPv6 addresses (§11). Running out is no error: look at ``shortfall``.

        An error carries what had been assigned: ``error.partial`` is an AutoAssigned.
        """
        raise NotImplementedError

    def assign_ip(
        self,
        ip: Address,
        *,
        handle: str | None = None,
        attrs: Mapping[str, str] | None = None,
        hostname: str | None = None,
        use: str | None = None,
        host_reserved: HostReserved | None = None,
        max_per_handle: int = 0,
    ) -> None:
        """Assign one given address (§12)."""
        raise NotImplementedError

    def release_ips(self, options: Iterable[ReleaseOption]) -> ReleaseResult:
        """Release addresses (§13.1). An error carries ``error.partial``, a ReleaseResult."""
        raise NotImplementedError

    def release_by_handle(self, handle: str) -> None:
        """Release whatever a handle holds (§13.3). Raises NotFound when there is no such handle object."""
        raise NotImplementedError

    def ips_by_handle(self, handle: str) -> list[IPv4Address | IPv6Address]:
        """Return the addresses a handle holds, cooling ones not included. Raises NotFound."""
        raise NotImplementedError

    def assignment_attributes(self, ip: Address) -> AssignmentAttributes:
        """Return who holds an address (§15.1). Raises NotFound, AddressInCooldown."""
        raise NotImplementedError

    def ensure_block(
        self,
        *,
        hostname: str | None = None,
        ipv4_pools: Sequence[Network] = (),
        ipv6_pools: Sequence[Network] = (),
        host_reserved4: HostReserved | None = None,
        host_reserved6: HostReserved | None = None,
    ) -> tuple[Network | None, Network | None]:
        """Make sure the host owns a block of each family whose reserved ordinals are given (§18.1)."""
        raise NotImplementedError

    def get_config(self) -> IPAMConfig:
        """Return the settings; the defaults when nothing is stored. Never writes."""
        raise NotImplementedError

    def set_config(self, config: IPAMConfig) -> None:
        """Store settings by compare-and-swap (limit L20). Raises InvalidInput for a broken rule."""
        raise NotImplementedError
