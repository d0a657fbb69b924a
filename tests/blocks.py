"""Blocks for tests, each change checked against the invariants."""

from __future__ import annotations

from calico_ipam.model.addresses import parse_network
from calico_ipam.model.affinity import BlockOwner
from calico_ipam.model.block import Block, HostReserved, ReleaseOption
from calico_ipam.model.timestamps import SECOND
from tests.invariants import check_block

NOW = 1_767_323_045 * SECOND + 700_000_000
NODE = BlockOwner("host", "node-1")
WINDOWS = "windows-reserved-ipam-handle"


def sound(block: Block) -> Block:
    """Return a block that keeps the invariants once it is written."""
    assert check_block(block.bumped()) == []
    return block


def new(cidr: str = "10.0.0.0/30", *, reserved: HostReserved | None = None) -> Block:
    return Block.new(parse_network(cidr), now=NOW, owner=NODE, reserved=reserved)


def auto(block: Block, number: int = 1, handle: str | None = "h", **attrs: str) -> tuple[Block, list[int]]:
    """Assign the next addresses of the queue; return the block and their ordinals."""
    after, ordinals = block.assign(number, handle=handle, attrs=attrs)
    return sound(after), list(ordinals)


def take(block: Block, *ordinals: int, handle: str | None = "h", **attrs: str) -> Block:
    """Assign given addresses."""
    for ordinal in ordinals:
        block = block.assign_address(block.address(ordinal), handle=handle, attrs=attrs)
    return sound(block)


def free(block: Block, *ordinals: int, cooldown: int = 0, now: int = NOW) -> Block:
    """Release given addresses in one call."""
    options = [ReleaseOption(block.address(o)) for o in ordinals]
    return sound(block.release(options, cooldown=cooldown, now=now)[0])
