"""An API server that hangs, drips, closes, refuses or is none: every call ends in time, with one clear sentence."""

from __future__ import annotations

import contextlib
import gc
import socket
import struct
import threading
import time
from collections.abc import Callable

import pytest

from calico_ipam.datastore.api import Create, Deadline, Entry, Update
from calico_ipam.datastore.kube import api as kube_api
from calico_ipam.datastore.kube.store import KubernetesStore
from calico_ipam.datastore.settings import KUBERNETES, Settings
from calico_ipam.errors import (
    AlreadyExists,
    Conflict,
    IPAMError,
    NotFound,
    OutcomeUnknown,
    StoreError,
    StoreUnavailable,
    Unauthorized,
)
from calico_ipam.model.addresses import parse_network
from calico_ipam.model.handle import Handle
from calico_ipam.model.keys import Blocks, ConfigKey, HandleKey, Handles
from tests.bad_api import (
    BadApi,
    Behaviour,
    answering,
    closing,
    dripping,
    dripping_body,
    half,
    hanging,
    html,
    in_turn,
    status_body,
)
from tests.clock import LONG, SOON, seconds_since

KEY = HandleKey("net.c1")
VALUE = Handle("net.c1", {"10.0.0.0/26": 1})
STORED = {
    "apiVersion": "crd.projectcalico.org/v1",
    "kind": "IPAMHandle",
    "metadata": {"name": "net.c1", "resourceVersion": "7", "uid": "u"},
    "spec": {"handleID": "net.c1", "block": {"10.0.0.0/26": 1}, "deleted": False},
}


def reading(store: KubernetesStore) -> object:
    return store.get(KEY)


def listing(store: KubernetesStore) -> object:
    return store.list(Handles())


def creating(store: KubernetesStore) -> object:
    return store.commit(Create(KEY, VALUE))


def updating(store: KubernetesStore) -> object:
    return store.commit(Update(Entry(KEY, VALUE, "7", "u", STORED), VALUE))


OPERATIONS = (reading, listing, creating, updating)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("behaviour", [hanging, dripping, dripping_body])
def test_a_slow_server_does_not_outlast_the_deadline(
    behaviour: Behaviour, operation: Callable[[KubernetesStore], object]
) -> None:
    for seconds in (1.5, SOON):  # the longer one where the time was over before the request was sent
        with BadApi(behaviour) as bad, KubernetesStore(bad.settings()) as store:
            started = time.monotonic()
            with pytest.raises((StoreUnavailable, OutcomeUnknown)) as caught:
                operation(store.within(Deadline.after(seconds)))
            took = seconds_since(started)
            number = len(bad.requests)
        if number:
            break
    assert took < seconds + SOON
    assert isinstance(caught.value, OutcomeUnknown) is (operation in (creating, updating))
    assert number == 1  # the time is spent; a second try would spend it again


def test_without_a_deadline_a_request_has_its_own_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube_api, "REQUEST_SECONDS", 0.4)
    with BadApi(dripping) as bad, KubernetesStore(bad.settings()) as store:
        started = time.monotonic()
        with pytest.raises(StoreUnavailable, match=r"does not answer: .*timed out") as caught:
            store.get(KEY)
        assert "None" not in str(caught.value)
        assert seconds_since(started) < SOON


@pytest.mark.parametrize("behaviour", [closing, half])
def test_a_broken_connection_is_tried_again_by_reads_only(behaviour: Behaviour) -> None:
    with BadApi(in_turn(behaviour, answering(200, STORED))) as bad, KubernetesStore(bad.settings()) as store:
        assert store.get(KEY).value == VALUE
        assert [str(r) for r in bad.requests] == ["GET /apis/crd.projectcalico.org/v1/ipamhandles/net.c1"] * 2
    with BadApi(behaviour) as bad, KubernetesStore(bad.settings()) as store:
        with pytest.raises(OutcomeUnknown, match=r"the answer to POST .*ipamhandles was lost"):
            creating(store)
        assert len(bad.requests) == 1
        with pytest.raises(StoreUnavailable):
            reading(store)
        assert len(bad.requests) == 1 + kube_api.BROKEN_TRIES


