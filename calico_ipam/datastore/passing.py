"""A store that passes everything on to another one: the base of those that add something to some of its calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from calico_ipam.datastore.api import Datastore

if TYPE_CHECKING:
    from calico_ipam.datastore.api import Capabilities, Entry, Event, Listing, Revision, Snapshot, Write
    from calico_ipam.model.keys import Key, Scope


class PassingStore(Datastore):
    """``inner`` does the work. Whoever adds something says what a view of it ``within`` a deadline is."""

    def __init__(self, inner: Datastore) -> None:
        self.inner = inner

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    @property
    def name(self) -> str:
        return self.inner.name

    def get(self, key: Key) -> Entry:
        return self.inner.get(key)

    def list(self, scope: Scope) -> Listing:
        return self.inner.list(scope)

    def read(self, *wanted: Key | Scope) -> Snapshot:
        return self.inner.read(*wanted)

    def commit(self, *writes: Write) -> Sequence[Entry]:
        return self.inner.commit(*writes)

    def watch(self, scope: Scope, since: Revision) -> Iterator[Event]:
        return self.inner.watch(scope, since)

    def upgrade(self, host: str) -> None:
        self.inner.upgrade(host)

    def close(self) -> None:
        self.inner.close()
