"""The tunnel addresses of a node: one for each kind of tunnel that a pool asks for (cli §13).

One pass looks at the pools and at the node, assigns what is missing, releases what is not wanted any more, and writes
the node once. When a later step fails, addresses that this pass assigned are given back.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from calico_ipam.datastore.api import Update
from calico_ipam.engine.assign import auto_assign
from calico_ipam.engine.holder import Holding, find_holding
from calico_ipam.engine.release import release_by_handle, release_from_block
from calico_ipam.engine.request import Request
from calico_ipam.engine.specific import SpecificRequest, assign_ip
from calico_ipam.engine.world import POOLS, Engine, node_key
from calico_ipam.errors import AlreadyExists, InvalidInput, IPAMError, NotFound, RefusedError
from calico_ipam.model.addresses import Address, contains, network_of, parse_address, parse_network
from calico_ipam.model.handle_names import tunnel_handle
from calico_ipam.model.pool import TUNNEL, Pool
from calico_ipam.model.resource import Resource, mapping

log = logging.getLogger(__name__)

_ENCAPSULATED = ("Always", "CrossSubnet")


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of tunnel address: its ``type`` attribute, its place in the node's spec, and which pools ask for it."""

    type: str
    place: tuple[str, ...]
    version: int
    mode: str = ""  #: field of a pool's spec that must say Always or CrossSubnet
    key: str = ""  #: field of the node's status that must be set


#: in the order in which they are seen to
KINDS = (
    Kind("wireguardTunnelAddress", ("wireguard", "interfaceIPv4Address"), 4, key="wireguardPublicKey"),
    Kind("wireguardV6TunnelAddress", ("wireguard", "interfaceIPv6Address"), 6, key="wireguardPublicKeyV6"),
    Kind("ipipTunnelAddress", ("bgp", "ipv4IPIPTunnelAddr"), 4, mode="ipipMode"),
    Kind("vxlanTunnelAddress", ("ipv4VXLANTunnelAddr",), 4, mode="vxlanMode"),
    Kind("vxlanV6TunnelAddress", ("ipv6VXLANTunnelAddr",), 6, mode="vxlanMode"),
)


@dataclass(frozen=True, slots=True)
class TunnelChange:
    """What became of one tunnel address: its kind, the address before and after (empty for none)."""

    type: str
    before: str
    after: str


@dataclass(slots=True)
class _Pass:
    engine: Engine
    node: str
    spec: dict[str, Any]
    assigned: list[str] = field(default_factory=list)  #: handles of addresses that are new


def reconcile_tunnel_addresses(
    engine: Engine, node: str, *, wireguard_host_encryption: bool = False
) -> tuple[TunnelChange, ...]:
    """Make sure that a node has an address for each kind of tunnel that it needs, and none for the others.

    ``wireguard_host_encryption``: traffic of the host itself is encrypted, so WireGuard needs no address of its own.
    Returns what changed. Raises NotFound (no such node), InvalidInput (a pool or the node holds something that is no
    address), RefusedError (no address is free), Conflict (the node was changed meanwhile: call again).
    """
    entry = engine.store.get(node_key(node))
    resource: Resource = entry.value
    pools = _pools(engine)
    current = _Pass(engine, node, _deep_copy(resource.spec))
    changes = []
    try:
        for kind in KINDS:
            before = _at(current.spec, kind.place)
            wanted = _wanted(kind, pools, resource, wireguard_host_encryption)
            after = _ensure(current, kind, before, wanted) if wanted else _remove(current, kind, before)
            if after != before:
                changes.append(TunnelChange(kind.type, before, after))
        if changes:
            engine.store.commit(Update(entry, resource.with_spec(current.spec)))
    except IPAMError:
        _undo(current)
        raise
    return tuple(changes)


def _undo(current: _Pass) -> None:
    for handle in current.assigned:
        try:
            release_by_handle(current.engine.undoing(), handle)
        except IPAMError as error:
            log.warning("tunnel address of handle %s was not given back: %s", handle, error)


# --- which pools ---------------------------------------------------------------------------------------------


def _pools(engine: Engine) -> list[Pool]:
    """Return all pools. One whose CIDR does not parse is an error: nothing can be decided then."""
    if engine.pools is not None:
        return list(engine.pools())
    found = []
    for entry in engine.store.list(POOLS):
        found.append(Pool.from_resource(entry.value))
    return found


def _wanted(kind: Kind, pools: Sequence[Pool], node: Resource, host_encryption: bool) -> list[Pool]:
    status = mapping(node.document.get("status"))
    if kind.key and (not status.get(kind.key) or host_encryption):
        return []
    return [pool for pool in pools if _serves(pool, kind, node)]


def _serves(pool: Pool, kind: Kind, node: Resource) -> bool:
    spec = mapping(pool.document.get("spec"))
    if pool.cidr.version != kind.version or not pool.enabled or TUNNEL not in pool.allowed_uses:
        return False
    if kind.mode and spec.get(kind.mode) not in _ENCAPSULATED:
        return False
    try:
        return pool.selects_node(node.labels)
    except InvalidInput as error:
        log.warning("pool %s is left out, its selector does not parse: %s", pool.name, error)
        return False


