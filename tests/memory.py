"""A datastore in a dictionary: the contract of SQLite and etcd without files, for tests that need many stores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Self

from calico_ipam.datastore.api import Revision
from calico_ipam.datastore.documents import DocumentStore, RawChange, RawLoss, RawWrite, Row
from calico_ipam.datastore.paths import PathRange


class MemoryStore(DocumentStore):
    """Keeps rows in memory; everything above rows is the code of the real backends. Without watches."""

    def __init__(self) -> None:
        super().__init__()
        super().__init__()
        self._rows: dict[str, Row] = {}
        self._revision = 0

    @property
    def name(self) -> str:
        return "memory"

    def clear(self) -> None:
        """Forget everything that is stored. Revisions go on, so nothing read before can be written over."""
        self._rows.clear()

    def _raw_read(
        self, paths: Sequence[str], ranges: Sequence[PathRange]
    ) -> tuple[list[Row | None], list[list[Row]], Revision]:
        found = [[self._rows[path] for path in sorted(self._rows) if span.holds(path)] for span in ranges]
        return [self._rows.get(path) for path in paths], found, str(self._revision)

    def _raw_commit(self, writes: Sequence[RawWrite]) -> list[Revision]:
        for position, write in enumerate(writes):
            stored = self._rows.get(write.path)
            expected = write.expected if write.kind != "create" else None
            if (stored.revision if stored else None) != expected:
                raise RawLoss(position, stored)
        self._revision += 1
        for write in writes:
            if write.kind == "delete":
                del self._rows[write.path]
            else:
                self._rows[write.path] = Row(write.path, write.text, str(self._revision))
        return [str(self._revision)] * len(writes)

    def _raw_watch(self, ranges: Sequence[PathRange], since: Revision) -> Iterator[RawChange | Revision]:
        raise NotImplementedError("a store in memory has no watches")

    def _copy(self) -> Self:
        return self

    def close(self) -> None:
        return None
