"""The etcd datastore beyond the contract: size, cost, users, full and compacted servers, threads, forks, exits."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from calico_ipam.datastore.api import Create, Delete, Update, Write, lost
from calico_ipam.datastore.documents import RawWrite
from calico_ipam.datastore.etcd import EtcdStore
from calico_ipam.datastore.etcd.failures import StoreFull
from calico_ipam.datastore.etcd.library import Library, load
from calico_ipam.datastore.etcd.links import Links
from calico_ipam.datastore.paths import PathRange
from calico_ipam.datastore.settings import ETCD, Settings
from calico_ipam.engine.client import IPAM
from calico_ipam.errors import AlreadyExists, Conflict, InvalidInput, NotFound, StoreError, Unauthorized
from calico_ipam.model.handle import Handle
from calico_ipam.model.keys import Blocks, HandleKey, Handles, ResourceKey
from calico_ipam.model.pool import WORKLOAD
from calico_ipam.model.resource import Resource
from tests.clock import LONG, seconds_since
from tests.etcd_tools import Etcd, wait_until

EVERYTHING = PathRange.below("/calico/")
PASSWORD = "v3ry-s3cret"


@pytest.fixture(scope="module")
def etcd() -> Iterator[Etcd]:
    with Etcd() as running:
        yield running


@pytest.fixture
def store(etcd: Etcd) -> Iterator[EtcdStore]:
    etcd.clear()
    with closing(EtcdStore(etcd.settings())) as opened:
        yield opened


def handle(name: str, number: int = 1) -> Create:
    return Create(HandleKey(name), Handle(name, {"10.0.0.0/26": number}))


# --- transactions -------------------------------------------------------------------------------------------


def test_a_commit_is_one_revision(store: EtcdStore) -> None:
    entries = store.commit(handle("a"), handle("b"), handle("c"))
    assert len({entry.revision for entry in entries}) == 1


def test_the_loss_names_the_write_that_lost_and_what_is_there(store: EtcdStore) -> None:
    (old,) = store.commit(handle("b"))
    (new,) = store.commit(Update(old, Handle("b", {"10.0.0.0/26": 2})))
    with pytest.raises(Conflict) as caught:
        store.commit(handle("a"), Update(old, Handle("b", {})), handle("c"))
    loss = lost(caught.value)
    assert loss is not None
    assert (loss.write.key, loss.existing, loss.applied) == (HandleKey("b"), new, ())
    assert [entry.key.id for entry in store.list(Handles())] == ["b"]

    store.commit(Delete(new))
    with pytest.raises(NotFound) as gone:
        store.commit(handle("a"), Delete(new))
    loss = lost(gone.value)
    assert loss is not None and (loss.write.key, loss.existing) == (HandleKey("b"), None)
    store.commit(handle("a"))
    with pytest.raises(AlreadyExists) as there:
        store.commit(handle("x"), handle("a"))
    loss = lost(there.value)
    assert loss is not None and loss.write.key == HandleKey("a") and loss.existing is not None


def test_the_largest_commit(store: EtcdStore) -> None:
    assert len(store.commit(*(handle(f"h{number:03}") for number in range(128)))) == 128
    with pytest.raises(InvalidInput, match="129 changes cannot be made at once in etcd://") as caught:
        store.commit(*(handle(f"i{number:03}") for number in range(129)))
    assert "128 in a transaction" in caught.value.hint
    assert len(store.list(Handles())) == 128


@pytest.mark.parametrize("revision", ["x", "-1", "1.5", "٣"])
def test_a_revision_that_is_none_is_refused_before_anything_is_sent(store: EtcdStore, revision: str) -> None:
    with pytest.raises(InvalidInput, match="error with field ResourceVersion = "):
        store._raw_commit([RawWrite("update", "/calico/x", "y", revision)])
    with pytest.raises(InvalidInput, match="error with field ResourceVersion = "):
        store.watch(Handles(), revision)


# --- reading ------------------------------------------------------------------------------------------------


def test_a_long_list_comes_in_pages_of_one_moment(store: EtcdStore, requests: Counter[str]) -> None:
    for start in range(0, 1300, 100):
        store.commit(*(handle(f"h{number:05}") for number in range(start, start + 100)))
    requests.clear()
    listing = store.list(Handles())
    assert [entry.key.id for entry in listing] == [f"h{number:05}" for number in range(1300)]
    assert requests == {"Range": 3}


def test_pages_are_of_one_moment_while_others_write(etcd: Etcd, store: EtcdStore) -> None:
    for start in range(0, 1200, 100):
        store.commit(*(handle(f"h{number:05}") for number in range(start, start + 100)))
    stop = threading.Event()

    def move() -> None:
        """Move one handle to and fro between the first page and the last, in one commit each."""
        with closing(EtcdStore(etcd.settings())) as other:
            (entry,) = other.commit(handle("a"))
            while not stop.is_set():
                entry = other.commit(handle("z" if entry.key == HandleKey("a") else "a"), Delete(entry))[0]

    with ThreadPoolExecutor(1) as pool:
        moving = pool.submit(move)
        try:
            wait_until(lambda: any(store.read(HandleKey(name)).entry(HandleKey(name)) for name in "az"))
            for _ in range(20):
                assert len([entry for entry in store.list(Handles()) if entry.key.id in "az"]) == 1
        finally:
            stop.set()
        moving.result(30)


def test_more_keys_than_fit_into_a_transaction_are_of_one_moment(store: EtcdStore, requests: Counter[str]) -> None:
    for start in range(0, 300, 100):
        store.commit(*(handle(f"h{number:03}") for number in range(start, start + 100)))
    requests.clear()
    keys = [HandleKey(f"h{number:03}") for number in range(301)]
    snapshot = store.read(*keys, Blocks())
    assert [snapshot.entry(key) is not None for key in keys] == [True] * 300 + [False]
    assert requests == {"Txn": 3}


def test_a_read_starts_again_when_its_revision_is_compacted(
    etcd: Etcd, store: EtcdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for start in range(0, 600, 100):
        store.commit(*(handle(f"h{number:05}") for number in range(start, start + 100)))
    ask, asked = store._ranges, 0

    def compacting(wanted: Any, revision: int) -> Any:
        nonlocal asked
        asked += 1
        answer = ask(wanted, revision)
        if asked == 1:
            store.commit(handle("new"))
            etcd.compact()
        return answer

    monkeypatch.setattr(store, "_ranges", compacting)
    assert len(store.list(Handles())) == 601
    assert asked == 4


def test_old_revisions_can_be_read_until_they_are_compacted(store: EtcdStore) -> None:
    (first,) = store.commit(handle("h"))
    store.commit(handle("i"))
    ((rows,), revision) = store.rows([EVERYTHING], int(first.revision))
    assert [row.path for row in rows] == ["/calico/ipam/v2/handle/h"]
    assert revision == int(first.revision)


def test_bytes_that_are_no_text_are_damage_and_no_crash(etcd: Etcd, store: EtcdStore) -> None:
    etcd.put("/calico/ipam/v2/handle/h", b"\xff\xfe{")
    listing = store.list(Handles())
    assert (len(listing), [damaged.key for damaged in listing.damaged]) == (0, [HandleKey("h")])


# --- cost ---------------------------------------------------------------------------------------------------


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Requests that go out, by method, counted where gRPC takes them."""
    counted: Counter[str] = Counter()
    grpc, channel = load().grpc, Links._channel

    class Counting(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc,name-defined]  # grpc has no types
        def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
            counted[details.method.rpartition("/")[2]] += 1
            return continuation(details, request)

    monkeypatch.setattr(Links, "_channel", lambda self, end: grpc.intercept_channel(channel(self, end), Counting()))
    return counted


