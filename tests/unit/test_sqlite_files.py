"""The file of the embedded store: what it is made as, what is refused, what its failures say."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from calico_ipam.datastore import documents, sqlite, sqlite_connections
from calico_ipam.datastore.api import Create, Deadline, Delete, Entry, Update
from calico_ipam.datastore.sqlite import KEPT_CHANGES, TRIM_EVERY, SQLiteStore
from calico_ipam.datastore.sqlite_file import APPLICATION_ID, SCHEMA_VERSION
from calico_ipam.errors import (
    AlreadyExists,
    InvalidInput,
    IPAMError,
    OutcomeUnknown,
    StoreDamaged,
    StoreError,
    StoreUnavailable,
)
from calico_ipam.model.handle import Handle
from calico_ipam.model.keys import HandleKey, Handles, ResourceKey
from calico_ipam.model.resource import Resource
from tests.anywhere import at_line
from tests.clock import SOON, seconds_since

KEY = HandleKey("h")


def handle(count: int = 1, name: str = "h") -> Handle:
    return Handle(name, {"10.0.0.0/26": count})


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def refused(path: Path, kind: type[IPAMError], text: str) -> IPAMError:
    """Open a file that cannot be a store; its bytes, if it is one, must stay as they are."""
    before = path.read_bytes() if path.is_file() else b""
    with pytest.raises(kind, match=text) as caught:
        SQLiteStore(path)
    assert str(path) in str(caught.value)
    assert caught.value.hint
    assert (path.read_bytes() if path.is_file() else b"") == before
    return caught.value


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with closing(SQLiteStore(tmp_path / "store" / "ipam.db")) as opened:
        yield opened


# --- making --------------------------------------------------------------------------------------------------


def test_a_new_store_is_closed_to_others(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        with closing(SQLiteStore(tmp_path / "calico" / "ipam" / "ipam.db")) as store:
            store.commit(Create(KEY, handle()))
            assert {path.name: mode(path) for path in store.path.parent.iterdir()} == {
                "ipam.db": 0o600,
                "ipam.db-wal": 0o600,
                "ipam.db-shm": 0o600,
            }
            assert mode(store.path.parent) == 0o700
            assert mode(store.path.parent.parent) != 0o700
            assert store.name == f"sqlite://{store.path}"
    finally:
        os.umask(old)


def test_the_mode_of_an_existing_folder_is_its_owners(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    SQLiteStore(tmp_path / "ipam.db").close()
    assert mode(tmp_path) == 0o755


def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    path = tmp_path / "ipam.db"
    path.touch(mode=0o640)
    SQLiteStore(path).close()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert mode(path) == 0o640


def test_what_was_written_is_there_after_closing(tmp_path: Path) -> None:
    with closing(SQLiteStore(tmp_path / "ipam.db")) as store:
        (entry,) = store.commit(Create(KEY, handle()))
    with closing(SQLiteStore(tmp_path / "ipam.db")) as store:
        assert store.get(KEY) == entry


def test_many_make_the_same_store_at_once(tmp_path: Path) -> None:
    path, failures = tmp_path / "store" / "ipam.db", []
    start = threading.Barrier(8)

    def make(name: str) -> None:
        try:
            start.wait(30)
            with closing(SQLiteStore(path)) as store:
                store.commit(Create(HandleKey(name), handle(name=name)))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=make, args=(f"h{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    with closing(SQLiteStore(path)) as store:
        assert len(store.list(Handles())) == 8


# --- files that are no store ---------------------------------------------------------------------------------


def test_a_folder_is_refused(tmp_path: Path) -> None:
    refused(tmp_path, StoreError, "is a folder")


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", StoreError, "is no regular file")


@pytest.mark.parametrize("content", [b"x", b"not a database, but a letter to a friend\n" * 100])
def test_what_is_no_database_is_never_overwritten(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ipam.db"
    path.write_bytes(content)
    refused(path, StoreDamaged, "is not a database")


def test_the_head_alone_makes_no_database(tmp_path: Path) -> None:
    path = tmp_path / "ipam.db"
    path.write_bytes(b"SQLite format 3\0" + b"\xff" * 4096)
    refused(path, StoreDamaged, "is not a database")


def test_the_database_of_another_application_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ipam.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE songs (title TEXT)")
    refused(path, StoreDamaged, "is a database of another application")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE songs")
        connection.execute("PRAGMA application_id=7")
    refused(path, StoreDamaged, "is a database of another application")


def test_a_newer_schema_is_refused(store: SQLiteStore) -> None:
    store.close()
    with closing(sqlite3.connect(store.path)) as connection:
        connection.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    error = refused(store.path, StoreError, f"has schema version {SCHEMA_VERSION + 1}; this program knows up to")
    assert "newer version" in error.hint


def test_a_torn_file_is_damaged(store: SQLiteStore) -> None:
    for number in range(200):
        store.commit(Create(HandleKey(f"h{number}"), handle(name=f"h{number}")))
    store.close()
    with store.path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (store.path.stat().st_size - 4096))
    with pytest.raises(StoreDamaged, match="is damaged") as caught, closing(SQLiteStore(store.path)) as again:
        again.list(Handles())
    assert "restore a backup" in caught.value.hint


def test_a_parent_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="cannot be"):
        SQLiteStore(tmp_path / "file" / "ipam.db")
    with pytest.raises(StoreError, match="cannot be"):
        SQLiteStore(tmp_path / "file" / "deeper" / "ipam.db")


# --- rights, disks, locks ------------------------------------------------------------------------------------


@contextmanager
def nobody() -> Iterator[None]:
    """Be a user without rights, if we are root; otherwise we are one already."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def public(tmp_path: Path) -> Iterator[Path]:
    """A folder that everybody can enter, on a way that everybody can go."""
    folder = tmp_path / "public"
    folder.mkdir(mode=0o755)
    changed = []
    for parent in folder.parents:
        if parent.stat().st_uid == os.geteuid() and not mode(parent) & 0o001:
            changed.append((parent, mode(parent)))
            parent.chmod(mode(parent) | 0o011)
    yield folder
    for parent, old in changed:
        parent.chmod(old)


