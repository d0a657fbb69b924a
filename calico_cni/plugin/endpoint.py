"""The endpoint record: how it is found, made, checked, written and removed (cni.md §6, datastore §9)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from calico_cni import timers
from calico_cni.errors import CNIError
from calico_cni.identity import Identity
from calico_cni.plugin.labels import NAMESPACE_LABEL, ORCHESTRATOR_LABEL
from calico_ipam.datastore.api import Create, Datastore, Deadline, Delete, Entry, Update
from calico_ipam.errors import Conflict, InvalidInput, NotFound, OutcomeUnknown
from calico_ipam.model.keys import ResourceKey, Resources
from calico_ipam.model.resource import WORKLOAD_ENDPOINT, Resource

#: Tries against somebody who changes the record at the same time.
_TRIES = 6
_SHARED_CHARACTERS = 11  # of a container ID go into the name of its host interface

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NAME_PATTERN = rf"{_LABEL}(\.{_LABEL})*"
_NAME = re.compile(_NAME_PATTERN)
_CONTAINER_ID = re.compile(r"[a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?")


@dataclass(frozen=True, slots=True)
class Records:
    """What the store knows around one attachment.

    ``own``: its record. ``siblings``: of other interfaces of the same workload. ``sharing``: of other containers whose
    host interface has the same name.
    """

    own: Entry | None = None
    siblings: tuple[Entry, ...] = ()
    sharing: tuple[Entry, ...] = ()


def find_records(store: Datastore, identity: Identity, namespace: str, host_name: str) -> Records:
    """Return the records that matter to an attachment, by one look at the store.

    Raises CNIError for identifiers that cannot form a name, with upstream's text.
    """
    workload = replace(identity, ifname="").ids
    if store.capabilities.endpoints_are_pods and not identity.for_kubernetes:
        return Records()  # such a datastore knows nothing but pods
    try:
        prefix = workload.prefix()
    except InvalidInput as error:
        raise CNIError(f"error constructing WorkloadEndpoint prefix: {error}", error.hint) from None
    if workload.container_id:
        # Containers whose IDs begin alike have one host interface, so the look reaches for all of them.
        shared = workload.container_id[:_SHARED_CHARACTERS]
        prefix = f"{_escaped(workload.node)}-{workload.orchestrator}-{_escaped(shared)}"
    own: Entry | None = None
    siblings, sharing = [], []
    for entry in store.within(Deadline.after(timers.RECORDS)).list(Resources(WORKLOAD_ENDPOINT, namespace, prefix)):
        if identity.ids.match(entry.value.name):
            own = entry
        elif workload.match(entry.value.name):
            siblings.append(entry)
        elif entry.value.spec.get("interfaceName") == host_name:
            sharing.append(entry)
    return Records(own, tuple(siblings), tuple(sharing))


def get_record(store: Datastore, name: str, namespace: str) -> Entry | None:
    """Return the record of that name, or None."""
    try:
        return store.get(ResourceKey(WORKLOAD_ENDPOINT, name, namespace))
    except NotFound:
        return None


def _escaped(text: str) -> str:
    return text.replace("-", "--")


def container_of(entry: Entry) -> str:
    """Return the container ID that a record names; empty when it names none."""
    return str(entry.value.spec.get("containerID") or "")


def new_endpoint(
    name: str, namespace: str, identity: Identity, labels: Mapping[str, str], spec: Mapping[str, Any]
) -> Resource:
    """Return the record of a workload; ``spec`` holds addresses, profiles and the link."""
    forced = {NAMESPACE_LABEL: namespace, ORCHESTRATOR_LABEL: identity.orchestrator}
    whole = {
        "orchestrator": identity.orchestrator,
        "node": identity.node,
        "containerID": identity.container_id,
        "endpoint": identity.ifname,
        **spec,
    }
    return Resource.new(
        WORKLOAD_ENDPOINT, name, whole, namespace=namespace, labels=dict(sorted({**labels, **forced}.items()))
    )


def check_names(name: str, container_id: str, profiles: Sequence[str]) -> None:
    """Raise CNIError for names that the datastore would refuse; upstream finds this only when the link stands (§5)."""
    problems = []
    if not _NAME.fullmatch(name):
        problems.append(("Metadata.Name", name, _name_rule()))
    if not _CONTAINER_ID.fullmatch(container_id):
        rule = "Reason: failed to validate Field: ContainerID because of Tag: containerID "
        problems.append(("ContainerID", container_id, rule))
    for index, profile in enumerate(profiles):
        if not _NAME.fullmatch(profile):
            problems.append((f"Profiles[{index}]", profile, _name_rule()))
    if not problems:
        return
    hint = "Container ID, interface and network name must be lower case, without '_', to form names in the datastore."
    if len(problems) == 1:
        field, value, rule = problems[0]
        raise CNIError(f"error with field {field} = '{value}' ({rule})", hint)
    lines = "".join(f"-  {field} = '{value}' ({rule})\n" for field, value, rule in problems)
    raise CNIError(f"error with the following fields:\n{lines}", hint)


def _name_rule() -> str:
    return f"name must consist of lower case alphanumeric characters, '-' or '.' (regex: {_NAME_PATTERN})"


def write_endpoint(store: Datastore, endpoint: Resource, found: Entry | None) -> None:
    """Store a record: a new one, or over the one that was found.

    A lost answer is looked up before it counts as a failure (rulings 4).
    """
    key = ResourceKey(WORKLOAD_ENDPOINT, endpoint.name, endpoint.namespace)
    for attempt in range(1, _TRIES + 1):
        bound = store.within(Deadline.after(timers.RECORDS))
        try:
            if found is None:
                bound.commit(Create(key, endpoint))
            else:
                bound.commit(Update(found, _over(found.value, endpoint)))
            return
        except OutcomeUnknown:
            stored = get_record(store, endpoint.name, endpoint.namespace)
            if stored is not None and dict(stored.value.spec) == dict(endpoint.spec):
                return
            raise
        except (Conflict, NotFound):
            if found is None or attempt == _TRIES:
                raise
            found = get_record(bound, endpoint.name, endpoint.namespace)


def _over(old: Resource, new: Resource) -> Resource:
    """Return ``new`` with what the stored record holds beside it: identity, unknown fields, other labels."""
    metadata = {**old.metadata, "labels": {**old.labels, **new.labels}}
    document = {**old.document, "metadata": metadata, "spec": {**old.spec, **new.spec}}
    return Resource(old.kind, old.name, document, old.namespace)


def add_profile(store: Datastore, found: Entry, profile: str) -> None:
    """Add a profile to a record unless it is there (§6.5)."""
    name, namespace = found.value.name, found.value.namespace
    for attempt in range(1, _TRIES + 1):
        profiles = list(found.value.spec.get("profiles") or ())
        if profile in profiles:
            return
        spec = {**found.value.spec, "profiles": [*profiles, profile]}
        try:
            store.within(Deadline.after(timers.RECORDS)).commit(Update(found, found.value.with_spec(spec)))
            return
        except (Conflict, OutcomeUnknown):
            if attempt == _TRIES:
                raise
            found = store.get(ResourceKey(WORKLOAD_ENDPOINT, name, namespace))


def delete_endpoint(store: Datastore, found: Entry, container_id: str) -> None:
    """Remove a record unless it has become another container's; what is gone already is fine (§9)."""
    name, namespace = found.value.name, found.value.namespace
    current: Entry | None = found
    for attempt in range(1, _TRIES + 1):
        if current is None or container_of(current) not in ("", container_id):
            return
        try:
            store.within(Deadline.after(timers.RECORDS)).commit(Delete(current))
            return
        except NotFound:
            return
        except Conflict as error:
            if attempt == _TRIES:
                raise CNIError(
                    f"error deleting endpoint: endpoint was modified before it could be deleted: {error}"
                ) from error
        except OutcomeUnknown:
            if attempt == _TRIES:
                raise
        current = get_record(store, name, namespace)
