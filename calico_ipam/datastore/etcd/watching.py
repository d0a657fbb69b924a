"""A watch on etcd that resumes on another member, lists again after compaction, and never goes silent."""

from __future__ import annotations

import logging
import os
import queue
import random
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from calico_ipam.datastore.api import Revision
from calico_ipam.datastore.documents import RawChange, Row
from calico_ipam.datastore.etcd.calls import Calls, Gone
from calico_ipam.datastore.etcd.failures import COMPACTED, Failure, Meaning, failure_of
from calico_ipam.datastore.etcd.library import PROGRESS, Library
from calico_ipam.datastore.etcd.links import Link
from calico_ipam.datastore.paths import PathRange
from calico_ipam.errors import DeadlineExceeded, IPAMError, StoreUnavailable, TransientError

if TYPE_CHECKING:
    from calico_ipam.datastore.etcd.store import EtcdStore

log = logging.getLogger(__name__)

FIRST_PAUSE = 0.05  # seconds before a broken watch is opened again; doubled while it fails
LONGEST_PAUSE = 2.0
MOST_LOGINS = 3
ROOM = 100  # answers that wait to be taken; etcd waits with the next ones (datastore §7)
DELETE = 1  # mvccpb.Event.DELETE


class Changes(Iterator[RawChange | Revision]):
    """Changes of some ranges after a revision, for ever.

    The rows that were there are remembered, so that what happened while etcd forgot its history is found by listing
    again, deletions included. They also are the last state of what is deleted, which is why etcd is not asked for it
    with every event (``prev_kv``).
    """

    def __init__(
        self, store: EtcdStore, calls: Calls, library: Library, ranges: Sequence[PathRange], since: int
    ) -> None:
        self._store = store
        self._calls = calls
        self._library = library
        self._ranges = ranges
        self._position = since  # everything up to here has been queued
        self._known: dict[str, Row] | None = None
        self._queue: deque[RawChange | Revision] = deque()
        self._closed = threading.Event()
        self._stream: Stream | None = None
        self._contact = time.monotonic()
        self._pause = FIRST_PAUSE
        self._logins = 0

    def close(self) -> None:
        """End the iteration, also one that waits in another thread."""
        self._closed.set()
        stream = self._stream
        if stream is not None:
            stream.end()

    def __next__(self) -> RawChange | Revision:
        self._contact = time.monotonic()  # the time that somebody took between two events is no silence
        while not self._ended():
            if self._queue:
                return self._queue.popleft()
            self._check_time()
            try:
                self._step()
            except IPAMError as error:
                if self._ended():
                    break  # closed while something was being asked
                if not isinstance(error, TransientError):
                    raise
                log.warning("the watch on etcd waits for it to answer: %s", error)
                self._wait()
        self._leave()
        raise StopIteration

    def _ended(self) -> bool:
        return self._closed.is_set() or self._calls.links.closed.is_set()

    def _late(self) -> bool:
        return self._store.deadline is not None and self._store.deadline.remaining() <= 0

    def _check_time(self) -> None:
        if self._late():
            self._leave()
            raise DeadlineExceeded(f"out of time while watching {self._store.name}", subject=self._store.name)
        silence = time.monotonic() - self._contact
        if silence > self._calls.patience.outage:
            self._leave()
            raise StoreUnavailable(
                f"cannot watch the datastore {self._store.name}: no contact for {silence:.0f} s",
                subject=self._store.name,
                hint="Check that etcd runs: etcdctl endpoint health.",
            )

    # --- one step ------------------------------------------------------------------------------------------

    def _step(self) -> None:
        if self._known is None:
            self._begin()
        elif self._stream is None or self._stream.foreign or self._stream.interrupted:
            self._open()
        else:
            self._take(self._stream)

    def _begin(self) -> None:
        """Learn what was there at the beginning; where that is forgotten, everything counts as new."""
        if self._position == 0:
            self._known = {}
            return
        try:
            self._known = self._rows(self._position)[0]
        except Gone:
            self._known = {}
            self._list_again()
        self._contact = time.monotonic()

    def _open(self) -> None:
        self._calls.settle(self._store.deadline)
        self._contact = time.monotonic()
        request = self._library.message("WatchRequest")()
        create = request.create_request
        # One range over all of ours: etcd keeps the order of events only inside one. Nothing else lies in between.
        create.key = min(each.start for each in self._ranges).encode()
        create.range_end = max(each.end for each in self._ranges).encode()
        create.start_revision = self._position + 1
        create.progress_notify = True
        self._stream = Stream(self._calls, self._library, request)

    def _take(self, stream: Stream) -> None:
        message = stream.next(self._patience())
        if stream.interrupted:
            return  # what it has told and nobody has taken is told again by the next one
        if message is None:
            self._quiet(stream)
        elif isinstance(message, Failure):
            self._broken(stream, message)
        else:
            self._contact = time.monotonic()
            self._pause = FIRST_PAUSE
            self._told(message)

    def _patience(self) -> float:
        pulse = self._calls.patience.pulse
        return pulse if self._store.deadline is None else min(pulse, self._store.deadline.remaining())

    def _quiet(self, stream: Stream) -> None:
        """Nothing came for a while: ask whether anybody is there, and tell how far we are."""
        if self._late() or self._ended():
            return
        if stream.asked:
            self._broken(stream, Failure(Meaning.UNSURE, "", "does not answer on the stream of events"))
            return
        stream.ask()
        if self._position:
            self._queue.append(str(self._position))

    def _broken(self, stream: Stream, failure: Failure) -> None:
        """The stream ended: open another one, elsewhere if the member is at fault."""
        if self._ended():
            return
        self._leave()
        if failure.meaning is Meaning.GONE:
            self._list_again()
            return
        anonymous = failure.anonymous or "permission denied" in failure.text  # what a watch without token is told, too
        if failure.meaning is Meaning.TOKEN or (self._calls.user and anonymous):
            self._logins += 1
            if self._logins <= MOST_LOGINS:
                stream.forget_token()
                return
        if failure.meaning is Meaning.REFUSED or failure.meaning is Meaning.TOKEN:
            raise self._calls.refusal(failure, "watch")
        log.warning("the watch on etcd was interrupted: %s %s", stream.member, failure.short)
        self._calls.links.leave(stream.link)
        self._wait()

    def _wait(self) -> None:
        self._closed.wait(random.uniform(self._pause / 2, self._pause))
        self._pause = min(LONGEST_PAUSE, self._pause * 2)

    def _leave(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.end()

    # --- answers -------------------------------------------------------------------------------------------

    def _told(self, answer: Any) -> None:
        if answer.canceled:
            stream = self._stream
            assert stream is not None  # noqa: S101  # answers come from a stream
            compacted = answer.compact_revision > 0
            text = answer.cancel_reason or (COMPACTED if compacted else "the watch was cancelled")
            self._broken(stream, Failure(Meaning.GONE if compacted else Meaning.REFUSED, text, text))
            return
        self._logins = 0
        if answer.created and answer.header.revision < self._position:
            # Another history, restored from a backup: etcd would wait in silence for our revision to come.
            self._leave()
            self._list_again()
            return
        if not answer.events:
            # Of this watch, a notice that nothing is under way. With watch_id -1 it answers our own question, and etcd
            # before 3.4.25 and 3.5.8 gives it also while events are: that one only shows that somebody is there.
            if not answer.created and answer.watch_id >= 0 and answer.header.revision > self._position:
                self._position = answer.header.revision
                self._queue.append(str(self._position))
            return
        self._events(answer.events)

    def _events(self, events: Sequence[Any]) -> None:
        for number, event in enumerate(events):
            revision = event.kv.mod_revision
            # A transaction's changes share a revision. Who goes on from one in the middle must get the rest again.
            whole = number + 1 == len(events) or events[number + 1].kv.mod_revision != revision
            self._change(event, revision if whole else revision - 1)
        self._position = max(self._position, events[-1].kv.mod_revision)

    def _change(self, event: Any, revision: int) -> None:
        from calico_ipam.datastore.etcd.store import row_of

        assert self._known is not None  # noqa: S101  # set before a stream is opened
        row = row_of(event.kv)
        if not any(each.holds(row.path) for each in self._ranges):
            return
        if event.type == DELETE:
            last = self._known.pop(row.path, row)
            self._queue.append(RawChange("deleted", last, str(revision)))
            return
        self._known[row.path] = row
        self._queue.append(RawChange("added" if event.kv.version == 1 else "modified", row, str(revision)))

    # --- listing again -------------------------------------------------------------------------------------

    def _rows(self, revision: int) -> tuple[dict[str, Row], int]:
        found, seen = self._store.rows(self._ranges, revision)
        return {row.path: row for rows in found for row in rows}, seen

    def _list_again(self) -> None:
        """Tell the difference between what is known and what is there. Only the bookmark behind it moves on."""
        current, newest = self._rows(0)
        level = logging.WARNING if self._position else logging.INFO  # from 0 means: whatever there is
        log.log(level, "etcd has forgotten what happened after revision %d: everything is listed again", self._position)
        known = self._known or {}
        position = str(self._position)
        for path in sorted(known.keys() - current.keys()):
            self._queue.append(RawChange("deleted", known[path], position))
        for path, row in current.items():
            old = known.get(path)
            if old is None or (old.revision, old.text) != (row.revision, row.text):
                self._queue.append(RawChange("added" if old is None else "modified", row, position))
        self._queue.append(str(newest))
        self._known = current
        self._position = newest
        self._contact = time.monotonic()


class Stream:
    """One stream of events on one connection. A thread takes the answers, since gRPC cannot wait for a limited time."""

    def __init__(self, calls: Calls, library: Library, request: Any) -> None:
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._room: queue.SimpleQueue[None] = queue.SimpleQueue()  # one for each answer that was taken
        self._pid = os.getpid()
        lease = calls.links.link()
        self.link = lease.__enter__()
        self.member = str(self.link.endpoint)
        self.asked = False
        self.interrupted = False  #: ended because the process forks, and nobody's fault
        self._token = self.link.token
        self._requests.put(request.SerializeToString())
        # Bytes go out instead of messages, because etcd3 does not know the question for progress.
        start = library.watch(self.link.channel)
        try:
            self._call = start(iter(self._requests.get, None), metadata=self.link.metadata())
        except ValueError:
            lease.__exit__(None, None, None)
            calls.links.check_open()  # gRPC's word for a channel that was closed in this moment
            raise
        over = threading.Event()
        self._call.add_done_callback(lambda _call: over.set())
        self._end = weakref.finalize(self, _end, self._call, self._requests, self._room, self._pid)
        arguments = self._call, self._answers, self._room, library, lease, over
        threading.Thread(target=_collect, args=arguments, name="etcd-watch", daemon=True).start()
        calls.links.follow(self)

    @property
    def foreign(self) -> bool:
        """Whether it belongs to the process that forked this one."""
        return self._pid != os.getpid()

    def next(self, seconds: float) -> Any:
        """Return the next answer, the Failure that ended the stream, or None after ``seconds``."""
        try:
            answer = self._answers.get(timeout=seconds)
        except queue.Empty:
            return None
        self.asked = False
        self._room.put(None)
        return answer

    def ask(self) -> None:
        """Ask for a sign of life."""
        self.asked = True
        self._requests.put(PROGRESS)

    def forget_token(self) -> None:
        self.link.forget(self._token)

    def end(self) -> None:
        """End the stream; a waiting ``next`` returns."""
        self._end()

    def interrupt(self) -> None:
        self.interrupted = True
        self._end()


def _collect(
    call: Any,
    answers: queue.SimpleQueue[Any],
    room: queue.SimpleQueue[None],
    library: Library,
    lease: AbstractContextManager[Link],
    over: threading.Event,
) -> None:
    """Take answers as long as there is room for them. The queues are such that a finalizer may use at any moment.

    The connection is given back when gRPC is done with the stream, which is later than its cancellation: until then a
    thread of gRPC's works on it, and a fork must not find it there.
    """
    try:
        for number, answer in enumerate(call):
            if number >= ROOM:
                room.get()
            answers.put(answer)
        answers.put(Failure(Meaning.UNSURE, "", "ended the stream of events"))
    except library.grpc.RpcError as error:
        answers.put(failure_of(error))
    finally:
        over.wait()
        lease.__exit__(None, None, None)


def _end(call: Any, requests: queue.SimpleQueue[bytes | None], room: queue.SimpleQueue[None], pid: int) -> None:
    if pid != os.getpid():
        return  # the parent's: its threads are not here
    call.cancel()
    requests.put(None)
    room.put(None)
