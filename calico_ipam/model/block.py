"""The block: a CIDR's addresses, who holds each, and the queue of free ones (ipam-library §8).

A Block is a value. Every change returns a new Block beside what happened; the one that was read is never touched,
so a lost compare-and-swap can always decide again from what is really stored (public report P10).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from calico_ipam.errors import AlreadyExists, BadHandle, BadSequenceNumber, BlockOwnerMismatch, InvalidInput
from calico_ipam.model.addresses import Address, Network, address_at, ordinal_of
from calico_ipam.model.affinity import BlockOwner
from calico_ipam.model.block_slots import mended, sound
from calico_ipam.model.handle import WINDOWS_RESERVED, sanitise_handle
from calico_ipam.model.reservation import NO_RESERVATIONS, Reservations
from calico_ipam.model.timestamps import SECOND

NOTE = "note"
SEQUENCE_NUMBERS = 1 << 64  # how many there are


@dataclass(frozen=True, slots=True)
class HostReserved:
    """Ordinals at both ends of a new block that a Windows host keeps for itself (ipam-library §8.1)."""

    start: int
    end: int
    handle: str
    note: str

    def ordinals(self, size: int) -> list[int]:
        """Return the reserved ordinals of a block with ``size`` addresses, ascending."""
        head = range(min(self.start, size))
        return sorted({*head, *range(max(0, size - self.end), size)})


@dataclass(frozen=True, slots=True)
class Attribute:
    """Who holds an address. Several addresses of one holder share one attribute."""

    handle: str | None = None
    active: Mapping[str, str] = field(default_factory=dict)  #: owner now (stored as ``secondary``)
    alternate: Mapping[str, str] = field(default_factory=dict)  #: owner to be, during a live migration of a VM
    released_at: int | None = None  #: Unix nanoseconds; set: the address is cooling down
    extra: Mapping[str, Any] = field(default_factory=dict)  #: unknown fields of the document, kept on rewrite

    @property
    def cold(self) -> bool:
        """Released, not reusable yet."""
        return self.released_at is not None

    @property
    def clean_handle(self) -> str:
        """The handle up to its first carriage return; empty when there is none."""
        return sanitise_handle(self.handle)

    @property
    def windows_reserved(self) -> bool:
        return (self.handle or "").lower() == WINDOWS_RESERVED


@dataclass(frozen=True, slots=True)
class ReleaseOption:
    """An address to release, and what must still be true of it: its handle and its sequence number."""

    address: Address
    handle: str | None = None
    sequence_number: int | None = None


@dataclass(frozen=True, slots=True)
class Released:
    """What a release did to one block."""

    already_free: tuple[Address, ...]
    counts: Mapping[str, int]  #: handle to number of its addresses that were released
    changed: bool


@dataclass(frozen=True, slots=True)
class StoredSlots:
    """The slots of a damaged block as they are stored, for whoever has to say what is wrong with them."""

    allocations: tuple[Any, ...]
    unallocated: tuple[Any, ...]
    attributes: int  #: how many are stored


@dataclass(frozen=True, slots=True)
class Block:
    """The addresses of one CIDR. ``allocations[ordinal]`` is None or an index into ``attributes``."""

    cidr: Network
    affinity: str | None = None
    claim_time: int | None = None  #: Unix nanoseconds; None reads as "long ago"
    allocations: tuple[int | None, ...] = ()
    unallocated: tuple[int, ...] = ()
    attributes: tuple[Attribute, ...] = ()
    sequence_number: int = 0
    sequence_for: Mapping[int, int] = field(default_factory=dict)
    deleted: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)  #: unknown fields of the document, kept on rewrite
    problems: tuple[str, ...] = field(default=(), compare=False)  #: damage found while loading, one sentence each
    stored: StoredSlots | None = field(default=None, compare=False, repr=False)  #: of a block with ``problems`` only

    # --- making --------------------------------------------------------------------------------------------

    @classmethod
    def new(
        cls, cidr: Network, *, now: int, owner: BlockOwner | None = None, reserved: HostReserved | None = None
    ) -> Block:
        """Return an empty block. Its sequence number starts at ``now`` (nanoseconds), so that a block which was
        deleted and made again never repeats a number (ipam-library §8.1)."""
        size = cidr.num_addresses
        allocations: list[int | None] = [None] * size
        attributes: tuple[Attribute, ...] = ()
        taken: set[int] = set()
        if reserved is not None:
            taken = set(reserved.ordinals(size))
            attributes = (Attribute(reserved.handle, {NOTE: reserved.note}),)
            for ordinal in taken:
                allocations[ordinal] = 0
        return cls(
            cidr=cidr,
            affinity=str(owner) if owner else None,
            claim_time=now // SECOND * SECOND if owner else None,
            allocations=tuple(allocations),
            unallocated=tuple(o for o in range(size) if o not in taken),
            attributes=attributes,
            sequence_number=now,
        )

    @classmethod
    def load(cls, *, allocations: Sequence[Any], attributes: Sequence[Attribute], **fields: Any) -> Block:
        """Return a block from stored fields, whatever state they are in (limit L13).

        A slot that cannot be understood counts as *in use*: it is pointed at an empty attribute, and ``problems``
        says so. Nothing that may be somebody's address ever becomes free by being damaged.
        """
        free = fields.pop("unallocated")
        size = fields["cidr"].num_addresses
        if sound(size, allocations, free, len(attributes)):
            return cls(allocations=tuple(allocations), unallocated=tuple(free), attributes=tuple(attributes), **fields)
        made = mended(size, allocations, free, len(attributes))
        return cls(
            allocations=made.allocations,
            unallocated=made.unallocated,
            attributes=tuple(attributes) if made.unknown is None else (*attributes, Attribute()),
            problems=made.problems,
            stored=StoredSlots(tuple(allocations), tuple(free), len(attributes)),
            **fields,
        )

    # --- looking -------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Number of addresses."""
        return len(self.allocations)

    @property
    def owner(self) -> BlockOwner | None:
        """Who the block belongs to; an unknown form of the text is nobody."""
        return BlockOwner.parse(self.affinity)

    def owned_by(self, owner: BlockOwner) -> bool:
        return self.affinity == str(owner)

    def address(self, ordinal: int) -> Address:
        return address_at(self.cidr, ordinal)

    def ordinal(self, address: Address) -> int:
        """Return the ordinal of an address. Raises InvalidInput when it lies outside."""
        return ordinal_of(self.cidr, address)

    def attribute(self, ordinal: int) -> Attribute | None:
        """Return the attribute of a slot, or None when the slot is free."""
        index = self.allocations[ordinal]
        return None if index is None else self.attributes[index]

    def taken(self) -> Iterator[tuple[int, Attribute]]:
        """Yield (ordinal, attribute) of every slot that is not free, cooling ones included, ascending."""
        for ordinal, index in enumerate(self.allocations):
            if index is not None:
                yield ordinal, self.attributes[index]

    def held_by(self, handle: str) -> list[int]:
        """Return the ordinals a handle holds, ascending; cooling addresses belong to nobody."""
        wanted = {i for i, a in enumerate(self.attributes) if not a.cold and a.handle and a.clean_handle == handle}
        return [o for o, i in enumerate(self.allocations) if i in wanted]

    @property
    def empty(self) -> bool:
        """True when nothing but Windows reservations is in it; a cooling address makes it non-empty (§8.9)."""
        return all(attribute.windows_reserved for _, attribute in self.taken())

    def free(self, reservations: Reservations = NO_RESERVATIONS) -> int:
        """Return how many addresses can be assigned now (§8.10)."""
        if not reservations.overlaps(self.cidr):
            return len(self.unallocated)
        is_reserved = reservations.ordinal_test(self.cidr)
        return sum(1 for o in self.unallocated if not is_reserved(o))

    @property
    def cooling(self) -> int:
        """Number of addresses that are neither owned nor free."""
        return sum(1 for _, attribute in self.taken() if attribute.cold)

    def sequence_of(self, ordinal: int) -> int:
        """Return the sequence number of an allocation; a missing one reads as 0 (old data)."""
        return self.sequence_for.get(ordinal, 0)

    # --- changing ------------------------------------------------------------------------------------------

    def bumped(self) -> Block:
        """Return the block as it must be written over an older one: the sequence number grows by 1 (§8.4).

        Behind the largest comes 0, as in Go; a larger one could never be read again.
        """
        return replace(self, sequence_number=(self.sequence_number + 1) % SEQUENCE_NUMBERS)

    def without_owner(self) -> Block:
        return replace(self, affinity=None, claim_time=None)

    def mature(self, cooldown: int, now: int) -> Block:
        """Return the block normalised for a cooldown (seconds) at ``now`` (nanoseconds); itself when nothing changes.

        Addresses released long enough ago go to the back of the queue, oldest release first (limit L22); a release of
        this very moment is long enough ago when ``cooldown`` is 0. Attributes nobody uses are dropped (§8.2).
        """
        ripe = []
        if any(a.cold for a in self.attributes):
            limit = now - cooldown * SECOND
            for ordinal, attribute in self.taken():
                at = attribute.released_at
                if at is not None and (cooldown < 0 or at <= limit):
                    ripe.append((at, ordinal))
            ripe.sort()
        freed = {ordinal for _, ordinal in ripe}
        slots = [None if o in freed else i for o, i in enumerate(self.allocations)] if freed else self.allocations
        used = sorted({i for i in slots if i is not None})
        if not freed and len(used) == len(self.attributes):
            return self
        moved = {old: new for new, old in enumerate(used)}
        return replace(
            self,
            allocations=tuple(None if i is None else moved[i] for i in slots),
            attributes=tuple(self.attributes[i] for i in used),
            unallocated=self.unallocated + tuple(o for _, o in ripe),
            sequence_for={o: n for o, n in self.sequence_for.items() if o not in freed} if freed else self.sequence_for,
        )

    def check_owner(self, owner: BlockOwner, mismatch: str) -> None:
        """Raise BlockOwnerMismatch unless the block belongs to ``owner``; only strict affinity asks for this."""
        if self.affinity is None:
            raise BlockOwnerMismatch(
                f"Attempt to assign from block {self.cidr} with no affinity", subject=str(self.cidr)
            )
        if not self.owned_by(owner):
            raise BlockOwnerMismatch(mismatch, subject=str(self.cidr))

    def assign(
        self,
        number: int,
        *,
        handle: str | None,
        attrs: Mapping[str, str],
        owner: BlockOwner | None = None,
        reservations: Reservations = NO_RESERVATIONS,
    ) -> tuple[Block, tuple[int, ...]]:
        """Return the block with up to ``number`` more addresses assigned, and their ordinals in queue order.

        ``owner`` is given under strict affinity only: then the block must be its own. Fewer than asked, or none, is no
        error (§8.5). Reserved ordinals keep their place in the queue.
        """
        if owner is not None:
            self.check_owner(
                owner, f"Block affinity ({self.affinity}) does not match provided ({owner.host}:{owner.kind})"
            )
        is_reserved = reservations.ordinal_test(self.cidr)
        chosen: list[int] = []
        for ordinal in self.unallocated:
            if len(chosen) >= number:
                break
            if not is_reserved(ordinal):
                chosen.append(ordinal)
        if not chosen:
            return self, ()
        return self._taken_over(chosen, handle, attrs), tuple(chosen)

    def assign_address(
        self, address: Address, *, handle: str | None, attrs: Mapping[str, str], owner: BlockOwner | None = None
    ) -> Block:
        """Return the block with one given address assigned (§8.6).

        Raises AlreadyExists, InvalidInput (outside), BlockOwnerMismatch.
        """
        if owner is not None:
            self.check_owner(owner, "Block host affinity does not match")
        ordinal = self.ordinal(address)
        if self.allocations[ordinal] is not None:
            raise AlreadyExists(str(address), "Address already assigned in block")
        return self._taken_over([ordinal], handle, attrs)

    def _taken_over(self, ordinals: Sequence[int], handle: str | None, attrs: Mapping[str, str]) -> Block:
        attribute = Attribute(handle or None, dict(attrs))
        attributes = self.attributes
        try:
            index = attributes.index(attribute)
        except ValueError:
            index = len(attributes)
            attributes = (*attributes, attribute)
        slots = list(self.allocations)
        for ordinal in ordinals:
            slots[ordinal] = index
        gone = set(ordinals)
        return replace(
            self,
            allocations=tuple(slots),
            attributes=attributes,
            unallocated=tuple(o for o in self.unallocated if o not in gone),
            sequence_for={**self.sequence_for, **dict.fromkeys(ordinals, self.sequence_number)},
        )

    def release(self, options: Iterable[ReleaseOption], *, cooldown: int, now: int) -> tuple[Block, Released]:
        """Return the block without the given addresses, and what that meant (§8.7).

        Raises BadSequenceNumber or BadHandle, and then nothing of this block is released; InvalidInput for an address
        outside. The sequence number is compared before anything else: an address that was released already and is
        asked for with an old number is a conflict, not "already free".
        """
        wanted = {option.address: option for option in options}
        free: list[Address] = []
        ordinals: list[int] = []
        counts: dict[str, int] = {}
        for address, option in wanted.items():
            ordinal = self.ordinal(address)
            number = option.sequence_number
            if number is not None and number != self.sequence_of(ordinal):
                raise BadSequenceNumber(number, self.sequence_of(ordinal), subject=str(address))
            attribute = self.attribute(ordinal)
            if attribute is None or attribute.cold:
                free.append(address)
                continue
            holder = attribute.clean_handle
            if option.handle and sanitise_handle(option.handle) != holder:
                raise BadHandle(sanitise_handle(option.handle), holder, subject=str(address))
            ordinals.append(ordinal)
            if holder:
                counts[holder] = counts.get(holder, 0) + 1
        block = self
        if ordinals:
            block = self._let_go(ordinals, now, mark=True).mature(cooldown, now)
        return block, Released(tuple(free), counts, bool(ordinals))

    def release_handle(
        self, handle: str, *, cooldown: int, now: int, sequence_number: int | None = None
    ) -> tuple[Block, tuple[int, ...]]:
        """Return the block without a handle's addresses, and their ordinals (§8.8)."""
        ordinals = [
            o for o in self.held_by(handle) if sequence_number is None or self.sequence_of(o) == sequence_number
        ]
        if not ordinals:
            return self, ()
        return self._let_go(ordinals, now, mark=False).mature(cooldown, now), tuple(ordinals)

    def _let_go(self, ordinals: Sequence[int], now: int, *, mark: bool) -> Block:
        index = len(self.attributes)
        slots = list(self.allocations)
        for ordinal in ordinals:
            slots[ordinal] = index
        # A release by address records the current number for the cooling time, a release by handle leaves the old one.
        numbers = {**self.sequence_for, **dict.fromkeys(ordinals, self.sequence_number)} if mark else self.sequence_for
        return replace(
            self,
            allocations=tuple(slots),
            attributes=(*self.attributes, Attribute(released_at=now)),
            sequence_for=numbers,
        )

    def with_attribute(self, ordinal: int, attribute: Attribute) -> Block:
        """Return the block with another attribute for one address; others that shared it keep theirs (limit L12)."""
        index = self.allocations[ordinal]
        if index is None:
            raise InvalidInput(f"{self.address(ordinal)} is not assigned", subject=str(self.address(ordinal)))
        if self.attributes[index] == attribute:
            return self
        shared = sum(1 for i in self.allocations if i == index) > 1
        attributes = list(self.attributes)
        slots = list(self.allocations)
        if shared:
            slots[ordinal] = len(attributes)
            attributes.append(attribute)
        else:
            attributes[index] = attribute
        return replace(self, allocations=tuple(slots), attributes=tuple(attributes))
