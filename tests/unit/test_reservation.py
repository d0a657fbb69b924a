"""Reserved addresses (ipam-library §7, §24.2)."""

from __future__ import annotations

import pytest

from calico_ipam.model.addresses import parse_address, parse_network
from calico_ipam.model.reservation import NO_RESERVATIONS, Reservations
from calico_ipam.model.resource import Resource


def nets(*texts: str) -> list[str]:
    return [str(n) for n in Reservations.of(texts).networks]


def test_adjacent_halves_cover_their_parent() -> None:
    reserved = Reservations.of(["192.168.1.64/26", "192.168.1.0/26"])
    assert reserved.covers(parse_network("192.168.1.0/25"))
    assert reserved.covers(parse_network("192.168.1.32/27"))
    assert not reserved.covers(parse_network("192.168.1.0/24"))
    assert not reserved.covers(parse_network("10.0.0.0/8"))
    assert reserved.overlaps(parse_network("192.168.0.0/16"))
    assert not reserved.overlaps(parse_network("192.168.1.128/25"))


@pytest.mark.parametrize(
    ("everything", "inside", "outside"), [("0.0.0.0/0", "10.1.2.3", "fd00::1"), ("::/0", "fd00::1", "10.1.2.3")]
)
def test_everything_of_a_family(everything: str, inside: str, outside: str) -> None:
    reserved = Reservations.of([everything])
    assert reserved.contains(parse_address(inside))
    assert reserved.covers(parse_network(inside))
    assert not reserved.contains(parse_address(outside))
    assert not reserved.overlaps(parse_network(outside))


def test_nested_and_doubled_entries_are_merged() -> None:
    once = nets("10.0.0.0/24", "10.0.0.0/25", "10.0.0.128/25", "11.0.0.0/8")
    assert once == ["10.0.0.0/24", "11.0.0.0/8"] == nets(*once)


def test_entries_of_resources() -> None:
    texts = [" 10.0.0.0/24 ", "10.1.0.1", "fd00::1", "", "  ", "not-a-cidr", "10.0.0.0/33"]
    resources = [
        Resource.new("IPReservation", "a", {"reservedCIDRs": texts}),
        Resource.new("IPReservation", "b", {"reservedCIDRs": ["10.2.0.0/16", 7, None]}),
        Resource.new("IPReservation", "c", {"reservedCIDRs": "10.3.0.0/16"}),
        Resource.new("IPReservation", "d", {}),
    ]
    reserved = Reservations.from_resources(resources)
    assert [str(n) for n in reserved.networks] == ["10.0.0.0/24", "10.1.0.1/32", "10.2.0.0/16", "fd00::1/128"]
    assert reserved.ignored == ("not-a-cidr", "10.0.0.0/33")


@pytest.mark.parametrize(
    ("cidr", "texts", "count"),
    [
        ("192.168.1.0/24", ["192.168.1.32/30"], 4),
        ("192.168.1.0/24", ["192.168.1.0/25", "192.168.1.5/32", "192.168.1.64/26"], 128),
        ("192.168.1.0/26", ["192.168.1.128/25"], 0),
        ("192.168.1.0/26", ["192.168.0.0/16"], 64),
        ("fd00::/120", ["fd00::/126"], 4),
    ],
)
def test_count(cidr: str, texts: list[str], count: int) -> None:
    assert Reservations.of(texts).count_in(parse_network(cidr)) == count


def test_ordinals() -> None:
    cidr = parse_network("10.0.0.0/28")
    reserved = Reservations.of(["10.0.0.2/31", "10.0.0.8/30", "10.0.0.15", "10.0.1.0/24", "fd00::/8"])
    test = reserved.ordinal_test(cidr)
    assert [o for o in range(16) if test(o)] == [2, 3, 8, 9, 10, 11, 15]
    assert [o for o in range(16) if test(o)] == [o for o in range(16) if reserved.contains(cidr[o])]
    assert not any(NO_RESERVATIONS.ordinal_test(cidr)(o) for o in range(16))
    assert all(Reservations.of(["10.0.0.0/8"]).ordinal_test(cidr)(o) for o in range(16))
