"""Which traces belong to nobody: pure functions of what is there and who lives (gc §18.5).

A kind is judged only if every source that its evidence needs has answered; :func:`judge` says which were.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from calico_gc.sweep import residue as kinds
from calico_gc.sweep.living import BLOCKS, ENDPOINTS, PODS, RESULTS, SANDBOXES, Living, held_addresses
from calico_gc.sweep.residue import Residue
from calico_gc.sweep.traces import Traces
from calico_ipam.model.addresses import Address, contains, network_of
from calico_ipam.model.owner import NAMESPACE, NODE, POD, TYPE, VMI_NAME
from calico_ipam.model.resource import mapping

#: what follows the network's name in the handle of a container
CONTAINER = re.compile(r"[0-9a-f]{32,64}")
Slices = Iterable[tuple[str, str, str, Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class Judged:
    """``kinds``: those that could be judged. ``why``: kind -> why it could not."""

    found: tuple[Residue, ...]
    kinds: frozenset[str]
    why: Mapping[str, str]


#: kind -> sources whose silence forbids a judgement
NEEDS: Mapping[str, tuple[str, ...]] = {
    kinds.VETH: (PODS, ENDPOINTS, SANDBOXES, RESULTS),
    kinds.ROUTE: (PODS, ENDPOINTS, SANDBOXES, RESULTS),
    kinds.NETNS: (SANDBOXES, RESULTS, "inhabited"),
    kinds.CACHE: (SANDBOXES, RESULTS),
    kinds.LOCK: (),
    kinds.CONNTRACK: (BLOCKS,),
    kinds.IPAM: (BLOCKS, SANDBOXES),
    kinds.VOLUME: (PODS,),
    kinds.SLICE: (PODS,),
}
#: kind -> a source without which nothing can be said at all, as there is nobody else to ask
HINGES: Mapping[str, str] = {
    kinds.CACHE: SANDBOXES,
    kinds.IPAM: SANDBOXES,
    kinds.CONNTRACK: BLOCKS,
    kinds.VOLUME: PODS,
    kinds.SLICE: PODS,
}


def judge(living: Living, traces: Traces, slices: Slices = ()) -> Judged:
    """Return everything that belongs to nobody, of the kinds that can be judged."""
    looks: Mapping[str, Callable[[], Iterator[Residue]]] = {
        kinds.VETH: lambda: _links(living, traces),
        kinds.ROUTE: lambda: _routes(living, traces),
        kinds.NETNS: lambda: _namespaces(living, traces),
        kinds.CACHE: lambda: _results(living, traces),
        kinds.LOCK: lambda: _holders(traces),
        kinds.CONNTRACK: lambda: _connections(living, traces),
        kinds.IPAM: lambda: _allocations(living),
        kinds.VOLUME: lambda: _volumes(living, traces),
        kinds.SLICE: lambda: _slices(living, slices),
    }
    why: dict[str, str] = {}
    found: list[Residue] = []
    for kind, look in looks.items():
        reason = _reason(kind, living, traces)
        if reason:
            why[kind] = reason
        else:
            found += look()
    return Judged(tuple(found), frozenset(looks) - frozenset(why), why)


def _reason(kind: str, living: Living, traces: Traces) -> str:
    """Return why a kind cannot be judged; empty when it can."""
    for source in (kind, *NEEDS[kind]):
        known = living.unknown.get(source) or traces.unknown.get(source)
        if known:
            return known
    hinge = HINGES.get(kind)
    if hinge is not None and hinge not in living.configured:
        return f"nobody is there to ask about {hinge}"
    if kind in (kinds.VETH, kinds.ROUTE, kinds.NETNS) and not living.configured & {PODS, ENDPOINTS, SANDBOXES}:
        return "nobody is there to ask who lives"
    if kind == kinds.NETNS and (lost := _without_result(living)):
        return f"nobody knows which namespace sandbox {lost} has: libcni remembers nothing of it"
    return ""


def _without_result(living: Living) -> str:
    """Return a sandbox with a network of its own of which libcni remembers nothing."""
    remembered = {result.container for result in living.results}
    for sandbox in living.sandboxes.values():
        pod = living.pods.get(sandbox.key)
        if sandbox.id not in remembered and not (pod is not None and pod.host_network):
            return sandbox.id
    return ""


# --- one kind each ------------------------------------------------------------------------------------------


def _links(living: Living, traces: Traces) -> Iterator[Residue]:
    wanted = living.wanted_links()
    for link in traces.links:
        if link.name not in wanted and link.abandoned:
            text = ", ".join(str(address) for address in link.routes) or "no address"
            yield Residue(kinds.VETH, link.name, str(link.index), f"routes {text}; nobody lives behind it")


def _routes(living: Living, traces: Traces) -> Iterator[Residue]:
    wanted = living.wanted_links()
    by = "Felix removes it" if traces.felix else "Felix does not run here"
    for link in traces.links:
        if link.name in wanted or not link.abandoned:
            continue
        for address in link.routes:
            yield Residue(kinds.ROUTE, f"{address} dev {link.name}", str(link.index), by)


def _namespaces(living: Living, traces: Traces) -> Iterator[Residue]:
    remembered = {_same(path) for result in living.results for path in result.netns}
    for path, identity in traces.namespaces.items():
        if identity not in traces.inhabited and _same(path) not in remembered:
            mark = f"{identity[0]}:{identity[1]}"
            yield Residue(kinds.NETNS, path, mark, "no process lives in it, and no sandbox has it")


def _same(path: str) -> str:
    """Return one spelling of a path that has two: /var/run is a link to /run."""
    return path.removeprefix("/var")


def _results(living: Living, traces: Traces) -> Iterator[Residue]:
    there = {_same(path) for path in traces.namespaces}
    for result in living.results:
        alive = result.container in living.sandboxes or any(_same(path) in there for path in result.netns)
        if not alive:
            yield Residue(kinds.CACHE, result.file, result.container, "the runtime does not know its sandbox")


def _holders(traces: Traces) -> Iterator[Residue]:
    for holder in traces.holders:
        mark = f"{holder.pid} {holder.started}"
        who = holder.command or "whoever inherited it from a process that has ended"
        yield Residue(kinds.LOCK, f"process {holder.pid}", mark, f"{who} holds the allocation lock")


def _connections(living: Living, traces: Traces) -> Iterator[Residue]:
    mine = [block.cidr for block in living.blocks if _is_of(block.affinity, living.node)]
    held = held_addresses(living.blocks)
    routed = {address for link in traces.links for address in link.routes}
    for address, number in sorted(traces.connections.items(), key=lambda item: (item[0].version, int(item[0]))):
        if address in held or address in routed or not any(contains(cidr, _alone(address)) for cidr in mine):
            continue
        yield Residue(kinds.CONNTRACK, str(address), str(address), f"{number} connections of an address nobody holds")


def _is_of(affinity: str | None, node: str) -> bool:
    return affinity == f"host:{node}"


def _alone(address: Address) -> Any:
    return network_of(address, address.max_prefixlen)


def _allocations(living: Living) -> Iterator[Residue]:
    for block in living.blocks:
        for ordinal, attribute in block.taken():
            attrs = attribute.active
            container = attribute.clean_handle.rpartition(".")[2]
            if attribute.cold or attrs.get(NODE) != living.node or VMI_NAME in attrs or attrs.get(TYPE):
                continue
            if CONTAINER.fullmatch(container) and container not in living.sandboxes:
                text = f"held by {attrs.get(NAMESPACE, '')}/{attrs.get(POD, '')} under {attribute.clean_handle}"
                mark = f"{attribute.handle} {block.sequence_of(ordinal)}"
                yield Residue(kinds.IPAM, str(block.address(ordinal)), mark, text)


def _volumes(living: Living, traces: Traces) -> Iterator[Residue]:
    folders = {name for pod in living.pods.values() for name in pod.folders}
    for name, inode in traces.volumes.items():
        if name not in folders:
            yield Residue(kinds.VOLUME, name, str(inode), "no pod of this node has this folder")


def _slices(living: Living, slices: Slices) -> Iterator[Residue]:
    by_uid = {pod.uid: pod for pod in living.pods.values()}
    for namespace, name, uid, endpoint in slices:
        target = mapping(endpoint.get("targetRef"))
        if target.get("kind") != "Pod":
            continue
        pod = by_uid.get(str(target.get("uid") or ""))
        addresses = endpoint.get("addresses")
        for address in addresses if isinstance(addresses, list) else ():
            if pod is not None and address in pod.ips:
                continue
            text = f"names pod {target.get('name')}, " + (
                "which is gone" if pod is None else "which has other addresses"
            )
            yield Residue(kinds.SLICE, f"{namespace}/{name} {address}", f"{uid} {target.get('uid')}", text)
