"""A watch whose API server forgets, fails, is silent or goes away (datastore §7), and what it leaves behind."""

from __future__ import annotations

import gc
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from calico_ipam.datastore.api import Deadline, Event
from calico_ipam.datastore.kube import watch as watching
from calico_ipam.datastore.kube.profile_watch import ProfileWatch
from calico_ipam.datastore.kube.store import KubernetesStore
from calico_ipam.errors import DeadlineExceeded, StoreUnavailable
from calico_ipam.model.keys import Blocks, Handles, Resources
from calico_ipam.model.resource import PROFILE, WORKLOAD_ENDPOINT
from tests.bad_api import BadApi, Behaviour, Received, answering, closing, hanging, in_turn, status_body
from tests.clock import SOON, seconds_since

PATIENCE = 20.0  # seconds
MISSING = answering(404, b"404 page not found\n")


def handle(name: str, revision: str, block: Any = None) -> dict[str, Any]:
    metadata = {"name": name, "resourceVersion": revision, "uid": f"uid-{name}"}
    return {"kind": "IPAMHandle", "metadata": metadata, "spec": {"handleID": name, "block": block or {}}}


def lines(*events: tuple[str, dict[str, Any]]) -> bytes:
    return b"".join(json.dumps({"type": kind, "object": item}).encode() + b"\n" for kind, item in events)


def error(code: int, reason: str = "") -> bytes:
    return lines(("ERROR", {"kind": "Status", "code": code, "reason": reason, "message": "oops"}))


def listing(revision: str, *items: dict[str, Any]) -> Behaviour:
    return answering(200, {"metadata": {"resourceVersion": revision}, "items": list(items)})


