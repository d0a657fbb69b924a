"""Owner attributes: which pod has an address now, and which will have it (ipam-library §15)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from calico_ipam.datastore.api import Update
from calico_ipam.engine.holder import stored_block
from calico_ipam.engine.lookup import assignment_attributes, ips_by_handle
from calico_ipam.engine.world import Engine, explain
from calico_ipam.errors import (
    AlternateOwnerEmpty,
    AlternateOwnerMismatch,
    Conflict,
    InvalidInput,
    IPAMError,
    NotFound,
    OutcomeUnknown,
    OwnerMismatch,
    RefusedError,
    RetriesExhausted,
)
from calico_ipam.model.addresses import Address
from calico_ipam.model.block import Attribute
from calico_ipam.model.handle_names import vm_handle
from calico_ipam.model.keys import BlockKey
from calico_ipam.model.owner import NAMESPACE, POD, Owner, check_attributes
from calico_ipam.model.pool import pool_for

log = logging.getLogger(__name__)

#: owner attributes are swapped at most this often for one address
SWAP_ATTEMPTS = 5
NOBODY = Owner()


@dataclass(frozen=True, slots=True)
class OwnerUpdates:
    """What to change. ``None`` leaves a side alone, an empty mapping clears it."""

    active: Mapping[str, str] | None = None
    alternate: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class OwnerPreconditions:
    """Who must own the address for the change to happen. ``None`` asks nothing; ``NOBODY`` asks for no owner.

    A condition is looked at only for a side that is being changed.
    """

    active: Owner | None = None
    alternate: Owner | None = None


def set_owner_attributes(
    engine: Engine, ip: Address, handle: str, updates: OwnerUpdates, preconditions: OwnerPreconditions
) -> None:
    """Change the owner attributes of one address; others of the same handle keep theirs (limit L12).

    The block may be anywhere (:func:`assignment_attributes`). Raises InvalidInput (no pool, another handle), NotFound,
    OwnerMismatch (then nothing was changed).
    """
    for attributes in (updates.active, updates.alternate):
        check_attributes(attributes or {})
    world = engine.look()
    pool = pool_for(world.enabled, ip)
    entry = stored_block(engine, world, ip)
    if entry is None and pool is not None:
        entry = engine.store.get(BlockKey(pool.block_of(ip)))  # raises in the words of the backend
    if entry is None:
        raise _poolless(ip)
    key = BlockKey(entry.cidr)
    try:
        for attempt in engine.retry.tries(f"setting the owner of {ip}"):
            if attempt:
                entry = engine.store.get(key)
            block = engine.fresh(entry.value, world.config)
            ordinal = block.ordinal(ip)
            attribute = block.attribute(ordinal)
            if attribute is None:
                raise _poolless(ip) if pool is None else NotFound(str(ip), "IP is unassigned")
            if attribute.cold or attribute.clean_handle != handle:
                raise InvalidInput(f"IP {ip} is not assigned to handle {handle}", subject=str(ip))
            _check("ActiveOwnerAttrs", ip, updates.active, preconditions.active, attribute.active)
            _check("AlternateOwnerAttrs", ip, updates.alternate, preconditions.alternate, attribute.alternate)
            changed = block.with_attribute(ordinal, _updated(attribute, updates))
            try:
                engine.store.commit(Update(entry, changed.bumped()))
            except (Conflict, OutcomeUnknown) as error:
                # Setting the same twice is harmless, but a condition may fail on our own write: see what is there.
                if isinstance(error, OutcomeUnknown) and _is_set(engine, key, ordinal, attribute, updates):
                    return
                continue
            return
    except RetriesExhausted:
        raise RetriesExhausted("max retries hit - excessive concurrent IPAM requests") from None


def _poolless(ip: Address) -> InvalidInput:
    return InvalidInput(f"the provided IP address {ip} is not in a configured pool", subject=str(ip))


def _updated(attribute: Attribute, updates: OwnerUpdates) -> Attribute:
    if updates.active is not None:
        attribute = replace(attribute, active=dict(updates.active))
    if updates.alternate is not None:
        attribute = replace(attribute, alternate=dict(updates.alternate))
    return attribute


def _check(
    field: str, ip: Address, update: Mapping[str, str] | None, expected: Owner | None, found: Mapping[str, str]
) -> None:
    if update is None or expected is None or expected.matches(found):
        return
    raise OwnerMismatch(
        f"cannot set {field}: expected {expected} but found pod={found.get(POD, '')} "
        f"namespace={found.get(NAMESPACE, '')}",
        subject=str(ip),
        hint="The address changed hands meanwhile: read its owners again.",
    )


def _is_set(engine: Engine, key: BlockKey, ordinal: int, before: Attribute, updates: OwnerUpdates) -> bool:
    entry = engine.undoing().store.read(key).entry(key)
    return entry is not None and entry.value.attribute(ordinal) == _updated(before, updates)


def ensure_active_vm_owner(engine: Engine, network: str, namespace: str, vm: str, target: str) -> None:
    """Make the pod ``target`` the active owner of every address of a VM, the old owner the alternate one (§15.3).

    Raises NotFound (no such handle), AlternateOwnerEmpty, AlternateOwnerMismatch; of other errors the last one, after
    the remaining addresses were tried.
    """
    handle = vm_handle(network, namespace, vm)
    try:
        addresses = ips_by_handle(engine, handle)
    except IPAMError as error:
        raise explain(error, f"failed to get IPs for handle {handle}") from error
    if not addresses:
        raise RefusedError(f"no IPs found for handle {handle}", subject=handle)
    failure: IPAMError | None = None
    for ip in addresses:
        try:
            _promote(engine, ip, handle, Owner(namespace, target))
        except (AlternateOwnerEmpty, AlternateOwnerMismatch):
            raise
        except IPAMError as error:
            log.warning("owner of %s not changed: %s", ip, error)
            failure = error
    if failure is not None:
        raise failure


def _promote(engine: Engine, ip: Address, handle: str, target: Owner) -> None:
    for _ in range(SWAP_ATTEMPTS):
        found = assignment_attributes(engine, ip)
        if found.handle != handle:
            raise RefusedError(f"IP {ip} is assigned to handle {found.handle}, not to {handle}", subject=str(ip))
        if target.matches(found.active):
            return
        if not found.alternate:
            raise AlternateOwnerEmpty(f" for IP {ip}", subject=str(ip))
        if not target.matches(found.alternate):
            raise AlternateOwnerMismatch(
                f": expected &{{{target.namespace} {target.name}}}, got "
                f"namespace={found.alternate.get(NAMESPACE, '')} pod={found.alternate.get(POD, '')} for IP {ip}",
                subject=str(ip),
            )
        old = Owner(found.active.get(NAMESPACE, ""), found.active.get(POD, "")) if found.active else NOBODY
        try:
            set_owner_attributes(
                engine,
                ip,
                handle,
                OwnerUpdates(active=found.alternate, alternate=found.active),
                OwnerPreconditions(active=old, alternate=target),
            )
        except OwnerMismatch as error:
            log.info("owner of %s changed meanwhile: %s; looking again", ip, error)
            continue
        return
    raise RetriesExhausted(f"max retries ({SWAP_ATTEMPTS}) exceeded for IP {ip}")
