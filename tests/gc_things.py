"""Short forms of what tests of the collector put into a :class:`tests.gc_world.World`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from calico_ipam.datastore.api import Create, Delete, Update, Value
from calico_ipam.errors import NotFound
from calico_ipam.model.addresses import parse_network
from calico_ipam.model.affinity import Affinity, BlockOwner
from calico_ipam.model.block import Attribute, Block
from calico_ipam.model.config import IPAMConfig
from calico_ipam.model.handle import Handle, sanitise_handle
from calico_ipam.model.keys import AffinityKey, BlockKey, ConfigKey, HandleKey, Key, ResourceKey
from calico_ipam.model.resource import CLUSTER_INFORMATION, IP_POOL, IP_RESERVATION, NODE, Resource
from tests.gc_world import World

NETWORK = "k8s-pod-network"
#: the number that addresses put in by :func:`block` begin with
FIRST_SEQUENCE = 100


def pod_attrs(node: str, pod: str, namespace: str = "default", **more: str) -> dict[str, str]:
    return {"node": node, "pod": pod, "namespace": namespace, **more}


def tunnel_attrs(node: str, kind: str = "vxlanTunnelAddress") -> dict[str, str]:
    return {"node": node, "type": kind}


def put(world: World, key: Key, value: Value) -> None:
    """Store a value, whatever was there."""
    try:
        entry = world.store.get(key)
    except NotFound:
        world.store.commit(Create(key, value))
    else:
        world.store.commit(Update(entry, value))


def drop(world: World, key: Key) -> None:
    world.store.commit(Delete(world.store.get(key)))


def block_of(
    world: World,
    cidr: str,
    host: str | None = None,
    held: Mapping[int, tuple[str, Mapping[str, str]]] | None = None,
    *,
    cooling: Mapping[int, float] | None = None,
    kind: str = "host",
    sequence: int = FIRST_SEQUENCE,
) -> Block:
    """Return a block. ``held``: ordinal -> (handle, attributes); ``cooling``: ordinal -> seconds since its release."""
    network = parse_network(cidr)
    owner = BlockOwner(kind, host) if host else None
    block = replace(Block.new(network, now=world.clock.now(), owner=owner), sequence_number=sequence + 1000)
    slots, numbers = list(block.allocations), {}
    attributes: list[Attribute] = []
    for ordinal, (handle, attrs) in (held or {}).items():
        slots[ordinal] = len(attributes)
        attributes.append(Attribute(handle or None, dict(attrs)))
        numbers[ordinal] = sequence + ordinal
    for ordinal, ago in (cooling or {}).items():
        slots[ordinal] = len(attributes)
        attributes.append(Attribute(released_at=(world.clock.now() - int(ago * 1e9)) // 10**9 * 10**9))
        numbers[ordinal] = sequence + ordinal
    free = tuple(o for o in block.unallocated if slots[o] is None)
    return replace(
        block, allocations=tuple(slots), attributes=tuple(attributes), unallocated=free, sequence_for=numbers
    )


def add_block(world: World, cidr: str, host: str | None = None, *args: Any, row: bool = True, **more: Any) -> Block:
    """Store a block of :func:`block_of`, its affinity row, and add its addresses to their handles."""
    made = block_of(world, cidr, host, *args, **more)
    put(world, BlockKey(made.cidr), made)
    if made.owner is not None and row:
        put(world, AffinityKey(made.owner, made.cidr), Affinity())
    for _, attribute in made.taken():
        handle = sanitise_handle(attribute.handle)
        if handle:
            add_to_handle(world, handle, cidr)
    return made


def add_to_handle(world: World, handle: str, cidr: str, number: int = 1) -> None:
    key = HandleKey(handle)
    try:
        counts = dict(world.store.get(key).value.blocks)
    except NotFound:
        counts = {}
    counts[cidr] = counts.get(cidr, 0) + number
    put(world, key, Handle(handle, counts))


def stored_block(world: World, cidr: str) -> Block | None:
    key = BlockKey(parse_network(cidr))
    entry = world.store.read(key).entry(key)
    return None if entry is None else entry.value


def holders(world: World, cidr: str) -> dict[int, str]:
    """Return ordinal -> handle of what a block holds, cooling addresses left out."""
    block = stored_block(world, cidr)
    return {} if block is None else {o: a.clean_handle for o, a in block.taken() if not a.cold}


def has_handle(world: World, handle: str) -> bool:
    key = HandleKey(handle)
    return world.store.read(key).entry(key) is not None


def rows(world: World) -> set[tuple[str, str]]:
    from calico_ipam.model.keys import Affinities

    return {
        (e.key.owner.host, str(e.key.cidr)) for e in world.store.list(Affinities()) if isinstance(e.key, AffinityKey)
    }


def pool(world: World, name: str, cidr: str, block_size: int | None = None) -> None:
    spec: dict[str, Any] = {"cidr": cidr}
    if block_size is not None:
        spec["blockSize"] = block_size
    put(world, ResourceKey(IP_POOL, name), Resource.new(IP_POOL, name, spec))


def reservation(world: World, name: str, *cidrs: str) -> None:
    put(world, ResourceKey(IP_RESERVATION, name), Resource.new(IP_RESERVATION, name, {"reservedCIDRs": list(cidrs)}))


def ready(world: World, value: bool | None) -> None:
    spec = {} if value is None else {"datastoreReady": value}
    key = ResourceKey(CLUSTER_INFORMATION, "default")
    put(world, key, Resource.new(CLUSTER_INFORMATION, "default", spec))


def calico_node(world: World, name: str, kube: str | None, orchestrator: str = "k8s", **spec: Any) -> None:
    """Store a Calico node (etcd only). ``kube`` None: without a reference."""
    references = [] if kube is None else [{"nodeName": kube, "orchestrator": orchestrator}]
    put(world, ResourceKey(NODE, name), Resource.new(NODE, name, {"orchRefs": references, **spec}))


def cooldown(world: World, seconds: int) -> None:
    put(world, ConfigKey(), IPAMConfig(cooldown_seconds=seconds))


def running_pod(world: World, name: str, node: str, *ips: str, namespace: str = "default", **more: Any) -> None:
    """Add a pod that reports ``ips``. ``more``: phase, reason, annotations, deletionTimestamp."""
    status: dict[str, Any] = {"phase": more.get("phase", "Running")}
    if ips:
        status |= {"podIP": ips[0], "podIPs": [{"ip": ip} for ip in ips]}
    if "reason" in more:
        status["reason"] = more["reason"]
    metadata: dict[str, Any] = {"name": name, "namespace": namespace, "annotations": more.get("annotations", {})}
    if "deletionTimestamp" in more:
        metadata["deletionTimestamp"] = more["deletionTimestamp"]
    world.pod({"metadata": metadata, "spec": {"nodeName": node}, "status": status})