def test_an_unreadable_file_is_told(public: Path) -> None:
    path = public / "ipam.db"
    SQLiteStore(path).close()
    path.chmod(0)
    with nobody(), pytest.raises(StoreError, match="cannot be read: Permission denied") as caught:
        SQLiteStore(path)
    assert "user that owns it" in caught.value.hint


def test_a_file_that_cannot_be_written_is_told(public: Path) -> None:
    path = public / "ipam.db"
    SQLiteStore(path).close()
    path.chmod(0o444)
    with nobody(), pytest.raises(StoreError) as caught:
        SQLiteStore(path).commit(Create(KEY, handle()))
    assert str(path) in str(caught.value)
    assert caught.value.hint


def test_a_folder_that_cannot_be_made_is_told(public: Path) -> None:
    public.chmod(0o555)
    with nobody(), pytest.raises(StoreError, match="cannot be made: Permission denied") as caught:
        SQLiteStore(public / "calico" / "ipam.db")
    assert str(public) in caught.value.hint


def in_small_world(script: str, *arguments: str) -> str:
    """Run a script as root with mounts of its own; return what it printed."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root and unshare, to mount a small disk")
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", script, "sh", sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


FILL = """
import sys
from calico_ipam.datastore.api import Create
from calico_ipam.datastore.sqlite import SQLiteStore
from calico_ipam.errors import IPAMError
from calico_ipam.model.handle import Handle
from calico_ipam.model.keys import HandleKey, Handles
try:
    store = SQLiteStore(sys.argv[1])
    kept = len(store.list(Handles()))
    for number in range(kept, 100000):
        store.commit(Create(HandleKey(f"h{number}"), Handle("h", {"x" * 2000: 1})))
        kept += 1
except IPAMError as error:
    print(type(error).__name__, error, error.hint, sep="|")
    print(len(store.list(Handles())) == kept if "store" in dir() else "not opened")
