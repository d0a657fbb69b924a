"""What CHECK has to know of a pod (cni.md §2.7)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from calico_cni.context import Call
from calico_cni.delegate import IPAMDelegate
from calico_cni.identity import Identity
from calico_cni.plugin import podcidr
from calico_cni.plugin.annotations import wishes
from calico_cni.plugin.endpoint import container_of
from calico_cni.plugin.pod_addresses import AddressSource, with_node_ranges
from calico_cni.plugin.pods import Pod, find_endpoint, read_pod
from calico_cni.plugin.wiring import host_interface
from calico_cni.protocol import HOST_LOCAL
from calico_ipam.datastore.api import Datastore
from calico_ipam.model.endpoint_names import KUBERNETES


@dataclass(frozen=True, slots=True)
class PodCheck:
    """One sentence for each thing that is not as ADD left it, and what to expect of the link."""

    host_name: str
    problems: list[str] = field(default_factory=list)
    default_routes: bool = True


def check_pod(call: Call, store: Datastore, identity: Identity) -> PodCheck:
    """Compare record and addresses of a pod with what ADD made. Raises CNIError."""
    computed = host_interface(call, identity)
    cluster = call.cluster(store)
    found = find_endpoint(call, store, cluster, identity, computed)
    pod = read_pod(call, cluster, identity) if call.conf.policy_type == KUBERNETES else Pod()
    asked = wishes(call.conf, pod.annotations, pod.namespace_annotations)
    if not asked.given:  # addresses that no IPAM knows have no handle to look for
        configured = with_node_ranges(call, cluster, identity)
        source = AddressSource.of(call, store, cluster, identity, replace(asked, assigned=()), found, configured)
        IPAMDelegate(source.call, store).check()
    own_routes = call.conf.ipam.type == HOST_LOCAL and bool(podcidr.routes(call.conf.document))
    default_routes = not own_routes or call.conf.include_default_routes
    if found is None:
        where = f"pod {identity.namespace}/{identity.pod}"
        return PodCheck(computed, [f"there is no endpoint record of {where} on node {identity.node}"], default_routes)
    holder = container_of(found)
    problems = []
    if holder != identity.container_id:
        problems.append(f"the endpoint record of the pod belongs to container {holder}, not {identity.container_id}")
    host_name = computed if store.capabilities.endpoints_are_pods else found.value.spec.get("interfaceName")
    return PodCheck(str(host_name or computed), problems, default_routes)
