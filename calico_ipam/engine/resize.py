"""Changing the size of a pool's blocks while it lives (issue of the operator's tool, public report P01).

Two sizes over the same addresses is how one address gets two owners, so no block of the new size is made before the
last of the old is gone: the pool is disabled, empty blocks are given up, the others drain as their workloads end, and
then the pool goes on with the new size. Each call does what can be done now and says what is left; what it is about
stands in an annotation of the pool, so any call goes on where the last one ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from calico_ipam.datastore.api import Create, Delete, Entry, Update
from calico_ipam.engine import pools
from calico_ipam.engine.admin import release_block_affinity
from calico_ipam.engine.survey import BLOCKS
from calico_ipam.engine.world import Engine
from calico_ipam.errors import Conflict, InvalidInput, IPAMError
from calico_ipam.model.addresses import Network, overlaps
from calico_ipam.model.block import Block
from calico_ipam.model.keys import BlockKey, ResourceKey
from calico_ipam.model.pool import Pool
from calico_ipam.model.pool_rules import PoolRequest, check_new_pool
from calico_ipam.model.resource import IP_POOL, Resource, mapping

RESIZE = "calico-ipam/resize"  #: annotation: the new block size, and whether the pool was disabled before


@dataclass(frozen=True, slots=True)
class Resize:
    """Where a change of block size stands."""

    pool: str
    cidr: Network
    old: int
    new: int
    given_up: tuple[Network, ...] = ()  #: empty blocks that were given up now
    left: Mapping[str, int] = field(default_factory=dict)  #: node to number of addresses in blocks of the old size
    blocks: tuple[Network, ...] = ()  #: blocks of the old size that are still there
    done: bool = False


def look(engine: Engine, name: str, size: int) -> Resize:
    """Return what a change of size means now; nothing is written. Raises NotFound, InvalidInput."""
    entry, pool = _pool(engine, name)
    _check(entry, size)
    return _state(engine, pool, size)


def carry_on(engine: Engine, name: str, size: int) -> Resize:
    """Do what can be done now. Raises NotFound, InvalidInput, Conflict."""
    entry, pool = _pool(engine, name)
    _check(entry, size)
    if pool.block_size == size and not _mark(entry) and not _state(engine, pool, size).blocks:
        return Resize(name, pool.cidr, size, size, done=True)
    entry = _begin(engine, entry, size)
    engine.clock.sleep(pools.SETTLE_SECONDS)  # allocations that saw the pool enabled finish
    given_up = _give_up_empty(engine, pool)
    state = _state(engine, pool, size)
    if state.blocks:
        return Resize(name, pool.cidr, pool.block_size, size, given_up, state.left, state.blocks)
    _finish(engine, name, size)
    return Resize(name, pool.cidr, pool.block_size, size, given_up, done=True)


def _pool(engine: Engine, name: str) -> tuple[Entry, Pool]:
    resource, _ = pools.look_at_pool(engine, name)
    return engine.store.get(ResourceKey(IP_POOL, name)), Pool.from_resource(resource)


def _mark(entry: Entry) -> str:
    return str(mapping(entry.value.metadata.get("annotations")).get(RESIZE) or "")


def _check(entry: Entry, size: int) -> None:
    """Refuse a size that no pool could have, or another than the one under way."""
    document = {**entry.value.document, "spec": {**entry.value.spec, "blockSize": size}}
    check_new_pool(PoolRequest.from_document(document), ())
    mark = _mark(entry)
    if mark and mark.partition(",")[0] != str(size):
        raise InvalidInput(
            f"pool {entry.value.name} is being changed to blocks of /{mark.partition(',')[0]} already",
            subject=entry.value.name,
            hint=f"Go on with that: ipamctl pool resize {entry.value.name} {mark.partition(',')[0]}; or --cancel it.",
        )


def _state(engine: Engine, pool: Pool, size: int) -> Resize:
    left: dict[str, int] = {}
    blocks = []
    for block in _inside(engine, pool):
        if block.cidr.prefixlen == size:
            continue
        blocks.append(block.cidr)
        for _, attribute in block.taken():
            node = attribute.active.get("node") or ("cooling down" if attribute.cold else "no known node")
            left[node] = left.get(node, 0) + 1
    return Resize(pool.name, pool.cidr, pool.block_size, size, left=left, blocks=tuple(sorted(blocks)))


def _inside(engine: Engine, pool: Pool) -> list[Block]:
    return [entry.value for entry in engine.store.list(BLOCKS) if overlaps(entry.value.cidr, pool.cidr)]


def _begin(engine: Engine, entry: Entry, size: int) -> Entry:
    """Disable the pool and note what is under way."""
    for _ in engine.retry.tries(f"disabling pool {entry.value.name}"):
        if _mark(entry) and entry.value.spec.get("disabled") is True:
            return entry
        was = "disabled" if entry.value.spec.get("disabled") is True else "enabled"
        mark = _mark(entry) or f"{size},{was}"
        try:
            return engine.store.commit(Update(entry, _with(entry.value, {"disabled": True}, mark)))[0]
        except Conflict:
            entry = engine.store.get(entry.key)
    raise AssertionError("tries() never ends quietly")


def _with(resource: Resource, spec: Mapping[str, object], mark: str) -> Resource:
    metadata = dict(resource.metadata)
    notes = {key: value for key, value in mapping(metadata.pop("annotations", None)).items() if key != RESIZE}
    if mark:
        notes[RESIZE] = mark
    if notes:
        metadata["annotations"] = notes
    merged = {**resource.spec, **spec}
    content = {name: value for name, value in merged.items() if value is not False}
    return Resource(resource.kind, resource.name, {**resource.document, "metadata": metadata, "spec": content})


def _give_up_empty(engine: Engine, pool: Pool) -> tuple[Network, ...]:
    """Take empty blocks from their owners; they disappear."""
    given_up = []
    for block in _inside(engine, pool):
        if not block.empty:
            continue
        key = BlockKey(block.cidr)
        try:
            if block.affinity:
                release_block_affinity(engine, block, must_be_empty=True)
            else:
                stored = engine.store.read(key).entry(key)
                if stored is not None and stored.value.empty:
                    engine.store.commit(Delete(stored))
        except IPAMError:
            continue  # somebody uses it after all; the next call sees
        if engine.store.read(key).entry(key) is None:
            given_up.append(block.cidr)
    return tuple(given_up)


def _finish(engine: Engine, name: str, size: int) -> None:
    """Give the pool its new size, and what it was before. On the Kubernetes API the size of a pool cannot change, so
    there it is made anew."""
    key = ResourceKey(IP_POOL, name)
    for _ in engine.retry.tries(f"changing pool {name}"):
        entry = engine.store.get(key)
        was_disabled = _mark(entry).endswith(",disabled")
        changed = _with(entry.value, {"blockSize": size, "disabled": was_disabled}, "")
        try:
            if engine.store.capabilities.atomic:
                engine.store.commit(Update(entry, changed))
            else:
                kept = ("name", "labels", "annotations")
                metadata = {k: changed.metadata[k] for k in kept if k in changed.metadata}
                document = {**changed.document, "metadata": metadata}
                document.pop("status", None)
                engine.store.commit(Delete(entry), Create(key, Resource(IP_POOL, name, document)))
        except Conflict:
            continue
        return


def cancel(engine: Engine, name: str) -> bool:
    """Forget a change of size that is under way: the pool goes on as it was. False: there was none."""
    key = ResourceKey(IP_POOL, name)
    for _ in engine.retry.tries(f"changing pool {name}"):
        entry = engine.store.get(key)
        if not _mark(entry):
            return False
        was_disabled = _mark(entry).endswith(",disabled")
        try:
            engine.store.commit(Update(entry, _with(entry.value, {"disabled": was_disabled}, "")))
        except Conflict:
            continue
        return True
    raise AssertionError("tries() never ends quietly")
