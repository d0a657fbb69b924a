"""The block: release and cooldown (ipam-library §8.2, §8.7, §8.8, §24.1, §24.7)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from calico_ipam.errors import BadHandle, BadSequenceNumber, InvalidInput
from calico_ipam.model.addresses import parse_address
from calico_ipam.model.block import Attribute, Block, ReleaseOption
from calico_ipam.model.timestamps import SECOND
from tests.blocks import NOW, auto, free, new, sound, take

# --- release ------------------------------------------------------------------------------------------------


def release(block: Block, *options: ReleaseOption, cooldown: int = 0) -> tuple[Block, list[str], dict[str, int]]:
    after, what = block.release(options, cooldown=cooldown, now=NOW)
    assert what.changed is (after is not block)
    return sound(after), [str(a) for a in what.already_free], dict(what.counts)


def option(text: str, handle: str | None = None, sequence: int | None = None) -> ReleaseOption:
    return ReleaseOption(parse_address(text), handle, sequence)


SHARED = take(new("10.0.0.0/28"), 10, 13, 15)


def test_release_one_of_three() -> None:
    block, already, counts = release(SHARED, option("10.0.0.13", "h"))
    assert (already, counts) == ([], {"h": 1})
    assert block.held_by("h") == [10, 15]
    assert block.unallocated[-1] == 13
    assert 13 not in block.sequence_for


def test_release_all() -> None:
    block, already, counts = release(SHARED, *(option(f"10.0.0.{n}") for n in (15, 10, 13)))
    assert (already, counts, block.attributes, block.empty) == ([], {"h": 3}, (), True)
    assert block.unallocated[-3:] == (10, 13, 15)


def test_what_is_free_already_changes_nothing() -> None:
    block, already, counts = release(SHARED, option("10.0.0.1"), option("10.0.0.2", "x"))
    assert (block, already, counts) == (SHARED, ["10.0.0.1", "10.0.0.2"], {})


def test_a_cooling_address_is_free_already() -> None:
    cooling = free(SHARED, 13, cooldown=30)
    block, already, _ = release(cooling, option("10.0.0.13"), cooldown=30)
    assert (block, already) == (cooling, ["10.0.0.13"])


def test_one_address_twice_counts_once() -> None:
    block, already, counts = release(SHARED, option("10.0.0.13"), option("::ffff:10.0.0.13"))
    assert (already, counts) == ([], {"h": 1})
    assert block.unallocated.count(13) == 1


def test_a_wrong_handle_is_refused() -> None:
    with pytest.raises(BadHandle) as caught:
        release(SHARED, option("10.0.0.10"), option("10.0.0.13", "nope"))
    assert str(caught.value) == "the given handle (nope) does not match (h) when attempting to release IP"
    assert (caught.value.subject, caught.value.hint != "") == ("10.0.0.13", True)
    with pytest.raises(BadHandle, match=r"\(x\) does not match \(\)"):
        release(take(new(), 0, handle=None), option("10.0.0.0", "x"))


def test_a_wrong_sequence_number_is_refused_even_for_a_free_address() -> None:
    for text, stored in (("10.0.0.13", NOW), ("10.0.0.1", 0)):
        with pytest.raises(BadSequenceNumber) as caught:
            release(SHARED, option(text, None, 999))
        expected = f"the given sequence number (999) does not match ({stored}) when attempting to release IP"
        assert str(caught.value) == expected
        assert (caught.value.requested, caught.value.expected) == (999, stored)


def test_an_address_that_was_assigned_again_is_not_released_with_the_old_number() -> None:
    block = take(new(), 0).bumped()
    for _ in range(10):
        old = block.sequence_of(0)
        block = free(block, 0).bumped()
        block = take(block, 0).bumped()
        assert block.sequence_of(0) == old + 2
        with pytest.raises(BadSequenceNumber):
            release(block, option("10.0.0.0", "h", old))
        release(block, option("10.0.0.0", "h", old + 2))


def test_handles_are_compared_up_to_the_carriage_return() -> None:
    block = take(new(), 0, handle="h2\rjunk")
    assert release(block, option("10.0.0.0", "h2\rother"))[2] == {"h2": 1}


def test_release_outside() -> None:
    with pytest.raises(InvalidInput, match="not in block"):
        release(SHARED, option("10.0.0.99"))


def test_an_anonymous_address_is_counted_for_nobody() -> None:
    block, already, counts = release(take(new(), 0, handle=None), option("10.0.0.0"))
    assert (already, counts, block.empty) == ([], {}, True)


def test_release_by_handle() -> None:
    block = take(take(new("10.0.0.0/27"), 15, handle="h1"), 20, handle="h2")
    after, ordinals = block.release_handle("h1", cooldown=0, now=NOW)
    assert ordinals == (15,)
    assert sound(after).unallocated[-1] == 15
    assert block.release_handle("nope", cooldown=0, now=NOW) == (block, ())
    assert block.release_handle("", cooldown=0, now=NOW) == (block, ())


def test_release_by_handle_with_a_sequence_number() -> None:
    block = replace(take(new("10.0.0.0/27"), 15, 16, 17, 18), sequence_for={15: 10, 16: 10, 17: 999, 18: 10})
    after, ordinals = block.release_handle("h", cooldown=0, now=NOW, sequence_number=10)
    assert ordinals == (15, 16, 18)
    assert sound(after).held_by("h") == [17]


# --- cooldown -----------------------------------------------------------------------------------------------


def test_cooldown() -> None:  # T9
    block, _ = auto(new(), handle="h1")
    block, _ = auto(block.bumped(), handle="h2")
    block, _ = block.bumped().release_handle("h1", cooldown=30, now=NOW)
    sound(block)
    assert block.allocations == (1, 0, None, None)
    assert block.attributes == (Attribute("h2"), Attribute(released_at=NOW))
    assert block.unallocated == (2, 3)
    assert dict(block.sequence_for) == {0: NOW, 1: NOW + 1}  # a release by handle leaves the old number
    assert block.cooling == 1
    early = block.mature(30, NOW + 29 * SECOND)
    assert early is block
    late = sound(block.mature(30, NOW + 30 * SECOND))
    assert (late.allocations, late.unallocated) == ((None, 0, None, None), (2, 3, 0))
    assert (late.cooling, dict(late.sequence_for)) == (0, {1: NOW + 1})


def test_release_by_address_notes_the_number_of_the_moment() -> None:
    block = take(new(), 0).bumped()
    assert free(block, 0, cooldown=30).sequence_of(0) == NOW + 1


def test_the_oldest_release_is_handed_out_first() -> None:
    block, _ = auto(new(), 4)
    block = free(block, 3, cooldown=30, now=NOW)
    block = free(block, 1, cooldown=30, now=NOW + 5 * SECOND)
    assert block.unallocated == ()
    assert sound(block.mature(30, NOW + 34 * SECOND)).unallocated == (3,)
    assert sound(block.mature(30, NOW + 35 * SECOND)).unallocated == (3, 1)


def test_a_release_in_the_future_stays_cold() -> None:
    block = take(new("10.0.0.0/24"), 31, 33, 42, 44, 52, 54)
    block = free(block, 31, 33, cooldown=30, now=NOW - 60 * SECOND)
    block = free(block, 42, 44, cooldown=100, now=NOW + 60 * SECOND)
    after = sound(block.mature(30, NOW))
    assert (256 - after.free(), after.free()) == (4, 252)
    assert sound(block.mature(0, NOW)).free() == 252
    assert sound(block.mature(-1, NOW)).free() == 254


def test_maturing_an_empty_block_changes_nothing() -> None:
    block = new()
    assert block.mature(0, NOW) is block


def test_unused_attributes_are_dropped() -> None:
    block = replace(take(new(), 2, handle="y"), attributes=(Attribute("x"), Attribute("y"), Attribute("z")))
    block = replace(block, allocations=(None, None, 1, None))
    assert block.mature(0, NOW).attributes == (Attribute("y"),)
