"""The etcd datastore on a bad network: refused, hanging, slow, broken off; several endpoints; TLS that does not fit."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from calico_ipam.datastore.api import Create, Deadline, Entry, Update
from calico_ipam.datastore.etcd import EtcdStore, Patience
from calico_ipam.datastore.settings import ETCD, Settings
from calico_ipam.errors import (
    DeadlineExceeded,
    IPAMError,
    OutcomeUnknown,
    StaleError,
    StoreError,
    StoreUnavailable,
    TransientError,
    Unauthorized,
)
from calico_ipam.model.handle import Handle
from calico_ipam.model.keys import HandleKey, Handles
from tests.clock import LONG, SOON, seconds_since
from tests.etcd_tools import (
    Etcd,
    Proxy,
    Weather,
    etcd_cluster,
    make_certificates,
    proxied,
    tls_arguments,
    wait_until,
)
from tests.misbehaving_api import MisbehavingApi, saying
from tests.ports import free_port

#: For what nobody answers: it ends soon.
QUICK = Patience(request=3.0, connect=0.5, pulse=0.3)
#: For what another member answers after the first does not: a third of it passes before.
FAIL_OVER = Patience(request=10.0, connect=0.5, pulse=0.3)
#: For what somebody answers: he is waited for.
SLOW = Patience(request=LONG, connect=0.5, pulse=0.3)


@pytest.fixture(scope="module")
def etcd() -> Iterator[Etcd]:
    with Etcd() as running:
        yield running


@pytest.fixture(autouse=True)
def empty(request: pytest.FixtureRequest) -> None:
    if "etcd" in request.fixturenames:
        request.getfixturevalue("etcd").clear()


def handle(name: str, number: int = 1) -> Create:
    return Create(HandleKey(name), Handle(name, {"10.0.0.0/26": number}))


def opened(*endpoints: str, patience: Patience = SLOW, **more: Any) -> closing[EtcdStore]:
    return closing(EtcdStore(Settings(ETCD, etcd_endpoints=endpoints, **more), patience=patience))


def nobody() -> str:
    return f"http://127.0.0.1:{free_port()}"


@pytest.fixture
def mute() -> Iterator[str]:
    """An endpoint where connections are accepted, and nothing else ever happens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


# --- nobody there -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", [False, True])
def test_endpoints_that_refuse_are_all_named(write: bool) -> None:
    first, second = nobody(), nobody()
    began = time.monotonic()
    with opened(first, second) as store, pytest.raises(StoreUnavailable) as caught:
        store.commit(handle("h")) if write else store.list(Handles())
    for endpoint in (first, second):
        assert f"{endpoint.removeprefix('http://')} refuses connections" in str(caught.value)
    assert "etcdctl endpoint health" in caught.value.hint
    assert seconds_since(began) < SOON


def test_a_name_that_does_not_resolve() -> None:
    with opened("http://no-such-host.invalid:2379") as store, pytest.raises(StoreUnavailable, match="does not resolve"):
        store.list(Handles())


@pytest.mark.parametrize("write", [False, True])
def test_a_mute_endpoint_ends_with_patience(mute: str, write: bool) -> None:
    began = time.monotonic()
    with opened(mute, patience=QUICK) as store, pytest.raises(StoreUnavailable, match="did not answer in time"):
        store.commit(handle("h")) if write else store.list(Handles())
    assert 2.5 < seconds_since(began) < 3 + SOON


@pytest.mark.parametrize("write", [False, True])
def test_the_callers_deadline_is_shorter(mute: str, write: bool) -> None:
    began = time.monotonic()
    with (
        opened(mute) as store,
        pytest.raises(DeadlineExceeded, match=r"out of time: cannot .* did not answer in time"),
    ):
        bound = store.within(Deadline.after(0.6))
        bound.commit(handle("h")) if write else bound.list(Handles())
    assert seconds_since(began) < SOON


def test_a_server_that_comes_up_is_waited_for(etcd: Etcd) -> None:
    etcd.stop()
    starting = threading.Timer(0.7, etcd.start)
    starting.start()
    try:
        with opened(etcd.endpoint, patience=Patience(request=LONG, connect=LONG)) as store:
            assert len(store.list(Handles())) == 0
    finally:
        starting.join(LONG)


def test_something_else_answers() -> None:
    server = MisbehavingApi(saying(400))
    try:
        with opened(server.url, patience=QUICK) as store, pytest.raises((StoreError, StoreUnavailable)):
            store.list(Handles())
    finally:
        server.close()
    assert server.requests


# --- the next endpoint --------------------------------------------------------------------------------------


