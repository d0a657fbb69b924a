"""Who holds an address, wherever its block is, and whether the holder lives (cli §3.5, §17; ruling 9)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from calico_ipam.datastore.api import Entry
from calico_ipam.engine.world import Engine, World
from calico_ipam.errors import InvalidInput, RefusedError
from calico_ipam.model.addresses import Address, Network, contains, network_of, parse_network
from calico_ipam.model.affinity import BlockOwner
from calico_ipam.model.block import Block, ReleaseOption
from calico_ipam.model.keys import BlockKey, Blocks, Resources
from calico_ipam.model.pool import pool_for
from calico_ipam.model.resource import NODE, WORKLOAD_ENDPOINT, Resource, mapping
from calico_ipam.model.timestamps import SECOND, parse_attribute_time

#: fields of a Node's spec that hold a tunnel address, all five of them (cli §13)
_TUNNEL_FIELDS = (
    ("ipv4VXLANTunnelAddr",),
    ("ipv6VXLANTunnelAddr",),
    ("bgp", "ipv4IPIPTunnelAddr"),
    ("wireguard", "interfaceIPv4Address"),
    ("wireguard", "interfaceIPv6Address"),
)


@dataclass(frozen=True, slots=True)
class Holding:
    """An address that is not free: who holds it, or since when it cools down."""

    address: Address
    block: Network
    block_owner: BlockOwner | None
    pool: str  #: name of the pool it lies in; empty when there is none
    handle: str  #: empty when there is none
    active: Mapping[str, str] = field(default_factory=dict)
    alternate: Mapping[str, str] = field(default_factory=dict)
    sequence_number: int = 0
    released_at: int | None = None  #: Unix nanoseconds; set: nobody holds it, it is cooling down
    free_in: int = 0  #: seconds until a cooling address can be assigned again

    @property
    def ripe(self) -> bool:
        """Its cooldown is over: it is free, although its block does not say so before it is written again."""
        return self.released_at is not None and self.free_in == 0

    @property
    def node(self) -> str:
        """The node of the holder; empty when none is recorded."""
        return self.active.get("node", "")

    @property
    def borrowed(self) -> bool:
        """Held by a node that the block does not belong to."""
        return bool(self.node) and self.node != (self.block_owner.host if self.block_owner else "")

    @property
    def since(self) -> int | None:
        """When it was assigned (Unix nanoseconds), if the holder recorded it."""
        return parse_attribute_time(self.active.get("timestamp", ""))

    def release_option(self) -> ReleaseOption:
        """Return what releases exactly this holding, and nothing that took its place."""
        return ReleaseOption(self.address, self.handle or None, self.sequence_number)


def find_holding(engine: Engine, address: Address) -> Holding | None:
    """Return who holds an address, or None when it is free.

    Wherever its block is (:func:`stored_block`). Raises RefusedError for a block that cannot be read.
    """
    world = engine.look()
    pool = pool_for(world.pools, address)
    stored = stored_block(engine, world, address)
    if stored is None:
        return None
    block: Block = stored.value
    ordinal = block.ordinal(address)
    attribute = block.attribute(ordinal)
    if attribute is None:
        return None
    free_in = 0
    if attribute.released_at is not None:
        left = attribute.released_at + world.config.cooldown_seconds * SECOND - engine.clock.now()
        free_in = max(0, -(-left // SECOND)) if world.config.cooldown_seconds > 0 else 0
    return Holding(
        address=address,
        block=block.cidr,
        block_owner=block.owner,
        pool=pool.name if pool else "",
        handle=attribute.clean_handle,
        active=attribute.active,
        alternate=attribute.alternate,
        sequence_number=block.sequence_of(ordinal),
        released_at=attribute.released_at,
        free_in=free_in,
    )


def live_users(engine: Engine, address: Address) -> list[str]:
    """Return what uses an address now, for people: endpoints that have it, nodes whose tunnel address it is."""
    host = network_of(address, address.max_prefixlen)
    endpoints, nodes = Resources(WORKLOAD_ENDPOINT), Resources(NODE)
    snapshot = engine.store.read(endpoints, nodes)
    found = [
        f"workload endpoint {entry.value.namespace}/{entry.value.name}"
        for entry in snapshot.listing(endpoints)
        if _names(host, entry.value.spec.get("ipNetworks"))
    ]
    for entry in snapshot.listing(nodes):
        if _names(host, list(_tunnel_addresses(entry.value))):
            found.append(f"tunnel of node {entry.value.name}")
    return found


def stored_block(engine: Engine, world: World, address: Address) -> Entry | None:
    """Return the block that an address is in, or None.

    It is looked up by its pool's block size, disabled pools included, and when it is not there, among all blocks: it
    may be of another size, or in no pool any more. Raises RefusedError for a block that cannot be read.
    """
    pool = pool_for(world.pools, address)
    if pool is not None:
        key = BlockKey(pool.block_of(address))
        entry = engine.store.read(key).entry(key)
        if entry is not None:
            return entry
    host = network_of(address, address.max_prefixlen)
    listing = engine.store.list(Blocks(address.version))
    for entry in listing:
        if contains(entry.cidr, host):
            return entry
    for damaged in listing.damaged:
        if isinstance(damaged.key, BlockKey) and contains(damaged.key.cidr, host):
            raise RefusedError(
                f"block {damaged.key.cidr} of address {address} cannot be read: {damaged.reason}",
                subject=damaged.path,
                hint="All of its addresses count as in use until it is repaired or removed by hand.",
            )
    return None


def _names(host: Network, texts: object) -> bool:
    """Tell whether a list of CIDRs or addresses, as documents hold them, has an entry that holds ``host``."""
    for text in texts if isinstance(texts, list) else ():
        try:
            if isinstance(text, str) and contains(parse_network(text), host):
                return True
        except InvalidInput:
            continue  # a damaged entry names no address
    return False


def _tunnel_addresses(node: Resource) -> Iterator[str]:
    for path in _TUNNEL_FIELDS:
        value: object = node.spec
        for step in path:
            value = mapping(value).get(step)
        if isinstance(value, str) and value:
            yield value.partition("/")[0]
