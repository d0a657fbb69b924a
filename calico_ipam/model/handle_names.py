"""Handle IDs: what other components of a cluster read in them (ipam-library §9, §15.4, datastore §2.5)."""

from __future__ import annotations

from calico_ipam.errors import InvalidInput
from calico_ipam.model.names import DEFAULT_NETWORK

MAX_VM_HANDLE = 128  # characters
_SHORTENED = "_"  # stands before a hash

#: ``type`` attribute of a node's tunnel address, and the handle ID without the node's name
TUNNEL_HANDLES = {
    "ipipTunnelAddress": "ipip-tunnel-addr-",
    "vxlanTunnelAddress": "vxlan-tunnel-addr-",
    "vxlanV6TunnelAddress": "vxlan-v6-tunnel-addr-",
    "wireguardTunnelAddress": "wireguard-tunnel-addr-",
    "wireguardV6TunnelAddress": "wireguard-v6-tunnel-addr-",
}


def workload_handle(network: str, container_id: str) -> str:
    """Return the handle of a container on a network; all its interfaces there share it."""
    return f"{network}.{container_id}"


def vm_handle(network: str, namespace: str, vm: str) -> str:
    """Return the handle of a KubeVirt virtual machine, which outlives its pods.

    Raises InvalidInput where upstream crashes (limit L21): the ID is too long and the hash cannot fill its place. No
    data of such a machine can exist.
    """
    prefix = f"{network or DEFAULT_NETWORK}.vmi."
    try:
        return length_limited(prefix, f"{namespace}.{vm}", MAX_VM_HANDLE)
    except InvalidInput as error:
        raise InvalidInput(
            f"no handle can be made for virtual machine {namespace}/{vm} with prefix {prefix}: {error}",
            subject=f"{namespace}/{vm}",
            reason=str(error),
            hint="Shorten the name of the machine, its namespace or the network.",
        ) from None


def tunnel_handle(kind: str, node: str) -> str:
    """Return the handle of a node's tunnel address; ``kind`` is a key of TUNNEL_HANDLES. Raises InvalidInput."""
    prefix = TUNNEL_HANDLES.get(kind)
    if prefix is None:
        raise InvalidInput(f"unknown tunnel address type {kind!r}; known are {', '.join(TUNNEL_HANDLES)}", subject=kind)
    return prefix + node


def load_balancer_handle(name: str, namespace: str, uid: str) -> str:
    """Return the handle of a Service's addresses (cli §14)."""
    from base64 import urlsafe_b64encode
    from hashlib import sha256

    digest = urlsafe_b64encode(sha256(f"{name}-{namespace}-{uid}".lower().encode()).digest()).decode()
    return "lb-" + "".join(each for each in digest if each.isalnum())


def length_limited(prefix: str, suffix: str, longest: int) -> str:
    """Return ``prefix`` + ``suffix``, the suffix replaced by ``_`` and the beginning of its hash when it is too long.

    Lengths are bytes. Raises InvalidInput when nothing of a hash would fit, or more of it is wanted than there is.
    """
    if not suffix:
        return prefix + _SHORTENED
    length = len(prefix.encode()) + len(suffix.encode())
    # A suffix of exactly the right length that looks like a hash is hashed too, so that no two can meet.
    if length < longest or (length == longest and not suffix.startswith(_SHORTENED)):
        return prefix + suffix
    room = longest - len(prefix.encode()) - len(_SHORTENED)
    from base64 import urlsafe_b64encode
    from hashlib import sha256

    digest = urlsafe_b64encode(sha256(suffix.encode()).digest()).decode().rstrip("=")
    if not 1 <= room <= len(digest):
        raise InvalidInput(
            f"{length} characters do not fit into {longest}, and a hash of {len(digest)} cannot fill {max(room, 0)}",
            subject=prefix + suffix,
        )
    return prefix + _SHORTENED + digest[:room]
