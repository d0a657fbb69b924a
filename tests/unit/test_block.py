"""The block: making, looking, assigning, damage (ipam-library §8, §22 as far as one block goes, §24.1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from calico_ipam.errors import AlreadyExists, BlockOwnerMismatch, InvalidInput
from calico_ipam.model.addresses import parse_address, parse_network
from calico_ipam.model.affinity import BlockOwner
from calico_ipam.model.block import Attribute, Block, HostReserved, ReleaseOption
from calico_ipam.model.owner import held_elsewhere
from calico_ipam.model.reservation import Reservations
from tests.blocks import NODE, NOW, WINDOWS, auto, free, new, sound, take
from tests.invariants import check_block

# --- new ----------------------------------------------------------------------------------------------------


def test_new() -> None:
    block = new()
    assert block.allocations == (None,) * 4
    assert block.unallocated == (0, 1, 2, 3)
    assert (block.sequence_number, dict(block.sequence_for)) == (NOW, {})
    assert (block.affinity, block.claim_time) == ("host:node-1", NOW - 700_000_000)
    assert (block.owner, block.empty, block.free(), block.size) == (NODE, True, 4, 4)


def test_new_without_owner() -> None:
    block = Block.new(parse_network("10.0.0.0/30"), now=NOW)
    assert (block.affinity, block.claim_time, block.owner) == (None, None, None)


def test_new_with_reserved_ordinals() -> None:
    block = new(reserved=HostReserved(2, 1, "test-handle", "note"))
    assert block.allocations == (0, 0, None, 0)
    assert block.unallocated == (2,)
    assert block.attributes == (Attribute("test-handle", {"note": "note"}),)
    assert dict(block.sequence_for) == {}
    block, ordinals = auto(block)
    assert [str(block.address(o)) for o in ordinals] == ["10.0.0.2"]


def test_reserved_ordinals_that_cover_the_block() -> None:
    block = new(reserved=HostReserved(3, 3, "h", ""))
    assert (block.unallocated, block.allocations) == ((), (0, 0, 0, 0))


# --- looking ------------------------------------------------------------------------------------------------


def test_emptiness() -> None:
    block = new("10.0.0.0/24")
    assert block.empty
    assert take(block, 255, handle=WINDOWS.upper()).empty
    assert not take(block, 32, handle="other").empty
    assert not take(block, 32, handle=None).empty
    assert not free(take(block, 32), 32, cooldown=30).empty  # cooling


def test_in_use_and_free_counts() -> None:
    block = take(new("10.0.0.0/24"), 10, 20)
    assert [str(block.address(o)) for o, _ in block.taken()] == ["10.0.0.10", "10.0.0.20"]
    assert block.free() == 254
    block = take(block, 210, 220)
    assert block.free(Reservations.of(["10.0.0.128/25"])) == 126
    assert block.free(Reservations.of(["10.0.0.0/24"])) == 0
    assert block.free(Reservations.of(["10.0.0.0/8"])) == 0
    assert block.free(Reservations.of(["10.0.1.0/24"])) == 252


def test_addresses_of_a_handle() -> None:
    block = new("10.0.0.0/28")
    assert block.held_by("h") == []
    block = take(block, 3)
    assert block.held_by("h") == [3]
    assert take(block, 1).held_by("h") == [1, 3]
    two_attributes = take(block, 1, pod="p")
    assert (len(two_attributes.attributes), two_attributes.held_by("h")) == (2, [1, 3])
    assert free(two_attributes, 1, cooldown=30).held_by("h") == [3]


def test_handles_end_at_a_carriage_return() -> None:
    block = take(new(), 0, handle="h\rjunk")
    assert block.held_by("h") == [0]
    assert block.attributes[0].clean_handle == "h"


def test_an_anonymous_address_is_no_ones() -> None:
    assert take(new(), 0, handle=None).held_by("") == []


@pytest.mark.parametrize(
    ("affinity", "owner"),
    [
        ("host:node-1", BlockOwner("host", "node-1")),
        ("virtual:load-balancer", BlockOwner("virtual", "load-balancer")),
        ("host:a:b", BlockOwner("host", "a:b")),
        ("odd", None),
        ("other:x", None),
        (None, None),
    ],
)
def test_owner(affinity: str | None, owner: BlockOwner | None) -> None:
    assert replace(new(), affinity=affinity).owner == owner


def test_holders_on_other_nodes() -> None:
    block = take(new("10.0.1.0/29"), 1, node="node-1")
    block = take(block, 0, node="other")
    block = take(block, 2)
    assert held_elsewhere(block) == [(0, "other"), (2, "")]


# --- the queue ----------------------------------------------------------------------------------------------


def test_first_in_first_out() -> None:
    block = new()
    block, got = auto(block)
    assert (got, block.unallocated) == ([0], (1, 2, 3))
    block = free(block, 0)
    assert block.unallocated == (1, 2, 3, 0)
    block, got = auto(block)
    assert (got, block.unallocated) == ([1], (2, 3, 0))
    block, got = auto(block)
    assert (got, block.unallocated) == ([2], (3, 0))
    block = free(free(block, 2), 1)
    assert block.unallocated == (3, 0, 2, 1)
    block = take(block, 0)
    assert block.unallocated == (3, 2, 1)
    block, got = auto(block, 3)
    assert (got, block.unallocated) == ([3, 2, 1], ())
    assert free(block, 3, 1).unallocated == (1, 3)


def test_one_at_a_time_goes_round() -> None:
    block = new()
    for expected in (0, 1, 2, 3, 0):
        block, got = auto(block)
        assert got == [expected]
        block = free(block, expected)


def test_fewer_than_asked_is_no_error() -> None:
    block, got = auto(new(), 9)
    assert got == [0, 1, 2, 3]
    again, got = auto(block)
    assert got == [] and again is block
    same, got = auto(again, 0)
    assert got == [] and same is block


def test_reserved_ordinals_keep_their_place() -> None:
    block, ordinals = new().assign(2, handle="h", attrs={}, reservations=Reservations.of(["10.0.0.0", "10.0.0.2"]))
    assert ordinals == (1, 3)
    assert block.unallocated == (0, 2)


# --- attributes and sequence numbers ------------------------------------------------------------------------


def test_equal_holders_share_an_attribute() -> None:
    block, _ = auto(new("10.0.0.0/28"), 3, pod="p")
    block = take(block, 5, pod="p")
    assert block.attributes == (Attribute("h", {"pod": "p"}),)
    assert len(take(block, 6).attributes) == 2
    assert len(take(block, 6, handle="h2", pod="p").attributes) == 2
    cold = free(block, 5, cooldown=30)
    assert len(take(cold, 6, handle=None).attributes) == 3  # the cooling attribute has no handle, but is nobody's


def test_an_attribute_with_an_alternate_owner_is_not_shared() -> None:
    block = take(new(), 0, pod="p")
    block = block.with_attribute(0, Attribute("h", {"pod": "p"}, {"pod": "q"}))
    assert len(take(block, 1, pod="p").attributes) == 2


def test_pruning_keeps_the_order_of_the_rest() -> None:
    block = new()
    for ordinal, handle in ((0, "h1"), (1, "h2"), (2, "h3"), (3, "h2")):
        block = take(block, ordinal, handle=handle)
    block = free(block, 0)
    assert [a.handle for a in block.attributes] == ["h2", "h3"]
    assert block.allocations == (None, 0, 1, 0)
    assert block.unallocated == (0,)


def test_sequence_numbers() -> None:
    block, _ = auto(new(), handle="h1")  # T1
    block = block.bumped()
    block, _ = auto(block, handle="h2")  # T2
    block = block.bumped()
    assert dict(block.sequence_for) == {0: NOW, 1: NOW + 1}
    assert block.sequence_number == NOW + 2
    block, released = block.release_handle("h1", cooldown=0, now=NOW)  # T8
    block = block.bumped()
    assert released == (0,)
    assert (block.allocations[:2], block.attributes) == ((None, 0), (Attribute("h2"),))
    assert block.unallocated == (2, 3, 0)
    assert (dict(block.sequence_for), block.sequence_number) == ({1: NOW + 1}, NOW + 3)
    block = take(block, 0, handle="h3").bumped()
    assert (block.sequence_of(0), block.sequence_number) == (NOW + 3, NOW + 4)


def test_a_missing_sequence_number_reads_as_zero() -> None:
    block = replace(take(new(), 0), sequence_for={})
    assert block.sequence_of(0) == 0
    block.release([ReleaseOption(block.address(0), sequence_number=0)], cooldown=0, now=NOW)


# --- specific addresses, and whose block it is --------------------------------------------------------------


@pytest.mark.parametrize(
    "occupy",
    [
        lambda: take(new(), 1),
        lambda: free(take(new(), 1), 1, cooldown=30),
        lambda: new(reserved=HostReserved(2, 0, WINDOWS, "")),
    ],
    ids=["held", "cooling", "windows"],
)
def test_an_occupied_address_exists_already(occupy: Callable[[], Block]) -> None:
    with pytest.raises(AlreadyExists) as caught:
        occupy().assign_address(parse_address("10.0.0.1"), handle="h", attrs={})
    assert str(caught.value) == "resource already exists: 10.0.0.1 with error: Address already assigned in block"
    assert caught.value.subject == "10.0.0.1"


def test_an_address_outside() -> None:
    for text in ("10.0.0.4", "fd00::1"):
        with pytest.raises(InvalidInput, match=rf"IP {text} not in block 10.0.0.0/30"):
            new().assign_address(parse_address(text), handle="h", attrs={})


def test_strict_affinity() -> None:
    other, nobody = BlockOwner("host", "node-2"), replace(new(), affinity=None)
    assert new().assign(1, handle="h", attrs={}, owner=NODE)[1] == (0,)
    with pytest.raises(BlockOwnerMismatch) as caught:
        new().assign(1, handle="h", attrs={}, owner=other)
    assert str(caught.value) == "Block affinity (host:node-1) does not match provided (node-2:host)"
    with pytest.raises(BlockOwnerMismatch, match="Block host affinity does not match"):
        new().assign_address(parse_address("10.0.0.0"), handle="h", attrs={}, owner=other)
    for attempt in (
        lambda: nobody.assign(1, handle="h", attrs={}, owner=NODE),
        lambda: nobody.assign_address(parse_address("10.0.0.0"), handle="h", attrs={}, owner=NODE),
    ):
        with pytest.raises(BlockOwnerMismatch, match=r"Attempt to assign from block 10.0.0.0/30 with no affinity"):
            attempt()
    assert nobody.assign(1, handle="h", attrs={})[1] == (0,)
    with pytest.raises(BlockOwnerMismatch):  # a virtual host of the same name is another owner
        new().assign(1, handle="h", attrs={}, owner=BlockOwner("virtual", "node-1"))


# --- one address of several ---------------------------------------------------------------------------------


def test_another_attribute_for_one_of_several_addresses() -> None:
    block = sound(take(new(), 0, 1).with_attribute(1, Attribute("h", {"pod": "b"})))
    assert (block.attribute(0), block.attribute(1)) == (Attribute("h"), Attribute("h", {"pod": "b"}))
    block = sound(block.with_attribute(1, Attribute("h", {"pod": "c"})))
    assert len(block.attributes) == 2
    with pytest.raises(InvalidInput, match=r"10\.0\.0\.2 is not assigned"):
        block.with_attribute(2, Attribute("h"))


# --- damage -------------------------------------------------------------------------------------------------


def load(**changes: Any) -> Block:
    fields: dict[str, Any] = {
        "cidr": parse_network("10.0.0.0/30"),
        "allocations": [0, None, None, None],
        "unallocated": [1, 2, 3],
        "attributes": [Attribute("h")],
    }
    return Block.load(**(fields | changes))


def test_a_sound_block_loads_without_problems() -> None:
    block = load()
    assert (block.problems, block.unallocated, block.allocations) == ((), (1, 2, 3), (0, None, None, None))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"allocations": [0, 7, None, None], "unallocated": [2, 3]}, "point at no attribute"),
        ({"allocations": [0, -1, None, None], "unallocated": [2, 3]}, "point at no attribute"),
        ({"allocations": [0, "x", None, None], "unallocated": [2, 3]}, "point at no attribute"),
        ({"allocations": [0, True, None, None], "unallocated": [2, 3]}, "point at no attribute"),
        ({"allocations": [0, None], "unallocated": [1]}, "2 allocation slots for 4 addresses"),
        ({"allocations": [0, None, None, None, 0]}, "5 allocation slots for 4 addresses"),
        ({"unallocated": [1, 1, 2, 3]}, "ordinal 1 of the free queue"),
        ({"unallocated": [0, 1, 2, 3]}, "ordinal 0 of the free queue"),
        ({"unallocated": [1, 2, 3, 4]}, "ordinal 4 of the free queue"),
        ({"unallocated": [1, 2, 3, "x"]}, "ordinal 'x' of the free queue"),
        ({"unallocated": [1, 2]}, "1 free ordinals are missing from the queue"),
    ],
)
def test_damage_is_named_and_nothing_in_doubt_becomes_free(changes: dict[str, Any], problem: str) -> None:
    block = load(**changes)
    assert any(problem in sentence for sentence in block.problems)
    assert check_block(block) != []
    after, ordinals = block.assign(4, handle="new", attrs={})
    assert 0 not in ordinals
    assert len(set(ordinals)) == len(ordinals)
    assert len(after.allocations) == 4
    sure = {o for o in changes.get("unallocated", [1, 2, 3]) if isinstance(o, int)}
    assert set(ordinals) <= sure
