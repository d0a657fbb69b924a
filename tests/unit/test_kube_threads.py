"""A connection to the API server between threads and processes: closing, renewing, forking, and TLS that breaks."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from calico_ipam.datastore.api import Create
from calico_ipam.datastore.kube import api, connection
from calico_ipam.datastore.kube.abreast import SIDE_BY_SIDE, Abreast
from calico_ipam.datastore.kube.store import KubernetesStore
from calico_ipam.datastore.settings import KUBERNETES, Settings
from calico_ipam.errors import NotConfigured, OutcomeUnknown, StoreError, StoreUnavailable
from calico_ipam.model.handle import Handle
from calico_ipam.model.keys import ConfigKey, HandleKey, Handles
from tests.bad_api import BadApi, Received, answering, respond, status_body
from tests.clock import LONG
from tests.kube_tools import make_certificates, wait_until
from tests.unit.test_kube_connection import kubeconfig

PATIENCE = 20.0  # seconds
NOTHING = answering(404, status_body(404, "NotFound", "no"))
CONFIG = ConfigKey()


# --- closing ------------------------------------------------------------------------------------------------


def test_a_closed_store_does_not_connect_again() -> None:
    with BadApi(NOTHING) as bad:
        store = KubernetesStore(bad.settings())
        assert store.read(CONFIG).entry(CONFIG) is None
        store.close()
        for operation in (
            lambda: store.get(CONFIG),
            lambda: store.read(CONFIG, Handles()),
            lambda: store.commit(Create(HandleKey("h"), Handle("h"))),
        ):
            with pytest.raises(StoreError, match="has been closed"):
                operation()
        assert len(bad.requests) == 1


def test_a_wait_that_the_server_asked_for_ends_when_the_store_is_closed() -> None:
    with BadApi(answering(429, Retry_After="50")) as bad, ThreadPoolExecutor(1) as pool:
        store = KubernetesStore(bad.settings())
        waiting = pool.submit(store.get, CONFIG)
        while not bad.requests:
            time.sleep(0.01)
        store.close()
        with pytest.raises(StoreError, match="has been closed"):
            waiting.result(PATIENCE)


@pytest.mark.parametrize("seconds", ["3600", "inf"])
def test_nobody_waits_an_hour_because_a_server_says_so(seconds: str) -> None:
    with BadApi(answering(503, Retry_After=seconds)) as bad, KubernetesStore(bad.settings()) as store:
        with pytest.raises(StoreUnavailable):
            store.get(CONFIG)
        assert len(bad.requests) == 1


def reading() -> set[threading.Thread]:
    """Return the threads that read side by side, those of other tests that have not ended yet included."""
    return {each for each in threading.enumerate() if each.name.startswith("calico-ipam-read")}


def test_calls_side_by_side_are_all_answered_when_their_threads_are_closed() -> None:
    before = reading()

    def made() -> int:
        return len(reading() - before)

    abreast, go = Abreast(), threading.Event()

    def call(number: int) -> Callable[[], int]:
        def run() -> int:
            assert number > SIDE_BY_SIDE or go.wait(PATIENCE)
            return number

        return run

    with ThreadPoolExecutor(1) as pool:
        answers = pool.submit(abreast.run, [call(number) for number in range(3 * SIDE_BY_SIDE)])
        while made() < SIDE_BY_SIDE - 1:
            time.sleep(0.01)
        abreast.close()
        go.set()
        assert answers.result(PATIENCE) == list(range(3 * SIDE_BY_SIDE))
    wait_until(lambda: not made(), PATIENCE, "its threads to end")
    assert abreast.run([call(number) for number in range(2, 5)]) == [2, 3, 4]
    assert not made()


# --- fork ---------------------------------------------------------------------------------------------------


def in_a_child(succeeds: Callable[[], bool]) -> bool:
    """Tell whether something succeeds in a child of this process in time."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(int(LONG))
            code = 0 if succeeds() else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_child_does_not_wait_for_the_locks_of_its_parents_threads() -> None:
    with BadApi(NOTHING) as bad, KubernetesStore(bad.settings()) as store:
        assert store.read(CONFIG, HandleKey("h")).entry(CONFIG) is None
        with store.api._lock, store._abreast._lock:  # as another thread would hold them
            assert in_a_child(lambda: store.read(CONFIG, HandleKey("h")).entry(CONFIG) is None)
        assert store.read(CONFIG, HandleKey("h")).entry(CONFIG) is None


def test_a_child_does_not_read_its_parents_watch() -> None:
    on = threading.Event()

    def chunk(revision: int) -> bytes:
        line = b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"%d"}}}\n' % revision
        return b"%x\r\n%s\r\n" % (len(line), line)

    def serve(client: socket.socket, request: Received) -> None:
        client.sendall(b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(7))
        on.wait(PATIENCE)
        client.sendall(chunk(8))
        client.recv(1)

    with BadApi(serve) as bad, KubernetesStore(bad.settings()) as store:
        watch = store.watch(Handles(), "5")
        assert next(watch).revision == "7"

        def watches() -> bool:
            first = next(watch).revision  # from a connection of its own
            store.close()
            return first == "7"

        assert in_a_child(watches)
        on.set()
        assert next(watch).revision == "8"


