"""Making, listing and removing pools (cli §9), safe against the traps that cost people their addresses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from calico_ipam.datastore.api import Create, Delete, Entry, Listing, Update
from calico_ipam.engine.world import POOLS, Engine
from calico_ipam.errors import AlreadyExists, Conflict, InvalidInput, NotFound, NotSupported, RefusedError
from calico_ipam.model.addresses import Network, contains, network_of, overlaps
from calico_ipam.model.affinity import BlockOwner
from calico_ipam.model.block import Block
from calico_ipam.model.keys import BlockKey, Blocks, ResourceKey
from calico_ipam.model.pool import Pool, parse_pools
from calico_ipam.model.pool_rules import PoolRequest, check_existing_blocks, check_new_pool
from calico_ipam.model.resource import IP_POOL, Resource

#: how long allocations that saw the pool enabled get to finish after it was disabled (cli §9.3)
SETTLE_SECONDS = 0.5

_NODE = "node"


@dataclass(frozen=True, slots=True)
class PoolList:
    """Pools in name order, and (name, reason) of documents that cannot be used."""

    pools: tuple[Pool, ...]
    unreadable: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class PoolUse:
    """What stands in a pool's CIDR: addresses that somebody holds, by node, and blocks that cannot be read.

    Cooling addresses and those that Windows hosts keep for themselves belong to nobody and are not counted.
    """

    by_node: Mapping[str, int] = field(default_factory=dict)  #: node name, or empty where none is recorded
    unreadable: tuple[str, ...] = ()

    @property
    def addresses(self) -> int:
        return sum(self.by_node.values())

    @property
    def any(self) -> bool:
        return bool(self.by_node or self.unreadable)

    def __str__(self) -> str:
        parts = [f"{number} on {node or 'no known node'}" for node, number in sorted(self.by_node.items())]
        found = []
        if parts:
            shown, more = parts[:10], len(parts) - 10
            nodes = ", ".join(shown) + (f" and {more} more nodes" if more > 0 else "")
            found.append(f"{self.addresses} address{'es' if self.addresses != 1 else ''} in use ({nodes})")
        if self.unreadable:
            found.append(f"blocks that cannot be read ({', '.join(self.unreadable[:10])})")
        return " and ".join(found) or "no address in use"


def list_pools(engine: Engine) -> PoolList:
    """Return all pools, disabled ones and those being deleted included."""
    listing = engine.store.list(POOLS)
    pools, bad = parse_pools(entry.value for entry in listing)
    return PoolList(tuple(pools), (*bad, *((d.path, d.reason) for d in listing.damaged)))


def check_pool(engine: Engine, request: PoolRequest) -> Resource:
    """Return the document of a new pool that would be stored now. Raises InvalidInput, AlreadyExists."""
    key = ResourceKey(IP_POOL, request.name)
    snapshot = engine.store.read(POOLS, Blocks())
    pools = snapshot.listing(POOLS)
    existing, _ = parse_pools(entry.value for entry in pools)
    cidr = check_new_pool(request, existing)
    stored = next((entry.value for entry in pools if entry.key == key), None)
    if stored is not None:
        raise _exists(stored)
    check_existing_blocks(request, cidr, block_cidrs(snapshot.listing(Blocks())))
    return request.resource(cidr)


def create_pool(engine: Engine, request: PoolRequest) -> Pool:
    """Store a new pool (cli §9.2). Raises InvalidInput for a broken rule, AlreadyExists for a name in use."""
    resource = check_pool(engine, request)
    key = ResourceKey(IP_POOL, request.name)
    try:
        (created,) = engine.store.commit(Create(key, resource))
    except AlreadyExists:
        raise _exists(engine.store.get(key).value) from None
    keep_apart(engine, created, request)
    return Pool.from_resource(resource)


def keep_apart(engine: Engine, created: Entry, request: PoolRequest) -> None:
    """Take a pool that was just created away again if another overlaps it, made at the same moment by somebody else.

    Of two such pools the one that was stored later sees the other, so that they never both stay; both may go.
    Raises InvalidInput.
    """
    others, _ = parse_pools(entry.value for entry in engine.store.list(POOLS) if entry.key != created.key)
    try:
        check_new_pool(request, others, schema=False)
    except InvalidInput:
        with suppress(NotFound):
            engine.store.commit(Delete(created))
        raise


def pool_use(engine: Engine, pool: Pool) -> PoolUse:
    """Return who holds addresses in a pool's CIDR."""
    by_node: dict[str, int] = {}
    unreadable = []
    listing = engine.store.list(Blocks(pool.cidr.version))
    for entry in listing:
        for node in _holders(entry.value, pool.cidr):
            by_node[node] = by_node.get(node, 0) + 1
    for damaged in listing.damaged:
        if isinstance(damaged.key, BlockKey) and overlaps(damaged.key.cidr, pool.cidr):
            unreadable.append(str(damaged.key.cidr))
    return PoolUse(by_node, tuple(unreadable))


def look_at_pool(engine: Engine, name: str) -> tuple[Resource, PoolUse]:
    """Return the stored pool of this name and who uses it. Raises NotFound with the names there are."""
    resource: Resource = _pool_entry(engine, name).value
    pool = _readable(resource)
    return resource, pool_use(engine, pool) if pool is not None else PoolUse()


