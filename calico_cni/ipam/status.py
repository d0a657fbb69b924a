"""``calico-ipam`` STATUS: could an ADD be served now? (cni.md §2.7)"""

from __future__ import annotations

from calico_cni import timers
from calico_cni.context import Answer, Call
from calico_cni.errors import NOT_AVAILABLE, CNIError, cni_error
from calico_ipam.datastore.api import Deadline
from calico_ipam.errors import IPAMError
from calico_ipam.model.keys import Resources
from calico_ipam.model.pool import WORKLOAD, enabled_pools, parse_pools
from calico_ipam.model.resource import IP_POOL


def status(call: Call) -> Answer:
    """Raise CNIError 50 when the datastore does not answer or a family that is asked for has no usable pool."""
    try:
        with call.store() as store:
            listing = store.within(Deadline.after(timers.STATUS)).list(Resources(IP_POOL))
    except (IPAMError, CNIError) as error:
        told = cni_error(error)
        raise CNIError(told.message, told.details, code=NOT_AVAILABLE) from error
    pools, _ = parse_pools(entry.value for entry in listing)
    for version, wanted in ((4, call.conf.ipam.assign_ipv4), (6, call.conf.ipam.assign_ipv6)):
        usable = [pool for pool in enabled_pools(pools, version) if WORKLOAD in pool.allowed_uses]
        if wanted and not usable:
            raise CNIError(
                f"no enabled IPv{version} pool may be used for workloads",
                "Create or enable one; 'ipamctl pool list' shows the pools.",
                code=NOT_AVAILABLE,
            )
    return Answer()
