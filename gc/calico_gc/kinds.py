"""How objects of the Kubernetes API become changes, kind by kind (gc §2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from calico_gc import intake
from calico_gc.facts import cached_pod, kube_node, owned_by_machine
from calico_gc.intake import Change
from calico_ipam.datastore.api import Damaged
from calico_ipam.datastore.kube.codec import Group
from calico_ipam.datastore.kube.objects import entry_of, meta
from calico_ipam.datastore.kube.paths import collection_of
from calico_ipam.model.keys import Scope


@dataclass(frozen=True, slots=True)
class Kind:
    """How objects of one collection of the Kubernetes API become changes.

    ``optional``: where the server does not know the collection there is nothing of it (Calico's definitions may be
    absent). Of any other kind "not found" says nothing: pods and nodes always exist, and machines whose definition is
    taken away for a moment are not gone.
    """

    name: str
    path: str
    change: Callable[[Mapping[str, Any]], Change | None]
    gone: Callable[[Mapping[str, Any]], Change | None]
    optional: bool = False


def calico_kind(scope: Scope, group: Group) -> Kind:
    """Return how Calico's custom resources of a scope become changes."""
    collection = collection_of(scope, group)

    def change(document: Mapping[str, Any]) -> Change | None:
        found = entry_of(collection.kind, document, group)
        return intake.damaged(found) if isinstance(found, Damaged) else intake.stored(found)

    def gone(document: Mapping[str, Any]) -> Change | None:
        found = entry_of(collection.kind, document, group)
        return intake.mended(found) if isinstance(found, Damaged) else intake.removed(found)

    return Kind(collection.kind, collection.path, change, gone, optional=True)


def _pod_key(document: Mapping[str, Any]) -> tuple[str, str]:
    return meta(document, "namespace"), meta(document, "name")


PODS = Kind(
    "pods",
    "/api/v1/pods",
    lambda document: Change(intake.POD, _pod_key(document), cached_pod(document)),
    lambda document: Change(intake.POD, _pod_key(document)),
)
NODES = Kind(
    "nodes",
    "/api/v1/nodes",
    lambda document: Change(intake.KUBE_NODE, meta(document, "name"), kube_node(document)),
    lambda document: Change(intake.KUBE_NODE, meta(document, "name")),
)
MACHINES = Kind(
    "virtualmachines",
    "/apis/kubevirt.io/v1/virtualmachines",
    lambda document: Change(intake.MACHINE, _pod_key(document), True),
    lambda document: Change(intake.MACHINE, _pod_key(document)),
)
INSTANCES = Kind(
    "virtualmachineinstances",
    "/apis/kubevirt.io/v1/virtualmachineinstances",
    lambda document: Change(intake.INSTANCE, _pod_key(document), owned_by_machine(document)),
    lambda document: Change(intake.INSTANCE, _pod_key(document)),
)