def open_ended(*events: tuple[str, dict[str, Any]]) -> Behaviour:
    """Send some events and nothing more until the client hangs up."""

    def serve(client: socket.socket, request: Received) -> None:
        client.sendall(b"HTTP/1.1 200 X\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        body = lines(*events)
        client.sendall(b"%x\r\n%s\r\n" % (len(body), body))
        client.recv(1)

    return serve


def bookmark(revision: str) -> tuple[str, dict[str, Any]]:
    return "BOOKMARK", {"metadata": {"resourceVersion": revision}}


def told(watch: Iterator[Event], number: int) -> list[tuple[str, str, str]]:
    """Return kind, what and revision of the next events."""
    found: list[tuple[str, str, str]] = []
    for event in (next(watch) for _ in range(number)):
        what = event.damaged.path if event.damaged is not None else str(getattr(event.entry, "key", ""))
        found.append((event.kind, what, event.revision))
    return found


def soon(store: KubernetesStore, since: str) -> Any:
    return store.within(Deadline.after(PATIENCE)).watch(Handles(), since)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIRST_PAUSE", "LONGEST_PAUSE", "RESYNC", "POLL"):
        monkeypatch.setattr(watching, name, 0.01)


def test_an_event_of_an_unknown_type_is_an_error_and_not_a_change(quick: None) -> None:
    gossip = answering(200, lines(("GOSSIP", handle("a", "6"))))
    behaviour = in_turn(gossip, open_ended(("ADDED", handle("b", "7"))))
    with BadApi(behaviour) as bad, KubernetesStore(bad.settings()) as store:
        assert told(soon(store, "5"), 1) == [("added", "IPAMHandleKey(id=b)", "7")]


# --- its end ------------------------------------------------------------------------------------------------


def hung_up(behaviour: Behaviour) -> tuple[Behaviour, threading.Event]:
    """Return a behaviour, and what is set when it has ended."""
    ended = threading.Event()

    def serve(client: socket.socket, request: Received) -> None:
        behaviour(client, request)
        ended.set()

    return serve, ended


@pytest.mark.parametrize("whole", [False, True])
def test_a_watch_that_nobody_waits_for_is_closed_with_its_socket(whole: bool) -> None:
    """``whole``: the store is closed instead."""
    behaviour, ended = hung_up(open_ended(bookmark("9")))
    with BadApi(behaviour) as bad, KubernetesStore(bad.settings()) as store:
        watch = soon(store, "5")
        assert told(watch, 1) == [("bookmark", "", "9")]
        (store if whole else watch).close()
        assert ended.wait(PATIENCE)  # and `watch` is still there
        assert list(watch) == []


@pytest.mark.parametrize("end", ["close", "forget", "close the store"])
def test_a_watch_of_profiles_leaves_no_thread(end: str) -> None:
    """It has one for the namespaces and one for the service accounts."""

    others = set(threading.enumerate())

    def threads() -> int:
        return sum(each.name == "calico-ipam-profiles" for each in set(threading.enumerate()) - others)

    def behaviour(client: socket.socket, request: Received) -> None:
        (open_ended(bookmark("9")) if "watch=true" in request.path else listing("5"))(client, request)

    with BadApi(behaviour) as bad, KubernetesStore(bad.settings()) as store:
        watch: Any = store.watch(Resources(PROFILE), "")
        assert set(next(watch).revision.split("/")) <= {"5", "9"}  # as far as each has come
        assert threads() == 2
        if end == "forget":
            del watch
            gc.collect()
        else:
            (store if "store" in end else watch).close()
            assert list(watch) == []
        until = time.monotonic() + PATIENCE
        while threads():
            assert time.monotonic() < until, "waited in vain"
            time.sleep(0.01)


def test_a_watch_of_profiles_tells_what_ended_it() -> None:
    """Whatever it is; an error that is nobody's would otherwise end a thread, and the watch would wait for ever."""

    def broken(_part: Resources, _since: str) -> Any:
        class Broken(Iterator[Event]):
            def __next__(self) -> Event:
                raise ZeroDivisionError

            def close(self) -> None: ...

        return Broken()

    with pytest.raises(ZeroDivisionError):
        next(ProfileWatch(broken, Resources(PROFILE), "", Deadline.after(PATIENCE)))


def test_a_deadline_closes_the_socket() -> None:
    behaviour, ended = hung_up(open_ended(bookmark("9")))
    with BadApi(behaviour) as bad, KubernetesStore(bad.settings()) as store:
        for seconds in (0.5, PATIENCE):  # the longer one where the time was over before anything was asked
            watch = store.within(Deadline.after(seconds)).watch(Handles(), "5")
            with pytest.raises(DeadlineExceeded):
                told(watch, 2)
            if ended.wait(SOON):
                return
        raise AssertionError("the socket is open")


@pytest.mark.parametrize("whole", [False, True])
def test_a_watch_that_waits_in_another_thread_ends_at_once(whole: bool) -> None:
    behaviour, ended = hung_up(open_ended(bookmark("9")))
    with (
        BadApi(behaviour) as bad,
        KubernetesStore(bad.settings()) as store,
        ThreadPoolExecutor(1) as pool,
    ):
        watch = store.watch(Handles(), "5")
        assert told(watch, 1) == [("bookmark", "", "9")]
        waiting = pool.submit(list, watch)
        time.sleep(0.1)  # so that it really waits for a line
        started = time.monotonic()
        (store if whole else watch).close()
        assert seconds_since(started) < SOON  # whoever closes does not wait
        assert waiting.result(PATIENCE) == []
        assert ended.wait(PATIENCE)


def test_a_watch_that_pauses_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "FIRST_PAUSE", 60.0)
    monkeypatch.setattr(watching, "LONGEST_PAUSE", 60.0)
    with BadApi(answering(500)) as bad, KubernetesStore(bad.settings()) as store, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(list, store.watch(Handles(), "5"))
        while not bad.requests:
            time.sleep(0.01)
        store.close()
        assert waiting.result(PATIENCE) == []


def test_a_line_that_never_ends_does_not_outlive_the_deadline() -> None:
    def dripping(client: socket.socket, request: Received) -> None:
        client.sendall(b"HTTP/1.1 200 X\r\nContent-Length: 100000\r\n\r\n")
        for _ in range(600):
            client.sendall(b" ")
            time.sleep(0.1)

    with BadApi(dripping) as bad, KubernetesStore(bad.settings()) as store:
        started = time.monotonic()
        with pytest.raises(DeadlineExceeded):
            next(store.within(Deadline.after(0.6)).watch(Handles(), "5"))
        assert seconds_since(started) < SOON


# --- history ------------------------------------------------------------------------------------------------


