"""A pod as the plugin sees it: what was read of it, its endpoint record, and whether it is the pod that is meant.

The record is an object of its own in etcd and SQLite. On the Kubernetes datastore it is the pod itself: writing it
patches annotations through the pod's status (cni.md §6.3, datastore §9).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from calico_cni import gojson, timers
from calico_cni.args import POD_UID, WORKLOAD_KEYS, parse_args
from calico_cni.context import Call, Cluster
from calico_cni.errors import CNIError, cni_error
from calico_cni.identity import Identity
from calico_cni.plugin.annotations import annotations_of, quoted, text_list
from calico_cni.plugin.endpoint import find_records
from calico_ipam.datastore.api import Datastore, Deadline, Entry
from calico_ipam.datastore.gojson import BadDocument
from calico_ipam.datastore.kube import pods as conversion
from calico_ipam.datastore.kube.qos import controls_of
from calico_ipam.errors import InvalidInput, IPAMError, NotFound
from calico_ipam.model.keys import ResourceKey
from calico_ipam.model.resource import WORKLOAD_ENDPOINT, Resource, mapping

#: marks a pod that the kubelet mirrors from a file; its UID for the runtime is not the API server's
MIRROR = "kubernetes.io/config.mirror"


@dataclass(frozen=True, slots=True)
class Pod:
    """What an endpoint takes over of its pod. Without ``policy.type`` ``k8s`` no pod is read, and all is empty."""

    uid: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    namespace_annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    generate_name: str = ""
    service_account: str = ""
    profiles: tuple[str, ...] = ()
    ports: tuple[Mapping[str, Any], ...] = ()
    sources: tuple[str, ...] = ()  #: networks it may use as source beside its own addresses
    qos: Mapping[str, Any] = field(default_factory=dict)


def read_pod(call: Call, cluster: Cluster, identity: Identity) -> Pod:
    """Return the pod and its namespace. Raises CNIError with the API server's text for one that is missing."""
    cluster = cluster.within(Deadline.after(timers.RECORDS))
    namespace = told(lambda: cluster.namespace(identity.namespace))
    document = told(lambda: cluster.pod(identity.namespace, identity.pod))
    check_uid(call, document)
    metadata, spec = mapping(document.get("metadata")), mapping(document.get("spec"))
    if not spec.get("nodeName"):
        raise CNIError(
            "error with field node (field should be assigned)",
            f"Pod {identity.namespace}/{identity.pod} is not bound to a node yet.",
        )
    if spec["nodeName"] != identity.node:
        call.log.warning(
            "The pod is bound to another node than this one is called; set nodename in the network configuration",
            pod_node=spec["nodeName"],
            node=identity.node,
        )
    account = str(spec.get("serviceAccountName") or "")
    annotations = annotations_of(document)
    try:
        sources = conversion.prefixes_of(annotations)
    except BadDocument as error:
        raise _malformed(annotations, error, f"The pod's annotation {conversion.ALLOWED_SOURCES}") from None
    return Pod(
        uid=str(metadata.get("uid") or ""),
        annotations=annotations,
        namespace_annotations=annotations_of(namespace),
        labels=conversion.labels_of(metadata, identity.namespace, account),
        generate_name=str(metadata.get("generateName") or ""),
        service_account=account,
        profiles=tuple(conversion.profiles_of(identity.namespace, account)),
        ports=tuple(conversion.ports_of(spec)),
        sources=tuple(sources),
        qos=controls_of(annotations),
    )


def _malformed(annotations: Mapping[str, str], error: Exception, what: str) -> CNIError:
    """Return the refusal of a pod that cannot be read; of a list that is no JSON with what is wrong with its text."""
    for name in (conversion.FLOATING_IPS, conversion.ALLOWED_SOURCES):
        text = annotations.get(name) or "[]"
        try:
            text_list(text)
        except gojson.GoJSONError as problem:
            rule = "a JSON list of " + ("addresses" if name == conversion.FLOATING_IPS else "CIDRs")
            return CNIError(f"failed to parse '{text}' as JSON: {problem}", quoted("pod", name, text, rule))
    return CNIError(str(error), f"{what} must be corrected.")


