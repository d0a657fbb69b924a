"""``calico`` ADD for workloads without Kubernetes (cni.md §6.5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_interface

from calico_cni.args import WORKLOAD_KEYS, parse_args
from calico_cni.context import Answer, Call
from calico_cni.dataplane.api import LinkResult
from calico_cni.delegate import IPAMDelegate
from calico_cni.errors import CNIError
from calico_cni.netconf import wanted_addresses
from calico_cni.plugin.connecting import connected, link_request, single
from calico_cni.plugin.endpoint import (
    Records,
    add_profile,
    check_names,
    delete_endpoint,
    find_records,
    get_record,
    new_endpoint,
    write_endpoint,
)
from calico_cni.plugin.labels import workload_namespace
from calico_cni.plugin.links import may_replace
from calico_cni.plugin.outbound import masquerade_pools
from calico_cni.plugin.profile import ensure_profile
from calico_cni.plugin.undo import Attempt
from calico_cni.plugin.wiring import Wiring
from calico_cni.results import Interface, Result, print_result
from calico_ipam.datastore.api import Datastore, Entry
from calico_ipam.model.resource import Resource


@dataclass(frozen=True, slots=True)
class _Plan:
    """What stands fixed before anything is allocated."""

    name: str
    namespace: str
    labels: dict[str, str]
    records: Records
    replace_link: bool


def add_workload(wiring: Wiring, store: Datastore) -> Answer:
    """Network a workload, or answer with what an earlier ADD of it made."""
    call, identity = wiring.call, wiring.identity
    if call.conf.ip_addrs_no_ipam:
        raise CNIError("requested feature is not supported for this runtime: ip_addrs_no_ipam")
    plan = _plan(wiring, store)
    delegate = IPAMDelegate(call, store)
    own = plan.records.own
    if own is not None and wiring.dataplane.container_link(call.request.netns, identity.ifname) is not None:
        return _repeat(wiring, store, own)
    if own is not None or _asks_for_addresses(call):
        # An ADD of this container was killed half way: what it had taken is free again before new is asked for.
        delegate.delete()
    return _connect(wiring, store, plan, delegate)


def _plan(wiring: Wiring, store: Datastore) -> _Plan:
    """Find out all that can be refused (rulings 1, 2), while there is nothing to take back yet."""
    call, identity = wiring.call, wiring.identity
    labels, namespace = workload_namespace(call, identity)
    records = find_records(store, identity, namespace, wiring.host_name)
    name = identity.endpoint_name()
    check_names(name, identity.container_id, [call.conf.name])
    link = wiring.dataplane.host_link(wiring.host_name, call.request.netns)
    return _Plan(name, namespace, labels, records, may_replace(link, records, identity))


def _asks_for_addresses(call: Call) -> bool:
    """Does the call name its addresses? Then a killed ADD before this one would stand in its way."""
    return bool(parse_args(call.request.args, WORKLOAD_KEYS).ip or wanted_addresses(call.conf.document))


def _repeat(wiring: Wiring, store: Datastore, own: Entry) -> Answer:
    """Answer from the record: same result, no new address, no new link."""
    call = wiring.call
    add_profile(store, own, call.conf.name)
    _ensure_profile(call, store)
    spec = own.value.spec
    networks = spec.get("ipNetworks")
    addresses = [ip_interface(str(text)) for text in networks] if isinstance(networks, list) else []
    link = LinkResult(str(spec.get("mac") or ""), str(spec.get("interfaceName") or wiring.host_name))
    return Answer(print_result(connected(wiring, Result(), addresses, link), call.conf.version))


def _connect(wiring: Wiring, store: Datastore, plan: _Plan, delegate: IPAMDelegate) -> Answer:
    """Address, link, record, profile; whatever fails takes back what came before it."""
    call = wiring.call
    dataplane, netns, ifname = wiring.dataplane, call.request.netns, call.request.ifname
    with Attempt(call.log, call.context.stop) as attempt:
        offered = delegate.ask_for_addresses()
        attempt.address = delegate.delete
        ipam_result = delegate.result_of(offered)
        if not ipam_result.ips:
            raise CNIError("IPAM plugin returned no IP addresses in result")
        addresses = [single(ip.address) for ip in ipam_result.ips]
        link = dataplane.add(link_request(wiring, addresses, may_replace=plan.replace_link))
        attempt.link = lambda: dataplane.remove(netns, ifname, link.host_name)
        endpoint = _endpoint(wiring, plan, addresses, link.host_name, link.mac)
        attempt.record = lambda: _forget(store, endpoint, wiring.identity.container_id)
        write_endpoint(store, endpoint, plan.records.own)
        _ensure_profile(call, store)
        if call.conf.nat_outgoing:
            masquerade_pools(store, dataplane)
        text = print_result(connected(wiring, ipam_result, addresses, link), call.conf.version)
        attempt.commit()
    call.log.info(
        "Networked the container",
        endpoint=plan.name,
        link=link.host_name,
        addresses=" ".join(str(address) for address in addresses),
    )
    return Answer(text, fresh=True)


def _ensure_profile(call: Call, store: Datastore) -> None:
    if not call.conf.policy_type:
        ensure_profile(store, call.conf.name)


def _forget(store: Datastore, endpoint: Resource, container_id: str) -> None:
    """Remove the record of a failed ADD, if it was written at all."""
    stored = get_record(store, endpoint.name, endpoint.namespace)
    if stored is not None:
        delete_endpoint(store, stored, container_id)


def _endpoint(wiring: Wiring, plan: _Plan, addresses: Sequence[Interface], host_name: str, mac: str) -> Resource:
    spec = {
        "ipNetworks": [str(address) for address in addresses],
        "profiles": [wiring.call.conf.name],
        "interfaceName": host_name,
        "mac": mac,
    }
    return new_endpoint(plan.name, plan.namespace, wiring.identity, plan.labels, spec)
