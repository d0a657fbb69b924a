"""Which pods may run a virtual machine of KubeVirt; apart, since the others need nothing more of it (cni.md §7.5)."""

from __future__ import annotations

from calico_cni.context import Call
from calico_cni.identity import Identity
from calico_ipam.datastore.api import Datastore


def may_be_launcher(call: Call, store: Datastore, identity: Identity) -> bool:
    """Tell whether the pod has to be looked at: it has a launcher's name, and somebody can be asked about pods."""
    known = call.conf.for_kubernetes or store.capabilities.endpoints_are_pods
    return known and identity.has_launchers_name
