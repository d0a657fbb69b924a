"""Rivals, lost answers and damage at the worst moment: no address has two holders, and none is lost."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from calico_ipam.datastore import sqlite_file
from calico_ipam.datastore.api import Datastore, Write
from calico_ipam.datastore.documents import DocumentStore, RawWrite
from calico_ipam.datastore.etcd.store import _number
from calico_ipam.datastore.paths import path_of
from calico_ipam.datastore.settings import from_file
from calico_ipam.datastore.sqlite import SQLiteStore
from calico_ipam.engine.client import IPAM
from calico_ipam.engine.owners import OwnerUpdates
from calico_ipam.errors import (
    InvalidInput,
    IPAMError,
    OutcomeUnknown,
    RefusedError,
    StoreDamaged,
    StoreError,
)
from calico_ipam.model.addresses import parse_address, parse_network
from calico_ipam.model.block import ReleaseOption
from calico_ipam.model.keys import BlockKey, HandleKey, Handles, Key, ResourceKey
from tests.cluster import Cluster, cluster
from tests.faulty import Fault, FaultyStore
from tests.invariants import violations
from tests.sequential import SequentialStore

OWN = "10.0.0.8/30"  #: where node-1's walk over 10.0.0.0/28 begins


@pytest.fixture
def world() -> Iterator[Cluster]:
    with cluster() as made:
        made.nodes("node-1", "node-2")
        made.pool("pool-1", "10.0.0.0/28", 30)
        yield made


def put_text(world: Cluster, key: Key, text: str) -> None:
    """Store text as it is, past everything that would refuse it."""
    store = world.store.inner
    assert isinstance(store, DocumentStore)
    path = path_of(key)
    (row,), _, _ = store._raw_read((path,), ())
    write = RawWrite("update", path, text, row.revision) if row else RawWrite("create", path, text)
    store._raw_commit((write,))


def faulty(world: Cluster, *faults: Fault) -> IPAM:
    return IPAM(FaultyStore(world.store.inner, *faults), clock=world.clock)


def unanswered(rival: Callable[[], object]) -> Fault:
    """The commit is not done, its answer is lost, and a rival does ``rival`` in the meantime."""

    def error() -> IPAMError:
        rival()
        return OutcomeUnknown("no answer")

    return Fault("before", operation=1, verb="commit", error=error)


# --- lost answers -------------------------------------------------------------------------------------------


def test_an_unanswered_assignment_does_not_undo_what_another_counted_for_the_handle(world: Cluster) -> None:
    """Two interfaces of one container share a handle: the count that is there is the rival's, not ours."""
    world.block(OWN, owner="node-1")
    rival = unanswered(lambda: world.auto(handle="h", attrs={"timestamp": "earlier"}))
    got = faulty(world, rival).auto_assign(
        use="Workload", num4=1, handle="h", hostname="node-1", attrs={"timestamp": "later"}
    )
    assert [str(each) for each in got.addresses] == ["10.0.0.9/30"]
    assert world.handle("h") == {OWN: 2}
    assert violations(world.store.inner) == []


def test_an_unanswered_assignment_without_a_handle_is_not_taken_for_anothers(world: Cluster) -> None:
    """Two anonymous allocations look alike, so nobody can tell whose it is: never the same address twice."""
    world.block(OWN, owner="node-1")
    rival = unanswered(lambda: world.auto())
    with pytest.raises(OutcomeUnknown):
        faulty(world, rival).auto_assign(use="Workload", num4=1, hostname="node-1")


def test_an_outcome_that_cannot_be_looked_up_stays_unknown(world: Cluster) -> None:
    world.block(OWN, owner="node-1")
    lost = Fault("lost", operation=1, verb="commit")
    silent = Fault("before", operation=3, verb="read", times=1)
    store = FaultyStore(world.store.inner, lost, silent)
    with pytest.raises(OutcomeUnknown):
        IPAM(store, clock=world.clock).auto_assign(use="Workload", num4=1, handle="h", hostname="node-1")
    assert store.struck()


def test_what_is_released_is_told_though_the_look_behind_it_failed(world: Cluster) -> None:
    world.pool("pool-1", "10.0.0.0/28", 30, nodeSelector="has(x)")
    world.nodes("node-1", labels={"x": "y"})
    world.auto(handle="h")
    late = Fault("before", operation=1, verb="read", where=lambda s: s == ResourceKey("Node", "node-1"))
    store = FaultyStore(world.store.inner, late)
    result = IPAM(store, clock=world.clock).release_ips([ReleaseOption(parse_address("10.0.0.8"))])
    assert len(result.released) == 1
    assert store.struck()


