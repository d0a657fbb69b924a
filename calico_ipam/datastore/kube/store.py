"""The Kubernetes API behind the datastore contract (datastore §5).

Writes go one by one in the order given. A delete is one request that carries the UID *and* the resource version of what
was read, so nothing made or changed since is ever removed (datastore §14.2): the two steps of upstream, marking and
removing, are not needed, and rows that upstream has marked are finished and never shown.
"""

from __future__ import annotations

import builtins
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

from calico_ipam.datastore.api import (
    Capabilities,
    Create,
    Damaged,
    Datastore,
    Deadline,
    Delete,
    Entry,
    Event,
    Listing,
    Loss,
    Revision,
    Snapshot,
    Update,
    Value,
    Write,
    damaged_error,
    losing,
)
from calico_ipam.datastore.gojson import BadDocument
from calico_ipam.datastore.kube import codec, pods
from calico_ipam.datastore.kube.api import MERGE, STRATEGIC_MERGE, KubeApi, Request
from calico_ipam.datastore.kube.codec import V1, V3, Group
from calico_ipam.datastore.kube.errors import Expired
from calico_ipam.datastore.kube.paths import Collection, Place, collection_of, place_of
from calico_ipam.datastore.settings import Settings
from calico_ipam.errors import (
    AlreadyExists,
    Conflict,
    InvalidInput,
    IPAMError,
    NotFound,
    NotSupported,
    OutcomeUnknown,
)
from calico_ipam.model.keys import (
    Affinities,
    AffinityKey,
    BlockKey,
    Blocks,
    HandleKey,
    Key,
    ResourceKey,
    Resources,
    Scope,
)
from calico_ipam.model.resource import NODE, WORKLOAD_ENDPOINT, Resource, mapping

log = logging.getLogger(__name__)

PAGE = 500
#: requests of one ``read`` that are under way at once
SIDE_BY_SIDE = 8


