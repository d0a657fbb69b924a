"""The allocator against a small model: any sequence of operations on any mixture of hosts, pools and settings.

After every step the stored data keep the invariants, and say exactly what the model says: the same addresses under the
same handles, the same ones cooling, nothing else.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from calico_ipam.datastore.documents import DocumentStore, RawWrite
from calico_ipam.datastore.paths import PathRange
from calico_ipam.datastore.sqlite import SQLiteStore
from calico_ipam.errors import (
    AddressInCooldown,
    AlreadyExists,
    BadHandle,
    BadSequenceNumber,
    BlockLimitReached,
    IPAMError,
    NoFreeBlocks,
    NoQualifiedPool,
    NotFound,
    RefusedError,
)
from calico_ipam.model.addresses import Address, parse_network
from calico_ipam.model.affinity import HOST, BlockOwner
from calico_ipam.model.block import HostReserved, ReleaseOption
from calico_ipam.model.handle import WINDOWS_RESERVED
from tests.cluster import Cluster, memory_folder
from tests.invariants import violations
from tests.memory import MemoryStore
from tests.property.allocator_model import HANDLES, HOSTS, POOLS, RESERVABLE, Model, every_address

hosts = st.sampled_from(HOSTS)
handles = st.sampled_from(HANDLES)
addresses = st.sampled_from(every_address())
numbers = st.integers(1, 6)


class AllocatorMachine(RuleBasedStateMachine):
    """Hosts share a cluster that is filled, drained and reconfigured in any order."""

    world: Cluster
    model: Model

    @initialize(
        pools=st.sets(st.sampled_from(sorted(POOLS)), min_size=1),
        strict=st.booleans(),
        cooldown=st.sampled_from([0, 0, 30]),
        reserved=st.sets(st.sampled_from(RESERVABLE), max_size=1),
        used=st.integers(0, 3),
    )
    def begin(self, pools: set[str], strict: bool, cooldown: int, reserved: set[str], used: int) -> None:
        """Begin anywhere: with any settings, and some hosts at work already."""
        self.model = Model()
        self.sequence_numbers: dict[str, int] = {}
        self.world.nodes(*HOSTS)
        for name in sorted(pools):
            self.enable_pool(name)
        self.configure(strict, cooldown, 0)
        self.reserve(reserved)
        for host, handle in zip(HOSTS[:used], HANDLES, strict=False):
            self.auto_assign(host, handle, 3, POOLS[min(pools)][0].version, 0)

    # --- settings -------------------------------------------------------------------------------------------

    @property
    def cooldown(self) -> int:
        return self.world.ipam.get_config().cooldown_seconds

    @property
    def strict(self) -> bool:
        return self.world.ipam.get_config().strict_affinity

    @rule(name=st.sampled_from(sorted(POOLS)))
    def enable_pool(self, name: str) -> None:
        cidr, size = POOLS[name]
        self.world.pool(name, str(cidr), size)
        self.model.enabled.add(name)
        self.model.disabled.discard(name)

    @precondition(lambda self: self.model.enabled)
    @rule(data=st.data())
    def disable_pool(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.model.enabled)))
        cidr, size = POOLS[name]
        self.world.pool(name, str(cidr), size, disabled=True)
        self.model.enabled.discard(name)
        self.model.disabled.add(name)

    @precondition(lambda self: self.model.enabled or self.model.disabled)
    @rule(data=st.data())
    def delete_pool(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.model.enabled | self.model.disabled)))
        self.world.no_pool(name)
        self.model.enabled.discard(name)
        self.model.disabled.discard(name)

    @rule(entries=st.sets(st.sampled_from(RESERVABLE), max_size=2))
    def reserve(self, entries: set[str]) -> None:
        self.world.reserve(*sorted(entries))
        self.model.reserved = tuple(parse_network(entry) for entry in entries)

    @rule(strict=st.booleans(), cooldown=st.sampled_from([0, 0, 1, 30]), limit=st.sampled_from([0, 0, 1, 2]))
    def configure(self, strict: bool, cooldown: int, limit: int) -> None:
        self.world.configure(
            strict_affinity=strict, cooldown_seconds=cooldown, max_blocks_per_host=limit if strict else 0
        )

    @rule(seconds=st.sampled_from([0.3, 1, 29, 30, 31, 61]))
    def time_passes(self, seconds: float) -> None:
        self.world.clock.advance(seconds)

    # --- assigning ------------------------------------------------------------------------------------------

    @rule(
        host=hosts,
        handle=handles,
        number=numbers,
        version=st.sampled_from([4, 6]),
        limit=st.sampled_from([0, 0, 0, 1, 2]),
    )
    def auto_assign(self, host: str, handle: str | None, number: int, version: int, limit: int) -> None:
        now, cooldown, strict = self.world.clock.now(), self.cooldown, self.strict
        free = self.model.free(version, now, cooldown)
        owned = len(self._owned(host, version))
        refused: IPAMError | None = None
        try:
            wanted: dict[str, Any] = {f"num{version}": number}
            result = self.world.ipam.auto_assign(
                use="Workload", hostname=host, handle=handle, max_blocks_per_host=limit, **wanted
            )
        except NoQualifiedPool:
            assert version not in self.model.versions()
            return
        except BlockLimitReached as error:
            refused, result = error, error.partial
        assert version in self.model.versions()
        family = result.ipv4 if version == 4 else result.ipv6
        assert family is not None
        got = [assigned.address for assigned in family.addresses]
        assert len(set(got)) == len(got) <= number
        assert set(got) <= free
        for assigned in family.addresses:
            block = self.world.stored_block(assigned.block)
            assert block is not None
            if strict:
                assert block.affinity == f"host:{host}"
            self.model.take(assigned.address, handle, block.sequence_of(block.ordinal(assigned.address)))
        assert (family.shortfall is None) == (len(got) == number)
        bound = self._limit(limit)
        if refused is not None:
            assert bound is not None
            assert len(got) < number
        elif not strict:
            assert len(got) == min(number, len(free)), "an address was free and not found"
        now_owned = len(self._owned(host, version))
        assert now_owned <= owned or bound is None or now_owned <= bound

    def _limit(self, requested: int) -> int | None:
        limit, _ = self.world.ipam.get_config().block_limit(requested)
        return None if limit == 20 else limit

    def _owned(self, host: str, version: int) -> list[str]:
        """Return the blocks of a host that lie in enabled pools of a family."""
        return [
            cidr
            for cidr, block in self.world.blocks().items()
            if block.affinity == f"host:{host}"
            and block.cidr.version == version
            and self.model.pool_of(block.cidr.network_address)
        ]

    @rule(host=hosts, handle=handles, address=addresses)
    def assign_ip(self, host: str, handle: str | None, address: Address) -> None:
        now = self.world.clock.now()
        pool = self.model.pool_of(address)
        block = None
        if pool is not None:
            block = self.world.stored_block(parse_network(f"{address}/{POOLS[pool][1]}"))
        taken = address in self.model.held or self.model.is_cooling(address, now, self.cooldown)
        foreign = block is not None and block.affinity != f"host:{host}"
        try:
            self.world.ipam.assign_ip(address, handle=handle, hostname=host)
        except AlreadyExists:
            assert pool is not None
            assert taken
        except RefusedError as error:
            if pool is None:
                assert "not in a configured pool" in str(error)
            else:
                assert self.strict
                assert foreign
        else:
            assert pool is not None
            assert not taken
            assert not (self.strict and foreign)
            stored = self.world.stored_block(parse_network(f"{address}/{POOLS[pool][1]}"))
            assert stored is not None
            self.model.take(address, handle, stored.sequence_of(stored.ordinal(address)))

    @rule(host=hosts)
    def ensure_block(self, host: str) -> None:
        reserved = HostReserved(0, 1, WINDOWS_RESERVED, "kept by a test")
        before = self.world.blocks()
        try:
            four, _ = self.world.ipam.ensure_block(hostname=host, host_reserved4=reserved)
        except (NoQualifiedPool, NoFreeBlocks):
            return
        assert four is not None
        block = self.world.stored_block(four)
        assert block is not None
        assert block.affinity == f"host:{host}"
        if str(four) not in before or before[str(four)].affinity != block.affinity:
            # A new block keeps its last ordinal back, which is nobody's address: give it to the model as held.
            self.model.take(block.address(block.size - 1), WINDOWS_RESERVED, 0)

    # --- releasing ------------------------------------------------------------------------------------------

    @precondition(lambda self: self.model.held)
    @rule(data=st.data(), with_handle=st.booleans(), with_sequence=st.booleans(), more=st.integers(0, 3))
    def release(self, data: st.DataObject, with_handle: bool, with_sequence: bool, more: int) -> None:
        ours = sorted(self._releasable(), key=str)
        if not ours:
            return
        chosen = data.draw(st.lists(st.sampled_from(ours), min_size=1, max_size=1 + more, unique=True))
        options = []
        for address in chosen:
            held = self.model.held[address]
            options.append(
                ReleaseOption(
                    address, held.handle if with_handle else None, held.sequence_number if with_sequence else None
                )
            )
        result = self.world.ipam.release_ips(options)
        assert result.unallocated == ()
        assert {option.address for option in result.released} == set(chosen)
        self.model.release(chosen, self.world.clock.now(), self.cooldown)

    def _releasable(self) -> set[Address]:
        return {address for address, held in self.model.held.items() if held.handle != WINDOWS_RESERVED}

    @precondition(lambda self: self.model.held)
    @rule(data=st.data(), wrong_handle=st.booleans(), off_by=st.sampled_from([-1, 1, 7]))
    def release_with_wrong_guard(self, data: st.DataObject, wrong_handle: bool, off_by: int) -> None:
        ours = sorted(self._releasable(), key=str)
        if not ours:
            return
        address = data.draw(st.sampled_from(ours))
        held = self.model.held[address]
        option = (
            ReleaseOption(address, "somebody-else", None)
            if wrong_handle
            else ReleaseOption(address, held.handle, held.sequence_number + off_by)
        )
        with pytest.raises(BadHandle if wrong_handle else BadSequenceNumber):
            self.world.ipam.release_ips([option])

    @rule(address=addresses)
    def release_free(self, address: Address) -> None:
        if address in self.model.held:
            return
        assert self.world.ipam.release_ips([ReleaseOption(address)]).unallocated == (address,)

    @rule(handle=st.sampled_from([handle for handle in HANDLES if handle]))
    def release_by_handle(self, handle: str) -> None:
        ours = self.model.of_handle(handle)
        try:
            self.world.ipam.release_by_handle(handle)
        except NotFound:
            assert not ours
        else:
            assert ours
        self.model.release(ours, self.world.clock.now(), self.cooldown)

    # --- looking --------------------------------------------------------------------------------------------

    @rule(handle=st.sampled_from([handle for handle in HANDLES if handle]))
    def ips_by_handle(self, handle: str) -> None:
        try:
            found = self.world.ipam.ips_by_handle(handle)
        except NotFound:
            found = []
        assert set(found) == self.model.of_handle(handle)
        assert len(set(found)) == len(found)

    @rule(address=addresses)
    def assignment_attributes(self, address: Address) -> None:
        held = self.model.held.get(address)
        try:
            found = self.world.ipam.assignment_attributes(address)
        except NotFound:
            assert held is None or self.model.pool_of(address) is None
        except AddressInCooldown:
            assert self.model.is_cooling(address, self.world.clock.now(), self.cooldown)
        else:
            assert held is not None
            assert (found.handle, found.sequence_number) == (held.handle, held.sequence_number)

    # --- after every step -----------------------------------------------------------------------------------

    @invariant()
    def nothing_is_broken(self) -> None:
        if hasattr(self, "model"):
            assert list(violations(self.world.store.inner)) == []

    @invariant()
    def the_store_says_what_the_model_says(self) -> None:
        if not hasattr(self, "model"):
            return
        held: dict[Address, tuple[str | None, int]] = {}
        cold: dict[Address, int] = {}
        for block in self.world.blocks().values():
            for ordinal, attribute in block.taken():
                if attribute.cold:
                    cold[block.address(ordinal)] = attribute.released_at or 0
                else:
                    held[block.address(ordinal)] = (attribute.handle, block.sequence_of(ordinal))
        assert held == {a: (h.handle, h.sequence_number) for a, h in self.model.held.items()}
        assert cold.items() <= self.model.cold.items()
        for address in set(self.model.cold) - set(cold):
            # Written off by somebody who loaded the block: it must have been ripe.
            assert not self.model.is_cooling(address, self.world.clock.now(), self.cooldown)
            del self.model.cold[address]

    @invariant()
    def handles_count_what_they_hold(self) -> None:
        if not hasattr(self, "model"):
            return
        expected: dict[str, Counter[str]] = {}
        for cidr, block in self.world.blocks().items():
            for _, attribute in block.taken():
                if attribute.handle and not attribute.windows_reserved:
                    expected.setdefault(attribute.handle, Counter())[cidr] += 1
        assert {name: dict(handle.blocks) for name, handle in self.world.handles().items()} == {
            name: dict(counts) for name, counts in expected.items()
        }

    @invariant()
    def sequence_numbers_never_fall(self) -> None:
        if not hasattr(self, "model"):
            return
        for cidr, block in self.world.blocks().items():
            assert block.sequence_number >= self.sequence_numbers.get(cidr, 0)
            self.sequence_numbers[cidr] = block.sequence_number

    @invariant()
    def a_confirmed_row_is_true(self) -> None:
        if not hasattr(self, "model"):
            return
        blocks = self.world.blocks()
        for host in HOSTS:
            for cidr, state in self.world.rows(host).items():
                if state == "confirmed":
                    assert cidr in blocks
                    assert blocks[cidr].owned_by(BlockOwner(HOST, host))


def clear(store: DocumentStore) -> None:
    """Empty the store of the machine before it, so that a thousand sequences need one store."""
    _, (rows,), _ = store._raw_read((), (PathRange.below("/calico/"),))
    if rows:
        store._raw_commit([RawWrite("delete", row.path, expected=row.revision) for row in rows])


def sequences(number: int) -> settings:
    """Return settings for ``number`` sequences. In CI every run tries the same ones, elsewhere others."""
    return settings(
        max_examples=number,
        stateful_step_count=20,
        deadline=None,
        derandomize=bool(os.environ.get("CI")),
        suppress_health_check=[HealthCheck.too_slow],
        database=None,
    )


def run(store: DocumentStore, number: int, part: int = 0) -> None:
    class Machine(AllocatorMachine):
        def __init__(self) -> None:
            super().__init__()
            clear(store)
            self.world = Cluster(store)

    if os.environ.get("CI"):
        seed(part)(Machine)  # each part has sequences of its own
    run_state_machine_as_test(Machine, settings=sequences(number))


@pytest.mark.timeout(600)  # half a minute on a machine that has nothing else to do
@pytest.mark.parametrize("part", range(4))
def test_a_thousand_sequences_agree_with_the_model(part: int) -> None:
    run(MemoryStore(), 250, part)


@pytest.mark.timeout(600)
def test_sequences_on_sqlite_agree_with_the_model() -> None:
    with (
        tempfile.TemporaryDirectory(dir=memory_folder()) as folder,
        SQLiteStore(Path(folder) / "store" / "ipam.db") as store,
    ):
        run(store, 60)