def test_a_list_ends_with_the_revision_to_go_on_from() -> None:
    """Whoever stops in the middle of a list begins with it again."""
    behaviour = in_turn(listing("9", handle("a", "1"), handle("b", "2")), hanging)
    with BadApi(behaviour) as bad, KubernetesStore(bad.settings()) as store:
        assert told(soon(store, ""), 3) == [
            ("added", "IPAMHandleKey(id=a)", ""),
            ("added", "IPAMHandleKey(id=b)", ""),
            ("bookmark", "", "9"),
        ]


TOO_LARGE = {"kind": "Status", "code": 504, "reason": "Timeout", "message": "Too large resource version: 50"}


@pytest.mark.parametrize("by", ["answer", "event", "question"])
@pytest.mark.usefixtures("quick")
def test_a_revision_that_the_server_has_not_come_to_is_a_new_list(by: str) -> None:
    """It was restored from a backup; it would say nothing until its history is as long as ours."""
    status = {**TOO_LARGE, "details": {"causes": [{"reason": "ResourceVersionTooLarge"}]}}
    refused = {
        "answer": [answering(504, status, Retry_After="1")],
        "event": [answering(200, lines(("ERROR", status)))],
        "question": [answering(200, b""), answering(504, status, Retry_After="1")],
    }[by]
    with BadApi(in_turn(*refused, listing("9", handle("a", "1")), hanging)) as bad:
        with KubernetesStore(bad.settings()) as store:
            assert told(soon(store, "50"), 2) == [("added", "IPAMHandleKey(id=a)", ""), ("bookmark", "", "9")]
        if by == "question":
            assert bad.requests[1].path.endswith("?resourceVersion=50&resourceVersionMatch=NotOlderThan&limit=1")


@pytest.mark.usefixtures("quick")
def test_a_watch_without_events_goes_on_where_it_was() -> None:
    """The server ended it before there was a bookmark, and knows our revision."""
    behaviour = in_turn(answering(200, b""), listing("9", handle("a", "1")), open_ended(("ADDED", handle("b", "8"))))
    with BadApi(behaviour) as bad, KubernetesStore(bad.settings()) as store:
        assert told(soon(store, "5"), 1) == [("added", "IPAMHandleKey(id=b)", "8")]
        assert "resourceVersion=5&" in bad.requests[2].path


def test_history_that_is_always_gone_is_not_asked_for_in_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "FIRST_PAUSE", 0.2)

    def serve(client: socket.socket, request: Received) -> None:
        expired = answering(410, status_body(410, "Expired", "too old"))
        (expired if "watch=true" in request.path else listing("9"))(client, request)

    with BadApi(serve) as bad, KubernetesStore(bad.settings()) as store:
        began = time.monotonic()
        watch = store.within(Deadline.after(4.0)).watch(Handles(), "5")
        with pytest.raises(DeadlineExceeded):
            told(watch, 1000)
        # a watch and a list at once, and then both again after a pause, and another one that is longer ...
        assert 4 <= len(bad.requests) <= 4 + 2 * seconds_since(began) / watching.FIRST_PAUSE


@pytest.mark.usefixtures("quick")
def test_errors_without_progress_are_a_new_list() -> None:
    failing = [answering(200, error(500)) for _ in range(watching.MOST_ERRORS)]
    behaviour = in_turn(*failing, listing("9", handle("a", "1")), hanging)
    with BadApi(behaviour) as bad, KubernetesStore(bad.settings()) as store:
        assert told(soon(store, "5"), 1) == [("added", "IPAMHandleKey(id=a)", "")]


@pytest.mark.usefixtures("quick")
def test_a_server_that_does_not_answer_is_only_asked_again() -> None:
    refusing = [answering(429) for _ in range(3 * watching.MOST_ERRORS)]
    with BadApi(in_turn(*refusing, open_ended(("ADDED", handle("a", "8"))))) as bad:
        with KubernetesStore(bad.settings()) as store:
            assert told(soon(store, "5"), 1) == [("added", "IPAMHandleKey(id=a)", "8")]
        assert all("resourceVersion=5&" in request.path for request in bad.requests)