def test_the_next_endpoint_answers(etcd: Etcd, mute: str) -> None:
    for bad in (nobody(), mute):
        for order in (
            (bad, etcd.endpoint),
            (etcd.endpoint, bad),
            (bad, bad.replace("127.0.0.1", "localhost"), etcd.endpoint),
        ):
            with opened(*order, patience=FAIL_OVER) as store:
                assert store.list(Handles()) is not None
                began = time.monotonic()
                for _ in range(40):
                    store.list(Handles())
                assert seconds_since(began) < SOON  # what has failed is not asked each time


def test_a_first_write_finds_the_endpoint_that_answers(etcd: Etcd, mute: str) -> None:
    for number, bad in enumerate((nobody(), mute)):
        with opened(bad, etcd.endpoint, patience=FAIL_OVER) as store:
            store.commit(handle(f"h{number}"))
            assert store.get(HandleKey(f"h{number}")).value.blocks == {"10.0.0.0/26": 1}


def test_reads_move_on_when_an_endpoint_hangs(etcd: Etcd) -> None:
    with proxied(etcd) as proxy, opened(proxy.endpoint, etcd.endpoint, patience=FAIL_OVER) as store:
        store.commit(handle("h"))
        proxy.weather = Weather(requests=False, answers=False)
        began = time.monotonic()
        assert len(store.list(Handles())) == 1
        assert seconds_since(began) < SOON
        store.commit(handle("i"))
        assert seconds_since(began) < SOON


def test_reads_move_on_when_connections_break(etcd: Etcd) -> None:
    with proxied(etcd) as proxy, opened(proxy.endpoint, etcd.endpoint) as store:
        store.commit(handle("h"))
        for _ in range(3):
            proxy.cut()
            assert len(store.list(Handles())) == 1


def test_one_endpoint_is_connected_again(etcd: Etcd) -> None:
    """A half-open connection: the peer is gone, and nobody told us. A new one to the same member works."""
    with proxied(etcd) as proxy, opened(proxy.endpoint, patience=FAIL_OVER) as store:
        store.commit(handle("h"))
        proxy.die_unseen()
        assert len(store.list(Handles())) == 1
        assert proxy.connections >= 2


def test_threads_share_a_fail_over(etcd: Etcd) -> None:
    with proxied(etcd) as proxy, opened(proxy.endpoint, etcd.endpoint) as store:
        store.commit(handle("h"))
        stop = threading.Event()
        reads = [0] * 6

        def read(number: int) -> None:
            while not stop.is_set():
                assert len(store.list(Handles())) == 1
                reads[number] += 1

        with ThreadPoolExecutor(6) as pool:
            reading = [pool.submit(read, number) for number in range(6)]

            def all_read_since(before: list[int]) -> bool:
                ended = any(each.done() for each in reading)
                return ended or all(now > then for now, then in zip(reads, before, strict=True))

            try:
                for _ in range(5):
                    wait_until(partial(all_read_since, list(reads)))
                    proxy.cut()
            finally:
                stop.set()
            for each in reading:
                each.result(LONG)


def stored(store: EtcdStore, name: str, number: int) -> Entry:
    """Store a handle, whatever elections do to answers: what may have been done is looked at before it is repeated."""
    key = HandleKey(name)

    def done() -> Entry | None:
        try:
            entry = store.read(key).entry(key)
            if entry is None:
                store.commit(handle(name, number))
            elif entry.value != handle(name, number).value:
                store.commit(Update(entry, handle(name, number).value))
            else:
                return entry
        except (OutcomeUnknown, StaleError):
            pass
        return None

    found: Entry = wait_until(done, LONG, f"{name} to be {number}")
    return found


def test_a_cluster_loses_its_leader_and_then_its_majority() -> None:
    with (
        etcd_cluster(3) as members,
        opened(*(member.endpoint for member in members), patience=Patience(request=LONG, connect=LONG)) as store,
    ):
        entry = stored(store, "h", 1)
        watching = store.watch(Handles(), entry.revision)
        leader = wait_until(lambda: next((each for each in members if each.leads()), None), LONG, "a leader")
        leader.stop()
        assert store.get(HandleKey("h")) == entry  # waits for the election
        stored(store, "h", 2)
        assert next(event for event in watching if event.entry).kind == "modified"
        others = [member for member in members if member is not leader]
        others[0].stop()
        with opened(others[1].endpoint, patience=QUICK) as alone, pytest.raises(StoreUnavailable) as caught:
            alone.list(Handles())
        assert "no leader" in str(caught.value) or "did not answer" in str(caught.value)
        others[0].start()
        assert store.get(HandleKey("h")).value.blocks == {"10.0.0.0/26": 2}


# --- answers that do not come -------------------------------------------------------------------------------


