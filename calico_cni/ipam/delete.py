"""``calico-ipam`` DEL: give back whatever the container holds (cni.md §7.4)."""

from __future__ import annotations

from calico_cni import timers
from calico_cni.context import Answer, Call
from calico_cni.identity import identify
from calico_cni.ipam.launcher import may_be_launcher
from calico_cni.ipam.lock import host_lock
from calico_ipam.datastore.api import Deadline
from calico_ipam.engine.client import IPAM
from calico_ipam.errors import NotFound
from calico_ipam.model.keys import HandleKey


def delete(call: Call) -> Answer:
    """Release by the container's handle and by the one of old releases; what is gone already is fine."""
    identity = identify(call)
    identity.endpoint_name()
    with call.store() as store:
        if may_be_launcher(call, store, identity):
            from calico_cni.ipam.machine import delete_machine

            delete_machine(call, store, identity)
        with host_lock(call.conf.ipam_lock_file, call.log, call.context.stop.heed):
            ipam = IPAM(store, hostname=identity.node, clock=call.context.clock)
            bound = ipam.within(Deadline.after(timers.ALLOCATION))
            _release(call, bound, identity.handle(call.conf.name))
            legacy = identity.legacy_handle()
            if _exists(bound, legacy):
                _release(call, bound, legacy)
    return Answer()


def _exists(ipam: IPAM, handle: str) -> bool:
    """Ask for one of the old handles, which hardly any cluster has any more, before pools and settings are read."""
    key = HandleKey(handle)
    return ipam.store.read(key).entry(key) is not None


def _release(call: Call, ipam: IPAM, handle: str) -> None:
    try:
        ipam.release_by_handle(handle)
    except NotFound:
        call.log.debug("Nothing is held", handle=handle)
    else:
        call.log.info("Released addresses", handle=handle)
