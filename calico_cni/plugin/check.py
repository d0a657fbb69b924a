"""``calico`` CHECK: is everything that ADD made still there? (cni.md §2.7)"""

from __future__ import annotations

from calico_cni import timers
from calico_cni.context import Answer, Call
from calico_cni.dataplane.api import LinkExpectation
from calico_cni.delegate import IPAMDelegate
from calico_cni.errors import CNIError
from calico_cni.identity import Identity, identify
from calico_cni.plugin.endpoint import container_of, find_records
from calico_cni.plugin.labels import workload_namespace
from calico_cni.plugin.links import dataplane_of
from calico_cni.plugin.readiness import check_ready
from calico_cni.plugin.wiring import CLIENT_FAILED, host_interface
from calico_cni.previous import previous_result
from calico_cni.results import Result, ResultInterface
from calico_ipam.datastore.api import Datastore

#: Seconds that the host's side may take to converge: Felix may be rewriting it.
PATIENCE = 3.0


def check(call: Call) -> Answer:
    """Raise CNIError that tells everything that is not as ADD left it; print nothing."""
    result = previous_result(call.conf)
    identity = identify(call)
    interface = _own_interface(call, result)
    dataplane = dataplane_of(call)
    with call.store(CLIENT_FAILED) as store:
        check_ready(store, timers.RECORDS)
        if identity.for_kubernetes:
            from calico_cni.plugin.pod_check import check_pod

            found = check_pod(call, store, identity)
            problems, host_name, default_routes = found.problems, found.host_name, found.default_routes
        else:
            IPAMDelegate(call, store).check()
            problems, host_name = _record_problems(call, store, identity)
            default_routes = True
    expectation = LinkExpectation(
        host_name=host_name,
        container_name=identity.ifname,
        netns=call.request.netns,
        addresses=[ip.address for ip in result.ips],
        mac=interface.mac or None,
        default_routes=default_routes,
        patience=PATIENCE,
    )
    problems += dataplane.check(expectation)
    if problems:
        raise CNIError(
            "; ".join(problems), "Delete the sandbox and make it again; what is missing is not repaired in place."
        )
    return Answer()


def _own_interface(call: Call, result: Result) -> ResultInterface:
    """Return the sandbox's interface in the earlier result (not its routes: those are programmed nowhere)."""
    request = call.request
    for interface in result.interfaces:
        if interface.name == request.ifname and interface.sandbox == request.netns:
            return interface
    raise CNIError(
        f"prevResult has no interface {request.ifname} in sandbox {request.netns}",
        "CHECK needs the unchanged result of the sandbox's ADD.",
    )


def _record_problems(call: Call, store: Datastore, identity: Identity) -> tuple[list[str], str]:
    """Return what is wrong with the endpoint record, and the name of the host's link."""
    computed = host_interface(call, identity)
    _, namespace = workload_namespace(call, identity)
    own = find_records(store, identity, namespace, computed).own
    if own is None:
        return [f"there is no endpoint record {identity.endpoint_name()} in namespace {namespace}"], computed
    problems = []
    if container_of(own) != identity.container_id:
        problems.append(
            f"endpoint record {own.value.name} belongs to container {container_of(own)}, not {identity.container_id}"
        )
    return problems, str(own.value.spec.get("interfaceName") or computed)
