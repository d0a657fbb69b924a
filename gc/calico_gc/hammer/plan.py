"""What a run of the hammer is to do, and what it found. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

#: how everything is named that the hammer makes
PREFIX = "gc-hammer"
#: name of the network in handles, and of the pool
NETWORK = PREFIX
TUNNELS: Mapping[str, str] = {
    "ipip": "ipipTunnelAddress",
    "vxlan": "vxlanTunnelAddress",
    "wireguard": "wireguardTunnelAddress",
}
#: kind of tunnel -> beginning of its handle
TUNNEL_HANDLES: Mapping[str, str] = {kind: f"{kind}-tunnel-addr-" for kind in TUNNELS}


@dataclass(frozen=True, slots=True)
class Plan:
    """Times are seconds. Ratios are shares of the pods.

    ``leak_ratio``: pods that are gone without a DEL. ``crash_ratio``: ADDs that end between their two writes.
    ``orphans``, ``skew``, ``missing``: handles that are broken on purpose. ``restart_every`` 0: collectors are left
    alone. ``collectors`` 0: one that runs already is tried. ``handles``: also wait until no handle is left.
    """

    nodes: int = 150
    pods_per_node: int = 10
    tunnels: tuple[str, ...] = ("ipip", "vxlan")
    parallel: int = 32
    leak_ratio: float = 0.2
    crash_ratio: float = 0.05
    orphans: int = 0
    skew: int = 0
    missing: int = 0
    churn: float = 60.0
    restart_every: float = 20.0
    collectors: int = 1
    leak_grace: float = 5.0
    seed: int = 1
    timeout: float = 1200.0
    handles: bool = True
    cidr: str = "100.64.0.0/14"
    block_size: int = 26
    namespace: str = f"{PREFIX}-pods"


@dataclass(slots=True)
class Outcome:
    """What a run found. ``violations``: each one is a defect; there must be none."""

    violations: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)  #: what was still there at the end
    calls: dict[str, int] = field(default_factory=dict)  #: requests of the hammer itself, by what and which kind
    unfinished: bool = False  #: the time was over before everything dead was gone

    @property
    def good(self) -> bool:
        return not self.violations and not self.unfinished

    def document(self) -> dict[str, Any]:
        return {"schema": "calico-ipam-gc-hammer/v1", "good": self.good, **asdict(self)}
