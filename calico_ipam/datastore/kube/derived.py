"""Writing what is not stored for itself: endpoints are pods, Calico's nodes are Kubernetes' (datastore §9, §10).

Profiles are namespaces and service accounts, and are never written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from calico_ipam.datastore.api import Delete, Entry, Update, Value, Write
from calico_ipam.datastore.kube import nodes, pods
from calico_ipam.datastore.kube.api import MERGE, STRATEGIC_MERGE, Request
from calico_ipam.datastore.kube.objects import meta
from calico_ipam.datastore.kube.paths import Place
from calico_ipam.errors import InvalidInput, NotSupported
from calico_ipam.model.keys import ResourceKey
from calico_ipam.model.resource import KUBE_CONTROLLERS_CONFIGURATION, NODE, PROFILE, Resource, mapping

Call = Callable[[Request], dict[str, Any]]


def refuse_unwritable(write: Write) -> None:
    """Refuse what upstream's backend refuses, before anything is sent. Raises NotSupported, InvalidInput."""
    key = write.key
    if not isinstance(key, ResourceKey):
        return
    if key.kind == PROFILE:
        reason = "profiles are the cluster's namespaces and service accounts: change those"
        raise NotSupported(type(write).__name__, str(key), reason)
    if key.kind == NODE and not isinstance(write, Update):
        hint = "Nodes are Kubernetes' own: the kubelet registers them."
        raise NotSupported(type(write).__name__, str(key), hint=hint)
    if key == ResourceKey(KUBE_CONTROLLERS_CONFIGURATION, "default") and not isinstance(write, Delete):
        _check_labels_are_synchronised(key, write.value)


def _check_labels_are_synchronised(key: ResourceKey, value: Value) -> None:
    """Here nodes have no labels but those of Kubernetes (datastore §10)."""
    spec = value.spec if isinstance(value, Resource) else {}
    if mapping(mapping(spec.get("controllers")).get("node")).get("syncLabels") == "Disabled":
        raise InvalidInput(
            "invalid SyncLabels value",
            subject=str(key),
            hint="On the Kubernetes datastore controllers.node.syncLabels must be Enabled or left out.",
        )


def write_endpoint(call: Call, place: Place, write: Write) -> Entry:
    """Tell a pod's address in its annotations, or that it has none any more. Raises NotFound, Conflict."""
    if isinstance(write, Delete):
        value, patch = write.entry.value, pods.removal_patch(write.entry.revision, write.entry.uid)
    else:
        value, patch = write.value, pods.address_patch(cast(Resource, write.value))
    request = Request("PATCH", f"{place.path}/status", body=patch, content_type=STRATEGIC_MERGE)
    answer = call(request)
    return Entry(write.key, value, meta(answer, "resourceVersion"), meta(answer, "uid"), answer)


def write_node(call: Call, place: Place, write: Write, *, use_pod_cidr: bool) -> Entry:
    """Change the annotations of a node that Calico's fields are kept in."""
    write = cast(Update, write)  # anything else was refused
    patch = nodes.node_patch(write.entry.value, cast(Resource, write.value), write.entry.revision)
    answer = call(Request("PATCH", f"{place.path}/status", body=patch, content_type=MERGE))
    value = nodes.node_of(answer, use_pod_cidr=use_pod_cidr)
    return Entry(write.key, value, meta(answer, "resourceVersion"), meta(answer, "uid"), answer)
