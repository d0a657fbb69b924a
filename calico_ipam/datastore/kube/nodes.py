"""Kubernetes' nodes as Calico's: what Calico knows of a node is in its annotations (datastore §10)."""

from __future__ import annotations

import base64
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
KEY_BYTES = 32  # of a WireGuard key

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
    parts = [int(high), int(low)] if dot else [int(text)]
    if any(not 0 <= part <= (0xFFFF if dot else MOST_AS) for part in parts):
        raise ValueError("out of range")
    return parts[0] * 0x10000 + parts[1] if dot else parts[0]


def _public_key(text: str) -> str:
    if len(base64.b64decode(text, validate=True)) != KEY_BYTES:
        raise ValueError("no public key")
    return text


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
    "WireguardPublicKey": (("status", "wireguardPublicKey"), _public_key),
    "WireguardPublicKeyV6": (("status", "wireguardPublicKeyV6"), _public_key),
    "Interfaces": (("spec", "interfaces"), _interfaces),
}
#: annotations that hold, as JSON, the labels and annotations that only Calico's node has
OWN = ("labels", "annotations")


def node_of(document: Mapping[str, Any]) -> Resource:
    """Return the Calico node that a Kubernetes node is. Values that cannot be are left out.

    Of a label in both places the Kubernetes one counts.
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
    for annotation, (place, read) in FIELDS.items():
        text = annotations.get(PREFIX + annotation)
        if text:
            try:
                _put(body, place, read(str(text)))
            except (InvalidInput, ValueError, TypeError) as error:
                log.debug("node %s: the annotation %s%s is ignored: %s", name, PREFIX, annotation, error)
    labels = {**_own(annotations, "labels"), **mapping(metadata.get("labels"))}
    body["metadata"]["labels"] = {str(k): str(v) for k, v in labels.items()}
    if own := _own(annotations, "annotations"):
        body["metadata"]["annotations"] = dict(own)
    return Resource(NODE, name, body)


def node_patch(before: Resource, after: Resource, origin: Any, resource_version: str) -> dict[str, Any]:
    """Return the merge patch of annotations that turns one node into the other.

    ``origin``: the Kubernetes node; what its own labels say is not written again, and cannot be changed here.
    """
    changed: dict[str, Any] = {}
    for annotation, (place, _) in FIELDS.items():
        old, new = _at(before.document, place), _at(after.document, place)
        if old != new:
            changed[PREFIX + annotation] = None if new is None else _text(new)
    for name in OWN:
        wanted = mapping(after.metadata.get(name))
        if wanted != mapping(before.metadata.get(name)):
            theirs = mapping(mapping(mapping(origin).get("metadata")).get("labels")) if name == "labels" else {}
            own = {str(k): v for k, v in wanted.items() if k not in theirs}
            changed[PREFIX + name] = serialise(sorted_map(own)) if own else None
    return {"metadata": {"annotations": changed, "resourceVersion": resource_version}}


def _own(annotations: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    try:
        return mapping(json.loads(annotations.get(PREFIX + name) or "{}"))
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
