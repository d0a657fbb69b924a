"""Everything that a check compares, read at one moment: what is allocated, and what is in use (cli §4.1, §4.2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from calico_ipam.datastore.api import Damaged, Entry, Snapshot
from calico_ipam.engine.world import CONFIG, POOLS, Engine
from calico_ipam.errors import InvalidInput, StoreDamaged
from calico_ipam.model.addresses import Address, Network, contains, network_of, parse_address, parse_network
from calico_ipam.model.affinity import HOST
from calico_ipam.model.block import Attribute, Block
from calico_ipam.model.config import IPAMConfig
from calico_ipam.model.handle import sanitise_handle
from calico_ipam.model.keys import Affinities, Blocks, Handles, Key, ResourceKey, Resources, Scope
from calico_ipam.model.pool import Pool, parse_pools
from calico_ipam.model.resource import (
    CLUSTER_INFORMATION,
    IPAM_CONFIGURATION,
    KUBE_CONTROLLERS_CONFIGURATION,
    NODE,
    WORKLOAD_ENDPOINT,
    Resource,
    mapping,
)
from calico_ipam.model.services import ingress_addresses, managed, mode_of

BLOCKS, HANDLES, ROWS = Blocks(), Handles(), Affinities()
SEEN_BLOCKS, SEEN_HANDLES = Blocks(writable=False), Handles(writable=False)
NODES, ENDPOINTS = Resources(NODE), Resources(WORKLOAD_ENDPOINT)
USES = Resources(WORKLOAD_ENDPOINT, only=("ipNetworks",))
CLUSTER = ResourceKey(CLUSTER_INFORMATION, "default")
CONTROLLERS = ResourceKey(KUBE_CONTROLLERS_CONFIGURATION, "default")
STALE_CONFIG = ResourceKey(IPAM_CONFIGURATION, "default")

WINDOWS_USER = "Reserved for Windows"

#: fields of a Node that hold a tunnel address (limit 18.1: all five), and upstream's name of each
TUNNELS = (
    (("ipv4VXLANTunnelAddr",), "IPv4VXLANTunnelAddr"),
    (("wireguard", "interfaceIPv4Address"), "IPv4WireguardInterfaceAddr"),
    (("bgp", "ipv4IPIPTunnelAddr"), "IPv4IPIPTunnelAddr"),
    (("ipv6VXLANTunnelAddr",), "IPv6VXLANTunnelAddr"),
    (("wireguard", "interfaceIPv6Address"), "IPv6WireguardInterfaceAddr"),
)


@dataclass(frozen=True, slots=True)
class Allocation:
    """One slot of a block that is not free."""

    address: Address
    block: Block
    ordinal: int
    attribute: Attribute
    missing: bool = False  #: the slot points at no attribute

    @property
    def cooling(self) -> bool:
        return self.attribute.cold

    @property
    def node(self) -> str:
        """The node of the holder: as recorded, else the block's; empty when neither says."""
        return self.attribute.active.get("node") or affinity_host(self.block)

    @property
    def borrowed(self) -> bool:
        return self.node != affinity_host(self.block)

    @property
    def sequence_number(self) -> int:
        return self.block.sequence_of(self.ordinal)

    @property
    def attributes_text(self) -> str:
        """What the check prints of the holder."""
        if self.missing:
            return "<missing>"
        attribute = self.attribute
        text = f"Main:{attribute.handle or '<none>'} Extra:{_pairs(attribute.active)}"
        return text + (f" Alternate:{_pairs(attribute.alternate)}" if attribute.alternate else "")


def affinity_host(block: Block) -> str:
    """Return the node a block belongs to; empty for nobody, and for virtual owners."""
    kind, _, host = (block.affinity or "").partition(":")
    return host if kind == HOST else ""


def _pairs(values: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(values.items()))


@dataclass(frozen=True, slots=True)
class User:
    """Somebody who says that an address is his: ``Workload(shop/…)``, ``Node(n1)``, a Service."""

    address: Address
    name: str
    kind: str  #: ``windows``, ``node``, ``service`` or ``workload``