def test_connections_that_are_reset_before_their_handshake() -> None:
    """What an API server that is being killed does to those who connect (pyproject.toml: a warning of Python 3.11)."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def reset() -> None:
            with contextlib.suppress(OSError):  # the end
                while True:
                    connection, _peer = server.accept()
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    connection.close()

        killing = threading.Thread(target=reset)
        killing.start()
        endpoint = f"https://127.0.0.1:{server.getsockname()[1]}"
        settings = Settings(KUBERNETES, "the test", k8s_api_endpoint=endpoint, k8s_insecure_skip_tls_verify=True)
        try:
            with KubernetesStore(settings) as store:
                for operation in (reading, listing, creating):
                    with pytest.raises((StoreUnavailable, OutcomeUnknown)):
                        operation(store)
        finally:
            server.shutdown(socket.SHUT_RDWR)
            killing.join(10)
        assert not killing.is_alive()
    gc.collect()  # what this leaves behind shows here and not in another test


@pytest.mark.parametrize("operation", OPERATIONS)
def test_nobody_there(operation: Callable[[KubernetesStore], object]) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # nobody listens, and nobody else gets the port meanwhile
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        settings = Settings(KUBERNETES, "the test", k8s_api_endpoint=url, calico_api_group="v1")
        with KubernetesStore(settings) as store, pytest.raises(StoreUnavailable) as caught:
            operation(store)
    assert f"the Kubernetes API server {url} does not answer" in str(caught.value)
    assert "Connection refused" in str(caught.value)
    assert "0x" not in str(caught.value)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("status", [200, 404, 503])
def test_a_page_is_not_taken_for_an_answer(status: int, operation: Callable[[KubernetesStore], object]) -> None:
    """Least of all for 'there is nothing': that would hand out addresses twice."""
    with BadApi(html(status)) as bad, KubernetesStore(bad.settings()) as store, pytest.raises(IPAMError) as caught:
        operation(store)
    assert not isinstance(caught.value, NotFound | Conflict | AlreadyExists)
    assert "It works" in str(caught.value)


@pytest.mark.parametrize(
    ("status", "reason", "text", "error"),
    [
        (409, "AlreadyExists", "there is one", AlreadyExists),
        (409, "Conflict", "the object has been modified", Conflict),
        (409, "Conflict", "Precondition failed: UID in precondition: a, UID in object meta: b", NotFound),
        (404, "NotFound", "not found", NotFound),
        (422, "Invalid", "spec.cidr: Invalid value", StoreError),
        (400, "BadRequest", "what?", StoreError),
        (500, "InternalError", "etcdserver: request timed out", OutcomeUnknown),
        (502, "", "bad gateway", OutcomeUnknown),
        (504, "Timeout", "gateway", OutcomeUnknown),
        (503, "", "no upstream", OutcomeUnknown),
    ],
)
def test_what_a_write_is_told(status: int, reason: str, text: str, error: type[IPAMError]) -> None:
    behaviour = answering(status, status_body(status, reason, text))
    with BadApi(behaviour) as bad, KubernetesStore(bad.settings()) as store, pytest.raises(IPAMError) as caught:
        updating(store)
    assert type(caught.value) is error
    assert str(KEY) in caught.value.subject or text in str(caught.value)


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("operation", [reading, updating])
def test_the_server_may_ask_to_come_back(status: int, operation: Callable[[KubernetesStore], object]) -> None:
    behaviour = in_turn(
        answering(status, Retry_After="0.05"), answering(status, Retry_After="0"), answering(200, STORED)
    )
    with BadApi(behaviour) as bad, KubernetesStore(bad.settings()) as store:
        operation(store)
        assert len(bad.requests) == 3


def test_an_unfinished_write_is_not_sent_again() -> None:
    """A 500 with Retry-After may have been done: only a read tells."""
    with BadApi(answering(500, Retry_After="0")) as bad, KubernetesStore(bad.settings()) as store:
        with pytest.raises(OutcomeUnknown):
            updating(store)
        assert len(bad.requests) == 1


def test_coming_back_has_an_end() -> None:
    with BadApi(answering(429, Retry_After="0")) as bad, KubernetesStore(bad.settings()) as store:
        with pytest.raises(StoreUnavailable, match="answers 429"):
            store.get(KEY)
        assert len(bad.requests) == kube_api.LATER_TRIES + 1


def test_a_wait_longer_than_the_deadline_is_not_begun() -> None:
    with BadApi(answering(503, Retry_After="60")) as bad, KubernetesStore(bad.settings()) as store:
        started = time.monotonic()
        with pytest.raises(StoreUnavailable):
            store.within(Deadline.after(LONG / 2)).get(KEY)
        assert seconds_since(started) < SOON


@pytest.mark.parametrize(
    ("status", "verdict"),
    [(401, "are expired or wrong (asked to {verb} {what}): renew them."), (403, "lacks the right to {verb} {what}")],
)
@pytest.mark.parametrize(
    ("operation", "verb", "what"),
    [
        (reading, "get", 'ipamhandles in API group "crd.projectcalico.org"'),
        (listing, "list", 'ipamhandles in API group "crd.projectcalico.org"'),
        (creating, "create", 'ipamhandles in API group "crd.projectcalico.org"'),
        (updating, "update", 'ipamhandles in API group "crd.projectcalico.org"'),
    ],
)
def test_refused_rights_are_told_in_one_sentence(
    status: int, verdict: str, operation: Callable[[KubernetesStore], object], verb: str, what: str
) -> None:
    behaviour = answering(status, status_body(status, "Unauthorized" if status == 401 else "Forbidden", "no"))
    with BadApi(behaviour) as bad, KubernetesStore(bad.settings()) as store, pytest.raises(Unauthorized) as caught:
        operation(store)
    assert str(caught.value) == "connection is unauthorized: no"
    assert verdict.format(verb=verb, what=what) in caught.value.hint
    assert f"the settings of {bad.url}" in caught.value.hint


# --- lists --------------------------------------------------------------------------------------------------


def page(*names: str, token: str = "", revision: str = "5") -> dict[str, object]:
    items = [
        {**STORED, "metadata": {"name": n, "resourceVersion": "1"}, "spec": {"handleID": n, "block": {}}} for n in names
    ]
    return {"metadata": {"resourceVersion": revision, "continue": token}, "items": items}


def test_lists_come_in_pages() -> None:
    with BadApi(in_turn(answering(200, page("a", token="t1")), answering(200, page("b")))) as bad:
        with KubernetesStore(bad.settings()) as store:
            found = store.list(Handles())
        assert [entry.key.id for entry in found] == ["a", "b"]
        assert [r.path.partition("?")[2] for r in bad.requests] == ["limit=500", "limit=500&continue=t1"]


def test_an_expired_page_begins_again_unpaged() -> None:
    gone = answering(410, status_body(410, "Expired", "The provided continue parameter is too old"))
    whole = answering(200, page("a", "b", "c", revision="9"))
    with BadApi(in_turn(answering(200, page("a", token="t1")), gone, whole)) as bad:
        with KubernetesStore(bad.settings()) as store:
            found = store.list(Handles())
        assert ([entry.key.id for entry in found], found.revision) == (["a", "b", "c"], "9")
        assert bad.requests[-1].path.partition("?")[2] == ""


def test_one_bad_object_does_not_spoil_a_list() -> None:
    bad_block = {"metadata": {"name": "x", "resourceVersion": "3"}, "spec": {"cidr": "10.0.0.0/26", "allocations": "?"}}
    nameless = {"metadata": {"name": "y", "resourceVersion": "3"}, "spec": {"cidr": "nonsense"}}
    document = {"metadata": {"resourceVersion": "5"}, "items": [bad_block, nameless]}
    with BadApi(answering(200, document)) as bad, KubernetesStore(bad.settings()) as store:
        found = store.list(Blocks())
    assert (len(found), [d.path for d in found.damaged]) == (0, ["IPAMBlock/x", "IPAMBlock/y"])
    assert [str(getattr(d.key, "cidr", None)) for d in found.damaged] == [str(parse_network("10.0.0.0/26")), "None"]


def test_a_missing_definition_is_an_empty_list() -> None:
    with BadApi(answering(404, b"404 page not found\n")) as bad, KubernetesStore(bad.settings()) as store:
        assert len(store.list(Handles())) == 0
        assert store.read(ConfigKey()).entry(ConfigKey()) is None


# --- the group ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "groups", "path"),
    [
        ("", ["projectcalico.org"], "/apis/projectcalico.org/v3/ipamconfigurations/default"),
        ("", ["crd.projectcalico.org"], "/apis/crd.projectcalico.org/v1/ipamconfigs/default"),
        ("", ["projectcalico.org", "crd.projectcalico.org"], "/apis/crd.projectcalico.org/v1/ipamconfigs/default"),
        ("", None, "/apis/crd.projectcalico.org/v1/ipamconfigs/default"),
        ("ProjectCalico.org/V3", None, "/apis/projectcalico.org/v3/ipamconfigurations/default"),
        ("anything", None, "/apis/crd.projectcalico.org/v1/ipamconfigs/default"),
    ],
)
def test_the_group_is_chosen_by_setting_then_by_discovery(setting: str, groups: list[str] | None, path: str) -> None:
    discovery = answering(500) if groups is None else answering(200, {"groups": [{"name": name} for name in groups]})
    missing = answering(404, status_body(404, "NotFound", "no"))
    with BadApi(missing if setting else in_turn(discovery, missing)) as bad:
        with KubernetesStore(bad.settings(calico_api_group=setting)) as store:
            assert store.read(ConfigKey()).entry(ConfigKey()) is None
            assert store.read(ConfigKey()).entry(ConfigKey()) is None
        assert [r.path for r in bad.requests] == [*([] if setting else ["/apis"]), path, path]
