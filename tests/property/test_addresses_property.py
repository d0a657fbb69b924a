"""The quick way to read the text of a network takes and means what the library of addresses does."""

from __future__ import annotations

from ipaddress import ip_network

from hypothesis import example, given
from hypothesis import strategies as st

from calico_ipam.datastore.paths import block_at, key_of, path_of
from calico_ipam.errors import InvalidInput
from calico_ipam.model.addresses import parse_network
from calico_ipam.model.names import cidr_name, named_cidr

OCTETS = st.one_of(st.integers(0, 260).map(str), st.sampled_from(["", "00", "01", "+1", " 1", "1_0", "-1"]))
BASES = st.lists(OCTETS, min_size=3, max_size=5).map(".".join)
LENGTHS = st.one_of(st.integers(0, 34).map(str), st.sampled_from(["", "08", "+8", " 8", "8 ", "255.0.0.0"]))
TEXTS = st.one_of(BASES, st.tuples(BASES, LENGTHS).map("/".join))


@given(TEXTS)
@example("10.0.0.77/26")
@example("0.0.0.0/0")
@example("255.255.255.255/32")
@example("10.0.0.256/26")
@example("10.0.0.1/33")
@example("10.0.00.0/26")
@example("10.0.0.0/08")
def test_text_of_an_ipv4_network(text: str) -> None:
    _, slash, length = text.partition("/")
    try:
        meant = ip_network(text, strict=False) if not slash or (length.isdecimal() and length.isascii()) else None
    except ValueError:
        meant = None
    try:
        found = parse_network(text)
    except InvalidInput:
        found = None
    assert found == meant


@given(BASES, LENGTHS, st.sampled_from(["ipv4", "ipv4", "ipv4", "ipv6"]))
@example("10.0.0.64", "26", "ipv4")
@example("10.0.0.77", "26", "ipv4")
@example("10.0.0.64", "026", "ipv4")
@example("fd00::", "122", "ipv6")
def test_the_path_of_a_block_is_read_quickly_only_where_it_is_the_blocks_own(
    base: str, length: str, family: str
) -> None:
    path = f"/calico/ipam/v2/assignment/{family}/block/{base}-{length}"
    key = key_of(path)
    sound = key is not None and path_of(key) == path
    assert block_at(path) == (key if sound and family == "ipv4" else None)


@given(BASES, LENGTHS)
@example("10.0.0.64", "26")
@example("10.0-0.64", "26")
@example("10.0.0.64", "26-26")
def test_a_name_is_read_quickly_only_where_it_is_the_cidrs_own(base: str, length: str) -> None:
    for name in (f"{base}-{length}", f"{base.replace('.', '-')}-{length}"):
        cidr = named_cidr(name)
        assert cidr is None or cidr_name(cidr) == name
