"""Calico's v3 resources (pools, reservations, nodes, endpoints …) as documents with a name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

IP_POOL = "IPPool"
IP_RESERVATION = "IPReservation"
NODE = "Node"
CLUSTER_INFORMATION = "ClusterInformation"
WORKLOAD_ENDPOINT = "WorkloadEndpoint"
PROFILE = "Profile"
IPAM_CONFIGURATION = "IPAMConfiguration"
BLOCK_AFFINITY = "BlockAffinity"
KUBE_CONTROLLERS_CONFIGURATION = "KubeControllersConfiguration"

#: kinds that live in a namespace
NAMESPACED = frozenset(
    {WORKLOAD_ENDPOINT, "NetworkPolicy", "NetworkSet", "StagedNetworkPolicy", "StagedKubernetesNetworkPolicy"}
)


def mapping(value: Any) -> Mapping[str, Any]:
    """Return ``value`` when it is an object, else an empty one: null and damaged fields read as absent."""
    if isinstance(value, dict):  # nearly always; asking for the abstract type takes ten times as long
        return value
    return value if isinstance(value, Mapping) else {}


@dataclass(frozen=True, slots=True)
class Resource:
    """A v3 document: ``kind``, ``apiVersion``, ``metadata``, ``spec``, ``status``. It is never changed in place."""

    kind: str
    name: str
    document: Mapping[str, Any]
    namespace: str = ""

    @property
    def metadata(self) -> Mapping[str, Any]:
        return mapping(self.document.get("metadata"))

    @property
    def spec(self) -> Mapping[str, Any]:
        return mapping(self.document.get("spec"))

    @property
    def labels(self) -> dict[str, str]:
        return {str(k): str(v) for k, v in mapping(self.metadata.get("labels")).items()}

    @classmethod
    def new(
        cls,
        kind: str,
        name: str,
        spec: Mapping[str, Any],
        *,
        namespace: str = "",
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> Resource:
        """Return a resource as a client writes it. The store adds ``uid`` and ``creationTimestamp``."""
        metadata: dict[str, Any] = {"name": name}
        if namespace:
            metadata["namespace"] = namespace
        if labels:
            metadata["labels"] = dict(labels)
        if annotations:
            metadata["annotations"] = dict(annotations)
        document = {"kind": kind, "apiVersion": "projectcalico.org/v3", "metadata": metadata, "spec": dict(spec)}
        return cls(kind, name, document, namespace)

    def with_spec(self, spec: Mapping[str, Any]) -> Resource:
        """Return the resource with another ``spec``."""
        return Resource(self.kind, self.name, {**self.document, "spec": dict(spec)}, self.namespace)

    def with_labels(self, labels: Mapping[str, str]) -> Resource:
        """Return the resource with these labels beside those that it has."""
        metadata = {**self.metadata, "labels": {**self.labels, **labels}}
        return Resource(self.kind, self.name, {**self.document, "metadata": metadata}, self.namespace)
