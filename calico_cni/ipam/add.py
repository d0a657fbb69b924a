"""``calico-ipam`` ADD: addresses for one sandbox (cni.md §7.1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ipaddress import IPv4Interface, IPv6Interface, ip_interface

from calico_cni import timers
from calico_cni.args import ADDRESS_KEYS, parse_args
from calico_cni.context import Answer, Call
from calico_cni.errors import CNIError, cni_error
from calico_cni.identity import Identity, identify
from calico_cni.ipam.assignment import Assignment
from calico_cni.ipam.launcher import may_be_launcher
from calico_cni.ipam.lock import host_lock
from calico_cni.ipam.pools import resolve_pools
from calico_cni.ipam.upgrade import upgrade_before_search, upgrade_once
from calico_cni.netconf import wanted_addresses
from calico_cni.results import Result, ResultIP, ResultRoute, print_result
from calico_cni.stopping import not_undone
from calico_ipam.datastore.api import Datastore, Deadline
from calico_ipam.engine.client import IPAM
from calico_ipam.engine.results import AutoAssigned, NamespaceLabels
from calico_ipam.errors import IPAMError, NotFound
from calico_ipam.model.addresses import Address
from calico_ipam.model.handle import check_handle
from calico_ipam.model.pool import WORKLOAD
from calico_ipam.model.resource import mapping

Found = Sequence[IPv4Interface | IPv6Interface]


def add(call: Call) -> Answer:
    """Assign what is asked for and print it; on any failure nothing stays assigned."""
    identity = identify(call)
    identity.endpoint_name()  # must be possible, since whoever wires the sandbox will need it (§7.1 step 2)
    wanted = _wanted(call)
    assignment = Assignment.of(call, identity)
    check_handle(assignment.handle)
    with call.store() as store:
        if may_be_launcher(call, store, identity):
            from calico_cni.ipam.machine import add_machine

            answer = add_machine(call, store, identity, assignment, wanted)
            if answer is not None:
                return answer
        return assign_new(call, store, identity, assignment, wanted)


def assign_new(
    call: Call, store: Datastore, identity: Identity, assignment: Assignment, wanted: Sequence[Address]
) -> Answer:
    """Assign addresses that nobody holds yet."""
    assign = _specific(call, assignment, wanted) if wanted else _automatic(call, store, identity, assignment)
    ipam = IPAM(store, hostname=identity.node, clock=call.context.clock)
    with host_lock(call.conf.ipam_lock_file, call.log, call.context.stop.heed):
        try:
            found = assign(ipam.within(Deadline.after(timers.ALLOCATION)))
            text = print_result(result_of(found), call.conf.version)
        except BaseException as error:
            with call.context.stop.undoing():
                if not assignment.take_back(ipam, call.log):
                    not_undone(error)
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
        upgrade_once(call, ipam)
        for address in wanted:
            ipam.assign_ip(
                address,
                handle=assignment.handle,
                attrs=assignment.attrs,
                use=WORKLOAD,
                max_per_handle=assignment.most,
            )
        return [ip_interface(address) for address in wanted]

    return assign


def _automatic(call: Call, store: Datastore, identity: Identity, assignment: Assignment) -> Callable[[IPAM], Found]:
    """Return what assigns an address of each wanted family; whatever can be refused before is refused now (step 7)."""
    conf = call.conf
    pools4 = resolve_pools(store, conf.ipam.ipv4_pools, 4)
    pools6 = resolve_pools(store, conf.ipam.ipv6_pools, 6)
    namespace = namespace_labels(call, store, identity.namespace) if conf.for_kubernetes else None

    def assign(ipam: IPAM) -> Found:
        upgrade_before_search(call, ipam)
        found = ipam.auto_assign(
            use=WORKLOAD,
            num4=int(conf.ipam.assign_ipv4),
            num6=int(conf.ipam.assign_ipv6),
            handle=assignment.handle,
            attrs=assignment.attrs,
            ipv4_pools=pools4,
            ipv6_pools=pools6,
            max_blocks_per_host=1 if conf.windows_use_single_network else 0,
            max_per_handle=assignment.most,
            namespace=namespace,
        )
        _require_all(found)
        return [ip_interface(str(address)) for address in found.addresses]

    return assign


def _require_all(found: AutoAssigned) -> None:
    """Raise CNIError when a family came short; what the other one got is taken back by the caller."""
    for part in (found.ipv4, found.ipv6):
        if part is not None and part.shortfall is not None:
            raise CNIError(f"failed to request IPv{part.version} addresses: {part.shortfall}", " ".join(part.hints))


def namespace_labels(call: Call, store: Datastore, namespace: str) -> NamespaceLabels:
    """Return the namespace of a request, for pools that select namespaces. Raises CNIError."""
    try:
        cluster = call.cluster(store).within(Deadline.after(timers.RECORDS))
        found = mapping(cluster.namespace(namespace).get("metadata"))
    except NotFound as error:
        raise CNIError(f"failed to get namespace {namespace}: {error.reason or error}", error.hint) from error
    except IPAMError as error:
        raise cni_error(error, f"failed to get namespace {namespace}: ") from error
    return NamespaceLabels(namespace, {str(k): str(v) for k, v in mapping(found.get("labels")).items()})


def result_of(found: Found) -> Result:
    """Return the result: each address with its block's length, and one route with that very text (§7.1 step 9)."""
    return Result(
        ips=tuple(ResultIP(address) for address in found),
        routes=tuple(ResultRoute(str(address)) for address in found),
    )
