"""A view of what a datastore holds, without a collector: for pages of pools, blocks and nodes alone."""

from __future__ import annotations

from calico_gc.facts import KubeNode, kubernetes_name
from calico_gc.options import Options
from calico_gc.pools import reserved_by
from calico_gc.state import State
from calico_gc.suspicion import Moment
from calico_gc.view import View
from calico_gc.web.links import NODES, OVERVIEW, PROBLEMS
from calico_ipam.datastore.api import Datastore
from calico_ipam.model.keys import Blocks, Resources
from calico_ipam.model.resource import IP_POOL, IP_RESERVATION, NODE

#: pages that say something without a collector
PAGES = (OVERVIEW, NODES, PROBLEMS)


def view_of_store(store: Datastore, now: int, pool: str = "") -> View:
    """Return what is stored, at ``now`` (Unix nanoseconds); ``pool``: of this pool only. Raises the store's errors."""
    state = State()
    snapshot = store.read(Blocks(), Resources(IP_POOL), Resources(IP_RESERVATION), Resources(NODE))
    for entry in snapshot.listing(Resources(IP_POOL)):
        if not pool or entry.value.name == pool:
            state.pools.put_pool(entry.value)
    for entry in snapshot.listing(Resources(IP_RESERVATION)):
        state.reservations[entry.value.name] = entry.value
    for entry in snapshot.listing(Resources(NODE)):
        # Whether Kubernetes still has it, only a collector knows.
        state.link_node(entry.value.name, kubernetes_name(entry.value) or entry.value.name)
        state.put_kube_node(KubeNode(kubernetes_name(entry.value) or entry.value.name))
    blocks = snapshot.listing(Blocks())
    for entry in blocks:
        if not entry.value.deleted:
            state.put_block(entry.value, entry.revision)
    wanted = {c for c, name in state.pools.of_block.items() if not pool or name == pool}
    return View(
        at=Moment(0.0, now),
        options=Options(),
        blocks={cidr: tracked for cidr, tracked in state.blocks.items() if cidr in wanted},
        pool_of={cidr: name for cidr, name in state.pools.of_block.items() if cidr in wanted},
        pools=dict(state.pools.pools),
        reservations=reserved_by(state.reservations),
        nodes=dict(state.nodes),
        kube_nodes=frozenset(state.kube_nodes),
        empty=dict(state.empty),
        cold=dict(state.cold),
        damaged={bad.path: bad.reason for bad in blocks.damaged},
        in_sync=True,
    )