def test_a_write_whose_answer_is_lost_is_unknown_and_was_done(etcd: Etcd) -> None:
    with proxied(etcd) as proxy, opened(proxy.endpoint, etcd.endpoint) as store:
        (entry,) = store.commit(handle("h"))
        proxy.weather = Weather(answers=False)
        with pytest.raises(OutcomeUnknown, match=r"cannot tell whether the last write to etcd://.* was done") as caught:
            store.within(Deadline.after(6)).commit(Update(entry, Handle("h", {"10.0.0.0/26": 2})))
        assert "Read again" in caught.value.hint
        assert store.get(HandleKey("h")).value.blocks == {"10.0.0.0/26": 2}  # by the other endpoint


def test_a_write_that_never_arrived_is_unknown_too(etcd: Etcd) -> None:
    with proxied(etcd) as proxy, opened(proxy.endpoint, etcd.endpoint) as store:
        (entry,) = store.commit(handle("h"))
        proxy.weather = Weather(requests=False)
        with pytest.raises(OutcomeUnknown):
            store.within(Deadline.after(4)).commit(Update(entry, Handle("h", {"10.0.0.0/26": 2})))
        assert store.get(HandleKey("h")) == entry


def test_a_write_that_is_cut_off_is_unknown(etcd: Etcd) -> None:
    with proxied(etcd) as proxy, opened(proxy.endpoint) as store, opened(etcd.endpoint) as direct:
        (entry,) = store.commit(handle("h"))
        proxy.weather = Weather(answers=False)

        def cut_when_done() -> None:
            wait_until(lambda: direct.get(HandleKey("h")).revision != entry.revision, what="the write")
            proxy.cut()

        with ThreadPoolExecutor(1) as pool:
            cutting = pool.submit(cut_when_done)
            with pytest.raises(OutcomeUnknown, match=r"closed the connection|broke the connection"):
                store.commit(Update(entry, Handle("h", {"10.0.0.0/26": 2})))
            cutting.result(SOON)
        proxy.weather = Weather()
        assert store.get(HandleKey("h")).value.blocks == {"10.0.0.0/26": 2}


def test_writes_are_never_done_twice(etcd: Etcd) -> None:
    """A counter under connections that break counts each successful write once, and unknown ones at most once."""
    patience = Patience(request=10.0, connect=5.0)
    with proxied(etcd) as proxy, opened(proxy.endpoint, etcd.endpoint, patience=patience) as store:
        (entry,) = store.commit(handle("h", 0))
        stop = threading.Event()

        def disturb() -> None:
            while not stop.wait(0.02):
                proxy.cut()

        done = unknown = 0
        with ThreadPoolExecutor(1) as pool:
            disturbing = pool.submit(disturb)
            try:
                for _ in range(150):
                    entry = store.get(HandleKey("h"))
                    count = entry.value.blocks.get("10.0.0.0/26", 0)
                    try:
                        store.commit(Update(entry, Handle("h", {"10.0.0.0/26": count + 1})))
                        done += 1
                    except OutcomeUnknown:
                        unknown += 1
            finally:
                stop.set()
            disturbing.result(10)
        assert done <= store.get(HandleKey("h")).value.blocks["10.0.0.0/26"] <= done + unknown
        assert done > 0


def test_a_frozen_server_and_its_thaw(etcd: Etcd) -> None:
    with opened(etcd.endpoint) as store:
        (entry,) = store.commit(handle("h"))
        etcd.freeze()
        try:
            with pytest.raises(DeadlineExceeded):
                store.within(Deadline.after(0.5)).list(Handles())
            with pytest.raises(TransientError):  # found out by the harmless request before the write
                store.within(Deadline.after(0.5)).commit(Update(entry, Handle("h", {})))
        finally:
            etcd.thaw()
        assert store.get(HandleKey("h")) == entry


# --- slow ---------------------------------------------------------------------------------------------------


def test_a_slow_server_is_waited_for(etcd: Etcd) -> None:
    with proxied(etcd) as proxy, opened(proxy.endpoint, patience=Patience()) as store:
        proxy.weather = Weather(delay=0.4)
        store.commit(handle("h"))
        assert len(store.list(Handles())) == 1


def test_a_byte_a_second_ends_with_the_deadline(etcd: Etcd) -> None:
    with proxied(etcd) as proxy, opened(proxy.endpoint, etcd.endpoint, patience=FAIL_OVER) as store:
        store.commit(handle("h"))
        proxy.weather = Weather(rate=1.0)
        began = time.monotonic()
        assert len(store.list(Handles())) == 1  # the other endpoint is quick
        assert seconds_since(began) < SOON
    with proxied(etcd) as proxy, opened(proxy.endpoint) as store:
        proxy.weather = Weather(rate=1.0)
        began = time.monotonic()
        with pytest.raises(DeadlineExceeded):
            store.within(Deadline.after(1)).list(Handles())
        assert seconds_since(began) < SOON


# --- certificates -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secure(certificates: Path) -> Iterator[Etcd]:
    """An etcd with TLS that wants client certificates."""
    arguments = tls_arguments(certificates, client_certificates=True)
    with Etcd(*arguments, scheme="https", certificates=certificates) as running:
        yield running


