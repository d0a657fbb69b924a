"""Where things are in the Kubernetes API, and how lists are narrowed (datastore §1, §3.2, §9)."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import quote

from calico_ipam.datastore.kube.codec import Group
from calico_ipam.errors import InvalidInput, NotFound, NotSupported
from calico_ipam.model import endpoint_names, names
from calico_ipam.model.affinity import HOST, VIRTUAL
from calico_ipam.model.keys import (
    Affinities,
    AffinityKey,
    BlockKey,
    Blocks,
    ConfigKey,
    HandleKey,
    Handles,
    Key,
    ResourceKey,
    Resources,
    Scope,
)
from calico_ipam.model.resource import BLOCK_AFFINITY, IPAM_CONFIGURATION, NODE, PROFILE, WORKLOAD_ENDPOINT

NAMESPACES = "/api/v1/namespaces"

#: kinds of v3 resources that are custom resources -> plural
_KINDS = {
    "IPPool": "ippools",
    "IPReservation": "ipreservations",
    "ClusterInformation": "clusterinformations",
    "KubeControllersConfiguration": "kubecontrollersconfigurations",
    "Tier": "tiers",
}
#: what the engine has keys of its own for, as a v3 resource: kind of place and collection -> kind of resource
VIEWS = {"BlockAffinity resource": BLOCK_AFFINITY, "IPAMConfiguration resource": IPAM_CONFIGURATION}


@dataclass(frozen=True, slots=True)
class Place:
    """One object: its kind, its collection and its name."""

    kind: str
    collection: str
    name: str

    @property
    def path(self) -> str:
        return f"{self.collection}/{quote(self.name, safe='')}"


@dataclass(frozen=True, slots=True)
class Collection:
    """One list: what kind it holds, its path and the query that narrows it."""

    kind: str
    path: str
    query: dict[str, str] = field(default_factory=dict)


def place_of(key: Key, group: Group, operation: str = "Get") -> Place:
    """Return where an object is. Raises NotSupported to do ``operation``, InvalidInput for a key without a name."""
    match key:
        case BlockKey(cidr):
            return Place("IPAMBlock", _collection("ipamblocks", group), names.cidr_name(cidr))
        case AffinityKey(owner, cidr):
            return Place("BlockAffinity", _collection("blockaffinities", group), names.affinity_name(owner.host, cidr))
        case HandleKey(handle):
            if not handle:
                raise InvalidInput("resource name may not be empty", hint="Name the handle.")
            return Place("IPAMHandle", _collection("ipamhandles", group), names.handle_name(handle))
        case ConfigKey():
            return Place(group.config_kind, _collection(group.config_plural, group), "default")
        case ResourceKey():
            return _resource_place(key, group, operation)
        case _:
            raise NotSupported(operation, str(key), "the Kubernetes datastore has no such objects")


def _resource_place(key: ResourceKey, group: Group, operation: str) -> Place:
    for text in (key.name, key.namespace):
        if "/" in text:
            raise InvalidInput(
                f"{key} cannot be stored: {text!r} contains a slash",
                subject=str(key),
                hint="Use a name without a slash.",
            )
    if not key.name:
        raise InvalidInput("resource name may not be empty", subject=str(key), hint=f"Name the {key.kind}.")
    if key.kind == WORKLOAD_ENDPOINT and not key.namespace:
        hint = "An endpoint is a pod: name its namespace."
        raise InvalidInput("an empty namespace may not be set when a resource name is provided", hint=hint)
    match key:
        case ResourceKey(kind="Node", name=name):
            return Place(NODE, "/api/v1/nodes", name)
        case ResourceKey(kind="WorkloadEndpoint", name=name, namespace=namespace):
            return Place(WORKLOAD_ENDPOINT, f"/api/v1/namespaces/{quote(namespace)}/pods", pod_of(name))
        case ResourceKey(kind="Profile", name=name):
            namespace, account = endpoint_names.parse_profile(name)
            return Place(PROFILE, *((_accounts(namespace), account) if account else (NAMESPACES, namespace)))
        case _:
            collection = _resources(key.kind, group, operation, str(key))
            return Place(collection.kind, collection.path, key.name)


def missing(key: Key, group: Group) -> NotFound:
    """Return the error for an object that is not there, in the words of the API server."""
    try:
        place = place_of(key, group)
    except NoPod:
        return NotFound(str(key), "malformed WorkloadEndpoint name - unable to determine Pod name")
    plural = place.collection.rpartition("/")[2]
    api_group = group.api_version.partition("/")[0]
    resource = f"{plural}.{api_group}" if place.collection.startswith("/apis/") else plural
    subject = str(key) if isinstance(key, ResourceKey) else f"{place.kind}({place.name})"
    return NotFound(subject, f'{resource} "{place.name}" not found')


def storable(key: Key, *, refuse: bool = False) -> bool:
    """Tell whether an object of this name can exist. With ``refuse`` raises InvalidInput if not (datastore §14.8)."""
    if not isinstance(key, HandleKey):
        return True
    try:
        names.check_handle_name(key.id)
    except InvalidInput:
        if refuse:
            raise
        return False
    return True


def unlabelled(group: Group) -> Collection:
    """Return the list of affinity rows whose labels say no type: written by old releases (datastore §3.3).

    ``notin`` also selects rows without the label, and those that upstream's own upgrade gave an empty one (§14.5).
    """
    query = {"labelSelector": f"{names.LABEL_AFFINITY_TYPE} notin ({HOST},{VIRTUAL})"}
    return Collection("BlockAffinity", _collection("blockaffinities", group), query)


class NoPod(InvalidInput):
    """The name of an endpoint names no pod: it cannot be written, and for readers there is no such endpoint."""


def pod_of(endpoint: str) -> str:
    """Return the pod that an endpoint name, whole or a prefix, belongs to. Raises NoPod, InvalidInput."""
    parsed = endpoint_names.EndpointIds.parse(endpoint)
    if not parsed.pod:
        raise NoPod(
            f"insufficient identifiers, missing '{endpoint}'",
            subject=endpoint,
            hint="On the Kubernetes datastore an endpoint is a pod: its name holds node, k8s, pod and eth0.",
        )
    return parsed.pod


def collection_of(scope: Scope, group: Group) -> Collection:
    """Return the list that a scope means. The caller still filters: selectors are only a sieve."""
    match scope:
        case Blocks(recent=recent):
            return Collection("IPAMBlock", _collection("ipamblocks", group), _cached(recent))
        case Affinities(kind, host, version, recent):
            selector = names.affinity_selector(kind=kind, host=host, version=version)
            query = ({"labelSelector": selector} if selector else {}) | _cached(recent)
            return Collection("BlockAffinity", _collection("blockaffinities", group), query)
        case Handles():
            return Collection("IPAMHandle", _collection("ipamhandles", group))
        case Resources(kind="Node"):
            return Collection(NODE, "/api/v1/nodes")
        case Resources(kind="WorkloadEndpoint", namespace=namespace):
            return Collection(
                WORKLOAD_ENDPOINT, f"/api/v1/namespaces/{quote(namespace)}/pods" if namespace else "/api/v1/pods"
            )
        case Resources(kind="Profile", prefix=prefix) if prefix.startswith(endpoint_names.NAMESPACE_PROFILE):
            return Collection(PROFILE, NAMESPACES)
        case Resources(kind="Profile", prefix=prefix):
            namespace, dot, _ = prefix.removeprefix(endpoint_names.SERVICE_ACCOUNT_PROFILE).partition(".")
            return Collection(PROFILE, _accounts(namespace if dot else ""))
        case Resources(kind=kind):
            return _resources(kind, group, "List", str(scope))


def _resources(kind: str, group: Group, operation: str, subject: str) -> Collection:
    """Return the collection of a kind of custom resources. Raises NotSupported."""
    match kind:
        case "BlockAffinity":
            return Collection("BlockAffinity resource", _collection("blockaffinities", group))
        case "IPAMConfiguration":
            return Collection("IPAMConfiguration resource", _collection(group.config_plural, group))
        case _ if kind in _KINDS:
            return Collection(kind, _collection(_KINDS[kind], group))
    raise NotSupported(operation, subject, "the Kubernetes datastore has no such objects")


def _accounts(namespace: str) -> str:
    """Return the service accounts of one namespace, or of all."""
    return f"{NAMESPACES}/{quote(namespace, safe='')}/serviceaccounts" if namespace else "/api/v1/serviceaccounts"


def _cached(recent: bool) -> dict[str, str]:
    """Return the query that lets the API server answer from its cache instead of reading every object from etcd."""
    return {"resourceVersion": "0"} if recent else {}


def _collection(plural: str, group: Group) -> str:
    return f"/apis/{group.api_version}/{plural}"
