"""Addresses that a node holds in a block of another node (cli §3.3)."""

from __future__ import annotations

from dataclasses import dataclass

from calico_ipam.engine.utilization import BLOCKS
from calico_ipam.engine.world import Engine
from calico_ipam.model.addresses import Address, Network
from calico_ipam.model.block import Attribute


@dataclass(frozen=True, slots=True)
class BorrowedAddress:
    """One such address. ``kind`` is ``vmi``, ``pod`` or the type its holder recorded, ``holder`` its name."""

    address: Address
    node: str
    block: Network
    owner: str  #: whom the block belongs to; empty when nobody
    kind: str
    holder: str


@dataclass(frozen=True, slots=True)
class BorrowedList:
    """Borrowed addresses in block order, and how many allocations name no node, so that nobody can tell."""

    addresses: tuple[BorrowedAddress, ...]
    without_node: int


def list_borrowed(engine: Engine) -> BorrowedList:
    """Return every address whose holder's node is not the owner of its block."""
    found: list[BorrowedAddress] = []
    without_node = 0
    for entry in engine.store.list(BLOCKS):
        block = entry.value
        owner = owner_name(block.affinity)
        for ordinal, attribute in block.taken():
            node = attribute.active.get("node")
            if not node:
                without_node += 1
            elif node != owner:
                kind, holder = _holder(attribute)
                found.append(BorrowedAddress(block.address(ordinal), node, block.cidr, owner, kind, holder))
    return BorrowedList(tuple(found), without_node)


def owner_name(affinity: str | None) -> str:
    """Return the host that an affinity text names; a text of an unknown form is returned as it is."""
    parts = (affinity or "").split(":")
    return parts[1] if len(parts) == 2 else affinity or ""


def _holder(attribute: Attribute) -> tuple[str, str]:
    attrs = attribute.active
    for key, kind in (("vmi-name", "vmi"), ("pod", "pod")):
        if key in attrs:
            return kind, f"{attrs.get('namespace', '')}/{attrs[key]}"
    return attrs.get("type", ""), ""
