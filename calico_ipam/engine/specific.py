"""Assignment of one given address (ipam-library §12)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from calico_ipam.datastore.api import Entry, Update
from calico_ipam.engine.cap import WAIT_TRIES, correct, held_addresses
from calico_ipam.engine.claim import LOST, claim_block
from calico_ipam.engine.prelude import handle_is_read_first
from calico_ipam.engine.request import owner_for
from calico_ipam.engine.search import list_blocks
from calico_ipam.engine.transaction import Holding, write_assignment
from calico_ipam.engine.world import Engine, World, concerns, explain
from calico_ipam.errors import (
    AlreadyExists,
    BlockClaimConflict,
    InvalidInput,
    IPAMError,
    MaxAllocReached,
    RefusedError,
    StoreError,
)
from calico_ipam.model.addresses import Address, Network, overlaps
from calico_ipam.model.affinity import CONFIRMED, BlockOwner
from calico_ipam.model.block import Block, HostReserved
from calico_ipam.model.handle import check_handle
from calico_ipam.model.keys import AffinityKey, BlockKey, HandleKey, Key
from calico_ipam.model.owner import check_attributes
from calico_ipam.model.pool import Pool, pool_for

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SpecificRequest:
    """One address that somebody wants."""

    address: Address
    host: str
    handle: str | None = None
    attrs: Mapping[str, str] = field(default_factory=dict)
    use: str | None = None
    host_reserved: HostReserved | None = None
    cap: int = 0

    @property
    def owner(self) -> BlockOwner:
        return owner_for(self.use, self.host)


def assign_ip(engine: Engine, request: SpecificRequest) -> None:
    """Assign the address. Raises InvalidInput (no pool, use not allowed), AlreadyExists, RefusedError."""
    if request.handle:
        check_handle(request.handle)
    check_attributes(request.attrs)
    key = HandleKey(request.handle) if request.handle else None
    world, cidr, holding = _look(engine, request, key)
    for attempt in engine.retry.tries(f"assigning {request.address}"):
        row, stored, holding = _read(engine, request.owner, cidr, holding, again=attempt > 0)
        if attempt == WAIT_TRIES and holding is not None and request.cap > 0:
            correct(engine, world.config, holding, request.address.version)  # whoever was half-way is dead
        try:
            if stored is None:
                stored = _claim(engine, request, cidr, row)
            elif row is not None and not row.value.usable and stored.value.owned_by(request.owner):
                _confirm(engine, row)
            if _assign(engine, request, world, stored, holding):
                return
        except LOST as error:
            if isinstance(error, AlreadyExists) and error.subject == str(request.address):
                raise
            log.debug("assigning %s: %s; deciding again", request.address, error)
        except BlockClaimConflict as error:
            # Somebody else claimed the block first; whether we may use it is decided by what is there now (limit L3).
            log.debug("%s; deciding again", error)
    raise AssertionError("tries() never ends quietly")


def _look(engine: Engine, request: SpecificRequest, key: HandleKey | None) -> tuple[World, Network, Holding | None]:
    """Read what decides; return it with the CIDR of the block that the address belongs in and the handle, if read."""
    try:
        world = engine.look(*([key] if key is not None and handle_is_read_first(engine, request.cap) else []))
        cidr = _pool(world, request).block_of(request.address)
        if key is None:
            return world, cidr, None
        return world, cidr, Holding(key, world.snapshot.entry(key) if key in world.snapshot else None)
    except StoreError as error:
        if key is not None and concerns(error, key, "/handle/", "/ipamhandles/"):
            explain(error, "failed to increment handle")
        raise


def _pool(world: World, request: SpecificRequest) -> Pool:
    pool = pool_for(world.enabled, request.address)
    if pool is None:
        other = pool_for(world.pools, request.address)
        raise InvalidInput(
            "The provided IP address is not in a configured pool\n",
            subject=str(request.address),
            hint=f"Pool {other.name} holds {request.address} but {other.unusable_reason}."
            if other
            else f"No pool holds {request.address}; 'ipamctl pool list' shows the pools.",
        )
    if request.use and request.use not in pool.allowed_uses:
        raise InvalidInput(
            f'IP address {request.address} is in IP pool "{pool.name}", which is not allowed for use '
            f'"{request.use}" (allowedUses: [{" ".join(pool.allowed_uses)}])',
            subject=str(request.address),
        )
    return pool


def _read(
    engine: Engine, owner: BlockOwner, cidr: Network, holding: Holding | None, *, again: bool
) -> tuple[Entry | None, Entry | None, Holding | None]:
    """Read the affinity row and the block, and after a lost race the handle too."""
    row_key, block_key = AffinityKey(owner, cidr), BlockKey(cidr)
    keys: list[Key] = [row_key, block_key]
    if again and holding is not None:
        keys.append(holding.key)
    snapshot = engine.store.read(*keys)
    if again and holding is not None:
        holding = Holding(holding.key, snapshot.entry(holding.key))
    return snapshot.entry(row_key), snapshot.entry(block_key), holding


def _claim(engine: Engine, request: SpecificRequest, cidr: Network, row: Entry | None) -> Entry:
    """Claim a block for the address, unless one of another size, readable or not, overlaps it (public report P01)."""
    existing = list_blocks(engine, cidr.version).cidrs()
    inside = [other for other in existing if other != cidr and overlaps(other, cidr)]
    if inside:
        raise RefusedError(
            f"block {cidr} for {request.address} would overlap the existing block {inside[0]}",
            subject=str(cidr),
            reason="blocks never overlap",
            hint="The pool's block size was changed while older blocks exist: release those first.",
        )
    return claim_block(engine, request.owner, cidr, reserved=request.host_reserved, known=(row, None))


def _confirm(engine: Engine, row: Entry) -> None:
    """Confirm a pending affinity of ours that a crash left behind (limit L27). Losing is fine: others do it too."""
    try:
        engine.store.commit(Update(row, row.value.with_state(CONFIRMED)))
    except IPAMError as error:
        log.info("affinity %s stays unconfirmed for now: %s", row.key, error)


def _assign(engine: Engine, request: SpecificRequest, world: World, stored: Entry, holding: Holding | None) -> bool:
    """Assign from the block as it is. False: a concurrent caller is half-way, look again."""
    block = engine.fresh(stored.value, world.config)
    owner = request.owner if world.config.strict_affinity else None
    try:
        after = block.assign_address(request.address, handle=request.handle, attrs=request.attrs, owner=owner)
    except AlreadyExists as error:
        attribute = block.attribute(block.ordinal(request.address))
        if request.handle and request.cap > 0 and attribute is not None and attribute.clean_handle == request.handle:
            return True
        error.hint = _holder(block, request.address)
        raise
    try:
        write_assignment(engine, stored, after, [after.ordinal(request.address)], holding, request.cap)
    except MaxAllocReached as error:
        return _held(engine, request, world, holding, error)
    return True


def _held(
    engine: Engine, request: SpecificRequest, world: World, holding: Holding | None, error: MaxAllocReached
) -> bool:
    """The cap is reached: fine when the address is what the handle holds, refused when it is another (§12.4 c)."""
    assert holding is not None  # noqa: S101  # only a handle has a cap
    version = request.address.version
    held = [a.address for a in held_addresses(engine, world.config, holding.value, version, request.owner)]
    if request.address in held:
        return True
    if held:
        raise RefusedError(
            f"handle {request.handle} already has IP(s) allocated, cannot assign additional IP {request.address} "
            f"(maxAllocPerIPVersion={request.cap})",
            subject=str(request.handle),
        ) from error
    return False


def _holder(block: Block, address: Address) -> str:
    """Say who holds an address, for the operator who wanted it."""
    attribute = block.attribute(block.ordinal(address))
    if attribute is None:
        return ""
    if attribute.cold:
        return f"{address} was released a moment ago and is cooling down; it is free again when that is over."
    pod = "/".join(filter(None, (attribute.active.get("namespace"), attribute.active.get("pod"))))
    facts = [
        f"handle {attribute.clean_handle}" if attribute.clean_handle else "no handle",
        f"pod {pod}" if pod else "",
        f"node {attribute.active['node']}" if attribute.active.get("node") else "",
        f"since {attribute.active['timestamp']}" if attribute.active.get("timestamp") else "",
    ]
    return f"{address} is held by " + ", ".join(fact for fact in facts if fact) + "."
