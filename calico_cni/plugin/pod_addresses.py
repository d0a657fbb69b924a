"""Where a pod's addresses come from: its IPAM plugin, or its annotations (cni.md §6.3 step 1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from ipaddress import ip_interface
from typing import TYPE_CHECKING, Any

from calico_cni import timers
from calico_cni.context import Call, Cluster
from calico_cni.delegate import IPAMDelegate
from calico_cni.errors import CNIError
from calico_cni.identity import Identity
from calico_cni.plugin import podcidr
from calico_cni.plugin.annotations import IP_ADDRS, Wishes
from calico_cni.plugin.endpoint import container_of
from calico_cni.plugin.pods import told
from calico_cni.plugin.rewriting import with_addresses, with_stdin, with_wishes
from calico_cni.protocol import HOST_LOCAL
from calico_cni.results import Result, ResultIP
from calico_ipam.datastore.api import Datastore, Deadline, Entry
from calico_ipam.errors import AddressInCooldown, InvalidInput, NotFound, StaleError
from calico_ipam.model.addresses import parse_address
from calico_ipam.model.block import ReleaseOption
from calico_ipam.model.owner import Owner

if TYPE_CHECKING:
    from calico_ipam.engine.client import IPAM

_NO_FAMILY = (
    "No family of addresses is asked for: look at assign_ipv4 and assign_ipv6 of the network configuration, and at the "
    "annotation cni.projectcalico.org/ipFamilies of pod and namespace."
)


def with_node_ranges(call: Call, cluster: Cluster, identity: Identity) -> Mapping[str, Any]:
    """Return the configuration with the node's ranges where host-local asks for them (§6.2 a). Raises CNIError."""
    if call.conf.ipam.type != HOST_LOCAL:
        return call.conf.document
    name = call.conf.kubernetes_node_name or identity.node

    def node() -> Mapping[str, Any]:
        reader = cluster.within(Deadline.after(timers.RECORDS))
        return told(lambda: reader.node(name))

    return podcidr.for_add(call.conf.document, node, name)


@dataclass(frozen=True, slots=True)
class Offer:
    """Addresses for a pod. ``release``: gives back exactly what was taken for it, None where nothing was."""

    result: Result
    release: Callable[[], None] | None
    host_routes: bool = True


@dataclass(frozen=True, slots=True)
class AddressSource:
    """Everything that decides about a pod's addresses. ``found``: the pod's record of before."""

    call: Call
    store: Datastore
    identity: Identity
    asked: Wishes
    found: Entry | None

    @classmethod
    def of(
        cls,
        call: Call,
        store: Datastore,
        cluster: Cluster,
        identity: Identity,
        asked: Wishes,
        found: Entry | None,
        document: Mapping[str, Any],
    ) -> AddressSource:
        """Return the source. ``document``: the configuration :func:`with_node_ranges`, to which wishes are added."""
        document = with_wishes(document, asked)
        if asked.assigned:
            document = with_addresses(document, asked.assigned)
        # The IPAM plugin of ours need not ask again what this call knows of pod and namespace.
        call = replace(call, context=call.context.knowing(cluster))
        return cls(with_stdin(call, document), store, identity, asked, found)

    def take(self) -> Offer:
        """Get the addresses. Raises CNIError; then nothing is taken."""
        if self.asked.given:
            addresses = [ip_interface(address) for address in self.asked.given]
            return Offer(Result(ips=tuple(ResultIP(address) for address in addresses)), None)
        if self.asked.assigned:
            return self._assigned()
        delegate = IPAMDelegate(self.call, self.store)
        result = self._checked(delegate, delegate.ask_for_addresses())
        return Offer(result, self._undo(delegate, result), host_routes=not self._is_migrating(delegate, result))

    def _is_migrating(self, delegate: IPAMDelegate, result: Result) -> bool:
        """Tell whether the addresses are still another pod's, whose host has the routes to them (§15.3)."""
        return delegate.ours and self.identity.has_launchers_name and not result.routes

    def _assigned(self) -> Offer:
        """Have the addresses of the annotation assigned, after those of the pod's former sandbox are free (§15.21)."""
        self._release_former()
        delegate = IPAMDelegate(self.call, self.store)
        try:
            result = self._checked(delegate, delegate.ask_for_addresses())
        except CNIError as error:
            raise self._explained(error) from error
        order = {address: place for place, address in enumerate(self.asked.assigned)}
        # A virtual machine keeps the addresses that it has, whatever the annotation of its new pod asks for.
        ips = sorted(result.ips, key=lambda ip: order.get(ip.address.ip, len(order)))
        migrating = self._is_migrating(delegate, result)
        return Offer(Result(ips=tuple(ips)), self._undo(delegate, result), host_routes=not migrating)

    def _checked(self, delegate: IPAMDelegate, text: str) -> Result:
        """Return what an IPAM plugin printed if an address is in it; else give back what it took. Raises CNIError."""
        try:
            result = delegate.result_of(text)
            if result.ips:
                return result
            raise CNIError("IPAM plugin returned missing IP config", _NO_FAMILY if delegate.ours else "")
        except CNIError as error:
            delegate.give_back(error)
            raise

    def _explained(self, error: CNIError) -> CNIError:
        texts = [f"The addresses were asked for by the pod's annotation {IP_ADDRS}.", error.details]
        if "already assigned" in error.message:
            texts.append(
                "If the holder is an earlier sandbox of this pod, garbage collection frees the address once that "
                "sandbox is known to be gone; until then the pod waits."
            )
        return CNIError(f"error getting IP from IPAM: {error.message}", " ".join(filter(None, texts)), code=error.code)

    def _release_former(self) -> None:
        """Release what the pod's record names and is still this pod's; others' addresses are never touched."""
        if self.found is None or self.identity.has_launchers_name:
            return  # the addresses of a virtual machine are not its pod's
        ipam = self._ipam()
        networks = self.found.value.spec.get("ipNetworks")
        for text in networks if isinstance(networks, list) else ():
            try:
                address = parse_address(str(text).partition("/")[0])
                holder = ipam.assignment_attributes(address)
            except (NotFound, AddressInCooldown, InvalidInput):
                continue
            former = self.identity.namespace, self.identity.pod
            if holder.handle is None or not Owner(*former).matches(holder.active):
                continue
            try:
                ipam.release_ips([ReleaseOption(address, holder.handle, holder.sequence_number)])
                self.call.log.info("Released the address of the pod's former sandbox", address=address)
            except StaleError as error:
                self.call.log.info("The address of the pod's former sandbox has another holder", error=error)

    def _undo(self, delegate: IPAMDelegate, result: Result) -> Callable[[], None]:
        """Return what gives the addresses back.

        The handle of a container has all its addresses. Where this very container was networked before, its former
        addresses may still be in use, so that only the new ones are given back.
        """
        again = self.found is not None and container_of(self.found) == self.identity.container_id
        if not (again and delegate.ours) or self.identity.has_launchers_name:
            return delegate.delete
        handle = self.identity.handle(self.call.conf.name)
        options = [ReleaseOption(ip.address.ip, handle) for ip in result.ips]
        return lambda: self._release(options)

    def _release(self, options: list[ReleaseOption]) -> None:
        self._ipam().release_ips(options)

    def _ipam(self) -> IPAM:
        from calico_ipam.engine.client import IPAM

        return IPAM(self.store, hostname=self.identity.node, clock=self.call.context.clock).within(
            Deadline.after(timers.ALLOCATION)
        )
