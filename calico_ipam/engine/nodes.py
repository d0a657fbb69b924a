"""Forgetting a node: its endpoints, its addresses, its blocks, its own configuration, itself (cli §12)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from calico_ipam.datastore.api import Delete, Entry
from calico_ipam.engine.admin import remove_ipam_host
from calico_ipam.engine.holder import find_holding
from calico_ipam.engine.leaks import release_leaks
from calico_ipam.engine.survey import TUNNELS
from calico_ipam.engine.world import Engine, node_key
from calico_ipam.errors import Conflict, InvalidInput, NotFound, NotSupported
from calico_ipam.model.addresses import Address, parse_network
from calico_ipam.model.affinity import HOST, BlockOwner
from calico_ipam.model.keys import Resources
from calico_ipam.model.resource import WORKLOAD_ENDPOINT, Resource, mapping

#: kinds whose objects may belong to one node: by their spec, or by their name
_BY_SPEC = ("BGPPeer", "HostEndpoint")
_BY_NAME = ("FelixConfiguration", "BGPConfiguration")


@dataclass(frozen=True, slots=True)
class NodePlan:
    """What deleting a node takes with it."""

    node: Entry
    endpoints: tuple[Entry, ...]
    addresses: tuple[Address, ...]
    configuration: tuple[Entry, ...] = field(default=())


def plan_node(engine: Engine, name: str) -> NodePlan:
    """Return what belongs to a node. Raises NotFound, and on the Kubernetes API NotFound in upstream's words: there a
    node is deleted with kubectl.
    """
    if not engine.store.capabilities.atomic:
        raise NotFound(
            f"{WORKLOAD_ENDPOINT}({name.replace('-', '--')}-*)",
            "malformed WorkloadEndpoint name - unable to determine Pod name",
            hint="On the Kubernetes datastore: kubectl delete node NAME; the collector then frees its addresses.",
        )
    node = engine.store.get(node_key(name))
    endpoints = tuple(
        entry for entry in engine.store.list(Resources(WORKLOAD_ENDPOINT)) if entry.value.spec.get("node") == name
    )
    addresses = dict.fromkeys([*_of_endpoints(endpoints), *_of_tunnels(node.value)])
    return NodePlan(node, endpoints, tuple(addresses), tuple(_configuration(engine, name)))


def _of_endpoints(endpoints: Iterable[Entry]) -> Iterable[Address]:
    for entry in endpoints:
        networks = entry.value.spec.get("ipNetworks")
        for text in networks if isinstance(networks, list) else ():
            yield from _address(text)


def _of_tunnels(node: Resource) -> Iterable[Address]:
    for path, _ in TUNNELS:
        value: object = node.spec
        for step in path:
            value = mapping(value).get(step)
        yield from _address(value)


def _address(text: object) -> Iterable[Address]:
    try:
        if isinstance(text, str) and text:
            yield parse_network(text.partition("/")[0]).network_address
    except InvalidInput:
        return


def _configuration(engine: Engine, name: str) -> Iterable[Entry]:
    for kind in (*_BY_SPEC, *_BY_NAME):
        try:
            listing = engine.store.list(Resources(kind))
        except NotSupported:
            continue
        for entry in listing:
            if (kind in _BY_SPEC and entry.value.spec.get("node") == name) or entry.value.name == f"node.{name}":
                yield entry


def delete_node(engine: Engine, name: str) -> NodePlan:
    """Delete a node and what belongs to it; return that. Raises NotFound, Conflict.

    An address is released only if its allocation is this node's.
    """
    wanted = plan_node(engine, name)
    held = [find_holding(engine, address) for address in wanted.addresses]
    ours = [each.release_option() for each in held if each is not None and each.node in ("", name)]
    release_leaks(engine, ours, unattributed=True)
    for entry in wanted.endpoints:
        _remove(engine, entry)
    remove_ipam_host(engine, BlockOwner(HOST, name))
    for entry in wanted.configuration:
        _remove(engine, entry)
    engine.store.commit(Delete(wanted.node))
    return wanted


def _remove(engine: Engine, entry: Entry) -> None:
    for _ in engine.retry.tries(f"deleting {entry.key}"):
        try:
            engine.store.commit(Delete(entry))
        except NotFound:
            return
        except Conflict:
            entry = engine.store.get(entry.key)
            continue
        return
