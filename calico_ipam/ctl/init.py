"""``ipamctl init``: a datastore ready for the first address, and what to do next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from calico_ipam.ctl.commands import Spelled
from calico_ipam.ctl.output import document, note, paragraph, say
from calico_ipam.ctl.session import Session, common_options, pass_session

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from calico_ipam.datastore.settings import Settings
    from calico_ipam.engine.setup import ClusterState, State
    from calico_ipam.engine.world import Engine
    from calico_ipam.model.addresses import Network
    from calico_ipam.model.pool import Pool
    from calico_ipam.model.pool_rules import PoolRequest

NODENAME_FILE = "/var/lib/calico/nodename"
CONFLIST = "/etc/cni/net.d/10-calico.conflist"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What ``init`` found or made."""

    datastore: str
    cluster: ClusterState
    node: str
    node_state: State
    pools: tuple[tuple[Pool, State], ...]
    netconf: Mapping[str, Any]


@click.command(cls=Spelled)
@click.option("--node", metavar="NAME", help=f"Name of this host. Default: {NODENAME_FILE}, else the OS host name.")
@click.option(
    "--ipv4-pool",
    metavar="CIDR",
    default="auto",
    help="IPv4 pool; 'auto' takes a range that this host does not use, 'none' makes no pool. Default: auto.",
)
@click.option(
    "--ipv6-pool",
    metavar="CIDR",
    default="none",
    help="IPv6 pool; 'auto' takes a random unique local /48. Default: none.",
)
@common_options
@pass_session
def init(session: Session, /, node: str | None, ipv4_pool: str, ipv6_pool: str) -> None:
    """Make the datastore ready: cluster information, this host's node, default pools.

    Whatever exists already stays as it is, so this can be run again at any time.
    """
    import uuid

    from calico_ipam.ctl.host_networks import networks_in_use
    from calico_ipam.engine.pools import list_pools
    from calico_ipam.engine.setup import ensure_cluster, ensure_node, ensure_pool

    name = node_name(node)
    session.makes_store = True
    engine = session.engine
    in_use = networks_in_use()
    requests = [_pool_wanted(engine, 4, ipv4_pool, in_use), _pool_wanted(engine, 6, ipv6_pool, in_use)]
    made = [ensure_pool(engine, request) for request in requests if request is not None]
    new = {pool.name for pool, state in made if state == "created"}
    cluster = ensure_cluster(engine, uuid.uuid4().hex)
    node_state = ensure_node(engine, name)
    pools = list_pools(engine).pools
    _warn_of_overlaps([pool for pool in pools if pool.name in new], in_use)
    states: list[tuple[Pool, State]] = [(pool, "created" if pool.name in new else "exists") for pool in pools]
    netconf = network_configuration(session.settings, name, pools)
    outcome = Outcome(session.store.name, cluster, name, node_state, tuple(states), netconf)
    if session.wants_document:
        document(_as_document(outcome), session.output)
    else:
        _tell(outcome)


def _warn_of_overlaps(pools: Sequence[Pool], in_use: Sequence[Network]) -> None:
    from calico_ipam.model.addresses import overlaps

    for pool in pools:
        network = next((each for each in in_use if overlaps(pool.cidr, each)), None)
        if network is not None:
            note(
                f"pool {pool.name} ({pool.cidr}) overlaps {network}, which this host uses: "
                "hosts and workloads there cannot reach each other.",
                label="warning",
            )


def node_name(given: str | None) -> str:
    """Return the name of this host as the plugins find it (cni §3): given, from the file, or the OS's.

    Raises InvalidInput for a name that no datastore can keep.
    """
    from calico_ipam.engine.world import own_hostname
    from calico_ipam.errors import InvalidInput

    name = given if given is not None else _from_file() or own_hostname()
    if not name or any(c in "/:%" or c.isspace() or not c.isprintable() for c in name):
        raise InvalidInput(
            f"{name!r} cannot be the name of a node",
            subject=name,
            hint="Give --node a name without blanks, '/', ':' and '%'.",
        )
    return name


def _from_file() -> str:
    from pathlib import Path

    try:
        return Path(NODENAME_FILE).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""