class KubernetesStore(Datastore):
    """Custom resources, nodes and pods of one API server."""

    def __init__(self, settings: Settings) -> None:
        self._api = KubeApi(settings)
        self._deadline: Deadline | None = None
        self._shared = _Shared(settings.calico_api_group)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(atomic=False)

    @property
    def name(self) -> str:
        return f"kubernetes://{self._api.server.partition('://')[2]}"

    def within(self, deadline: Deadline | None) -> Self:
        view = type(self).__new__(type(self))
        view._api, view._shared, view._deadline = self._api, self._shared, deadline
        return view

    def close(self) -> None:
        self._shared.close()
        self._api.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    @property
    def group(self) -> Group:
        """Which API group holds the data: as set, else found out once (datastore §8)."""
        return self._shared.group(self._discover)

    def _discover(self) -> Group:
        try:
            found = self._api.call(Request("GET", "/apis"), self._deadline)
        except IPAMError as error:
            log.warning("API groups cannot be listed, taking %s: %s", V1, error)
            return Group(V1)
        groups = {str(mapping(g).get("name")) for g in found.get("groups") or ()}
        v3_only = V3.partition("/")[0] in groups and V1.partition("/")[0] not in groups
        return Group(V3 if v3_only else V1)

    # --- reading -------------------------------------------------------------------------------------------

    def get(self, key: Key) -> Entry:
        found = self._find(key)
        if found is None:
            raise NotFound(str(key))
        if isinstance(found, Damaged):
            raise damaged_error(found)
        return found

    def read(self, *wanted: Key | Scope) -> Snapshot:
        distinct = list(dict.fromkeys(wanted))
        # Legality of names is checked before the first request: nothing half-done for a name that cannot be.
        asked: list[tuple[Key | Scope, Callable[[], Entry | Damaged | Listing | None]]] = []
        for item in distinct:
            if isinstance(item, Scope):
                asked.append((item, lambda scope=item: self.list(scope)))  # type: ignore[misc]  # bound as default
            else:
                place_of(item, self.group)
                asked.append((item, lambda key=item: self._find(key)))  # type: ignore[misc]  # bound as default
        answers = self._shared.side_by_side([call for _, call in asked])
        return Snapshot(dict(zip(distinct, answers, strict=True)), "")

    def list(self, scope: Scope) -> Listing:
        if isinstance(scope, Resources) and scope.kind == WORKLOAD_ENDPOINT and scope.prefix and scope.namespace:
            return self._endpoint_of_pod(scope)
        items, revision = self._pages(collection_of(scope, self.group))
        return self._listing(scope, items, revision)

    def _pages(self, collection: Collection) -> tuple[builtins.list[Mapping[str, Any]], Revision]:
        """Return all items of a list, page by page; a page whose continuation expired begins again, unpaged."""
        items: list[Mapping[str, Any]] = []
        query = {**collection.query, "limit": str(PAGE)}
        revision = ""
        while True:
            try:
                found = self._api.call(Request("GET", collection.path, query), self._deadline)
            except NotFound:
                return [], ""  # the definition is not installed: nothing is stored
            except Expired:
                if "continue" not in query:
                    raise
                items, query = [], dict(collection.query)
                continue
            metadata = mapping(found.get("metadata"))
            revision = revision or str(metadata.get("resourceVersion") or "")
            items += [mapping(item) for item in found.get("items") or ()]
            token = metadata.get("continue")
            if not token:
                return items, revision
            query = {**collection.query, "limit": str(PAGE), "continue": str(token)}

    def _listing(self, scope: Scope, items: builtins.list[Mapping[str, Any]], revision: Revision) -> Listing:
        kind = collection_of(scope, self.group).kind
        entries, damaged = [], []
        for item in sorted(items, key=lambda i: (_meta(i, "namespace"), _meta(i, "name"))):
            found = self._decode(kind, item)
            if isinstance(found, Damaged):
                log.warning("%s cannot be understood and counts as in use: %s", found.path, found.reason)
                damaged.append(found)
            elif found is not None and within_scope(scope, found):
                entries.append(found)
        return Listing(tuple(entries), revision, tuple(damaged))

    def _endpoint_of_pod(self, scope: Resources) -> Listing:
        """The plugin may not list pods: an endpoint name names its pod, which is read alone (datastore §9)."""
        try:
            place = place_of(ResourceKey(WORKLOAD_ENDPOINT, scope.prefix, scope.namespace or ""), self.group)
        except InvalidInput:
            raise NotFound(
                f"{WORKLOAD_ENDPOINT}({scope.namespace}/{scope.prefix})",
                "malformed WorkloadEndpoint name - unable to determine Pod name",
            ) from None
        try:
            pod = self._api.call(Request("GET", place.path), self._deadline)
        except NotFound:
            return Listing((), "")
        found = self._decode(WORKLOAD_ENDPOINT, pod)
        if isinstance(found, Damaged):
            return Listing((), "", (found,))
        fits = found is not None and found.value.name.startswith(scope.prefix)
        return Listing((found,) if found is not None and fits else (), _meta(pod, "resourceVersion"))

    def _find(self, key: Key) -> Entry | Damaged | None:
        place = place_of(key, self.group)
        try:
            document = self._api.call(Request("GET", place.path), self._deadline)
        except NotFound:
            return None
        found = self._decode(place.kind, document)
        if found is None:
            self._finish_delete(place, document)
            return None
        if isinstance(found, Damaged):
            return found
        if found.key != key:
            if isinstance(key, ResourceKey) and key.kind == WORKLOAD_ENDPOINT:
                return None  # the pod runs on another node
            return Damaged(key, place.path, f"the object of this name is {found.key}", "")
        return found

    def _finish_delete(self, place: Place, document: Mapping[str, Any]) -> None:
        """Remove a row that upstream marked as deleted and did not live to remove; failing is nobody's problem."""
        try:
            self._delete(place, _meta(document, "uid"), _meta(document, "resourceVersion"))
        except IPAMError as error:
            log.info("%s is marked as deleted and stays for now: %s", place.path, error)

    def _decode(self, kind: str, document: Mapping[str, Any]) -> Entry | Damaged | None:
        """Return the entry of an object; None when it is marked as deleted."""
        revision, uid = _meta(document, "resourceVersion"), _meta(document, "uid")
        try:
            if kind == WORKLOAD_ENDPOINT:
                endpoint = pods.endpoint_of(document)
                key: Key = ResourceKey(WORKLOAD_ENDPOINT, endpoint.name, endpoint.namespace)
                return Entry(key, endpoint, revision, uid, document)
            if kind == NODE:
                node = pods.node_of(document)
                return Entry(ResourceKey(NODE, node.name), node, revision, uid, document)
            key = codec.key_of(kind, document)
            value = codec.decode(key, document, self.group)
        except (BadDocument, InvalidInput) as error:
            return Damaged(None, f"{kind}/{_meta(document, 'namespace')}/{_meta(document, 'name')}", str(error), "")
        if not isinstance(value, Resource) and getattr(value, "deleted", False):
            return None
        return Entry(key, value, revision, uid, document)

    # --- writing -------------------------------------------------------------------------------------------

    def commit(self, *writes: Write) -> builtins.list[Entry]:
        for write in writes:
            place_of(write.key, self.group)
        done: list[Entry] = []
        for write in writes:
            try:
                done.append(self._write(write))
            except IPAMError as error:
                raise losing(_worded(error, write), Loss(write, tuple(done))) from error
        return done

    def _write(self, write: Write) -> Entry:
        place = place_of(write.key, self.group)
        match write:
            case _ if place.kind == WORKLOAD_ENDPOINT:
                return self._write_endpoint(place, write)
            case _ if place.kind == NODE:
                return self._write_node(place, write)
            case Create(key, value):
                document = codec.encode(key, value, self.group, place.name, None)
                return self._stored(
                    key, value, self._api.call(Request("POST", place.collection, body=document), self._deadline)
                )
            case Update(entry, value):
                document = codec.encode(entry.key, value, self.group, place.name, entry.origin)
                document["metadata"]["resourceVersion"] = entry.revision
                answer = self._api.call(Request("PUT", place.path, body=document), self._deadline)
                return self._stored(entry.key, value, answer)
            case Delete(entry):
                self._delete(place, entry.uid, entry.revision)
                return entry
        raise AssertionError("a write is one of three")

    def _stored(self, key: Key, value: Value, answer: Mapping[str, Any]) -> Entry:
        stored = value if not isinstance(value, Resource) else codec.decode(key, answer, self.group)
        return Entry(key, stored, _meta(answer, "resourceVersion"), _meta(answer, "uid"), answer)

    def _delete(self, place: Place, uid: str, revision: str) -> None:
        conditions = {k: v for k, v in (("uid", uid), ("resourceVersion", revision)) if v}
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": conditions}
        self._api.call(Request("DELETE", place.path, body=body), self._deadline)

    def _write_endpoint(self, place: Place, write: Write) -> Entry:
        """An endpoint is a pod: writing it tells the pod's address in annotations (datastore §9)."""
        if isinstance(write, Delete):
            patch = pods.removal_patch(write.entry.revision, write.entry.uid)
        else:
            assert isinstance(write.value, Resource)  # noqa: S101 - the key says what it is
            patch = pods.address_patch(write.value)
        request = Request("PATCH", f"{place.path}/status", body=patch, content_type=STRATEGIC_MERGE)
        answer = self._api.call(request, self._deadline)
        value = write.entry.value if isinstance(write, Delete) else write.value
        return Entry(write.key, value, _meta(answer, "resourceVersion"), _meta(answer, "uid"), answer)

    def _write_node(self, place: Place, write: Write) -> Entry:
        if not isinstance(write, Update):
            raise NotSupported("Create" if isinstance(write, Create) else "Delete", str(write.key))
        assert isinstance(write.value, Resource)  # noqa: S101 - the key says what it is
        patch = pods.node_patch(write.entry.value, write.value, write.entry.revision)
        answer = self._api.call(
            Request("PATCH", f"{place.path}/status", body=patch, content_type=MERGE), self._deadline
        )
        return Entry(write.key, pods.node_of(answer), _meta(answer, "resourceVersion"), _meta(answer, "uid"), answer)

    # --- watching ------------------------------------------------------------------------------------------

    def watch(self, scope: Scope, since: Revision) -> Iterator[Event]:
        from calico_ipam.datastore.kube.watch import watch

        return watch(self, self._api, scope, since)


