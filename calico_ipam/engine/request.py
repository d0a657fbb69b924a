"""What a caller of an assignment asks for, as one value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from calico_ipam.engine.results import NamespaceLabels
from calico_ipam.errors import InvalidInput
from calico_ipam.model.addresses import Network
from calico_ipam.model.affinity import HOST, VIRTUAL, BlockOwner
from calico_ipam.model.block import HostReserved
from calico_ipam.model.handle import check_handle
from calico_ipam.model.owner import check_attributes
from calico_ipam.model.pool import LOAD_BALANCER_USE


def owner_for(use: str | None, host: str) -> BlockOwner:
    """Return who owns the blocks of a use: the load balancer's virtual host, or the host."""
    return BlockOwner(VIRTUAL if use == LOAD_BALANCER_USE else HOST, host)


@dataclass(frozen=True, slots=True)
class Request:
    """One automatic assignment, of one or both families (ipam-library §11)."""

    use: str
    host: str
    numbers: Mapping[int, int]  #: family to number of addresses
    handle: str | None = None
    attrs: Mapping[str, str] = field(default_factory=dict)
    pools: Mapping[int, Sequence[Network]] = field(default_factory=dict)  #: family to requested pools
    max_blocks: int = 0  #: most blocks the host may own; 0 leaves it to the settings
    host_reserved: Mapping[int, HostReserved | None] = field(default_factory=dict)
    cap: int = 0  #: most addresses per family that the handle may hold; 0 means no cap
    namespace: NamespaceLabels | None = None

    @property
    def owner(self) -> BlockOwner:
        return owner_for(self.use, self.host)

    @property
    def versions(self) -> list[int]:
        return [v for v in (4, 6) if self.numbers.get(v, 0)]

    def check(self) -> None:
        """Refuse what can be refused before anything is read (limits L4 and L29). Raises InvalidInput."""
        if not self.use:
            raise InvalidInput("must specify the intended use when assigning an IP")
        for version, number in self.numbers.items():
            if number and not isinstance(number, int):
                raise InvalidInput(f"{number!r} is no number of IPv{version} addresses", hint="Give a whole number.")
        for pool in (each for pools in self.pools.values() for each in pools):
            if not isinstance(pool, Network):
                raise InvalidInput(f"pool {pool!r} is no network", hint="Give parse_network() of its CIDR.")
        self.check_families([v for v in (4, 6) if self.numbers.get(v)])
        if self.handle:
            check_handle(self.handle)
        check_attributes(self.attrs)

    def check_families(self, versions: Sequence[int]) -> None:
        """Refuse pools of another family than they are asked for. Raises InvalidInput."""
        for version in versions:
            if any(pool.version != version for pool in self.pools.get(version, ())):
                other = 10 - version
                raise InvalidInput(f"provided IPv{version} IPPools list contains one or more IPv{other} IPPools")