@pytest.fixture
def counted_store(etcd: Etcd, requests: Counter[str]) -> Iterator[EtcdStore]:
    etcd.clear()
    with closing(EtcdStore(etcd.settings())) as opened:
        yield opened


def furnish(store: EtcdStore, *nodes: str) -> None:
    spec = {"cidr": "10.0.0.0/16", "ipipMode": "Never", "vxlanMode": "Never", "blockSize": 26, "nodeSelector": "all()"}
    store.commit(
        Create(ResourceKey("IPPool", "pool"), Resource.new("IPPool", "pool", spec)),
        *(Create(ResourceKey("Node", node), Resource.new("Node", node, {})) for node in nodes),
    )


def test_requests_of_a_warm_node(counted_store: EtcdStore, requests: Counter[str]) -> None:
    furnish(counted_store, "worker-1")
    ipam = IPAM(counted_store, hostname="worker-1")
    assert len(ipam.auto_assign(use=WORKLOAD, num4=1, handle="net.first").addresses) == 1
    for number in range(3):
        requests.clear()
        assert len(ipam.auto_assign(use=WORKLOAD, num4=1, handle=f"net.c{number}", attrs={"pod": "p"}).addresses) == 1
        assert requests.total() <= 3, requests
        requests.clear()
        ipam.release_by_handle(f"net.c{number}")
        assert requests.total() <= 3, requests


