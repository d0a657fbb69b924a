"""Which API group of a server holds Calico's data (datastore §8)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from calico_ipam.datastore.kube.api import Request
from calico_ipam.datastore.kube.codec import V1, V3, Group
from calico_ipam.errors import IPAMError
from calico_ipam.model.resource import mapping

log = logging.getLogger(__name__)


class ServedGroup:
    """The group as set, else found out once; shared by all views of a store."""

    def __init__(self, chosen: str) -> None:
        self._lock = threading.Lock()
        self._group = Group(V3 if chosen.lower() == V3 else V1) if chosen else None

    def group(self, call: Callable[[Request], dict[str, Any]]) -> Group:
        """Return the group; ``call`` does a request, the first time."""
        if self._group is None:
            found = _discovered(call)
            with self._lock:
                self._group = self._group or found
        return self._group


def _discovered(call: Callable[[Request], dict[str, Any]]) -> Group:
    try:
        found = call(Request("GET", "/apis"))
    except IPAMError as error:
        log.warning("API groups cannot be listed, taking %s: %s", V1, error)
        return Group(V1)
    groups = {str(mapping(each).get("name")) for each in found.get("groups") or ()}
    v3_only = V3.partition("/")[0] in groups and V1.partition("/")[0] not in groups
    return Group(V3 if v3_only else V1)
