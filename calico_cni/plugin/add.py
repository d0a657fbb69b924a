"""``calico`` ADD: the part that every orchestrator shares (cni.md §6.1)."""

from __future__ import annotations

from dataclasses import replace

from calico_cni import timers
from calico_cni.context import Answer, Call
from calico_cni.identity import Identity, identify
from calico_cni.node import interface_mtu, require_nodename_file
from calico_cni.plugin.links import dataplane_of, device_type
from calico_cni.plugin.readiness import check_ready, pass_gates
from calico_cni.plugin.wiring import CLIENT_FAILED, Wiring, host_interface
from calico_ipam.datastore.api import Datastore
from calico_ipam.errors import NotFound


def add(call: Call) -> Answer:
    """Give the sandbox an address, a link and a record, or leave nothing behind."""
    conf = call.conf
    require_nodename_file(conf)
    mtu = interface_mtu(conf, call.context.paths.mtu_file)
    kind = device_type(call)
    identity = identify(call)
    wiring = Wiring(
        call=call,
        identity=identity,
        dataplane=dataplane_of(call),
        mtu=mtu,
        queues=max(1, conf.num_queues),
        device_type=kind,
        host_name=host_interface(call, identity),
    )
    with call.turn_of(wiring.host_name), call.store(CLIENT_FAILED) as store:
        check_ready(store, timers.RECORDS)
        pass_gates(call)
        return _branch(wiring, store)


def _branch(wiring: Wiring, store: Datastore) -> Answer:
    """Go on by orchestrator: the one place where pods of Kubernetes part from other workloads (§6.2, §6.5)."""
    if wiring.identity.for_kubernetes:
        from calico_cni.plugin.kubernetes import add_pod

        return add_pod(wiring, store)
    from calico_cni.plugin.workload import add_workload

    if store.capabilities.endpoints_are_pods:
        raise _no_pod(wiring.identity)
    return add_workload(wiring, store)


def _no_pod(identity: Identity) -> NotFound:
    """Return the refusal of a container that is no pod, on a datastore that has no other endpoints (§6.1 step 9)."""
    prefix = replace(identity, ifname="").ids.prefix()
    return NotFound(
        f"WorkloadEndpoint({identity.namespace}/{prefix}*)",
        "malformed WorkloadEndpoint name - unable to determine Pod name",
        hint="The Kubernetes datastore knows pods only: the runtime must send K8S_POD_NAMESPACE and K8S_POD_NAME.",
    )
