"""``calico-ipam`` ADD: addresses for one sandbox (cni.md §7.1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ipaddress import IPv4Interface, IPv6Interface, ip_interface

from calico_cni import timers
from calico_cni.args import ADDRESS_KEYS, parse_args
from calico_cni.context import Answer, Call
from calico_cni.errors import CNIError
from calico_cni.identity import Identity, identify
from calico_cni.ipam.assignment import Assignment
from calico_cni.ipam.lock import host_lock
from calico_cni.ipam.pools import resolve_pools
from calico_cni.ipam.upgrade import mark_upgraded
from calico_cni.netconf import wanted_addresses
from calico_cni.results import Result, ResultIP, ResultRoute, print_result
from calico_ipam.datastore.api import Datastore, Deadline
from calico_ipam.engine.client import IPAM
from calico_ipam.engine.results import AutoAssigned
from calico_ipam.errors import NotConfigured
from calico_ipam.model.addresses import Address
from calico_ipam.model.handle import check_handle
from calico_ipam.model.pool import WORKLOAD

Found = Sequence[IPv4Interface | IPv6Interface]


def add(call: Call) -> Answer:
    """Assign what is asked for and print it; on any failure nothing stays assigned."""
    identity = identify(call)
    identity.endpoint_name()  # must be possible, since whoever wires the sandbox will need it (§7.1 step 2)
    wanted = _wanted(call)
    assignment = Assignment.of(call, identity)
    check_handle(assignment.handle)
    with call.store() as store:
        assign = _specific(call, assignment, wanted) if wanted else _automatic(call, store, identity, assignment)
        ipam = IPAM(store, hostname=identity.node, clock=call.context.clock)
        with host_lock(call.conf.ipam_lock_file, call.log):
            try:
                found = assign(ipam.within(Deadline.after(timers.ALLOCATION)))
                text = print_result(_result(found), call.conf.version)
            except BaseException:
                assignment.take_back(ipam, call.log)
                raise
    call.log.info("Assigned addresses", handle=assignment.handle, addresses=" ".join(str(i) for i in found))
    return Answer(text, fresh=True)


def _wanted(call: Call) -> tuple[Address, ...]:
    """Return the addresses asked for, IPv4 first; the configuration's conventions win over CNI_ARGS (§15.12)."""
    given = parse_args(call.request.args, ADDRESS_KEYS).ip
    wanted = wanted_addresses(call.conf.document) or ((given,) if given is not None else ())
    return tuple(sorted(wanted, key=lambda address: address.version))


def _specific(call: Call, assignment: Assignment, wanted: Sequence[Address]) -> Callable[[IPAM], Found]:
    """Return what assigns the given addresses (§7.1 step 6)."""

    def assign(ipam: IPAM) -> Found:
        mark_upgraded(call.context.paths.upgrade_marker)
        for address in wanted:
            ipam.assign_ip(address, handle=assignment.handle, attrs=assignment.attrs, use=WORKLOAD)
        return [ip_interface(address) for address in wanted]

    return assign


def _automatic(call: Call, store: Datastore, identity: Identity, assignment: Assignment) -> Callable[[IPAM], Found]:
    """Return what assigns an address of each wanted family; whatever can be refused before is refused now (step 7)."""
    conf = call.conf
    pools4 = resolve_pools(store, conf.ipam.ipv4_pools, 4)
    pools6 = resolve_pools(store, conf.ipam.ipv6_pools, 6)
    if conf.for_kubernetes and identity.namespace:
        raise no_namespace(call, identity.namespace)

    def assign(ipam: IPAM) -> Found:
        found = ipam.auto_assign(
            use=WORKLOAD,
            num4=int(conf.ipam.assign_ipv4),
            num6=int(conf.ipam.assign_ipv6),
            handle=assignment.handle,
            attrs=assignment.attrs,
            ipv4_pools=pools4,
            ipv6_pools=pools6,
            max_blocks_per_host=1 if conf.windows_use_single_network else 0,
        )
        _require_all(found)
        return [ip_interface(str(address)) for address in found.addresses]

    return assign


def _require_all(found: AutoAssigned) -> None:
    """Raise CNIError when a family came short; what the other one got is taken back by the caller."""
    for part in (found.ipv4, found.ipv6):
        if part is not None and part.shortfall is not None:
            raise CNIError(f"failed to request IPv{part.version} addresses: {part.shortfall}")


def no_namespace(call: Call, namespace: str) -> NotConfigured:
    """Return the error for a configuration that wants a namespace read from Kubernetes, which this release cannot."""
    if not call.conf.kubeconfig:
        cause = "invalid configuration: no configuration has been provided, "
        cause += "try setting KUBERNETES_MASTER environment variable"
        hint = 'Set "kubeconfig" in the "kubernetes" section, or remove policy.type on a host without Kubernetes.'
    else:
        cause = "this release has no Kubernetes backend"
        hint = 'On a host without Kubernetes remove the "kubernetes" section and policy.type.'
    return NotConfigured(f"failed to get namespace {namespace}: {cause}", subject=namespace, hint=hint)


def _result(found: Found) -> Result:
    """Return the result: each address with its block's length, and one route with that very text (§7.1 step 9)."""
    return Result(
        ips=tuple(ResultIP(address) for address in found),
        routes=tuple(ResultRoute(str(address)) for address in found),
    )