"""


def test_a_full_disk_is_told_and_nothing_is_lost(tmp_path: Path) -> None:
    script = 'mount -t tmpfs -o size=600k small "$2"; "$1" -c "$3" "$2/ipam.db"'
    told, whole = in_small_world(script, str(tmp_path), FILL).splitlines()
    kind, text, hint = told.split("|")
    assert (kind, text) == ("StoreError", f"cannot write the datastore {tmp_path}/ipam.db: the disk is full")
    assert "Free space" in hint
    assert whole == "True"


def test_a_disk_too_small_for_a_store_is_told(tmp_path: Path) -> None:
    script = 'mount -t tmpfs -o size=4k small "$2"; "$1" -c "$3" "$2/ipam.db"'
    told, _ = in_small_world(script, str(tmp_path), FILL).splitlines()
    assert told.startswith(f"StoreError|cannot open the datastore {tmp_path}/ipam.db: the disk is full|")


def test_a_read_only_disk_is_told(tmp_path: Path) -> None:
    SQLiteStore(tmp_path / "ipam.db").close()
    script = (
        'mount --bind "$2" "$2"; mount -o remount,ro,bind "$2"; "$1" -c "$3" "$2/ipam.db"; "$1" -c "$3" "$2/new.db"'
    )
    there, _, new, _ = in_small_world(script, str(tmp_path), FILL).splitlines()
    assert there.startswith("StoreError|") and f"{tmp_path}/ipam.db" in there
    assert new.startswith(f"StoreError|the datastore file {tmp_path}/new.db cannot be made: Read-only file system|")


def test_a_lock_held_too_long_is_told(store: SQLiteStore) -> None:
    (entry,) = store.commit(Create(KEY, handle()))
    with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        started = time.monotonic()
        with pytest.raises(StoreUnavailable, match="another process keeps it locked") as caught:
            store.within(Deadline.after(1)).commit(Update(entry, handle(2)))
        assert 0.5 < seconds_since(started) < SOON
        assert str(store.path) in str(caught.value)
        assert store.within(Deadline.after(SOON)).get(KEY) == entry  # readers do not wait
        other.execute("ROLLBACK")
    assert store.commit(Update(entry, handle(2)))


def test_a_failure_of_the_disk_at_the_commit_leaves_the_outcome_open(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing:
        def __init__(self, inner: sqlite3.Connection) -> None:
            self.inner = inner

        def execute(self, statement: str, *arguments: Sequence[Any]) -> sqlite3.Cursor:
            if statement == "COMMIT":
                self.inner.execute("ROLLBACK")
                error = sqlite3.OperationalError("disk I/O error")
                error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
                raise error
            return self.inner.execute(statement, *arguments)

    session = store._connections.session()
    real = store._connections.connection(session)
    monkeypatch.setattr(store._connections, "connection", lambda session: Failing(real))
    with pytest.raises(OutcomeUnknown, match="cannot tell whether"):
        store.commit(Create(KEY, handle()))


def test_a_file_removed_under_us_is_told_and_not_made_anew(store: SQLiteStore) -> None:
    store.commit(Create(KEY, handle()))
    for path in store.path.parent.iterdir():
        path.unlink()
    for operation in (lambda: store.get(KEY), lambda: store.commit(Create(HandleKey("i"), handle(name="i")))):
        with pytest.raises(StoreError, match="has been removed while it was in use"):
            operation()
    assert not store.path.exists()


def test_a_file_put_in_its_place_is_used(store: SQLiteStore, tmp_path: Path) -> None:
    store.commit(Create(KEY, handle()))
    store.backup(tmp_path / "copy.db")
    (entry,) = store.commit(Update(store.get(KEY), handle(2)))
    for path in store.path.parent.iterdir():
        path.unlink()
    (tmp_path / "copy.db").rename(store.path)
    assert store.get(KEY).value == handle(1)
    with pytest.raises(IPAMError):
        store.commit(Update(entry, handle(3)))


def test_a_signal_that_raises_at_whatever_line_leaves_no_transaction_open(store: SQLiteStore) -> None:
    """Not even where one that failed is being rolled back: ``ipam gc --lock`` unlocks with the same store."""

    class Ended(BaseException):
        pass

    def end() -> None:
        raise Ended

    store.commit(Create(KEY, handle()))
    place, came = 0, True
    while came:
        place += 1
        with at_line(place, end, sqlite, sqlite_connections) as lines, suppress(AlreadyExists, Ended):
            store.commit(Create(KEY, handle()))
        came = len(lines) >= place
        (entry,) = store.commit(Update(store.get(KEY), handle(place + 1)))
        store.commit(Update(entry, handle(1)))
    assert place > 20


# --- the log, copies, forks ----------------------------------------------------------------------------------


def test_the_change_log_is_bounded(store: SQLiteStore) -> None:
    batch = 64
    entries = store.commit(*(Create(HandleKey(f"h{n}"), handle(name=f"h{n}")) for n in range(batch)))
    for number in range((KEPT_CHANGES + 3 * TRIM_EVERY) // batch):
        entries = list(store.commit(*(Update(entry, handle(number, entry.key.id)) for entry in entries)))
    with closing(sqlite3.connect(store.path)) as connection:
        (kept,) = connection.execute("SELECT count(*) FROM changes").fetchone()
    assert KEPT_CHANGES <= kept < KEPT_CHANGES + TRIM_EVERY


def trim(store: SQLiteStore) -> None:
    """Forget all changes but the last, as if thousands had happened."""
    with closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
        connection.execute("DELETE FROM changes WHERE revision < (SELECT max(revision) FROM changes)")


def test_a_watch_that_fell_behind_tells_what_it_missed(store: SQLiteStore) -> None:
    a, b, c = store.commit(*(Create(HandleKey(name), handle(name=name)) for name in "abc"))
    events = store.watch(Handles(), c.revision)
    (first,) = store.commit(Create(HandleKey("first"), handle(name="first")))
    assert next(events).entry == first
    store.commit(Delete(a))
    (b,) = store.commit(Update(b, handle(5, "b")))
    (d,) = store.commit(Create(HandleKey("d"), handle(name="d")))
    store.commit(Create(HandleKey("x"), handle(name="x")))
    trim(store)
    told = [next(events) for _ in range(5)]
    assert [(event.kind, event.entry.key.id if event.entry else None) for event in told] == [
        ("deleted", "a"),
        ("modified", "b"),
        ("added", "d"),
        ("added", "x"),
        ("bookmark", None),
    ]
    assert told[0].entry == a and told[2].entry == d
    (last,) = store.commit(Delete(d))
    assert (event := next(events)).kind == "deleted" and event.entry == last


def test_a_watch_that_is_closed_at_whatever_line_ends(store: SQLiteStore) -> None:
    """By another thread, which is here the same one."""
    store.commit(*(Create(HandleKey(name), handle(name=name)) for name in "abc"))
    place, came = 0, True
    while came:
        place += 1
        watch = store.watch(Handles(), "")
        with at_line(place, watch.close, documents) as lines:  # type: ignore[attr-defined]  # an Iterator to the contract
            for event in watch:
                if event.kind == "bookmark":
                    break
        came = len(lines) >= place
    assert place > 4


def test_a_watch_from_before_the_log_tells_everything(store: SQLiteStore) -> None:
    store.commit(*(Create(HandleKey(name), handle(name=name)) for name in "abc"))
    trim(store)
    events = store.watch(Handles(), "0")
    assert [next(events).kind for _ in range(4)] == ["added", "added", "added", "bookmark"]


def test_a_watch_learns_what_was_deleted_before_its_first_look(store: SQLiteStore) -> None:
    (entry,) = store.commit(Create(KEY, handle()))
    events = store.watch(Handles(), entry.revision)
    store.commit(Delete(entry))
    assert (event := next(events)).kind == "deleted" and event.entry == entry


def test_a_watch_tells_its_position_when_others_are_busy(store: SQLiteStore) -> None:
    events = store.watch(Handles(), "0")
    for batch in range(11):
        names = [f"n{batch}-{number}" for number in range(100)]
        store.commit(*(Create(ResourceKey("Node", name), Resource.new("Node", name, {})) for name in names))
    event = next(events)
    assert (event.kind, int(event.revision) >= 1000) == ("bookmark", True)


@pytest.mark.parametrize("since", ["x", "-1", "1.5"])
def test_a_watch_begins_at_a_revision_of_this_store(store: SQLiteStore, since: str) -> None:
    with pytest.raises(InvalidInput, match="ResourceVersion"):
        store.watch(Handles(), since)


def test_a_backup_of_a_live_store(store: SQLiteStore, tmp_path: Path) -> None:
    store.commit(Create(KEY, handle()))
    copy = tmp_path / "copy.db"
    store.backup(copy)
    assert mode(copy) == 0o600
    store.commit(Update(store.get(KEY), handle(2)))
    with closing(SQLiteStore(copy)) as other:
        assert other.get(KEY).value == handle(1)
        assert other.list(Handles()).revision == "1"
        other.commit(Update(other.get(KEY), handle(3)))
    assert store.get(KEY).value == handle(2)


def test_a_backup_overwrites_nothing(store: SQLiteStore, tmp_path: Path) -> None:
    (tmp_path / "copy.db").write_text("precious")
    with pytest.raises(InvalidInput, match=r"copy\.db exists"):
        store.backup(tmp_path / "copy.db")
    assert (tmp_path / "copy.db").read_text() == "precious"
    with pytest.raises(StoreError, match="cannot be made"):
        store.backup(tmp_path / "missing" / "copy.db")


def in_child(action: Callable[[], bool]) -> int:
    """Run an action in a forked child; return its exit status (0: it was True)."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(30)
            status = 0 if action() else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_opens_the_file_anew(store: SQLiteStore) -> None:
    (entry,) = store.commit(Create(KEY, handle()))

    def use() -> bool:
        assert store.get(KEY) == entry
        store.commit(Update(store.get(KEY), handle(2)))
        return bool(store.get(KEY).value == handle(2))

    assert in_child(use) == 0
    assert store.get(KEY).value == handle(2)
    assert store.commit(Update(store.get(KEY), handle(3)))