def test_a_first_write_is_preceded_by_one_harmless_request(counted_store: EtcdStore, requests: Counter[str]) -> None:
    counted_store.commit(handle("a"))
    assert requests == {"Status": 1, "Txn": 1}
    counted_store.commit(handle("b"))
    assert requests == {"Status": 1, "Txn": 2}


# --- users --------------------------------------------------------------------------------------------------

ROOT = {"etcd_username": "root", "etcd_password": PASSWORD}


@pytest.fixture(scope="module")
def guarded() -> Iterator[Etcd]:
    """An etcd with users: root, a reader, and one who may do nothing. Tokens live for a second."""
    with Etcd("--auth-token-ttl=1", "--bcrypt-cost=4") as running:
        for user in ("root", "reader", "nobody"):
            running.control("user", "add", f"{user}:{PASSWORD}")
        running.control("role", "add", "root")
        running.control("user", "grant-role", "root", "root")
        running.control("role", "add", "reading")
        running.control("role", "grant-permission", "--prefix=true", "reading", "read", "/calico/")
        running.control("user", "grant-role", "reader", "reading")
        running.control("auth", "enable")
        yield running


def test_a_user_writes_and_reads(guarded: Etcd) -> None:
    with closing(EtcdStore(guarded.settings(**ROOT))) as store:
        (entry,) = store.commit(handle("user"))
        assert store.get(HandleKey("user")) == entry
        assert PASSWORD not in repr(vars(store)) + store.name


@pytest.mark.parametrize(
    ("user", "words", "hint"),
    [
        ({}, "wants a user and none is configured", "Set ETCD_USERNAME and ETCD_PASSWORD"),
        ({"etcd_username": "root"}, "wants a user and none is configured", "Set ETCD_USERNAME"),  # both or neither
        (
            {"etcd_username": "root", "etcd_password": "wr0ng-w0rd"},
            "does not accept the password of user 'root'",
            "Check",
        ),
        (
            {"etcd_username": "who", "etcd_password": "wr0ng-w0rd"},
            "does not accept the password of user 'who'",
            "Check",
        ),
        (
            {"etcd_username": "nobody", "etcd_password": PASSWORD},
            "user 'nobody' may not read from etcd://",
            "read /calico",
        ),
    ],
)
def test_who_may_not_come_in_is_told_why(guarded: Etcd, user: dict[str, str], words: str, hint: str) -> None:
    with closing(EtcdStore(guarded.settings(**user))) as store:
        for operation in (lambda: store.list(Handles()), lambda: next(store.watch(Handles(), "0"))):
            with pytest.raises(Unauthorized, match=words.replace("read from", "(read from|watch)")) as caught:
                operation()
            assert hint in caught.value.hint
            assert not {PASSWORD, "wr0ng-w0rd"} & set(str(vars(caught.value)).replace("'", " ").split())


def test_a_reader_may_read_only(guarded: Etcd) -> None:
    with closing(EtcdStore(guarded.settings(etcd_username="reader", etcd_password=PASSWORD))) as store:
        store.list(Handles())
        with pytest.raises(Unauthorized, match="user 'reader' may not write to etcd://") as caught:
            store.commit(handle("reader"))
        assert "readwrite /calico/" in caught.value.hint


