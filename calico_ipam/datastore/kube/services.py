"""The Services of a cluster: the one thing that IPAM's check needs of Kubernetes whatever the datastore (cli §4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calico_ipam.datastore.api import Deadline
from calico_ipam.datastore.kube.api import KubeApi, Request
from calico_ipam.datastore.settings import Settings

PAGE = 500


def list_services(settings: Settings, deadline: Deadline | None = None) -> list[Mapping[str, Any]]:
    """Return the documents of all Services. Raises the errors of :mod:`calico_ipam.errors`."""
    api = KubeApi(settings)
    try:
        found: list[Mapping[str, Any]] = []
        query = {"limit": str(PAGE)}
        while True:
            answer = api.call(Request("GET", "/api/v1/services", query, verb="list"), deadline)
            found += answer.get("items") or ()
            token = (answer.get("metadata") or {}).get("continue")
            if not token:
                return found
            query = {"limit": str(PAGE), "continue": str(token)}
    finally:
        api.close()
