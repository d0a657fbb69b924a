"""Splitting a pool safely: everything is validated first, and a half-done split goes on (cli §7, §17.3).

Order: disable the old pool, create the parts disabled, delete the old pool, enable the parts. Blocks, affinities and
handles are not touched; each block lies in one of the parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calico_ipam.datastore.api import Create, Delete, Entry, Update
from calico_ipam.engine.initialise import stamped
from calico_ipam.engine.world import POOLS, Engine
from calico_ipam.errors import AlreadyExists, Conflict, InvalidInput, NotFound
from calico_ipam.model.addresses import WIDTH, Network, blocks_in
from calico_ipam.model.keys import ResourceKey
from calico_ipam.model.pool import Pool
from calico_ipam.model.resource import IP_POOL, Resource, mapping

_LONGEST_NAME = 253


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """What a split does. ``existing``: names of parts that an earlier, interrupted split has made already."""

    pool: str
    cidr: Network
    parts: tuple[tuple[str, Network], ...]
    document: Mapping[str, Any]
    existing: frozenset[str] = frozenset()
    old_exists: bool = True  #: False: an interrupted split has got as far as deleting the old pool


def part_name(pool: str, index: int) -> str:
    """Return the name of a part; the pool's own is cut where the whole would be too long."""
    tail = f"-{index}"
    return f"split-{pool[: _LONGEST_NAME - len('split-') - len(tail)]}{tail}"


def parts_of(cidr: Network, number: int) -> list[Network]:
    """Return the parts of a CIDR. Raises InvalidInput in upstream's words."""
    wrapped = f"error splitting the CIDR {cidr} into {number} CIDRs: "
    if number < 2 or number & (number - 1):
        raise InvalidInput(
            f"{wrapped}number to split CIDR into is not a valid power of 2: {number}", hint="Give 2, 4, 8 and so on."
        )
    length = cidr.prefixlen + number.bit_length() - 1
    if length > WIDTH[cidr.version]:
        raise InvalidInput(
            f"{wrapped}the CIDR {cidr} is not large enough to be split into {number} parts",
            hint="Give a smaller number.",
        )
    return list(blocks_in(cidr, length))


def plan(engine: Engine, number: int, *, name: str = "", cidr: str = "") -> SplitPlan:
    """Return what splitting the pool of this name, or else CIDR, would do. Raises InvalidInput, NotFound,
    AlreadyExists (another pool has the name of a part)."""
    listing = engine.store.list(POOLS)
    stored = {entry.value.name: entry.value for entry in listing}
    left = _leftovers(stored, number, name)
    if left is not None:
        return left
    resource = _find(engine, stored, name=name, cidr=cidr)
    pool = Pool.from_resource(resource)
    parts = parts_of(pool.cidr, number)
    if parts[0].prefixlen > pool.block_size:
        raise InvalidInput(
            f"error splitting the CIDR {pool.cidr} into {number} CIDRs: parts of /{parts[0].prefixlen} are smaller "
            f"than the pool's blocks of /{pool.block_size}",
            subject=resource.name,
            hint=f"Give at most {1 << max(0, pool.block_size - pool.cidr.prefixlen)}.",
        )
    named = [(part_name(resource.name, index), part) for index, part in enumerate(parts)]
    existing = set()
    for part, network in named:
        there = stored.get(part)
        if there is None:
            continue
        # Only disabled parts are leftovers of a split that was interrupted.
        if str(there.spec.get("cidr")) != str(network) or there.spec.get("disabled") is not True:
            key = ResourceKey(IP_POOL, part)
            raise AlreadyExists(str(key), hint=f"Delete or rename pool {part} ({there.spec.get('cidr')}) first.")
        existing.add(part)
    return SplitPlan(
        pool=resource.name,
        cidr=pool.cidr,
        parts=tuple(named),
        document=resource.document,
        existing=frozenset(existing),
    )


def _leftovers(stored: Mapping[str, Resource], number: int, name: str) -> SplitPlan | None:
    """Return what is left to do of a split whose old pool is gone already: its disabled parts must be enabled."""
    names = [part_name(name, index) for index in range(max(0, min(number, 1 << 16)))]
    if not name or name in stored or not names or any(part not in stored for part in names):
        return None
    parts = [(part, Pool.from_resource(stored[part]).cidr) for part in names]
    if all(stored[part].spec.get("disabled") is not True for part in names):
        return None
    return SplitPlan(name, parts[0][1], tuple(parts), {}, frozenset(names), old_exists=False)


def _find(engine: Engine, stored: Mapping[str, Resource], *, name: str, cidr: str) -> Resource:
    if name:
        if name in stored:
            return stored[name]
        try:
            return engine.store.get(ResourceKey(IP_POOL, name)).value  # type: ignore[no-any-return]  # a key of a Resource
        except NotFound as error:
            error.hint = f"Known pools: {', '.join(sorted(stored)) or 'none'}."
            raise
    for resource in stored.values():
        if str(resource.spec.get("cidr")) == cidr:
            return resource
    raise InvalidInput(
        f"unable to find IP pool  covering the specified CIDR {cidr}",
        subject=cidr,
        hint="Give the CIDR exactly as the pool has it: "
        + ", ".join(sorted(str(each.spec.get("cidr")) for each in stored.values())),
    )


def carry_out(engine: Engine, wanted: SplitPlan) -> Sequence[tuple[str, Network]]:
    """Do a split; may be called again after any interruption with a new plan. Return the parts."""
    old = ResourceKey(IP_POOL, wanted.pool)
    if wanted.old_exists:
        _set_disabled(engine, old, disabled=True)
    for name, network in wanted.parts:
        if name not in wanted.existing:
            engine.store.commit(Create(ResourceKey(IP_POOL, name), stamped(engine, _part(wanted, name, network))))
    _delete(engine, old)
    for name, _ in wanted.parts:
        _set_disabled(engine, ResourceKey(IP_POOL, name), disabled=False)
    return wanted.parts


def _part(wanted: SplitPlan, name: str, network: Network) -> Resource:
    spec = {**mapping(wanted.document.get("spec")), "cidr": str(network), "disabled": True}
    before = mapping(wanted.document.get("metadata"))
    return Resource.new(
        IP_POOL,
        name,
        _ordered(spec),
        labels=dict(mapping(before.get("labels"))),
        annotations=dict(mapping(before.get("annotations"))),
    )


#: the order in which upstream writes the fields of a pool
FIELDS = (
    *("cidr", "vxlanMode", "ipipMode", "natOutgoing", "disabled", "disableBGPExport", "blockSize", "nodeSelector"),
    *("namespaceSelector", "allowedUses", "assignmentMode"),
)


def _ordered(spec: Mapping[str, Any]) -> dict[str, Any]:
    known = {name: spec[name] for name in FIELDS if name in spec}
    return known | {name: value for name, value in spec.items() if name not in known}


def _set_disabled(engine: Engine, key: ResourceKey, *, disabled: bool) -> None:
    for _ in engine.retry.tries(f"changing pool {key.name}"):
        entry: Entry = engine.store.get(key)
        spec = {name: value for name, value in entry.value.spec.items() if name != "disabled"}
        if disabled:
            spec["disabled"] = True
        if spec == dict(entry.value.spec):
            return
        try:
            engine.store.commit(Update(entry, entry.value.with_spec(_ordered(spec))))
        except Conflict:
            continue
        return


def _delete(engine: Engine, key: ResourceKey) -> None:
    for _ in engine.retry.tries(f"deleting pool {key.name}"):
        try:
            engine.store.commit(Delete(engine.store.get(key)))
        except Conflict:
            continue
        except NotFound:
            return
        return
