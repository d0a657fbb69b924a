"""Benches of custom resources: the Kubernetes datastore on a real API server, and on one in memory."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from calico_ipam.datastore.api import Damaged, Deadline
from calico_ipam.datastore.kube.api import KubeApi, Request
from calico_ipam.datastore.kube.codec import Group
from calico_ipam.datastore.kube.objects import entry_of, marked_deleted
from calico_ipam.datastore.kube.store import KubernetesStore
from calico_ipam.datastore.settings import Settings
from calico_ipam.errors import AlreadyExists, NotFound
from calico_ipam.model.keys import AffinityKey, BlockKey, HandleKey, Key
from calico_ipam.model.resource import mapping
from tests.golden.library_kube import KINDS, PLURALS, REST, V1, key_of, plural_of, resource_of, state_of
from tests.golden.library_scenario import State
from tests.invariants import check_store

_KINDS = {"ipamblocks": "IPAMBlock", "blockaffinities": "BlockAffinity", "ipamhandles": "IPAMHandle"}


class CountingApi(KubeApi):
    """Counts the requests that are no reads: what was read before the last of them is still so."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.writes = 0

    def call(self, request: Request, deadline: Deadline | None) -> dict[str, Any]:
        if request.method != "GET":
            self.writes += 1
        return super().call(request, deadline)


class RealKubeStore(KubernetesStore):
    """The datastore on an API server whose writes are counted."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._api: Any = CountingApi(settings)


class KubeBench:
    """Custom resources, shown as etcd's documents (:mod:`tests.golden.library_kube`)."""

    def __init__(self, name: str, store: KubernetesStore) -> None:
        self.name = name
        self.store = store
        self._api: Any = store._api
        self._halves: dict[str, Any] = {}  # put, and waiting for the other half of a resource that is not there
        self._known: tuple[int, dict[str, list[dict[str, Any]]]] | None = None

    def path(self, key: Key) -> str:
        raise AssertionError("recordings of custom resources have no hooks")

    def bump(self, key: str) -> None:
        raise AssertionError("recordings of custom resources have no hooks")

    def texts(self) -> dict[str, str]:
        return {}

    # --- looking -------------------------------------------------------------------------------------------

    def state(self) -> State:
        return state_of(item for several in self._all().values() for item in several)

    def violations(self) -> Counter[str]:
        from tests.golden.library_backends import weighed

        found, damaged = [], []
        for plural, kind in _KINDS.items():
            for item in self._all()[plural]:
                entry = entry_of(kind, item, Group(V1))
                if isinstance(entry, Damaged):
                    damaged.append(f"{entry.path}: cannot be read: {entry.reason}")
                elif not marked_deleted(entry) and isinstance(entry.key, BlockKey | AffinityKey | HandleKey):
                    found.append(entry)
        return weighed([*damaged, *check_store(found)])

    def _all(self) -> dict[str, list[dict[str, Any]]]:
        """Return everything that is stored, by plural; asked for again only after a write."""
        if self._known is None or self._known[0] != self._api.writes:
            found = {}
            for plural in PLURALS:
                items = self._call(Request("GET", _collection(plural)))["items"]
                found[plural] = [{**item, "kind": KINDS[plural]} for item in items]  # items of built-in lists have none
            self._known = self._api.writes, found
        return self._known[1]

    # --- writing behind the library's back -----------------------------------------------------------------

    def write(self, document: Mapping[str, Any]) -> None:
        """Carry out a write of a recording (README §1.2)."""
        if "object" in document:
            self._put(document["object"])
        else:
            plural, _, name = document["key"].partition("/")
            self._remove(plural, name)

    def put_text(self, key: str, text: str) -> None:
        """Put one half of a resource to what it is in ``text``; the other half stays as it is."""
        whole = key.removeprefix(REST)
        state = self.state()
        half = {key: json.loads(text)}
        document, rest = ({**state, **half}.get(each) for each in (whole, REST + whole))
        if document is not None and rest is not None:
            self._put(resource_of(rest, document))
        else:
            self._halves |= half
            if whole in self._halves and REST + whole in self._halves:
                self._put(resource_of(self._halves.pop(REST + whole), self._halves.pop(whole)))

    def delete(self, key: str) -> None:
        for plural, items in self._all().items():
            for item in items:
                if key_of(item) == key:
                    self._remove(plural, item["metadata"]["name"])

    def _put(self, resource: Mapping[str, Any]) -> None:
        plural = plural_of(resource)
        path, body = f"{_collection(plural)}/{resource['metadata']['name']}", dict(resource)
        try:
            stored = self._call(Request("POST", _collection(plural), body=body))
        except AlreadyExists:
            now = self._call(Request("GET", path))["metadata"]
            body = {**body, "metadata": {**body["metadata"], "resourceVersion": now["resourceVersion"]}}
            stored = self._call(Request("PUT", path, body=body))
        if resource.get("status") and mapping(stored.get("status")) != resource["status"]:
            body = {**stored, "status": resource["status"]}
            self._call(Request("PUT", f"{path}/status", body=body))

    def _remove(self, plural: str, name: str) -> None:
        path = f"{_collection(plural)}/{name}"
        try:
            self._call(Request("DELETE", path))
        except NotFound:
            return

    def _call(self, request: Request) -> dict[str, Any]:
        found: dict[str, Any] = self._api.call(request, None)
        return found

    def close(self) -> None:
        self.store.close()


def _collection(plural: str) -> str:
    return "/api/v1/nodes" if plural == "nodes" else f"/apis/{V1}/{plural}"
