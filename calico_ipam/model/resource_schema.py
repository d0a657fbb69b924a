"""The fields of the resources that people write, in the order in which upstream stores them (cli §8, §9, §10).

A field is ``string``, ``bool``, ``int``, ``[]string``, a nested schema, a list of one, a map of strings, or ``any``.
Zero values are not stored, unless the kind says so; of a type with a star they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from calico_ipam.errors import InvalidInput

ANY = "any"
Field = Any  # a type name, a nested mapping, an Optional one, or a list with one of them


@dataclass(frozen=True, slots=True)
class Optional:
    """A nested mapping that means something even when it is empty."""

    fields: Mapping[str, Field]


METADATA: Mapping[str, Field] = {
    "name": "string",
    "generateName": "string",
    "namespace": "string",
    "selfLink": "string",
    "uid": "string",
    "resourceVersion": "string",
    "generation": "int",
    "creationTimestamp": ANY,
    "deletionTimestamp": ANY,
    "deletionGracePeriodSeconds": "int",
    "labels": "map[string]string",
    "annotations": "map[string]string",
    "ownerReferences": ANY,
    "finalizers": "[]string",
    "managedFields": ANY,
}

_POOL = {
    "cidr": "string",
    "vxlanMode": "v3.VXLANMode",
    "ipipMode": "v3.IPIPMode",
    "natOutgoing": "bool",
    "disabled": "bool",
    "disableBGPExport": "bool",
    "blockSize": "int",
    "nodeSelector": "string",
    "namespaceSelector": "string",
    "allowedUses": "[]v3.IPPoolAllowedUse",
    "assignmentMode": "v3.AssignmentMode",
}
_NODE = {
    "bgp": {
        "asNumber": ANY,
        "ipv4Address": "string",
        "ipv6Address": "string",
        "ipv4IPIPTunnelAddr": "string",
        "routeReflectorClusterID": "string",
    },
    "ipv4VXLANTunnelAddr": "string",
    "vxlanTunnelMACAddr": "string",
    "ipv6VXLANTunnelAddr": "string",
    "vxlanTunnelMACAddrV6": "string",
    "orchRefs": [{"nodeName": "string", "orchestrator": "string"}],
    "wireguard": {"interfaceIPv4Address": "string", "interfaceIPv6Address": "string"},
    "addresses": [{"address": "string", "type": "string"}],
}
_PERIOD = Optional({"reconcilerPeriod": "string"})
_CONTROLLERS = {
    "logSeverityScreen": "string",
    "healthChecks": "string",
    "etcdV3CompactionPeriod": "string",
    "prometheusMetricsPort": "*int",
    "controllers": Optional(
        {
            "node": Optional(
                {
                    "reconcilerPeriod": "string",
                    "syncLabels": "string",
                    "hostEndpoint": Optional(
                        {
                            "autoCreate": "string",
                            "createDefaultHostEndpoint": "string",
                            "templates": [
                                {
                                    "generateName": "string",
                                    "interfaceCIDRs": "[]string",
                                    "interfacePattern": "string",
                                    "nodeSelector": "string",
                                    "labels": "map[string]string",
                                    "annotations": "map[string]string",
                                }
                            ],
                        }
                    ),
                    "leakGracePeriod": "string",
                }
            ),
            "policy": _PERIOD,
            "workloadEndpoint": _PERIOD,
            "serviceAccount": _PERIOD,
            "namespace": _PERIOD,
            "loadBalancer": Optional({"assignIPs": "string"}),
            "migration": Optional({"policyNameMigrator": "string"}),
        }
    ),
    "debugProfilePort": "*int32",
}
_ENDPOINT = {
    "orchestrator": "string",
    "workload": "string",
    "node": "string",
    "containerID": "string",
    "pod": "string",
    "endpoint": "string",
    "serviceAccountName": "string",
    "ipNetworks": "[]string",
    "ipNATs": [{"internalIP": "string", "externalIP": "string"}],
    "ipv4Gateway": "string",
    "ipv6Gateway": "string",
    "profiles": "[]string",
    "interfaceName": "string",
    "mac": "string",
    "ports": ANY,
    "allowSpoofedSourcePrefixes": "[]string",
    "qosControls": ANY,
}


@dataclass(frozen=True, slots=True)
class Schema:
    """One kind: the fields of its spec and status; ``kept`` fields are stored even when they are zero."""

    spec: Field
    status: Field = ANY
    kept: frozenset[str] = field(default_factory=frozenset)
    shown: frozenset[str] = field(default_factory=frozenset)  #: printed even when it is zero, but never made up


SCHEMAS: Mapping[str, Schema] = {
    "IPPool": Schema(_POOL),
    "IPReservation": Schema({"reservedCIDRs": "[]string"}),
    "IPAMConfiguration": Schema(
        {
            "strictAffinity": "bool",
            "maxBlocksPerHost": "int32",
            "autoAllocateBlocks": "bool",
            "kubeVirtVMAddressPersistence": "v3.VMAddressPersistence",
            "ipCooldownSeconds": "int",
        },
        kept=frozenset({"strictAffinity", "autoAllocateBlocks"}),
    ),
    "Node": Schema(_NODE),
    "KubeControllersConfiguration": Schema(_CONTROLLERS, kept=frozenset({"controllers"})),
    "WorkloadEndpoint": Schema(_ENDPOINT),
    "ClusterInformation": Schema(
        {
            "clusterGUID": "string",
            "clusterType": "string",
            "calicoVersion": "string",
            "datastoreReady": "bool",
            "variant": "string",
        },
        shown=frozenset({"datastoreReady"}),
    ),
}


class UnknownField(InvalidInput):
    """A document has a field that its kind lacks."""

    def __init__(self, name: str, known: Sequence[str], where: str) -> None:
        from difflib import get_close_matches

        close = get_close_matches(name, known, n=2)
        hint = f"Did you mean {' or '.join(close)}?" if close else f"{where} has: {', '.join(known)}."
        super().__init__(
            f"field in document is not recognized or is in the wrong location: {name}", subject=name, hint=hint
        )


class WrongType(InvalidInput):
    """A field of a document has another type than its kind's."""


