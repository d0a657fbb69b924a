"""Documents that nobody should have written: they are damaged or are kept, and never break the list they stand in."""

from __future__ import annotations

import json
from typing import Any

import pytest

from calico_ipam.datastore import codec
from calico_ipam.datastore.api import Damaged, Entry
from calico_ipam.errors import InvalidInput
from calico_ipam.model.addresses import parse_network
from calico_ipam.model.handle import Handle
from calico_ipam.model.keys import BlockKey, HandleKey
from calico_ipam.model.pool import Pool
from calico_ipam.model.resource import IP_POOL, Resource
from calico_ipam.model.timestamps import format_time, parse_time

CIDR = parse_network("10.0.0.0/30")
KEY = BlockKey(CIDR)
SOUND: dict[str, Any] = {
    "cidr": "10.0.0.0/30",
    "affinity": "host:node-1",
    "allocations": [None] * 4,
    "unallocated": [0, 1, 2, 3],
    "attributes": [],
    "sequenceNumber": 5,
    "sequenceNumberForAllocation": {},
    "deleted": False,
}


def decoded(more: str) -> Entry | Damaged:
    return codec.decode(KEY, "path", json.dumps(SOUND)[:-1] + more + "}", "1")


def test_an_ordinal_of_five_thousand_digits_is_skipped() -> None:
    found = decoded(',"sequenceNumberForAllocation":{"' + "1" * 5000 + '":7,"2":6}')
    assert isinstance(found, Entry)
    assert found.value.sequence_for == {2: 6}
    assert found.value.problems


@pytest.mark.parametrize("number", ["1e999", "-1e999"])
def test_a_number_that_no_document_can_hold_is_damage(number: str) -> None:
    """It would be read as infinity, and then could never be written again."""
    assert isinstance(decoded(f',"unknown":[{number}]'), Damaged)


@pytest.mark.parametrize("text", ["1.5", "12345678901234567890123", "1e3"])
def test_other_numbers_of_unknown_fields_stay(text: str) -> None:
    found = decoded(f',"unknown":{text}')
    assert isinstance(found, Entry)
    again = json.loads(codec.encode(KEY, found.value.bumped(), found.origin))
    assert again["unknown"] == json.loads(text)


@pytest.mark.parametrize("more", ["", ',"other":"\\ud800"'])
def test_deep_nesting_is_damage(more: str) -> None:
    """What is read with some stack left must also be written with less of it."""
    assert isinstance(decoded(',"unknown":' + "[" * 600 + "]" * 600 + more), Damaged)
    assert isinstance(decoded(',"unknown":' + '{"a":' * 600 + "1" + "}" * 600 + more), Damaged)
    assert isinstance(decoded(',"unknown":' + "[" * 20 + "]" * 20 + more), Entry)


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00Z", "0999-12-31T23:59:59Z", "9999-12-31T23:59:59Z"])
def test_times_at_the_ends_of_the_calendar_stay_as_they_are(text: str) -> None:
    """The first is Go's zero time; four digits make a year, or no reader understands the block again."""
    assert format_time(parse_time(text)) == text


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00"])
def test_times_outside_the_calendar_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_time(text)


def test_a_sequence_number_begins_again_behind_the_largest() -> None:
    """As Go's unsigned numbers do: a larger one is one that nobody can read."""
    found = decoded(f',"sequenceNumber":{2**64 - 1}')
    assert isinstance(found, Entry)
    again = codec.decode(KEY, "path", codec.encode(KEY, found.value.bumped(), found.origin), "2")
    assert isinstance(again, Entry)
    assert again.value.sequence_number == 0


@pytest.mark.parametrize(
    ("cidr", "size"),
    [("10.0.0.0/8", 8), ("10.0.0.0/8", True), ("10.0.0.0/8", 15), ("fd00::/64", 64), ("fd00::/64", 96)],
)
def test_a_pool_whose_blocks_fit_into_no_memory_is_refused(cidr: str, size: object) -> None:
    with pytest.raises(InvalidInput, match="block size"):
        Pool.from_resource(Resource(IP_POOL, "huge", {"spec": {"cidr": cidr, "blockSize": size}}))


def handle(**blocks: int) -> Handle:
    found = codec.decode(HandleKey("h"), "path", json.dumps({"block": blocks}), "1")
    assert isinstance(found, Entry)
    assert isinstance(found.value, Handle)
    return found.value


def test_blocks_of_a_handle_in_several_spellings_are_one() -> None:
    held = handle(**{"10.0.0.5/26": 1, "10.0.0.0/26": 2, "nonsense": 1})
    assert held.counts() == {parse_network("10.0.0.0/26"): 3}
    assert held.without(parse_network("10.0.0.0/26")).blocks == {}
    assert held.decremented(parse_network("10.0.0.0/26"), 1).blocks == {"10.0.0.0/26": 2}


def test_counts_of_a_handle_stay_within_what_can_be_read() -> None:
    many = handle(**{"10.0.0.0/26": 2**63 - 1}).incremented(parse_network("10.0.0.0/26"), 5)
    assert many.blocks == {"10.0.0.0/26": 2**63 - 1}
    less = handle(**{"10.0.0.0/26": -7})
    assert less.count(4) == 0
    assert less.incremented(parse_network("10.0.0.0/26"), 1).blocks == {"10.0.0.0/26": 1}


def test_a_damaged_queue_of_any_length_is_told_in_few_words() -> None:
    nest: list[object] = []
    for _ in range(150):
        nest = [nest]
    found = decoded(f',"unallocated":{json.dumps([nest] * 10_000)},"allocations":{json.dumps([nest, {}, True, "x"])}')
    assert isinstance(found, Entry)
    assert found.value.free() == 0
    assert len(found.value.problems) < 10
    assert sum(map(len, found.value.problems)) < 2000
