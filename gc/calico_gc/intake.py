"""Changes, whatever they come from, on their way into the state (gc §2, §4)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from calico_gc.controller import Controller
from calico_gc.facts import VirtualMachines, kubernetes_name
from calico_ipam.datastore.api import Damaged, Entry, Event
from calico_ipam.model.keys import BlockKey, ResourceKey
from calico_ipam.model.resource import (
    CLUSTER_INFORMATION,
    IP_POOL,
    IP_RESERVATION,
    KUBE_CONTROLLERS_CONFIGURATION,
    NODE,
    Resource,
)

log = logging.getLogger(__name__)

#: kinds of changes beside the kinds of Calico's resources
BLOCK = "IPAMBlock"
KUBE_NODE = "kubernetes Node"
POD = "Pod"
MACHINE = "VirtualMachine"
INSTANCE = "VirtualMachineInstance"
MACHINES_THERE = "KubeVirt"
DAMAGED = "damaged"
RUNTIME = "runtime"


@dataclass(frozen=True, slots=True)
class Change:
    """One object is new, other than before, or gone (``value`` None). Of one object only the newest counts."""

    kind: str
    key: Any
    value: Any = None
    revision: str = ""


def stored(entry: Entry) -> Change | None:
    """Return the change that an entry of the datastore is; None for what the collector does not follow."""
    key = entry.key
    if isinstance(key, BlockKey):
        # A block that upstream marked as deleted still holds its ordinals for handles, and nothing for us.
        value = None if entry.value.deleted else entry.value
        return Change(BLOCK, str(key.cidr), value, entry.revision)
    if isinstance(key, ResourceKey):
        return Change(key.kind, key.name, entry.value, entry.revision)
    return None


def removed(entry: Entry) -> Change | None:
    found = stored(entry)
    return Change(found.kind, found.key, None, entry.revision) if found is not None else None


def damaged(bad: Damaged) -> Change:
    """An object that cannot be read: named, counted, and nothing in it is touched."""
    return Change(DAMAGED, name_of(bad), bad)


def mended(bad: Damaged) -> Change:
    """An object that could not be read is gone."""
    return Change(DAMAGED, name_of(bad))


def name_of(bad: Damaged) -> str:
    """Return what a damaged object is called: a block by its CIDR, others by their key, or by where they lie."""
    if isinstance(bad.key, BlockKey):
        return str(bad.key.cidr)
    return str(bad.key) if bad.key is not None else bad.path


def from_event(event: Event) -> Change | None:
    """Return the change that an event of a watch is; None for a bookmark."""
    if event.damaged is not None:
        return mended(event.damaged) if event.kind == "deleted" else damaged(event.damaged)
    if event.entry is None:
        return None
    return removed(event.entry) if event.kind == "deleted" else stored(event.entry)


class Intake:
    """Applies changes. ``kubernetes_nodes``: the Kubernetes API is the datastore, so both kinds of node are one."""

    def __init__(
        self,
        controller: Controller,
        *,
        kubernetes_nodes: bool,
        configured: Callable[[Resource | None, str], None] = lambda *_: None,
    ) -> None:
        self._controller = controller
        self._state = controller.state
        self._both = kubernetes_nodes
        self._configured = configured
        self._machines: set[tuple[str, str]] = set()
        self._instances: dict[tuple[str, str], bool] = {}

    def apply(self, change: Change) -> None:
        """Take one change over. Raises nothing for odd content: that is reported as a finding."""
        if self._state.damaged and change.kind != DAMAGED:
            self._state.damaged.pop(f"{change.kind}({change.key})", None)
        match change.kind:
            case "IPAMBlock":
                self._block(change)
            case "Node" | "kubernetes Node":
                self._node(change)
            case "Pod":
                if change.value is not None:
                    self._state.put_pod(change.value)
                else:
                    self._state.drop_pod(change.key)
            case "IPPool" | "IPReservation" | "ClusterInformation" | "KubeControllersConfiguration":
                self._resource(change)
            case "VirtualMachine" | "VirtualMachineInstance" | "KubeVirt":
                self._machine(change)
            case "runtime":
                self._state.runtime = change.value
                self._state.full_scan = True
            case "damaged" if change.value is not None:
                self._damaged(change.value)
            case "damaged":
                self._state.damaged.pop(change.key, None)

    def _block(self, change: Change) -> None:
        controller, state = self._controller, self._state
        controller.block_changed(change.key)
        if change.value is None:
            state.drop_block(change.key)
        else:
            state.put_block(change.value, change.revision)
        state.damaged.pop(change.key, None)
        controller.block_changed(change.key)

    def _node(self, change: Change) -> None:
        state = self._state
        if change.kind == NODE or self._both:
            self._controller.node_changed(change.key)
        if change.kind == NODE:
            self._controller.companions.relabel.add(kubernetes_name(change.value) or "" if change.value else "")
            if change.value is None:
                state.drop_node(change.key)
            else:
                state.put_node(change.value)
            return
        if change.value is None:
            state.drop_kube_node(change.key)
            self._controller.companions.look_for_gone = True
            if self._both:
                state.drop_node(change.key)
            return
        before = state.kube_nodes.get(change.key)
        if before is None or before.labels != change.value.labels:
            self._controller.companions.relabel.add(change.key)
        state.put_kube_node(change.value)
        if self._both:
            state.link_node(change.key, change.key)

    def _resource(self, change: Change) -> None:
        state, value = self._state, change.value
        if change.kind == IP_POOL:
            if value is None or value.metadata.get("deletionTimestamp"):
                state.pools.drop_pool(change.key)
                self._controller.record.forget_pool(change.key)
            elif complaint := state.pools.put_pool(value):
                log.warning("%s", complaint)
        elif change.kind == IP_RESERVATION:
            if value is None:
                state.reservations.pop(change.key, None)
            else:
                state.reservations[change.key] = value
        elif change.kind == CLUSTER_INFORMATION and change.key == "default":
            if value is None:
                state.drop_cluster_information()
            else:
                state.put_cluster_information(value, change.revision)
        elif change.kind == KUBE_CONTROLLERS_CONFIGURATION:
            if change.key == "default":
                self._configured(value, change.revision)
            else:
                log.warning("KubeControllersConfiguration %s is ignored: only 'default' counts", change.key)

    def _machine(self, change: Change) -> None:
        if change.kind == MACHINES_THERE:
            self._state.machines = self._known() if change.value else None
            return
        if change.kind == MACHINE:
            (self._machines.add if change.value is not None else self._machines.discard)(change.key)
        elif change.value is not None:
            self._instances[change.key] = change.value
        else:
            self._instances.pop(change.key, None)
        if self._state.machines is not None:
            self._state.machines = self._known()

    def _known(self) -> VirtualMachines:
        return VirtualMachines(frozenset(self._machines), dict(self._instances))

    def _damaged(self, bad: Damaged) -> None:
        """What was known of a block before it was damaged is not true any more: its addresses count as in use."""
        if isinstance(bad.key, BlockKey):
            self._state.drop_block(bad.key.cidr)
        name = name_of(bad)
        if name not in self._state.damaged:
            log.warning("%s cannot be read and is left alone: %s", bad.path, bad.reason)
            self._controller.record.unreadable[type(bad.key).__name__ if bad.key is not None else "unknown"] += 1
        self._state.damaged[name] = bad.reason
