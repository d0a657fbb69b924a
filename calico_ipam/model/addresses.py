"""Addresses, networks and ordinals (ipam-library §5).

An *ordinal* is the 0-based position of an address in its block. IPv4-mapped IPv6 addresses are IPv4; networks are
masked; text is canonical (IPv6 compressed, lower case).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import (
    AddressValueError,
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    NetmaskValueError,
    collapse_addresses,
    ip_address,
    ip_network,
)
from typing import Literal

from calico_ipam.errors import InvalidInput

Version = Literal[4, 6]
Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

#: bits in an address of each family
WIDTH: dict[int, int] = {4: 32, 6: 128}
#: as they are written, without leading zeros: numbers of IPv4 addresses; lengths of their prefixes, each with its mask
_OCTETS = {str(number): number for number in range(256)}
_LENGTHS = {str(length): (length, (1 << 32) - (1 << (32 - length))) for length in range(33)}


def parse_address(text: str) -> Address:
    """Return the address that ``text`` names; IPv4-mapped IPv6 becomes IPv4. Raises InvalidInput."""
    value = _dotted(text)
    if value is not None:
        return IPv4Address(value)
    try:
        address = ip_address(text)
    except ValueError:
        raise InvalidInput(f"invalid IP address: {text}", subject=text) from None
    if "%" in text:
        raise InvalidInput(f"invalid IP address: {text}", subject=text, hint="Leave the zone out.")
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def _dotted(text: str) -> int | None:
    """Return the value of a plain IPv4 address, None for any other text.

    Lists hold thousands of blocks and addresses, and ``ipaddress`` takes four times as long for the text of each.
    """
    try:
        one, two, three, four = map(_OCTETS.__getitem__, text.split("."))
    except (KeyError, ValueError, AttributeError):  # the last: what a document holds there is no text
        return None
    return one << 24 | two << 16 | three << 8 | four


def parse_network(text: str) -> Network:
    """Return the masked network that a CIDR, or a bare address (a /32 or /128), names. Raises InvalidInput.

    A prefix must be written as a length: ``10.0.0.0/255.255.255.0`` is refused, as upstream does, and so is a zone.
    """
    base, slash, length = text.partition("/")
    known, value = _LENGTHS.get(length), _dotted(base)
    if known is not None and value is not None:
        prefix_length, mask = known
        return IPv4Network((value & mask, prefix_length))
    if (slash and not (length.isascii() and length.isdigit())) or "%" in base:
        raise InvalidInput(f"invalid CIDR address: {text}", subject=text)
    try:
        network = ip_network(text, strict=False)
    except (ValueError, AddressValueError, NetmaskValueError):
        raise InvalidInput(f"invalid CIDR address: {text}", subject=text) from None
    if isinstance(network, IPv6Network):
        mapped = IPv6Address(int(network.network_address)).ipv4_mapped
        if mapped is not None and network.prefixlen >= 96:
            return IPv4Network((int(mapped), network.prefixlen - 96))
    return network


def plain_network(base: str, length: str) -> IPv4Network | None:
    """Return the network of an IPv4 CIDR that is written as this library writes it, None for any other text."""
    known, value = _LENGTHS.get(length), _dotted(base)
    if known is None or value is None or value & known[1] != value:
        return None
    return IPv4Network((value, known[0]))


def network_of(address: Address, prefix_length: int) -> Network:
    """Return the network of ``prefix_length`` that holds ``address``."""
    shift = WIDTH[address.version] - prefix_length
    return make_network(address.version, int(address) >> shift << shift, prefix_length)


def make_network(version: int, base: int, prefix_length: int) -> Network:
    """Return a network from its integer base address."""
    return IPv4Network((base, prefix_length)) if version == 4 else IPv6Network((base, prefix_length))


def make_address(version: int, value: int) -> Address:
    """Return an address from its integer value."""
    return IPv4Address(value) if version == 4 else IPv6Address(value)


def address_at(network: Network, ordinal: int) -> Address:
    """Return the address at ``ordinal``; no bounds are checked."""
    return make_address(network.version, int(network.network_address) + ordinal)


def ordinal_of(network: Network, address: Address) -> int:
    """Return the ordinal of ``address`` in ``network``. Raises InvalidInput when it lies outside."""
    ordinal = int(address) - int(network.network_address)
    if address.version != network.version or not 0 <= ordinal < network.num_addresses:
        raise InvalidInput(f"IP {address} not in block {network}", subject=str(address))
    return ordinal


def contains(network: Network, inner: Network) -> bool:
    """Tell whether ``inner`` lies wholly inside ``network``; networks of different families never do."""
    return (
        network.version == inner.version
        and network.prefixlen <= inner.prefixlen
        and int(inner.network_address) >> (WIDTH[inner.version] - network.prefixlen)
        == int(network.network_address) >> (WIDTH[network.version] - network.prefixlen)
    )


def overlaps(one: Network, other: Network) -> bool:
    """Tell whether two networks share an address."""
    return contains(one, other) or contains(other, one)


def collapse(networks: Iterable[Network]) -> list[Network]:
    """Return the smallest set of networks with the same addresses, IPv4 first."""
    items = list(networks)
    four = [n for n in items if isinstance(n, IPv4Network)]
    six = [n for n in items if isinstance(n, IPv6Network)]
    return [*collapse_addresses(four), *collapse_addresses(six)]


def blocks_in(network: Network, prefix_length: int) -> Iterator[Network]:
    """Yield the blocks of ``prefix_length`` in ``network`` in ascending order, lazily."""
    step = 1 << (WIDTH[network.version] - prefix_length)
    base = int(network.network_address)
    for value in range(base, base + network.num_addresses, step):
        yield make_network(network.version, value, prefix_length)