def test_a_token_that_has_expired_is_renewed(guarded: Etcd) -> None:
    with closing(EtcdStore(guarded.settings(**ROOT))) as store:
        store.commit(handle("before"))
        token = token_of(store)
        wait_until(lambda: not accepted(store, token), 30, "the token to expire")
        with ThreadPoolExecutor(8) as pool:
            for each in [pool.submit(store.commit, handle(f"after-{number}")) for number in range(8)]:
                each.result(30)
        assert token_of(store) != token
        assert len(store.list(Handles())) >= 9


def test_tokens_do_not_survive_a_restart_and_are_renewed(guarded: Etcd) -> None:
    with closing(EtcdStore(guarded.settings(**ROOT))) as store:
        store.commit(handle("restart-before"))
        guarded.restart()
        assert store.get(HandleKey("restart-before")).value.blocks
        store.commit(handle("restart-after"))


def test_a_watch_outlives_its_token(guarded: Etcd) -> None:
    with closing(EtcdStore(guarded.settings(**ROOT))) as store:
        events = store.watch(Handles(), store.list(Handles()).revision)
        store.commit(handle("watched-1"))
        assert next(e for e in events if e.entry).entry.key == HandleKey("watched-1")
        token = token_of(store)
        wait_until(lambda: not accepted(store, token), 30, "the token to expire")
        guarded.restart()  # the stream breaks, and has to be opened again with a new token
        store.commit(handle("watched-2"))
        assert next(e for e in events if e.entry).entry.key == HandleKey("watched-2")


def token_of(store: EtcdStore) -> str:
    with store._links.link() as link:
        return str(link.token)


def accepted(store: EtcdStore, token: str) -> bool:
    """Ask etcd about a token without using it (a use would prolong its life)."""
    time.sleep(1.2)
    library = load()
    with store._links.link() as link:
        try:
            request = library.message("RangeRequest")(key=b"/calico/x")
            link.range(request, timeout=5, metadata=(("token", token),))
        except library.grpc.RpcError:
            return False
    return True


def test_a_user_for_an_etcd_without_users_is_let_in(etcd: Etcd) -> None:
    with closing(EtcdStore(etcd.settings(**ROOT))) as store:
        assert store.list(Handles()) is not None


# --- full ---------------------------------------------------------------------------------------------------


def test_a_full_etcd_says_how_to_make_room() -> None:
    with Etcd("--quota-backend-bytes=1048576") as small, closing(EtcdStore(small.settings())) as store:
        stored = 0
        with pytest.raises(
            StoreError, match="is full and takes no writes: etcdserver: mvcc: database space exceed"
        ) as full:
            for stored in range(400):
                store.commit(Create(HandleKey(f"h{stored}"), Handle("h", {}, extra={"x": "y" * 20000})))
        assert "alarm disarm" in full.value.hint
        assert len(store.list(Handles())) == stored  # reading goes on, and nothing else was stored
        with pytest.raises(StoreError, match="is full"):
            store.commit(Create(HandleKey("late"), Handle("late", {})))
        entry = store.get(HandleKey("h0"))
        store.commit(Delete(entry))  # which is the way to make room


@pytest.mark.parametrize("done", [True, False])
def test_a_write_that_finds_the_space_used_up_may_be_done(
    store: EtcdStore, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    """etcd checks its quota once more while it applies a write: that one is refused, and done."""
    tell = store._calls.tell

    def refused(*request: Any) -> None:
        if done:
            tell(*request)
        raise StoreFull("is full")

    first = store.commit(handle("first"))[0]
    writes: list[Write] = [Update(first, Handle("first", {"10.0.0.0/26": 7})), handle("second")]
    monkeypatch.setattr(store._calls, "tell", refused)
    if not done:
        with pytest.raises(StoreFull):
            store.commit(*writes)
        return
    entries = store.commit(*writes)
    assert [store.get(each.key).revision for each in entries] == [each.revision for each in entries]


def test_a_value_that_is_too_large_is_told(store: EtcdStore) -> None:
    with pytest.raises(StoreError, match="does not take a request of this size: etcdserver: request is too large"):
        store.commit(Create(HandleKey("h"), Handle("h", {}, extra={"x": "y" * 1_600_000})))


# --- processes ----------------------------------------------------------------------------------------------


def test_a_closed_store_says_so(etcd: Etcd) -> None:
    store = EtcdStore(etcd.settings())
    store.list(Handles())
    store.close()
    store.close()
    for operation in (lambda: store.list(Handles()), lambda: store.commit(handle("late"))):
        with pytest.raises(StoreError, match="has been closed"):
            operation()


def python(code: str, etcd: Etcd, seconds: float = 60, **environ: str) -> subprocess.CompletedProcess[str]:
    prelude = f"""
import os, sys, threading, time
from calico_ipam.datastore.config import open_datastore
from calico_ipam.datastore.api import Create
from calico_ipam.model.handle import Handle
from calico_ipam.model.keys import Handles, HandleKey
store = open_datastore("etcd://{etcd.address}", environ={{}})
def put(name): store.commit(Create(HandleKey(name), Handle(name, {{}})))
def names(): return [e.key.id for e in store.list(Handles())]
"""
    command = [sys.executable, "-W", "error", "-c", prelude + code]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=seconds, env={**os.environ, **environ}, check=False
    )


