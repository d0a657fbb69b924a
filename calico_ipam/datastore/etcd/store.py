"""The etcd datastore: texts under keys, each revision etcd's ``mod_revision`` (datastore §4)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

from calico_ipam.datastore.api import Revision
from calico_ipam.datastore.documents import DocumentStore, RawChange, RawLoss, RawWrite, Row
from calico_ipam.datastore.etcd import library
from calico_ipam.datastore.etcd.calls import Calls, Gone
from calico_ipam.datastore.etcd.endpoints import Resolver, cluster_of
from calico_ipam.datastore.etcd.failures import StoreFull
from calico_ipam.datastore.etcd.identity import identity_of
from calico_ipam.datastore.etcd.links import Links
from calico_ipam.datastore.etcd.patience import Patience
from calico_ipam.datastore.etcd.watching import Changes
from calico_ipam.datastore.paths import PathRange
from calico_ipam.datastore.settings import Settings
from calico_ipam.errors import InvalidInput, StoreUnavailable

MOST_OPERATIONS = 128  # of one transaction: etcd's --max-txn-ops
MOST_DIGITS = 18  # of a revision, a signed number of 64 bits
PAGE = 500  # rows of a range in one answer
MOST_SNAPSHOTS = 5  # times that a read starts again because its revision was compacted meanwhile


class EtcdStore(DocumentStore):
    """A datastore in the etcd cluster that ``settings`` name.

    Nothing is sent before the first operation. Safe between threads; a child after ``fork`` connects anew. ``now``
    gives creation times (Unix nanoseconds), ``resolve`` answers for DNS service records. Raises NotConfigured and
    InvalidInput for settings that cannot work.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        patience: Patience | None = None,
        now: Callable[[], int] = time.time_ns,
        resolve: Resolver | None = None,
    ) -> None:
        super().__init__(now=now)
        cluster = cluster_of(settings, resolve)
        identity = identity_of(settings)
        loaded = library.load()
        self._library = loaded
        self._message = loaded.message
        self.patience = patience or Patience()
        self._links = Links(cluster, identity, loaded, self.patience)
        self._calls = Calls(
            loaded, self._links, identity, self.patience, settings.etcd_username, settings.etcd_password
        )

    @property
    def name(self) -> str:
        return str(self._links.cluster)

    def close(self) -> None:
        """Close the connections for every view of this store; watches end."""
        self._links.close()

    # --- DocumentStore -------------------------------------------------------------------------------------

    def _copy(self) -> Self:
        view = object.__new__(type(self))
        view.__dict__.update(self.__dict__)
        return view

    def _raw_read(
        self, paths: Sequence[str], ranges: Sequence[PathRange]
    ) -> tuple[list[Row | None], list[list[Row]], Revision]:
        found, revision = self.rows([PathRange(path, "") for path in paths] + list(ranges))
        return [rows[0] if rows else None for rows in found[: len(paths)]], found[len(paths) :], str(revision)

    def _raw_commit(self, writes: Sequence[RawWrite]) -> list[Revision]:
        if len(writes) > MOST_OPERATIONS:
            raise InvalidInput(
                f"{len(writes)} changes cannot be made at once in {self.name}",
                subject=self.name,
                hint=f"etcd takes {MOST_OPERATIONS} in a transaction: make several commits.",
            )
        request = self._message("TxnRequest")()
        for write in writes:
            self._add(request, write)
        try:
            answer = self._calls.tell(
                lambda link, seconds, metadata: link.txn(request, timeout=seconds, metadata=metadata), self.deadline
            )
        except StoreFull:
            revision = self._done_all_the_same(writes)
            if revision is None:
                raise
            return [revision] * len(writes)
        if not answer.succeeded:
            raise _loss(writes, [_rows(each.response_range) for each in answer.responses])
        return [str(answer.header.revision)] * len(writes)

    def _done_all_the_same(self, writes: Sequence[RawWrite]) -> Revision | None:
        """Return the revision of a transaction that was refused, if everything is stored as it would have left it."""
        written = [write for write in writes if write.kind != "delete"]
        rows, _, _ = self._raw_read([write.path for write in written], ())
        revisions = set()
        for row, write in zip(rows, written, strict=True):
            if row is None or row.text != write.text or row.revision == write.expected:
                return None
            revisions.add(row.revision)
        return revisions.pop() if len(revisions) == 1 else None

    def _raw_watch(self, ranges: Sequence[PathRange], since: Revision) -> Iterator[RawChange | Revision]:
        return Changes(self, self._calls, self._library, ranges, _number(since))

    # --- reading -------------------------------------------------------------------------------------------

    def rows(self, wanted: Sequence[PathRange], revision: int = 0) -> tuple[list[list[Row]], int]:
        """Return the rows of each range (without an end: of one key) as of one moment, and the revision of it.

        ``revision`` 0 means now; Gone is raised for another one that is not kept.
        """
        for _ in range(MOST_SNAPSHOTS):
            try:
                return self._snapshot(wanted, revision)
            except Gone:
                if revision:
                    raise
        raise StoreUnavailable(
            f"cannot read from the datastore {self.name}: its history is compacted faster than it can be read",
            subject=self.name,
            hint="Try again; if it persists, look for a program that compacts etcd in a loop.",
        )

    def _snapshot(self, wanted: Sequence[PathRange], revision: int) -> tuple[list[list[Row]], int]:
        found: list[list[Row]] = []
        for start in range(0, max(1, len(wanted)), MOST_OPERATIONS):
            part = wanted[start : start + MOST_OPERATIONS]
            answers, seen = self._ranges([(each.start.encode(), each.end.encode()) for each in part], revision)
            revision = revision or seen  # whatever is read after the first answer is read as of its moment
            for each, answer in zip(part, answers, strict=True):
                rows = _rows(answer)
                while answer.more:
                    after = answer.kvs[-1].key + b"\0"
                    ((answer,), _) = self._ranges([(after, each.end.encode())], revision)
                    rows += _rows(answer)
                found.append(rows)
        return found, revision

    def _ranges(self, wanted: Sequence[tuple[bytes, bytes]], revision: int) -> tuple[list[Any], int]:
        """Do one request: the first page of each range."""
        new = self._message("RangeRequest")
        requests = [new(key=start, range_end=end, limit=PAGE if end else 0, revision=revision) for start, end in wanted]
        if len(requests) == 1:
            answer = self._calls.ask(
                lambda link, seconds, metadata: link.range(requests[0], timeout=seconds, metadata=metadata),
                self.deadline,
            )
            return [answer], answer.header.revision
        transaction = self._message("TxnRequest")(success=[{"request_range": each} for each in requests])
        answer = self._calls.ask(
            lambda link, seconds, metadata: link.txn(transaction, timeout=seconds, metadata=metadata), self.deadline
        )
        return [each.response_range for each in answer.responses], answer.header.revision

    # --- writing -------------------------------------------------------------------------------------------

    def _add(self, transaction: Any, write: RawWrite) -> None:
        """Add a write: If it may be done, Then it is, Else what is stored comes back."""
        compare = self._message("Compare")
        key = write.path.encode()
        if write.kind == "create":
            transaction.compare.add(key=key, result=compare.EQUAL, target=compare.VERSION, version=0)
        else:
            transaction.compare.add(
                key=key, result=compare.EQUAL, target=compare.MOD, mod_revision=_number(write.expected)
            )
        operation = transaction.success.add()
        if write.kind == "delete":
            operation.request_delete_range.key = key
        else:
            operation.request_put.key = key
            operation.request_put.value = write.text.encode()
        transaction.failure.add().request_range.key = key


def _rows(answer: Any) -> list[Row]:
    return [row_of(pair) for pair in answer.kvs]


def row_of(pair: Any) -> Row:
    """Return a row. Bytes that are no text become replacement characters, as in upstream's JSON."""
    return Row(pair.key.decode("utf-8", "replace"), pair.value.decode("utf-8", "replace"), str(pair.mod_revision))


def _loss(writes: Sequence[RawWrite], stored: Sequence[Sequence[Row]]) -> RawLoss:
    """Return the loss of the first write that did not find what it expects."""
    for position, (write, rows) in enumerate(zip(writes, stored, strict=True)):
        row = rows[0] if rows else None
        if (row is not None) if write.kind == "create" else (row is None or row.revision != write.expected):
            return RawLoss(position, row)
    raise AssertionError("etcd refused a transaction whose conditions hold")


def _number(revision: Revision) -> int:
    if not (revision.isascii() and revision.isdigit() and len(revision) <= MOST_DIGITS):
        raise InvalidInput(f"error with field ResourceVersion = '{revision}' (not a revision of this datastore)")
    return int(revision)
