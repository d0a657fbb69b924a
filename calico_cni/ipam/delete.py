"""``calico-ipam`` DEL: give back whatever the container holds (cni.md §7.4)."""

from __future__ import annotations

from collections.abc import Iterable

from calico_cni import timers
from calico_cni.context import Answer, Call
from calico_cni.identity import identify
from calico_cni.ipam.kubevirt import may_be_launcher
from calico_cni.ipam.lock import host_lock
from calico_ipam.datastore.api import Deadline
from calico_ipam.engine.client import IPAM
from calico_ipam.errors import NotFound


def delete(call: Call) -> Answer:
    """Release by the container's handle and by the one of old releases; what is gone already is fine."""
    identity = identify(call)
    identity.endpoint_name()
    handles = (identity.handle(call.conf.name), identity.legacy_handle())
    with call.store() as store:
        if may_be_launcher(call, store, identity):
            from calico_cni.ipam.machine import delete_machine

            delete_machine(call, store, identity)
        with host_lock(call.conf.ipam_lock_file, call.log):
            ipam = IPAM(store, hostname=identity.node, clock=call.context.clock)
            _release(call, ipam.within(Deadline.after(timers.ALLOCATION)), handles)
    return Answer()


def _release(call: Call, ipam: IPAM, handles: Iterable[str]) -> None:
    for handle in handles:
        try:
            ipam.release_by_handle(handle)
        except NotFound:
            call.log.debug("Nothing is held", handle=handle)
        else:
            call.log.info("Released addresses", handle=handle)
