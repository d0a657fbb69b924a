"""The one gate that every write of the collector passes: dry run, leadership, pace (gc §18.2, §18.3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from calico_gc.timing import Bucket
from calico_ipam.datastore.api import (
    Capabilities,
    Datastore,
    Deadline,
    Entry,
    Event,
    Listing,
    Revision,
    Snapshot,
    Write,
)
from calico_ipam.errors import RefusedError
from calico_ipam.model.keys import Key, Scope


class NotAllowed(RefusedError):
    """A write was stopped at the gate; nothing reached the datastore."""


class GatedStore(Datastore):
    """Passes reads on as they are and writes only while ``permit`` does not raise, at the pace of ``bucket``."""

    def __init__(self, inner: Datastore, permit: Callable[[], None], bucket: Bucket) -> None:
        self._inner = inner
        self._permit = permit
        self._bucket = bucket

    @property
    def capabilities(self) -> Capabilities:
        return self._inner.capabilities

    @property
    def name(self) -> str:
        return self._inner.name

    def get(self, key: Key) -> Entry:
        return self._inner.get(key)

    def list(self, scope: Scope) -> Listing:
        return self._inner.list(scope)

    def read(self, *wanted: Key | Scope) -> Snapshot:
        return self._inner.read(*wanted)

    def commit(self, *writes: Write) -> Sequence[Entry]:
        self._permit()
        self._bucket.take(len(writes))
        self._permit()  # waiting may have cost the leadership
        return self._inner.commit(*writes)

    def watch(self, scope: Scope, since: Revision) -> Iterator[Event]:
        return self._inner.watch(scope, since)

    def within(self, deadline: Deadline | None) -> GatedStore:
        return GatedStore(self._inner.within(deadline), self._permit, self._bucket)

    def close(self) -> None:
        self._inner.close()


def refuse_all() -> None:
    """The permit of a dry run."""
    raise NotAllowed("this is a dry run: nothing is written", hint="Start without --dry-run to let it act.")
