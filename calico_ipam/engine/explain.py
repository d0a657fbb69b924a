"""Why a node, pod, pool, address or handle is as it is, and what would happen next (cli §17.1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from calico_ipam.engine.holdings import Held, held_by_handle, held_by_pod
from calico_ipam.engine.survey import BLOCKS, affinity_host
from calico_ipam.engine.utilization import PoolUtilization, get_utilization
from calico_ipam.engine.world import CONFIG, POOLS, RESERVATIONS, Engine, node_key
from calico_ipam.errors import InvalidInput, NotFound
from calico_ipam.model.addresses import contains, overlaps
from calico_ipam.model.block import Block
from calico_ipam.model.config import IPAMConfig
from calico_ipam.model.keys import HandleKey, ResourceKey, Resources
from calico_ipam.model.pool import AUTOMATIC, WORKLOAD, Pool, parse_pools
from calico_ipam.model.reservation import Reservations
from calico_ipam.model.resource import WORKLOAD_ENDPOINT


@dataclass(frozen=True, slots=True)
class PoolVerdict:
    """Whether a pool serves a request, and why."""

    pool: Pool
    accepted: bool
    reason: str
    free_blocks: int = 0  #: places for blocks that nobody has claimed


@dataclass(frozen=True, slots=True)
class OwnBlock:
    """A block that a node owns."""

    block: Block
    free: int
    pool: str


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """What a node gets when a workload asks it for an address of a family."""

    node: str
    version: int
    known: bool  #: there is a Node of this name
    pools: tuple[PoolVerdict, ...]
    blocks: tuple[OwnBlock, ...]
    limit: int
    limit_from: str
    strict: bool
    auto: bool
    borrowable: int  #: free addresses in blocks of others, in accepted pools
    outcome: str
    ok: bool


def explain_node(
    engine: Engine,
    node: str,
    *,
    version: int = 4,
    use: str = WORKLOAD,
    namespace: str = "",
    namespace_labels: Mapping[str, str] | None = None,
    requested: str = "",
) -> NodeAnswer:
    """Return what would happen if a workload asked this node for an address. Nothing is written."""
    key = node_key(node)
    snapshot = engine.store.read(CONFIG, POOLS, RESERVATIONS, BLOCKS, key)
    stored = snapshot.entry(CONFIG)
    config = stored.value if stored is not None else IPAMConfig()
    found = snapshot.entry(key)
    labels = found.value.labels if found is not None else {}
    pools, _ = parse_pools(entry.value for entry in snapshot.listing(POOLS))
    reservations = Reservations.from_resources(entry.value for entry in snapshot.listing(RESERVATIONS))
    blocks = [engine.fresh(entry.value, config) for entry in snapshot.listing(BLOCKS)]
    verdicts = tuple(
        _verdict(pool, version, use, labels, namespace, namespace_labels, requested, blocks) for pool in pools
    )
    accepted = [each.pool for each in verdicts if each.accepted]
    own = tuple(
        OwnBlock(block, block.free(reservations), _pool_name(pools, block))
        for block in blocks
        if affinity_host(block) == node and block.cidr.version == version
    )
    limit, limit_from = config.block_limit(0)
    borrowable = sum(
        block.free(reservations)
        for block in blocks
        if affinity_host(block) != node and any(contains(pool.cidr, block.cidr) for pool in accepted)
    )
    outcome, ok = _outcome(found is not None, verdicts, accepted, own, limit, limit_from, config, borrowable, version)
    return NodeAnswer(
        node,
        version,
        found is not None,
        verdicts,
        own,
        limit,
        limit_from,
        config.strict_affinity,
        config.auto_allocate_blocks,
        borrowable,
        outcome,
        ok,
    )


def _pool_name(pools: Sequence[Pool], block: Block) -> str:
    return next((pool.name for pool in pools if contains(pool.cidr, block.cidr)), "")


def _verdict(
    pool: Pool,
    version: int,
    use: str,
    labels: Mapping[str, str],
    namespace: str,
    namespace_labels: Mapping[str, str] | None,
    requested: str,
    blocks: Sequence[Block],
) -> PoolVerdict:
    reason = next(_refusals(pool, version, use, labels, namespace, namespace_labels, requested), "")
    if reason:
        return PoolVerdict(pool, False, reason)
    inside = [block for block in blocks if overlaps(pool.cidr, block.cidr)]
    size = 1 << (pool.cidr.max_prefixlen - pool.block_size)
    taken = sum(max(1, block.cidr.num_addresses // size) for block in inside)
    free = max(0, (1 << max(0, pool.block_size - pool.cidr.prefixlen)) - taken)
    why = "asked for by name" if requested else f"selected: {pool.node_selector}"
    return PoolVerdict(pool, True, why, free)


def _refusals(
    pool: Pool,
    version: int,
    use: str,
    labels: Mapping[str, str],
    namespace: str,
    namespace_labels: Mapping[str, str] | None,
    requested: str,
) -> Iterator[str]:
    if pool.cidr.version != version:
        yield f"holds IPv{pool.cidr.version} addresses"
    if not pool.enabled:
        yield pool.unusable_reason
    if use not in pool.allowed_uses:
        yield f"is for {', '.join(pool.allowed_uses)} only"
    if requested:
        if requested not in (pool.name, pool.cidr_text, str(pool.cidr)):
            yield "was not asked for"
        return
    if pool.assignment_mode != AUTOMATIC:
        yield "is used only when a workload asks for it (assignmentMode Manual)"
    try:
        if not pool.selects_node(labels):
            yield f"does not select this node: nodeSelector {pool.node_selector}, labels {_labels(labels)}"
        if pool.namespace_selector and namespace_labels is not None and not pool.selects_namespace(namespace_labels):
            has = _labels(namespace_labels)
            yield f"does not select namespace {namespace}: {pool.namespace_selector}, labels {has}"
    except InvalidInput as error:
        yield f"has a selector that does not parse: {error}"


def _labels(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(labels.items())) or "none"


def _outcome(
    known: bool,
    verdicts: Sequence[PoolVerdict],
    accepted: Sequence[Pool],
    own: Sequence[OwnBlock],
    limit: int,
    limit_from: str,
    config: IPAMConfig,
    borrowable: int,
    version: int,
) -> tuple[str, bool]:
    if not known:
        return "It gets no address: there is no Node of this name in the datastore.", False
    if not accepted:
        return f"It gets no address: no pool serves it. {_closest(verdicts, version)}", False
    names = {pool.name for pool in accepted}
    ready = [each for each in own if each.free and each.pool in names]
    if ready:
        return f"It takes an address of its own block {ready[0].block.cidr}, which has {ready[0].free} free.", True
    free = next((each for each in verdicts if each.accepted and each.free_blocks), None)
    may_claim = config.auto_allocate_blocks and len(own) < limit
    if free is not None and may_claim:
        return f"It claims a new block in pool {free.pool.name}, where {free.free_blocks} are free.", True
    why = (
        "blocks are not claimed by themselves (autoAllocateBlocks is off)"
        if not config.auto_allocate_blocks
        else f"it owns {len(own)} blocks and may own {limit} ({limit_from})"
        if len(own) >= limit
        else "every block of its pools is claimed"
    )
    if config.strict_affinity:
        return f"It gets no address: {why}, and strict affinity forbids borrowing.", False
    if borrowable:
        return f"It borrows an address from another node's block, since {why}; {borrowable} are free there.", True
    return f"It gets no address: {why}, and no block of its pools has a free address.", False


def _closest(verdicts: Sequence[PoolVerdict], version: int) -> str:
    same = [each for each in verdicts if each.pool.cidr.version == version]
    if not same:
        return f"There is no IPv{version} pool: 'ipamctl pool create CIDR' makes one."
    return f"Pool {same[0].pool.name} {same[0].reason}."


# --- pods, handles, pools ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PodAnswer:
    """What is known of a pod: its addresses, its endpoint, and what its node would get."""

    namespace: str
    name: str
    held: tuple[Held, ...]
    endpoints: tuple[tuple[str, tuple[str, ...]], ...]  #: node and networks of each of its endpoints
    node: str
    next: NodeAnswer | None


def explain_pod(engine: Engine, namespace: str, name: str) -> PodAnswer:
    """Return what is known of a pod, there or not."""
    held = held_by_pod(engine, namespace, name)
    endpoints = [
        (str(entry.value.spec.get("node") or ""), tuple(str(n) for n in entry.value.spec.get("ipNetworks") or ()))
        for entry in engine.store.list(Resources(WORKLOAD_ENDPOINT, namespace))
        if entry.value.spec.get("pod") == name
    ]
    node = next((each[0] for each in endpoints if each[0]), "") or next((each.node for each in held if each.node), "")
    answer = explain_node(engine, node, namespace=namespace) if node and not held else None
    return PodAnswer(namespace, name, tuple(held), tuple(endpoints), node, answer)


@dataclass(frozen=True, slots=True)
class HandleAnswer:
    """A handle: what its object counts, and what the blocks say."""

    id: str
    counted: Mapping[str, int] | None  #: None: there is no such object
    held: tuple[Held, ...]

    @property
    def agrees(self) -> bool:
        real: dict[str, int] = {}
        for each in self.held:
            real[str(each.block)] = real.get(str(each.block), 0) + 1
        return (self.counted or {}) == real


def explain_handle(engine: Engine, handle: str) -> HandleAnswer:
    """Return a handle's object and addresses. Raises NotFound when there is neither."""
    key = HandleKey(handle)
    entry = engine.store.read(key).entry(key)
    held = held_by_handle(engine, handle)
    if entry is None and not held:
        raise NotFound(str(key), hint="'ipamctl get handles' lists them.")
    return HandleAnswer(handle, dict(entry.value.blocks) if entry is not None else None, tuple(held))


