"""Which addresses a handle, a pod or a node holds (cli §17.1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from calico_ipam.engine.survey import BLOCKS, affinity_host
from calico_ipam.engine.world import Engine
from calico_ipam.model.addresses import Address, Network
from calico_ipam.model.block import Attribute, Block
from calico_ipam.model.timestamps import parse_attribute_time


@dataclass(frozen=True, slots=True)
class Held:
    """One address and who has it."""

    address: Address
    block: Network
    handle: str
    node: str
    owner: str  #: ``namespace/pod``, else the type of address
    since: int | None  #: Unix nanoseconds, where the holder recorded it
    borrowed: bool


def held_by_handle(engine: Engine, handle: str) -> list[Held]:
    return _held(engine, lambda attribute, _: attribute.clean_handle == handle)


def held_by_pod(engine: Engine, namespace: str, name: str) -> list[Held]:
    """Return a pod's addresses; an empty namespace means any."""

    def matches(attribute: Attribute, _: Block) -> bool:
        active = attribute.active
        return active.get("pod") == name and namespace in ("", active.get("namespace", ""))

    return _held(engine, matches)


def held_by_node(engine: Engine, node: str) -> list[Held]:
    return _held(engine, lambda attribute, block: (attribute.active.get("node") or affinity_host(block)) == node)


def _held(engine: Engine, matches: Callable[[Attribute, Block], bool]) -> list[Held]:
    found = []
    for entry in engine.store.list(BLOCKS):
        block: Block = entry.value
        for ordinal, attribute in block.taken():
            if attribute.cold or not matches(attribute, block):
                continue
            active = attribute.active
            node = active.get("node") or affinity_host(block)
            pod = f"{active.get('namespace', '')}/{active['pod']}" if active.get("pod") else active.get("type", "")
            found.append(
                Held(
                    block.address(ordinal),
                    block.cidr,
                    attribute.clean_handle,
                    node,
                    pod,
                    parse_attribute_time(active.get("timestamp", "")),
                    node != affinity_host(block),
                )
            )
    return sorted(found, key=lambda each: (each.address.version, int(each.address)))
