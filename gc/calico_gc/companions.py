"""Two jobs beside the collector where Calico's nodes are not Kubernetes' own (gc §13).

A Calico node whose Kubernetes node is gone is deleted with all that belongs to it, and Kubernetes labels are copied to
Calico's nodes. Neither exists where the Kubernetes API is the datastore.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from calico_gc.act import NOT_GONE, Done, Live
from calico_gc.decide import Rules, Standing, verdict
from calico_gc.facts import kubernetes_name, track
from calico_gc.state import State
from calico_gc.suspicion import Moment
from calico_ipam.datastore.api import Delete, Entry, Update
from calico_ipam.datastore.gojson import without_surrogates
from calico_ipam.engine.admin import remove_ipam_host
from calico_ipam.engine.release import release_from_block
from calico_ipam.engine.world import Engine
from calico_ipam.errors import Conflict, InvalidInput, IPAMError, NotFound, StaleError, StoreDamaged
from calico_ipam.model.addresses import Address, parse_address, parse_network
from calico_ipam.model.affinity import HOST, BlockOwner
from calico_ipam.model.block import ReleaseOption
from calico_ipam.model.keys import Blocks, ResourceKey, Resources
from calico_ipam.model.resource import NODE, WORKLOAD_ENDPOINT, Resource, mapping

log = logging.getLogger(__name__)

KUBE_LABELS = "projectcalico.org/kube-labels"
#: seconds after which every node's labels are compared again
LABEL_PERIOD = 300.0
#: so many nodes are read one by one; more are listed
FEW = 8
#: places in a node's spec that hold a tunnel address, both families (limit U25)
TUNNELS = (
    ("bgp", "ipv4IPIPTunnelAddr"),
    ("ipv4VXLANTunnelAddr",),
    ("ipv6VXLANTunnelAddr",),
    ("wireguard", "interfaceIPv4Address"),
    ("wireguard", "interfaceIPv6Address"),
)


@dataclass(frozen=True, slots=True)
class DeleteNode:
    """A Calico node whose Kubernetes node is not there."""

    node: str

    @property
    def key(self) -> tuple[str, str]:
        return "delete-node", self.node


@dataclass(frozen=True)
class SyncLabels:
    """Calico nodes and the labels that their Kubernetes nodes have."""

    labels: Mapping[str, Mapping[str, str]]

    @property
    def key(self) -> tuple[str, str]:
        return "labels", ""


@dataclass(slots=True)
class Companions:
    """Remembers what has to be compared."""

    look_for_gone: bool = True
    relabel: set[str] = field(default_factory=set)  #: Kubernetes nodes
    _all_labels_at: float | None = None

    def gone_nodes(self, state: State) -> Iterator[DeleteNode]:
        """Yield the Calico nodes that name a Kubernetes node which the watch does not have."""
        if not self.look_for_gone:
            return
        self.look_for_gone = False
        for name, kube in state.nodes.items():
            if kube and kube not in state.kube_nodes:
                yield DeleteNode(name)

    def label_work(self, state: State, now: Moment) -> SyncLabels | None:
        """Return the nodes whose labels may differ."""
        if self._all_labels_at is None or now.mono >= self._all_labels_at:
            self._all_labels_at = now.mono + LABEL_PERIOD
            self.relabel.update(state.kube_nodes)
        labels = {
            name: state.kube_nodes[kube].labels
            for kube in self.relabel
            if kube in state.kube_nodes
            for name in state.calico_names.get(kube, ())
        }
        self.relabel.clear()
        return SyncLabels(labels) if labels else None


# --- labels ----------------------------------------------------------------------------------------------------


def relabelled(node: Resource, kube: Mapping[str, str]) -> Resource | None:
    """Return a node with its Kubernetes labels; None when nothing changes, or when its record of them is damaged.

    Labels that were copied earlier and are gone from Kubernetes go; others that people put on the Calico node stay.
    """
    annotations = mapping(node.metadata.get("annotations"))
    try:
        earlier = json.loads(annotations.get(KUBE_LABELS) or "{}")
    except (TypeError, ValueError, RecursionError):
        earlier = None
    if not isinstance(earlier, dict):
        log.warning("annotation %s of node %s cannot be read: its labels stay as they are", KUBE_LABELS, node.name)
        return None
    before, kube = node.labels, without_surrogates(dict(kube))  # as they are stored: else they would always differ
    after = {k: v for k, v in before.items() if k not in earlier or k in kube} | dict(kube)
    if after == before:
        return None
    note = json.dumps(dict(sorted(kube.items())), separators=(",", ":"), ensure_ascii=False)
    metadata = {**node.metadata, "labels": after, "annotations": {**annotations, KUBE_LABELS: note}}
    return Resource(node.kind, node.name, {**node.document, "metadata": metadata}, node.namespace)


def sync_labels(engine: Engine, action: SyncLabels) -> Done:
    """Copy labels to the nodes that lack them. A node that changes meanwhile is left to its next event."""
    try:
        for entry in _nodes(engine, action.labels):
            changed = relabelled(entry.value, action.labels[entry.value.name])
            if changed is None:
                continue
            try:
                engine.store.commit(Update(entry, changed))
            except (Conflict, NotFound) as error:
                log.info("labels of node %s were not copied: %s", entry.value.name, error)
    except IPAMError as error:
        return Done(error)
    return Done()


def _nodes(engine: Engine, names: Mapping[str, Any]) -> Iterator[Entry]:
    if len(names) > FEW:
        yield from (entry for entry in engine.store.list(Resources(NODE)) if entry.value.name in names)
        return
    snapshot = engine.store.read(*(ResourceKey(NODE, name) for name in names))
    for name in names:
        try:
            entry = snapshot.entry(ResourceKey(NODE, name))
        except StoreDamaged as error:
            log.warning("labels of node %s are not copied: %s", name, error)
            continue
        if entry is not None:
            yield entry


# --- nodes that are gone -----------------------------------------------------------------------------------------


def delete_node(engine: Engine, live: Live, action: DeleteNode) -> Done:
    """Delete a Calico node whose Kubernetes node is gone on a live look, and all that belongs to it."""
    found = live.nodes([action.node])[action.node]
    if found.standing is not Standing.PRESENT or found.exists:
        return Done(note=NOT_GONE)
    try:
        entry = engine.store.read(ResourceKey(NODE, action.node)).entry(ResourceKey(NODE, action.node))
        if entry is None or not kubernetes_name(entry.value):
            return Done(note=NOT_GONE)
        endpoints = [
            e for e in engine.store.list(Resources(WORKLOAD_ENDPOINT)) if e.value.spec.get("node") == action.node
        ]
        _release_addresses(engine, live, action.node, {*_tunnels(entry.value), *_addresses(endpoints)})
        for endpoint in endpoints:
            _remove(engine, endpoint)
        remove_ipam_host(engine, BlockOwner(HOST, action.node))
        for extra in _belongings(engine, action.node):
            _remove(engine, extra)
        engine.store.commit(Delete(entry))
    except NotFound:
        return Done()
    except IPAMError as error:
        return Done(error)
    return Done(gone=True)


def _release_addresses(engine: Engine, live: Live, node: str, addresses: set[Address]) -> None:
    """Release those addresses that are this node's, each with the handle and number it has right now.

    Pods go with their node, as upstream's do (gc §13). A virtual machine that lives keeps its address and takes it to
    another node.
    """
    theirs = [
        allocation
        for entry in engine.store.list(Blocks())
        for allocation in track(entry.value, entry.revision).allocations.values()
        if allocation.address in addresses and (allocation.node or node) == node
    ]
    workloads = live.workloads(())
    kept = {a.clean_handle for a in theirs if a.of_vm and verdict(a, "", workloads, Rules()).alive}
    blocks: dict[str, list[ReleaseOption]] = {}
    for allocation in theirs:
        if allocation.clean_handle not in kept:
            blocks.setdefault(allocation.block, []).append(allocation.option())
    for cidr, options in blocks.items():
        try:
            release_from_block(engine, parse_network(cidr), options)
        except StaleError as error:
            log.info("an address of node %s has a new holder and is kept: %s", node, error)


def _tunnels(node: Resource) -> Iterator[Address]:
    for path in TUNNELS:
        value: Any = node.spec
        for step in path:
            value = mapping(value).get(step)
        yield from _parsed([value])


def _addresses(endpoints: Iterable[Entry]) -> Iterator[Address]:
    for endpoint in endpoints:
        networks = endpoint.value.spec.get("ipNetworks")
        yield from _parsed(networks if isinstance(networks, list) else ())


def _parsed(texts: Iterable[Any]) -> Iterator[Address]:
    for text in texts:
        try:
            yield parse_address(str(text or "").partition("/")[0])
        except InvalidInput:
            continue  # no address, nothing to release


def _belongings(engine: Engine, node: str) -> Iterator[Entry]:
    """Yield the resources that exist for this node alone."""
    for kind in ("BGPPeer", "HostEndpoint"):
        yield from (e for e in engine.store.list(Resources(kind)) if e.value.spec.get("node") == node)
    keys = [ResourceKey(kind, f"node.{node}") for kind in ("FelixConfiguration", "BGPConfiguration")]
    snapshot = engine.store.read(*keys)
    yield from (entry for entry in map(snapshot.entry, keys) if entry is not None)


def _remove(engine: Engine, entry: Entry) -> None:
    try:
        engine.store.commit(Delete(entry))
    except NotFound:
        log.debug("%s is gone already", entry.key)
