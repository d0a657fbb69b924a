"""Which pools a configuration asks for (cni.md §7.2)."""

from __future__ import annotations

from collections.abc import Sequence

from calico_cni import timers
from calico_cni.errors import CNIError
from calico_cni.protocol import go_quote
from calico_ipam.datastore.api import Datastore, Deadline
from calico_ipam.errors import InvalidInput
from calico_ipam.model.addresses import Network, parse_network
from calico_ipam.model.keys import Resources
from calico_ipam.model.resource import IP_POOL


def resolve_pools(store: Datastore, wanted: Sequence[str], version: int) -> list[Network]:
    """Return the pools that names and CIDRs stand for, in order; none wanted means no restriction and no request.

    A CIDR is taken as it is: whether such a pool exists is for the assignment to say. Raises CNIError.
    """
    if not wanted:
        return []
    listing = store.within(Deadline.after(timers.POOLS)).list(Resources(IP_POOL))
    cidrs = {entry.value.name: str(entry.value.spec.get("cidr") or "") for entry in listing}
    found = []
    for text in wanted:
        network = _network(text, cidrs)
        if network.version != version:
            raise CNIError(f"{go_quote(_base(text, cidrs))} isn't a IPv{version} address")
        found.append(network)
    return found


def _network(text: str, cidrs: dict[str, str]) -> Network:
    """Return the network of a CIDR or of a pool's name; a bare address is neither."""
    cidr = text if "/" in text else cidrs.get(text, text)
    if "/" not in cidr:
        raise CNIError(
            f"error parsing pool {go_quote(text)}: invalid CIDR address: {cidr}",
            "Name an existing pool, or write its CIDR; 'ipamctl pool list' shows both.",
        )
    try:
        return parse_network(cidr)
    except InvalidInput as error:
        raise CNIError(f"error parsing pool {go_quote(text)}: {error}") from None


def _base(text: str, cidrs: dict[str, str]) -> str:
    """Return the address part of a pool's network, as upstream's error shows it."""
    return str(_network(text, cidrs).network_address)
