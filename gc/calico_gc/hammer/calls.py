"""How often the hammer asked the servers, and for what (gc §20)."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence

from calico_ipam.datastore.api import Datastore, Deadline, Entry, Listing, Snapshot, Write
from calico_ipam.datastore.passing import PassingStore
from calico_ipam.model.keys import Key, Scope


class Calls:
    """Numbers by what was done to which kind. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers: Counter[str] = Counter()

    def count(self, doing: str, kind: str) -> None:
        with self._lock:
            self._numbers[f"{doing} {kind}"] += 1

    def numbers(self) -> dict[str, int]:
        with self._lock:
            return dict(sorted(self._numbers.items()))


class CountedStore(PassingStore):
    """A store that counts; everything passes."""

    def __init__(self, inner: Datastore, calls: Calls) -> None:
        super().__init__(inner)
        self._calls = calls

    def get(self, key: Key) -> Entry:
        self._calls.count("read", _kind(key))
        return super().get(key)

    def list(self, scope: Scope) -> Listing:
        self._calls.count("list", _kind(scope))
        return super().list(scope)

    def read(self, *wanted: Key | Scope) -> Snapshot:
        for each in wanted:
            self._calls.count("read", _kind(each))
        return super().read(*wanted)

    def commit(self, *writes: Write) -> Sequence[Entry]:
        for write in writes:
            self._calls.count(type(write).__name__.lower(), _kind(write.key))
        return super().commit(*writes)

    def within(self, deadline: Deadline | None) -> CountedStore:
        return CountedStore(self.inner.within(deadline), self._calls)


def _kind(asked: Key | Scope) -> str:
    """Return the kind of a resource, or what else a key or a scope is of."""
    return str(getattr(asked, "kind", "") or type(asked).__name__.removesuffix("Key"))
