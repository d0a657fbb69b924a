"""The profile of a network, for configurations without a policy type (cni.md §6.6)."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from calico_cni import timers
from calico_ipam.datastore.api import Create, Datastore, Deadline
from calico_ipam.errors import AlreadyExists, NotFound
from calico_ipam.model.keys import ResourceKey
from calico_ipam.model.resource import PROFILE, Resource


def ensure_profile(store: Datastore, network: str) -> None:
    """Make the profile named like the network unless there is one: members may talk to each other and outwards."""
    _ensure(store, network, _spec(network, {"action": "Allow", "source": {"selector": f"has({network})"}}))


def ensure_pod_profile(store: Datastore, network: str) -> None:
    """Do the same for pods of Kubernetes, where everybody may talk to members: policy is the cluster's affair."""
    _ensure(store, network, _spec(network, {"action": "Allow"}))


def _ensure(store: Datastore, network: str, spec: dict[str, Any]) -> None:
    """Make a profile unless there is one; one that exists is never touched: somebody may have made it stricter."""
    key = ResourceKey(PROFILE, network)
    bound = store.within(Deadline.after(timers.RECORDS))
    try:
        bound.get(key)
    except NotFound:
        with suppress(AlreadyExists):  # another sandbox of the same network was quicker
            bound.commit(Create(key, Resource.new(PROFILE, network, spec)))


def _spec(network: str, ingress: dict[str, Any]) -> dict[str, Any]:
    return {
        "ingress": [ingress],
        "egress": [{"action": "Allow"}],
        "labelsToApply": {network: ""},
    }
