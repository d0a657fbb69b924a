"""Handles of virtual machines that are gone: told, never released (limit U5). Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from calico_gc.facts import VirtualMachines
from calico_ipam.errors import InvalidInput
from calico_ipam.model.handle_names import vm_handle


def machine_handles(handles: Iterable[str], machines: VirtualMachines) -> dict[str, set[str]]:
    """Return, by network, the handles that all machines and standalone instances have on the networks in use."""
    networks = {handle.partition(".vmi.")[0] for handle in handles if ".vmi." in handle}
    names = {*machines.machines, *(key for key, owned in machines.instances.items() if not owned)}
    found: dict[str, set[str]] = {network: set() for network in networks}
    for network, expected in found.items():
        for namespace, name in names:
            try:
                expected.add(vm_handle(network, namespace, name))
            except InvalidInput:
                continue  # no handle can exist for such a name
    return found


def orphaned_machine_handles(handles: Iterable[str], expected: Mapping[str, Collection[str]]) -> list[str]:
    """Return the handles of virtual machines that no machine would have today (limit U5, report-only).

    ``expected``: network -> handles of all machines and standalone instances there are.
    """
    found = []
    for handle in handles:
        network, vm, _ = handle.partition(".vmi.")
        if vm and handle not in expected.get(network, ()):
            found.append(handle)
    return found
