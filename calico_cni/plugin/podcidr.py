"""host-local with the range of the node: ``usePodCidr`` and ``usePodCidrIPv6`` (cni.md §6.2 a, §9 step 4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from ipaddress import IPv4Network, IPv6Network
from typing import Any

from calico_cni import gojson
from calico_cni.errors import CNIError
from calico_cni.plugin.rewriting import section, with_values
from calico_ipam.errors import InvalidInput
from calico_ipam.model.addresses import Network, parse_network
from calico_ipam.model.resource import mapping

#: magic word in lower case -> family
_WORDS = {"usepodcidr": 4, "usepodcidripv6": 6}
#: where stand-ins for DEL are looked for: ranges that documentation may use and nobody routes
_STAND_INS: Mapping[int, tuple[Network, int]] = {
    4: (IPv4Network("198.51.100.0/24"), 29),
    6: (IPv6Network("2001:db8::/64"), 125),
}
#: fields of a range that only make sense inside the subnet that the magic word stood for
_OF_SUBNET = ("rangestart", "rangeend", "gateway")


def for_add(document: Mapping[str, Any], node: Callable[[], Mapping[str, Any]], node_name: str) -> dict[str, Any]:
    """Return the configuration with the node's ranges in it. ``node``: reads the node, called when it is needed.

    Raises CNIError for wrong shapes, and for a range that the node does not have.
    """
    cidrs: dict[int, str] = {}

    def fill(range_: dict[str, Any], family: int) -> dict[str, Any]:
        if not cidrs:
            cidrs.update(pod_cidrs(node(), node_name))
        if family not in cidrs:
            word = "usePodCidr" if family == 4 else "usePodCidrIPv6"
            raise CNIError(
                f"{word} found but there is no IPv{family} CIDR configured",
                f"spec.podCIDRs of node {node_name} has no IPv{family} range: give it one, or write a subnet.",
            )
        return with_values(range_, {"subnet": cidrs[family]})

    return _filled(document, fill)


def for_delete(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration with stand-ins for the node's ranges: DEL needs no API server, only their number.

    They overlap with no other range: host-local refuses that, and would then never release the address.
    """
    taken = [network for range_ in _ranges(document) if (network := _network(range_)) is not None]

    def fill(range_: dict[str, Any], family: int) -> dict[str, Any]:
        room, length = _STAND_INS[family]
        free = next(net for net in room.subnets(new_prefix=length) if not any(_overlap(net, other) for other in taken))
        taken.append(free)
        kept = {key: value for key, value in range_.items() if key.lower() not in _OF_SUBNET}
        return with_values(kept, {"subnet": str(free)})

    return _filled(document, fill)


def pod_cidrs(node: Mapping[str, Any], name: str) -> dict[int, str]:
    """Return the ranges that a node hands out, by family. Raises CNIError."""
    listed = mapping(node.get("spec")).get("podCIDRs")
    texts = [str(text) for text in listed] if isinstance(listed, list) else []
    if not texts:
        raise CNIError(
            f"no podCidr for node {name}",
            f"Node {name} has no spec.podCIDRs: let the cluster allocate them (--allocate-node-cidrs), "
            "or write a subnet instead of usePodCidr.",
        )
    found: dict[int, str] = {}
    for text in texts:
        try:
            version = parse_network(text).version
        except InvalidInput as error:
            raise CNIError(f"podCidr {text} of node {name}: {error}") from None
        if version in found:
            raise CNIError("ClusterCIDR contains two ranges of the same type", f"Node {name} has {', '.join(texts)}.")
        found[version] = text
    return found


def routes(document: Mapping[str, Any]) -> list[Network]:
    """Return the destinations of host-local's routes, which the sandbox gets. Raises CNIError.

    One without a destination is left out; gateways are ignored: everything leaves by the one link.
    """
    ipam = section(document, "ipam")
    listed = ipam.get("routes")
    if listed is not None and not isinstance(listed, list):
        found = gojson.shown(ipam)
        raise _wrong(f"failed to parse host-local IPAM routes section; expecting list, not: {found}")
    targets = []
    for entry in listed or ():
        if not isinstance(entry, Mapping):
            raise _wrong(
                f"failed to parse host-local IPAM routes section; expecting a dict, not: {gojson.shown(entry)}"
            )
        if "dst" in entry:
            targets.append(_target(entry["dst"]))
    return targets


def _target(text: Any) -> Network:
    if not isinstance(text, str):
        raise _wrong(f"invalid IPAM routes section; expecting 'dst' to be a string, not: {gojson.shown(text)}")
    try:
        if "/" not in text:
            raise InvalidInput("no prefix length")
        return parse_network(text)
    except InvalidInput:
        raise CNIError(
            f"invalid CIDR address: {text}",
            'A route of the "ipam" section needs a CIDR as "dst", for example 10.0.0.0/8.',
        ) from None


# --- the shape of host-local's configuration ---------------------------------------------------------------


def _filled(document: Mapping[str, Any], fill: Callable[[dict[str, Any], int], dict[str, Any]]) -> dict[str, Any]:
    """Return the document with every range that has a magic word run through ``fill``; others stay as they are."""
    ipam = section(document, "ipam")
    before = dict(ipam)

    def filled(range_: dict[str, Any]) -> dict[str, Any]:
        family = _family(range_)
        return range_ if family is None else fill(range_, family)

    ipam = filled(ipam)
    ranges = _value(ipam, "ranges")
    if ranges is not None:
        sets = [[filled(_object(entry)) for entry in _set(entries)] for entries in _list(ranges)]
        ipam = with_values(ipam, {"ranges": sets})
    return dict(document) if ipam == before else with_values(document, {"ipam": ipam})


def _ranges(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield every range: the section itself, for the short form, and those in ``ranges``. Raises CNIError."""
    ipam = section(document, "ipam")
    yield ipam
    ranges = _value(ipam, "ranges")
    for entries in _list(ranges) if ranges is not None else ():
        for entry in _set(entries):
            yield _object(entry)


def _family(range_: Mapping[str, Any]) -> int | None:
    subnet = _value(range_, "subnet")
    # What is no text either, host-local will refuse in its own words.
    return _WORDS.get(subnet.lower()) if isinstance(subnet, str) else None


def _network(range_: Mapping[str, Any]) -> Network | None:
    if _family(range_) is not None:
        return None
    try:
        return parse_network(str(_value(range_, "subnet") or ""))
    except InvalidInput:
        return None  # host-local will say what it thinks of it


def _overlap(one: Network, other: Network) -> bool:
    return one.version == other.version and one.overlaps(other)


def _value(range_: Mapping[str, Any], name: str) -> Any:
    return next((value for key, value in reversed(list(range_.items())) if key.lower() == name), None)


def _set(entries: Any) -> list[Any]:
    if not isinstance(entries, list):
        # Upstream prints the empty list that its failed conversion left, not what it found.
        raise CNIError(
            "failed to parse host-local IPAM range set; was expecting a list, not: []",
            'Write "ranges" as a list of lists: [[{"subnet": "10.0.0.0/24"}]].',
        )
    return entries


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        found = gojson.shown(value)
        raise _wrong(f"failed to parse host-local IPAM ranges section; was expecting a list, not: {found}")
    return value


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise _wrong(f"failed to parse host-local IPAM data; was expecting a dict, not: {gojson.shown(value)}")
    return dict(value)


def _wrong(message: str) -> CNIError:
    return CNIError(message, "The ipam section has the shape that the plugin host-local documents.")