def _pool_wanted(engine: Engine, version: int, wanted: str, in_use: Sequence[Network]) -> PoolRequest | None:
    """Return the request for a family's pool, or None: ``auto`` makes none where the family has a pool."""
    import secrets

    from calico_ipam.engine.pools import list_pools
    from calico_ipam.engine.setup import DEFAULT_POOL_NAMES, choose_ipv4
    from calico_ipam.errors import InvalidInput
    from calico_ipam.model.addresses import parse_network
    from calico_ipam.model.pool_rules import PoolRequest, check_new_pool, ula_network

    wanted = wanted.strip()
    if wanted == "none":
        return None
    if wanted == "auto":
        if any(pool.cidr.version == version for pool in list_pools(engine).pools):
            return None
        chosen = choose_ipv4(engine, in_use) if version == 4 else ula_network(secrets.randbits(40))
        return PoolRequest(DEFAULT_POOL_NAMES[version], str(chosen))
    request = PoolRequest(DEFAULT_POOL_NAMES[version], wanted)
    check_new_pool(request, ())
    if parse_network(request.cidr).version != version:
        raise InvalidInput(f"{wanted} is not an IPv{version} network", hint=f"Give it as --ipv{10 - version}-pool.")
    return request


# --- telling -----------------------------------------------------------------------------------------------


def network_configuration(settings: Settings, node: str, pools: Sequence[Pool]) -> dict[str, Any]:
    """Return the network configuration that lets a runtime use the datastore; passwords and keys stay out of it."""
    plugin: dict[str, Any] = {"type": "calico", "datastore_type": settings.datastore_type}
    match settings.datastore_type:
        case "sqlite":
            plugin["sqlite_path"] = settings.sqlite_path
        case "etcdv3":
            plugin["etcd_endpoints"] = ",".join(settings.etcd_endpoints)
            for field in ("etcd_discovery_srv", "etcd_key_file", "etcd_cert_file", "etcd_ca_cert_file"):
                if getattr(settings, field):
                    plugin[field] = getattr(settings, field)
        case _:
            plugin["kubernetes"] = {"kubeconfig": settings.kubeconfig or "/etc/cni/net.d/calico-kubeconfig"}
    plugin |= {"nodename": node, "nodename_file_optional": True}
    families = {pool.cidr.version for pool in pools}
    ipam: dict[str, Any] = {"type": "calico-ipam"}
    if 6 in families:
        ipam |= {"assign_ipv4": str(4 in families).lower(), "assign_ipv6": "true"}
    return {"name": "calico", "cniVersion": "1.0.0", "plugins": [{**plugin, "ipam": ipam}]}


def _tell(outcome: Outcome) -> None:
    import json

    from calico_ipam.ctl.pool import describe

    say(f"Datastore  {outcome.datastore}")
    say(f"Cluster    {outcome.cluster.guid}  [{outcome.cluster.state}]")
    say(f"Node       {outcome.node}  [{outcome.node_state}]")
    for pool, state in outcome.pools:
        say(f"IPv{pool.cidr.version} pool  {pool.name}: {describe(pool)}  [{state}]")
    if not outcome.pools:
        say("Pools      none; 'ipamctl pool create CIDR' makes one")
    if not outcome.cluster.ready:
        note(
            "the datastore is locked (datastoreReady is false): the plugins wait until it is unlocked.", label="warning"
        )
    say()
    say(paragraph(f"Next: give your container runtime this network, as {CONFLIST}:"))
    say()
    say(json.dumps(outcome.netconf, indent=2))
    say()
    say(
        paragraph(
            "Outbound traffic: nothing masquerades it on this host unless you choose one of two. On a host alone, add "
            '"nat_outgoing":\N{NO-BREAK SPACE}true to the plugin above. With Felix running, set natOutgoing on the '
            "pool. Without either, other networks must know a route back to the pool."
        )
    )


def _as_document(outcome: Outcome) -> dict[str, Any]:
    return {
        "datastore": outcome.datastore,
        "cluster": {"guid": outcome.cluster.guid, "ready": outcome.cluster.ready, "state": outcome.cluster.state},
        "node": {"name": outcome.node, "state": outcome.node_state},
        "pools": [{"name": pool.name, "cidr": pool.cidr_text, "state": state} for pool, state in outcome.pools],
        "networkConfiguration": outcome.netconf,
    }
