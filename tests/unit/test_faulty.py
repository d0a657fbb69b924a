"""The store that fails on purpose must fail as it says: tests/faulty.py."""

from __future__ import annotations

import time

import pytest

from calico_ipam.datastore.api import Create, Deadline, Delete, Update, lost
from calico_ipam.errors import (
    AlreadyExists,
    Conflict,
    DeadlineExceeded,
    NotFound,
    OutcomeUnknown,
    StoreUnavailable,
    Unauthorized,
)
from calico_ipam.model.handle import Handle
from calico_ipam.model.keys import Blocks, ConfigKey, HandleKey, Handles
from tests.faulty import Fault, FaultyStore
from tests.memory import MemoryStore


def create(name: str) -> Create:
    return Create(HandleKey(name), Handle(name, {"10.0.0.0/26": 1}))


def names(store: FaultyStore) -> list[str]:
    return [entry.key.id for entry in store.inner.list(Handles())]


def test_nothing_armed_changes_nothing_and_counts() -> None:
    store = FaultyStore(MemoryStore())
    store.commit(create("a"), create("b"))
    store.read(ConfigKey(), Handles())
    assert (dict(store.requests), store.writes, store.struck()) == ({"commit": 1, "read": 1}, 2, True)


def test_before_does_nothing() -> None:
    store = FaultyStore(MemoryStore(), Fault("before", operation=2))
    store.commit(create("a"))
    with pytest.raises(StoreUnavailable):
        store.commit(create("b"))
    assert names(store) == ["a"]
    store.commit(create("b"))
    assert (names(store), store.struck(), store.writes) == (["a", "b"], True, 3)


def test_lost_does_it_all_the_same() -> None:
    store = FaultyStore(MemoryStore(), Fault("lost", write=3), Fault("lost", operation=1, verb="list"))
    store.commit(create("a"))
    with pytest.raises(OutcomeUnknown):
        store.commit(create("b"), create("c"), create("d"))
    assert names(store) == ["a", "b", "c", "d"]
    with pytest.raises(StoreUnavailable):
        store.list(Handles())


def test_conflict_is_a_real_one() -> None:
    store = FaultyStore(
        MemoryStore(), Fault("conflict", write=2), Fault("conflict", write=3), Fault("conflict", write=4)
    )
    (entry,) = store.commit(create("a"))
    with pytest.raises(Conflict) as caught:
        store.commit(Update(entry, entry.value))
    loss = lost(caught.value)
    assert loss is not None and loss.existing is not None and loss.existing.revision != entry.revision
    with pytest.raises(AlreadyExists):
        store.commit(create("new"))
    with pytest.raises(Conflict):
        store.commit(Delete(loss.existing))


def test_a_rival_may_do_as_it_likes() -> None:
    def remove(inner: object, write: object) -> None:
        assert isinstance(inner, MemoryStore)
        inner.clear()

    store = FaultyStore(MemoryStore(), Fault("conflict", operation=2, verb="commit", rival=remove))
    (entry,) = store.commit(create("a"))
    with pytest.raises(NotFound):
        store.commit(Update(entry, entry.value))


def test_hang_lasts_until_the_deadline() -> None:
    store = FaultyStore(MemoryStore(), Fault("hang", operation=1))
    started = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        store.within(Deadline.after(0.1)).get(ConfigKey())
    assert time.monotonic() - started >= 0.09
    assert store.requests["get"] == 1
    store.inject(Fault("hang", operation=1))
    with pytest.raises(AssertionError, match="would hang for ever"):
        store.list(Blocks())


def test_only_what_is_meant_is_counted() -> None:
    fault = Fault("before", write=2, where=lambda key: key != HandleKey("b"), error=lambda: Unauthorized("no"))
    store = FaultyStore(MemoryStore(), fault)
    store.commit(create("a"), create("b"))
    assert not store.struck()
    with pytest.raises(Unauthorized):
        store.commit(create("c"))
    with pytest.raises(ValueError, match="either"):
        Fault("before")


def test_a_fault_may_strike_again_and_again() -> None:
    store = FaultyStore(MemoryStore(), Fault("before", operation=2, times=2))
    store.list(Handles())
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            store.list(Handles())
    store.list(Handles())
    assert store.struck()
