"""``calico`` ADD for pods of Kubernetes (cni.md §6.2 to §6.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from calico_cni.context import Answer, Call
from calico_cni.dataplane.api import HostLink, LinkRequest, Peer
from calico_cni.errors import CNIError
from calico_cni.identity import Identity
from calico_cni.plugin import podcidr
from calico_cni.plugin.annotations import Wishes, wishes
from calico_cni.plugin.connecting import DEFAULT_ROUTES, connected, link_request, single
from calico_cni.plugin.endpoint import check_names, container_of
from calico_cni.plugin.outbound import masquerade_pools
from calico_cni.plugin.pod_addresses import AddressSource, Offer, with_node_ranges
from calico_cni.plugin.pod_records import PodRecord, Wired
from calico_cni.plugin.pods import Pod, find_endpoint, read_pod
from calico_cni.plugin.policy_wait import check_timeout, wait_for_policy
from calico_cni.plugin.profile import ensure_pod_profile
from calico_cni.plugin.undo import Attempt
from calico_cni.plugin.wiring import INTERFACE_PREFIX, Wiring
from calico_cni.protocol import HOST_LOCAL
from calico_cni.results import Interface, print_result
from calico_ipam.datastore.api import Datastore, Entry
from calico_ipam.model.addresses import Address, Network
from calico_ipam.model.endpoint_names import DEFAULT_INTERFACE_PREFIX, KUBERNETES


@dataclass(frozen=True, slots=True)
class _Plan:
    """What stands fixed before anything is allocated."""

    source: AddressSource
    record: PodRecord
    asked: Wishes
    routes: Sequence[Network]
    replace_link: bool


def add_pod(wiring: Wiring, store: Datastore) -> Answer:
    """Network a pod: address, link, record, policy; whatever fails takes back what came before it (§6.7)."""
    call, dataplane, netns = wiring.call, wiring.dataplane, wiring.call.request.netns
    plan = _plan(wiring, store)
    with Attempt(call.log, call.context.stop) as attempt:
        offer = plan.source.take()
        attempt.address = offer.release
        addresses = [single(ip.address) for ip in offer.result.ips]
        nats = _nats(plan.asked.floating, addresses)
        link = dataplane.add(_link_request(wiring, plan, offer, addresses))
        attempt.link = lambda: dataplane.remove(netns, wiring.identity.ifname, link.host_name)
        networks = tuple(str(address) for address in addresses)
        endpoint = plan.record.endpoint(Wired(networks, nats, link.host_name, link.mac))
        attempt.record = plan.record.forget
        plan.record.write(endpoint)
        if not call.conf.policy_type:
            ensure_pod_profile(store, call.conf.name)
        if call.conf.nat_outgoing:
            masquerade_pools(store, dataplane)
        text = print_result(connected(wiring, offer.result, addresses, link), call.conf.version)
        wait_for_policy(call, endpoint, link.mac)
        attempt.commit()
    call.log.info(
        "Networked the pod",
        pod=f"{wiring.identity.namespace}/{wiring.identity.pod}",
        endpoint=endpoint.name,
        link=link.host_name,
        addresses=" ".join(networks),
    )
    return Answer(text, fresh=True)


def _plan(wiring: Wiring, store: Datastore) -> _Plan:
    """Find out all that can be refused, while there is nothing to take back yet."""
    call, identity = wiring.call, wiring.identity
    check_timeout(call)
    _check_policy(call, store)
    identity.endpoint_name()
    follows_pods = call.conf.policy_type == KUBERNETES
    cluster = call.cluster(store)
    found = find_endpoint(call, store, cluster, identity, wiring.host_name)
    configured = with_node_ranges(call, cluster, identity)
    routes = _container_routes(call, configured)
    pod = read_pod(call, cluster, identity) if follows_pods else Pod()
    asked = wishes(call.conf, pod.annotations, pod.namespace_annotations)
    record = PodRecord(call, store, cluster, identity, pod, found)
    if not store.capabilities.endpoints_are_pods:
        check_names(record.name, identity.container_id, record.profiles)
    link = wiring.dataplane.host_link(wiring.host_name, call.request.netns)
    may_replace = may_replace_link(link, found, identity)
    source = AddressSource.of(call, store, cluster, identity, asked, found, configured)
    return _Plan(source, record, asked, routes, may_replace)


def _check_policy(call: Call, store: Datastore) -> None:
    """Refuse what would only fail after the pod was networked: the Kubernetes datastore has no such profiles (§6.6)."""
    if store.capabilities.endpoints_are_pods and not call.conf.policy_type:
        raise CNIError(
            f"Invalid name {call.conf.name}",
            'The Kubernetes datastore cannot hold a profile of that name: set "policy": {"type": "k8s"}.',
        )


def may_replace_link(link: HostLink | None, found: Entry | None, identity: Identity) -> bool:
    """Tell whether ADD may delete the host's link that has the name it wants; False: there is none (rulings 2).

    Raises CNIError, naming both sides, for a link that somebody may live behind. Old and new sandbox of a pod share the
    name, so one that is left of a dead sandbox makes way.
    """
    if link is None:
        return False
    same_interface = link.peer_name in (None, identity.ifname)
    if link.peer is Peer.OURS and not same_interface:
        raise CNIError(
            f"pod {identity.namespace}/{identity.pod} is connected by interface {link.peer_name} already; a second "
            f"interface {identity.ifname} is not possible",
            "Both would have one host interface and one endpoint; use another plugin for the second network.",
        )
    if link.peer is Peer.OURS or not link.alive:
        return True
    holder = container_of(found) if found is not None else ""
    if holder == identity.container_id and same_interface:
        return True
    other = f"container {holder}" if holder else "another container"
    raise CNIError(
        f"host interface {link.name} belongs to {other} of pod {identity.namespace}/{identity.pod}, which may be "
        f"alive; container {identity.container_id} cannot have it too",
        "Delete the pod's other sandbox first; the runtime does so before it makes a new one.",
    )


def _container_routes(call: Call, configured: Mapping[str, Any]) -> Sequence[Network]:
    """Return the routes inside the sandbox: host-local's own, or the two defaults, or both (§6.2 b)."""
    own = podcidr.routes(configured) if call.conf.ipam.type == HOST_LOCAL else []
    if not own:
        return DEFAULT_ROUTES
    return [*(DEFAULT_ROUTES if call.conf.include_default_routes else ()), *own]


def _nats(floating: Sequence[Address], addresses: Sequence[Interface]) -> tuple[dict[str, str], ...]:
    """Return what floating addresses translate to. Raises CNIError for one of a family that the pod has not."""
    found = []
    for outside in floating:
        inside = next((str(a.ip) for a in addresses if a.version == outside.version), None)
        if inside is None:
            raise CNIError(
                f"floating IP {outside} cannot be used: the pod has no IPv{outside.version} address",
                "Remove it from the pod's annotation, or give the pod an address of that family.",
            )
        found.append({"internalIP": inside, "externalIP": str(outside)})
    return tuple(found)


def _link_request(wiring: Wiring, plan: _Plan, offer: Offer, addresses: Sequence[Interface]) -> LinkRequest:
    prefix = wiring.call.request.environ.get(INTERFACE_PREFIX, "").partition(",")[0]
    return replace(
        link_request(wiring, addresses, may_replace=plan.replace_link, routes=plan.routes),
        mac=plan.asked.mac or None,
        host_routes=offer.host_routes,
        host_prefix=prefix or DEFAULT_INTERFACE_PREFIX,
    )