@dataclass(slots=True)
class Survey:
    """What was read, and what follows from it before anything is judged."""

    cluster: Entry | None
    config: IPAMConfig
    blocks: tuple[Block, ...]
    pools: tuple[Pool, ...]
    nodes: Mapping[str, Resource]
    rows: tuple[Entry, ...]
    handles: Mapping[str, Entry]
    damaged: tuple[Damaged, ...]
    bad_pools: tuple[tuple[str, str], ...]
    stale_configuration: bool
    now: int
    kubernetes: bool = False  #: upstream drops tunnel addresses that do not parse when it reads a Kubernetes node
    allocations: dict[Address, list[Allocation]] = field(default_factory=dict)
    #: the allocations that name a handle, by what precedes its first carriage return (limit 18.9)
    holdings: dict[str, list[Allocation]] = field(default_factory=dict)
    users: dict[Address, list[User]] = field(default_factory=dict)
    bad_tunnels: list[tuple[str, str, str]] = field(default_factory=list)  #: field, value, node
    bad_networks: list[tuple[str, str]] = field(default_factory=list)  #: endpoint, value
    services: int | None = None  #: how many Services have their address from Calico; None when that was not looked at
    services_skipped: str = ""  #: why not
    counts: dict[str, int] = field(default_factory=dict)  #: tunnel addresses, workload addresses, allocations
    snapshot: Snapshot | None = field(default=None, repr=False)  #: what was read, where a second look may be needed

    @property
    def active_pools(self) -> list[Pool]:
        """Pools that are not disabled."""
        return [pool for pool in self.pools if mapping(pool.document.get("spec")).get("disabled") is not True]

    def pool_of(self, address: Address, pools: Sequence[Pool] | None = None) -> Pool | None:
        host = network_of(address, address.max_prefixlen)
        return next((pool for pool in (self.pools if pools is None else pools) if contains(pool.cidr, host)), None)

    def every_allocation(self) -> Iterator[Allocation]:
        for group in self.allocations.values():
            yield from group


def take_survey(
    engine: Engine,
    services: Iterable[Mapping[str, Any]] | None = None,
    *,
    skipped: str = "",
    before: Survey | None = None,
    again: Sequence[Scope] = (),
) -> Survey:
    """Read everything once and arrange it. ``services``: the Services of the cluster; None when they are not known,
    and then ``skipped`` says why. ``again``: no more than this is read, the rest is what the survey ``before`` read.
    """
    # On the Kubernetes API the settings are an IPAMConfiguration; elsewhere a document of that name is read by nobody.
    separate = engine.store.capabilities.atomic
    if before is not None and before.snapshot is not None and again:
        snapshot = before.snapshot.with_more(engine.store.read(*again))
    else:
        wanted: list[Key | Scope] = [CLUSTER, CONTROLLERS, CONFIG, POOLS, SEEN_BLOCKS, NODES, USES, SEEN_HANDLES, ROWS]
        snapshot = engine.store.read(*wanted, *([STALE_CONFIG] if separate else []))
    survey, controllers = _arranged(engine, snapshot)
    _add_blocks(survey)
    _add_nodes(survey)
    _add_services(survey, controllers, services, skipped)
    _add_endpoints(survey, snapshot.listing(USES))
    return survey


def _arranged(engine: Engine, snapshot: Snapshot) -> tuple[Survey, Entry | None]:
    """Return a survey of which nothing is compared yet, and the configuration of the controllers."""
    separate = engine.store.capabilities.atomic
    damaged: list[Damaged] = []
    for scope in (POOLS, BLOCKS, NODES, USES, HANDLES, ROWS):
        damaged += snapshot.listing(scope).damaged
    pools, bad_pools = parse_pools(entry.value for entry in snapshot.listing(POOLS))

    def entry(key: Any) -> Entry | None:
        try:
            return snapshot.entry(key)
        except StoreDamaged as error:
            damaged.append(Damaged(key, error.subject, error.reason))
            return None

    config = entry(CONFIG)
    stale = entry(STALE_CONFIG) if separate else None
    controllers = entry(CONTROLLERS)
    survey = Survey(
        cluster=entry(CLUSTER),
        config=config.value if config is not None else IPAMConfig(),
        blocks=tuple(each.value for each in snapshot.listing(BLOCKS)),
        pools=tuple(pools),
        nodes={each.value.name: each.value for each in snapshot.listing(NODES)},
        rows=tuple(snapshot.listing(ROWS)),
        handles={each.value.id: each for each in snapshot.listing(HANDLES)},
        damaged=tuple(damaged),
        bad_pools=tuple(bad_pools),
        stale_configuration=stale is not None,
        now=engine.clock.now(),
        kubernetes=not separate,
        snapshot=None if separate else snapshot,
    )
    return survey, controllers