@pytest.mark.usefixtures("quick")
def test_too_long_without_contact_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "OUTAGE", 1.5)
    with BadApi(in_turn(open_ended(bookmark("9")), closing)) as bad, KubernetesStore(bad.settings()) as store:
        watch = soon(store, "5")
        next(watch)
        time.sleep(2.0)  # somebody takes his time: that is no silence of the server
        started = time.monotonic()
        bad.__exit__()
        with pytest.raises(StoreUnavailable):
            next(watch)
        assert seconds_since(started) > 1.5


@pytest.mark.usefixtures("quick")
def test_a_definition_that_is_removed_takes_its_objects_with_it() -> None:
    behaviour = in_turn(listing("9", handle("a", "1")), MISSING, MISSING, listing("12", handle("b", "11")), hanging)
    with BadApi(behaviour) as bad, KubernetesStore(bad.settings()) as store:
        assert [event[:2] for event in told(soon(store, ""), 4)] == [
            ("added", "IPAMHandleKey(id=a)"),
            ("bookmark", ""),
            ("deleted", "IPAMHandleKey(id=a)"),
            ("added", "IPAMHandleKey(id=b)"),
        ]


# --- what cannot be understood ------------------------------------------------------------------------------


def test_what_is_damaged_is_told_and_so_is_its_end() -> None:
    bad_one, good = handle("a", "6", {"10.0.0.0/26": "many"}), handle("a", "5")
    events = (("ADDED", good), ("MODIFIED", bad_one), ("DELETED", bad_one), ("ADDED", handle("b", "8")))
    with BadApi(open_ended(*events)) as bad, KubernetesStore(bad.settings()) as store:
        assert told(soon(store, "4"), 4) == [
            ("added", "IPAMHandleKey(id=a)", "5"),
            ("damaged", "IPAMHandle/a", "6"),
            ("deleted", "IPAMHandle/a", "6"),
            ("added", "IPAMHandleKey(id=b)", "8"),
        ]


def test_what_a_list_finds_damaged_is_not_gone() -> None:
    bad_one, good = handle("a", "6", {"10.0.0.0/26": "many"}), handle("a", "5")
    behaviour = in_turn(
        answering(200, lines(("ADDED", good)) + error(410)),
        listing("9", bad_one),
        answering(200, error(410)),
        listing("12"),
        hanging,
    )
    with BadApi(behaviour) as bad, KubernetesStore(bad.settings()) as store:
        assert [event[:2] for event in told(soon(store, "4"), 5)] == [
            ("added", "IPAMHandleKey(id=a)"),
            ("damaged", "IPAMHandle/a"),
            ("bookmark", ""),
            ("deleted", "IPAMHandle/a"),
            ("bookmark", ""),
        ]


def test_what_was_recently_there_is_no_beginning() -> None:
    with BadApi(in_turn(listing("9"), hanging)) as bad, KubernetesStore(bad.settings()) as store:
        watch = store.within(Deadline.after(PATIENCE)).watch(Blocks(recent=True, writable=False), "")
        assert told(watch, 1) == [("bookmark", "", "9")]
        assert bad.requests[0].headers["accept"] == "application/json"
        assert "resourceVersion" not in bad.requests[0].path


def test_handles_that_are_only_looked_at_can_be_told_apart() -> None:
    behaviour = in_turn(listing("9", handle("a", "5")), answering(200, error(410)), listing("12"), hanging)
    with BadApi(behaviour) as bad, KubernetesStore(bad.settings()) as store:
        watch = store.within(Deadline.after(PATIENCE)).watch(Handles(writable=False), "")
        assert [event[0] for event in told(watch, 3)] == ["added", "bookmark", "deleted"]


def test_a_pod_that_waits_for_its_node_is_no_endpoint_yet() -> None:
    metadata = {"name": "p", "namespace": "d", "resourceVersion": "8", "uid": "u"}
    events = (
        ("ADDED", {"metadata": metadata, "spec": {}}),
        ("MODIFIED", {"metadata": metadata, "spec": {"nodeName": "n"}}),
    )
    with BadApi(open_ended(*events)) as bad, KubernetesStore(bad.settings()) as store:
        watch = store.within(Deadline.after(PATIENCE)).watch(Resources(WORKLOAD_ENDPOINT), "5")
        assert told(watch, 1) == [("modified", "WorkloadEndpoint(d/n-k8s-p-eth0)", "8")]
