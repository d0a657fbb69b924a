"""Pods as workload endpoints: nothing of Calico's own is stored for them (datastore §9)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from calico_ipam.datastore.gojson import BadDocument
from calico_ipam.datastore.kube.qos import controls_of
from calico_ipam.errors import InvalidInput
from calico_ipam.model import endpoint_names
from calico_ipam.model.addresses import parse_address, parse_network
from calico_ipam.model.endpoint_names import EndpointIds
from calico_ipam.model.resource import WORKLOAD_ENDPOINT, Resource, mapping

POD_IP = "cni.projectcalico.org/podIP"
POD_IPS = "cni.projectcalico.org/podIPs"
CONTAINER_ID = "cni.projectcalico.org/containerID"
FLOATING_IPS = "cni.projectcalico.org/floatingIPs"
ALLOWED_SOURCES = "cni.projectcalico.org/allowedSourcePrefixes"
AWS_IPS = "vpc.amazonaws.com/pod-ips"

LABEL_NAMESPACE = "projectcalico.org/namespace"
LABEL_ORCHESTRATOR = "projectcalico.org/orchestrator"
LABEL_SERVICE_ACCOUNT = "projectcalico.org/serviceaccount"
LONGEST_LABEL = 63

V3 = "projectcalico.org/v3"
ENDPOINT = "eth0"
FINISHED = frozenset({"Succeeded", "Failed", "Completed"})
PROTOCOLS = frozenset({"TCP", "UDP", "SCTP"})


ADDRESSES = ("ipNetworks",)


def endpoint_of(pod: Mapping[str, Any], only: Sequence[str] = ()) -> Resource:
    """Return the workload endpoint that a pod is; ``only`` ADDRESSES: no more than these, at a quarter of the time.

    Raises BadDocument for what cannot be converted.
    """
    metadata, spec = mapping(pod.get("metadata")), mapping(pod.get("spec"))
    annotations = mapping(metadata.get("annotations"))
    name, namespace = str(metadata.get("name") or ""), str(metadata.get("namespace") or "")
    node = str(spec.get("nodeName") or "")
    if not node:
        raise BadDocument("error with field node (field should be assigned)")  # it is not scheduled
    name_of_endpoint = EndpointIds(node=node, orchestrator="k8s", pod=name, endpoint=ENDPOINT).name()
    if only == ADDRESSES:
        return Resource(WORKLOAD_ENDPOINT, name_of_endpoint, {"spec": {"ipNetworks": addresses_of(pod)}}, namespace)
    account = str(spec.get("serviceAccountName") or "")
    networks = addresses_of(pod)
    body: dict[str, Any] = {
        "orchestrator": "k8s",
        "node": node,
        "containerID": annotations.get(CONTAINER_ID),
        "pod": name,
        "endpoint": ENDPOINT,
        "serviceAccountName": account,
        "ipNetworks": networks,
        "profiles": profiles_of(namespace, account),
        "interfaceName": endpoint_names.veth_name_for_workload(namespace, name),
        "ports": ports_of(spec),
        "ipNATs": nats_of(annotations, networks),
        "allowSpoofedSourcePrefixes": prefixes_of(annotations),
        "qosControls": controls_of(annotations),
    }
    document = {
        "kind": WORKLOAD_ENDPOINT,
        "apiVersion": V3,
        "metadata": {
            **{
                k: metadata[k] for k in ("uid", "creationTimestamp", "generateName", "resourceVersion") if k in metadata
            },
            "name": name_of_endpoint,
            "namespace": namespace,
            "labels": labels_of(metadata, namespace, account),
        },
        "spec": {key: value for key, value in body.items() if value},
    }
    return Resource(WORKLOAD_ENDPOINT, name_of_endpoint, document, namespace)


def labels_of(metadata: Mapping[str, Any], namespace: str, account: str) -> dict[str, str]:
    """Return a pod's labels and Calico's own; a service account whose name is too long for a label is left out."""
    labels = {str(k): str(v) for k, v in mapping(metadata.get("labels")).items()}
    labels |= {LABEL_NAMESPACE: namespace, LABEL_ORCHESTRATOR: "k8s"}
    if account and len(account) < LONGEST_LABEL:
        labels[LABEL_SERVICE_ACCOUNT] = account
    return labels


def profiles_of(namespace: str, account: str) -> list[str]:
    profiles = [endpoint_names.namespace_profile(namespace)]
    if account:
        profiles.append(endpoint_names.service_account_profile(namespace, account))
    return profiles


def addresses_of(pod: Mapping[str, Any]) -> list[str]:
    """Return a pod's addresses as /32 or /128, from its status first; a finished pod has none. Raises BadDocument."""
    if finished(pod):
        return []
    found = []
    for text in address_texts(pod):
        try:
            if "/" in text:
                found.append(str(parse_network(text)))
            else:
                address = parse_address(text)
                found.append(f"{address}/{32 if address.version == 4 else 128}")
        except InvalidInput:
            raise BadDocument(f"failed to parse IP: {text!r}") from None
    return found