def _use(survey: Survey, user: User) -> None:
    survey.users.setdefault(user.address, []).append(user)


def _add_blocks(survey: Survey) -> None:
    number = 0
    for block in survey.blocks:
        known = block.stored.attributes if block.stored is not None else len(block.attributes)
        slots = block.stored.allocations if block.stored is not None else block.allocations
        for ordinal, attribute in block.taken():
            address = block.address(ordinal)
            index = block.allocations[ordinal]
            missing = index is not None and index >= known
            if ordinal >= len(slots):
                continue  # the block lacks the slot altogether: nobody says that the address is allocated
            allocation = Allocation(address, block, ordinal, attribute, missing)
            survey.allocations.setdefault(address, []).append(allocation)
            number += 1
            if attribute.windows_reserved:  # they have no handle of their own
                _use(survey, User(address, WINDOWS_USER, "windows"))
            elif attribute.handle and not attribute.cold:
                survey.holdings.setdefault(sanitise_handle(attribute.handle), []).append(allocation)
    survey.counts["allocations"] = number


def _add_nodes(survey: Survey) -> None:
    number = 0
    for name, node in survey.nodes.items():
        for path, title in TUNNELS:
            value: Any = node.spec
            for step in path:
                value = mapping(value).get(step)
            if not isinstance(value, str) or not value:
                continue
            try:
                address = parse_network(value).network_address if "/" not in value else _address_of(value)
            except InvalidInput:
                survey.bad_tunnels.append((title, value, name))
                continue
            number += 1
            _use(survey, User(address, f"Node({name})", "node"))
    survey.counts["tunnels"] = number


def _address_of(text: str) -> Address:
    """Return the address that a CIDR was written with, host bits and all. Raises InvalidInput."""
    base, _, length = text.partition("/")
    if length in ("32", "128"):  # nearly all; they need not be parsed as networks
        address = parse_address(base)
        if length == "32" or address.version == 6:
            return address
    parse_network(text)
    return parse_network(text.partition("/")[0]).network_address


def _add_services(
    survey: Survey, controllers: Entry | None, services: Iterable[Mapping[str, Any]] | None, skipped: str
) -> None:
    mode = mode_of(controllers.value.spec) if controllers is not None else None
    if mode is None:
        survey.services_skipped = "No configuration for LoadBalancer kubecontroller found, skipping service check"
        return
    if services is None:
        survey.services_skipped = skipped
        return
    survey.services = 0
    for service in services:
        if managed(service, mode):
            survey.services += 1
            for address in ingress_addresses(service):
                _use(survey, User(address, str(mapping(service.get("metadata")).get("name") or ""), "service"))


def _add_endpoints(survey: Survey, endpoints: Iterable[Entry]) -> None:
    number = 0
    for entry in endpoints:
        resource: Resource = entry.value
        networks = resource.spec.get("ipNetworks")
        for text in networks if isinstance(networks, list) else ():
            number += 1
            try:
                address = _address_of(str(text))
            except InvalidInput:
                survey.bad_networks.append((f"{resource.namespace}/{resource.name}", str(text)))
                continue
            _use(survey, User(address, f"Workload({resource.namespace}/{resource.name})", "workload"))
    survey.counts["workloads"] = number


def overlapping(networks: Iterable[Network]) -> Iterator[tuple[Network, Network]]:
    """Yield pairs of different networks of which one holds the other."""
    open_: list[Network] = []
    for network in sorted(set(networks), key=lambda n: (n.version, int(n.network_address), n.prefixlen)):
        while open_ and not contains(open_[-1], network):
            open_.pop()
        if open_:
            yield open_[-1], network
        open_.append(network)
