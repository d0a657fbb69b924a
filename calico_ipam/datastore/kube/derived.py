"""Writing what is not stored for itself: endpoints are pods, Calico's nodes are Kubernetes' (datastore §9, §10)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from calico_ipam.datastore.api import Delete, Entry, Update, Write
from calico_ipam.datastore.kube import nodes, pods
from calico_ipam.datastore.kube.api import MERGE, STRATEGIC_MERGE, Request
from calico_ipam.datastore.kube.objects import meta
from calico_ipam.datastore.kube.paths import Place
from calico_ipam.errors import NotSupported
from calico_ipam.model.resource import Resource

Call = Callable[[Request], dict[str, Any]]


def write_endpoint(call: Call, place: Place, write: Write) -> Entry:
    """Tell a pod's address in its annotations, or that it has none any more. Raises NotFound, Conflict."""
    if isinstance(write, Delete):
        value, patch = write.entry.value, pods.removal_patch(write.entry.revision, write.entry.uid)
    else:
        value, patch = write.value, pods.address_patch(cast(Resource, write.value))
    request = Request("PATCH", f"{place.path}/status", body=patch, content_type=STRATEGIC_MERGE)
    answer = call(request)
    return Entry(write.key, value, meta(answer, "resourceVersion"), meta(answer, "uid"), answer)


def write_node(call: Call, place: Place, write: Write) -> Entry:
    """Change the annotations of a node that Calico's fields are kept in. Raises NotSupported for anything else."""
    if not isinstance(write, Update):
        raise NotSupported(type(write).__name__, str(write.key))
    patch = nodes.node_patch(write.entry.value, cast(Resource, write.value), write.entry.revision)
    answer = call(Request("PATCH", f"{place.path}/status", body=patch, content_type=MERGE))
    return Entry(write.key, nodes.node_of(answer), meta(answer, "resourceVersion"), meta(answer, "uid"), answer)
