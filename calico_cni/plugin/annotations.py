"""What a pod's and its namespace's annotations ask for (cni.md §6.2, §6.3, §10).

Everything is read, and refused, before anything is allocated. Error texts are upstream's; what is said beside them
quotes the annotation and its rule, since the text of a JSON parser helps nobody (P24, P29).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from calico_cni import gojson
from calico_cni.errors import CNIError
from calico_cni.netconf import NetConf
from calico_cni.protocol import CALICO_IPAM, go_quote
from calico_ipam.datastore.kube.pods import FLOATING_IPS
from calico_ipam.errors import InvalidInput
from calico_ipam.model.addresses import Address, parse_address
from calico_ipam.model.resource import mapping

PREFIX = "cni.projectcalico.org/"
IPV4_POOLS = f"{PREFIX}ipv4pools"
IPV6_POOLS = f"{PREFIX}ipv6pools"
IP_FAMILIES = f"{PREFIX}ipFamilies"
IP_ADDRS = f"{PREFIX}ipAddrs"
IP_ADDRS_NO_IPAM = f"{PREFIX}ipAddrsNoIpam"
HW_ADDR = f"{PREFIX}hwAddr"

_MAC = re.compile(r"[0-9a-fA-F]{2}(([:-])[0-9a-fA-F]{2})(\2[0-9a-fA-F]{2}){4}|([0-9a-fA-F]{4}\.){2}[0-9a-fA-F]{4}")


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the annotations ask for. ``None`` for pools and families: the network configuration decides.

    ``assigned``: addresses that IPAM shall assign; ``given``: addresses that no IPAM knows. ``floating``: addresses
    that are to be translated to the pod's. ``mac``: empty leaves it to the kernel.
    """

    ipv4_pools: tuple[str, ...] | None = None
    ipv6_pools: tuple[str, ...] | None = None
    families: tuple[int, ...] | None = None
    assigned: tuple[Address, ...] = ()
    given: tuple[Address, ...] = ()
    floating: tuple[Address, ...] = ()
    mac: str = ""