def test_a_forked_child_inherits_no_open_file(store: SQLiteStore) -> None:
    # SQLite's locks stay with the parent, its memory of them would come along: the child would trust locks it lacks.
    store.commit(Create(KEY, handle()))
    others = ThreadPoolExecutor(1)
    others.submit(store.get, KEY).result(30)

    def inherited() -> list[str]:
        links = [os.path.realpath(number) for number in Path("/proc/self/fd").iterdir()]
        return [link for link in links if link.startswith(str(store.path))]

    assert inherited()
    assert in_child(lambda: inherited() == []) == 0
    others.shutdown()


def test_forks_while_other_threads_write(store: SQLiteStore) -> None:
    store.commit(*(Create(HandleKey(f"t{n}"), handle(0, f"t{n}")) for n in range(4)))
    stop, failures = threading.Event(), []

    def write(name: str) -> None:
        try:
            entry: Entry = store.get(HandleKey(name))
            while not stop.is_set():
                (entry,) = store.commit(Update(entry, handle(entry.value.blocks["10.0.0.0/26"] + 1, name)))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(f"t{n}",)) for n in range(3)]
    for thread in threads:
        thread.start()

    def add() -> bool:
        entry = store.get(HandleKey("t3"))
        store.commit(Update(entry, handle(entry.value.blocks["10.0.0.0/26"] + 1, "t3")))
        return True

    try:
        assert [in_child(add) for _ in range(10)] == [0] * 10
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []
    assert store.get(HandleKey("t3")).value.blocks == {"10.0.0.0/26": 10}
    with closing(sqlite3.connect(store.path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def of_another_process(path: Path) -> int:
    """Have another process open the store, look at it and close it; return the revision that it saw."""
    code = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); print(c.execute(sys.argv[2]).fetchone()[0]); c.close()"
    )
    command = [sys.executable, "-I", "-c", code, str(path), "SELECT max(revision) FROM changes"]
    return int(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout)


