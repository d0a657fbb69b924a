"""The Kubernetes API as the collector needs it: live reads in bulk, leases, events (gc §8, §18.2, §18.4)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

from calico_gc.decide import UNREADABLE, LiveNode, Standing, Unreadable
from calico_gc.facts import Allocation, Pod, PodKey, VirtualMachines, kubernetes_name, live_pod
from calico_gc.timing import Clock
from calico_ipam.datastore.api import Damaged, Datastore, Deadline, Entry, Listing
from calico_ipam.datastore.kube.api import KubeApi, Request
from calico_ipam.datastore.kube.errors import Expired, NotServed
from calico_ipam.datastore.kube.objects import entry_of
from calico_ipam.datastore.kube.paths import collection_of
from calico_ipam.datastore.kube.store import KubernetesStore
from calico_ipam.datastore.paths import path_of
from calico_ipam.errors import InvalidInput, IPAMError, NotFound, StoreDamaged, StoreError, TransientError
from calico_ipam.model.keys import ResourceKey, Resources, Scope
from calico_ipam.model.resource import NODE, mapping

log = logging.getLogger(__name__)

PAGE = 500
#: so many pods of a namespace of unknown size, or nodes, are read one by one; for more the whole list is read
FEW = 16
#: where the size is known, a list costs so many reads for each pod in it; reads are counted over so many seconds
LIST_COST, COUNTED_SECONDS = 0.1, 15.0
#: of so many namespaces at most something is remembered: they come and go for years
MOST_NAMESPACES = 1000
#: seconds for which a list that was read for one group of leaks also serves the next
LIST_SECONDS = 3.0
#: seconds for one request, the server's wishes to be asked later included
REQUEST_SECONDS = 30.0


def pages(api: KubeApi, path: str, query: Mapping[str, str] | None = None) -> Iterator[tuple[list[Any], str]]:
    """Yield the items of a list page by page, each with the revision of the list. Raises the errors of the API.

    A continuation that expired begins again from the front, so an item may come twice. An answer that is no list is an
    error: it must not pass for an empty one.
    """
    asked = {**(query or {}), "limit": str(PAGE)}
    while True:
        try:
            found = api.call(Request("GET", path, asked), Deadline.after(REQUEST_SECONDS))
        except Expired:
            if "continue" not in asked:
                raise
            asked = dict(query or {})
            continue
        metadata = mapping(found.get("metadata"))
        items = found.get("items", ...)
        items = [] if items is None else items  # so Go writes an empty list
        if not isinstance(items, list) or not str(found.get("kind")).endswith("List"):
            raise StoreError(
                f"the answer to GET {path} is no list of objects",
                subject=path,
                hint="Something else than the API server answers at this address, a proxy perhaps.",
            )
        yield items, str(metadata.get("resourceVersion") or "")
        token = metadata.get("continue")
        if not token:
            return
        asked = {**(query or {}), "limit": str(PAGE), "continue": str(token)}


def everything(api: KubeApi, path: str) -> Iterator[Mapping[str, Any]]:
    for items, _ in pages(api, path):
        yield from (mapping(item) for item in items)


def list_marked(store: KubernetesStore, scope: Scope) -> Listing:
    """Return all handles or blocks, those included that are marked as deleted and were never removed (gc §18.1)."""
    collection = collection_of(scope, store.group)
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
                    self._read_each(keys, found)
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
            if now - since > COUNTED_SECONDS:
                since, count = now, 0
            size = self._sizes.get(namespace)
            enough = FEW if size is None else max(1.0, size * LIST_COST)
            if len(self._singles) >= MOST_NAMESPACES:
                self._singles.clear()
                self._sizes.clear()
                self._listing.clear()
            self._singles[namespace] = since, count + number
            return count + number > enough  # and then lists go on being read, while so many are asked for

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
                path = f"/api/v1/namespaces/{segment(namespace)}/pods"
                known = _Listed(at, {pod.key: pod for pod in map(live_pod, everything(self.api, path))})
                with self._lock:
                    self._lists = {k: v for k, v in self._lists.items() if at - v.at <= LIST_SECONDS}
                    self._lists[namespace] = known
                    self._sizes[namespace] = len(known.pods)
        return known.pods

    def _read_each(self, keys: Collection[PodKey], found: dict[PodKey, Pod | None]) -> None:
        """Read pods one by one; the server's dislike of one name says nothing of the others."""
        for key in keys:
            try:
                found[key] = self._read(key)
            except TransientError:
                raise
            except IPAMError as error:
                log.warning("pod %s/%s cannot be read, its addresses are kept: %s", *key, error)

    def _read(self, key: PodKey) -> Pod | None:
        path = f"/api/v1/namespaces/{segment(key[0])}/pods/{segment(key[1])}"
        document = self._object(path)
        return None if document is None else live_pod(document)

    def _object(self, path: str) -> Mapping[str, Any] | None:
        """Return an object that Kubernetes always serves; None only when the API server itself says it is not there."""
        try:
            return self.api.call(Request("GET", path), Deadline.after(REQUEST_SECONDS))
        except NotServed:
            raise
        except NotFound:
            return None

    # --- nodes ---------------------------------------------------------------------------------------------

    def nodes(self, names: Collection[str]) -> dict[str, LiveNode]:
        """Return what nodes are now. One that cannot be read is unknown."""
        if not names:
            return {}
        try:
            if self.calico is not None:
                return self._calico_nodes(self.calico, names)
            there, gone = LiveNode(Standing.PRESENT, "", True), LiveNode(Standing.GONE)
            known = self._kube_nodes(names)
            return {n: _standing(known.get(n), replace(there, knode=n), gone) for n in names}
        except IPAMError as error:
            log.warning("nodes cannot be read and are looked at again later: %s", error)
            return dict.fromkeys(names, LiveNode(Standing.UNKNOWN))

    def _calico_nodes(self, store: Datastore, names: Collection[str]) -> dict[str, LiveNode]:
        keepable = {name for name in names if _keepable(name)}
        entries = _entries(store, keepable)
        knodes = {name: kubernetes_name(entry.value) for name, entry in entries.items() if isinstance(entry, Entry)}
        there = self._kube_nodes([kube for kube in knodes.values() if kube])
        found: dict[str, LiveNode] = {}
        for name in names:
            if name not in keepable:
                found[name] = LiveNode(Standing.UNKNOWN)  # and says nothing of the others
            elif name not in entries:
                found[name] = LiveNode(Standing.GONE)
            elif name not in knodes:
                found[name] = LiveNode(Standing.UNKNOWN)  # it exists, and cannot be understood
            elif kube := knodes[name]:
                here = LiveNode(Standing.PRESENT, kube, True)
                found[name] = _standing(there.get(kube), here, replace(here, exists=False))
            else:
                found[name] = LiveNode(Standing.FOREIGN)
        return found

    def _kube_nodes(self, names: Collection[str]) -> dict[str, bool]:
        """Return which of some Kubernetes nodes exist; those of which that cannot be told are left out."""
        wanted = set(names)
        if len(wanted) > FEW:
            there = {str(mapping(item.get("metadata")).get("name")) for item in everything(self.api, "/api/v1/nodes")}
            return {name: name in there for name in wanted}
        found = {}
        for name in wanted:
            try:
                found[name] = self._exists(name)
            except TransientError:
                raise
            except IPAMError as error:
                log.warning("node %s cannot be read and is looked at again later: %s", name, error)
        return found

    def _exists(self, name: str) -> bool:
        return self._object(f"/api/v1/nodes/{segment(name)}") is not None