def checked(kind: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with known fields only, its spec in upstream's order and without zero values.

    Raises UnknownField, WrongType.
    """
    schema = SCHEMAS[kind]
    top = ("apiVersion", "kind", "metadata", "spec", "status")
    for name in document:
        if name not in top:
            raise UnknownField(str(name), top, f"A {kind}")
    for name, type_name in (("metadata", "v1.ObjectMeta"), ("spec", f"v3.{kind}Spec")):
        if not isinstance(document.get(name) or {}, Mapping):
            raise _mismatch(document[name], kind, name, type_name)
    metadata = _read(document.get("metadata") or {}, METADATA, "ObjectMeta", "metadata")
    spec = _read(document.get("spec") or {}, schema.spec, f"{kind}Spec", "spec", schema.kept)
    for name in schema.kept:
        spec.setdefault(name, {} if isinstance(schema.spec[name], Optional) else False)
    if schema.kept:
        spec = {name: spec[name] for name in schema.spec if name in spec}
    found = {"kind": kind, "apiVersion": "projectcalico.org/v3", "metadata": metadata, "spec": spec}
    return found | ({"status": document["status"]} if document.get("status") else {})


def _read(value: Any, fields: Field, struct: str, path: str, kept: frozenset[str] = frozenset()) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise _mismatch(value, struct, path, f"v3.{struct}")
    if fields == ANY:
        return dict(value)
    folded = {name.casefold(): name for name in fields}
    given: dict[str, Any] = {}
    for key, item in value.items():
        name = key if key in fields else folded.get(str(key).casefold())
        if name is None:
            raise UnknownField(str(key), list(fields), f"'{path}'")
        given[name] = _typed(item, fields[name], struct, f"{path}.{name}")
    return {name: given[name] for name in fields if name in given and is_kept(given[name], fields[name], name in kept)}


def is_kept(value: Any, kind: Field, always: bool) -> bool:
    """Tell whether a field is written: Go leaves out what is empty, but for what is optional and there."""
    optional = isinstance(kind, Optional) or (isinstance(kind, str) and kind.startswith("*"))
    return bool(value) or always or (optional and value is not None)


def _typed(value: Any, kind: Field, struct: str, path: str) -> Any:
    if value is None or kind == ANY:
        return value
    if isinstance(kind, (Mapping, Optional)):
        return _read(value, kind.fields if isinstance(kind, Optional) else kind, struct, path)
    if isinstance(kind, list):
        if not isinstance(value, list):
            raise _mismatch(value, struct, path, "[]object")
        return [_typed(item, kind[0], struct, path) for item in value]
    kind = kind.removeprefix("*")
    if kind.startswith("[]"):
        if not isinstance(value, list):
            raise _mismatch(value, struct, path, kind)
        return [_text(item, struct, path, kind[2:]) for item in value]
    if kind == "map[string]string":
        if not isinstance(value, Mapping):
            raise _mismatch(value, struct, path, kind)
        return {str(name): _text(item, struct, path, "string") for name, item in value.items()}
    if kind in _BITS:
        return _whole_number(value, struct, path, kind)
    if kind == "bool":
        if not isinstance(value, bool):
            raise _mismatch(value, struct, path, kind)
        return value
    return _text(value, struct, path, kind)


_BITS = {"int": 63, "int32": 31}


def _text(value: Any, struct: str, path: str, kind: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _mismatch(value, struct, path, kind)
    return value


def _whole_number(value: Any, struct: str, path: str, kind: str) -> int:
    """Return a number without a fraction, as Go reads one: 26.0 is 26."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _mismatch(value, struct, path, kind)
    if isinstance(value, float) or not -(1 << _BITS[kind]) <= value < 1 << _BITS[kind]:
        raise _mismatch(value, struct, path, kind, literal=f" {value}")
    return value


def _mismatch(value: Any, struct: str, path: str, kind: str, literal: str = "") -> WrongType:
    from_ = "bool" if isinstance(value, bool) else "number" if isinstance(value, (int, float)) else None
    from_ = from_ or {"str": "string", "list": "array"}.get(type(value).__name__, "object")
    return WrongType(
        f"error unmarshaling JSON: while decoding JSON: json: cannot unmarshal {from_}{literal} into Go struct field "
        f"{struct}.{path} of type {kind}",
        subject=path,
        hint=f"'{path}' must be {_named(kind)}.",
    )


def _named(kind: str) -> str:
    if kind.startswith("[]"):
        return "a list of texts"
    words = {
        "bool": "true or false",
        "int": "a whole number",
        "int32": "a whole number",
        "map[string]string": "a map of texts",
    }
    return words.get(kind, "a text")
