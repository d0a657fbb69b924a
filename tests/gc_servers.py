"""Recorded collector cases on real servers: loading them, running a collector in this process, comparing the end."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from calico_gc.assembly import Collector, Place
from calico_gc.once import ShiftedClock
from calico_gc.settings import Settings
from calico_gc.timing import SystemClock

from calico_ipam.datastore.api import Datastore
from calico_ipam.datastore.documents import DocumentStore, RawWrite
from calico_ipam.datastore.kube.api import KubeApi
from calico_ipam.datastore.kube.store import KubernetesStore
from calico_ipam.model.keys import Affinities, Blocks, Handles, Key
from tests.clock import LONG
from tests.kube_tools import KubeServer

PLURALS = {"BlockAffinity": "blockaffinities"}


def clear_pods(kube: KubeServer) -> None:
    """Remove all pods, finalizers or not."""
    for pod in kube.get("/api/v1/pods")["items"]:
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        if metadata.get("finalizers"):
            patch = {"metadata": {"finalizers": None}}
            kube.done("PATCH", path, patch, content_type="application/merge-patch+json")
        kube.delete(path)


def load_entry(kube: KubeServer, store: Datastore, entry: Mapping[str, Any]) -> None:
    """Make one entry of a recording true: a key of etcd, or an object of the API."""
    if "key" in entry:
        assert isinstance(store, DocumentStore)
        put_text(store, entry["key"], entry.get("value"))
        return
    document = json.loads(json.dumps(entry["k8s"]))
    kind, name = document["kind"], document["metadata"]["name"]
    if kind == "Pod":
        _pod(kube, document, gone=bool(entry.get("delete")))
    elif kind == "Node":
        path = f"/api/v1/nodes/{name}"
        kube.delete(path) if entry.get("delete") else kube.put(path, document)
    else:
        path = f"{kube.collection(PLURALS.get(kind, f'{kind.lower()}s'))}/{name}"
        kube.delete(path) if entry.get("delete") else kube.put(path, document)


def put_text(store: DocumentStore, path: str, value: Any) -> None:
    (row,), _, _ = store._raw_read((path,), ())
    if value is None:
        if row is not None:
            store._raw_commit((RawWrite("delete", path, expected=row.revision),))
        return
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    write = RawWrite("create", path, text) if row is None else RawWrite("update", path, text, row.revision)
    store._raw_commit((write,))


def _pod(kube: KubeServer, document: dict[str, Any], *, gone: bool) -> None:
    namespace, name = document["metadata"].get("namespace", "default"), document["metadata"]["name"]
    path = f"/api/v1/namespaces/{namespace}/pods"
    if gone:
        kube.delete(f"{path}/{name}")
        return
    account = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
    kube.put(account, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}})
    status = document.pop("status", None)
    document["spec"]["automountServiceAccountToken"] = False
    kube.create(path, document)
    if status:
        kube.done("PATCH", f"{path}/{name}/status", {"status": status}, content_type="application/merge-patch+json")


def read_case(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def stored(store: Datastore) -> dict[Key, Any]:
    """Return all blocks, affinity rows and handles."""
    return {entry.key: entry.value for scope in (Blocks(), Affinities(), Handles()) for entry in store.list(scope)}


def place_of(kube: KubeServer, store: Datastore, instance: str = "test", **more: Any) -> Place:
    api = store.api if isinstance(store, KubernetesStore) else KubeApi(kube.settings())
    return Place(store, api, host="nobody", instance=instance, **more)


@contextmanager
def collecting(place: Place, **settings: Any) -> Iterator[Collector]:
    """Run a collector in this process until the end of the block."""
    collector = Collector(
        place, Settings(**{"leak_grace": 1.0, "events": False, **settings}), ShiftedClock(SystemClock())
    )
    failures: list[BaseException] = []

    def run() -> None:
        try:
            collector.run()
        except BaseException as error:  # told to the test below
            failures.append(error)

    thread = threading.Thread(target=run, name="collector")
    thread.start()
    try:
        yield collector
    finally:
        collector.stop()
        thread.join(LONG)
    assert not thread.is_alive()
    assert not failures, failures


Condition = Callable[[], Any]
