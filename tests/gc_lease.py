"""A lease without a server."""

from __future__ import annotations

import copy
from typing import Any

from calico_ipam.errors import AlreadyExists, Conflict, NotFound


class FakeApi:
    """A lease in memory, with revisions, and with an outage or a refusal on request."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.revision = 0
        self.error: Exception | None = None
        self.writes = 0

    def call(self, request: Any, deadline: Any) -> dict[str, Any]:
        if self.error is not None:
            raise self.error
        if request.method == "GET":
            if self.lease is None:
                raise NotFound(request.path)
            return copy.deepcopy(self.lease)
        if request.method == "POST" and self.lease is not None:
            raise AlreadyExists(request.path)
        if request.method == "PUT":
            if self.lease is None:
                raise NotFound(request.path)
            if request.body["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
                raise Conflict(request.path)
        self.writes += 1
        self.revision += 1
        self.lease = copy.deepcopy(request.body)
        self.lease["metadata"]["resourceVersion"] = str(self.revision)
        return copy.deepcopy(self.lease)

    @property
    def spec(self) -> dict[str, Any]:
        assert self.lease is not None
        return dict(self.lease["spec"])