@dataclass(frozen=True, slots=True)
class PoolAnswer:
    """A pool: how full it is, who owns its blocks, which nodes it serves."""

    pool: Pool
    usage: PoolUtilization
    owners: tuple[tuple[str, int, int], ...]  #: owner, blocks, addresses in use; most first
    serves: tuple[str, ...]
    refuses: tuple[str, ...]
    notes: tuple[str, ...] = field(default=())


def explain_pool(engine: Engine, name: str) -> PoolAnswer:
    """Return what there is to say about a pool, by name or CIDR. Raises NotFound."""
    usage = get_utilization(engine, [name])
    if not usage.pools:
        raise NotFound(str(ResourceKey("IPPool", name)), hint="'ipamctl pool list' shows the pools.")
    counted = usage.pools[0]
    stored = engine.store.get(ResourceKey("IPPool", counted.name))
    pool = Pool.from_resource(stored.value)
    owners: dict[str, tuple[int, int]] = {}
    for block in counted.blocks:
        blocks, used = owners.get(block.affinity or "nobody", (0, 0))
        owners[block.affinity or "nobody"] = (blocks + 1, used + block.in_use)
    serves: list[str] = []
    refuses: list[str] = []
    for entry in engine.store.list(Resources("Node")):
        try:
            (serves if pool.selects_node(entry.value.labels) else refuses).append(entry.value.name)
        except InvalidInput:
            refuses.append(entry.value.name)
    notes = []
    if not pool.enabled:
        notes.append(f"No new addresses come from it: it {pool.unusable_reason}.")
    other = [block for block in counted.blocks if block.cidr.prefixlen != pool.block_size]
    if other:
        notes.append(f"{len(other)} blocks have another size than /{pool.block_size}: 'ipamctl ipam check' tells.")
    ordered = sorted(((o, b, u) for o, (b, u) in owners.items()), key=lambda each: (-each[2], each[0]))
    return PoolAnswer(pool, counted, tuple(ordered), tuple(serves), tuple(refuses), tuple(notes))
