"""The profile that every datastore has although none stores it (datastore §4, §10)."""

from __future__ import annotations

from calico_ipam.datastore.api import Entry
from calico_ipam.model.keys import Resources, Scope
from calico_ipam.model.profiles import DEFAULT_ALLOW, DEFAULT_ALLOW_REVISION, default_allow_profile


def default_allow() -> Entry:
    """Return the profile that is always there, and never changes."""
    return Entry(DEFAULT_ALLOW, default_allow_profile(), DEFAULT_ALLOW_REVISION)


def holds_default_allow(scope: Scope) -> bool:
    """Tell whether a scope holds it."""
    return (
        isinstance(scope, Resources)
        and scope.kind == DEFAULT_ALLOW.kind
        and DEFAULT_ALLOW.name.startswith(scope.prefix)
        and not scope.namespace
    )
