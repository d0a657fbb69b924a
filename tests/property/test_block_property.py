"""A block under any sequence of operations: the invariants hold, and it does what a list of dictionaries would do."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from calico_ipam.datastore.api import Entry
from calico_ipam.errors import AlreadyExists, BadHandle, BadSequenceNumber
from calico_ipam.model.addresses import parse_network
from calico_ipam.model.affinity import BlockOwner
from calico_ipam.model.block import Attribute, Block, HostReserved, ReleaseOption
from calico_ipam.model.keys import BlockKey
from calico_ipam.model.reservation import Reservations
from calico_ipam.model.timestamps import SECOND
from tests.invariants import check_block, fallen_sequences

HANDLES = st.sampled_from(["h1", "h2", "h\rx", None])
ATTRS = st.sampled_from([{}, {"pod": "p"}, {"pod": "q", "node": "n"}])
ORDINALS = st.integers(0, 7)
COOLDOWNS = st.sampled_from([-1, 0, 0, 1, 30])
CIDR = parse_network("10.0.0.0/29")


@dataclass
class Slot:
    """What is known of an ordinal that is not free."""

    handle: str | None
    released: int | None = None


class BlockMachine(RuleBasedStateMachine):
    """``slots``: ordinal to holder; ``queue``: the free ordinals in the order in which they must come."""

    block: Block
    slots: dict[int, Slot]
    queue: list[int]
    now: int

    @initialize(reserved=st.sampled_from([None, HostReserved(1, 1, "windows-reserved-ipam-handle", "w")]))
    def begin(self, reserved: HostReserved | None) -> None:
        self.now = 1000 * SECOND
        self.block = Block.new(CIDR, now=self.now, owner=BlockOwner("host", "n"), reserved=reserved)
        self.queue = list(range(8)) if reserved is None else list(range(1, 7))
        self.slots = {o: Slot("windows-reserved-ipam-handle") for o in range(8) if o not in self.queue}

    def stored(self, block: Block) -> None:
        """Take a changed block over as a store would: with the next sequence number."""
        before = self.block
        self.block = block if block is before else block.bumped()
        key = BlockKey(CIDR)
        assert fallen_sequences([Entry(key, before, "1")], [Entry(key, self.block, "2")]) == []

    def freed(self, cooldown: int) -> None:
        ripe = [
            (slot.released, o)
            for o, slot in self.slots.items()
            if slot.released is not None and (cooldown < 0 or slot.released + cooldown * SECOND <= self.now)
        ]
        for _, ordinal in sorted(ripe):
            del self.slots[ordinal]
            self.queue.append(ordinal)

    @rule(seconds=st.integers(-3, 40))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds * SECOND

    @rule(number=st.integers(0, 9), handle=HANDLES, attrs=ATTRS, reserved=st.sampled_from([(), ("10.0.0.2/31",)]))
    def assign(self, number: int, handle: str | None, attrs: dict[str, str], reserved: tuple[str, ...]) -> None:
        allowed = [o for o in self.queue if not (reserved and o in (2, 3))]
        after, ordinals = self.block.assign(number, handle=handle, attrs=attrs, reservations=Reservations.of(reserved))
        assert list(ordinals) == allowed[:number]
        self.taken(list(ordinals), handle)
        self.stored(after)

    @rule(ordinal=ORDINALS, handle=HANDLES, attrs=ATTRS)
    def assign_address(self, ordinal: int, handle: str | None, attrs: dict[str, str]) -> None:
        try:
            after = self.block.assign_address(CIDR[ordinal], handle=handle, attrs=attrs)
        except AlreadyExists:
            assert ordinal in self.slots
            return
        self.taken([ordinal], handle)
        self.stored(after)

    def taken(self, ordinals: list[int], handle: str | None) -> None:
        for ordinal in ordinals:
            assert ordinal not in self.slots
            self.queue.remove(ordinal)
            self.slots[ordinal] = Slot(handle)

    @rule(ordinals=st.lists(ORDINALS, max_size=4), cooldown=COOLDOWNS, handle=st.sampled_from([None, None, "h1"]))
    def release(self, ordinals: list[int], cooldown: int, handle: str | None) -> None:
        options = [ReleaseOption(CIDR[o], handle, self.block.sequence_of(o)) for o in ordinals]
        live = {o for o in ordinals if o in self.slots and self.slots[o].released is None}
        strangers = {o for o in live if handle is not None and self.slots[o].handle != handle}
        try:
            after, what = self.block.release(options, cooldown=cooldown, now=self.now)
        except BadHandle:
            assert strangers
            return
        assert not strangers
        assert what.changed is bool(live)
        assert {int(a) - int(CIDR[0]) for a in what.already_free} == set(ordinals) - live
        for ordinal in live:
            self.slots[ordinal].released = self.now
        if live:
            self.freed(cooldown)
        self.stored(after)

    @rule(ordinal=ORDINALS)
    def release_with_an_old_number(self, ordinal: int) -> None:
        old = self.block.sequence_of(ordinal) + 1
        try:
            self.block.release([ReleaseOption(CIDR[ordinal], sequence_number=old)], cooldown=0, now=self.now)
        except BadSequenceNumber:
            return
        raise AssertionError("released with a number that is not the allocation's")

    @rule(handle=st.sampled_from(["h1", "h2", "h", "nobody"]), cooldown=COOLDOWNS)
    def release_handle(self, handle: str, cooldown: int) -> None:
        after, ordinals = self.block.release_handle(handle, cooldown=cooldown, now=self.now)
        mine = [
            o for o, s in sorted(self.slots.items()) if s.released is None and (s.handle or "").split("\r")[0] == handle
        ]
        assert list(ordinals) == mine
        for ordinal in mine:
            self.slots[ordinal].released = self.now
        if mine:
            self.freed(cooldown)
        self.stored(after)

    @rule(cooldown=COOLDOWNS)
    def mature(self, cooldown: int) -> None:
        after = self.block.mature(cooldown, self.now)
        self.freed(cooldown)
        assert after.mature(cooldown, self.now) is after
        self.stored(after)

    @rule(ordinal=ORDINALS, attrs=ATTRS)
    def change_owner(self, ordinal: int, attrs: dict[str, str]) -> None:
        attribute = self.block.attribute(ordinal)
        if attribute is None or attribute.cold:
            return
        others = {o: self.block.attribute(o) for o in range(8) if o != ordinal}
        after = self.block.with_attribute(ordinal, Attribute(attribute.handle, attribute.active, attrs))
        assert {o: after.attribute(o) for o in others} == others
        self.stored(after)

    @invariant()
    def it_is_sound_and_says_what_the_model_says(self) -> None:
        if not hasattr(self, "block"):
            return
        assert check_block(self.block) == []
        assert list(self.block.unallocated) == self.queue
        said = {o: (a.handle if not a.cold else None, a.released_at) for o, a in self.block.taken()}
        known = {o: (s.handle if s.released is None else None, s.released) for o, s in self.slots.items()}
        assert said == known
        assert self.block.cooling == sum(1 for s in self.slots.values() if s.released is not None)


TestBlock = BlockMachine.TestCase
