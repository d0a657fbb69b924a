"""Making a datastore ready for its first address: cluster information, this host's node, default pools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from calico_ipam.datastore.api import Create
from calico_ipam.engine.pools import create_pool, list_pools
from calico_ipam.engine.world import Engine, node_key
from calico_ipam.errors import AlreadyExists, InvalidInput, NotSupported
from calico_ipam.model.addresses import Network, overlaps, parse_network
from calico_ipam.model.keys import ResourceKey
from calico_ipam.model.pool import Pool
from calico_ipam.model.pool_rules import PoolRequest
from calico_ipam.model.resource import CLUSTER_INFORMATION, NODE, Resource

#: upstream's names for the pools that exist by default
DEFAULT_POOL_NAMES = {4: "default-ipv4-ippool", 6: "default-ipv6-ippool"}
#: tried in this order for a default IPv4 pool: the ranges that container networks use, then others that are private
IPV4_CANDIDATES = (
    "10.244.0.0/16",
    "10.245.0.0/16",
    "172.28.0.0/16",
    "172.24.0.0/16",
    "192.168.128.0/17",
    "100.96.0.0/16",
    "10.96.0.0/12",
    "198.18.0.0/16",
)

State = Literal["created", "exists", "not stored here"]


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The cluster information; ``ready`` is False only while the datastore is locked (ruling 12)."""

    guid: str
    ready: bool
    state: State


def ensure_cluster(engine: Engine, guid: str) -> ClusterState:
    """Create the cluster information with ``guid`` (32 hex digits) unless there is one; an existing one stays."""
    key = ResourceKey(CLUSTER_INFORMATION, "default")
    spec = {"clusterGUID": guid, "datastoreReady": True}
    try:
        engine.store.commit(Create(key, Resource.new(CLUSTER_INFORMATION, "default", spec)))
    except AlreadyExists:
        stored = engine.store.get(key).value.spec
        return ClusterState(str(stored.get("clusterGUID") or ""), stored.get("datastoreReady") is not False, "exists")
    return ClusterState(guid, True, "created")


def ensure_node(engine: Engine, name: str) -> State:
    """Create the Node record of a host unless there is one: addresses are assigned to known nodes only."""
    document = {**Resource.new(NODE, name, {}).document, "status": {}}
    try:
        engine.store.commit(Create(node_key(name), Resource(NODE, name, document)))
    except AlreadyExists:
        return "exists"
    except NotSupported:
        return "not stored here"  # on Kubernetes a node joins by its kubelet
    return "created"


def choose_ipv4(engine: Engine, in_use: Sequence[Network]) -> Network:
    """Return the first usual range that touches neither a pool nor a network in use on this host.

    Raises InvalidInput when every one of them does.
    """
    taken = [*in_use, *(pool.cidr for pool in list_pools(engine).pools)]
    for text in IPV4_CANDIDATES:
        cidr = parse_network(text)
        if not any(overlaps(cidr, network) for network in taken):
            return cidr
    raise InvalidInput(
        "no usual private range is free on this host for a default IPv4 pool",
        hint="Choose a range that your networks do not use: --ipv4-pool CIDR.",
    )


def ensure_pool(engine: Engine, request: PoolRequest) -> tuple[Pool, State]:
    """Create a pool unless one with its CIDR exists. Raises InvalidInput, AlreadyExists (its name, another CIDR)."""
    for pool in list_pools(engine).pools:
        if request.cidr in (pool.cidr_text, str(pool.cidr)):
            return pool, "exists"
    return create_pool(engine, request), "created"