# --- credentials --------------------------------------------------------------------------------------------


def test_two_threads_with_an_old_token_renew_it_once_for_both(tmp_path: Path) -> None:
    """The second one is refused when the first has renewed the token already."""
    file, both, renewed = tmp_path / "kubeconfig", threading.Event(), threading.Event()
    old: list[Received] = []

    def serve(client: socket.socket, request: Received) -> None:
        if request.headers.get("authorization") == "Bearer new":
            NOTHING(client, request)
            renewed.set()
            return
        old.append(request)
        if len(old) == 2:
            both.set()
            renewed.wait(PATIENCE)
        both.wait(PATIENCE)
        respond(client, 401, status_body(401, "Unauthorized", "no"))

    with BadApi(serve) as bad, ThreadPoolExecutor(2) as pool:
        file.write_text(kubeconfig(bad.url, {"token": "old"}))
        with KubernetesStore(Settings(KUBERNETES, "the test", kubeconfig=str(file), calico_api_group="v1")) as store:
            assert store.name  # it has read the old token
            file.write_text(kubeconfig(bad.url, {"token": "new"}))
            for each in [pool.submit(store.read, CONFIG) for _ in range(2)]:
                assert each.result(PATIENCE).entry(CONFIG) is None
        assert len(bad.requests) == 4


def test_blanks_around_a_token_are_no_part_of_it() -> None:
    with BadApi(NOTHING) as bad, KubernetesStore(bad.settings(k8s_api_token="secret\n")) as store:
        assert store.read(CONFIG).entry(CONFIG) is None
        assert bad.requests[0].headers["authorization"] == "Bearer secret"


@pytest.mark.parametrize("token", ["one\ntwo", "žeton"])
def test_a_token_that_no_header_can_hold_is_refused(token: str) -> None:
    with BadApi(NOTHING) as bad, KubernetesStore(bad.settings(k8s_api_token=token)) as store:
        with pytest.raises(NotConfigured, match="characters that no HTTP header may have") as caught:
            store.get(CONFIG)
        assert token not in str(caught.value)


def test_a_token_file_that_is_away_for_a_moment_is_no_crash() -> None:
    """The official client reads the token of a pod's service account again each minute, and raises what open() does."""
    made = connection.connect(Settings(KUBERNETES, "the test", k8s_api_endpoint="http://h:1"))

    def away(_configuration: Any) -> None:
        raise FileNotFoundError(2, "No such file or directory", "token")

    made.configuration.refresh_api_key_hook = away
    with pytest.raises(StoreUnavailable, match=r"cannot be read again: .*No such file"):
        made.authorisation()


# --- TLS ----------------------------------------------------------------------------------------------------


@pytest.fixture
def breaking(tmp_path: Path) -> Iterator[Settings]:
    """A server that takes a request by TLS and answers something that is none."""
    make_certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            # A client that is out of patience hangs up; the next one is served all the same.
            with suppress(OSError), client, closing(context.wrap_socket(client, server_side=True)) as session:
                session.recv(65536)
                with socket.socket(fileno=session.detach()) as bare:
                    bare.sendall(b"HTTP/1.1 200 OK\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        endpoint = f"https://127.0.0.1:{listener.getsockname()[1]}"
        yield Settings(
            KUBERNETES,
            "the test",
            k8s_api_endpoint=endpoint,
            k8s_ca_file=str(tmp_path / "ca.pem"),
            calico_api_group="v1",
        )
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE)


def test_tls_that_breaks_after_a_write_was_sent_leaves_its_outcome_open(breaking: Settings) -> None:
    with KubernetesStore(breaking) as store:
        with pytest.raises(OutcomeUnknown, match=r"the answer to POST .* was lost"):
            store.commit(Create(HandleKey("h"), Handle("h")))
        with pytest.raises(StoreUnavailable, match="does not answer"):
            store.get(CONFIG)


@pytest.mark.parametrize("plain", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
def test_a_handshake_that_fails_has_sent_nothing(plain: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever answers speaks no TLS, or says nothing at all."""
    monkeypatch.setattr(api, "CONNECT_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        endpoint = f"https://127.0.0.1:{listener.getsockname()[1]}"
        settings = Settings(KUBERNETES, "the test", k8s_api_endpoint=endpoint, calico_api_group="v1")
        with KubernetesStore(settings) as store:
            writing = pool.submit(store.commit, Create(HandleKey("h"), Handle("h")))
            with listener.accept()[0] as client:
                client.sendall(plain)
                with pytest.raises(StoreUnavailable, match=r"does not answer: .*(SSL|timed out)"):
                    writing.result(PATIENCE)
