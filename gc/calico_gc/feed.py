"""List and watch -> changes (gc §2, §18.6). One thread per kind; each says when its list is complete.

A source lists page by page and keeps of each object only its revision, so that what vanished while nobody looked is
told after the next list. Whatever goes wrong is tried again, longer and longer apart; nothing here ends by itself.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from calico_gc import intake
from calico_gc.intake import Change
from calico_gc.kinds import INSTANCES, MACHINES, NODES, PODS, Kind, calico_kind
from calico_gc.kube import REQUEST_SECONDS, pages
from calico_ipam.datastore.api import Datastore, Deadline
from calico_ipam.datastore.kube.api import KubeApi, Request
from calico_ipam.datastore.kube.codec import Group
from calico_ipam.datastore.kube.errors import Expired, history_gone
from calico_ipam.datastore.kube.objects import meta
from calico_ipam.datastore.kube.pages import check_history
from calico_ipam.errors import IPAMError, NotFound, StoreError
from calico_ipam.model.keys import Blocks, Resources, Scope
from calico_ipam.model.resource import (
    CLUSTER_INFORMATION,
    IP_POOL,
    IP_RESERVATION,
    KUBE_CONTROLLERS_CONFIGURATION,
    NODE,
    mapping,
)

log = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
#: seconds between looks for a kind that the server does not know
ABSENT_PAUSE = 60.0
KUBEVIRT_PAUSE = 30.0
#: the server ends a watch after so many seconds and it is made again
WATCH_SECONDS, GRACE = 290.0, 15.0
SYNCED, SYNCING, BROKEN = "synced", "syncing", "broken"

#: what of Calico's is followed; nodes only where they are Calico's own
CALICO = (
    Blocks(),
    Resources(IP_POOL),
    Resources(IP_RESERVATION),
    Resources(CLUSTER_INFORMATION),
    Resources(KUBE_CONTROLLERS_CONFIGURATION),
)


class Sink(Protocol):
    def put(self, change: Change) -> None: ...


class Source:
    """A thread that follows one kind. Subclasses list and watch; this class is patient."""

    def __init__(self, name: str, sink: Sink) -> None:
        self.name = name
        self._sink = sink
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run_or_tell, name=f"feed-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def _run_or_tell(self) -> None:
        """A source that ends while the collector goes on would leave it with a picture that grows old."""
        try:
            self._run()
        except Exception as error:
            self._sink.put(Change(BROKEN, self.name, error))

    def _run(self) -> None:
        pause = FIRST_PAUSE
        while not self._stop.is_set():
            try:
                self._sink.put(Change(SYNCING, self.name))
                self._list()
                self._sink.put(Change(SYNCED, self.name, True))
                self._watch()
                pause = FIRST_PAUSE
            except Expired as error:
                log.info("%s: %s; listing again", self.name, error)
                pause = FIRST_PAUSE
            except IPAMError as error:
                if isinstance(error, NotFound) and self._vanished():
                    self._sink.put(Change(SYNCED, self.name, True))
                    if self._stop.wait(ABSENT_PAUSE):
                        return
                    continue
                if self._stop.is_set():
                    return  # whoever stopped it may have closed what it reads
                log.warning("%s cannot be followed, again in %.0f s: %s", self.name, pause, error)
                if self._stop.wait(pause):
                    return
                pause = min(LONGEST_PAUSE, pause * 2)
                continue
            if self._stop.wait(0.5):
                return

    def _list(self) -> None:
        raise NotImplementedError

    def _watch(self) -> None:
        raise NotImplementedError

    def _vanished(self) -> bool:
        """The server knows no such kind (any more); tell whether that may be."""
        return False


class KubeSource(Source):
    """Follows a collection of the Kubernetes API."""

    def __init__(self, api: KubeApi, kind: Kind, sink: Sink) -> None:
        super().__init__(kind.name, sink)
        self._api = api
        self._kind = kind
        self._known: dict[str, tuple[str, Change]] = {}  #: namespace/name -> revision, what tells that it is gone
        self._revision = ""
        self._response: Any = None

    def stop(self) -> None:
        super().stop()
        response = self._response
        if response is not None:
            try:
                response.shutdown()
            except (OSError, ValueError, RuntimeError, TypeError) as error:  # TypeError: closed in this very moment
                log.debug("the watch of %s had ended: %s", self.name, error)

    def _list(self) -> None:
        seen: set[str] = set()
        self._revision = ""
        for items, revision in pages(self._api, self._kind.path):
            self._revision = self._revision or revision
            for item in items:
                document = mapping(item)
                name = _name(document)
                seen.add(name)
                if self._known.get(name, ("",))[0] != meta(document, "resourceVersion"):
                    self._told(name, document)
        for name in [name for name in self._known if name not in seen]:
            self._sink.put(self._known.pop(name)[1])

    def _vanished(self) -> bool:
        if self._kind.optional:
            for _, gone in self._known.values():
                self._sink.put(gone)
            self._known.clear()
        return self._kind.optional

    def _told(self, name: str, document: Mapping[str, Any]) -> None:
        change, gone = self._kind.change(document), self._kind.gone(document)
        before = self._known.get(name)
        if before is not None and gone is not None and before[1].kind != gone.kind:
            self._sink.put(before[1])  # it could not be read and now can, or the other way round
        if gone is not None:
            self._known[name] = meta(document, "resourceVersion"), gone
        if change is not None:
            self._sink.put(change)

    def _watch(self) -> None:
        while not self._stop.is_set():
            query = {
                "watch": "true",
                "allowWatchBookmarks": "true",
                "resourceVersion": self._revision,
                "timeoutSeconds": str(int(WATCH_SECONDS)),
            }
            request = Request("GET", self._kind.path, query, verb="watch")
            response = self._response = self._api.open_stream(request, WATCH_SECONDS + GRACE)
            silent = True
            try:
                if self._stop.is_set():
                    return  # while it was opened, when there was nothing yet to shut down
                for line in _lines(response):
                    silent = False
                    self._event(line)
                    if self._stop.is_set():
                        return
            finally:
                self._response = None
                response.close()
            if silent and not self._stop.is_set():
                check_history(self._call, self._kind.path, {}, self._revision)
            self._stop.wait(0.1)  # a server that ends each watch at once is not asked in a loop

    def _call(self, request: Request) -> dict[str, Any]:
        return self._api.call(request, Deadline.after(REQUEST_SECONDS))

    def _event(self, line: bytes) -> None:
        try:
            raw = mapping(json.loads(line))
        except ValueError:
            raise StoreError(f"the watch of {self.name} speaks no JSON") from None
        kind, document = str(raw.get("type")), mapping(raw.get("object"))
        if kind == "ERROR":
            text = str(document.get("message") or "no reason given")
            if history_gone(document):
                raise Expired(text)
            raise StoreError(f"the watch of {self.name} failed: {text}")
        self._revision = meta(document, "resourceVersion") or self._revision
        if kind == "BOOKMARK":
            return
        name = _name(document)
        if kind == "DELETED":
            self._known.pop(name, None)
            gone = self._kind.gone(document)
            if gone is not None:
                self._sink.put(gone)
        else:
            self._told(name, document)


def _name(document: Mapping[str, Any]) -> str:
    return f"{meta(document, 'namespace')}/{meta(document, 'name')}"


def _lines(response: Any) -> Iterator[bytes]:
    """Yield the lines of a watch as they come; ends when the server ends it, or the line breaks."""
    from urllib3.exceptions import HTTPError

    rest = b""
    try:
        for piece in response.stream(amt=None):
            *lines, rest = (rest + piece).split(b"\n")
            yield from (line for line in lines if line.strip())
    except (HTTPError, OSError, ValueError) as error:  # ValueError: the socket was closed under it
        log.debug("a watch broke: %s", error)


class DatastoreSource(Source):
    """Follows a scope of etcd or SQLite, whose watch tells what it missed by itself."""

    def __init__(self, store: Datastore, scope: Scope, sink: Sink) -> None:
        super().__init__(_scope_name(scope), sink)
        self._store = store
        self._scope = scope
        self._revision = ""
        self._known: dict[tuple[str, Any], tuple[str, Change]] = {}
        self._events: Any = None

    def stop(self) -> None:
        super().stop()
        events = self._events
        if events is not None:
            events.close()

    def _list(self) -> None:
        listing = self._store.list(self._scope)
        self._revision = listing.revision
        current = {}
        for change, gone, revision in (
            *((intake.stored(entry), intake.removed(entry), entry.revision) for entry in listing),
            *((intake.damaged(bad), intake.mended(bad), bad.revision) for bad in listing.damaged),
        ):
            if change is not None and gone is not None:
                current[change.kind, change.key] = revision, change, gone
        # What is gone is told first: an object that cannot be read any more is gone as what it was.
        for key in [key for key in self._known if key not in current]:
            self._sink.put(self._known.pop(key)[1])
        for key, (revision, change, gone) in current.items():
            if key not in self._known or self._known[key][0] != revision:
                self._known[key] = revision, gone
                self._sink.put(change)

    def _watch(self) -> None:
        events: Any = self._store.watch(self._scope, self._revision)
        self._events = events
        if self._stop.is_set():
            events.close()  # it was stopped meanwhile, when there was nothing yet to close
        for event in events:
            if self._stop.is_set():
                return
            change = intake.from_event(event)
            if change is None:
                continue
            gone = intake.mended(event.damaged) if event.damaged is not None else None
            if event.entry is not None:
                gone = intake.removed(event.entry)
            if change.value is None:
                self._known.pop((change.kind, change.key), None)
            elif gone is not None:
                self._known[change.kind, change.key] = event.revision, gone
            self._sink.put(change)


def _scope_name(scope: Scope) -> str:
    return scope.kind if isinstance(scope, Resources) else "IPAMBlock"


class KubeVirt(Source):
    """Looks for KubeVirt, and follows its machines once it is there (gc §1.4). Absent counts as in sync."""

    def __init__(self, api: KubeApi, sink: Sink) -> None:
        super().__init__("kubevirt", sink)
        self._api = api
        self._inner: list[KubeSource] = []

    def stop(self) -> None:
        super().stop()
        for source in self._inner:
            source.stop()

    def _run(self) -> None:
        self._sink.put(Change(SYNCED, self.name, True))
        while not self._inner:
            try:
                self._look()
            except IPAMError as error:
                log.warning("whether KubeVirt is there cannot be told, its addresses are kept: %s", error)
            if self._stop.wait(KUBEVIRT_PAUSE):
                return

    def _look(self) -> None:
        try:
            self._api.call(Request("GET", "/apis/kubevirt.io"), Deadline.after(REQUEST_SECONDS))
        except NotFound:
            return
        if not self._stop.is_set():
            log.info("KubeVirt is there: its virtual machines are followed")
            synced: set[str] = set()
            relay = _Relay(self._sink, synced, {MACHINES.name, INSTANCES.name})
            self._inner = [KubeSource(self._api, kind, relay) for kind in (MACHINES, INSTANCES)]
            for source in self._inner:
                source.start()
            if self._stop.is_set():
                self.stop()  # again: meanwhile there may have been nobody to pass it on to


class _Relay:
    """Passes changes on; machines count as known once both kinds have been listed."""

    def __init__(self, sink: Sink, synced: set[str], wanted: set[str]) -> None:
        self._sink = sink
        self._synced = synced
        self._wanted = wanted

    def put(self, change: Change) -> None:
        if change.kind == SYNCING:
            self._synced.discard(str(change.key))
            self._sink.put(Change(intake.MACHINES_THERE, "", False))
        elif change.kind == SYNCED:
            self._synced.add(str(change.key))
            if self._synced == self._wanted:
                self._sink.put(Change(intake.MACHINES_THERE, "", True))
        else:
            self._sink.put(change)


def sources(
    store: Datastore, group: Group | None, store_api: KubeApi | None, api: KubeApi | None, sink: Sink
) -> list[Source]:
    """Return what has to be followed. ``group`` and ``store_api``: of a store that is the Kubernetes API."""
    found: list[Source] = []
    for scope in CALICO:
        if group is not None and store_api is not None:
            found.append(KubeSource(store_api, calico_kind(scope, group), sink))
        else:
            found.append(DatastoreSource(store, scope, sink))
    if group is None:
        found.append(DatastoreSource(store, Resources(NODE), sink))
    if api is not None:
        found += [KubeSource(api, NODES, sink), KubeSource(api, PODS, sink), KubeVirt(api, sink)]
    return found
