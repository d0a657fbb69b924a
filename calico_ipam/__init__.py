"""Calico's IP address management: the library.

::

    from calico_ipam import IPAM, open_datastore

    with open_datastore("sqlite:///var/lib/calico/ipam/ipam.db") as store:
        ipam = IPAM(store, hostname="node-1")
        got = ipam.auto_assign(use="Workload", num4=1, handle="my-job", attrs={"node": "node-1"})
        print(got.addresses[0].address)
        ipam.release_by_handle("my-job")

Names are loaded when they are first used: a CNI plugin call pays only for what it needs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from calico_ipam.datastore.api import Datastore, Deadline, Event
    from calico_ipam.datastore.config import Settings, open_datastore
    from calico_ipam.engine.client import IPAM
    from calico_ipam.engine.owners import OwnerPreconditions, OwnerUpdates
    from calico_ipam.engine.policy import Clock, Retry
    from calico_ipam.engine.results import (
        AssignedAddress,
        AssignmentAttributes,
        Assignments,
        AutoAssigned,
        ClaimResult,
        NamespaceLabels,
        ReleaseResult,
    )
    from calico_ipam.engine.tunnels import TunnelChange
    from calico_ipam.errors import IPAMError
    from calico_ipam.model.addresses import parse_address, parse_network
    from calico_ipam.model.affinity import BlockOwner
    from calico_ipam.model.block import Block, HostReserved, ReleaseOption
    from calico_ipam.model.config import IPAMConfig
    from calico_ipam.model.owner import Owner
    from calico_ipam.model.pool import Pool

_HOMES = {
    "calico_ipam.datastore.api": ("Datastore", "Deadline", "Event"),
    "calico_ipam.datastore.config": ("Settings", "open_datastore"),
    "calico_ipam.engine.client": ("IPAM",),
    "calico_ipam.engine.owners": ("OwnerPreconditions", "OwnerUpdates"),
    "calico_ipam.engine.policy": ("Clock", "Retry"),
    "calico_ipam.engine.results": (
        "AssignedAddress",
        "AssignmentAttributes",
        "Assignments",
        "AutoAssigned",
        "ClaimResult",
        "NamespaceLabels",
        "ReleaseResult",
    ),
    "calico_ipam.engine.tunnels": ("TunnelChange",),
    "calico_ipam.errors": ("IPAMError",),
    "calico_ipam.model.addresses": ("parse_address", "parse_network"),
    "calico_ipam.model.affinity": ("BlockOwner",),
    "calico_ipam.model.block": ("Block", "HostReserved", "ReleaseOption"),
    "calico_ipam.model.config": ("IPAMConfig",),
    "calico_ipam.model.owner": ("Owner",),
    "calico_ipam.model.pool": ("Pool",),
}

__all__ = [
    "IPAM",
    "AssignedAddress",
    "AssignmentAttributes",
    "Assignments",
    "AutoAssigned",
    "Block",
    "BlockOwner",
    "ClaimResult",
    "Clock",
    "Datastore",
    "Deadline",
    "Event",
    "HostReserved",
    "IPAMConfig",
    "IPAMError",
    "NamespaceLabels",
    "Owner",
    "OwnerPreconditions",
    "OwnerUpdates",
    "Pool",
    "ReleaseOption",
    "ReleaseResult",
    "Retry",
    "Settings",
    "TunnelChange",
    "open_datastore",
    "parse_address",
    "parse_network",
]


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'calico_ipam' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