class _Shared:
    """What the views of one store share: the API group, and threads for requests side by side."""

    def __init__(self, group: str) -> None:
        self._lock = threading.Lock()
        self._group: Group | None = None
        if group:
            self._group = Group(V3 if group.lower() == V3 else V1)
        self._threads: ThreadPoolExecutor | None = None
        self._pid = 0

    def group(self, discover: Callable[[], Group]) -> Group:
        if self._group is None:
            found = discover()
            with self._lock:
                self._group = self._group or found
        return self._group

    def side_by_side(self, calls: list[Callable[[], Any]]) -> list[Any]:
        """Return the results of calls that run at once; the first error in the order given is raised."""
        if len(calls) == 1:
            return [calls[0]()]
        with self._lock:
            if self._threads is None or self._pid != os.getpid():
                self._threads = ThreadPoolExecutor(SIDE_BY_SIDE, thread_name_prefix="calico-ipam-read")
                self._pid = os.getpid()
            threads = self._threads
        # The last call runs here: one thread fewer to wake up.
        futures: list[Future[Any]] = [threads.submit(call) for call in calls[:-1]]
        try:
            last = calls[-1]()
        finally:
            results = [future.exception() or future.result() for future in futures]
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return [*results, last]

    def close(self) -> None:
        with self._lock:
            threads, self._threads = self._threads, None
        if threads is not None and self._pid == os.getpid():
            threads.shutdown(wait=False, cancel_futures=True)


def within_scope(scope: Scope, entry: Entry) -> bool:
    """Tell whether an entry belongs to a scope: label selectors and paths only sieve (datastore §3.2)."""
    key = entry.key
    match scope:
        case Blocks(version):
            return isinstance(key, BlockKey) and version in (None, key.cidr.version)
        case Affinities(kind, host, version):
            return (
                isinstance(key, AffinityKey)
                and kind in (None, key.owner.kind)
                and host in (None, key.owner.host)
                and version in (None, key.cidr.version)
            )
        case Resources(namespace=namespace, prefix=prefix):
            shown = not isinstance(key, ResourceKey) or key.kind != WORKLOAD_ENDPOINT or pods.exposed(entry.origin)
            return shown and (
                isinstance(key, ResourceKey) and namespace in (None, key.namespace) and key.name.startswith(prefix)
            )
        case _:
            return isinstance(key, HandleKey)


def _meta(document: Mapping[str, Any], name: str) -> str:
    return str(mapping(document.get("metadata")).get(name) or "")


def _worded(error: IPAMError, write: Write) -> IPAMError:
    """Name the object by its key instead of by its path, as every backend does."""
    subject = str(write.key)
    match error:
        case AlreadyExists(reason=reason):
            return AlreadyExists(subject, reason)
        case NotFound(reason=reason):
            return NotFound(subject, reason)
        case Conflict(reason=reason):
            return Conflict(subject, reason)
        case OutcomeUnknown():
            error.subject = subject
    return error
