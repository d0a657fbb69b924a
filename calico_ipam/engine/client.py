"""IPAM: the facade with every public operation (ipam-library §4)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from calico_ipam.datastore.api import Datastore, Deadline, Entry
from calico_ipam.engine.policy import Clock, Retry, SystemClock
from calico_ipam.engine.request import Request
from calico_ipam.engine.results import AssignmentAttributes, AutoAssigned, ClaimResult, NamespaceLabels, ReleaseResult
from calico_ipam.engine.world import Engine
from calico_ipam.model.addresses import Address, Network, parse_address
from calico_ipam.model.affinity import BlockOwner
from calico_ipam.model.block import Block, HostReserved, ReleaseOption
from calico_ipam.model.config import IPAMConfig
from calico_ipam.model.pool import WORKLOAD, Pool
from calico_ipam.model.reservation import Reservations

if TYPE_CHECKING:
    from calico_ipam.engine.owners import OwnerPreconditions, OwnerUpdates
    from calico_ipam.engine.tunnels import TunnelChange
    from calico_ipam.engine.utilization import Utilization


class IPAM:
    """Assigns and releases addresses on a datastore. Immutable; safe to share between threads.

    ``hostname``: who allocates, unless a call says otherwise (default: the OS host name, trimmed, lower case).
    ``clock``: time. ``retry``: patience with lost races. ``pools`` and ``reservations``: instead of the store's.
    """

    # Each operation imports its own module: a plugin call makes one or two of them and pays for no others.

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
        clock = clock or SystemClock()
        self._engine = Engine(store, clock, retry or Retry(clock=clock), hostname, pools, reservations)

    @property
    def store(self) -> Datastore:
        return self._engine.store

    @property
    def clock(self) -> Clock:
        return self._engine.clock

    def within(self, deadline: Deadline | None) -> IPAM:
        """Return the same IPAM with calls that end by ``deadline``."""
        bound = IPAM.__new__(IPAM)
        bound._engine = self._engine.within(deadline)
        return bound

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

        ``use``: ``Workload``, ``Tunnel`` or ``LoadBalancer``. ``ipv4_pools``, ``ipv6_pools``: CIDRs of pools to use
        in this order, whatever their selectors say; empty means every pool that selects the node and the namespace.
        ``max_blocks_per_host``: 0 leaves it to the settings. ``max_per_handle``: most addresses per family that the
        handle may hold, 0 for no cap; a handle at its cap gets the addresses it holds.

        Raises NotFound (no node record), NoQualifiedPool, BlockLimitReached, InvalidInput, RefusedError,
        TransientError. An error carries what had been assigned: ``error.partial`` is an AutoAssigned.
        """
        request = Request(
            use=use,
            host=self._engine.host(hostname),
            numbers={4: num4, 6: num6},
            handle=handle or None,
            attrs=attrs or {},
            pools={4: ipv4_pools, 6: ipv6_pools},
            max_blocks=max_blocks_per_host,
            host_reserved={4: host_reserved4, 6: host_reserved6},
            cap=max_per_handle,
            namespace=namespace,
        )
        from calico_ipam.engine import assign

        return assign.auto_assign(self._engine, request)

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
        """Assign one given address, reserved or not, whatever the pool's selectors (§12); IPv4-mapped IPv6 is IPv4.

        Raises InvalidInput (in no enabled pool, or not for this use), AlreadyExists (somebody holds it; the hint says
        who), RefusedError, TransientError.
        """
        from calico_ipam.engine import specific

        specific.assign_ip(
            self._engine,
            specific.SpecificRequest(
                _plain(ip),
                self._engine.host(hostname),
                handle=handle or None,
                attrs=attrs or {},
                use=use,
                host_reserved=host_reserved,
                cap=max_per_handle,
            ),
        )

    def release_ips(self, options: Iterable[ReleaseOption]) -> ReleaseResult:
        """Release addresses, each if its handle and sequence number are as given (§13.1).

        Raises BadHandle, BadSequenceNumber (nothing of that block is released), TransientError. An error carries
        what was done all the same: ``error.partial`` is a ReleaseResult.
        """
        from calico_ipam.engine import release

        return release.release_ips(self._engine, [replace(each, address=_plain(each.address)) for each in options])

    def release_by_handle(self, handle: str) -> None:
        """Release whatever a handle holds (§13.3). Raises NotFound when there is no such handle object."""
        from calico_ipam.engine import release

        release.release_by_handle(self._engine, handle)

    def ips_by_handle(self, handle: str) -> list[Address]:
        """Return the addresses a handle holds, cooling ones not included. Raises NotFound."""
        from calico_ipam.engine import lookup

        return lookup.ips_by_handle(self._engine, handle)

    def assignment_attributes(self, ip: Address) -> AssignmentAttributes:
        """Return who holds an address (§15.1). Raises NotFound, AddressInCooldown."""
        from calico_ipam.engine import lookup

        return lookup.assignment_attributes(self._engine, _plain(ip))

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
        request = Request(
            use=WORKLOAD,
            host=self._engine.host(hostname),
            numbers={},
            pools={4: ipv4_pools, 6: ipv6_pools},
            host_reserved={4: host_reserved4, 6: host_reserved6},
        )
        from calico_ipam.engine import ensure

        return ensure.ensure_block(self._engine, request)

    def get_config(self) -> IPAMConfig:
        """Return the settings; the defaults when nothing is stored. Never writes."""
        from calico_ipam.engine import settings

        return settings.get_config(self._engine)

    def set_config(self, config: IPAMConfig) -> None:
        """Store settings by compare-and-swap (limit L20). Raises InvalidInput for a broken rule."""
        from calico_ipam.engine import settings

        settings.set_config(self._engine, config)

    def claim_affinity(self, cidr: Network, owner: BlockOwner) -> ClaimResult:
        """Make ``owner`` own every block of ``cidr`` that nobody else has (§14.1). No block limit applies.

        Raises InvalidInput (in no enabled pool), InvalidSize. Another error carries ``error.partial``, a ClaimResult.
        """
        from calico_ipam.engine import admin

        return admin.claim_affinity(self._engine, cidr, owner)

    def release_affinity(self, cidr: Network, owner: BlockOwner, *, must_be_empty: bool) -> None:
        """Take the blocks of ``cidr`` from ``owner`` (§14.2). Raises BlockNotEmpty, InvalidInput, InvalidSize."""
        from calico_ipam.engine import admin

        admin.release_affinity(self._engine, cidr, owner, must_be_empty=must_be_empty)

    def release_host_affinities(self, owner: BlockOwner, *, must_be_empty: bool) -> None:
        """Take all blocks from ``owner`` (§14.3). Raises the last error after every block was tried."""
        from calico_ipam.engine import admin

        admin.release_host_affinities(self._engine, owner, must_be_empty=must_be_empty)

    def release_pool_affinities(self, pool: Network) -> None:
        """Take every block that begins in ``pool`` from its owner, used or not (§14.4)."""
        from calico_ipam.engine import admin

        admin.release_pool_affinities(self._engine, pool)

    def release_block_affinity(self, block: Block, *, must_be_empty: bool) -> None:
        """Take a block that was read before from the owner it had then (§14.5). Raises BlockNotEmpty, Conflict."""
        from calico_ipam.engine import admin

        admin.release_block_affinity(self._engine, block, must_be_empty=must_be_empty)

    def remove_ipam_host(self, owner: BlockOwner) -> None:
        """Forget a host: its blocks become nobody's, addresses stay with their holders (§14.6)."""
        from calico_ipam.engine import admin

        admin.remove_ipam_host(self._engine, owner)

    def collect_cold_addresses(self, block: Entry, config: IPAMConfig) -> None:
        """Free what has cooled down in a block that was read before (§18.3). Raises Conflict, NotFound."""
        from calico_ipam.engine import admin

        admin.collect_cold_addresses(self._engine, config, block)

    def set_owner_attributes(
        self,
        ip: Address,
        handle: str,
        updates: OwnerUpdates,
        preconditions: OwnerPreconditions | None = None,
    ) -> None:
        """Say which pod has an address now, or will have it (§15.2).

        Raises InvalidInput (no pool, another handle), NotFound, OwnerMismatch (then nothing was changed).
        """
        from calico_ipam.engine import owners

        owners.set_owner_attributes(
            self._engine, _plain(ip), handle, updates, preconditions or owners.OwnerPreconditions()
        )

    def ensure_active_vm_owner(self, network: str, namespace: str, vm: str, target_pod: str) -> None:
        """Make a migration's target pod the active owner of a VM's addresses (§15.3).

        Raises NotFound, AlternateOwnerEmpty, AlternateOwnerMismatch, RefusedError.
        """
        from calico_ipam.engine import owners

        owners.ensure_active_vm_owner(self._engine, network, namespace, vm, target_pod)

    def reconcile_tunnel_addresses(
        self, hostname: str | None = None, *, wireguard_host_encryption: bool = False
    ) -> tuple[TunnelChange, ...]:
        """Give a node an address for each kind of tunnel that its pools ask for, and take back the others (cli §13).

        Writes them into the node's record. ``wireguard_host_encryption``: WireGuard then needs none of its own.
        Raises NotFound (no such node), InvalidInput, RefusedError (no address is free), Conflict (call again).
        """
        from calico_ipam.engine import tunnels

        return tunnels.reconcile_tunnel_addresses(
            self._engine, self._engine.host(hostname), wireguard_host_encryption=wireguard_host_encryption
        )

    def reconcile_service(
        self, service: Mapping[str, Any], *, mode: str = "AllServices", namespace: NamespaceLabels | None = None
    ) -> tuple[Address, ...]:
        """Give a Service of Kubernetes the addresses it asks for, take back others, return what it has (cli §14).

        ``service``: the API's object; one that is not Calico's, or not any more, loses everything. ``mode``: which
        Services are Calico's, ``assignIPs`` of KubeControllersConfiguration. ``namespace``: for pools that select one.
        Raises InvalidInput (nothing was changed), AlreadyExists, RefusedError.
        """
        from calico_ipam.engine import services

        return services.reconcile_service(self._engine, service, mode=mode, namespace=namespace)

    def upgrade_host(self, hostname: str | None = None) -> None:
        """Bring what older releases stored for a host into today's form; without it, its blocks may not be found.

        Costs one list on the Kubernetes datastore and nothing elsewhere. Raises TransientError, RefusedError.
        """
        self._engine.store.upgrade(self._engine.host(hostname))

    def get_utilization(self, pools: Iterable[str] = ()) -> Utilization:
        """Count addresses by pool and block (§17); ``pools``: names or CIDRs as written, none means all."""
        from calico_ipam.engine import utilization

        return utilization.get_utilization(self._engine, pools)


def _plain(ip: Address) -> Address:
    """Return an address as the library knows it: IPv4-mapped IPv6 is IPv4, a zone is refused. Raises InvalidInput."""
    return parse_address(str(ip))
