"""Who owns a block, and the affinity row that says so (ipam-library §10, datastore §3.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

HOST = "host"
VIRTUAL = "virtual"

PENDING = "pending"
CONFIRMED = "confirmed"
PENDING_DELETION = "pendingDeletion"


@dataclass(frozen=True, slots=True)
class BlockOwner:
    """A host, or a virtual host such as the load balancer, that can own blocks (upstream: an affinity config)."""

    kind: str
    host: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.host}"

    @classmethod
    def parse(cls, text: str | None) -> BlockOwner | None:
        """Return the owner that a block's ``affinity`` text names; any other text names nobody."""
        kind, colon, host = (text or "").partition(":")
        return cls(kind, host) if colon and kind in (HOST, VIRTUAL) else None


@dataclass(frozen=True, slots=True)
class Affinity:
    """The value of an affinity row. Host, kind and CIDR are in its key."""

    state: str = CONFIRMED
    deleted: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)  #: unknown fields of the document, kept on rewrite

    @property
    def usable(self) -> bool:
        """Confirmed, or empty as in data older than 3.0.7: allocation code treats both as owned."""
        return self.state in (CONFIRMED, "")

    def with_state(self, state: str) -> Affinity:
        return replace(self, state=state)
