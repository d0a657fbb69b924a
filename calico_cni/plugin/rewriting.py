"""The network configuration as another plugin gets it: changed in places, everything else as it came (cni.md §6.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from calico_cni import gojson
from calico_cni.context import Call
from calico_cni.plugin.annotations import Wishes
from calico_cni.protocol import Request
from calico_ipam.model.addresses import Address


def section(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a copy of an object in a document; names match without regard to case, and the last one counts."""
    found: Mapping[str, Any] = {}
    for key, value in document.items():
        if key.lower() == name and isinstance(value, Mapping):
            found = value
    return dict(found)


def with_values(document: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with other values, in the place of every spelling of their names."""
    kept = {key: value for key, value in document.items() if key.lower() not in changes}
    return {**kept, **changes}


def with_wishes(document: Mapping[str, Any], asked: Wishes) -> dict[str, Any]:
    """Return the configuration for calico-ipam with pools and families that annotations chose (§6.2 d)."""
    changes: dict[str, Any] = {}
    if asked.ipv4_pools is not None:
        changes["ipv4_pools"] = list(asked.ipv4_pools)
    if asked.ipv6_pools is not None:
        changes["ipv6_pools"] = list(asked.ipv6_pools)
    if asked.families is not None:
        changes["assign_ipv4"] = "true" if 4 in asked.families else "false"
        changes["assign_ipv6"] = "true" if 6 in asked.families else "false"
    if not changes:
        return dict(document)
    return with_values(document, {"ipam": with_values(section(document, "ipam"), changes)})


def with_addresses(document: Mapping[str, Any], addresses: Sequence[Address]) -> dict[str, Any]:
    """Return the configuration that asks calico-ipam for these addresses at once.

    One request instead of one for each address: when the second cannot be had, the first is not kept (§15.5).
    """
    runtime = with_values(section(document, "runtimeconfig"), {"ips": [str(address) for address in addresses]})
    found = with_values(document, {"runtimeconfig": None})
    del found["runtimeconfig"]
    return {**found, "runtimeConfig": runtime}


def with_stdin(call: Call, document: Mapping[str, Any]) -> Call:
    """Return the call with another network configuration on stdin."""
    stdin = gojson.dump_compact(document).encode("utf-8", "surrogateescape")
    return replace(call, request=Request(call.request.program, call.request.environ, stdin))
