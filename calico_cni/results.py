"""The result of ADD: one model, printed in and read from every version of the specification (cni.md §2.5)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Interface, IPv6Interface, ip_interface
from typing import Any

from calico_cni import gojson
from calico_cni.errors import CNIError
from calico_cni.protocol import go_quote

Interface = IPv4Interface | IPv6Interface

_CIDR = re.compile(r"[0-9a-fA-F.:]+/[0-9]{1,3}", re.ASCII)

#: Versions that share one shape.
OLDEST = ("0.1.0", "0.2.0")
MIDDLE = ("0.3.0", "0.3.1", "0.4.0")
NEWER = ("1.0.0", "1.1.0")


@dataclass(frozen=True, slots=True)
class ResultInterface:
    """A link. ``sandbox`` is empty for one on the host. ``extra`` holds what newer versions know and we do not set."""

    name: str
    mac: str = ""
    mtu: int = 0
    sandbox: str = ""
    extra: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ResultIP:
    """An address with its prefix length, host part kept. ``interface`` is an index into the result's interfaces."""

    address: Interface
    gateway: str = ""
    interface: int | None = None


@dataclass(frozen=True, slots=True)
class ResultRoute:
    """A route; ``extra`` holds mtu, advmss, priority, table and scope where they were given."""

    dst: str
    gw: str = ""
    extra: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DNS:
    """Name servers and search settings, as the IPAM plugin gave them."""

    nameservers: tuple[str, ...] = ()
    domain: str = ""
    search: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return the fields that are set, in the order of the older versions."""
        found: dict[str, Any] = {}
        if self.nameservers:
            found["nameservers"] = list(self.nameservers)
        if self.domain:
            found["domain"] = self.domain
        if self.search:
            found["search"] = list(self.search)
        if self.options:
            found["options"] = list(self.options)
        return found


@dataclass(frozen=True, slots=True)
class Result:
    """What ADD tells the runtime, in the model of the newest version."""

    interfaces: tuple[ResultInterface, ...] = ()
    ips: tuple[ResultIP, ...] = ()
    routes: tuple[ResultRoute, ...] = ()
    dns: DNS = field(default_factory=DNS)


# --- printing ----------------------------------------------------------------------------------------------


def print_result(result: Result, version: str) -> str:
    """Return the text of ``result`` at a version. Raises CNIError for one that the version cannot tell."""
    return gojson.dump_indented(document_of(result, version))


def document_of(result: Result, version: str) -> dict[str, Any]:
    """Return the document of ``result`` at a version, keys in the order in which they are printed."""
    if version in OLDEST:
        return _oldest(result, version)
    if version in MIDDLE:
        return _middle(result, version)
    if version in NEWER:
        return _newer(result, version)
    raise CNIError(f"unsupported CNI result version {go_quote(version)}")


def _oldest(result: Result, version: str) -> dict[str, Any]:
    document: dict[str, Any] = {"cniVersion": version}
    for family, key in ((4, "ip4"), (6, "ip6")):
        ip = next((i for i in result.ips if i.address.version == family), None)
        if ip is None:
            continue
        entry: dict[str, Any] = {"ip": str(ip.address)}
        if ip.gateway:
            entry["gateway"] = ip.gateway
        routes = [_route(route, known=False) for route in result.routes if _family(route.dst) == family]
        if routes:
            entry["routes"] = routes
        document[key] = entry
    if len(document) == 1:
        raise CNIError("cannot convert: no valid IP addresses")
    document["dns"] = result.dns.document()
    return document


def _middle(result: Result, version: str) -> dict[str, Any]:
    document: dict[str, Any] = {"cniVersion": version}
    if result.interfaces:
        document["interfaces"] = [_drop_empty(name=i.name, mac=i.mac, sandbox=i.sandbox) for i in result.interfaces]
    if result.ips:
        document["ips"] = [_middle_ip(ip) for ip in result.ips]
    if result.routes:
        document["routes"] = [_route(route, known=False) for route in result.routes]
    document["dns"] = result.dns.document()
    return document


def _middle_ip(ip: ResultIP) -> dict[str, Any]:
    entry: dict[str, Any] = {"version": str(ip.address.version)}
    if ip.interface is not None:
        entry["interface"] = ip.interface
    entry["address"] = str(ip.address)
    if ip.gateway:
        entry["gateway"] = ip.gateway
    return entry


def _newer(result: Result, version: str) -> dict[str, Any]:
    document: dict[str, Any] = {"cniVersion": version}
    dns = result.dns.document()
    if dns:
        document["dns"] = dict(sorted(dns.items()))
    if result.interfaces:
        document["interfaces"] = [
            _drop_empty(mac=i.mac, mtu=i.mtu, name=i.name, **i.extra, sandbox=i.sandbox) for i in result.interfaces
        ]
    if result.ips:
        document["ips"] = [_newer_ip(ip) for ip in result.ips]
    if result.routes:
        document["routes"] = [_route(route, known=True) for route in result.routes]
    return {"cniVersion": version, **{key: _sorted(value) for key, value in document.items() if key != "cniVersion"}}


def _newer_ip(ip: ResultIP) -> dict[str, Any]:
    entry: dict[str, Any] = {"address": str(ip.address)}
    if ip.gateway:
        entry["gateway"] = ip.gateway
    if ip.interface is not None:
        entry["interface"] = ip.interface
    return entry


def _route(route: ResultRoute, *, known: bool) -> dict[str, Any]:
    """``known``: does the version know more of a route than where it goes?"""
    entry: dict[str, Any] = {"dst": route.dst}
    if route.gw:
        entry["gw"] = route.gw
    if known:
        entry.update(route.extra)
    return entry


def _drop_empty(**fields: Any) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value}


def _sorted(value: Any) -> Any:
    if isinstance(value, list):
        return [dict(sorted(entry.items())) if isinstance(entry, dict) else entry for entry in value]
    return value


# --- reading -----------------------------------------------------------------------------------------------


def parse_result(document: Mapping[str, Any], configured: str) -> Result:
    """Return the result that another plugin printed.

    ``configured``: the network configuration's version, which stands in for one that the result does not tell.
    Raises CNIError for a version or a field that cannot be read.
    """
    version = document.get("cniVersion") or configured or "0.1.0"
    try:
        if version in OLDEST:
            return _read_oldest(document)
        if version in MIDDLE or version in NEWER:
            return _read_newer(document)
    except (ValueError, TypeError) as error:
        raise CNIError(str(error), "It stands in a result of a plugin, which cannot be used.") from None
    raise CNIError(f"unsupported CNI result version {go_quote(str(version))}")


def family_of_versions(version: str) -> tuple[str, ...]:
    """Return the versions that share a shape with ``version``; empty for one that is unknown."""
    return next((family for family in (OLDEST, MIDDLE, NEWER) if version in family), ())


def _read_oldest(document: Mapping[str, Any]) -> Result:
    ips: list[ResultIP] = []
    routes: list[ResultRoute] = []
    for key in ("ip4", "ip6"):
        entry = _object(document, key)
        if entry:
            ips.append(ResultIP(_interface(entry.get("ip")), _text(entry.get("gateway"))))
            routes += [_read_route(route) for route in _objects(entry, "routes")]
    return Result(ips=tuple(ips), routes=tuple(routes), dns=_read_dns(document))


def _read_newer(document: Mapping[str, Any]) -> Result:
    return Result(
        interfaces=tuple(_read_interface(entry) for entry in _objects(document, "interfaces")),
        ips=tuple(
            ResultIP(_interface(entry.get("address")), _text(entry.get("gateway")), _index(entry.get("interface")))
            for entry in _objects(document, "ips")
        ),
        routes=tuple(_read_route(entry) for entry in _objects(document, "routes")),
        dns=_read_dns(document),
    )


def _read_interface(entry: Mapping[str, Any]) -> ResultInterface:
    extra = {key: str(entry[key]) for key in ("pciID", "socketPath") if entry.get(key)}
    mtu = entry.get("mtu")
    return ResultInterface(
        _text(entry.get("name")),
        _text(entry.get("mac")),
        mtu if isinstance(mtu, int) else 0,
        _text(entry.get("sandbox")),
        extra,
    )


def _read_route(entry: Mapping[str, Any]) -> ResultRoute:
    extra = {
        key: value
        for key in ("advmss", "mtu", "priority", "scope", "table")
        if isinstance(value := entry.get(key), int) and (value or key in ("scope", "table"))
    }
    # A destination keeps its host part here: what another plugin said is passed on as it was said.
    return ResultRoute(_cidr(entry.get("dst")), _text(entry.get("gw")), extra)


def _read_dns(document: Mapping[str, Any]) -> DNS:
    dns = _object(document, "dns")
    return DNS(_texts(dns, "nameservers"), _text(dns.get("domain")), _texts(dns, "search"), _texts(dns, "options"))


def _cidr(value: Any) -> str:
    return str(_interface(value))


def _interface(value: Any) -> Interface:
    """Return an address with its length; netmasks and zones, which Python would take, are none to the runtimes."""
    text = _text(value)
    try:
        if _CIDR.fullmatch(text):
            return ip_interface(text)
    except ValueError:
        pass
    raise ValueError(f"invalid CIDR address: {text or '<nil>'}")


def _family(cidr: str) -> int:
    return 6 if ":" in cidr else 4


def _text(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _texts(owner: Mapping[str, Any], key: str) -> tuple[str, ...]:
    return tuple(_text(entry) for entry in _list(owner, key))


def _list(owner: Mapping[str, Any], key: str) -> Sequence[Any]:
    value = owner.get(key)
    if value is not None and not isinstance(value, list):
        raise TypeError(f"{key} is no list but {value!r}")
    return value or ()


def _objects(owner: Mapping[str, Any], key: str) -> Sequence[Mapping[str, Any]]:
    found = _list(owner, key)
    for entry in found:
        if not isinstance(entry, Mapping):
            raise TypeError(f"{key} holds {entry!r}, which is no object")
    return found


def _object(owner: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = owner.get(key)
    if value is not None and not isinstance(value, Mapping):
        raise TypeError(f"{key} is no object but {value!r}")
    return value or {}


def _index(value: Any) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise TypeError(f"{value!r} is no index of an interface")
