"""Views of clusters that were never there: one small with everything that can be seen, one large."""

from __future__ import annotations

import random
from dataclasses import replace

from calico_gc import suspicion as reasons
from calico_gc.facts import KubeNode
from calico_gc.handles import GOOD, HandleLook, Judged, Observed
from calico_gc.options import Options
from calico_gc.pools import reserved_by
from calico_gc.record import Finding, Happened
from calico_gc.state import State
from calico_gc.suspicion import Moment, Suspicion
from calico_gc.view import Counts, View

from calico_ipam.model.addresses import parse_network
from calico_ipam.model.affinity import BlockOwner
from calico_ipam.model.block import Block, ReleaseOption
from calico_ipam.model.resource import IP_POOL, IP_RESERVATION, Resource
from calico_ipam.model.timestamps import SECOND, format_attribute_time, parse_time

NOW = Moment(10_000.0, parse_time("2026-08-22T10:15:00Z"))


def pool(name: str, cidr: str, block_size: int = 26) -> Resource:
    return Resource(IP_POOL, name, {"metadata": {"name": name}, "spec": {"cidr": cidr, "blockSize": block_size}})


def reservation(*cidrs: str) -> Resource:
    return Resource(IP_RESERVATION, "r", {"metadata": {"name": "r"}, "spec": {"reservedCIDRs": list(cidrs)}})


def block(
    cidr: str, host: str | None, pods: int = 0, *, age: float = 3600.0, kind: str = "host", **attrs: str
) -> Block:
    """Return a block of which the first ``pods`` addresses are held by pods given out ``age`` seconds ago."""
    owner = BlockOwner(kind, host) if host else None
    made = Block.new(parse_network(cidr), now=NOW.wall - 86_400 * SECOND, owner=owner)
    for number in range(pods):
        name = f"web-{host or 'x'}-{number}"
        every = {
            "node": host or "node-x",
            "namespace": "shop",
            "pod": name,
            "timestamp": format_attribute_time(NOW.wall - round(age * SECOND)),
            **attrs,
        }
        given = {key: value for key, value in every.items() if value}
        made = made.assign_address(
            made.address(number), handle=f"k8s-pod-network.{abs(hash_of(cidr, number)):064x}", attrs=given
        )
    return made


def hash_of(cidr: str, number: int) -> int:
    return random.Random(f"{cidr}/{number}").getrandbits(250)


def cooling(made: Block, *ordinals: int, since: float = 90.0) -> Block:
    options = [ReleaseOption(made.address(ordinal)) for ordinal in ordinals]
    return made.release(options, cooldown=600, now=NOW.wall - round(since * SECOND))[0]


def suspect(reason: str, age: float, *, confirmed: bool = False, grace: float = 900.0, looks: int = 2) -> Suspicion:
    first = Moment(NOW.mono - age, NOW.wall - round(age * SECOND))
    last = Moment(NOW.mono - 30, NOW.wall - 30 * SECOND)
    return Suspicion(reason, first, last, first.mono, grace, confirmed, looks, "")


def view_of_state(state: State, **more: object) -> View:
    made = View(
        at=NOW,
        options=Options(),
        blocks=dict(state.blocks),
        pool_of=dict(state.pools.of_block),
        pools=dict(state.pools.pools),
        reservations=reserved_by(state.reservations),
        nodes=dict(state.nodes),
        kube_nodes=frozenset(state.kube_nodes),
        suspects=dict(state.suspects),
        empty=dict(state.empty),
        empty_since=dict(state.empty_since),
        cold=dict(state.cold),
        damaged=dict(state.damaged),
        measured=True,
        in_sync=True,
        last_success=NOW.wall - 12 * SECOND,
        cluster_guid="5d1c0f5a9b7e4d0c",
    )
    return replace(made, **more)  # type: ignore[arg-type]  # fields of a View by name


