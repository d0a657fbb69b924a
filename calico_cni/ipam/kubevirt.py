"""Virtual machines of KubeVirt, whose addresses follow them from pod to pod (cni.md §7.5, ipam-library §15).

A machine's pod is called ``virt-launcher-…`` and owned by a VirtualMachineInstance. The addresses are held under a
handle of the machine; their *active* owner is the pod that runs it, the *alternate* one the target of a migration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from calico_cni import timers
from calico_cni.context import Call, Cluster
from calico_cni.errors import CNIError, code_of
from calico_cni.identity import Identity
from calico_ipam.datastore.api import Deadline
from calico_ipam.engine.client import IPAM
from calico_ipam.engine.owners import OwnerPreconditions, OwnerUpdates
from calico_ipam.errors import AddressInCooldown, IPAMError, NotFound
from calico_ipam.model.addresses import Address
from calico_ipam.model.handle_names import vm_handle
from calico_ipam.model.owner import VM_UID, VMI_NAME, VMI_UID, VMIM_UID, Owner
from calico_ipam.model.resource import mapping

MIGRATION = "kubevirt.io/migrationJobUID"

_API = "kubevirt.io/v1"
_INSTANCE = "VirtualMachineInstance"
_MACHINE = "VirtualMachine"
_OFF = "Disabled"


@dataclass(frozen=True, slots=True)
class Machine:
    """The virtual machine that a pod runs, or will run after its migration.

    ``vm_uid``: empty for an instance that no VirtualMachine owns. ``migration``: UID of the migration whose target the
    pod is, empty for a source. ``ending``: the machine itself is going, and its addresses with it.
    """

    namespace: str
    name: str
    uid: str
    vm_uid: str = ""
    migration: str = ""
    ending: bool = False

    @property
    def is_target(self) -> bool:
        return bool(self.migration)

    def handle(self, network: str) -> str:
        """Return the handle that the machine's addresses on a network are held under. Raises InvalidInput."""
        return vm_handle(network, self.namespace, self.name)

    def attributes(self) -> dict[str, str]:
        """Return what is written beside an address in addition to what is written for every pod."""
        found = {VMI_NAME: self.name, VMI_UID: self.uid, VM_UID: self.vm_uid, VMIM_UID: self.migration}
        return {name: value for name, value in found.items() if value}


def machine_to_add(cluster: Cluster, identity: Identity) -> Machine | None:
    """Return the machine of a launcher pod; None: it is an ordinary pod. Raises CNIError."""
    cluster = cluster.within(Deadline.after(timers.RECORDS))
    try:
        pod = cluster.pod(identity.namespace, identity.pod)
        reference = _controller(pod, _INSTANCE)
        if reference is None:
            return None
        name, uid = str(reference.get("name") or ""), str(reference.get("uid") or "")
        instance = _instance(cluster, identity.namespace, name)
        found = str(mapping(instance.get("metadata")).get("uid") or "")
        if found != uid:
            raise CNIError(f"VMI UID mismatch: pod ownerReference has {uid} but VMI resource has {found}")
    except (CNIError, IPAMError) as error:
        raise _without_machine(error) from error
    owner = _controller(instance, _MACHINE) or {}
    return Machine(identity.namespace, name, uid, str(owner.get("uid") or ""), _migration(pod))


def machine_to_delete(cluster: Cluster, identity: Identity) -> Machine | None:
    """Return the machine of a launcher pod that goes; None: an ordinary pod, or one that is gone.

    An instance that is gone, or made anew, must not keep its old pod from going (P21): the pod's own reference tells
    the machine's name. Raises CNIError.
    """
    cluster = cluster.within(Deadline.after(timers.RECORDS))
    try:
        pod = cluster.pod(identity.namespace, identity.pod)
    except NotFound:
        return None
    except IPAMError as error:
        raise _without_machine(error) from error
    reference = _controller(pod, _INSTANCE)
    if reference is None:
        return None
    name, uid = str(reference.get("name") or ""), str(reference.get("uid") or "")
    try:
        ending, vm_uid = _fate(cluster, identity.namespace, name, uid)
    except (CNIError, IPAMError) as error:
        raise _without_machine(error) from error
    return Machine(identity.namespace, name, uid, vm_uid, _migration(pod), ending)


