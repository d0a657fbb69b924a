"""Moving a cluster from etcd to the Kubernetes API in the form that calicoctl writes and reads (cli §11).

Node names of etcd become those of Kubernetes everywhere: in affinities, in owners of addresses, in handles of tunnels,
those of IPv6 included (limit 18.1).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from calico_ipam.datastore import codec
from calico_ipam.datastore.api import Create, Entry, Update
from calico_ipam.datastore.paths import key_of, path_of
from calico_ipam.engine.survey import BLOCKS, CLUSTER, HANDLES, ROWS
from calico_ipam.engine.world import CONFIG, Engine
from calico_ipam.errors import AlreadyExists, InvalidInput, IPAMError, NotSupported, RefusedError
from calico_ipam.model.affinity import Affinity, BlockOwner
from calico_ipam.model.block import Attribute, Block
from calico_ipam.model.handle import Handle
from calico_ipam.model.handle_names import TUNNEL_HANDLES
from calico_ipam.model.keys import AffinityKey, HandleKey, Key, ResourceKey, Resources
from calico_ipam.model.resource import CLUSTER_INFORMATION, NODE, Resource, mapping

#: the kinds that are moved, in order
KINDS = (
    *("IPPool", "BGPPeer", "Tier", "GlobalNetworkPolicy", "StagedGlobalNetworkPolicy", "GlobalNetworkSet"),
    *("HostEndpoint", "KubeControllersConfiguration", "NetworkPolicy", "StagedNetworkPolicy"),
    *("StagedKubernetesNetworkPolicy", "NetworkSet", "Node", "BGPConfiguration", "FelixConfiguration"),
    *("IPReservation", "BGPFilter"),
)
SEPARATOR = "==="

#: kinds whose resources may be about one node, and be named for it
_OF_NODES = ("BGPConfiguration", "FelixConfiguration")
#: fields of a FelixConfiguration that were written in capitals once
_ACTIONS = (
    *("defaultEndpointToHostAction", "iptablesFilterAllowAction"),
    *("iptablesMangleAllowAction", "iptablesFilterDenyAction"),
)


# --- export --------------------------------------------------------------------------------------------------


def node_names(engine: Engine) -> dict[str, str]:
    """Return the name in Kubernetes of every node of etcd. Raises RefusedError for a node without one."""
    names = {}
    for entry in engine.store.list(Resources(NODE)):
        names[entry.value.name] = _kubernetes_name(entry.value)
    return names


def _kubernetes_name(node: Resource) -> str:
    name = ""
    for reference in node.spec.get("orchRefs") or ():
        if mapping(reference).get("orchestrator") == "k8s":  # of several the last counts
            name = str(mapping(reference).get("nodeName") or "")
    if name:
        return name
    raise RefusedError(
        f"unable to process metadata for export for Node resource: node {node.name} missing a 'k8s' orchestrator "
        "reference. Unable to export data unless every node has a 'k8s' orchestrator reference",
        subject=node.name,
        hint=f"Delete node {node.name}, or add an orchRefs entry with the orchestrator k8s.",
    )


def exported(engine: Engine, kind: str) -> tuple[list[Resource], str]:
    """Return the resources of a kind as they are to be moved, and the revision of the list."""
    listing = engine.store.list(Resources(kind))
    resources = [entry.value for entry in listing]
    if kind == "Tier":
        resources.sort(key=lambda each: (each.spec.get("order") is None, each.spec.get("order") or 0, each.name))
    if kind == NODE:
        resources = [_renamed(each, _kubernetes_name(each)) for each in resources]
    elif kind in _OF_NODES:
        names = node_names(engine)
        resources = [_named_for_node(each, names) for each in resources]
    elif kind == "NetworkPolicy":  # Kubernetes' own are there already
        resources = [each for each in resources if not each.name.startswith("knp.default.")]
    return resources, listing.revision


def _renamed(resource: Resource, name: str) -> Resource:
    metadata = {**resource.metadata, "name": name}
    return Resource(resource.kind, name, {**resource.document, "metadata": metadata}, resource.namespace)


def _named_for_node(resource: Resource, names: Mapping[str, str]) -> Resource:
    """Return the settings of one node under the node's name in Kubernetes, and Felix's actions as the API has them."""
    node = resource.name.removeprefix("node.")
    if node != resource.name and node in names:
        resource = _renamed(resource, f"node.{names[node]}")
    actions = {field: str(resource.spec[field]).capitalize() for field in _ACTIONS if resource.spec.get(field)}
    return resource.with_spec({**resource.spec, **actions}) if actions else resource


def ipam_data(engine: Engine, names: Mapping[str, str]) -> dict[str, Any]:
    """Return blocks, affinities, handles and settings with the nodes' names in Kubernetes."""
    snapshot = engine.store.read(BLOCKS, ROWS, HANDLES, CONFIG)
    config = snapshot.entry(CONFIG)
    sections: dict[str, Any] = {
        "block_affinities": [_item(*_row(entry, names)) for entry in snapshot.listing(ROWS)],
        "blocks": [_item(entry.key, _block(entry.value, names)) for entry in snapshot.listing(BLOCKS)],
        "handles": [_item(*_handle(entry.value, names)) for entry in snapshot.listing(HANDLES)],
    }
    found = {name: items for name, items in sections.items() if items}
    return found | ({"config": _item(CONFIG, config.value)} if config is not None else {})


def _item(key: Key, value: Any) -> dict[str, Any]:
    return {"Key": path_of(key), "Value": json.loads(codec.encode(key, value)), "TTL": 0}


