"""``calico`` DEL: link, record and address go; what is gone already is fine (cni.md §9, rulings 1 and 5)."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from calico_cni import timers
from calico_cni.context import Answer, Call
from calico_cni.dataplane.api import Dataplane, DataplaneError
from calico_cni.errors import TRY_AGAIN_LATER, CNIError
from calico_cni.identity import Identity, identify
from calico_cni.node import require_nodename_file
from calico_cni.plugin.deleting import delete_attachment, release_addresses, take_link_down
from calico_cni.plugin.endpoint import Records, delete_endpoint, find_records
from calico_cni.plugin.installed import completed, is_stripped
from calico_cni.plugin.labels import workload_namespace
from calico_cni.plugin.links import dataplane_of
from calico_cni.plugin.outbound import masquerade_pools
from calico_cni.plugin.readiness import check_ready
from calico_cni.plugin.wiring import CLIENT_FAILED, host_interface
from calico_ipam.datastore.api import Datastore
from calico_ipam.errors import IPAMError, NotConfigured

_STRIPPED = "The network configuration names no datastore, and neither does the environment or the installed one."


@dataclass(frozen=True, slots=True)
class _Attachment:
    """What DEL works on."""

    call: Call
    store: Datastore
    dataplane: Dataplane
    identity: Identity
    host_name: str
    records: Records


def delete(call: Call) -> Answer:
    """Take down one attachment. Whatever the datastore says, the sandbox's own link goes (§15.19).

    Raises CNIError 11 when nothing tells where the datastore is: an address may be held there (P27).
    """
    stripped = is_stripped(call)
    try:
        return _delete(completed(call))
    except CNIError as error:
        if stripped and isinstance(error.__cause__, NotConfigured):
            raise CNIError(error.message, f"{error.details} {_STRIPPED}".strip(), code=TRY_AGAIN_LATER) from error
        raise


def _delete(call: Call) -> Answer:
    if identify(call).for_kubernetes:
        from calico_cni.plugin.pod_delete import delete_pod

        return delete_pod(call)
    return delete_attachment(call, _look_up, _take_down)


def _look_up(call: Call, stack: ExitStack) -> _Attachment:
    """Find the attachment's record; everything that can refuse a DEL does so here."""
    require_nodename_file(call.conf)
    identity = identify(call)
    identity.endpoint_name()
    dataplane = dataplane_of(call)
    host_name = host_interface(call, identity)
    stack.enter_context(call.turn_of(host_name))
    store = stack.enter_context(call.store(CLIENT_FAILED))
    check_ready(store, timers.RECORDS)
    _, namespace = workload_namespace(call, identity)
    records = find_records(store, identity, namespace, host_name)
    return _Attachment(call, store, dataplane, identity, host_name, records)


def _take_down(attachment: _Attachment) -> list[Exception]:
    """Remove link, record and address in that order; return what went wrong on the way."""
    call, records = attachment.call, attachment.records
    errors = take_link_down(call, attachment.dataplane, attachment.host_name, records)
    if records.own is not None:
        delete_endpoint(attachment.store, records.own, call.request.container_id)
    if records.siblings:
        from calico_cni.plugin.apart import addresses_of_record, release_apart

        return errors + release_apart(call, attachment.store, attachment.identity, addresses_of_record(records))
    errors += release_addresses(call, attachment.store)
    if call.conf.nat_outgoing:
        _refresh_masquerading(attachment)
    return errors


def _refresh_masquerading(attachment: _Attachment) -> None:
    """Let the rules follow the pools; they matter to others, so a failure does not hold up this sandbox's end."""
    try:
        masquerade_pools(attachment.store, attachment.dataplane)
    except (IPAMError, DataplaneError) as error:
        attachment.call.log.warning("Could not bring the masquerading of pools up to date", error=error)