@pytest.mark.parametrize("opener", ["a thread", "a store"])
def test_who_opens_the_file_leaves_the_locks_of_others_alone(store: SQLiteStore, opener: str) -> None:
    """The kernel drops a process's locks on a file when any descriptor of it is closed; then another process, closing
    the file, removes the write-ahead log that we go on writing to."""
    (entry,) = store.commit(Create(KEY, handle()))
    if opener == "a thread":
        with ThreadPoolExecutor(1) as other:
            assert other.submit(store.get, KEY).result(30) == entry
    else:
        with closing(SQLiteStore(store.path)) as second:
            assert second.get(KEY) == entry
    assert of_another_process(store.path) == 1
    store.commit(Update(entry, handle(2)))
    assert of_another_process(store.path) == 2


def test_a_file_is_made_without_being_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that makes the file and closes it would drop the locks of one that was quicker to use it."""
    path = tmp_path / "ipam.db"
    opened: list[str] = []
    make = os.open

    def noted(name: object, *rest: int, **named: int) -> int:
        opened.append(str(name))
        return make(name, *rest, **named)  # type: ignore[arg-type]  # as os.open takes it

    monkeypatch.setattr(os, "open", noted)
    SQLiteStore(path).close()
    assert mode(path) == 0o600
    assert str(path) not in opened


@pytest.mark.parametrize("name", ["100%.db", "what?.db", "a#b.db", "a b&mode=rw.db", "\u00e9.db"])
def test_a_file_of_an_odd_name(tmp_path: Path, name: str) -> None:
    with closing(SQLiteStore(tmp_path / name)) as store:
        store.commit(Create(KEY, handle()))
    assert (tmp_path / name).is_file()
    (tmp_path / name).write_bytes(b"a letter to a friend")
    refused(tmp_path / name, StoreDamaged, "is not a database")


def test_a_closed_store_says_so(store: SQLiteStore) -> None:
    view = store.within(Deadline.after(30))
    store.close()
    for each in (store, view):
        with pytest.raises(StoreError, match="has been closed"):
            each.get(KEY)
    store.close()


def test_a_bad_byte_hides_one_document_only(store: SQLiteStore) -> None:
    store.commit(Create(KEY, handle()), Create(HandleKey("i"), handle(name="i")))
    with closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
        connection.execute("UPDATE objects SET document = CAST(x'ff7b' AS TEXT) WHERE key LIKE '%/i'")
    listing = store.list(Handles())
    assert [entry.key for entry in listing] == [KEY]
    assert [damaged.key for damaged in listing.damaged] == [HandleKey("i")]