def forking(code: str, etcd: Etcd) -> subprocess.CompletedProcess[str]:
    """Run a program that forks; gRPC must have found a moment to prepare, or its children live by luck."""
    done = python(code, etcd, 90, GRPC_VERBOSITY="INFO")
    assert "skipping fork() handlers" not in done.stderr
    return done


EXITS = {
    "after a write": "put('a')",
    "with a watch nobody closed": "put('a'); w = store.watch(Handles(), '0'); print(next(w).entry.key.id)",
    "with a watch in a thread": """
put('a')
w = store.watch(Handles(), '0')
seen = threading.Event()
def look():
    for event in w: seen.set()
threading.Thread(target=look, daemon=True).start()
assert seen.wait(20)
""",
    "with an exception": "put('a'); w = store.watch(Handles(), '0'); next(w); raise SystemExit(0)",
    "with a server that is gone": "import gc; put('a'); del store; gc.collect()",
}


@pytest.mark.parametrize("case", EXITS)
def test_the_interpreter_ends_at_once(case: str, etcd: Etcd) -> None:
    etcd.clear()
    started_at = time.monotonic()
    done = python(EXITS[case], etcd)
    assert (done.returncode, done.stderr) == (0, "")
    assert seconds_since(started_at) < LONG


FORKS = {
    "idle": "",
    "with a watch": "w = store.watch(Handles(), '0'); next(w)",
    "busy": """
def work():
    while True: names()
for _ in range(2): threading.Thread(target=work, daemon=True).start()
""",
    "closed": "store.close(); store = open_datastore(store.name, environ={})",
}
FORK = """
children = []
for number in range(5):
    pid = os.fork()
    if pid == 0:
        try:
            import faulthandler; faulthandler.dump_traceback_later(20, exit=True)
            put(f'child-{number}')
            assert 'parent' in names()
            if number % 2: store.close()
            faulthandler.cancel_dump_traceback_later()
            os._exit(0)
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
    children.append(pid)
assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 5
put('afterwards')
assert len(names()) == 7, names()
os._exit(0)
"""


@pytest.mark.parametrize("case", FORKS)
def test_children_of_a_fork_connect_anew(case: str, etcd: Etcd) -> None:
    etcd.clear()
    # Python itself cannot be forked while a thread imports: what is used is imported before.
    done = forking("put('parent'); names()\n" + FORKS[case] + FORK, etcd)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def with_each_stream(monkeypatch: pytest.MonkeyPatch, do: Callable[[Any], None]) -> None:
    """Have ``do`` called with gRPC's object for each stream of events, before anybody knows of the stream."""
    begin = Library.watch

    def watch(library: Library, channel: Any) -> Any:
        def start(*arguments: Any, **more: Any) -> Any:
            call = begin(library, channel)(*arguments, **more)
            do(call)
            return call

        return start

    monkeypatch.setattr(Library, "watch", watch)


