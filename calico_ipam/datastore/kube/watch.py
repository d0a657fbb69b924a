"""Following changes in the Kubernetes API: resumes, lists again when history is gone (datastore §7)."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from calico_ipam.datastore.api import Damaged, Entry, Event, Listing, Revision
from calico_ipam.datastore.kube.api import KubeApi, Request
from calico_ipam.datastore.kube.errors import Expired
from calico_ipam.datastore.kube.paths import collection_of
from calico_ipam.errors import IPAMError, StoreError, StoreUnavailable
from calico_ipam.model.keys import Key, Scope
from calico_ipam.model.resource import mapping

if TYPE_CHECKING:
    from calico_ipam.datastore.kube.store import KubernetesStore

log = logging.getLogger(__name__)

#: one watch request lasts so long, in seconds, and is then made again
WATCH_SECONDS = 300.0
LONGEST_PAUSE = 30.0


def watch(store: KubernetesStore, api: KubeApi, scope: Scope, since: Revision) -> Iterator[Event]:
    """Yield what changes in ``scope`` after ``since``. Closing the iterator ends it."""
    from calico_ipam.datastore.kube.store import within_scope

    known: dict[Key, Entry] = {}
    revision, pause = since, 0.0
    if not revision:
        listing = store.list(scope)
        yield from _relisted(known, listing)
        revision = listing.revision
    while True:
        if pause:
            time.sleep(pause)
        progressed = False
        try:
            for raw in _events(store, api, scope, revision):
                progressed = True
                kind, document = str(raw.get("type")), mapping(raw.get("object"))
                if kind == "ERROR":
                    code = document.get("code")
                    if code == 410:
                        raise Expired(str(document.get("message")))
                    raise StoreError(f"the watch of {scope} failed: {document.get('message')}")
                revision = str(mapping(document.get("metadata")).get("resourceVersion") or revision)
                if kind == "BOOKMARK":
                    yield Event("bookmark", revision)
                    continue
                event = _event(store, scope, kind, document, known, revision)
                if event is not None and (event.entry is None or within_scope(scope, event.entry)):
                    yield event
            pause = 0.0 if progressed else 1.0
        except Expired:
            listing = store.list(scope)
            yield from _relisted(known, listing)
            revision, pause = listing.revision, 0.5
        except (StoreUnavailable, StoreError) as error:
            pause = min(LONGEST_PAUSE, pause * 2 or 0.5)
            log.warning("watch of %s interrupted, again in %.1f s: %s", scope, pause, error)


def _events(store: KubernetesStore, api: KubeApi, scope: Scope, revision: Revision) -> Iterator[dict[str, Any]]:
    collection = collection_of(scope, store.group)
    query = {
        **collection.query,
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": revision,
        "timeoutSeconds": str(int(WATCH_SECONDS)),
    }
    try:
        yield from api.stream(Request("GET", collection.path, query), WATCH_SECONDS + 30)
    except IPAMError:
        raise
    except OSError as error:
        raise StoreUnavailable(f"the watch of {scope} broke: {error}") from error


def _event(
    store: KubernetesStore,
    scope: Scope,
    kind: str,
    document: Mapping[str, Any],
    known: dict[Key, Entry],
    revision: Revision,
) -> Event | None:
    found = store._decode(collection_of(scope, store.group).kind, document)
    if isinstance(found, Damaged):
        return Event("damaged", revision, damaged=found)
    if found is None:
        # Marked as deleted: for us it is gone now, and the removal that follows says nothing new.
        gone = next((e for e in known.values() if e.uid == mapping(document.get("metadata")).get("uid")), None)
        if gone is None:
            return None
        del known[gone.key]
        return Event("deleted", revision, gone)
    if kind == "DELETED":
        return Event("deleted", revision, known.pop(found.key, found))
    first = kind == "ADDED" and found.key not in known
    known[found.key] = found
    return Event("added" if first else "modified", revision, found)


def _relisted(known: dict[Key, Entry], listing: Listing) -> Iterator[Event]:
    """Yield what a new list says against what was known: additions, changes, and removals that were missed."""
    now = {entry.key: entry for entry in listing}
    for key in [key for key in known if key not in now]:
        yield Event("deleted", listing.revision, known.pop(key))
    for damaged in listing.damaged:
        yield Event("damaged", listing.revision, damaged=damaged)
    for key, entry in now.items():
        before = known.get(key)
        known[key] = entry
        if before is None:
            yield Event("added", listing.revision, entry)
        elif before.revision != entry.revision:
            yield Event("modified", listing.revision, entry)
