"""Profiles that are stored nowhere: the one that allows everything, and those of Kubernetes (datastore §4, §10)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calico_ipam.model.keys import ResourceKey
from calico_ipam.model.resource import PROFILE, Resource

DEFAULT_ALLOW = ResourceKey(PROFILE, "projectcalico-default-allow")
#: its revision, for ever: it never changes
DEFAULT_ALLOW_REVISION = "1"

NAMESPACE_LABEL = "pcns."
SERVICE_ACCOUNT_LABEL = "pcsa."
NAME_LABEL = "projectcalico.org/name"


def default_allow_profile() -> Resource:
    """Return the profile that every datastore has: everybody may talk to its members and they to everybody."""
    return _profile({"name": DEFAULT_ALLOW.name, "resourceVersion": DEFAULT_ALLOW_REVISION}, allow_all())


def allow_all() -> dict[str, Any]:
    """Return the rules of a profile that allows everything."""
    rule = {"action": "Allow", "source": {}, "destination": {}}
    return {"ingress": [rule], "egress": [rule]}


def profile_of_namespace(metadata: Mapping[str, Any], name: str, labels: Mapping[str, Any]) -> Resource:
    """Return the profile of a namespace that is called ``name`` and has these labels; ``metadata``: of the profile."""
    return _profile(metadata, {**allow_all(), "labelsToApply": _prefixed(NAMESPACE_LABEL, name, labels)})


def profile_of_service_account(metadata: Mapping[str, Any], name: str, labels: Mapping[str, Any]) -> Resource:
    """Return the profile of a service account, which has no rules; as :func:`profile_of_namespace`."""
    return _profile(metadata, {"labelsToApply": _prefixed(SERVICE_ACCOUNT_LABEL, name, labels)})


def _prefixed(prefix: str, name: str, labels: Mapping[str, Any]) -> dict[str, str]:
    # The name comes last: a label of the object's own that claims to be it does not count.
    return {prefix + str(key): str(value) for key, value in {**labels, NAME_LABEL: name}.items()}


def _profile(metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> Resource:
    document = {"kind": PROFILE, "apiVersion": "projectcalico.org/v3", "metadata": dict(metadata), "spec": dict(spec)}
    return Resource(PROFILE, str(metadata.get("name") or ""), document)
