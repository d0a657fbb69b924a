"""Profiles on Kubernetes: nothing is stored, namespaces and service accounts are read as profiles (datastore §10).

They live in two collections, so a list is made of two lists, and a revision of two: ``<namespaces>/<accounts>``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from calico_ipam.datastore.api import Listing, Revision
from calico_ipam.datastore.profiles import default_allow, holds_default_allow
from calico_ipam.errors import InvalidInput
from calico_ipam.model import endpoint_names
from calico_ipam.model.endpoint_names import NAMESPACE_PROFILE, SERVICE_ACCOUNT_PROFILE
from calico_ipam.model.keys import Resources
from calico_ipam.model.profiles import profile_of_namespace, profile_of_service_account
from calico_ipam.model.resource import PROFILE, Resource, mapping

KEPT = ("uid", "creationTimestamp")
PREFIXES = (NAMESPACE_PROFILE, SERVICE_ACCOUNT_PROFILE)


def profile_of(document: Mapping[str, Any]) -> Resource:
    """Return the profile that a namespace or a service account (which has a namespace) is."""
    metadata = mapping(document.get("metadata"))
    name, namespace = str(metadata.get("name") or ""), str(metadata.get("namespace") or "")
    kept = {key: metadata[key] for key in KEPT if key in metadata} | {"resourceVersion": revision_of(document)}
    if namespace:
        kept["name"] = endpoint_names.service_account_profile(namespace, name)
        return profile_of_service_account(kept, name, mapping(metadata.get("labels")))
    kept["name"] = endpoint_names.namespace_profile(name)
    return profile_of_namespace(kept, name, mapping(metadata.get("labels")))


def revision_of(document: Mapping[str, Any]) -> Revision:
    """Return the revision of the profile that an object is: ``48/`` of a namespace, ``/49`` of a service account."""
    metadata = mapping(document.get("metadata"))
    revision = str(metadata.get("resourceVersion") or "")
    return f"/{revision}" if metadata.get("namespace") else f"{revision}/"


def split_revision(revision: Revision) -> tuple[Revision, Revision]:
    """Return the revisions of namespaces and service accounts in one of profiles. Raises InvalidInput."""
    if revision.count("/") > 1 or (revision and "/" not in revision):
        raise InvalidInput(f"ResourceVersion is not valid: {revision}", subject=revision)
    namespaces, _, accounts = revision.partition("/")
    return namespaces, accounts


def parts_of(scope: Resources) -> tuple[Resources | None, Resources | None]:
    """Return what of a scope is namespaces, and what is service accounts; None where nothing of them can be in it."""
    wanted = scope.prefix
    namespaces, accounts = (
        replace(scope, prefix=max(wanted, each, key=len))
        if wanted.startswith(each) or each.startswith(wanted)
        else None
        for each in PREFIXES
    )
    return namespaces, accounts


def list_profiles(list_part: Callable[[Resources], Listing], scope: Resources) -> Listing:
    """Return the profiles of a scope in the order of their names; ``list_part`` lists one collection."""
    listings = [list_part(part) if part is not None else Listing((), "") for part in parts_of(scope)]
    entries = [entry for listing in listings for entry in listing.entries]
    if holds_default_allow(scope):
        entries.append(default_allow())
    entries.sort(key=lambda entry: str(entry.value.name))
    damaged = tuple(each for listing in listings for each in listing.damaged)
    return Listing(tuple(entries), joined([listing.revision for listing in listings]), damaged)


def joined(revisions: Sequence[Revision]) -> Revision:
    return "/".join(revisions)


def is_profiles(scope: object) -> bool:
    return isinstance(scope, Resources) and scope.kind == PROFILE
