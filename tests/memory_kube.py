"""The Kubernetes API in a dictionary: as much of it as the datastore asks for, for tests that need thousands of stores.

It stands where :class:`calico_ipam.datastore.kube.api.KubeApi` stands. What it answers is checked against a real API
server by the recordings that are replayed on both.
"""

from __future__ import annotations

import copy
import json
import re
import uuid
from collections.abc import Mapping
from typing import Any

from calico_ipam.datastore.api import Deadline
from calico_ipam.datastore.kube.api import Request
from calico_ipam.datastore.kube.errors import error_of
from calico_ipam.datastore.kube.store import KubernetesStore
from calico_ipam.datastore.settings import KUBERNETES, Settings

V1 = "/apis/crd.projectcalico.org/v1/"
COLLECTIONS = (
    *(V1 + p for p in ("blockaffinities", "ipamblocks", "ipamconfigs", "ipamhandles", "ippools", "ipreservations")),
    V1 + "clusterinformations",
    "/api/v1/nodes",
)
#: what the schema of a pool fills in
POOL_DEFAULTS = {"nodeSelector": "all()", "assignmentMode": "Automatic"}


class MemoryApi:
    """Objects by path. ``writes`` counts the requests that are no reads."""

    settings = Settings(KUBERNETES, "memory", calico_api_group="crd.projectcalico.org/v1")
    source = "memory"
    server = "https://memory"

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.revision = 0
        self.writes = 0

    def close(self) -> None:
        return None

    def call(self, request: Request, deadline: Deadline | None = None) -> dict[str, Any]:
        status, answer = self.answer(request)
        if status >= 300:
            raise error_of(request, status, {}, json.dumps(answer).encode(), self.source)
        return copy.deepcopy(answer)

    def answer(self, request: Request) -> tuple[int, dict[str, Any]]:
        if request.method != "GET":
            self.writes += 1
        collection = request.path in COLLECTIONS
        match request.method:
            case "GET":
                return self._list(request) if collection else self._get(request.path)
            case "POST":
                return self._create(request.path, copy.deepcopy(request.body))
            case "PUT":
                return self._replace(request.path, copy.deepcopy(request.body))
            case "PATCH":
                return self._merge(request.path.removesuffix("/status"), request.body or {})
            case "DELETE":
                return self._delete(request.path, request.body or {})
        raise NotImplementedError(str(request))

    # --- requests ------------------------------------------------------------------------------------------

    def _list(self, request: Request) -> tuple[int, dict[str, Any]]:
        selector = request.query.get("labelSelector", "")
        items = [
            item
            for path, item in sorted(self.objects.items())
            if path.rpartition("/")[0] == request.path and selected(selector, item["metadata"].get("labels") or {})
        ]
        return 200, {"metadata": {"resourceVersion": str(self.revision)}, "items": items}

    def _get(self, path: str) -> tuple[int, dict[str, Any]]:
        found = self.objects.get(path)
        return _no("NotFound", 404, f"{_what(path)} not found") if found is None else (200, found)

    def _create(self, collection: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        path = f"{collection}/{body['metadata']['name']}"
        if path in self.objects:
            return _no("AlreadyExists", 409, f"{_what(path)} already exists")
        body["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": "2026-08-22T10:00:00Z"}
        body.pop("status", None)  # a subresource
        return 201, self._store(path, body)

    def _replace(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if path.endswith("/status"):
            path = path.removesuffix("/status")
            return 200, self._store(path, {**self.objects[path], "status": body["status"]})
        found = self.objects.get(path)
        if found is None:
            return self._get(path)
        metadata, now = body["metadata"], found["metadata"]
        if metadata.get("uid", now["uid"]) != now["uid"]:
            return _no("Conflict", 409, f"{_what(path)}: UID in precondition: {metadata['uid']}")
        if metadata.get("resourceVersion") != now["resourceVersion"]:
            return _no("Conflict", 409, f"{_what(path)}: the object has been modified")
        body["metadata"] |= {"uid": now["uid"], "creationTimestamp": now["creationTimestamp"]}
        if "status" in found:
            body["status"] = found["status"]
        return 200, found if body == found else self._store(path, body)

    def _merge(self, path: str, patch: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        found = self.objects.get(path)
        if found is None:
            return self._get(path)
        if patch.get("metadata", {}).get("resourceVersion") not in (None, found["metadata"]["resourceVersion"]):
            return _no("Conflict", 409, f"{_what(path)}: the object has been modified")
        return 200, self._store(path, merged(found, patch))

    def _delete(self, path: str, options: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        found = self.objects.get(path)
        if found is None:
            return self._get(path)
        for name, word in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
            wanted = options.get("preconditions", {}).get(name)
            if wanted not in (None, found["metadata"][name]):
                return _no("Conflict", 409, f"{_what(path)}: {word} in precondition: {wanted}")
        self.revision += 1
        del self.objects[path]
        return 200, {"kind": "Status"}

    def _store(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.revision += 1
        body["metadata"]["resourceVersion"] = str(self.revision)
        if path.startswith(f"{V1}ippools/"):
            body["spec"] = {**POOL_DEFAULTS, **body["spec"]}
        self.objects[path] = body
        return body


class MemoryKubeStore(KubernetesStore):
    """The Kubernetes datastore on objects in memory. Without watches."""

    def __init__(self) -> None:
        super().__init__(MemoryApi.settings)
        self._api: Any = MemoryApi()

    def add_node(self, name: str, **labels: str) -> None:
        """Make a node, which the datastore itself must not."""
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
        self._api.call(Request("POST", "/api/v1/nodes", body=body))


def merged(document: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with a merge patch (RFC 7396) applied."""
    made = {**document}
    for key, value in patch.items():
        if value is None:
            made.pop(key, None)
        else:
            made[key] = merged(made.get(key) or {}, value) if isinstance(value, Mapping) else copy.deepcopy(value)
    return made


def selected(selector: str, labels: Mapping[str, str]) -> bool:
    """Tell whether labels match a selector of the forms ``a=b,c=d`` and ``a notin (b,c)``."""
    excluded = re.fullmatch(r"(\S+) notin \((.*)\)", selector)
    if excluded:
        return labels.get(excluded[1]) not in excluded[2].split(",")
    wanted = [part.partition("=") for part in selector.split(",") if part]
    return all(labels.get(name) == value for name, _, value in wanted)


def _what(path: str) -> str:
    plural, _, name = path.rpartition("/")
    return f'{plural.rpartition("/")[2]}.crd.projectcalico.org "{name}"'


def _no(reason: str, code: int, message: str) -> tuple[int, dict[str, Any]]:
    return code, {"kind": "Status", "status": "Failure", "reason": reason, "code": code, "message": message}