def annotations_of(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the annotations of a pod or a namespace."""
    found = mapping(mapping(document.get("metadata")).get("annotations"))
    return {str(key): str(value) for key, value in found.items()}


def wishes(conf: NetConf, pod: Mapping[str, str], namespace: Mapping[str, str]) -> Wishes:
    """Return what a pod's annotations, and its namespace's where the pod has none, ask for. Raises CNIError."""
    ours = conf.ipam.type == CALICO_IPAM
    ipv4 = _pools(pod, namespace, IPV4_POOLS) if ours else None
    ipv6 = _pools(pod, namespace, IPV6_POOLS) if ours else None
    families = _families(pod, namespace) if ours else None
    assigned, given = _addresses(conf, pod)
    return Wishes(ipv4, ipv6, families, assigned, given, _floating(conf, pod), _mac(pod))


# --- pools and families ------------------------------------------------------------------------------------


def _chosen(pod: Mapping[str, str], namespace: Mapping[str, str], name: str) -> tuple[str, str]:
    """Return an annotation's text and whose it is; the pod's counts before the namespace's."""
    if pod.get(name):
        return pod[name], "pod"
    return namespace.get(name) or "", "namespace"


def _pools(pod: Mapping[str, str], namespace: Mapping[str, str], name: str) -> tuple[str, ...] | None:
    text, whose = _chosen(pod, namespace, name)
    if not text:
        return None
    rule = 'a JSON list of names or CIDRs of IP pools, for example ["pool-1", "10.0.0.0/24"]'
    try:
        return text_list(text)
    except gojson.GoJSONError as error:
        raise CNIError(str(error), quoted(whose, name, text, rule)) from None


def _families(pod: Mapping[str, str], namespace: Mapping[str, str]) -> tuple[int, ...] | None:
    text, whose = _chosen(pod, namespace, IP_FAMILIES)
    if not text:
        return None
    rule = 'a JSON list of "IPv4" and "IPv6", written exactly so'
    try:
        found = text_list(text)
    except gojson.GoJSONError as error:
        raise CNIError(str(error), quoted(whose, IP_FAMILIES, text, rule)) from None
    known = {"IPv4": 4, "IPv6": 6}
    if any(family not in known for family in found):
        raise CNIError(f"error parsing ipFamilies: {text}", quoted(whose, IP_FAMILIES, text, rule))
    return tuple(sorted({known[family] for family in found}))


# --- addresses ---------------------------------------------------------------------------------------------


def _addresses(conf: NetConf, pod: Mapping[str, str]) -> tuple[tuple[Address, ...], tuple[Address, ...]]:
    """Return the addresses that IPAM shall assign and those that it shall not know; only one kind may be asked for."""
    assigned, given = pod.get(IP_ADDRS) or "", pod.get(IP_ADDRS_NO_IPAM) or ""
    if assigned and given:
        raise CNIError(
            "can't have both annotations: 'ipAddrs' and 'ipAddrsNoIpam' in use at the same time",
            f"Remove one of {IP_ADDRS} and {IP_ADDRS_NO_IPAM} from the pod.",
        )
    if given:
        _need_calico_ipam(conf, "ipAddrsNoIpam")
        _need_feature(conf.ip_addrs_no_ipam, "ip_addrs_no_ipam", IP_ADDRS_NO_IPAM)
        return (), _address_list(IP_ADDRS_NO_IPAM, given)
    if assigned:
        _need_calico_ipam(conf, "ipAddrs")
        return _address_list(IP_ADDRS, assigned), ()
    return (), ()


def _address_list(name: str, text: str) -> tuple[Address, ...]:
    advice = quoted("pod", name, text, 'a JSON list of addresses, at most one of each family: ["10.0.0.5"]')
    try:
        texts = text_list(text)
    except gojson.GoJSONError as error:
        failed = f"failed to parse '{text}' as JSON: {error}"
        raise CNIError(f"failed to parse IPs {text} for annotation {go_quote(name)}: {failed}", advice) from None
    if not texts:
        raise CNIError(f"annotation {go_quote(name)} specified but empty", advice)
    found: list[Address] = []
    for entry in texts:
        try:
            address = parse_address(entry)
        except InvalidInput:
            raise CNIError(f"invalid IP format: {entry}", advice) from None
        if any(other.version == address.version for other in found):
            family = f"IPv{address.version}"
            raise CNIError(f"cannot have more than one {family} address for {go_quote(name)} annotation", advice)
        found.append(address)
    return tuple(found)


def _floating(conf: NetConf, pod: Mapping[str, str]) -> tuple[Address, ...]:
    text = pod.get(FLOATING_IPS) or ""
    if not text:
        return ()
    _need_feature(conf.floating_ips, "floating_ips", FLOATING_IPS)
    advice = quoted("pod", FLOATING_IPS, text, 'a JSON list of addresses: ["192.0.2.7"]')
    try:
        texts = text_list(text)
    except gojson.GoJSONError as error:
        raise CNIError(f"failed to parse '{text}' as JSON: {error}", advice) from None
    found = []
    for entry in texts:
        try:
            found.append(parse_address(entry))
        except InvalidInput:
            raise CNIError(f"invalid floating IP: {entry}", advice) from None
    return tuple(found)


def _mac(pod: Mapping[str, str]) -> str:
    text = pod.get(HW_ADDR) or ""
    if text and not _MAC.fullmatch(text):
        raise CNIError(
            f"failed to parse MAC address {text} provided via {HW_ADDR}: address {text}: invalid MAC address",
            quoted("pod", HW_ADDR, text, "six pairs of hexadecimal digits: 02:00:00:00:00:01"),
        )
    if text and int(text[:2], 16) & 1:
        raise CNIError(
            f"hardware address {text} in annotation {HW_ADDR} is a multicast address",
            "An interface needs a unicast address: the first pair must be even.",
        )
    return ":".join(re.findall("..", re.sub("[:.-]", "", text))).lower()


def _need_calico_ipam(conf: NetConf, annotation: str) -> None:
    if conf.ipam.type != CALICO_IPAM:
        raise CNIError(
            f"{annotation} is not compatible with configured IPAM: {conf.ipam.type}",
            f"Remove the annotation from the pod; addresses can be chosen with {CALICO_IPAM} only.",
        )


def _need_feature(enabled: bool, feature: str, annotation: str) -> None:
    if not enabled:
        raise CNIError(
            f"requested feature is not enabled: {feature}",
            f'Set "feature_control": {{"{feature}": true}} in the network configuration, '
            f"or remove the annotation {annotation} from the pod.",
        )


def text_list(text: str) -> tuple[str, ...]:
    """Return a JSON list of strings; ``null`` is an empty one, and inside it an empty string. Raises GoJSONError."""
    found = gojson.load(text.encode("utf-8", "surrogatepass"))
    if found is None:
        return ()
    if not isinstance(found, list):
        raise gojson.cannot(found, "value", "[]string")
    for entry in found:
        if not isinstance(entry, str | None):
            raise gojson.cannot(entry, "value", "string")
    return tuple(entry or "" for entry in found)


def quoted(whose: str, name: str, text: str, rule: str) -> str:
    return f"The {whose}'s annotation {name} is {text!r}; it must be {rule}."