def _standing(there: bool | None, here: LiveNode, gone: LiveNode) -> LiveNode:
    return LiveNode(Standing.UNKNOWN) if there is None else here if there else gone


def _keepable(name: str) -> bool:
    """Tell whether a store could have a node of this name; an allocation may name anything."""
    try:
        path_of(ResourceKey(NODE, name))
    except InvalidInput:
        return False
    return True


def _entries(store: Datastore, names: Collection[str]) -> dict[str, Entry | Damaged]:
    """Return Calico's nodes of some names, those included that cannot be understood."""
    keys = {ResourceKey(NODE, name): name for name in names}
    if len(keys) <= FEW:
        snapshot = store.read(*keys)
        try:
            return {name: entry for key, name in keys.items() if (entry := snapshot.entry(key)) is not None}
        except StoreDamaged:
            pass  # only a list tells which
    listing = store.list(Resources(NODE))
    if any(bad.key is None for bad in listing.damaged):
        raise StoreError("a node cannot be read, and not even its name is known", subject="Node")
    return {
        **{entry.value.name: entry for entry in listing if entry.key in keys},
        **{keys[bad.key]: bad for bad in listing.damaged if isinstance(bad.key, ResourceKey) and bad.key in keys},
    }


def segment(name: str) -> str:
    """Return a name as one segment of a path. Raises InvalidInput for one that leads elsewhere."""
    if name in ("", ".", ".."):
        raise InvalidInput(f"{name!r} is no name of an object", subject=name)
    return quote(name, safe="", errors="surrogatepass")
