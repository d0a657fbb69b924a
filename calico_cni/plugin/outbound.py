"""Outbound traffic of a host without Felix: ``"nat_outgoing": true`` in the network configuration (rulings 22)."""

from __future__ import annotations

from calico_cni import timers
from calico_cni.dataplane.api import Dataplane
from calico_ipam.datastore.api import Datastore, Deadline
from calico_ipam.model.keys import Resources
from calico_ipam.model.pool import parse_pools
from calico_ipam.model.resource import IP_POOL


def masquerade_pools(store: Datastore, dataplane: Dataplane) -> None:
    """Masquerade what leaves any pool for anywhere but a pool; after the last pool is gone, nothing.

    Disabled pools count: their addresses may still be in use. Raises DataplaneError and the datastore's errors.
    """
    listing = store.within(Deadline.after(timers.POOLS)).list(Resources(IP_POOL))
    pools, _ = parse_pools(entry.value for entry in listing)
    dataplane.masquerade([pool.cidr for pool in pools])
