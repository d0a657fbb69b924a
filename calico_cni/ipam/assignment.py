"""One assignment: its handle and attributes, and how to find and take back exactly what it made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from calico_cni import timers
from calico_cni.context import Call
from calico_cni.identity import Identity
from calico_cni.logs import Log
from calico_ipam.datastore.api import Deadline
from calico_ipam.engine.client import IPAM
from calico_ipam.errors import AddressInCooldown, IPAMError, NotFound
from calico_ipam.model.block import ReleaseOption
from calico_ipam.model.owner import NAMESPACE, NODE, POD, TIMESTAMP
from calico_ipam.model.timestamps import format_attribute_time


@dataclass(frozen=True, slots=True)
class Assignment:
    """What is written beside an address. The timestamp, in nanoseconds, tells this assignment from any other.

    ``most``: addresses of each family that the handle may hold; 0: any number.
    """

    handle: str
    attrs: Mapping[str, str] = field(default_factory=dict)
    most: int = 0

    @classmethod
    def of(cls, call: Call, identity: Identity) -> Assignment:
        """Return the assignment that a call is about to make (§7.1 step 5)."""
        attrs = {NODE: identity.node, TIMESTAMP: format_attribute_time(call.context.clock.now())}
        if identity.for_kubernetes:
            attrs |= {POD: identity.pod, NAMESPACE: identity.namespace}
        return cls(identity.handle(call.conf.name), attrs)

    def for_machine(self, handle: str, attributes: Mapping[str, str]) -> Assignment:
        """Return the assignment to a virtual machine, which holds its addresses under a handle of its own (§7.5)."""
        return Assignment(handle, {**self.attrs, **attributes}, most=1)

    def take_back(self, ipam: IPAM, log: Log) -> bool:
        """Release what this assignment holds, and nothing else; return whether nothing is left of it.

        A failure is a warning, the runtime's DEL comes anyway.

        The store is read first: a write whose answer was lost may have happened, and an address that was ours may
        belong to somebody else by now (rulings 4; §15.5, §15.21). The time for it is its own.
        """
        ipam = ipam.within(Deadline.after(timers.CLEAN_UP))
        try:
            options = self._held(ipam)
            if options:
                ipam.release_ips(options)
                log.info(
                    "Released the addresses of a failed request", addresses=" ".join(str(o.address) for o in options)
                )
        except IPAMError as error:
            log.warning("Could not release the addresses of a failed request", handle=self.handle, error=error)
            return False
        return True

    def _held(self, ipam: IPAM) -> list[ReleaseOption]:
        try:
            addresses = ipam.ips_by_handle(self.handle)
        except NotFound:
            return []
        found = []
        for address in addresses:
            try:
                holder = ipam.assignment_attributes(address)
            except (NotFound, AddressInCooldown):
                continue
            if holder.handle == self.handle and dict(holder.active) == dict(self.attrs):
                found.append(ReleaseOption(address, self.handle, holder.sequence_number))
        return found
