"""What the engine's operations return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from calico_ipam.model.addresses import Address, Network
from calico_ipam.model.block import HostReserved, ReleaseOption


@dataclass(frozen=True, slots=True)
class AssignedAddress:
    """An address with the prefix length of its block; ``str()`` gives ``10.0.0.2/26`` (ipam-library §5)."""

    address: Address
    block: Network
    borrowed: bool = False  #: it lies in a block that belongs to another host, or to nobody

    def __str__(self) -> str:
        return f"{self.address}/{self.block.prefixlen}"


@dataclass(frozen=True, slots=True)
class Assignments:
    """The addresses of one family that one request obtained (ipam-library §11.7)."""

    version: int
    requested: int
    addresses: tuple[AssignedAddress, ...] = ()
    messages: tuple[str, ...] = ()  #: why there are fewer than requested
    host_reserved: HostReserved | None = None
    hints: tuple[str, ...] = ()  #: what to do about it, beside upstream's words

    @property
    def shortfall(self) -> str | None:
        """The partial-fulfilment text, or None when the request was met."""
        if len(self.addresses) >= self.requested:
            return None
        parts = [f"Assigned {len(self.addresses)} out of {self.requested} requested IPv{self.version} addresses"]
        parts += dict.fromkeys(self.messages)  # each once, however many rounds came to it
        if self.host_reserved is not None:
            parts.append(f"HostReservedAttr: {self.host_reserved.handle}")
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class AutoAssigned:
    """Both families of an automatic assignment; a family that was not asked for, or never reached, is None."""

    ipv4: Assignments | None = None
    ipv6: Assignments | None = None

    @property
    def addresses(self) -> tuple[AssignedAddress, ...]:
        return (self.ipv4.addresses if self.ipv4 else ()) + (self.ipv6.addresses if self.ipv6 else ())


@dataclass(frozen=True, slots=True)
class ReleaseResult:
    """``unallocated``: asked for but not allocated. ``released``: options whose block did not fail (§13.2)."""

    unallocated: tuple[Address, ...] = ()
    released: tuple[ReleaseOption, ...] = ()


@dataclass(frozen=True, slots=True)
class AssignmentAttributes:
    """Who holds an address (§15.1)."""

    handle: str | None
    active: Mapping[str, str] = field(default_factory=dict)
    alternate: Mapping[str, str] = field(default_factory=dict)
    sequence_number: int = 0


@dataclass(frozen=True, slots=True)
class NamespaceLabels:
    """The namespace a request comes from, for pools with a namespace selector."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """Blocks that are the owner's now, and blocks that are not because somebody else has them (§14.1)."""

    claimed: tuple[Network, ...] = ()
    failed: tuple[Network, ...] = ()
