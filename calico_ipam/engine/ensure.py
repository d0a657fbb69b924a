"""EnsureBlock: a host owns a block before it needs an address (ipam-library §18.1; Windows hosts use it)."""

from __future__ import annotations

from calico_ipam.engine.own_blocks import BlockSource
from calico_ipam.engine.prelude import look_for
from calico_ipam.engine.prepare import prepare
from calico_ipam.engine.request import Request
from calico_ipam.engine.world import Engine
from calico_ipam.model.addresses import Network


def ensure_block(engine: Engine, request: Request) -> tuple[Network | None, Network | None]:
    """Return a block of each family whose host-reserved ordinals are given; no block limit applies.

    Raises as an assignment does, InvalidInput for pools of another family among them.
    """
    found: dict[int, Network] = {}
    versions = [v for v in (4, 6) if request.host_reserved.get(v) is not None]
    request.check_families(versions)
    if versions:
        world = look_for(engine, request, versions)
        for version in versions:
            family = prepare(engine, request, world, version)
            block = BlockSource(engine, family, request, limited=False).next(at_least=0)
            found[version] = block.value.cidr
    return found.get(4), found.get(6)
