"""A small cluster for tests of the engine: a store, a clock that the test holds, pools, nodes, reservations."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from calico_ipam.datastore.api import (
    Create,
    Datastore,
    Deadline,
    Delete,
    Entry,
    Listing,
    Snapshot,
    Update,
    Write,
)
from calico_ipam.datastore.passing import PassingStore
from calico_ipam.datastore.sqlite import SQLiteStore
from calico_ipam.engine.client import IPAM
from calico_ipam.errors import NotFound
from calico_ipam.model.addresses import Network, parse_network
from calico_ipam.model.affinity import HOST, Affinity, BlockOwner
from calico_ipam.model.block import Block, HostReserved
from calico_ipam.model.handle import Handle
from calico_ipam.model.keys import (
    Affinities,
    AffinityKey,
    BlockKey,
    Blocks,
    HandleKey,
    Handles,
    Key,
    ResourceKey,
    Scope,
)
from calico_ipam.model.resource import IP_POOL, IP_RESERVATION, NODE, Resource
from calico_ipam.model.timestamps import SECOND, parse_time

START = parse_time("2026-08-22T10:00:00.25Z")


@dataclass
class ManualClock:
    """A clock that moves only when the test says so; waiting costs nothing."""

    at: int = START
    slept: float = 0.0

    def now(self) -> int:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.slept += seconds

    def advance(self, seconds: float) -> None:
        self.at += int(seconds * SECOND)


@dataclass
class CountingStore(PassingStore):
    """A Datastore that counts what was asked of it: operations by name, and the objects that went in or came out."""

    inner: Datastore
    asked: Counter[str] = field(default_factory=Counter)
    objects: Counter[str] = field(default_factory=Counter)

    def get(self, key: Key) -> Entry:
        self.asked["get"] += 1
        return super().get(key)

    def list(self, scope: Scope) -> Listing:
        self.asked["list"] += 1
        found = self.inner.list(scope)
        self.objects[type(scope).__name__] += len(found)
        return found

    def read(self, *wanted: Key | Scope) -> Snapshot:
        self.asked["read"] += 1
        snapshot = self.inner.read(*wanted)
        for item in wanted:
            if isinstance(item, Scope):
                self.objects[type(item).__name__] += len(snapshot.listing(item))
        return snapshot

    def commit(self, *writes: Write) -> Sequence[Entry]:
        self.asked["commit"] += 1
        self.objects["writes"] += len(writes)
        return self.inner.commit(*writes)

    def within(self, deadline: Deadline | None) -> Datastore:
        return self

    def reset(self) -> None:
        self.asked.clear()
        self.objects.clear()

    @property
    def total(self) -> int:
        return sum(self.asked.values())


class Cluster:
    """What a test says of the world, and what it looks at afterwards."""

    def __init__(self, store: Datastore) -> None:
        self.store = CountingStore(store)
        self.clock = ManualClock()
        self.ipam = IPAM(self.store, clock=self.clock)

    # --- making the world -----------------------------------------------------------------------------------

    def put(self, key: Key, value: Any) -> None:
        """Store a value whatever was there."""
        try:
            entry = self.store.inner.get(key)
        except NotFound:
            self.store.inner.commit(Create(key, value))
        else:
            self.store.inner.commit(Update(entry, value))

    def drop(self, key: Key) -> None:
        self.store.inner.commit(Delete(self.store.inner.get(key)))

    def pool(self, name: str, cidr: str, block_size: int | None = None, **spec: Any) -> None:
        body: dict[str, Any] = {"cidr": cidr, **spec}
        if block_size is not None:
            body["blockSize"] = block_size
        self.put(ResourceKey(IP_POOL, name), Resource.new(IP_POOL, name, body))

    def no_pool(self, name: str) -> None:
        self.drop(ResourceKey(IP_POOL, name))

    def nodes(self, *names: str, labels: Mapping[str, str] | None = None) -> None:
        for name in names:
            self.put(ResourceKey(NODE, name), Resource.new(NODE, name, {}, labels=labels))

    def reserve(self, *cidrs: str, name: str = "reserved") -> None:
        self.put(ResourceKey(IP_RESERVATION, name), Resource.new(IP_RESERVATION, name, {"reservedCIDRs": list(cidrs)}))

    def configure(self, **settings: Any) -> None:
        self.ipam.set_config(replace(self.ipam.get_config(), **settings))

    def block(
        self,
        cidr: str,
        *,
        owner: str | None = None,
        row: str | None = "confirmed",
        age: float = 600.0,
        reserved: HostReserved | None = None,
    ) -> None:
        """Store an empty block, as if ``owner`` (a host) had claimed it ``age`` seconds ago, and its affinity row."""
        network = parse_network(cidr)
        holder = BlockOwner(HOST, owner) if owner else None
        made = Block.new(network, now=self.clock.now() - int(age * SECOND), owner=holder, reserved=reserved)
        self.put(BlockKey(network), made)
        if holder is not None and row is not None:
            self.row(cidr, owner or "", row)

    def row(self, cidr: str, host: str, state: str = "confirmed") -> None:
        self.put(AffinityKey(BlockOwner(HOST, host), parse_network(cidr)), Affinity(state))

    def disown(self, cidr: str) -> None:
        """Make a block nobody's, as after a release of its affinity while it was in use."""
        block = self.stored_block(cidr)
        assert block is not None
        assert block.owner is not None
        self.put(BlockKey(block.cidr), block.without_owner().bumped())
        self.drop(AffinityKey(block.owner, block.cidr))

    # --- looking --------------------------------------------------------------------------------------------

    def stored_block(self, cidr: str | Network) -> Block | None:
        network = parse_network(cidr) if isinstance(cidr, str) else cidr
        value = self._value(BlockKey(network))
        assert value is None or isinstance(value, Block)
        return value

    def blocks(self) -> dict[str, Block]:
        return {str(e.value.cidr): e.value for e in self.store.inner.list(Blocks())}

    def rows(self, host: str | None = None) -> dict[str, str]:
        """Return CIDR -> state of the affinity rows (of a host)."""
        found = {}
        for entry in self.store.inner.list(Affinities(host=host)):
            assert isinstance(entry.key, AffinityKey)
            found[str(entry.key.cidr)] = entry.value.state
        return found

    def handle(self, name: str) -> dict[str, int] | None:
        """Return block -> count of a handle, or None when it does not exist."""
        value = self._value(HandleKey(name))
        assert value is None or isinstance(value, Handle)
        return None if value is None else dict(value.blocks)

    def handles(self) -> dict[str, Handle]:
        return {e.value.id: e.value for e in self.store.inner.list(Handles())}

    def _value(self, key: Key) -> Any:
        try:
            return self.store.inner.get(key).value
        except NotFound:
            return None

    # --- short forms ----------------------------------------------------------------------------------------

    def auto(self, number: int = 1, *, host: str = "node-1", version: int = 4, **more: Any) -> list[str]:
        """Assign addresses of one family for a workload and return them with their prefix."""
        wanted: dict[str, Any] = {"use": "Workload", "hostname": host, f"num{version}": number, **more}
        assigned = self.ipam.auto_assign(**wanted)
        return [str(address) for address in assigned.addresses]


@contextmanager
def cluster() -> Iterator[Cluster]:
    """Yield an empty cluster on an SQLite store whose file is in memory and goes away."""
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        store = SQLiteStore(Path(folder) / "store" / "ipam.db")
        try:
            yield Cluster(store)
        finally:
            store.close()


def memory_folder() -> str | None:
    """Return a folder whose files live in memory, where the host has one: tests of logic need no disk."""
    shm = Path("/dev/shm")
    return str(shm) if shm.is_dir() else None


def texts(items: Iterable[Any]) -> list[str]:
    """Return the text of each item, sorted."""
    return sorted(str(item) for item in items)
