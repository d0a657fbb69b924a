"""Names of IPAM objects in the Kubernetes API, their labels, and rules of names (datastore §2).

Names of workload endpoints and host interfaces are in :mod:`endpoint_names`, handle IDs in :mod:`handle_names`.
"""

from __future__ import annotations

import re
from typing import Literal

from calico_ipam.errors import InvalidInput
from calico_ipam.model.addresses import Network, parse_network, plain_network
from calico_ipam.model.affinity import BlockOwner

LABEL_AFFINITY_TYPE = "projectcalico.org/affinity-type"
LABEL_HOSTNAME_HASH = "projectcalico.org/hostname-hash"
LABEL_IP_VERSION = "projectcalico.org/ip-version"

DEFAULT_NETWORK = "k8s-pod-network"
MAX_OBJECT_NAME = 253  # bytes; the name of an affinity row of exactly this length is already cut

_HASH_CHARACTERS = 11
_DASHED = str.maketrans("./:", "---")
_DNS_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DNS_SUBDOMAIN = re.compile(rf"{_DNS_LABEL}(\.{_DNS_LABEL})*")
_HEX = re.compile(r"[0-9a-fA-F]{32}")
_URN = "urn:uuid:"


def cidr_name(cidr: Network) -> str:
    """Return the object name of a block: ``10-244-1-64-26``, ``fd00-10-244---122``."""
    return str(cidr).translate(_DASHED)


def named_cidr(name: str) -> Network | None:
    """Return the CIDR that :func:`cidr_name` gave a name; None for a name that it never gives."""
    base, _, length = name.rpartition("-")
    plain = plain_network(base.replace("-", "."), length) if "." not in base else None
    if plain is not None:
        return plain
    parts = base.split("-")
    ipv4 = len(parts) == 4 and all(part.isdigit() for part in parts)
    try:
        cidr = parse_network(f"{base.replace('-', '.' if ipv4 else ':')}/{length}")
    except InvalidInput:
        return None
    return cidr if cidr_name(cidr) == name else None


def affinity_name(host: str, cidr: Network) -> str:
    """Return the object name of an affinity row; long ones are cut and get a hash (§2.3).

    The kind of owner is not part of the name: a host and a virtual host of one name collide (limit L25). Lengths are
    bytes.
    """
    block = cidr_name(cidr)
    name = f"{host}-{block}"
    if len(name.encode()) < MAX_OBJECT_NAME:
        return name
    from hashlib import sha256

    digest = sha256(f"{host}+{block}".encode()).hexdigest()[:_HASH_CHARACTERS]
    room = MAX_OBJECT_NAME - 1 - len(block) - _HASH_CHARACTERS - 2
    return f"{host.encode()[:room].decode(errors='replace')}-{block}-{digest}"


def hostname_hash(host: str) -> str:
    """Return the label value that stands for a host name: 52 characters, so that any host name fits (§2.4)."""
    from base64 import b32encode
    from hashlib import sha3_256

    return b32encode(sha3_256(host.encode()).digest()).decode().rstrip("=")


def affinity_labels(owner: BlockOwner, cidr: Network) -> dict[str, str]:
    """Return the labels by which affinity rows are listed; they are sent on every write."""
    return {
        LABEL_AFFINITY_TYPE: owner.kind,
        LABEL_HOSTNAME_HASH: hostname_hash(owner.host),
        LABEL_IP_VERSION: str(cidr.version),
    }


def affinity_selector(
    kind: str | None = None, host: str | None = None, version: Literal[4, 6] | int | None = None
) -> str:
    """Return the Kubernetes label selector that lists affinity rows; empty without any condition."""
    wanted = {
        LABEL_AFFINITY_TYPE: kind,
        LABEL_HOSTNAME_HASH: hostname_hash(host) if host else None,
        LABEL_IP_VERSION: str(version) if version else None,
    }
    return ",".join(f"{label}={value}" for label, value in wanted.items() if value)


def handle_name(handle: str) -> str:
    """Return the object name of a handle: its ID in lower case, letter by letter as Go does it (§2.5)."""
    # "İ".lower() is two characters in Python and one in Go; a final sigma is like any other there.
    return "".join(letter.lower()[0] for letter in handle)


def check_handle_name(handle: str) -> None:
    """Raise InvalidInput when the Kubernetes API would refuse an object with the name of this handle (limit L29)."""
    check_object_name(handle_name(handle), f"handle {handle!r}")


def check_object_name(name: str, what: str) -> None:
    """Raise InvalidInput unless ``name`` is a lower-case DNS subdomain of at most 253 characters.

    ``what`` says in the message whose name it is.
    """
    if len(name) > MAX_OBJECT_NAME:
        raise InvalidInput(
            f"{what} needs an object name of {len(name)} characters, the Kubernetes API takes {MAX_OBJECT_NAME}",
            subject=name,
            hint="Choose a shorter network name.",
        )
    if not _DNS_SUBDOMAIN.fullmatch(name):
        raise InvalidInput(
            f"{what} cannot be the name of a Kubernetes object: {name!r} is not made of letters, digits, '-' and '.',"
            " or a part between dots begins or ends with '-'",
            subject=name,
            hint="Choose a network name without such characters; '_' in particular works with etcd and SQLite only.",
        )


def convert_uid(uid: str) -> str:
    """Return the UID that upstream shows for a custom resource's UID, and the other way round (§2.7).

    The bits of every byte are reversed, except in bytes 6 and 8, which hold version and variant. Raises InvalidInput.
    """
    data = bytearray(_uuid_bytes(uid))
    for place, byte in enumerate(data):
        if place not in (6, 8):
            data[place] = int(f"{byte:08b}"[::-1], 2)
    text = data.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def _uuid_bytes(uid: str) -> bytes:
    """Return the 16 bytes of a UUID: plain, with dashes, between any two characters (braces, as a rule) or as a URN."""
    length = len(uid.encode("utf-8", "surrogatepass"))
    text, why = uid, ""
    if length == 36 + len(_URN):
        text = uid[len(_URN) :]
        why = "" if uid[: len(_URN)].lower() == _URN else f'invalid urn prefix: "{uid[: len(_URN)]}"'
    elif length == 38:
        text = uid[1:-1]
    elif length not in (32, 36):
        why = f"invalid UUID length: {length}"
    if len(text) == 36 and all(text[place] == "-" for place in (8, 13, 18, 23)):
        text = text[:8] + text[9:13] + text[14:18] + text[19:23] + text[24:]
    if not why and not _HEX.fullmatch(text):
        why = "invalid UUID format"
    if why:
        raise InvalidInput(f"failed to parse UID for resource: {why}", subject=uid)
    return bytes.fromhex(text)