def _fate(cluster: Cluster, namespace: str, name: str, uid: str) -> tuple[bool, str]:
    """Tell whether the machine is going, and the UID of the VirtualMachine that owns its instance."""
    try:
        instance: Mapping[str, Any] = cluster.machine_instance(namespace, name)
    except NotFound:
        return _is_going(cluster, namespace, name), ""
    metadata = mapping(instance.get("metadata"))
    if str(metadata.get("uid") or "") != uid:
        return False, ""  # made anew: the addresses are the new instance's
    owner = _controller(instance, _MACHINE)
    if owner is None:
        return bool(metadata.get("deletionTimestamp")), ""
    return _is_going(cluster, namespace, str(owner.get("name") or "")), str(owner.get("uid") or "")


def _is_going(cluster: Cluster, namespace: str, machine: str) -> bool:
    try:
        found = cluster.machine(namespace, machine)
    except NotFound:
        return True
    return bool(mapping(found.get("metadata")).get("deletionTimestamp"))


def _instance(cluster: Cluster, namespace: str, name: str) -> Mapping[str, Any]:
    try:
        return cluster.machine_instance(namespace, name)
    except NotFound as error:
        raise CNIError(f"failed to query VMI resource {namespace}/{name}: {error.reason}") from None


def _without_machine(error: CNIError | IPAMError) -> CNIError:
    text = error.reason if isinstance(error, NotFound) and error.reason else str(error)
    return CNIError(f"failed to get VMI info: {text}", str(getattr(error, "hint", "") or ""), code=code_of(error))


def _controller(document: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    """Return the reference to the controlling owner of that kind."""
    references = mapping(document.get("metadata")).get("ownerReferences")
    for reference in references if isinstance(references, list) else ():
        fields = mapping(reference)
        if fields.get("controller") is True and (fields.get("apiVersion"), fields.get("kind")) == (_API, kind):
            return fields
    return None


def _migration(pod: Mapping[str, Any]) -> str:
    return str(mapping(mapping(pod.get("metadata")).get("labels")).get(MIGRATION) or "")


# --- addresses ----------------------------------------------------------------------------------------------


def is_persistent(call: Call, ipam: IPAM) -> bool:
    """Tell whether addresses follow machines; settings that cannot be read do not change what is the default."""
    try:
        config = ipam.within(Deadline.after(timers.SETTINGS)).get_config()
    except IPAMError as error:
        call.log.warning("The IPAM settings cannot be read; addresses follow their virtual machines", error=error)
        return True
    return config.kubevirt_persistence != _OFF


def held_by(ipam: IPAM, handle: str) -> list[Address]:
    """Return the addresses of a machine, none when it has no handle yet."""
    try:
        return ipam.ips_by_handle(handle)
    except NotFound:
        return []


def take_over(ipam: IPAM, machine: Machine, handle: str, addresses: list[Address], attrs: Mapping[str, str]) -> None:
    """Make this pod the active owner of the machine's addresses, or the alternate one while it is a target."""
    updates = OwnerUpdates(alternate=attrs) if machine.is_target else OwnerUpdates(active=attrs)
    for address in addresses:
        ipam.set_owner_attributes(address, handle, updates)


def give_up(ipam: IPAM, machine: Machine, handle: str, pod: Owner) -> bool:
    """Take the pod's name off the machine's addresses; release them when the machine goes and nobody has them.

    Returns whether they were released. Raises OwnerMismatch when somebody else changes the owner: the runtime repeats.
    """
    for address in held_by(ipam, handle):
        owners = _owners(ipam, address, handle)
        if pod.matches(owners[0]):
            ipam.set_owner_attributes(address, handle, OwnerUpdates(active={}), OwnerPreconditions(active=pod))
        elif pod.matches(owners[1]):
            ipam.set_owner_attributes(address, handle, OwnerUpdates(alternate={}), OwnerPreconditions(alternate=pod))
    if not machine.ending:
        return False
    left = held_by(ipam, handle)
    if not left or any(owner for address in left for owner in _owners(ipam, address, handle)):
        return False
    ipam.release_by_handle(handle)
    return True


def _owners(ipam: IPAM, address: Address, handle: str) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return active and alternate owner; an address that is gone, cooling down or another's has none of ours."""
    try:
        found = ipam.assignment_attributes(address)
    except (NotFound, AddressInCooldown):
        return {}, {}
    return (found.active, found.alternate) if found.handle == handle else ({}, {})
