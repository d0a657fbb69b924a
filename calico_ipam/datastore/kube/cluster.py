"""What the plugins read of Kubernetes itself: pods, namespaces, nodes and KubeVirt's machines (datastore §11).

Objects stay the documents that the API server sent. They are read with ``get`` alone: the plugin's account may neither
list nor watch them (datastore §12).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, Self
from urllib.parse import quote

from calico_ipam.datastore.api import Deadline
from calico_ipam.datastore.kube.api import Request
from calico_ipam.datastore.settings import Settings
from calico_ipam.errors import NotConfigured

KUBEVIRT = "/apis/kubevirt.io/v1"

Document = Mapping[str, Any]


class Server(Protocol):
    """What answers the questions: a connection, or the reason why there is none."""

    @property
    def settings(self) -> Settings: ...

    def call(self, request: Request, deadline: Deadline | None) -> dict[str, Any]: ...

    def close(self) -> None: ...


class NoServer:
    """Stands where no API server is configured: whoever asks for something of Kubernetes hears why he cannot."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def call(self, request: Request, deadline: Deadline | None) -> dict[str, Any]:  # noqa: ARG002  # the protocol's
        raise NotConfigured(
            "invalid configuration: no configuration has been provided, "
            "try setting KUBERNETES_MASTER environment variable",
            subject=request.path,
            hint='Set "kubeconfig" in the "kubernetes" section, or remove policy.type on a host without Kubernetes.',
        )

    def close(self) -> None:
        """There is nothing to close."""


class Cluster:
    """One API server as one call of a plugin sees it: an object that was read is not read again.

    A call decides on one state of a pod or namespace; what must be newer is compared by the API server when it is
    written (UID, resource version). Nothing is sent before the first question.
    """

    def __init__(self, api: Server) -> None:
        self.api = api
        self._deadline: Deadline | None = None
        self._seen: dict[str, Document] = {}

    @property
    def settings(self) -> Settings:
        return self.api.settings

    def within(self, deadline: Deadline | None) -> Self:
        """Return the same cluster, memory included, with questions that end by ``deadline``."""
        view = type(self).__new__(type(self))
        view.__dict__.update(self.__dict__)
        view._deadline = deadline
        return view

    def pod(self, namespace: str, name: str) -> Document:
        """Return a pod. Raises NotFound, whose ``reason`` is the API server's text, and the errors of a datastore."""
        return self._get(_pod_path(namespace, name))

    def pod_now(self, namespace: str, name: str) -> Document:
        """Return a pod as it is now, whatever was read before. Raises as :meth:`pod`."""
        self._seen.pop(_pod_path(namespace, name), None)
        return self.pod(namespace, name)

    def namespace(self, name: str) -> Document:
        """Return a namespace. Raises as :meth:`pod`."""
        return self._get(f"/api/v1/namespaces/{_quoted(name)}")

    def node(self, name: str) -> Document:
        """Return a node of Kubernetes. Raises as :meth:`pod`."""
        return self._get(f"/api/v1/nodes/{_quoted(name)}")

    def machine_instance(self, namespace: str, name: str) -> Document:
        """Return a running virtual machine of KubeVirt. Raises as :meth:`pod`."""
        return self._get(f"{KUBEVIRT}/namespaces/{_quoted(namespace)}/virtualmachineinstances/{_quoted(name)}")

    def machine(self, namespace: str, name: str) -> Document:
        """Return a virtual machine of KubeVirt, running or not. Raises as :meth:`pod`."""
        return self._get(f"{KUBEVIRT}/namespaces/{_quoted(namespace)}/virtualmachines/{_quoted(name)}")

    def version(self) -> Document:
        """Return the server's version. Raises the errors of a datastore."""
        return self.api.call(Request("GET", "/version"), self._deadline)

    def close(self) -> None:
        self.api.close()

    def _get(self, path: str) -> Document:
        if path not in self._seen:
            self._seen[path] = self.api.call(Request("GET", path), self._deadline)
        return self._seen[path]


def _pod_path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{_quoted(namespace)}/pods/{_quoted(name)}"


def _quoted(text: str) -> str:
    return quote(text, safe="")