def small_view() -> View:
    """Return a view with at least one of everything that the page can show."""
    state = State()
    for resource in (pool("default-ipv4", "10.244.0.0/20"), pool("default-ipv6", "fd00:10::/64", 122)):
        state.pools.put_pool(resource)
    state.reservations["r"] = reservation("10.244.0.60/31", "10.244.1.0/30")
    for name in ("node-a", "node-b", "node-c"):
        state.put_kube_node(KubeNode(name))
        state.link_node(name, name)
    state.link_node("node-gone", "node-gone")
    held = block("10.244.0.0/26", "node-a", 20)
    held = held.assign_address(
        held.address(40), handle="vxlan-tunnel-addr-node-a", attrs={"type": "vxlanTunnelAddress", "node": "node-a"}
    )
    state.put_block(cooling(held, 3, 4), "101")
    state.put_block(block("10.244.0.64/26", "node-b", 64, age=90_000), "102")
    state.put_block(block("10.244.0.128/26", "node-b"), "103")
    state.put_block(block("10.244.1.0/26", "node-gone", 5), "104")
    state.put_block(block("10.244.1.64/26", None, 2), "105")
    state.put_block(block("10.244.2.0/26", "load-balancer", 1, kind="virtual", service="shop", pod="", node=""), "106")
    state.put_block(block("fd00:10::/122", "node-c", 9), "107")
    state.put_block(block("172.30.0.0/26", "node-c", 3), "108")  # no pool has it
    state.damaged["10.244.3.0/26"] = "spec.allocations: expected a list"
    state.suspects = {
        ("10.244.0.0/26", 1): suspect(reasons.POD_NOT_FOUND, 400),
        ("10.244.0.0/26", 2): suspect(reasons.POD_FINISHED, 1000, confirmed=True),
        ("10.244.0.64/26", 7): suspect(reasons.IP_MISMATCH, 4000, confirmed=True, looks=9),
        ("10.244.1.0/26", 0): suspect(reasons.NODE_GONE, 60, confirmed=True),
    }
    state.empty_since["10.244.0.128/26"] = NOW.mono - 300
    orphan = Judged("k8s-pod-network.4f1c", "orphan", "9b", "5512", (("10.244.9.0/26", 1),), ())
    skewed = Judged("k8s-pod-network.77aa", "skewed", "9c", "5513", (("10.244.0.0/26", 3),), (("10.244.0.0/26", 1),))
    seen = {judged.id: Observed(judged, NOW.mono - 900, NOW.mono - 10, 3) for judged in (orphan, skewed)}
    numbers = {GOOD: 103, "orphan": 1, "skewed": 1, "missing": 0, "stuck": 0, "unreadable": 0}
    return view_of_state(
        state,
        held=frozenset({("10.244.0.64/26", 7)}),
        failing={("release", "10.244.1.0/26"): 3},
        leaving=frozenset({"node-gone"}),
        handles=HandleLook(NOW.wall - 10 * SECOND, numbers, seen, {"k8s-pod-network.4f1c": "ok"}, 105),
        findings=(Finding("node-mismatch", "h/10.244.0.9", "h/10.244.0.9 of shop/web on node node-a", NOW, NOW),),
        actions=(
            Happened(NOW.wall - 600 * SECOND, "release-block", "10.244.7.0/26", "node-a"),
            Happened(NOW.wall - 60 * SECOND, "release", "k8s-pod-network.aa/10.244.0.50", reasons.POD_NOT_FOUND),
            Happened(NOW.wall - 30 * SECOND, "release-node", "node-x", "", "<b>conflict</b> & more"),
        ),
        counts=Counts(reclaimed={("default-ipv4", "node-a"): 7}, detected={reasons.POD_NOT_FOUND: 9}),
    )


def large_view(nodes: int = 1000, blocks: int = 20_000, seed: int = 6) -> View:
    """Return a view of a large cluster: a pool of which most is claimed, a few leaks, some cooling addresses."""
    chance = random.Random(seed)
    state = State()
    state.pools.put_pool(pool("default-ipv4", "10.0.0.0/11"))
    names = [f"worker-{number:04d}.example.internal" for number in range(nodes)]
    for name in names:
        state.put_kube_node(KubeNode(name))
        state.link_node(name, name)
    every = list(parse_network("10.0.0.0/11").subnets(new_prefix=26))
    for position, cidr in enumerate(every[:blocks]):
        host = names[(position // 4) % nodes]
        made = block(str(cidr), host, min(chance.choice((0, 1, 1, 2, 2, 3, 5)), 64))
        if position % 97 == 0:
            made = cooling(block(str(cidr), host, 4), 1, 2)
        if position % 101 == 0:
            made = block(str(cidr), host, chance.choice((20, 40, 64)))
        state.put_block(made, str(position))
        if position % 500 == 7 and state.blocks[str(cidr)].allocations:
            state.suspects[str(cidr), 0] = suspect(reasons.POD_NOT_FOUND, chance.uniform(10, 800))
    return view_of_state(state)
