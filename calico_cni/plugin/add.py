"""``calico`` ADD: the part that every orchestrator shares (cni.md §6.1)."""

from __future__ import annotations

from calico_cni import timers
from calico_cni.context import Answer, Call
from calico_cni.errors import CNIError
from calico_cni.identity import identify
from calico_cni.node import interface_mtu, require_nodename_file
from calico_cni.plugin.links import dataplane_of, device_type
from calico_cni.plugin.readiness import check_ready, pass_gates
from calico_cni.plugin.wiring import CLIENT_FAILED, Wiring, host_interface
from calico_ipam.datastore.api import Datastore


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
    with call.store(CLIENT_FAILED) as store:
        check_ready(store, timers.RECORDS)
        pass_gates(call)
        return _branch(wiring, store)


def _branch(wiring: Wiring, store: Datastore) -> Answer:
    """Go on by orchestrator: the one place where pods of Kubernetes part from other workloads (§6.2, §6.5)."""
    from calico_cni.plugin.workload import add_workload

    if wiring.identity.for_kubernetes:
        raise CNIError(
            f"pod {wiring.identity.namespace}/{wiring.identity.pod} cannot be networked: this release does not know "
            "pods of Kubernetes",
            "It networks containers without K8S_POD_NAME and K8S_POD_NAMESPACE in CNI_ARGS.",
        )
    return add_workload(wiring, store)