def test_a_slow_caller_takes_back_no_count_that_was_corrected_away(world: Cluster) -> None:
    """Where handle and block are two writes: the rival finds a count without an address, corrects it, counts anew."""
    world.block(OWN, owner="node-1")
    wanted: dict[str, Any] = {
        "use": "Workload",
        "num4": 1,
        "handle": "vm",
        "max_per_handle": 1,
        "hostname": "node-1",
    }
    got: list[str] = []

    def rival(store: Datastore, _: Write) -> None:
        ipam = IPAM(SequentialStore(store), clock=world.clock)
        got.extend(str(each) for each in ipam.auto_assign(**wanted).addresses)

    slow = FaultyStore(
        world.store.inner, Fault("conflict", write=1, where=lambda s: isinstance(s, BlockKey), rival=rival)
    )
    mine = IPAM(SequentialStore(slow), clock=world.clock).auto_assign(**wanted)
    assert [str(each) for each in mine.addresses] == got
    assert world.handle("vm") == {OWN: 1}
    assert violations(world.store.inner) == []


# --- damaged neighbours -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ['{"block":{"nonsense":1,"10.0.0.8/30":1}}', '{"block":{"10.0.0.9/30":1,"10.0.0.8/30":1}}']
)
def test_an_odd_handle_can_be_released_and_looked_up(world: Cluster, text: str) -> None:
    world.auto(handle="h")
    put_text(world, HandleKey("h"), text)
    assert [str(each) for each in world.ipam.ips_by_handle("h")] == ["10.0.0.8"]
    assert world.auto(handle="h", max_per_handle=1) == ["10.0.0.8/30"]
    world.ipam.release_by_handle("h")
    assert world.handle("h") is None
    assert world.blocks()[OWN].free() == 4


def test_a_handle_that_cannot_be_read_keeps_no_address_from_being_released(world: Cluster) -> None:
    world.auto(handle="h")
    world.auto(handle="g")
    put_text(world, HandleKey("h"), "garbage")
    options = [ReleaseOption(parse_address("10.0.0.8"), "h"), ReleaseOption(parse_address("10.0.0.9"), "g")]
    assert len(world.ipam.release_ips(options).released) == 2
    assert world.blocks()[OWN].free() == 4
    assert world.handles() == {}


def test_an_address_of_a_block_that_cannot_be_read_is_not_called_free(world: Cluster) -> None:
    """Neither where no pool tells the block, nor where the pool's blocks have another size now."""
    put_text(world, BlockKey(parse_network("10.9.0.0/26")), "garbage")
    put_text(world, BlockKey(parse_network("10.0.0.8/29")), "garbage")
    for text in ("10.9.0.1", "10.0.0.8"):
        with pytest.raises(StoreDamaged):
            world.ipam.release_ips([ReleaseOption(parse_address(text))])


def test_no_block_is_made_for_an_address_over_one_that_cannot_be_read(world: Cluster) -> None:
    put_text(world, BlockKey(parse_network("10.0.0.8/31")), "garbage")
    with pytest.raises(RefusedError, match="overlap"):
        world.ipam.assign_ip(parse_address("10.0.0.8"), hostname="node-1")
    assert list(world.blocks()) == []


# --- many at once -------------------------------------------------------------------------------------------


class SmallCommits(FaultyStore):
    """A store that takes 128 writes at once, as etcd does."""

    def commit(self, *writes: Write) -> Any:
        if len(writes) > 128:
            raise InvalidInput(f"{len(writes)} changes cannot be made at once")
        return super().commit(*writes)


def test_a_handle_of_more_blocks_than_fit_into_a_transaction_is_released() -> None:
    with cluster() as world:
        world.nodes("node-1")
        world.pool("pool-1", "10.0.0.0/22", 30)
        world.auto(600, handle="h", max_blocks_per_host=200)
        ipam = IPAM(SmallCommits(world.store.inner), clock=world.clock)
        ipam.release_by_handle("h")
        assert world.handle("h") is None
        assert sum(block.free() for block in world.blocks().values()) == 600
        assert violations(world.store.inner) == []


def test_more_handles_of_a_block_than_fit_into_a_transaction_are_released() -> None:
    with cluster() as world:
        world.nodes("node-1")
        world.pool("pool-1", "10.0.0.0/24", 24)
        for number in range(150):
            world.auto(handle=f"h{number}")
        (block,) = world.blocks().values()
        options = [ReleaseOption(block.address(o), f"h{o}") for o in range(150)]
        ipam = IPAM(SmallCommits(world.store.inner), clock=world.clock)
        assert len(ipam.release_ips(options).released) == 150
        assert world.handles() == {}
        assert violations(world.store.inner) == []


# --- what scripts get wrong ---------------------------------------------------------------------------------


