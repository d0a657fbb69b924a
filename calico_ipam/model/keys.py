"""What a datastore holds and how one asks for it: keys of objects and scopes of lists (datastore §1).

``str(key)`` is upstream's text for it; error messages quote it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from calico_ipam.model.addresses import Network

if TYPE_CHECKING:
    from calico_ipam.model.affinity import BlockOwner


@dataclass(frozen=True, slots=True)
class BlockKey:
    """A block, by its CIDR."""

    cidr: Network

    def __str__(self) -> str:
        return f"BlockKey(cidr={self.cidr})"


@dataclass(frozen=True, slots=True)
class AffinityKey:
    """Who may take addresses of a block, and which."""

    owner: BlockOwner
    cidr: Network

    def __str__(self) -> str:
        return f"BlockAffinityKey(cidr={self.cidr}, host={self.owner.host}, affinityType={self.owner.kind})"


@dataclass(frozen=True, slots=True)
class HandleKey:
    """What one holder has, by the ID it gave."""

    id: str

    def __str__(self) -> str:
        return f"IPAMHandleKey(id={self.id})"


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """The settings of IPAM; there is one of them."""

    def __str__(self) -> str:
        return "IPAMConfigKey()"


@dataclass(frozen=True, slots=True)
class HostKey:
    """Legacy tree of a host in etcd; nothing writes it today (datastore §3.6)."""

    host: str

    def __str__(self) -> str:
        return f"IPAMHostKey(host={self.host})"


@dataclass(frozen=True, slots=True)
class ResourceKey:
    """A v3 resource; ``namespace`` is empty for the kinds that have none."""

    kind: str
    name: str
    namespace: str = ""

    def __str__(self) -> str:
        return f"{self.kind}({self.namespace}/{self.name})" if self.namespace else f"{self.kind}({self.name})"


Key = BlockKey | AffinityKey | HandleKey | ConfigKey | HostKey | ResourceKey


@dataclass(frozen=True, slots=True)
class Blocks:
    """All blocks, or those of one family.

    ``recent``: a list that may be a moment old will do, where the store has a cheaper one, and its blocks are decoded
    only when somebody looks at them (a damaged one then raises); for decisions that a compare-and-swap protects.
    ``writable`` False: what is only needed to write a block again is not kept.
    """

    version: int | None = None
    recent: bool = field(default=False, compare=False)  # how to read, not what
    writable: bool = field(default=True, compare=False)

    def __str__(self) -> str:
        return "blocks" if self.version is None else f"blocks of IPv{self.version}"


@dataclass(frozen=True, slots=True)
class Affinities:
    """Affinity rows: of one kind, one host, one family; ``None`` means any (host *and* virtual, datastore §14.9).

    ``recent``: as of :class:`Blocks`.
    """

    kind: str | None = None
    host: str | None = None
    version: int | None = None
    recent: bool = field(default=False, compare=False)  # how to read, not what

    def __str__(self) -> str:
        owner = f" of {self.kind or 'owner'} {self.host}" if self.host else ""
        return f"block affinities{owner}"


@dataclass(frozen=True, slots=True)
class Handles:
    """All handles. ``writable``: as of :class:`Blocks`."""

    writable: bool = field(default=True, compare=False)  # how to read, not what

    def __str__(self) -> str:
        return "handles"


@dataclass(frozen=True, slots=True)
class Resources:
    """v3 resources of a kind, optionally of a namespace, optionally with names that begin with ``prefix``.

    ``only``: fields of the spec that are looked at; the others, and all that is needed to write the resource again, are
    not kept. A list of all endpoints takes a quarter of the memory then.
    """

    kind: str
    namespace: str | None = None
    prefix: str = ""
    only: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}({self.namespace}/*)" if self.namespace else f"{self.kind}(*)"


Scope = Blocks | Affinities | Handles | Resources