def files(folder: Path, ca: str = "ca", client: str = "client") -> dict[str, Any]:
    given = {"etcd_ca_cert_file": f"{ca}.pem" if ca else ""}
    if client:
        given |= {"etcd_cert_file": f"{client}.pem", "etcd_key_file": f"{client}.key"}
    return {name: str(folder / file) for name, file in given.items() if file}


def test_tls_with_a_client_certificate(secure: Etcd, certificates: Path) -> None:
    texts: dict[str, Any] = {
        name.replace("_file", ""): Path(file).read_text() for name, file in files(certificates).items()
    }
    for number, identity in enumerate((files(certificates), texts)):
        with opened(secure.endpoint, **identity) as store:
            store.commit(handle(f"h{number}"))
            assert store.get(HandleKey(f"h{number}"))
            assert next(store.watch(Handles(), "0")).entry is not None
    with opened(secure.address, **files(certificates)) as store:  # no scheme means TLS
        assert len(store.list(Handles())) == 2


@pytest.mark.parametrize(
    ("identity", "kind", "words", "hint"),
    [
        (("ca", ""), Unauthorized, "wants a client certificate and none is configured", "Set ETCD_CERT_FILE"),
        (("ca", "client-expired"), Unauthorized, r"has expired on 20\d\d-\d\d-\d\d", "Renew it"),
        (("ca", "client-foreign"), Unauthorized, "does not accept our client certificate", "--trusted-ca-file"),
        (("other", "client"), StoreError, "is not signed by the configured CA", "Set ETCD_CA_CERT_FILE"),
        (("", "client"), StoreError, "is not signed by an authority that this host trusts", "Set ETCD_CA_CERT_FILE"),
    ],
)
def test_certificates_that_do_not_fit(
    secure: Etcd, certificates: Path, identity: tuple[str, str], kind: type[IPAMError], words: str, hint: str
) -> None:
    began = time.monotonic()
    for write in (False, True):
        with (
            opened(secure.endpoint, patience=Patience(LONG, LONG), **files(certificates, *identity)) as store,
            pytest.raises(kind, match=words) as caught,
        ):
            store.commit(handle("h")) if write else store.list(Handles())
        assert type(caught.value) is kind
        assert hint in caught.value.hint
        assert "BEGIN" not in str(vars(caught.value))
    assert seconds_since(began) < SOON  # asking again would not help


@pytest.mark.parametrize(
    ("server", "words"),
    [
        ("server-expired", "certificate of etcd at .* has expired"),
        ("server-elsewhere", "is not for the name 127.0.0.1"),
    ],
)
def test_servers_that_show_bad_certificates(certificates: Path, server: str, words: str) -> None:
    with (
        Etcd(*tls_arguments(certificates, server), scheme="https", certificates=certificates) as bad,
        opened(bad.endpoint, **files(certificates, client="")) as store,
        pytest.raises(StoreError, match=words),
    ):
        store.list(Handles())


def test_the_wrong_scheme_is_told(etcd: Etcd, secure: Etcd, certificates: Path) -> None:
    with opened(f"https://{etcd.address}", **files(certificates)) as store:
        with pytest.raises(StoreError, match="does not speak TLS") as caught:
            store.list(Handles())
        assert "http://" in caught.value.hint
    with opened(f"http://{secure.address}", patience=QUICK) as store:
        with pytest.raises(StoreError, match="speaks TLS, but its endpoint is configured without") as caught:
            store.list(Handles())
        assert "https://" in caught.value.hint


def test_one_bad_certificate_among_endpoints_is_passed_over(
    secure: Etcd, certificates: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with (
        Etcd(*tls_arguments(certificates, "server-expired"), scheme="https", certificates=certificates) as bad,
        opened(bad.endpoint, secure.endpoint, **files(certificates)) as store,
    ):
        assert store.list(Handles()) is not None
    assert "BEGIN" not in caplog.text


def test_nothing_is_written_to_standard_error(
    secure: Etcd, certificates: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """gRPC's core would log each failed handshake there; a plugin's runtime would take it for ours."""
    with opened(secure.endpoint, **files(certificates, client="")) as store, pytest.raises(Unauthorized):
        store.list(Handles())
    assert capfd.readouterr() == ("", "")


def test_proxies_of_the_environment_are_for_the_web(etcd: Etcd, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, nobody())
    with opened(etcd.endpoint) as store:
        assert store.list(Handles()) is not None


def test_a_proxy_for_tests_carries(etcd: Etcd) -> None:
    with Proxy(etcd.port) as proxy, opened(proxy.endpoint, patience=Patience(LONG, LONG)) as store:
        store.list(Handles())
        assert proxy.connections == 1
