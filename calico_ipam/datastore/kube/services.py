"""The Services of a cluster: the one thing that IPAM's check needs of Kubernetes whatever the datastore (cli §4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calico_ipam.datastore.kube.api import KubeApi, Request
from calico_ipam.datastore.settings import Settings

PAGE = 500


def list_services(source: KubeApi | Settings) -> list[Mapping[str, Any]]:
    """Return the documents of all Services. ``source``: a connection to their cluster, or how to make one for this
    alone. Raises the errors of :mod:`calico_ipam.errors`."""
    api = source if isinstance(source, KubeApi) else KubeApi(source)
    try:
        found: list[Mapping[str, Any]] = []
        query = {"limit": str(PAGE)}
        while True:
            answer = api.call(Request("GET", "/api/v1/services", query, verb="list"), None)
            found += answer.get("items") or ()
            token = (answer.get("metadata") or {}).get("continue")
            if not token:
                return found
            query = {"limit": str(PAGE), "continue": str(token)}
    finally:
        if api is not source:
            api.close()