# --- an address that is wanted -------------------------------------------------------------------------------


def _ensure(current: _Pass, kind: Kind, before: str, pools: Sequence[Pool]) -> str:
    handle = tunnel_handle(kind.type, current.node)
    if not before:
        _release(current.engine, handle)
        return _assign(current, kind, handle, pools)
    address = _parsed(before, current.node)
    held = find_holding(current.engine, address)
    if held is None or held.released_at is not None:  # an address in cooldown is nobody's either (limit 18.19)
        _release(current.engine, handle)
        return _assign(current, kind, handle, pools)
    if not held.active and not held.handle:
        return _adopt(current, kind, handle, held, pools)
    if held.active.get("type") == kind.type and held.active.get("node") == current.node:
        host = network_of(address, address.max_prefixlen)
        if any(contains(pool.cidr, host) for pool in pools):
            return before
        _release(current.engine, handle)
        return _assign(current, kind, handle, pools)
    return _assign(current, kind, handle, pools)  # it is somebody else's by now, and stays theirs


def _adopt(current: _Pass, kind: Kind, handle: str, held: Holding, pools: Sequence[Pool]) -> str:
    """Give an address of old releases, which nobody's name stands at, its handle and attributes."""
    engine = current.engine
    release_from_block(engine, held.block, [held.release_option()])
    attrs = {"node": current.node, "type": kind.type}
    try:
        assign_ip(engine, SpecificRequest(held.address, current.node, handle=handle, attrs=attrs, use=TUNNEL))
    except (AlreadyExists, RefusedError) as error:
        log.info("tunnel address %s could not be kept: %s", held.address, error)
        return _assign(current, kind, handle, pools)
    current.assigned.append(handle)
    return _place_at(current, kind, str(held.address))


def _assign(current: _Pass, kind: Kind, handle: str, pools: Sequence[Pool]) -> str:
    cidrs = tuple(pool.cidr for pool in pools)
    request = Request(
        use=TUNNEL,
        host=current.node,
        numbers={4: int(kind.version == 4), 6: int(kind.version == 6)},
        handle=handle,
        attrs={"node": current.node, "type": kind.type},
        pools={4: cidrs if kind.version == 4 else (), 6: cidrs if kind.version == 6 else ()},
        max_blocks=0,
        host_reserved={4: None, 6: None},
        cap=1,  # a count that a crash left behind is corrected by it
        namespace=None,
    )
    result = auto_assign(current.engine, request)
    made = result.ipv4 if kind.version == 4 else result.ipv6
    if made is None or not made.addresses:
        raise RefusedError(
            f"no {kind.type} can be assigned to node {current.node}: "
            f"{made.shortfall if made is not None else 'no pool'}",
            subject=current.node,
            hint="'ipamctl ipam explain --use Tunnel --node NODE' tells why.",
        )
    current.assigned.append(handle)
    return _place_at(current, kind, str(made.addresses[0].address))


def _release(engine: Engine, handle: str) -> None:
    try:
        release_by_handle(engine, handle)
    except NotFound:
        return


# --- an address that is not wanted ---------------------------------------------------------------------------


def _remove(current: _Pass, kind: Kind, before: str) -> str:
    engine, handle = current.engine, tunnel_handle(kind.type, current.node)
    _clear(current.spec, kind.place)
    try:
        release_by_handle(engine, handle)
        return ""
    except NotFound:
        pass
    if not before:
        return ""
    held = find_holding(engine, _parsed(before, current.node))
    if held is None or held.released_at is not None:
        return ""
    unnamed = not held.active and not held.handle
    if unnamed or held.handle == handle:
        release_from_block(engine, held.block, [held.release_option()])
    else:
        log.warning("tunnel address %s of node %s is %s's by now and stays", before, current.node, held.handle)
    return ""


# --- the node's spec -----------------------------------------------------------------------------------------


def _parsed(text: str, node: str) -> Address:
    try:
        return parse_network(text).network_address if "/" in text else parse_address(text)
    except InvalidInput:
        raise InvalidInput(
            f"node {node} has the tunnel address {text!r}, which is no address", subject=node, hint="Correct the Node."
        ) from None


def _at(spec: Mapping[str, Any], place: tuple[str, ...]) -> str:
    value: Any = spec
    for step in place:
        value = mapping(value).get(step)
    return str(value or "")


def _place_at(current: _Pass, kind: Kind, address: str) -> str:
    inner = current.spec
    for step in kind.place[:-1]:
        inner = inner.setdefault(step, {})
    inner[kind.place[-1]] = address
    return address


def _clear(spec: dict[str, Any], place: tuple[str, ...]) -> None:
    """Remove a field, and what becomes empty by that."""
    if len(place) == 1:
        spec.pop(place[0], None)
        return
    inner = spec.get(place[0])
    if isinstance(inner, dict):
        inner.pop(place[1], None)
        if not inner:
            spec.pop(place[0])


def _deep_copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _deep_copy(item) for key, item in value.items()}
    return [_deep_copy(item) for item in value] if isinstance(value, list) else value