def told(read: Any) -> Mapping[str, Any]:
    """Return what ``read`` returns; raises CNIError with the API server's own words."""
    try:
        found: Mapping[str, Any] = read()
    except NotFound as error:
        raise CNIError(error.reason or str(error), error.hint) from error
    except IPAMError as error:
        raise cni_error(error) from error
    return found


def check_uid(call: Call, document: Mapping[str, Any]) -> None:
    """Raise CNIError when the pod is not the one that the runtime means, but a later one of its name (§15.6)."""
    if is_another(call, document):
        metadata = mapping(document.get("metadata"))
        raise CNIError(
            f"pod {metadata.get('namespace')}/{metadata.get('name')} has UID {metadata.get('uid')}, but the sandbox is "
            f"for UID {_meant(call)}",
            "The pod was deleted and made anew; the runtime will make a sandbox for the new one.",
        )


def is_another(call: Call, document: Mapping[str, Any]) -> bool:
    """Tell whether a pod has another UID than the runtime says; mirror pods always have, and are meant all the same."""
    meant = _meant(call)
    uid = str(mapping(document.get("metadata")).get("uid") or "")
    return bool(meant and uid and uid != meant and MIRROR not in annotations_of(document))


def _meant(call: Call) -> str:
    return parse_args(call.request.args, WORKLOAD_KEYS).get(POD_UID)


# --- the endpoint record -----------------------------------------------------------------------------------


def find_endpoint(call: Call, store: Datastore, cluster: Cluster, identity: Identity, host_name: str) -> Entry | None:
    """Return the record of this pod on this node, whatever interface it names (§6.1 step 9). Raises CNIError."""
    if not store.capabilities.endpoints_are_pods:
        records = find_records(store, identity, identity.namespace, host_name)
        return records.own or next(iter(records.siblings), None)
    cluster = cluster.within(Deadline.after(timers.RECORDS))
    try:
        document = cluster.pod(identity.namespace, identity.pod)
    except NotFound:
        return None
    check_uid(call, document)
    return converted(document, identity)


def converted(document: Mapping[str, Any], identity: Identity) -> Entry | None:
    """Return a pod as the record that it is; None when it is bound to another node. Raises CNIError."""
    try:
        endpoint = conversion.endpoint_of(document)
    except (BadDocument, InvalidInput) as error:
        raise _malformed(annotations_of(document), error, f"Pod {identity.namespace}/{identity.pod}") from None
    return _entry(endpoint, document) if endpoint.spec.get("node") == identity.node else None


def bare_record(document: Mapping[str, Any], identity: Identity) -> Entry | None:
    """Return a pod as a record that tells no more than its container and what stands for addresses; never raises.

    That is all DEL has to know, and no annotation that cannot be read may keep a pod from going (P21).
    """
    metadata, spec = mapping(document.get("metadata")), mapping(document.get("spec"))
    if spec.get("nodeName") != identity.node:
        return None
    container = annotations_of(document).get(conversion.CONTAINER_ID) or ""
    endpoint = Resource.new(
        WORKLOAD_ENDPOINT,
        replace(identity, ifname=conversion.ENDPOINT).endpoint_name(),
        {
            "containerID": container,
            "endpoint": conversion.ENDPOINT,
            "ipNetworks": conversion.address_texts(document),
        },
        namespace=str(metadata.get("namespace") or identity.namespace),
    )
    return _entry(endpoint, document)


def _entry(endpoint: Resource, document: Mapping[str, Any]) -> Entry:
    metadata = mapping(document.get("metadata"))
    key = ResourceKey(WORKLOAD_ENDPOINT, endpoint.name, endpoint.namespace)
    return Entry(key, endpoint, str(metadata.get("resourceVersion") or ""), str(metadata.get("uid") or ""), document)
