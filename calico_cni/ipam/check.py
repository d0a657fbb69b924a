"""``calico-ipam`` CHECK: does the container still hold the addresses of its result? (cni.md §2.7)"""

from __future__ import annotations

from calico_cni import timers
from calico_cni.context import Answer, Call
from calico_cni.errors import CNIError
from calico_cni.identity import Identity, identify
from calico_cni.ipam.launcher import may_be_launcher
from calico_cni.previous import previous_result
from calico_ipam.datastore.api import Datastore, Deadline
from calico_ipam.engine.client import IPAM
from calico_ipam.errors import NotFound


def check(call: Call) -> Answer:
    """Raise CNIError for each address that the handle does not hold; print nothing."""
    expected = previous_result(call.conf)
    identity = identify(call)
    with call.store() as store:
        handle = _handle(call, store, identity)
        ipam = IPAM(store, hostname=identity.node, clock=call.context.clock).within(Deadline.after(timers.RECORDS))
        try:
            held = set(ipam.ips_by_handle(handle))
        except NotFound:
            held = set()
    missing = [str(ip.address.ip) for ip in expected.ips if ip.address.ip not in held]
    if missing:
        raise CNIError(
            f"handle {handle} does not hold {', '.join(missing)}",
            "The address was released behind the sandbox's back; delete the sandbox and make it again.",
        )
    return Answer()


def _handle(call: Call, store: Datastore, identity: Identity) -> str:
    if may_be_launcher(call, store, identity):
        from calico_cni.ipam.machine import machine_handle

        return machine_handle(call, store, identity) or identity.handle(call.conf.name)
    return identity.handle(call.conf.name)
