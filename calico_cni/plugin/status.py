"""``calico`` STATUS: could an ADD be served now? (cni.md §2.7)"""

from __future__ import annotations

from calico_cni import timers
from calico_cni.context import Answer, Call
from calico_cni.delegate import IPAMDelegate
from calico_cni.errors import NOT_AVAILABLE, CNIError, cni_error
from calico_cni.node import require_nodename_file
from calico_cni.plugin.readiness import CLIENT_FAILED, check_ready
from calico_ipam.errors import IPAMError


def status(call: Call) -> Answer:
    """Raise CNIError 50 when node name, datastore or readiness are missing; an IPAM plugin's own code is passed on."""
    try:
        require_nodename_file(call.conf)
        with call.store(CLIENT_FAILED) as store:
            check_ready(store, timers.STATUS)
            delegated = _delegated(IPAMDelegate(call, store))
    except (CNIError, IPAMError) as error:
        told = cni_error(error)
        raise CNIError(told.message, told.details, code=NOT_AVAILABLE) from error
    if delegated is not None:
        raise delegated
    return Answer()


def _delegated(delegate: IPAMDelegate) -> CNIError | None:
    try:
        delegate.status()
    except CNIError as error:
        return error
    return None
