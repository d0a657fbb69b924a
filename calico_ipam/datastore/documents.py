"""The datastore contract over rows of text: what etcd and SQLite have in common (datastore §1, §4).

A backend brings the transport, four methods on paths, texts and revisions; this module turns keys into paths, texts
into values and lost races into errors.
"""

from __future__ import annotations

import builtins
import re
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

from calico_ipam.datastore import codec
from calico_ipam.datastore.api import (
    Capabilities,
    Create,
    Damaged,
    Datastore,
    Deadline,
    Delete,
    Entry,
    Event,
    Listing,
    Loss,
    Revision,
    Snapshot,
    Value,
    Write,
    damaged_error,
    losing,
    refusal,
)
from calico_ipam.datastore.lazy import LazyBlock
from calico_ipam.datastore.paths import PathRange, block_at, key_of, path_of, ranges_of, within_scope
from calico_ipam.datastore.profiles import default_allow, holds_default_allow
from calico_ipam.errors import InvalidInput, NotFound, NotSupported
from calico_ipam.model.keys import (
    Affinities,
    AffinityKey,
    BlockKey,
    Blocks,
    HandleKey,
    Handles,
    Key,
    ResourceKey,
    Resources,
    Scope,
)
from calico_ipam.model.profiles import DEFAULT_ALLOW
from calico_ipam.model.resource import Resource

ATOMIC = Capabilities(atomic=True)

#: how a block's document begins, as upstream and this library write it
AFFINITY = re.compile(r'\{"cidr":"[^"\\]*","affinity":"([^"\\]*)"')

KEPT_VALUES = 2048  # decoded documents that a store remembers; a /26 block takes about 6 KiB


class Row(NamedTuple):
    """One stored text. Of these there are thousands in a list: a dataclass that is frozen takes three times as long."""

    path: str
    text: str
    revision: Revision


@dataclass(frozen=True, slots=True)
class RawWrite:
    """One conditional write: create if absent, update or delete if still at ``expected``."""

    kind: Literal["create", "update", "delete"]
    path: str
    text: str = ""
    expected: Revision = ""


@dataclass(frozen=True, slots=True)
class RawChange:
    """One change of a row at ``revision``; for a delete the row is the last one known."""

    kind: Literal["added", "modified", "deleted"]
    row: Row
    revision: Revision


class RawLoss(Exception):
    """A commit did nothing, because the write at ``position`` did not find what it expects but ``stored``."""

    def __init__(self, position: int, stored: Row | None) -> None:
        super().__init__(position)
        self.position = position
        self.stored = stored


class StoredBlock(LazyBlock):
    """A block of a list in which somebody looks for what is not there: most are never decoded."""

    __slots__ = ("_row", "_store")
    _row: Row
    _store: DocumentStore

    def __init__(self, key: BlockKey, row: Row, store: DocumentStore) -> None:
        super().__init__(key, row.revision)
        object.__setattr__(self, "_row", row)
        object.__setattr__(self, "_store", store)

    def decode(self) -> Entry | Damaged:
        return self._store.decoded(self.key, self._row)

    @property
    def tells_owner(self) -> bool:
        return True

    @property
    def affinity(self) -> str | None:
        begins = AFFINITY.match(self._row.text)
        found: str | None = begins[1] if begins is not None else self.value.affinity
        return found