def finished(pod: Mapping[str, Any]) -> bool:
    """Tell whether a pod needs no network any more: it ended, or it is going and the plugin took its address away."""
    metadata = mapping(pod.get("metadata"))
    if str(mapping(pod.get("status")).get("phase")) in FINISHED:
        return True
    annotations = mapping(metadata.get("annotations"))
    return bool(metadata.get("deletionTimestamp")) and any(annotations.get(k) == "" for k in (POD_IP, AWS_IPS))


def address_texts(pod: Mapping[str, Any]) -> list[str]:
    """Return what stands where a pod's addresses do, readable or not."""
    status = mapping(pod.get("status"))
    several = status.get("podIPs")
    if isinstance(several, list) and (texts := _filled([str(mapping(item).get("ip") or "") for item in several])):
        return texts  # nearly always
    annotations = mapping(mapping(pod.get("metadata")).get("annotations"))
    for source in (
        [str(status.get("podIP") or "")],
        str(annotations.get(POD_IPS) or "").split(","),
        [str(annotations.get(POD_IP) or "")],
        str(annotations.get(AWS_IPS) or "").split(","),
    ):
        if texts := _filled(source):
            return texts
    return []


def _filled(texts: list[str]) -> list[str]:
    return [stripped for text in texts if (stripped := text.strip())]


def ports_of(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the named ports and host ports of a pod's containers, then of its init containers."""
    ports = []
    for group in ("containers", "initContainers"):
        containers = spec.get(group)
        for container in containers if isinstance(containers, list) else ():
            listed = mapping(container).get("ports")
            for port in listed if isinstance(listed, list) else ():
                fields = mapping(port)
                protocol = str(fields.get("protocol") or "TCP").upper()
                number = fields.get("containerPort")
                if number and (fields.get("name") or fields.get("hostPort")) and protocol in PROTOCOLS:
                    ports.append(
                        {
                            "name": fields.get("name") or "",
                            "protocol": protocol,
                            "port": number,
                            "hostPort": fields.get("hostPort") or 0,
                            "hostIP": fields.get("hostIP") or "",
                        }
                    )
    return ports


def text_list(annotations: Mapping[str, Any], name: str) -> list[str]:
    """Return an annotation that holds a JSON list of strings; absent, empty and null are no entry. Raises BadDocument.

    A null in the list reads as an empty string, as it does upstream.
    """
    text = annotations.get(name)
    if not text:
        return []
    try:
        found = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        found = False
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(item, str | None) for item in found):
        raise BadDocument(f"failed to parse '{text}' as JSON for annotation {name}: it must be a list of strings")
    return [item or "" for item in found]


def nats_of(annotations: Mapping[str, Any], networks: list[str]) -> list[dict[str, str]]:
    """Return a floating address for each entry whose family the pod has; upstream's readers leave out others too."""
    nats = []
    for text in text_list(annotations, FLOATING_IPS):
        internal = next((n.partition("/")[0] for n in networks if (":" in n) == (":" in text)), None)
        if internal is not None:
            nats.append({"internalIP": internal, "externalIP": text})
    return nats


def prefixes_of(annotations: Mapping[str, Any]) -> list[str]:
    """Return the source networks that a pod may use beside its own addresses. Raises BadDocument."""
    found = []
    for text in text_list(annotations, ALLOWED_SOURCES):
        try:
            if "/" not in text:
                raise InvalidInput("no prefix length")
            found.append(str(parse_network(text)))
        except InvalidInput:
            raise BadDocument(f"failed to parse '{text}' as a CIDR: invalid CIDR address: {text}") from None
    return found


def exposed(pod: Mapping[str, Any]) -> bool:
    """Tell whether a pod shows up in a list of endpoints at all."""
    spec = mapping(pod.get("spec"))
    return bool(spec.get("nodeName")) and not spec.get("hostNetwork")


# --- writing -----------------------------------------------------------------------------------------------


def address_patch(endpoint: Resource) -> dict[str, Any]:
    """Return the patch of a pod's status that tells others its address (cni.md §6.3).

    It carries the UID of the pod that was read, so that a pod made anew under the name is never written to
    (cni.md §15.6).
    """
    metadata: dict[str, Any] = {}
    networks = endpoint.spec.get("ipNetworks")
    if isinstance(networks, list) and networks:
        annotations = {POD_IP: networks[0], POD_IPS: ",".join(networks)}
        if endpoint.spec.get("containerID"):
            annotations[CONTAINER_ID] = endpoint.spec["containerID"]
        metadata["annotations"] = annotations
    if endpoint.metadata.get("uid"):
        metadata["uid"] = endpoint.metadata["uid"]
    return {"metadata": metadata}


def removal_patch(resource_version: str, uid: str) -> dict[str, Any]:
    """Return the patch that says "the plugin has removed the address"; the container ID stays (cni.md §9)."""
    metadata: dict[str, Any] = {"annotations": {POD_IP: "", POD_IPS: ""}, "resourceVersion": resource_version}
    if uid:
        metadata["uid"] = uid
    return {"metadata": metadata}
