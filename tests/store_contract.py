"""What every datastore must do (design §4): one suite, run against each backend.

A backend's test module says how to open it::

    class TestSQLite(StoreContract):
        @pytest.fixture
        def backend(self, tmp_path: Path) -> Backend: ...
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from calico_ipam.datastore.api import (
    Create,
    Datastore,
    Delete,
    Entry,
    Loss,
    Update,
    lost,
)
from calico_ipam.datastore.paths import path_of
from calico_ipam.errors import (
    AlreadyExists,
    Conflict,
    InvalidInput,
    NotFound,
    StoreDamaged,
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
from calico_ipam.model.resource import Resource

NOW = 1_787_392_800_000_000_000
PATIENCE = 30.0  # seconds a test waits for something that should happen at once


@dataclass(frozen=True)
class Backend:
    """How to reach one empty datastore. ``open`` is pickled into other processes."""

    open: Callable[[], Datastore]
    put_text: Callable[[str, str], None]  #: store any text under any path, behind the back of the contract


def block(cidr: str, **changes: Any) -> tuple[BlockKey, Block]:
    made = Block.new(parse_network(cidr), now=NOW)
    return BlockKey(made.cidr), replace(made, **changes)


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
            extra={"future": {"x": 1}},
        )
        objects: list[tuple[Key, Any]] = [
            (key, used),
            (AffinityKey(BlockOwner(HOST, "n"), key.cidr), Affinity("pending")),
            (AffinityKey(BlockOwner(VIRTUAL, "n"), key.cidr), Affinity("confirmed", extra={"y": [1]})),
            (HandleKey("net.C1"), Handle("net.C1", {"10.0.0.0/29": 2})),
            (ConfigKey(), IPAMConfig(strict_affinity=True, kubevirt_persistence=None)),
        ]
        entries = store.commit(*(Create(k, v) for k, v in objects))
        for (k, value), entry in zip(objects, entries, strict=True):
            assert entry.key == k
            assert entry.value == value
            read = store.get(k)
            assert (read.key, read.value, read.revision) == (k, value, entry.revision)

    def test_unknown_fields_survive_a_rewrite(self, backend: Backend, store: Datastore) -> None:
        key = HandleKey("h")
        backend.put_text(path_of(key), '{"block":{"10.0.0.0/26":1},"deleted":false,"future":{"b":[1,2],"a":null}}')
        entry = store.get(key)
        store.commit(Update(entry, entry.value.incremented(parse_network("10.0.0.0/26"), 1)))
        assert store.get(key).value.extra == {"future": {"b": [1, 2], "a": None}}
        assert count(store.get(key)) == 2

    def test_a_resource_gets_what_the_store_knows_of_it(self, store: Datastore) -> None:
        key = ResourceKey("IPPool", "pool-1")
        (entry,) = store.commit(Create(key, Resource.new("IPPool", "pool-1", {"cidr": "10.0.0.0/16"})))
        metadata = entry.value.metadata
        assert metadata["resourceVersion"] == entry.revision
        assert len(metadata["uid"]) == 36 and entry.uid == metadata["uid"]
        assert metadata["creationTimestamp"].endswith("Z")
        assert store.get(key) == entry

        (later,) = store.commit(Update(entry, Resource.new("IPPool", "pool-1", {"cidr": "10.0.0.0/16", "x": 1.5})))
        assert later.value.metadata["uid"] == metadata["uid"]
        assert later.value.metadata["creationTimestamp"] == metadata["creationTimestamp"]
        assert later.value.metadata["resourceVersion"] == later.revision != entry.revision
        assert store.get(key).value.spec == {"cidr": "10.0.0.0/16", "x": 1.5}

    def test_a_given_uid_is_kept(self, store: Datastore) -> None:
        resource = Resource.new("Node", "n", {})
        document = {**resource.document, "metadata": {"uid": "u-1", "creationTimestamp": "2026-01-01T00:00:00Z"}}
        (entry,) = store.commit(Create(ResourceKey("Node", "n"), replace(resource, document=document)))
        assert (entry.uid, entry.value.metadata["creationTimestamp"]) == ("u-1", "2026-01-01T00:00:00Z")

    def test_endpoints_live_in_namespaces(self, store: Datastore) -> None:
        keys = [ResourceKey("WorkloadEndpoint", "w", namespace) for namespace in ("default", "other")]
        store.commit(*(Create(k, Resource.new(k.kind, k.name, {}, namespace=k.namespace)) for k in keys))
        assert [e.key for e in store.list(Resources("WorkloadEndpoint"))] == keys
        assert [e.key for e in store.list(Resources("WorkloadEndpoint", "other"))] == keys[1:]
        assert store.get(keys[1]).value.metadata["namespace"] == "other"

    def test_a_big_value_comes_back(self, store: Datastore) -> None:
        key, value = block("10.0.0.0/20")
        attributes = tuple(Attribute(f"handle-{i}", {"pod": f"pod-{i}" * 5}) for i in range(value.size))
        value = replace(value, allocations=tuple(range(value.size)), unallocated=(), attributes=attributes)
        store.commit(Create(key, value))
        assert store.get(key).value == value

    def test_what_is_missing_is_not_found(self, store: Datastore) -> None:
        with pytest.raises(NotFound, match=r"resource does not exist: IPAMHandleKey\(id=nobody\) with error: <nil>"):
            store.get(HandleKey("nobody"))
        assert store.read(ConfigKey()).entry(ConfigKey()) is None
        assert len(store.list(Blocks())) == 0

    def test_an_impossible_key_is_refused(self, store: Datastore) -> None:
        with pytest.raises(InvalidInput, match="insufficient identifiers, missing ''"):
            store.get(HandleKey(""))
        with pytest.raises(InvalidInput, match="slash"):
            store.commit(Create(ResourceKey("Node", "a/b"), Resource.new("Node", "a/b", {})))

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
            assert lost(caught.value) == Loss(write, (), new)
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
        with pytest.raises(Conflict):
            store.commit(Delete(old))

    def test_what_was_never_read_is_not_written_over(self, store: Datastore) -> None:
        store.commit(Create(HandleKey("h"), counter("h")))
        for write in (
            Update(Entry(HandleKey("h"), counter("h"), ""), counter("h", 1)),
            Delete(Entry(HandleKey("h"), None, "")),
        ):
            with pytest.raises(InvalidInput, match="error with field ResourceVersion = ''"):
                store.commit(write)

    def test_a_commit_is_all_or_nothing(self, store: Datastore) -> None:
        if not store.capabilities.atomic:
            pytest.skip("this backend writes one by one")
        (stale,) = store.commit(Create(HandleKey("a"), counter("a")))
        (fresh,) = store.commit(Update(stale, counter("a", 1)))
        before = store.list(Handles())
        for writes in (
            (handle("b"), Update(stale, counter("a", 9))),
            (Update(fresh, counter("a", 2)), handle("c"), handle("a")),
            (Delete(fresh), Delete(Entry(HandleKey("z"), None, "1"))),
        ):
            with pytest.raises((Conflict, AlreadyExists, NotFound, InvalidInput)):
                store.commit(*writes)
        assert store.list(Handles()).entries == before.entries

    def test_one_object_twice_in_a_commit_is_refused(self, store: Datastore) -> None:
        with pytest.raises(InvalidInput, match="only once"):
            store.commit(handle("h"), handle("h"))
        assert store.commit() == []

    def test_revisions_grow(self, store: Datastore) -> None:
        seen = []
        (entry,) = store.commit(Create(HandleKey("h"), counter("h")))
        for number in range(5):
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

    def test_handles_are_in_the_order_of_bytes(self, store: Datastore) -> None:
        names = ["b", "B", "a", "é", "z", "\U0001f600", "\uffee", "a.b", "a-b"]
        store.commit(*(handle(name) for name in names))
        assert [e.key.id for e in store.list(Handles())] == sorted(names, key=lambda name: name.encode())

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

    def test_virtual_and_host_owners_are_apart(self, store: Datastore) -> None:
        store.commit(row("lb", "10.0.0.0/26"), row("lb", "10.0.0.0/26", VIRTUAL), row("lb", "10.0.0.64/26", VIRTUAL))
        assert len(store.list(Affinities(HOST))) == 1
        assert len(store.list(Affinities(VIRTUAL))) == 2
        assert len(store.list(Affinities())) == len(store.list(Affinities(None, "lb", 4))) == 3

    def test_resources_by_name_prefix(self, store: Datastore) -> None:
        store.commit(*(Create(ResourceKey("Node", n), Resource.new("Node", n, {})) for n in ("a", "ab", "b", "aa")))
        assert [e.key.name for e in store.list(Resources("Node", prefix="a"))] == ["a", "aa", "ab"]
        assert len(store.list(Resources("IPPool"))) == 0

    def test_a_read_is_of_one_moment(self, store: Datastore, backend: Backend) -> None:
        a, b = HandleKey("a"), HandleKey("b")
        pair = store.commit(Create(a, counter("a")), Create(b, counter("b")))
        stop = threading.Event()
        failures: list[str] = []

        def look() -> None:
            with closing(backend.open()) as other:
                while not stop.is_set():
                    seen = other.read(a, Handles(), b)
                    entries = [seen.entry(a), seen.entry(b), *seen.listing(Handles())]
                    numbers = {count(entry) for entry in entries if entry is not None}
                    if len(numbers) != 1:
                        failures.append(f"torn: {numbers}")

        with ThreadPoolExecutor(2) as pool:
            looking = [pool.submit(look) for _ in range(2)]
            for number in range(1, 200):
                pair = store.commit(*(Update(entry, counter(entry.key.id, number)) for entry in pair))
            stop.set()
            for each in looking:
                each.result(PATIENCE)
        assert not failures

    # --- damage --------------------------------------------------------------------------------------------

    def test_damage_is_listed_and_told(self, backend: Backend, store: Datastore) -> None:
        owner = BlockOwner(HOST, "n")
        bad = AffinityKey(owner, parse_network("10.0.0.64/26"))
        store.commit(row("n", "10.0.0.0/26"))
        backend.put_text(path_of(bad), "garbage")
        backend.put_text("/calico/ipam/v2/host/n/ipv4/block/notacidr", "{}")
        listing = store.list(Affinities(HOST, "n", 4))
        assert [str(e.key.cidr) for e in listing] == ["10.0.0.0/26"]
        assert [(d.key, d.text) for d in listing.damaged] == [(bad, "garbage"), (None, "{}")]
        text = f"failed to parse datastore entry key={path_of(bad)}; value=garbage: invalid character 'g' looking for"
        with pytest.raises(StoreDamaged, match=text):
            store.get(bad)
        snapshot = store.read(bad)
        with pytest.raises(StoreDamaged):
            snapshot.entry(bad)
        with pytest.raises(AlreadyExists):
            store.commit(Create(bad, Affinity()))
        store.commit(Delete(Entry(bad, None, listing.damaged[0].revision)))
        assert len(store.list(Affinities(HOST, "n", 4)).damaged) == 1

    def test_foreign_keys_are_not_ours(self, backend: Backend, store: Datastore) -> None:
        for path in (
            "/calico/ipam/v2/assignment/ipv4/block/10.0.0.0-30/extra",
            "/calico/ipam/v2/assignment/ipv4/junk",
            "/calico/ipam/v2/host/node-1",
            "/calico/ipam/v2x",
        ):
            backend.put_text(path, "x")
        for scope in (Blocks(), Affinities(), Handles()):
            assert (store.list(scope).entries, store.list(scope).damaged) == ((), ())

    def test_a_handle_with_a_slash_can_be_removed(self, backend: Backend, store: Datastore) -> None:
        backend.put_text("/calico/ipam/v2/handle/a/b", "{}")
        entry = store.get(HandleKey("a/b"))
        listing = store.list(Handles())
        assert (len(listing), [d.key for d in listing.damaged]) == (0, [HandleKey("a/b")])
        store.commit(Delete(entry))
        assert not store.list(Handles()).damaged