class DocumentStore(Datastore):
    """A datastore of texts under paths. Backends implement the ``_raw…`` methods, ``_copy``, ``name`` and ``close``.

    ``now`` gives the creation times of resources (Unix nanoseconds).
    """

    deadline: Deadline | None = None

    def __init__(self, *, now: Callable[[], int] = time.time_ns) -> None:
        self.now = now
        # Values are never changed in place, so the same text at the same revision is the same entry.
        self._decoded: dict[str, tuple[Row, Entry | Damaged]] = {}

    # --- what a backend brings -----------------------------------------------------------------------------

    @abstractmethod
    def _raw_read(
        self, paths: Sequence[str], ranges: Sequence[PathRange]
    ) -> tuple[list[Row | None], list[list[Row]], Revision]:
        """Return rows by path, rows by range in path order, and the store's revision, all of one moment."""

    @abstractmethod
    def _raw_commit(self, writes: Sequence[RawWrite]) -> list[Revision]:
        """Do all writes or none; return each one's revision. Raises RawLoss."""

    @abstractmethod
    def _raw_watch(self, ranges: Sequence[PathRange], since: Revision) -> Iterator[RawChange | Revision]:
        """Yield changes for ever; a bare revision says that everything up to it has been told."""

    @abstractmethod
    def _copy(self) -> Self:
        """Return another view of the same connections."""

    # --- the contract --------------------------------------------------------------------------------------

    @property
    def capabilities(self) -> Capabilities:
        return ATOMIC

    def within(self, deadline: Deadline | None) -> Self:
        view = self._copy()
        view.deadline = deadline
        return view

    def get(self, key: Key) -> Entry:
        if key == DEFAULT_ALLOW:
            return default_allow()
        path = path_of(key)
        rows, _, _ = self._raw_read((path,), ())
        if rows[0] is None:
            raise NotFound(str(key))
        found = self.decoded(key, rows[0])
        if isinstance(found, Damaged):
            raise damaged_error(found)
        return found

    def list(self, scope: Scope) -> Listing:
        _, found, revision = self._raw_read((), ranges_of(scope))
        return self._listing(scope, found, revision)

    def read(self, *wanted: Key | Scope) -> Snapshot:
        keys: dict[Key, str] = {}
        ranges: dict[Scope, tuple[PathRange, ...]] = {}
        for item in wanted:
            if isinstance(item, (Blocks, Affinities, Handles, Resources)):
                ranges[item] = ranges_of(item)
            elif item != DEFAULT_ALLOW:
                keys[item] = path_of(item)
        flat = [each for several in ranges.values() for each in several]
        rows, lists, revision = self._raw_read(list(keys.values()), flat)
        answers: dict[Key | Scope, Entry | Damaged | Listing | None] = {
            key: None if row is None else self.decoded(key, row) for key, row in zip(keys, rows, strict=True)
        }
        waiting = iter(lists)
        for scope, several in ranges.items():
            answers[scope] = self._listing(scope, [next(waiting) for _ in several], revision)
        if DEFAULT_ALLOW in wanted:
            answers[DEFAULT_ALLOW] = default_allow()
        return Snapshot(answers, revision)

    def commit(self, *writes: Write) -> builtins.list[Entry]:
        prepared = [self._prepared(write) for write in writes]
        raw = [item for item, _ in prepared]
        if len({item.path for item in raw}) != len(raw):
            raise InvalidInput("a commit may name each object only once")
        if not raw:
            return []
        try:
            revisions = self._raw_commit(raw)
        except RawLoss as loss:
            write = writes[loss.position]
            stored = self.decoded(write.key, loss.stored) if loss.stored is not None else None
            existing = stored if isinstance(stored, Entry) else None
            if stored is None or existing is not None:
                error = refusal(write, existing)
            else:
                # Something unreadable is in the way: it is there all the same.
                error = refusal(write, Entry(write.key, None, stored.revision if isinstance(stored, Damaged) else ""))
            raise losing(error, Loss(write, (), existing)) from None
        return [
            self._done(write, item, value, revision)
            for write, (item, value), revision in zip(writes, prepared, revisions, strict=True)
        ]

    def watch(self, scope: Scope, since: Revision) -> Iterator[Event]:
        first: list[Event] = []
        if not since:
            there = self.list(scope)
            since = there.revision
            first = [Event("added", "", entry) for entry in there if entry.key != DEFAULT_ALLOW]
            first += [Event("damaged", "", damaged=each) for each in there.damaged]
            first.append(Event("bookmark", since))
        return Watch(self, scope, first, self._raw_watch(ranges_of(scope), since))

    # --- texts and values ----------------------------------------------------------------------------------

    def decoded(self, key: Key, row: Row, *, listed: bool = False) -> Entry | Damaged:
        """Return what a row is under a key; ``listed``: the key was made from the row's path."""
        seen = self._decoded.get(row.path)
        if seen is not None and seen[0] == row and seen[1].key == key:
            return seen[1]
        found = codec.decode(key, row.path, row.text, row.revision)
        # not so for a handle with a slash, which lists must not take for a sound one
        if listed or key_of(row.path) == key:
            if len(self._decoded) >= KEPT_VALUES:
                self._decoded.clear()
            self._decoded[row.path] = (row, found)
        return found

    def _listed(self, scope: Scope, row: Row) -> Entry | Damaged | None:
        """Return what a row is in a scope; None for one that is not of it."""
        if isinstance(scope, Blocks) and scope.recent and (block := block_at(row.path)) is not None:
            return StoredBlock(block, row, self) if scope.version != 6 else None
        seen = self._decoded.get(row.path)
        key = seen[1].key if seen is not None else key_of(row.path)
        if key is None or (isinstance(key, HandleKey) and not key.id):
            return _stranger(scope, row)
        if not within_scope(scope, key) or key == DEFAULT_ALLOW:
            return None
        # A CIDR can be written in several ways; the paths of other objects are what their keys say.
        if seen is None and isinstance(key, (BlockKey, AffinityKey)) and (path := path_of(key)) != row.path:
            reason = f"the path is not the one of {key}, which is {path}"
            return Damaged(key, row.path, reason, row.text, row.revision)
        if isinstance(scope, Blocks) and scope.recent and isinstance(key, BlockKey):
            return StoredBlock(key, row, self)
        if isinstance(scope, Resources) and scope.only and isinstance(key, ResourceKey):
            return codec.decode_only(key, row.path, row.text, row.revision, scope.only)
        if isinstance(scope, Handles):  # of which there are too many to remember
            return codec.decode(key, row.path, row.text, row.revision)
        return self.decoded(key, row, listed=True)

    def _listing(self, scope: Scope, ranges: Sequence[builtins.list[Row]], revision: Revision) -> Listing:
        """Return what rows are, and empty the lists of them: texts and values of a large list need not be held both."""
        entries: list[Entry] = []
        damaged: list[Damaged] = []
        for rows in ranges:
            for row in _drained(rows):
                found = self._listed(scope, row)
                if isinstance(found, Entry):
                    entries.append(found)
                elif found is not None:
                    damaged.append(found)
        if holds_default_allow(scope):
            entries.append(default_allow())
        return Listing(tuple(entries), revision, tuple(damaged))

    def _prepared(self, write: Write) -> tuple[RawWrite, Value | None]:
        if write.key == DEFAULT_ALLOW:
            raise NotSupported(type(write).__name__, str(write.key), "it is always there and never changes")
        path = path_of(write.key)
        if isinstance(write, Create):
            value = write.value
            if isinstance(value, Resource):
                value = codec.created(value, self.now())
            return RawWrite("create", path, codec.encode(write.key, value)), value
        if not write.entry.revision:
            raise InvalidInput(
                f"error with field ResourceVersion = '' ({write.key} was not read before it is written)",
                subject=str(write.key),
            )
        if isinstance(write, Delete):
            return RawWrite("delete", path, expected=write.entry.revision), None
        value = write.value
        if isinstance(value, Resource) and isinstance(write.entry.value, Resource):
            value = codec.updated(value, write.entry.value)
        text = codec.encode(write.key, value, write.entry.origin)
        return RawWrite("update", path, text, write.entry.revision), value

    def _done(self, write: Write, raw: RawWrite, value: Any, revision: Revision) -> Entry:
        if isinstance(write, Delete):
            return write.entry
        if isinstance(value, Resource) and isinstance(write.key, ResourceKey):
            value = codec.at_revision(value, write.key, revision)
            return Entry(write.key, value, revision, str(value.metadata.get("uid") or ""))
        return Entry(write.key, value, revision, origin=codec.rewritten(value, raw.text))

    def _event(self, scope: Scope, change: RawChange | Revision) -> Event | None:
        if not isinstance(change, RawChange):
            return Event("bookmark", change)
        found = self._listed(scope, change.row)
        if found is None:
            return None
        if isinstance(found, Entry):
            return Event(change.kind, change.revision, found)
        return Event("deleted" if change.kind == "deleted" else "damaged", change.revision, damaged=found)


