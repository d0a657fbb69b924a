"""The one gate that every write of the collector passes: dry run, leadership, pace (gc §18.2, §18.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from calico_gc.timing import Bucket
from calico_ipam.datastore.api import (
    Datastore,
    Deadline,
    Entry,
    Write,
)
from calico_ipam.datastore.passing import PassingStore
from calico_ipam.errors import RefusedError


class NotAllowed(RefusedError):
    """A write was stopped at the gate; nothing reached the datastore."""


class GatedStore(PassingStore):
    """Passes reads on as they are and writes only while ``permit`` does not raise, at the pace of ``bucket``."""

    def __init__(self, inner: Datastore, permit: Callable[[], None], bucket: Bucket) -> None:
        super().__init__(inner)
        self._permit = permit
        self._bucket = bucket

    def commit(self, *writes: Write) -> Sequence[Entry]:
        self._permit()
        self._bucket.take(len(writes))
        self._permit()  # waiting may have cost the leadership
        return self.inner.commit(*writes)

    def upgrade(self, host: str) -> None:
        self._permit()
        self.inner.upgrade(host)

    def within(self, deadline: Deadline | None) -> GatedStore:
        return GatedStore(self.inner.within(deadline), self._permit, self._bucket)


def refuse_all() -> None:
    """The permit of a dry run."""
    raise NotAllowed("this is a dry run: nothing is written", hint="Start without --dry-run to let it act.")
