"""``calico`` DEL for pods of Kubernetes (cni.md §9, rulings 1 and 5)."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace

from calico_cni import timers
from calico_cni.context import Answer, Call, Cluster
from calico_cni.dataplane.api import Dataplane, Peer
from calico_cni.errors import CNIError
from calico_cni.identity import Identity, identify
from calico_cni.node import require_nodename_file
from calico_cni.plugin.deleting import delete_attachment, release_addresses, take_link_down
from calico_cni.plugin.endpoint import Records, container_of, delete_endpoint, find_records
from calico_cni.plugin.links import dataplane_of, remove_inside
from calico_cni.plugin.pod_records import remove_annotations
from calico_cni.plugin.pods import bare_record
from calico_cni.plugin.readiness import check_ready
from calico_cni.plugin.wiring import CLIENT_FAILED, host_interface
from calico_ipam.datastore.api import Datastore, Deadline, Entry
from calico_ipam.errors import NotFound


@dataclass(frozen=True, slots=True)
class _Attachment:
    """What DEL works on. ``record``: the pod's, whoever's container it names."""

    call: Call
    store: Datastore
    cluster: Cluster
    identity: Identity
    dataplane: Dataplane
    host_name: str
    record: Entry | None

    @property
    def holder(self) -> str:
        """The container that the record names; empty when it names none, or there is none."""
        return container_of(self.record) if self.record is not None else ""


def delete_pod(call: Call) -> Answer:
    """Take down one sandbox of a pod."""
    return delete_attachment(call, _look_up, _take_down)


def _look_up(call: Call, stack: ExitStack) -> _Attachment:
    """Find the pod's record; everything that can refuse a DEL does so here."""
    try:
        require_nodename_file(call.conf)
    except CNIError as error:
        # Handle and container tell what is this sandbox's; a pod must not hang because a file is gone (P21).
        call.log.warning("Going on without the nodename file", error=error)
    identity = identify(call)
    identity.endpoint_name()
    dataplane = dataplane_of(call)
    host_name = host_interface(call, identity)
    stack.enter_context(call.turn_of(host_name))
    store = stack.enter_context(call.store(CLIENT_FAILED))
    check_ready(store, timers.RECORDS)
    cluster = call.cluster(store)
    record = _record(store, cluster, identity, host_name)
    return _Attachment(call, store, cluster, identity, dataplane, host_name, record)


def _record(store: Datastore, cluster: Cluster, identity: Identity, host_name: str) -> Entry | None:
    if not store.capabilities.endpoints_are_pods:
        records = find_records(store, identity, identity.namespace, host_name)
        return records.own or next(iter(records.siblings), None)
    try:
        document = cluster.within(Deadline.after(timers.RECORDS)).pod(identity.namespace, identity.pod)
    except NotFound:
        return None
    return bare_record(document, identity)


def _take_down(attachment: _Attachment) -> list[Exception]:
    """Remove link, record and address in that order; return what went wrong on the way."""
    call = attachment.call
    if _other_interface_lives(attachment):
        # The handle has no interface in it: releasing it would take the other interface's address (§15.20).
        call.log.warning(
            "Another interface of this sandbox lives; endpoint and address are its own", link=attachment.host_name
        )
        remove_inside(call, attachment.dataplane, {attachment.host_name})
        from calico_cni.plugin.apart import addresses_of_result, release_apart

        addresses = addresses_of_result(call, attachment.record)
        return release_apart(call, attachment.store, attachment.identity, addresses)
    # A record that names no container says nothing about the link.
    owner = Records(own=attachment.record if attachment.holder else None)
    errors = take_link_down(call, attachment.dataplane, attachment.host_name, owner)
    _remove_record(attachment)
    # The IPAM plugin of ours need not ask again what this call knows of the pod.
    call = replace(call, context=call.context.knowing(attachment.cluster))
    return errors + release_addresses(call, attachment.store)


def _other_interface_lives(attachment: _Attachment) -> bool:
    """Tell whether the pod's host link leads to another interface of this very container."""
    request = attachment.call.request
    link = attachment.dataplane.host_link(attachment.host_name, request.netns)
    if link is None or link.peer_name in (None, request.ifname):
        return False
    return link.peer is Peer.OURS or (link.alive and attachment.holder == request.container_id)


def _remove_record(attachment: _Attachment) -> None:
    if attachment.record is None or attachment.holder not in ("", attachment.identity.container_id):
        return
    if attachment.store.capabilities.endpoints_are_pods:
        remove_annotations(attachment.call, attachment.store, attachment.cluster, attachment.identity)
    else:
        delete_endpoint(attachment.store, attachment.record, attachment.identity.container_id)