def test_a_fork_waits_until_grpc_is_done_with_a_watch_that_it_interrupts(
    etcd: Etcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only until it is cancelled: the thread that works on it may be inside of gRPC for some time longer."""
    happened: list[str] = []
    forked = threading.Event()

    def slowly(_call: Any) -> None:
        forked.wait(0.5)  # room for a fork that does not wait
        happened.append("gRPC is done")

    with_each_stream(monkeypatch, lambda call: call.add_done_callback(slowly))
    etcd.clear()
    with closing(EtcdStore(etcd.settings())) as store:
        store.commit(handle("seen"))
        changes = store.watch(Handles(), "0")
        next(changes)
        store._links._longest = LONG
        store._links._before_fork()
        happened.append("forked")
        forked.set()
        store._links._after_fork()
    assert happened == ["gRPC is done", "forked"]


def test_a_watch_that_is_opened_while_a_fork_begins_is_interrupted(etcd: Etcd, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in use already, and nobody knows of it yet: the fork would wait for it in vain."""
    store = EtcdStore(etcd.settings())
    users: list[int] = []
    threads: list[threading.Thread] = []

    def fork() -> None:
        store._links._before_fork()
        users.append(store._links._state.users)
        store._links._after_fork()

    def begin_a_fork(_call: Any) -> None:
        if not threads:
            threads.append(threading.Thread(target=fork))
            threads[0].start()
            wait_until(lambda: store._links._state.forks)

    with_each_stream(monkeypatch, begin_a_fork)
    etcd.clear()
    with closing(store):
        store._links._longest = LONG
        store.commit(handle("seen"))
        changes = store.watch(Handles(), "0")  # kept: a watch that nobody has any more ends by itself
        assert next(changes).kind == "added"
        threads[0].join()
    assert users == [0]


@pytest.mark.parametrize("doing", ["link", "leave", "close"])
def test_nobody_goes_inside_of_grpc_while_the_process_forks(etcd: Etcd, doing: str) -> None:
    """Neither to make a connection nor to close one, and not before the last of several forks at once is over."""
    store = EtcdStore(etcd.settings())
    links = store._links
    with links.link() as link:
        state = links._here()
    done: list[int] = []

    def link_or_close() -> None:
        if doing == "link":
            with links.link():
                pass
        elif doing == "leave":
            links.leave(link)
        else:
            links.close()
        done.append(state.forks)

    links._before_fork()
    links._before_fork()
    thread = threading.Thread(target=link_or_close)
    thread.start()
    for left in (1, 0):
        wait_until(lambda: done or state.calm._waiters)
        assert not done, f"with {left + 1} forks under way"
        links._after_fork()
    thread.join()
    assert done == [0]
    store.close()


def test_a_child_of_a_fork_exits_like_any_process(etcd: Etcd) -> None:
    etcd.clear()
    code = """
w = store.watch(Handles(), store.list(Handles()).revision)   # what other tests did is history
put('parent')
assert next(iter(e for e in w if e.entry)).entry.key.id == 'parent'
pid = os.fork()
if pid == 0:
    put('child')
    assert next(iter(e for e in w if e.entry)).entry.key.id == 'child'   # the watch goes on in the child, by itself
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
put('later')
assert [next(iter(e for e in w if e.entry)).entry.key.id for _ in range(2)] == ['child', 'later']   # as it does here
"""
    done = forking(code, etcd)
    assert done.returncode == 0, done.stderr


def test_many_threads_open_and_close_stores(etcd: Etcd) -> None:
    def one(number: int) -> None:
        with closing(EtcdStore(etcd.settings())) as opened:
            opened.list(Handles())
            next(opened.watch(Handles(), "0")) if number % 4 == 0 and len(opened.list(Handles())) else None

    gc.collect()  # what earlier tests left goes now, not meanwhile
    threads, descriptors = set(threading.enumerate()), open_descriptors()
    with ThreadPoolExecutor(8) as pool:
        for each in [pool.submit(one, number) for number in range(40)]:
            each.result(60)
    wait_until(lambda: not set(threading.enumerate()) - threads, 30, "the threads of watches to end")
    wait_until(lambda: open_descriptors() < descriptors + 40, 30, "the connections of forty stores to be closed")


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_the_settings_of_a_store_hold_no_more_than_they_need() -> None:
    assert Settings(ETCD, etcd_password=PASSWORD) != Settings(ETCD)
    assert PASSWORD not in repr(Settings(ETCD, etcd_password=PASSWORD))
