"""Bandwidth, packet rate, connections and DSCP that a pod's annotations ask for (cni.md §10)."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal
from typing import Any

log = logging.getLogger(__name__)

PREFIX = "qos.projectcalico.org/"
_KUBERNETES = {"ingress": "kubernetes.io/ingress-bandwidth", "egress": "kubernetes.io/egress-bandwidth"}

#: lowest and highest value of each control; what lies outside is moved to the nearer end
_LIMITS: Mapping[str, tuple[int, int]] = {
    "Bandwidth": (1000, 10**15),  # bit/s
    "Burst": (1000, 34359738360),  # bit
    "Peakrate": (1010, 1010 * 10**12),  # bit/s
    "Minburst": (1000, 10**8),  # bytes
    "PacketRate": (1, 10_000),
    "PacketBurst": (1, 10_000),
    "MaxConnections": (1, 4294967295),
}
_DEFAULT_BURST = 4 * 2**30
_DEFAULT_PACKET_BURST = 5

_DSCP_NAMES = frozenset({"DF", "EF"} | {f"AF{c}{d}" for c in range(1, 5) for d in range(1, 4)}) | frozenset(
    f"CS{n}" for n in range(7)
)
_HIGHEST_DSCP = 63

_QUANTITY = re.compile(r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))([a-zA-Z]*|[eE][+-]?[0-9]+)")
_SUFFIXES: Mapping[str, Decimal] = {
    "": Decimal(1),
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    **{suffix: Decimal(1024) ** power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
}


def controls_of(annotations: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``spec.qosControls`` of a pod's endpoint, empty when nothing is asked for. Never raises.

    A quantity that cannot be read counts as 0, that is as not asked for.
    """
    found: dict[str, Any] = {}
    for direction in ("ingress", "egress"):
        found |= _direction(annotations, direction)
    dscp = _dscp(str(annotations.get(f"{PREFIX}dscp") or ""))
    if dscp is not None:
        found["dscp"] = dscp
    return found


def _direction(annotations: Mapping[str, Any], direction: str) -> dict[str, int]:
    def read(control: str, *more: str) -> int:
        names = (f"{PREFIX}{direction}{control}", *more)
        name = next((name for name in names if annotations.get(name)), None)
        return 0 if name is None else _clamped(name, str(annotations[name]), *_LIMITS[control])

    bandwidth = read("Bandwidth", _KUBERNETES[direction])
    burst = (read("Burst") or _DEFAULT_BURST) if bandwidth else 0
    peakrate = read("Peakrate")
    peakrate = peakrate if bandwidth and peakrate > bandwidth else 0
    rate = read("PacketRate")
    values = {
        "Bandwidth": bandwidth,
        "Burst": burst,
        "Peakrate": peakrate,
        "Minburst": read("Minburst") if peakrate else 0,
        "PacketRate": rate,
        "PacketBurst": (read("PacketBurst") or _DEFAULT_PACKET_BURST) if rate else 0,
        "MaxConnections": read("MaxConnections"),
    }
    return {f"{direction}{control}": value for control, value in values.items() if value}


def _clamped(name: str, text: str, lowest: int, highest: int) -> int:
    value = quantity(text)
    if value is None:
        log.warning("annotation %s: %r is no quantity and is ignored", name, text)
        return 0
    if not lowest <= value <= highest:
        log.warning("annotation %s: %s lies outside %d to %d and is moved there", name, text, lowest, highest)
    return min(max(value, lowest), highest)


def quantity(text: str) -> int | None:
    """Return a quantity of Kubernetes as a whole number, rounded up; None for a text that is none."""
    found = _QUANTITY.fullmatch(text)
    if found is None:
        return None
    number, suffix = found[1], found[2]
    if suffix in _SUFFIXES:
        value = Decimal(number) * _SUFFIXES[suffix]
    elif re.fullmatch(r"[eE][+-]?[0-9]{1,3}", suffix):
        value = Decimal(number + suffix)
    else:
        return None
    return int(value.to_integral_value(ROUND_CEILING))


def _dscp(text: str) -> int | str | None:
    if not text:
        return None
    if re.fullmatch(r"[0-9]{1,2}", text) and int(text) <= _HIGHEST_DSCP:
        return int(text)
    if text.upper() in _DSCP_NAMES:
        return text.upper()
    log.warning("annotation %sdscp: %r is neither 0 to %d nor a name, and is ignored", PREFIX, text, _HIGHEST_DSCP)
    return None
