"""Kubernetes' nodes as Calico's: what Calico knows of a node is in its annotations (datastore §10)."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from calico_ipam.datastore.gojson import serialise, sorted_map
from calico_ipam.errors import InvalidInput
from calico_ipam.model.addresses import parse_address, parse_network
from calico_ipam.model.resource import NODE, Resource, mapping

log = logging.getLogger(__name__)

PREFIX = "projectcalico.org/"
V3 = "projectcalico.org/v3"
KEPT = ("uid", "creationTimestamp", "deletionTimestamp", "resourceVersion")
MOST_AS = 2**32 - 1

_MAC = re.compile(r"([0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}")


def _address(version: int, text: str) -> str:
    if parse_address(text).version != version:
        raise ValueError("of the other family")
    return text


def _network(version: int, text: str) -> str:
    if parse_network(text).version != version:
        raise ValueError("of the other family")
    return text


def _mac(text: str) -> str:
    if not _MAC.fullmatch(text):
        raise ValueError("no hardware address")
    return text


def _as_number(text: str) -> int:
    """Return an AS number, written as one number or as two of 16 bits with a dot."""
    high, dot, low = text.rpartition(".")
    if not all(part.isascii() and part.isdigit() for part in ([high, low] if dot else [text])):
        raise ValueError("no number")  # Python alone would take "6_4", "+64" and " 64"
    parts = [int(high), int(low)] if dot else [int(text)]
    if any(not 0 <= part <= (0xFFFF if dot else MOST_AS) for part in parts):
        raise ValueError("out of range")
    return parts[0] * 0x10000 + parts[1] if dot else parts[0]


def _interfaces(text: str) -> list[Any]:
    found = json.loads(text)
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise TypeError("no list of interfaces")
    return found


def _text(value: Any) -> str:
    return serialise(value) if isinstance(value, list) else str(value)


#: annotation, after the prefix -> place in a Calico node, and what reads its text (raises for what it may not be)
FIELDS: dict[str, tuple[tuple[str, ...], Callable[[str], Any]]] = {
    "IPv4Address": (("spec", "bgp", "ipv4Address"), partial(_network, 4)),
    "IPv6Address": (("spec", "bgp", "ipv6Address"), partial(_network, 6)),
    "ASNumber": (("spec", "bgp", "asNumber"), _as_number),
    "RouteReflectorClusterID": (("spec", "bgp", "routeReflectorClusterID"), partial(_address, 4)),
    "IPv4IPIPTunnelAddr": (("spec", "bgp", "ipv4IPIPTunnelAddr"), partial(_address, 4)),
    "IPv4VXLANTunnelAddr": (("spec", "ipv4VXLANTunnelAddr"), partial(_address, 4)),
    "VXLANTunnelMACAddr": (("spec", "vxlanTunnelMACAddr"), _mac),
    "IPv6VXLANTunnelAddr": (("spec", "ipv6VXLANTunnelAddr"), partial(_address, 6)),
    "VXLANTunnelMACAddrV6": (("spec", "vxlanTunnelMACAddrV6"), _mac),
    "IPv4WireguardInterfaceAddr": (("spec", "wireguard", "interfaceIPv4Address"), partial(_address, 4)),
    "IPv6WireguardInterfaceAddr": (("spec", "wireguard", "interfaceIPv6Address"), partial(_address, 6)),
    "WireguardPublicKey": (("status", "wireguardPublicKey"), str),
    "WireguardPublicKeyV6": (("status", "wireguardPublicKeyV6"), str),
    "Interfaces": (("spec", "interfaces"), _interfaces),
}
#: annotations of tunnel addresses that Calico's IPAM gave; a node with a range of its own has others
IPAM_TUNNELS = frozenset({"IPv4IPIPTunnelAddr", "IPv4WireguardInterfaceAddr", "IPv6WireguardInterfaceAddr"})
#: annotations that hold, as JSON, the labels and annotations that only Calico's node has
OWN = ("labels", "annotations")
#: annotation of Calico's node only: the labels of Kubernetes, so that whoever writes it back knows whose they are
KUBE_LABELS = PREFIX + "kube-labels"
ADDRESS_TYPES = ("InternalIP", "ExternalIP")


def node_of(document: Mapping[str, Any], *, use_pod_cidr: bool = False) -> Resource:
    """Return the Calico node that a Kubernetes node is. Values that cannot be are left out.

    Of a label in both places the Kubernetes one counts. ``use_pod_cidr``: nodes hand out their own ranges, so tunnel
    addresses follow from the range and not from annotations.
    """
    metadata = mapping(document.get("metadata"))
    annotations = mapping(metadata.get("annotations"))
    name = str(metadata.get("name") or "")
    body: dict[str, Any] = {
        "kind": NODE,
        "apiVersion": V3,
        "metadata": {**{k: metadata[k] for k in KEPT if k in metadata}, "name": name},
        "spec": {"orchRefs": [{"nodeName": name, "orchestrator": "k8s"}]},
        "status": {},
    }
    pod_cidr = str(mapping(document.get("spec")).get("podCIDR") or "") if use_pod_cidr else ""
    if pod_cidr:
        _put_tunnel_addresses(body, pod_cidr, keyed=bool(annotations.get(PREFIX + "WireguardPublicKey")))
    for annotation, (place, read) in FIELDS.items():
        text = annotations.get(PREFIX + annotation)
        if text and not (pod_cidr and annotation in IPAM_TUNNELS):
            try:
                _put(body, place, read(str(text)))
            except (InvalidInput, ValueError, TypeError) as error:
                log.debug("node %s: the annotation %s%s is ignored: %s", name, PREFIX, annotation, error)
    theirs = {str(k): str(v) for k, v in mapping(metadata.get("labels")).items()}
    body["metadata"]["labels"] = {str(k): str(v) for k, v in {**_own(annotations, "labels"), **theirs}.items()}
    body["metadata"]["annotations"] = {
        **_own(annotations, "annotations"),
        KUBE_LABELS: serialise(sorted_map(theirs) or None),
    }
    if addresses := _addresses(body["spec"], document):
        body["spec"]["addresses"] = addresses
    if ranges := mapping(document.get("spec")).get("podCIDRs"):
        body["status"]["podCIDRs"] = ranges
    return Resource(NODE, name, body)


def _put_tunnel_addresses(body: dict[str, Any], pod_cidr: str, *, keyed: bool) -> None:
    """Give a node the first address of its own range: for IPIP, and for WireGuard where it has a public key.

    Both are for IPv4: a range of IPv6 gives none.
    """
    try:
        cidr = parse_network(pod_cidr)
        first = str(cidr.network_address + 1)
    except (InvalidInput, ValueError) as error:
        log.warning("node %s has no tunnel address, its podCIDR is none: %s", body["metadata"]["name"], error)
        return
    if cidr.version == 4:
        _put(body, FIELDS["IPv4IPIPTunnelAddr"][0], first)
        if keyed:
            _put(body, FIELDS["IPv4WireguardInterfaceAddr"][0], first)


def _addresses(spec: Mapping[str, Any], document: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the addresses that Calico gave a node, then those of Kubernetes."""
    bgp, listed = mapping(spec.get("bgp")), mapping(document.get("status")).get("addresses")
    found = [(bgp.get(name), "CalicoNodeIP") for name in ("ipv4Address", "ipv6Address")]
    for each in map(mapping, listed if isinstance(listed, list) else ()):
        if each.get("type") in ADDRESS_TYPES:
            found.append((each.get("address"), each["type"]))
    return [{"address": str(address), "type": kind} for address, kind in found if address]


