"""DEL of one interface while another one of its container lives: they share a handle, which has no interface in it.

Releasing by handle would take the other's addresses (cni.md §15.20), so those of the one that goes are released one by
one, each only if that handle still holds it.
"""

from __future__ import annotations

from collections.abc import Iterable

from calico_cni import timers
from calico_cni.context import Call
from calico_cni.delegate import IPAMDelegate
from calico_cni.errors import CNIError
from calico_cni.identity import Identity
from calico_cni.plugin.endpoint import Records, container_of
from calico_cni.previous import previous_result
from calico_ipam.datastore.api import Datastore, Deadline, Entry
from calico_ipam.errors import InvalidInput, IPAMError, StaleError
from calico_ipam.model.addresses import Address, parse_address
from calico_ipam.model.block import ReleaseOption


def addresses_of_record(records: Records) -> set[Address]:
    """Return the addresses of a workload's record that no record of its other interfaces has."""
    others: set[Address] = set().union(*(_networks(entry) for entry in records.siblings))
    return _networks(records.own) - others if records.own is not None else set()


def addresses_of_result(call: Call, other: Entry | None) -> set[Address]:
    """Return the addresses that only this interface has, as ``prevResult`` says; none where it cannot be read.

    ``other``: the pod's record, which the interface that lives has. Upstream gives one address to both where the pod's
    annotation asks for it, so where no address of the other is known, none is this one's alone.
    """
    request = call.request
    if other is None or container_of(other) != request.container_id or not (others := _networks(other)):
        return set()
    try:
        result = previous_result(call.conf)
    except CNIError as error:
        call.log.info("The result of the interface's ADD is not known", reason=error)
        return set()
    ours = {index for index, link in enumerate(result.interfaces) if link.name == request.ifname and link.sandbox}
    return {parse_address(str(ip.address.ip)) for ip in result.ips if ip.interface in ours} - others


def release_apart(call: Call, store: Datastore, identity: Identity, addresses: Iterable[Address]) -> list[Exception]:
    """Release addresses of this container one by one; return what went wrong. Only our own IPAM can do that."""
    wanted = sorted(addresses, key=lambda address: (address.version, int(address)))
    if not wanted or not IPAMDelegate(call).ours:
        call.log.warning("The address is kept: other interfaces of this container share its handle")
        return []
    from calico_ipam.engine.client import IPAM

    handle = identity.handle(call.conf.name)
    ipam = IPAM(store, hostname=identity.node, clock=call.context.clock).within(Deadline.after(timers.ALLOCATION))
    errors: list[Exception] = []
    for address in wanted:
        try:
            ipam.release_ips([ReleaseOption(address, handle)])
            call.log.info("Released an address of this interface alone", address=address, handle=handle)
        except StaleError as error:
            call.log.info("The address has another holder by now", address=address, error=error)
        except IPAMError as error:
            errors.append(error)
    return errors


def _networks(entry: Entry) -> set[Address]:
    networks = entry.value.spec.get("ipNetworks")
    found = set()
    for text in networks if isinstance(networks, list) else ():
        try:
            found.add(parse_address(str(text).partition("/")[0]))
        except InvalidInput:
            continue  # a damaged record says nothing of this address
    return found
