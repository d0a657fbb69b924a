"""Writing and removing a pod's endpoint record (cni.md §6.3 step 8, §9)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from calico_cni import timers
from calico_cni.context import Call, Cluster
from calico_cni.errors import CNIError
from calico_cni.identity import Identity
from calico_cni.plugin.annotations import annotations_of
from calico_cni.plugin.endpoint import container_of, delete_endpoint, get_record
from calico_cni.plugin.pods import Pod, bare_record, is_another
from calico_ipam.datastore.api import Create, Datastore, Deadline, Delete, Entry, Update
from calico_ipam.datastore.kube.pods import CONTAINER_ID, POD_IPS
from calico_ipam.errors import AlreadyExists, Conflict, NotFound, OutcomeUnknown
from calico_ipam.model.endpoint_names import KUBERNETES
from calico_ipam.model.keys import ResourceKey
from calico_ipam.model.resource import WORKLOAD_ENDPOINT, Resource, mapping

_TRIES = 6
#: What a record says of its pod; a new one says it anew, and what it does not say is gone (§15.7).
_OF_POD = ("ipNetworks", "ipNATs", "ports", "allowSpoofedSourcePrefixes", "qosControls", "serviceAccountName")


@dataclass(frozen=True, slots=True)
class Wired:
    """What came out of address and link."""

    networks: tuple[str, ...]  #: each address alone in its network
    nats: tuple[Mapping[str, str], ...]
    host_name: str
    mac: str


@dataclass(frozen=True, slots=True)
class PodRecord:
    """The record of one pod in one store. ``found``: what was there before, whose name and interface are kept."""

    call: Call
    store: Datastore
    cluster: Cluster
    identity: Identity
    pod: Pod
    found: Entry | None

    @property
    def name(self) -> str:
        if self.found is not None:
            return str(self.found.value.name)
        return self.identity.endpoint_name()

    @property
    def profiles(self) -> list[str]:
        return list(self.pod.profiles) if self._follows_pods else [self.call.conf.name]

    @property
    def _follows_pods(self) -> bool:
        return self.call.conf.policy_type == KUBERNETES

    def endpoint(self, wired: Wired) -> Resource:
        """Return the record of a pod that is wired."""
        identity = self.identity
        spec: dict[str, Any] = {
            "orchestrator": identity.orchestrator,
            "node": identity.node,
            "containerID": identity.container_id,
            "pod": identity.pod,
            "endpoint": identity.ifname if self.found is None else self.found.value.spec.get("endpoint"),
            "serviceAccountName": self.pod.service_account,
            "ipNetworks": list(wired.networks),
            "ipNATs": [dict(nat) for nat in wired.nats],
            "profiles": self.profiles,
            "interfaceName": wired.host_name,
            "mac": wired.mac,
            "ports": [dict(port) for port in self.pod.ports],
            "allowSpoofedSourcePrefixes": list(self.pod.sources),
            "qosControls": dict(self.pod.qos),
        }
        forced = {"projectcalico.org/namespace": identity.namespace, "projectcalico.org/orchestrator": KUBERNETES}
        labels = dict(sorted({**self.pod.labels, **forced}.items()))
        filled = {key: value for key, value in spec.items() if value}
        made = Resource.new(WORKLOAD_ENDPOINT, self.name, filled, namespace=identity.namespace, labels=labels)
        extra = {"generateName": self.pod.generate_name, "uid": self.pod.uid if self._of_pods else ""}
        metadata = {**made.metadata, **{key: value for key, value in extra.items() if value}}
        return Resource(made.kind, made.name, {**made.document, "metadata": metadata}, made.namespace)

    @property
    def _of_pods(self) -> bool:
        return self.store.capabilities.endpoints_are_pods

    def write(self, endpoint: Resource) -> None:
        """Store the record. A lost answer is looked up before it counts as a failure (rulings 4). Raises CNIError."""
        if self._of_pods:
            self._annotate(endpoint)
        else:
            self._store(endpoint)

    def _annotate(self, endpoint: Resource) -> None:
        key = ResourceKey(WORKLOAD_ENDPOINT, endpoint.name, endpoint.namespace)
        try:
            self.store.within(Deadline.after(timers.RECORDS)).commit(Create(key, endpoint))
        except OutcomeUnknown:
            if not self._is_annotated(endpoint):
                raise
        except NotFound as error:
            raise CNIError(
                f"pod {self.identity.namespace}/{self.identity.pod} was deleted while its sandbox was set up: "
                f"{error.reason or error}",
                "Nothing was written to a pod of its name that was made since.",
            ) from error

    def _is_annotated(self, endpoint: Resource) -> bool:
        document = self._now()
        wanted = ",".join(endpoint.spec["ipNetworks"])
        return self._names_us(document) and annotations_of(document).get(POD_IPS) == wanted

    def _now(self) -> Mapping[str, Any]:
        """Return the pod as it is now, empty when it is gone."""
        try:
            bound = self.cluster.within(Deadline.after(timers.RECORDS))
            return bound.pod_now(self.identity.namespace, self.identity.pod)
        except NotFound:
            return {}

    def _names_us(self, document: Mapping[str, Any]) -> bool:
        """Tell whether a pod is the one that was read at first and names this container."""
        same = mapping(document.get("metadata")).get("uid") == self.pod.uid
        return same and annotations_of(document).get(CONTAINER_ID) == self.identity.container_id

    def _store(self, endpoint: Resource) -> None:
        key, found = ResourceKey(WORKLOAD_ENDPOINT, endpoint.name, endpoint.namespace), self.found
        for attempt in range(1, _TRIES + 1):
            bound = self.store.within(Deadline.after(timers.RECORDS))
            try:
                bound.commit(Create(key, endpoint) if found is None else Update(found, _over(found.value, endpoint)))
                return
            except OutcomeUnknown:
                stored = get_record(bound, endpoint.name, endpoint.namespace)
                if stored is not None and _says(stored.value, endpoint):
                    return
                raise
            except (Conflict, NotFound, AlreadyExists):
                if attempt == _TRIES:
                    raise
                found = get_record(bound, endpoint.name, endpoint.namespace)

    def forget(self) -> None:
        """Remove the record of a failed ADD, if it was written at all."""
        if self._of_pods:
            if self._names_us(self._now()):
                remove_annotations(self.call, self.store, self.cluster, self.identity)
            return
        stored = get_record(self.store, self.name, self.identity.namespace)
        if stored is not None:
            delete_endpoint(self.store, stored, self.identity.container_id)


def _over(old: Resource, new: Resource) -> Resource:
    """Return ``new`` with what the stored record holds beside it: its identity and fields that nobody here knows."""
    kept = {key: value for key, value in old.spec.items() if key not in _OF_POD}
    document = {**old.document, "metadata": {**old.metadata, **new.metadata}, "spec": {**kept, **new.spec}}
    return Resource(old.kind, old.name, document, old.namespace)


def _says(stored: Resource, wanted: Resource) -> bool:
    return all(stored.spec.get(name) == value for name, value in wanted.spec.items())


def remove_annotations(call: Call, store: Datastore, cluster: Cluster, identity: Identity) -> None:
    """Say on the pod that its address is gone, unless the pod or its container is another one by now (§9).

    The first try goes by what was read of the pod before. The container's ID stays, so that a repeated DEL still knows
    its sandbox. Raises CNIError.
    """
    for attempt in range(1, _TRIES + 1):
        bound = cluster.within(Deadline.after(timers.RECORDS))
        try:
            read = bound.pod if attempt == 1 else bound.pod_now
            document = read(identity.namespace, identity.pod)
        except NotFound:
            return
        if is_another(call, document):
            return
        record = bare_record(document, identity)
        if record is None or container_of(record) not in ("", identity.container_id):
            return
        if try_removal(store, record, last=attempt == _TRIES):
            return


def try_removal(store: Datastore, record: Entry, *, last: bool) -> bool:
    """Remove the annotations once; False: the pod was changed meanwhile, look again. Raises CNIError the last time."""
    try:
        store.within(Deadline.after(timers.RECORDS)).commit(Delete(record))
    except NotFound:
        return True
    except Conflict as error:
        if last:
            raise CNIError(
                f"error deleting endpoint: endpoint was modified before it could be deleted: {error}"
            ) from error
        return False
    except OutcomeUnknown:
        if last:
            raise
        return False
    return True
