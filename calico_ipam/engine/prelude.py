"""What is read before an assignment, and what is not where every object costs a request of its own (ruling 30).

Where the store reads many things as one (``capabilities.snapshot_reads``) everything is read at once. On the Kubernetes
API a read is left out, or answered from the server's cache, only for one of these reasons:

- *The handle*, unless a cap has to be counted: nearly every handle is new. Creating it is tried first; when it is there
  already the creation is refused, handle and block are read, and the decision is made again.
- *The node*, while the host has blocks and every pool selects every node: labels then decide nothing, and that the node
  exists was checked when its first block was claimed. A host without blocks, and any selector, brings the read back.
- *The host's affinity rows* may be a moment old. A row too many names a block that is then read and is not the host's
  (the row is dropped). A row too few can only be of a block that was claimed a moment ago: the list is read again
  before another block is claimed (:mod:`own_blocks`), consistently if the host has other rows. Where it has none, a
  second recent list may miss a block that another process of the host made within that moment; then the host has two.
- *The list of all blocks*, when one has to be claimed, may be a moment old and tells names only: the claim creates the
  block, which fails if somebody has it. The blocks just before it in the host's order are read, since one might be the
  host's own. The list is read again, consistently and whole, before it is concluded that nothing is left.

The blocks that the last call of this process used are asked for on a guess (:mod:`familiar`). Beside the rows they
may be older than these: one that is not the host's, or whose row is not confirmed, is read again.

Pools, reservations, settings and the blocks that addresses are taken from are always read consistently.
"""

from __future__ import annotations

from collections.abc import Sequence

from calico_ipam.engine.request import Request
from calico_ipam.engine.world import RESERVATIONS, Engine, World, concerns, explain, node_key
from calico_ipam.errors import StoreError
from calico_ipam.model.keys import Affinities, Key, Scope
from calico_ipam.model.pool import LOAD_BALANCER_USE, enabled_pools


def rows_of(request: Request, version: int) -> Affinities:
    """Return the scope of a host's affinity rows in a family, as an assignment first reads them."""
    return Affinities(request.owner.kind, request.owner.host, version, recent=True)


def handle_is_read_first(engine: Engine, cap: int) -> bool:
    """Tell whether an assignment has to know its handle before it writes it."""
    return engine.store.capabilities.snapshot_reads or cap > 0


def look_for(engine: Engine, request: Request, versions: Sequence[int], *more: Key) -> World:
    """Read what decides an assignment: settings, pools, reservations, the host's rows, and its node where it matters.

    Raises the errors of the store.
    """
    wanted: list[Key | Scope] = [rows_of(request, version) for version in versions]
    wanted += engine.familiar.of(request.owner, versions)
    needs_node = request.use != LOAD_BALANCER_USE  # the load balancer's node is a synthetic one
    if needs_node and engine.store.capabilities.snapshot_reads:
        wanted.append(node_key(request.host))
        needs_node = False
    try:
        world = engine.look(*wanted, *more, reservations=True)
    except StoreError as error:
        if concerns(error, RESERVATIONS, "/ipreservations"):
            explain(error, "failed to look up reserved IPs")
        raise
    if needs_node and any(_node_matters(world, request, version) for version in versions):
        return world.with_more(engine.store.read(node_key(request.host)))
    return world


def _node_matters(world: World, request: Request, version: int) -> bool:
    if not len(world.snapshot.listing(rows_of(request, version))):
        return True
    return any(pool.node_selector != "all()" for pool in enabled_pools(world.pools, version))
