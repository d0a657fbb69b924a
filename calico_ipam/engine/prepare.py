"""What a request may use: its pools and the blocks its host owns in them (ipam-library §11.2)."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from calico_ipam.datastore.api import Entry
from calico_ipam.engine.affinity_release import release_affinity
from calico_ipam.engine.prelude import rows_of
from calico_ipam.engine.request import Request
from calico_ipam.engine.world import Engine, World, node_key
from calico_ipam.errors import Conflict, InvalidInput, IPAMError, NoQualifiedPool, RefusedError
from calico_ipam.model.addresses import Network
from calico_ipam.model.affinity import BlockOwner
from calico_ipam.model.pool import LOAD_BALANCER_USE, Pool, PoolChoice, choose_pools, max_prefix_length, pool_for
from calico_ipam.model.reservation import Reservations

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Family:
    """What one family of a request works with."""

    version: int
    world: World
    pools: tuple[Pool, ...]  #: pools in play, in order
    rows: tuple[Entry, ...]  #: affinity rows of the host inside those pools, in list order

    @property
    def reservations(self) -> Reservations:
        return self.world.reservations


def prepare(engine: Engine, request: Request, world: World, version: int) -> Family:
    """Choose pools and sort the host's affinity rows by them.

    Rows of a pool that no longer selects the node are given back on the way, if their blocks are empty.
    Raises NotFound without a node, NoQualifiedPool, InvalidInput, RefusedError.
    """
    labels = _node_labels(request, world)
    choice = choose_pools(
        world.pools,
        version=version,
        requested=request.pools.get(version, ()),
        node_labels=labels,
        namespace_labels=request.namespace.labels if request.namespace else {},
        max_prefix=max_prefix_length(version, request.host_reserved.get(version)),
    )
    for warning in choice.warnings:
        log.warning("%s", warning)
    if not choice.matching:
        raise RefusedError(
            f"no configured Calico pools for node {request.host}",
            subject=request.host,
            hint=_why_no_pool(choice, labels),
        )
    pools = tuple(p for p in choice.matching if request.use in p.allowed_uses)
    if not pools:
        raise NoQualifiedPool(
            f"no pools match the required use ({request.use})",
            hint="; ".join(f"pool {p.name} allows {', '.join(p.allowed_uses)}" for p in choice.matching),
        )
    owner = request.owner
    rows = [e for e in world.snapshot.listing(rows_of(request, version)) if not e.value.deleted]
    usable = tuple(e for e in rows if in_pools(pools, e))
    for row in rows:
        if row not in usable and not in_pools(choice.matching, row) and _unselected(choice, row, labels):
            _give_back(engine, owner, row.cidr)
    return Family(version, world, pools, usable)


def _node_labels(request: Request, world: World) -> dict[str, str]:
    if request.use == LOAD_BALANCER_USE:
        return {}  # a synthetic node without labels
    key = node_key(request.host)
    if key not in world.snapshot:
        return {}  # labels decide nothing here (prelude.py)
    node = world.snapshot.entry(key)
    if node is None:
        error = world.snapshot.missing(key)
        error.hint = (
            f"A node must exist before it can allocate: check the node name '{request.host}', "
            "or create its record ('ipamctl init' does on a single host)."
        )
        raise error
    labels: dict[str, str] = node.value.labels
    return labels


def in_pools(pools: tuple[Pool, ...], row: Entry) -> bool:
    """Tell whether the block of an affinity row lies in one of the pools."""
    return pool_for(pools, row.cidr.network_address) is not None


def _unselected(choice: PoolChoice, row: Entry, labels: dict[str, str]) -> bool:
    """The row's pool is enabled and its node selector does not match: the block will never be used again."""
    pool = pool_for(choice.enabled, row.cidr.network_address)
    if pool is None:
        return False
    try:
        return not pool.selects_node(labels)
    except InvalidInput:
        return False


def _give_back(engine: Engine, owner: BlockOwner, cidr: Network) -> None:
    """Release an empty block whose pool stopped selecting this node; nothing surfaces (§11.2 step 7)."""
    try:
        for _ in engine.retry.tries(f"releasing block {cidr}"):
            try:
                release_affinity(engine, owner, cidr, must_be_empty=True)
            except Conflict:
                continue
            return
    except IPAMError as error:
        log.info("block %s stays with %s, though its pool does not select the node: %s", cidr, owner, error)


def _why_no_pool(choice: PoolChoice, labels: dict[str, str]) -> str:
    reasons = []
    for pool in choice.enabled:
        if pool.assignment_mode != "Automatic":
            reasons.append(
                f"pool {pool.name} is used only when asked for by name (assignmentMode {pool.assignment_mode})"
            )
        elif not pool.selects_node(labels):
            reasons.append(f"pool {pool.name} selects nodes with {pool.node_selector}")
        else:
            reasons.append(f"pool {pool.name} selects namespaces with {pool.namespace_selector}")
    return "; ".join(reasons)