@pytest.mark.parametrize("attrs", [{"port": 80}, {"pod": None}, {1: "x"}, {"labels": {"a": "b"}}])
def test_attributes_that_would_damage_the_block_are_refused(world: Cluster, attrs: Any) -> None:
    with pytest.raises(InvalidInput, match="text"):
        world.auto(attrs=attrs)
    with pytest.raises(InvalidInput, match="text"):
        world.ipam.assign_ip(parse_address("10.0.0.1"), hostname="node-1", attrs=attrs)
    world.auto(handle="h")
    with pytest.raises(InvalidInput, match="text"):
        world.ipam.set_owner_attributes(parse_address("10.0.0.8"), "h", OwnerUpdates(active=attrs))
    assert world.store.inner.get(BlockKey(parse_network(OWN))).value.free() == 3


def test_an_ipv4_mapped_address_is_the_ipv4_one(world: Cluster) -> None:
    """Python's own addresses can be of that form; an address that is held must not be called free."""
    mapped = ip_address("::ffff:10.0.0.8")
    world.ipam.assign_ip(mapped, hostname="node-1", handle="h")
    assert world.ipam.assignment_attributes(mapped).handle == "h"
    assert world.ipam.release_ips([ReleaseOption(mapped, "h")]).unallocated == ()
    assert world.handle("h") is None


@pytest.mark.parametrize("address", [None, "nonsense", ip_address("fd00::1%eth0"), 7])
def test_what_is_no_address_is_refused(world: Cluster, address: Any) -> None:
    with pytest.raises(InvalidInput, match="invalid IP address"):
        world.ipam.release_ips([ReleaseOption(address)])
    with pytest.raises(InvalidInput, match="invalid IP address"):
        world.ipam.assign_ip(address, hostname="node-1")


@pytest.mark.parametrize(
    "wanted", [{"num4": "3"}, {"num4": 1.5}, {"num4": 1, "ipv4_pools": ["10.0.0.0/28"]}, {"num4": 1, "handle": 5}]
)
def test_what_is_no_request_is_refused(world: Cluster, wanted: Any) -> None:
    with pytest.raises(InvalidInput):
        world.ipam.auto_assign(use="Workload", hostname="node-1", **wanted)


def test_a_cold_address_has_no_owner_to_set(world: Cluster) -> None:
    world.configure(cooldown_seconds=60)
    world.auto(handle="h")
    world.ipam.release_by_handle("h")
    with pytest.raises(InvalidInput, match="not assigned to handle"):
        world.ipam.set_owner_attributes(parse_address("10.0.0.8"), "", OwnerUpdates(active={"pod": "p"}))


# --- the file of the embedded store -------------------------------------------------------------------------


def test_a_store_made_while_it_is_looked_at_is_no_foreign_database(tmp_path: Path) -> None:
    """Two processes make the store at once: what one reads of the header is all of one moment."""
    path = tmp_path / "store" / "ipam.db"
    sqlite_file._make(path)
    with sqlite3.connect(path, timeout=0, isolation_level=None) as inner:
        assert sqlite_file._version(_Overtaken(inner, path), path) in (0, sqlite_file.SCHEMA_VERSION)  # type: ignore[arg-type]  # a stand-in
    inner.close()


class _Overtaken:
    """A connection beside which another process makes the store, right after the first answer was read."""

    def __init__(self, inner: sqlite3.Connection, path: Path) -> None:
        self._inner = inner
        self._path = path
        self._asked = 0

    @property
    def in_transaction(self) -> bool:
        return self._inner.in_transaction

    def execute(self, statement: str) -> sqlite3.Cursor:
        if statement.startswith("PRAGMA user_version"):
            rival = sqlite3.connect(self._path, timeout=0, isolation_level=None)
            try:
                sqlite_file._recognise(rival, self._path)
            except sqlite3.OperationalError as error:
                assert sqlite_file.is_busy(error)
            finally:
                rival.close()
        return self._inner.execute(statement)


def test_an_empty_file_in_the_place_of_a_used_store_is_no_new_store(tmp_path: Path) -> None:
    path = tmp_path / "store" / "ipam.db"
    with SQLiteStore(path) as store:
        path.unlink()
        path.touch()
        with pytest.raises(StoreError, match="empty"):
            store.list(Handles())
        assert path.stat().st_size == 0


@pytest.mark.parametrize("path", ["/tmp/a\0b/ipam.db", "/" + "x" * 5000])
def test_a_path_that_no_file_can_have(path: str) -> None:
    with pytest.raises(StoreError):
        SQLiteStore(path)


def test_a_revision_that_no_store_can_have() -> None:
    for text in ("1" * 30, "9" * 5000, "-1", ""):
        with pytest.raises(InvalidInput):
            _number(text)


@pytest.mark.parametrize("text", ["[" * 3000, "2020-13-45"])
def test_a_configuration_file_that_no_parser_takes(text: str) -> None:
    with pytest.raises(InvalidInput, match="failed to parse"):
        from_file(text, "calicoctl.cfg")
