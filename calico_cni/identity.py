"""Who the workload of a call is: orchestrator, namespace, pod, and the names that follow from them (cni.md §5)."""

from __future__ import annotations

from dataclasses import dataclass

from calico_cni.args import POD_NAME, POD_NAMESPACE, TEST_NAMESPACE, WORKLOAD_KEYS, parse_args
from calico_cni.context import Call
from calico_cni.errors import CNIError
from calico_cni.node import node_name
from calico_ipam.errors import InvalidInput
from calico_ipam.model import endpoint_names
from calico_ipam.model.endpoint_names import CNI, KUBERNETES, EndpointIds
from calico_ipam.model.handle_names import workload_handle


@dataclass(frozen=True, slots=True)
class Identity:
    """A workload on this node. ``pod`` is empty outside Kubernetes."""

    node: str
    orchestrator: str
    namespace: str
    pod: str
    container_id: str
    ifname: str

    @property
    def for_kubernetes(self) -> bool:
        return self.orchestrator == KUBERNETES

    @property
    def has_launchers_name(self) -> bool:
        """Is it called as the pods are that run virtual machines of KubeVirt?"""
        return self.for_kubernetes and self.pod.startswith("virt-launcher-")

    @property
    def ids(self) -> EndpointIds:
        return EndpointIds(
            node=self.node,
            orchestrator=self.orchestrator,
            pod=self.pod,
            container_id=self.container_id if self.orchestrator == CNI else "",
            endpoint=self.ifname,
        )

    def endpoint_name(self) -> str:
        """Return the name of the endpoint record. Raises CNIError for identifiers that cannot form one."""
        try:
            return self.ids.name()
        except InvalidInput as error:
            raise CNIError(f"error constructing WorkloadEndpoint name: {error}", error.hint) from None

    def handle(self, network: str) -> str:
        """Return the handle that this container's addresses on a network are held under."""
        return workload_handle(network, self.container_id)

    def legacy_handle(self) -> str:
        """Return the handle that releases before Calico 3 used; released on DEL only."""
        return f"{self.namespace}.{self.pod}" if self.for_kubernetes else self.container_id

    def host_interface(self, prefixes: str) -> str:
        """Return the name of the link on the host; ``prefixes`` is Felix's list and counts for pods only."""
        if self.for_kubernetes:
            return endpoint_names.veth_name_for_workload(self.namespace, self.pod, prefixes)
        return endpoint_names.veth_name_for_container(self.container_id)


def identify(call: Call) -> Identity:
    """Return who the call is about. Raises CNIError for arguments that cannot be read."""
    args = parse_args(call.request.args, WORKLOAD_KEYS)
    pod, namespace = args.get(POD_NAME), args.get(POD_NAMESPACE)
    is_pod = bool(pod and namespace)
    return Identity(
        node=node_name(call.conf, call.context.hostname, call.log),
        orchestrator=KUBERNETES if is_pod else CNI,
        namespace=namespace if is_pod else args.get(TEST_NAMESPACE) or "default",
        pod=pod if is_pod else "",
        container_id=call.request.container_id,
        ifname=call.request.ifname,
    )
