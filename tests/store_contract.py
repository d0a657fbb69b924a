"""What every datastore must do (design §4): one suite, run against each backend.

A backend's test module says how to open it::

    class TestSQLite(StoreContract):
        @pytest.fixture
        def backend(self, tmp_path: Path) -> Backend: ...
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from calico_ipam.datastore.api import (
    Create,
    Datastore,
    Delete,
    Entry,
    Event,
    Loss,
    Update,
    lost,
)
from calico_ipam.errors import (
    AlreadyExists,
    Conflict,
    InvalidInput,
    NotFound,
    NotSupported,
)
from calico_ipam.model.addresses import parse_network
from calico_ipam.model.affinity import HOST, VIRTUAL, Affinity, BlockOwner
from calico_ipam.model.block import Attribute, Block
from calico_ipam.model.config import IPAMConfig
from calico_ipam.model.handle import Handle
from calico_ipam.model.keys import (
    Affinities,
    AffinityKey,
    BlockKey,
    Blocks,
    ConfigKey,
    HandleKey,
    Handles,
    Key,
    ResourceKey,
    Resources,
)
from calico_ipam.model.resource import IP_POOL, PROFILE, Resource

NOW = 1_787_392_800_000_000_000
PATIENCE = 30.0  # seconds a test waits for something that should happen at once


@dataclass(frozen=True)
class Backend:
    """How to reach one empty datastore. ``open`` is pickled into other processes."""

    open: Callable[[], Datastore]
    put_text: Callable[[str, str], object]  #: store any text under any path, behind the back of the contract


def block(cidr: str, **changes: Any) -> tuple[BlockKey, Block]:
    made = Block.new(parse_network(cidr), now=NOW)
    return BlockKey(made.cidr), replace(made, **changes)


def until_bookmark(watch: Iterator[Event]) -> list[Event]:
    """Return what a watch begins with, and close it."""
    told = list(itertools.takewhile(lambda event: event.kind != "bookmark", watch))
    cast(Any, watch).close()
    return told


def row(host: str, cidr: str, kind: str = HOST) -> Create:
    return Create(AffinityKey(BlockOwner(kind, host), parse_network(cidr)), Affinity())


def handle(name: str, **blocks: int) -> Create:
    return Create(HandleKey(name), Handle(name, {cidr.replace("_", "/"): n for cidr, n in blocks.items()}))


def counter(name: str, value: int = 0) -> Handle:
    return Handle(name, {"10.0.0.0/26": value})


def count(entry: Entry) -> int:
    return cast(Handle, entry.value).blocks["10.0.0.0/26"]


class StoreContract:
    """Inherited by one class for each backend, which provides the fixture ``backend``."""

    @pytest.fixture
    def store(self, backend: Backend) -> Iterator[Datastore]:
        with closing(backend.open()) as opened:
            yield opened

    # --- objects -------------------------------------------------------------------------------------------

    def test_every_kind_of_object_comes_back_as_it_was(self, store: Datastore) -> None:
        key, fresh = block("10.0.0.0/29", affinity="host:n", claim_time=NOW)
        used = replace(
            fresh,
            allocations=(0, 1, *fresh.allocations[2:]),
            unallocated=fresh.unallocated[2:],
            attributes=(Attribute("h", {"pod": "a<b>&\u2028é"}), Attribute(released_at=NOW)),
            sequence_for={0: NOW, 1: NOW + 1},
        )
        objects: list[tuple[Key, Any]] = [
            (key, used),
            (AffinityKey(BlockOwner(HOST, "n"), key.cidr), Affinity("pending")),
            (AffinityKey(BlockOwner(VIRTUAL, "lb"), key.cidr), Affinity("confirmed")),
            (HandleKey("net.C1"), Handle("net.C1", {"10.0.0.0/29": 2})),
            (ConfigKey(), IPAMConfig(strict_affinity=True, kubevirt_persistence=None)),
        ]
        entries = store.commit(*(Create(k, v) for k, v in objects))
        for (k, value), entry in zip(objects, entries, strict=True):
            assert entry.key == k
            assert entry.value == value
            read = store.get(k)
            assert (read.key, read.value, read.revision) == (k, value, entry.revision)

    def test_a_big_value_comes_back(self, store: Datastore) -> None:
        key, value = block("10.0.0.0/20")
        attributes = tuple(Attribute(f"handle-{i}", {"pod": f"pod-{i}" * 5}) for i in range(value.size))
        value = replace(value, allocations=tuple(range(value.size)), unallocated=(), attributes=attributes)
        store.commit(Create(key, value))
        assert store.get(key).value == value

    def test_one_profile_is_always_there_and_never_changes(self, store: Datastore) -> None:
        key = ResourceKey(PROFILE, "projectcalico-default-allow")
        found = store.get(key)
        rule = {"action": "Allow", "source": {}, "destination": {}}
        assert (found.revision, found.value.spec) == ("1", {"ingress": [rule], "egress": [rule]})
        assert store.read(key, ResourceKey(IP_POOL, "absent")).entry(key) == found
        assert store.list(Resources(PROFILE, None, "projectcalico-")).entries == (found,)
        assert found in store.list(Resources(PROFILE)).entries
        assert found not in store.list(Resources(PROFILE, None, "kns.")).entries
        watch = store.watch(Resources(PROFILE), "")
        assert key not in [each.entry.key for each in until_bookmark(watch) if each.entry is not None]
        for write in (Create(key, found.value), Update(found, found.value), Delete(found)):
            with pytest.raises(NotSupported, match=rf"operation {type(write).__name__} is not supported on Profile"):
                store.commit(write)

    def test_what_is_missing_is_not_found(self, store: Datastore) -> None:
        with pytest.raises(NotFound, match=r"resource does not exist: IPAMHandle(Key)?\((id=)?nobody\) with error"):
            store.get(HandleKey("nobody"))
        assert store.read(ConfigKey()).entry(ConfigKey()) is None
        assert len(store.list(Blocks())) == 0

    def test_an_impossible_key_is_refused(self, store: Datastore) -> None:
        with pytest.raises(InvalidInput, match=r"insufficient identifiers, missing ''|resource name may not be empty"):
            store.get(HandleKey(""))
        with pytest.raises(InvalidInput, match="slash"):
            store.commit(Create(ResourceKey(IP_POOL, "a/b"), Resource.new(IP_POOL, "a/b", {})))

    # --- conflicts -----------------------------------------------------------------------------------------

    def test_create_twice_is_already_there(self, store: Datastore) -> None:
        (first,) = store.commit(handle("h"))
        with pytest.raises(AlreadyExists) as caught:
            store.commit(handle("h"))
        loss = lost(caught.value)
        assert loss is not None
        assert (loss.write.key, loss.applied, loss.existing) == (HandleKey("h"), (), first)

    def test_a_stale_update_loses(self, store: Datastore) -> None:
        (old,) = store.commit(Create(HandleKey("h"), counter("h")))
        (new,) = store.commit(Update(old, counter("h", 1)))
        for write in (Update(old, counter("h", 9)), Delete(old)):
            with pytest.raises(Conflict, match=r"update conflict: IPAMHandleKey\(id=h\)") as caught:
                store.commit(write)
            assert lost(caught.value) in (Loss(write, (), new), Loss(write, ()))  # not every server tells what is there
        assert store.get(HandleKey("h")) == new

    def test_update_and_delete_of_what_is_gone(self, store: Datastore) -> None:
        (entry,) = store.commit(Create(HandleKey("h"), counter("h")))
        assert store.commit(Delete(entry)) == [entry]
        for write in (Update(entry, counter("h", 1)), Delete(entry)):
            with pytest.raises(NotFound) as caught:
                store.commit(write)
            assert lost(caught.value) == Loss(write, (), None)

    def test_a_new_object_is_not_taken_for_the_old_one(self, store: Datastore) -> None:
        (old,) = store.commit(Create(HandleKey("h"), counter("h")))
        store.commit(Delete(old))
        store.commit(Create(HandleKey("h"), counter("h")))
        with pytest.raises((Conflict, NotFound)):
            store.commit(Delete(old))
        assert len(store.list(Handles())) == 1

    def test_what_was_never_read_is_not_written_over(self, store: Datastore) -> None:
        store.commit(Create(HandleKey("h"), counter("h")))
        for write in (
            Update(Entry(HandleKey("h"), counter("h"), ""), counter("h", 1)),
            Delete(Entry(HandleKey("h"), None, "")),
        ):
            with pytest.raises(InvalidInput, match="error with field ResourceVersion = ''"):
                store.commit(write)

    def test_one_object_twice_in_a_commit_is_refused(self, store: Datastore) -> None:
        with pytest.raises(InvalidInput, match="only once"):
            store.commit(handle("h"), handle("h"))
        assert store.commit() == []

    def test_revisions_grow(self, store: Datastore) -> None:
        seen = []
        (entry,) = store.commit(Create(HandleKey("h"), counter("h")))
        for number in range(1, 6):  # an equal value would be no change on the Kubernetes API
            seen.append(int(entry.revision))
            (entry,) = store.commit(Update(entry, counter("h", number)))
        store.commit(Delete(entry))
        (again,) = store.commit(Create(HandleKey("h"), counter("h")))
        seen += [int(entry.revision), int(again.revision)]
        assert seen == sorted(set(seen))
        assert int(store.list(Handles()).revision) >= seen[-1]

    # --- lists ---------------------------------------------------------------------------------------------

    def test_lists_are_in_the_order_of_bytes(self, store: Datastore) -> None:
        cidrs = ["10.0.0.64/26", "10.0.0.128/26", "9.0.0.0/26", "fd00::40/122", "10.0.0.0/26"]
        store.commit(*(Create(*block(cidr)) for cidr in cidrs))
        assert [str(e.key.cidr) for e in store.list(Blocks(4))] == [
            "10.0.0.0/26",
            "10.0.0.128/26",
            "10.0.0.64/26",
            "9.0.0.0/26",
        ]
        assert [str(e.key.cidr) for e in store.list(Blocks(6))] == ["fd00::40/122"]
        assert len(store.list(Blocks())) == 5

    def test_a_recent_list_of_blocks_tells_what_a_full_one_tells(self, store: Datastore) -> None:
        owned = {"affinity": "host:n"}
        for key, value in (block("10.0.0.0/29", **owned), block("10.0.0.8/29"), block("fd00::/125", **owned)):
            store.commit(Create(key, value))
        full = store.list(Blocks(4))
        until = time.monotonic() + PATIENCE
        while len(listed := store.list(Blocks(4, recent=True))) != len(full):
            assert time.monotonic() < until, "it may be a moment old, and not for ever"
        told = [entry.affinity for entry in listed]
        assert told in (["host:n", None], [None, None]), "whose they are, or nothing"
        assert [entry.affinity for entry in full] == ["host:n", None]
        assert [entry.cidr for entry in listed] == [entry.cidr for entry in full]
        for lazy, entry in zip(listed, full, strict=True):
            assert (lazy.key, lazy.value, lazy.revision, lazy.uid) == (
                entry.key,
                entry.value,
                entry.revision,
                entry.uid,
            )
        changed = store.commit(Update(listed.entries[0], listed.entries[0].value.bumped()))[0]
        assert store.get(changed.key).value == changed.value

    def test_a_host_is_not_the_beginning_of_another(self, store: Datastore) -> None:
        store.commit(
            row("worker-1", "10.0.0.0/26"),
            row("worker-10", "10.0.0.64/26"),
            row("worker-1.example", "10.0.0.128/26"),
            row("worker-1", "fd00::/122"),
        )
        found = store.list(Affinities(HOST, "worker-1"))
        assert [str(e.key.cidr) for e in found] == ["10.0.0.0/26", "fd00::/122"]
        assert [str(e.key.cidr) for e in store.list(Affinities(HOST, "worker-1", 6))] == ["fd00::/122"]
        assert len(store.list(Affinities(HOST))) == 4
        assert [e.key.owner.host for e in store.list(Affinities(HOST, None, 6))] == ["worker-1"]
