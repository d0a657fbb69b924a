"""The Kubernetes API as the collector needs it: live reads in bulk, leases, events (gc §8, §18.2, §18.4)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from calico_gc.decide import UNREADABLE, LiveNode, Standing, Unreadable
from calico_gc.facts import Allocation, Pod, PodKey, VirtualMachines, kubernetes_name, live_pod
from calico_gc.timing import Clock
from calico_ipam.datastore.api import Damaged, Datastore, Entry, Listing
from calico_ipam.datastore.kube.api import KubeApi, Request
from calico_ipam.datastore.kube.errors import Expired
from calico_ipam.datastore.kube.objects import entry_of
from calico_ipam.datastore.kube.paths import collection_of
from calico_ipam.datastore.kube.store import KubernetesStore
from calico_ipam.errors import IPAMError, NotFound
from calico_ipam.model.keys import Handles, ResourceKey, Resources
from calico_ipam.model.resource import NODE, mapping

log = logging.getLogger(__name__)

PAGE = 500
#: so many pods of a namespace, or nodes, are read one by one; for more the whole list is read
FEW = 16
#: seconds for which a list that was read for one group of leaks also serves the next
LIST_SECONDS = 3.0


def pages(api: KubeApi, path: str, query: Mapping[str, str] | None = None) -> Iterator[tuple[list[Any], str]]:
    """Yield the items of a list page by page, each with the revision of the list. Raises the errors of the API.

    A continuation that expired begins again from the front, so an item may come twice.
    """
    asked = {**(query or {}), "limit": str(PAGE)}
    while True:
        try:
            found = api.call(Request("GET", path, asked), None)
        except Expired:
            if "continue" not in asked:
                raise
            asked = dict(query or {})
            continue
        metadata = mapping(found.get("metadata"))
        items = found.get("items")
        yield (items if isinstance(items, list) else []), str(metadata.get("resourceVersion") or "")
        token = metadata.get("continue")
        if not token:
            return
        asked = {**(query or {}), "limit": str(PAGE), "continue": str(token)}


def everything(api: KubeApi, path: str) -> Iterator[Mapping[str, Any]]:
    for items, _ in pages(api, path):
        yield from (mapping(item) for item in items)


def list_handles(store: KubernetesStore) -> Listing:
    """Return all handles, those included that are marked as deleted and were never removed (gc §18.1, class C2)."""
    collection = collection_of(Handles(), store.group)
    entries: dict[object, Entry] = {}
    damaged: list[Damaged] = []
    revision = ""
    for items, listed_at in pages(store.api, collection.path):
        revision = revision or listed_at
        for item in items:
            found = entry_of(collection.kind, mapping(item), store.group)
            if isinstance(found, Damaged):
                damaged.append(found)
            else:
                entries[found.key] = found
    return Listing(tuple(entries.values()), revision, tuple(damaged))


@dataclass
class _Listed:
    at: float
    pods: Mapping[PodKey, Pod]


@dataclass(frozen=True, slots=True)
class LivePods:
    """Pods that were read a moment ago; what could not be read is unreadable, never absent."""

    found: Mapping[PodKey, Pod | None]
    machines: VirtualMachines | None = None

    def pod(self, key: PodKey) -> Pod | Unreadable | None:
        return self.found.get(key, UNREADABLE)

    def container_gone(self, allocation: Allocation) -> bool:
        """Only a host without Kubernetes knows containers."""
        del allocation
        return False


@dataclass
class Cluster:
    """Live reads. ``calico``: the datastore that holds Calico's nodes, None where Kubernetes' nodes are those.

    ``machines``: virtual machines as the watch has them. Safe to share between threads.
    """

    api: KubeApi
    clock: Clock
    calico: Datastore | None
    machines: Any = lambda: None  #: () -> VirtualMachines | None
    _lists: dict[str, _Listed] = field(default_factory=dict)
    _singles: dict[str, tuple[float, int]] = field(
        default_factory=dict
    )  #: namespace -> reads one by one, and since when
    _sizes: dict[str, int] = field(default_factory=dict)  #: namespace -> pods that its last list had
    _listing: dict[str, threading.Lock] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    # --- pods ----------------------------------------------------------------------------------------------

    def workloads(self, pods: Collection[PodKey]) -> LivePods:
        """Return pods as they are now: by name, or where many of a namespace are asked for, by one list of it.

        Many may be asked for by one group of leaks, or by several within a few seconds.
        """
        by_namespace: dict[str, list[PodKey]] = {}
        for key in pods:
            by_namespace.setdefault(key[0], []).append(key)
        found: dict[PodKey, Pod | None] = {}
        for namespace, keys in by_namespace.items():
            try:
                if self._many(namespace, len(keys)):
                    listed = self._list(namespace)
                    found.update({key: listed.get(key) for key in keys})
                else:
                    found.update({key: self._read(key) for key in keys})
            except IPAMError as error:
                log.warning("pods of namespace %s cannot be read, their addresses are kept: %s", namespace, error)
        return LivePods(found, self.machines())

    def _many(self, namespace: str, number: int) -> bool:
        """Tell whether a list of the namespace is cheaper than reads of so many pods, or is there already."""
        now = self.clock.monotonic()
        if self._recent(namespace, now) is not None:
            return True
        with self._lock:
            since, count = self._singles.get(namespace, (now, 0))
            if now - since > LIST_SECONDS:
                since, count = now, 0
            # A list costs about a tenth of a read for each pod in it.
            if count + number > max(FEW, self._sizes.get(namespace, 0) // 10):
                return True
            self._singles[namespace] = since, count + number
            return False

    def _recent(self, namespace: str, now: float) -> _Listed | None:
        with self._lock:
            known = self._lists.get(namespace)
        return known if known is not None and now - known.at <= LIST_SECONDS else None

    def _list(self, namespace: str) -> Mapping[PodKey, Pod]:
        """Return all pods of a namespace; who comes while it is being listed waits for that list."""
        asked = self.clock.monotonic()
        with self._lock:
            turn = self._listing.setdefault(namespace, threading.Lock())
        with turn:
            known = self._recent(namespace, asked)
            if known is None:
                at = self.clock.monotonic()
                path = f"/api/v1/namespaces/{quote(namespace)}/pods"
                known = _Listed(at, {pod.key: pod for pod in map(live_pod, everything(self.api, path))})
                with self._lock:
                    self._lists = {k: v for k, v in self._lists.items() if at - v.at <= LIST_SECONDS}
                    self._lists[namespace] = known
                    self._sizes[namespace] = len(known.pods)
        return known.pods

    def _read(self, key: PodKey) -> Pod | None:
        path = f"/api/v1/namespaces/{quote(key[0])}/pods/{quote(key[1])}"
        try:
            return live_pod(self.api.call(Request("GET", path), None))
        except NotFound:
            return None

    # --- nodes ---------------------------------------------------------------------------------------------

    def nodes(self, names: Collection[str]) -> dict[str, LiveNode]:
        """Return what nodes are now. One that cannot be read is unknown."""
        if not names:
            return {}
        try:
            if self.calico is None:
                there = self._kube_nodes(names)
                return {
                    n: LiveNode(Standing.PRESENT, n, True) if n in there else LiveNode(Standing.GONE) for n in names
                }
            return self._calico_nodes(self.calico, names)
        except IPAMError as error:
            log.warning("nodes cannot be read and are looked at again later: %s", error)
            return dict.fromkeys(names, LiveNode(Standing.UNKNOWN))

    def _calico_nodes(self, store: Datastore, names: Collection[str]) -> dict[str, LiveNode]:
        if len(names) > FEW:
            entries = {entry.value.name: entry for entry in store.list(Resources(NODE))}
        else:
            keys = {name: ResourceKey(NODE, name) for name in names}
            snapshot = store.read(*keys.values())
            entries = {name: e for name, key in keys.items() if (e := snapshot.entry(key)) is not None}
        knodes = {name: kubernetes_name(entries[name].value) for name in names if name in entries}
        there = self._kube_nodes([kube for kube in knodes.values() if kube])
        found: dict[str, LiveNode] = {}
        for name in names:
            if name not in entries:
                found[name] = LiveNode(Standing.GONE)
            elif kube := knodes[name]:
                found[name] = LiveNode(Standing.PRESENT, kube, kube in there)
            else:
                found[name] = LiveNode(Standing.FOREIGN)
        return found

    def _kube_nodes(self, names: Collection[str]) -> set[str]:
        """Return which of some Kubernetes nodes exist."""
        wanted = set(names)
        if len(wanted) > FEW:
            there = {str(mapping(item.get("metadata")).get("name")) for item in everything(self.api, "/api/v1/nodes")}
            return wanted & there
        return {name for name in wanted if self._exists(name)}

    def _exists(self, name: str) -> bool:
        try:
            self.api.call(Request("GET", f"/api/v1/nodes/{quote(name)}"), None)
        except NotFound:
            return False
        return True