def _row(entry: Entry, names: Mapping[str, str]) -> tuple[Key, Affinity]:
    owner = entry.key.owner  # type: ignore[union-attr]  # rows have affinity keys
    return AffinityKey(BlockOwner(owner.kind, names.get(owner.host, owner.host)), entry.cidr), entry.value


def _block(block: Block, names: Mapping[str, str]) -> Block:
    affinity = block.affinity
    owner = block.owner
    if owner is not None and owner.host in names:
        affinity = f"{owner.kind}:{names[owner.host]}"
    return replace(block, affinity=affinity, attributes=tuple(_attribute(each, names) for each in block.attributes))


def _attribute(attribute: Attribute, names: Mapping[str, str]) -> Attribute:
    return replace(
        attribute,
        handle=_handle_name(attribute.handle, names) if attribute.handle else attribute.handle,
        active=_owner(attribute.active, names),
        alternate=_owner(attribute.alternate, names),
    )


def _owner(values: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    return {key: names.get(value, value) if key == "node" else value for key, value in values.items()}


def _handle_name(handle: str, names: Mapping[str, str]) -> str:
    for prefix in sorted(TUNNEL_HANDLES.values(), key=len, reverse=True):
        if handle.startswith(prefix):
            node = handle.removeprefix(prefix)
            return prefix + names.get(node, node)
    return handle


def _handle(handle: Handle, names: Mapping[str, str]) -> tuple[Key, Handle]:
    name = _handle_name(handle.id, names)
    return HandleKey(name), replace(handle, id=name)


# --- import --------------------------------------------------------------------------------------------------


def parse_export(text: str, name: str) -> tuple[str, str, str]:
    """Split an export into its three parts. Raises InvalidInput."""
    parts: list[list[str]] = [[]]
    for line in text.splitlines(keepends=True):
        if line.rstrip("\r\n") == SEPARATOR:
            parts.append([])
        else:
            parts[-1].append(line)
    if len(parts) != 3:
        raise InvalidInput(
            f"error while reading migration file: imported file: {name} is improperly formatted. Try recreating with "
            "'calicoctl export'",
            subject=name,
            hint="It must hold three parts with lines of === between them.",
        )
    first, second, third = ("".join(part) for part in parts)
    return first, second, third


def parse_ipam(text: str, name: str) -> tuple[tuple[Key, Any], ...]:
    """Return the IPAM objects of an export in the order in which they are written. Raises InvalidInput."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise InvalidInput(f"the IPAM part of {name} is no JSON: {error}", subject=name) from None
    found: list[tuple[Key, Any]] = []
    for section in ("block_affinities", "blocks", "handles", "config"):
        content = mapping(data).get(section)
        for item in content if isinstance(content, list) else [content] if content else []:
            found.append(_parsed(mapping(item), name))
    return tuple(found)


def _parsed(item: Mapping[str, Any], name: str) -> tuple[Key, Any]:
    path = str(item.get("Key") or "")
    key = key_of(path)
    if key is None:
        raise InvalidInput(f"{name} holds {path!r}, which is no key of IPAM", subject=path)
    entry = codec.decode(key, path, json.dumps(item.get("Value")), "1")
    if not isinstance(entry, Entry):
        raise InvalidInput(f"{name}: {path} cannot be understood: {entry.reason}", subject=path)
    return key, entry.value


def refuse_unless_empty(engine: Engine) -> None:
    """Raise RefusedError when the datastore holds anything of Calico's but nodes and the built-in tiers."""
    for kind in (*KINDS, CLUSTER_INFORMATION):
        if kind in (NODE, "Tier"):
            continue
        try:
            listing = engine.store.list(Resources(kind))
        except NotSupported:
            continue
        if len(listing) or listing.damaged:
            _refuse(kind)
    for scope, what in ((BLOCKS, "IPAM block"), (HANDLES, "IPAM handle"), (ROWS, "block affinity")):
        if len(engine.store.list(scope)):
            _refuse(what)


def _refuse(what: str) -> None:
    raise RefusedError(
        f"datastore already has Calico resources: found existing Calico {what} resource. "
        "Clear out all Calico resources by deleting all Calico CRDs",
        subject=what,
        hint="An import needs an empty datastore.",
    )


def write_ipam(engine: Engine, items: Sequence[tuple[Key, Any]]) -> Iterator[IPAMError]:
    """Write IPAM objects; yield the error of each that could not be."""
    for key, value in items:
        try:
            engine.store.commit(Create(key, value))
        except AlreadyExists as error:
            if key != CONFIG:
                yield error
                continue
            stored = engine.store.get(key)
            engine.store.commit(Update(stored, value))
        except IPAMError as error:
            yield error


def adopt_identity(engine: Engine, cluster: Mapping[str, Any]) -> None:
    """Give the datastore the identity of the cluster that was exported; it stays locked."""
    spec = mapping(cluster.get("spec"))
    entry = engine.store.get(CLUSTER)
    kept = {name: spec[name] for name in ("clusterGUID", "calicoVersion") if spec.get(name)}
    engine.store.commit(Update(entry, entry.value.with_spec({**entry.value.spec, **kept, "datastoreReady": False})))


def resource_key(document: Mapping[str, Any]) -> ResourceKey:
    metadata = mapping(document.get("metadata"))
    return ResourceKey(str(document.get("kind")), str(metadata.get("name")), str(metadata.get("namespace") or ""))
