"""Watches on the Kubernetes API: bookmarks, resuming, history that is gone, servers that come and go."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from calico_ipam.datastore.api import Create, Deadline, Delete, Event, Update
from calico_ipam.datastore.kube import watch as watching
from calico_ipam.datastore.kube.store import KubernetesStore
from calico_ipam.errors import DeadlineExceeded
from calico_ipam.model.handle import Handle
from calico_ipam.model.keys import HandleKey, Handles
from tests.bad_api import BadApi, Received, answering, closing, hanging, in_turn, status_body
from tests.clock import SOON, seconds_since
from tests.kube_tools import KubeServer

ITEM = {
    "kind": "IPAMHandle",
    "metadata": {"name": "h", "resourceVersion": "6", "uid": "u"},
    "spec": {"handleID": "h", "block": {"10.0.0.0/26": 1}},
}


@pytest.fixture
def store(kube: KubeServer) -> Iterator[KubernetesStore]:
    kube.clear()
    with KubernetesStore(kube.settings()) as opened:
        yield opened


def made(name: str, number: int = 1) -> Create:
    return Create(HandleKey(name), Handle(name, {"10.0.0.0/26": number}))


def told(watch: Iterator[Event], number: int) -> list[tuple[str, str]]:
    """Return kind and handle of the next events, bookmarks aside."""
    found: list[tuple[str, str]] = []
    while len(found) < number:
        event = next(watch)
        if event.entry is not None:
            found.append((event.kind, event.entry.key.id))
    return found


def soon(store: KubernetesStore, since: str) -> watching.Watch:
    watch = store.within(Deadline.after(40)).watch(Handles(), since)
    assert isinstance(watch, watching.Watch)
    return watch


def test_without_a_revision_it_begins_with_what_is_there(store: KubernetesStore) -> None:
    store.commit(made("a"), made("b"))
    watch = soon(store, "")
    assert told(watch, 2) == [("added", "a"), ("added", "b")]
    (entry,) = store.commit(made("c"))
    store.commit(Delete(entry))
    assert told(watch, 2) == [("added", "c"), ("deleted", "c")]
    watch.close()


def test_history_that_is_gone_is_a_new_list(store: KubernetesStore) -> None:
    """Revision 1 is long compacted: what is there counts as new, and the watch goes on from there."""
    store.commit(made("a"))
    watch = soon(store, "1")
    assert told(watch, 1) == [("added", "a")]
    store.commit(made("b"))
    assert told(watch, 1) == [("added", "b")]
    watch.close()


def test_a_revision_of_another_history_is_a_new_list(store: KubernetesStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that was restored from a backup says nothing on such a watch; a list tells."""
    monkeypatch.setattr(watching, "WATCH_SECONDS", 1.0)
    store.commit(made("a"))
    watch = store.within(Deadline.after(90)).watch(Handles(), "999999999")
    assert told(watch, 1) == [("added", "a")]
    store.commit(made("b"))
    assert told(watch, 1) == [("added", "b")]
    watch.close()


def test_it_goes_on_when_the_server_ends_it(store: KubernetesStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "WATCH_SECONDS", 1.0)
    watch = soon(store, store.list(Handles()).revision)
    events: list[tuple[str, str]] = []
    collecting = threading.Thread(target=lambda: events.extend(told(watch, 3)))
    collecting.start()
    (entry,) = store.commit(made("a"))
    time.sleep(1.5)  # longer than one request lives; nothing is waited for
    (entry,) = store.commit(Update(entry, Handle("a", {"10.0.0.0/26": 2})))
    store.commit(Delete(entry))
    collecting.join(30)
    assert events == [("added", "a"), ("modified", "a"), ("deleted", "a")]
    watch.close()


def test_a_server_that_restarts_is_watched_again() -> None:
    with KubeServer("v1") as server, KubernetesStore(server.settings()) as store:
        store.commit(made("a"))
        watch = store.within(Deadline.after(90)).watch(Handles(), "")
        assert told(watch, 1) == [("added", "a")]
        with ThreadPoolExecutor(1) as pool:
            next_one = pool.submit(told, watch, 1)
            server.stop()
            server.start()
            store.commit(made("b"))
            assert next_one.result(90) == [("added", "b")]
        watch.close()


def test_bookmarks_carry_the_revision_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = b"".join(
        line.encode() + b"\n"
        for line in (
            '{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"90"}}}',
            '{"type":"ERROR","object":{"kind":"Status","code":500,"message":"oops"}}',
        )
    )
    pauses: list[float] = []
    monkeypatch.setattr(watching.Watch, "_wait", lambda _watch, seconds: pauses.append(seconds))

    def ending(client: socket.socket, request: Received) -> None:
        watch.close()
        closing(client, request)

    behaviour = in_turn(answering(200, lines), closing, closing, ending)
    with BadApi(behaviour) as bad, KubernetesStore(bad.settings()) as store:
        watch = soon(store, "5")
        event = next(watch)
        assert (event.kind, event.revision) == ("bookmark", "90")
        assert list(watch) == []
        assert "resourceVersion=5" in bad.requests[0].path
        assert "allowWatchBookmarks=true" in bad.requests[0].path
        assert all("resourceVersion=90" in request.path for request in bad.requests[1:])
        assert len(bad.requests) == 4
        assert pauses == [0.5, 1.0, 2.0]  # it waits between tries, longer each time


def test_what_went_unseen_is_told_after_a_new_list() -> None:
    """The line breaks, history is gone, and meanwhile an object vanished and another came."""
    seen = b'{"type":"ADDED","object":' + _json(ITEM) + b"}\n"
    gone = b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old"}}\n'
    other = {
        **ITEM,
        "metadata": {"name": "i", "resourceVersion": "8", "uid": "v"},
        "spec": {"handleID": "i", "block": {}},
    }
    listing = {"metadata": {"resourceVersion": "9"}, "items": [other]}
    behaviour = in_turn(answering(200, seen + gone), answering(200, listing), hanging)
    with BadApi(behaviour) as bad, KubernetesStore(bad.settings()) as store:
        watch = soon(store, "5")
        assert told(watch, 3) == [("added", "h"), ("deleted", "h"), ("added", "i")]
        watch.close()


def test_410_as_an_answer_is_a_new_list_too() -> None:
    expired = answering(410, status_body(410, "Expired", "too old resource version"))
    listing = {"metadata": {"resourceVersion": "9"}, "items": [ITEM]}
    behaviour = in_turn(expired, answering(200, listing), hanging)
    with BadApi(behaviour) as bad, KubernetesStore(bad.settings()) as store:
        watch = soon(store, "5")
        assert told(watch, 1) == [("added", "h")]
        watch.close()


def test_a_silent_line_ends_with_the_deadline() -> None:
    with BadApi(hanging) as bad, KubernetesStore(bad.settings()) as store:
        started = time.monotonic()
        with pytest.raises(DeadlineExceeded):
            next(store.within(Deadline.after(0.5)).watch(Handles(), "5"))
        assert seconds_since(started) < SOON


def test_closing_from_another_thread_ends_it(store: KubernetesStore) -> None:
    watch = store.watch(Handles(), store.list(Handles()).revision)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: [event for event in watch if event.kind != "bookmark"])
        time.sleep(0.3)  # so that it really waits for a line
        watch.close()
        assert waiting.result(SOON) == []


def _json(document: object) -> bytes:
    import json

    return json.dumps(document).encode()