def node_patch(before: Resource, after: Resource, resource_version: str) -> dict[str, Any]:
    """Return the merge patch of annotations that turns one node into the other; Kubernetes' labels stay as they are."""
    changed: dict[str, Any] = {}
    for annotation, (place, _) in FIELDS.items():
        old, new = _at(before.document, place), _at(after.document, place)
        if old != new:
            changed[PREFIX + annotation] = None if new is None else _text(new)
    for name in OWN:
        old, new = _kept(before, name), _kept(after, name)
        if old != new:
            changed[PREFIX + name] = serialise(sorted_map(new)) if new else None
    return {"metadata": {"annotations": changed, "resourceVersion": resource_version}}


def _kept(node: Resource, name: str) -> dict[str, str]:
    """Return the labels or annotations of a node that only Calico has."""
    annotations = mapping(node.metadata.get("annotations"))
    theirs = _json(annotations.get(KUBE_LABELS)) if name == "labels" else {KUBE_LABELS: ""}
    return {str(k): str(v) for k, v in mapping(node.metadata.get(name)).items() if k not in theirs}


def _own(annotations: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return _json(annotations.get(PREFIX + name))


def _json(text: Any) -> Mapping[str, Any]:
    try:
        return mapping(json.loads(text or "{}"))
    except (ValueError, TypeError):
        return {}


def _put(body: dict[str, Any], place: tuple[str, ...], value: Any) -> None:
    *steps, last = place
    for step in steps:
        body = body.setdefault(step, {})
    body[last] = value


def _at(document: Mapping[str, Any], place: tuple[str, ...]) -> Any:
    value: Any = document
    for step in place:
        value = mapping(value).get(step)
    return value
