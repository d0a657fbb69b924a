"""``calico-ipam`` ADD and DEL for pods that run a virtual machine (cni.md §7.5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from ipaddress import ip_interface

from calico_cni import timers
from calico_cni.context import Answer, Call
from calico_cni.errors import CNIError
from calico_cni.identity import Identity
from calico_cni.ipam.add import assign_new, result_of
from calico_cni.ipam.assignment import Assignment
from calico_cni.ipam.kubevirt import (
    give_up,
    is_persistent,
    machine_to_add,
    machine_to_delete,
    take_over,
)
from calico_cni.ipam.lock import host_lock
from calico_cni.results import print_result
from calico_ipam.datastore.api import Datastore, Deadline
from calico_ipam.engine.client import IPAM
from calico_ipam.errors import NotFound
from calico_ipam.model.addresses import Address
from calico_ipam.model.handle import check_handle
from calico_ipam.model.owner import Owner


def add_machine(
    call: Call, store: Datastore, identity: Identity, assignment: Assignment, wanted: Sequence[Address]
) -> Answer | None:
    """Give a launcher pod its machine's addresses, or new ones under the machine's handle; None: an ordinary pod."""
    machine = machine_to_add(call.cluster(store), identity)
    if machine is None:
        return None
    ipam = IPAM(store, hostname=identity.node, clock=call.context.clock)
    if not is_persistent(call, ipam):
        if machine.is_target:
            raise CNIError(
                "live migration target pod is not allowed when KubeVirtVMAddressPersistence is disabled",
                "Enable kubeVirtVMAddressPersistence in the IPAM configuration, or stop the migration.",
            )
        return None
    handle = machine.handle(call.conf.name)
    check_handle(handle)
    assignment = assignment.for_machine(handle, machine.attributes())
    missing = ""
    with host_lock(call.conf.ipam_lock_file, call.log, call.context.stop.heed):
        bound = ipam.within(Deadline.after(timers.REUSE))
        try:
            held = bound.ips_by_handle(handle)
        except NotFound as error:
            held, missing = [], f": {error}"
        take_over(bound, machine, handle, held, assignment.attrs)
    if held:
        call.log.info("The machine's addresses go on with this pod", handle=handle, addresses=" ".join(map(str, held)))
        result = result_of([ip_interface(address) for address in held])
        if machine.is_target:
            # Without routes: the addresses are still the source's, and the host's route moves with them later.
            result = replace(result, routes=())
        return Answer(print_result(result, call.conf.version), fresh=True)
    if machine.is_target:
        raise CNIError(
            f"migration target pod but no IP allocated to VM handle {handle}{missing}",
            "A migration continues with the addresses of its source, which has none.",
        )
    return assign_new(call, store, identity, assignment, wanted)


def machine_handle(call: Call, store: Datastore, identity: Identity) -> str | None:
    """Return the handle of the machine that a launcher pod runs; None: its addresses are its own. Raises CNIError."""
    machine = machine_to_add(call.cluster(store), identity)
    if machine is None or not is_persistent(call, IPAM(store, hostname=identity.node, clock=call.context.clock)):
        return None
    return machine.handle(call.conf.name)


def delete_machine(call: Call, store: Datastore, identity: Identity) -> None:
    """Let a launcher pod that goes give up its machine's addresses. Does nothing for ordinary pods.

    What the pod holds as an ordinary pod is released by the caller all the same: persistence may have been switched
    on meanwhile.
    """
    machine = machine_to_delete(call.cluster(store), identity)
    if machine is None:
        return
    ipam = IPAM(store, hostname=identity.node, clock=call.context.clock)
    if not is_persistent(call, ipam):
        return
    handle = machine.handle(call.conf.name)
    with host_lock(call.conf.ipam_lock_file, call.log, call.context.stop.heed):
        bound = ipam.within(Deadline.after(timers.ALLOCATION))
        if give_up(bound, machine, handle, Owner(identity.namespace, identity.pod)):
            call.log.info("Released the addresses of a virtual machine that goes", handle=handle)
