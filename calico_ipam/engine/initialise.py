"""What upstream's client puts into an empty datastore before it writes: cluster information and the built-in tiers."""

from __future__ import annotations

import logging
import uuid

from calico_ipam.datastore.api import Create, Entry, Update
from calico_ipam.engine.world import Engine
from calico_ipam.errors import AlreadyExists, IPAMError, NotFound, NotSupported
from calico_ipam.model.keys import ResourceKey
from calico_ipam.model.resource import CLUSTER_INFORMATION, Resource
from calico_ipam.model.timestamps import format_time

log = logging.getLogger(__name__)

CLUSTER = ResourceKey(CLUSTER_INFORMATION, "default")
TIER = "Tier"

#: name, order, what happens to traffic that none of its policies decide
TIERS = (("default", 1_000_000, "Deny"), ("kube-admin", 1_000, "Pass"), ("kube-baseline", 10_000_000, "Pass"))


def initialise(engine: Engine, *, kubernetes: bool) -> None:
    """Create what is missing. ``kubernetes``: the datastore is the Kubernetes API. Raises the datastore's errors."""
    _ensure_cluster(engine, kubernetes=kubernetes)
    for name, order, action in TIERS:
        spec = {"order": order, "defaultAction": action}
        document = {**Resource.new(TIER, name, spec).document, **({} if kubernetes else {"status": {}})}
        try:
            engine.store.commit(Create(ResourceKey(TIER, name), stamped(engine, Resource(TIER, name, document))))
        except (AlreadyExists, NotSupported, NotFound):
            continue  # it is there, or this cluster has no tiers


def _ensure_cluster(engine: Engine, *, kubernetes: bool) -> None:
    spec = {"clusterGUID": uuid.uuid4().hex, "datastoreReady": True}
    if kubernetes:
        spec |= {"clusterType": "kdd"}
    stored = engine.store.read(CLUSTER).entry(CLUSTER)
    if stored is None:
        try:
            made = Resource.new(CLUSTER_INFORMATION, "default", spec)
            engine.store.commit(Create(CLUSTER, stamped(engine, made)))
        except AlreadyExists:
            return
    elif not stored.value.spec.get("clusterGUID"):
        _complete(engine, stored, spec)


def _complete(engine: Engine, stored: Entry, spec: dict[str, object]) -> None:
    """Give a cluster information without an identity one; everything else in it stays."""
    engine.store.commit(
        Update(stored, stored.value.with_spec({**spec, **stored.value.spec, "clusterGUID": spec["clusterGUID"]}))
    )


def stamped(engine: Engine, resource: Resource) -> Resource:
    """Return a new resource with its creation time, which upstream keeps beside the API server's own; stores of texts
    add it by themselves."""
    if engine.store.capabilities.atomic:
        return resource
    metadata = {**resource.metadata, "creationTimestamp": format_time(engine.clock.now())}
    return Resource(resource.kind, resource.name, {**resource.document, "metadata": metadata}, resource.namespace)


def initialise_quietly(engine: Engine, *, kubernetes: bool) -> None:
    """As :func:`initialise`; failing is no reason not to go on."""
    try:
        initialise(engine, kubernetes=kubernetes)
    except IPAMError as error:
        log.warning("the datastore could not be initialised: %s", error)
