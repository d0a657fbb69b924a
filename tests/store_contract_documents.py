"""What every datastore of documents must do (SQLite, etcd): commits as a whole, keys and texts taken as they are.

The third part of the contract, for stores that keep upstream's etcd keys and documents. On the Kubernetes API writes go
one by one, names and schemas are the server's, and nothing can be stored behind its back.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import cast

import pytest

from calico_ipam.datastore.api import Create, Datastore, Delete, Entry, Update
from calico_ipam.datastore.paths import path_of
from calico_ipam.errors import AlreadyExists, Conflict, InvalidInput, NotFound, StoreDamaged
from calico_ipam.model.addresses import parse_network
from calico_ipam.model.affinity import HOST, VIRTUAL, Affinity, BlockOwner
from calico_ipam.model.keys import Affinities, AffinityKey, Blocks, HandleKey, Handles, ResourceKey, Resources
from calico_ipam.model.resource import Resource
from tests.store_contract import PATIENCE, Backend, block, count, counter, handle, row
from tests.store_contract_live import SPAWN, Watching, _beyond, wait_until, write_for_ever


class DocumentStoreContract:
    """Inherited by one class for each such backend, which provides the fixture ``backend``."""

    @pytest.fixture
    def store(self, backend: Backend) -> Iterator[Datastore]:
        with closing(backend.open()) as opened:
            yield opened

    def test_owners_of_one_name_and_unknown_fields_come_back(self, store: Datastore) -> None:
        key, value = block("10.0.0.0/29", extra={"future": {"x": 1}})
        host, virtual = (AffinityKey(BlockOwner(kind, "n"), key.cidr) for kind in (HOST, VIRTUAL))
        store.commit(
            Create(key, value),
            Create(host, Affinity("pending")),
            Create(virtual, Affinity("confirmed", extra={"y": [1]})),
        )
        assert store.get(key).value == value
        assert (store.get(host).value.state, store.get(virtual).value.extra) == ("pending", {"y": [1]})

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

    def test_a_list_holds_no_more_than_was_asked_for(self, backend: Backend, store: Datastore) -> None:
        key = ResourceKey("WorkloadEndpoint", "w", "default")
        spec = {"node": "n", "ipNetworks": ["10.0.0.1/32"]}
        store.commit(Create(key, Resource.new(key.kind, key.name, spec, namespace=key.namespace)))
        damaged = path_of(replace(key, name="x"))
        backend.put_text(damaged, "[")
        scope = Resources("WorkloadEndpoint", only=("ipNetworks", "none"))
        for listing in (store.list(scope), store.read(scope).listing(scope), store.list(scope)):
            (entry,) = listing
            assert (entry.key, entry.value.name, entry.value.namespace) == (key, "w", "default")
            assert entry.value.document == {"spec": {"ipNetworks": ["10.0.0.1/32"]}}
            assert [each.path for each in listing.damaged] == [damaged]
        assert store.get(key).value.spec == spec

    def test_a_commit_is_all_or_nothing(self, store: Datastore) -> None:
        assert store.capabilities.atomic
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

    def test_handles_are_in_the_order_of_bytes(self, store: Datastore) -> None:
        names = ["b", "B", "a", "é", "z", "\U0001f600", "\uffee", "a.b", "a-b"]
        store.commit(*(handle(name) for name in names))
        assert [e.key.id for e in store.list(Handles())] == sorted(names, key=lambda name: name.encode())

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

    def test_damage_in_a_recent_list_shows_when_somebody_looks(self, backend: Backend, store: Datastore) -> None:
        root = "/calico/ipam/v2/assignment/ipv4/block/"
        backend.put_text(f"{root}10.0.0.0-29", "{")
        backend.put_text(f"{root}10.0.0.8-29", '{"cidr":"10.0.0.8/29","affinity":"host:n","allocations":7}')
        backend.put_text(f"{root}nonsense", "{}")
        listed = store.list(Blocks(4, recent=True))
        assert [(d.path, d.key) for d in listed.damaged] == [(f"{root}nonsense", None)]
        first, second = listed
        assert second.affinity == "host:n"
        for entry in (first, second):
            with pytest.raises(StoreDamaged):
                _ = entry.value
        with pytest.raises(StoreDamaged):
            _ = first.affinity

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

    def test_a_watch_tells_damage(self, store: Datastore, backend: Backend) -> None:
        since = store.list(Handles()).revision
        with Watching(backend, Handles(), since) as seen:
            backend.put_text("/calico/ipam/v2/handle/h", "garbage")
            store.commit(handle("i"))
            events = seen.wait(2)
        assert [e.kind for e in events] == ["damaged", "added"]
        assert events[0].damaged is not None and events[0].damaged.key == HandleKey("h")

    @pytest.mark.timeout(180)
    def test_a_killed_writer_leaves_whole_commits(self, store: Datastore, backend: Backend) -> None:
        store.commit(Create(HandleKey("a"), counter("a")), Create(HandleKey("b"), counter("b")))
        reached = 0
        for _ in range(6):
            victim = SPAWN.Process(target=write_for_ever, args=(backend.open,))
            victim.start()
            wait_until(partial(_beyond, store, reached))
            time.sleep(random.uniform(0, 0.02))  # anywhere in a commit
            os.kill(cast(int, victim.pid), signal.SIGKILL)
            victim.join(PATIENCE)
            written = False
            while not written:
                snapshot = store.read(HandleKey("a"), HandleKey("b"))
                pair = [cast(Entry, snapshot.entry(HandleKey(name))) for name in "ab"]
                assert count(pair[0]) == count(pair[1]) > reached
                with contextlib.suppress(Conflict):  # the last wish of the dead may still be on its way to a server
                    store.commit(*(Update(entry, entry.value) for entry in pair))
                    written = True
            reached = count(pair[0])
