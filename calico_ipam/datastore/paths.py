"""Where an object lies in etcd and SQLite: key <-> path, scope -> ranges of paths (datastore §1, §2.1).

Paths are compared byte by byte, so a list is in lexicographic order: ``10.0.0.128-26`` precedes ``10.0.0.64-26``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from calico_ipam.errors import InvalidInput
from calico_ipam.model.addresses import parse_network, plain_network
from calico_ipam.model.keys import (
    Affinities,
    AffinityKey,
    BlockKey,
    Blocks,
    ConfigKey,
    HandleKey,
    Handles,
    HostKey,
    Key,
    ResourceKey,
    Resources,
    Scope,
)
from calico_ipam.model.resource import NAMESPACED

if TYPE_CHECKING:
    from calico_ipam.model.affinity import BlockOwner

IPAM_ROOT = "/calico/ipam/v2/"
ASSIGNMENT = IPAM_ROOT + "assignment/"
_BLOCK4 = ASSIGNMENT + "ipv4/block/"
HANDLE = IPAM_ROOT + "handle/"
CONFIG = IPAM_ROOT + "config"
RESOURCES = "/calico/resources/v3/projectcalico.org/"

PLURALS = {
    kind: kind.lower() + "s"
    for kind in (
        "IPPool",
        "IPReservation",
        "ClusterInformation",
        "KubeControllersConfiguration",
        "Node",
        "WorkloadEndpoint",
        "Profile",
        "IPAMConfiguration",
        "FelixConfiguration",
        "BGPConfiguration",
        "BGPPeer",
        "HostEndpoint",
    )
} | {
    # Only moved from store to store, by `datastore migrate`; nothing here understands them.
    "BlockAffinity": "blockaffinities",
    "Tier": "tiers",
    "BGPFilter": "bgpfilters",
    "GlobalNetworkPolicy": "globalnetworkpolicies",
    "GlobalNetworkSet": "globalnetworksets",
    "StagedGlobalNetworkPolicy": "stagedglobalnetworkpolicies",
    "NetworkPolicy": "networkpolicies",
    "NetworkSet": "networksets",
    "StagedNetworkPolicy": "stagednetworkpolicies",
    "StagedKubernetesNetworkPolicy": "stagedkubernetesnetworkpolicies",
}
_KINDS = {plural: kind for kind, plural in PLURALS.items()}


@dataclass(frozen=True, slots=True)
class PathRange:
    """All paths from ``start`` up to, not including, ``end``."""

    start: str
    end: str

    @classmethod
    def below(cls, prefix: str) -> PathRange:
        """Return the range of the paths that begin with ``prefix``."""
        return cls(prefix, _after(prefix))

    def holds(self, path: str) -> bool:
        return self.start <= path < self.end


def _after(prefix: str) -> str:
    """Return the first text behind every text that begins with ``prefix``."""
    for position in range(len(prefix) - 1, -1, -1):
        point = ord(prefix[position])
        if point < 0x10FFFF:
            following = 0xE000 if point == 0xD7FF else point + 1  # surrogates are no characters
            return prefix[:position] + chr(following)
    raise ValueError(f"no text lies behind all that begin with {prefix!r}")


def path_of(key: Key) -> str:
    """Return the path of an object. Raises InvalidInput for a key that has none."""
    path = _path(key)
    if not path.isascii():
        try:
            path.encode()
        except UnicodeEncodeError:
            raise InvalidInput(
                f"{str(key)!a} cannot be stored: it is no Unicode text",
                subject=ascii(str(key)),
                hint="Use names in UTF-8.",
            ) from None
    return path


def _path(key: Key) -> str:
    match key:
        case BlockKey(cidr):
            return f"{ASSIGNMENT}ipv{cidr.version}/block/{str(cidr).replace('/', '-')}"
        case AffinityKey(owner, cidr):
            kind, host = _segment(owner.kind, key), _segment(owner.host, key)
            return f"{IPAM_ROOT}{kind}/{host}/ipv{cidr.version}/block/{str(cidr).replace('/', '-')}"
        case HandleKey(handle):
            # A slash is let through: such handles exist, can be fetched, and must be removable.
            return HANDLE + (handle or _missing(key))
        case ConfigKey():
            return CONFIG
        case HostKey(host):
            return f"{IPAM_ROOT}host/{_segment(host, key)}"
        case ResourceKey(kind, name, namespace):
            name = _segment(name, key)
            if kind in NAMESPACED:
                name = f"{_segment(namespace, key)}/{name}"
            return f"{RESOURCES}{_plural(kind)}/{name}"


def _segment(text: str, key: Key) -> str:
    if not text:
        _missing(key)
    if "/" in text:
        raise InvalidInput(
            f"{key} cannot be stored: {text!r} contains a slash",
            subject=str(key),
            hint="Use a name without a slash.",
        )
    return text


def _missing(key: Key) -> str:
    raise InvalidInput(
        "insufficient identifiers, missing ''", subject=str(key), hint=f"Every part of {key} must be given."
    )


def _plural(kind: str) -> str:
    try:
        return PLURALS[kind]
    except KeyError:
        raise InvalidInput(f"unknown resource kind {kind!r}", subject=kind) from None


def key_of(path: str) -> Key | None:
    """Return the key of an object by its path, or None when the path is not one of an object."""
    if path.startswith(IPAM_ROOT):
        return _ipam_key(path[len(IPAM_ROOT) :].split("/"))
    if path.startswith(RESOURCES):
        return _resource_key(path[len(RESOURCES) :].split("/"))
    return None


def block_at(path: str) -> BlockKey | None:
    """Return the key of an IPv4 block whose path is the one that its key has; None for any other path.

    It says nothing that :func:`key_of` and :func:`path_of` would not, in a fourth of their time: to find a free place
    in a pool, a thousand paths are read.
    """
    if not path.startswith(_BLOCK4):
        return None
    base, _, length = path[len(_BLOCK4) :].rpartition("-")
    cidr = plain_network(base, length)
    return None if cidr is None else BlockKey(cidr)


def _ipam_key(parts: list[str]) -> Key | None:
    match parts:
        case ["assignment", "ipv4" | "ipv6", "block", text]:
            return _with_cidr(None, text)
        case [("host" | "virtual") as kind, host, "ipv4" | "ipv6", "block", text] if host:
            from calico_ipam.model.affinity import BlockOwner  # only who reads such rows pays for it

            return _with_cidr(BlockOwner(kind, host), text)
        case ["handle", handle]:
            return HandleKey(handle)
        case ["config"]:
            return ConfigKey()
        case _:
            return None


def _with_cidr(owner: BlockOwner | None, text: str) -> Key | None:
    base, dash, length = text.rpartition("-")
    if not dash:
        return None
    try:
        cidr = parse_network(f"{base}/{length}")
    except InvalidInput:
        return None
    return BlockKey(cidr) if owner is None else AffinityKey(owner, cidr)


def _resource_key(parts: list[str]) -> Key | None:
    kind = _KINDS.get(parts[0])
    match parts[1:]:
        case [name] if kind is not None and name and kind not in NAMESPACED:
            return ResourceKey(kind, name)
        case [namespace, name] if kind is not None and name and namespace and kind in NAMESPACED:
            return ResourceKey(kind, name, namespace)
        case _:
            return None


def ranges_of(scope: Scope) -> tuple[PathRange, ...]:
    """Return the ranges that hold a scope, ascending. They may hold more: ask :func:`within_scope` of each key."""
    match scope:
        case Blocks(version):
            return (PathRange.below(ASSIGNMENT if version is None else f"{ASSIGNMENT}ipv{version}/"),)
        case Affinities(kind, host, version):
            # Without a kind, both: upstream's list overlooks the rows of virtual owners (datastore §14.9).
            kinds = ("host", "virtual") if kind is None else (kind,)
            return tuple(PathRange.below(_affinity_prefix(k, host, version)) for k in kinds)
        case Handles():
            return (PathRange.below(HANDLE),)
        case Resources(kind, namespace, prefix):
            root = f"{RESOURCES}{_plural(kind)}/"
            if kind not in NAMESPACED:
                return (PathRange.below(root + prefix),)
            return (PathRange.below(root if namespace is None else f"{root}{namespace}/{prefix}"),)


def _affinity_prefix(kind: str, host: str | None, version: int | None) -> str:
    if host is None:
        return f"{IPAM_ROOT}{kind}/"
    # The closing slash keeps worker-10 out of worker-1's list.
    return f"{IPAM_ROOT}{kind}/{host}/" + (f"ipv{version}/block/" if version is not None else "")


def within_scope(scope: Scope, key: Key) -> bool:
    """Tell whether an object belongs to a scope."""
    match scope:  # the kinds of which there are many come first
        case Resources(kind, namespace, prefix):
            if not isinstance(key, ResourceKey) or key.kind != kind:
                return False
            return namespace in (None, key.namespace) and key.name.startswith(prefix)
        case Handles():
            return isinstance(key, HandleKey)
        case Blocks(version):
            return isinstance(key, BlockKey) and version in (None, key.cidr.version)
        case Affinities(kind, host, version):
            if not isinstance(key, AffinityKey) or version not in (None, key.cidr.version):
                return False
            return kind in (None, key.owner.kind) and host in (None, key.owner.host)