class Watch(Iterator[Event]):
    """The events of one watch. ``close`` ends it, also from another thread."""

    def __init__(
        self, store: DocumentStore, scope: Scope, first: Sequence[Event], changes: Iterator[RawChange | Revision]
    ) -> None:
        self._store = store
        self._scope = scope
        self._first = deque(first)
        self._changes = changes

    def __next__(self) -> Event:
        with suppress(IndexError):  # not asked beforehand: another thread may close it in this moment
            return self._first.popleft()
        for change in self._changes:
            event = self._store._event(self._scope, change)
            if event is not None:
                return event
        raise StopIteration

    def close(self) -> None:
        """End the watch; a waiting ``next`` stops."""
        self._first.clear()
        close = getattr(self._changes, "close", None)
        if close is not None:
            close()


def _stranger(scope: Scope, row: Row) -> Damaged | None:
    """Return what a path that names no object is in a scope.

    What could be one of its objects is told, everything else (another program's key, a host's legacy tree) is not ours.
    """
    parts = row.path.split("/")[4:]
    match scope, parts:
        case Blocks(version), ["assignment", family, "block", _] if version is None or family == f"ipv{version}":
            pass
        case Affinities(_, host, version), [_, owner, family, "block", _] if owner:
            if host not in (None, owner) or (version is not None and family != f"ipv{version}"):
                return None
        case Handles(), ["handle", *rest]:
            key = HandleKey("/".join(rest))
            return Damaged(key, row.path, "a handle ID that is empty or has a slash", row.text, row.revision)
        case _:
            return None
    return Damaged(None, row.path, "the path holds no CIDR", row.text, row.revision)


def _drained(rows: list[Row]) -> Iterator[Row]:
    rows.reverse()
    while rows:
        yield rows.pop()
