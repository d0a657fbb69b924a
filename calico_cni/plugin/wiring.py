"""What is known about a sandbox before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass

from calico_cni.context import Call
from calico_cni.dataplane.api import Dataplane
from calico_cni.identity import Identity
from calico_cni.plugin.readiness import CLIENT_FAILED

__all__ = ["CLIENT_FAILED", "INTERFACE_PREFIX", "Wiring", "host_interface"]

INTERFACE_PREFIX = "FELIX_INTERFACEPREFIX"


@dataclass(frozen=True, slots=True)
class Wiring:
    """How a sandbox will be connected. ``mtu`` 0: the kernel's default."""

    call: Call
    identity: Identity
    dataplane: Dataplane
    mtu: int
    queues: int
    device_type: str
    host_name: str


def host_interface(call: Call, identity: Identity) -> str:
    """Return the name of the workload's link on the host; Felix's prefix is in the environment."""
    return identity.host_interface(call.request.environ.get(INTERFACE_PREFIX, ""))