def refuse_used(name: str, use: PoolUse) -> None:
    """Raise RefusedError for a pool that is in use, naming how many addresses and which nodes (ruling 11)."""
    if use.any:
        raise RefusedError(
            f"pool {name} is in use: {use}",
            subject=f"{IP_POOL}({name})",
            reason="a pool in use is deleted only by force",
            hint="Release these addresses first, or use --force: the addresses then stay with their holders, "
            "in blocks that belong to no pool.",
        )


ReleaseAffinities = Callable[[Network], None]


def delete_unused_pool(engine: Engine, name: str, release_affinities: ReleaseAffinities) -> None:
    """Delete a pool that nobody holds an address of (ruling 11). Raises RefusedError naming the holders' nodes.

    It is looked at twice, before it is disabled and again when allocations that were under way have finished; found in
    use then, it is enabled again and stays.
    """
    before, use = look_at_pool(engine, name)
    refuse_used(name, use)
    _disable(engine, name)
    engine.clock.sleep(SETTLE_SECONDS)
    try:
        refuse_used(name, look_at_pool(engine, name)[1])
    except RefusedError:
        _set_spec(engine, name, before)
        raise
    _remove(engine, name, release_affinities)


def delete_used_pool(engine: Engine, name: str, release_affinities: ReleaseAffinities) -> None:
    """Delete a pool whoever uses it, in upstream's order (cli §9.3): disable, wait, release its affinities, delete.

    Addresses stay allocated and their blocks remain without an owner until the last one is released.
    """
    _disable(engine, name)
    engine.clock.sleep(SETTLE_SECONDS)
    _remove(engine, name, release_affinities)


# --- steps of a deletion -----------------------------------------------------------------------------------


def _disable(engine: Engine, name: str) -> None:
    for _ in engine.retry.tries(f"disabling pool {name}"):
        entry = _pool_entry(engine, name)
        if entry.value.spec.get("disabled") is True:
            return
        try:
            engine.store.commit(Update(entry, entry.value.with_spec({**entry.value.spec, "disabled": True})))
        except Conflict:
            continue
        return


def _set_spec(engine: Engine, name: str, before: Resource) -> None:
    """Give ``disabled`` back the value it had, leaving whatever else changed meanwhile."""
    for _ in engine.retry.tries(f"enabling pool {name} again"):
        entry = _pool_entry(engine, name)
        spec = {key: value for key, value in entry.value.spec.items() if key != "disabled"}
        if "disabled" in before.spec:
            spec["disabled"] = before.spec["disabled"]
        try:
            engine.store.commit(Update(entry, entry.value.with_spec(spec)))
        except Conflict:
            continue
        return


def _remove(engine: Engine, name: str, release_affinities: ReleaseAffinities) -> None:
    pool = _readable(_pool_entry(engine, name).value)
    if pool is not None:
        with suppress(NotSupported):  # a store that keeps no affinities has none to release
            release_affinities(pool.cidr)
    for _ in engine.retry.tries(f"deleting pool {name}"):
        try:
            engine.store.commit(Delete(_pool_entry(engine, name)))
        except Conflict:
            continue
        return


# --- looking -----------------------------------------------------------------------------------------------


def _pool_entry(engine: Engine, name: str) -> Entry:
    if "/" in name:  # a CIDR instead of a name; no store would take it as a key
        raise NotFound(str(ResourceKey(IP_POOL, name)), hint=_suggest(engine, name))
    try:
        return engine.store.get(ResourceKey(IP_POOL, name))
    except NotFound as error:
        raise NotFound(error.subject, error.reason, hint=_suggest(engine, name)) from None


def _suggest(engine: Engine, name: str) -> str:
    known = list_pools(engine)
    for pool in known.pools:
        if name in (pool.cidr_text, str(pool.cidr)):
            return f"Pool {pool.name} has this CIDR: give its name."
    names = sorted([pool.name for pool in known.pools] + [bad for bad, _ in known.unreadable])
    return f"Known pools: {', '.join(names)}." if names else "There are no pools."


def _readable(resource: Resource) -> Pool | None:
    try:
        return Pool.from_resource(resource)
    except InvalidInput:
        return None  # a pool whose CIDR says nothing holds nothing; it can still be deleted


def _exists(stored: Resource) -> AlreadyExists:
    return AlreadyExists(
        f"{IP_POOL}({stored.name})",
        hint=f"Pool {stored.name} has CIDR {stored.spec.get('cidr')}; "
        "'ipamctl pool create CIDR --name OTHER' makes one beside it.",
    )


def block_cidrs(listing: Listing) -> Iterator[Network]:
    """Yield the CIDR of every block, those that cannot be read included."""
    for entry in listing:
        yield entry.value.cidr
    for damaged in listing.damaged:
        if isinstance(damaged.key, BlockKey):
            yield damaged.key.cidr


def _holders(block: Block, cidr: Network) -> Iterator[str]:
    """Yield, for each address of ``block`` in ``cidr`` that somebody holds, the name of the holder's node."""
    if not overlaps(block.cidr, cidr):
        return
    owner = BlockOwner.parse(block.affinity)
    for ordinal, attribute in block.taken():
        if attribute.cold or attribute.windows_reserved:
            continue
        address = block.address(ordinal)
        if contains(cidr, block.cidr) or contains(cidr, network_of(address, address.max_prefixlen)):
            yield attribute.active.get(_NODE) or (owner.host if owner is not None else "")
