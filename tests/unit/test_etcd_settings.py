"""Where etcd is and who we are: endpoints, identity, library and failures of calico_ipam/datastore/etcd."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dns.message
import dns.rcode
import dns.resolver
import dns.rrset
import pytest

from calico_ipam.datastore.config import load_settings, open_datastore
from calico_ipam.datastore.etcd import EtcdStore
from calico_ipam.datastore.etcd.endpoints import cluster_of, parse_endpoint
from calico_ipam.datastore.etcd.failures import Meaning, StoreFull, failure_of, refusal_of
from calico_ipam.datastore.etcd.identity import identity_of, validity
from calico_ipam.datastore.etcd.library import load
from calico_ipam.datastore.settings import ETCD, Settings
from calico_ipam.errors import InvalidInput, IPAMError, NotConfigured, StoreError, Unauthorized
from tests.clock import LONG
from tests.etcd_tools import make_certificates

SECRET = "s3cr3t-w0rd"


def etcd(*endpoints: str, **more: Any) -> Settings:
    return Settings(ETCD, etcd_endpoints=endpoints, **more)


# --- endpoints ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("endpoints", "name"),
    [
        (("http://h1:2379", "http://h2:4001"), "etcd://h1:2379,h2:4001"),
        (("https://h1:2379",), "etcds://h1:2379"),
        (("h1:2379",), "etcds://h1:2379"),  # no scheme means TLS
        (("http://h1:2379", "https://h2:2379"), "etcd://h1:2379,h2:2379"),  # the first one decides
        (("https://h1", "http://h2:1/"), "etcds://h1:2379,h2:1"),
        (("http://[fd00::1]:2379", "http://[fd00::2]"), "etcd://[fd00::1]:2379,[fd00::2]:2379"),
        (("http://h1:2379", "http://h1:2379"), "etcd://h1:2379"),
        ((" http://h1:2379 ",), "etcd://h1:2379"),
    ],
)
def test_the_first_endpoint_says_whether_tls_is_spoken(endpoints: tuple[str, ...], name: str) -> None:
    assert str(cluster_of(etcd(*endpoints))) == name


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("unix:///run/etcd.sock", "unknown scheme 'unix'"),
        ("://h:1", "unknown scheme"),
        ("http://h:99999", "is no etcd endpoint"),
        ("http://h:0", "is no etcd endpoint"),
        ("http://:2379", "is no etcd endpoint"),
        ("http://h:2379/v3", "is no etcd endpoint"),
        ("http://h h:2379", "is no etcd endpoint"),
        ("http://fd00::1:2379x", "is no etcd endpoint"),
        (f"http://root:{SECRET}@h:2379", "must not hold user or password"),
    ],
)
def test_a_bad_endpoint_is_one_sentence(text: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as caught:
        parse_endpoint(text)
    assert caught.value.hint
    assert SECRET not in repr(caught.value) + caught.value.subject + caught.value.hint


def test_no_endpoints() -> None:
    with pytest.raises(NotConfigured, match="no etcd endpoints specified"):
        EtcdStore(etcd())


def test_endpoints_and_discovery_exclude_each_other() -> None:
    with pytest.raises(InvalidInput, match="both set"):
        EtcdStore(etcd("http://h:2379", etcd_discovery_srv="example.org"))


def test_discovery_takes_records_with_tls_first() -> None:
    asked: list[str] = []

    def resolve(name: str) -> Sequence[tuple[str, int]]:
        asked.append(name)
        return [("a.example.org", 2379), ("b.example.org", 2380)] if "-ssl" in name else [("c.example.org", 1)]

    cluster = cluster_of(etcd(etcd_discovery_srv="example.org"), resolve)
    assert str(cluster) == "etcds://a.example.org:2379,b.example.org:2380,c.example.org:1"
    assert asked == ["_etcd-client-ssl._tcp.example.org", "_etcd-client._tcp.example.org"]


def test_discovery_without_records() -> None:
    def nothing(name: str) -> Sequence[tuple[str, int]]:
        raise LookupError("no such name")

    words = "failed to discover etcd endpoints through SRV discovery: "
    with pytest.raises(NotConfigured, match=f"{words}_etcd-client-ssl._tcp.example.org: no such name; "):
        EtcdStore(etcd(etcd_discovery_srv="example.org"), resolve=nothing)
    with pytest.raises(NotConfigured, match=f"{words}no records"):
        EtcdStore(etcd(etcd_discovery_srv="example.org"), resolve=lambda _: [])


def test_discovery_asks_dns(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        answering = threading.Thread(target=answer_dns, args=(server,))
        answering.start()
        resolver = dns.resolver.Resolver(configure=False)
        resolver.nameservers, resolver.port = ["127.0.0.1"], server.getsockname()[1]
        monkeypatch.setattr(dns.resolver, "default_resolver", resolver)
        try:
            found = str(cluster_of(etcd(etcd_discovery_srv="example.org")))
        finally:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
                last.sendto(b"", server.getsockname())
            answering.join(LONG)
        assert found == "etcd://first.example.org:2379,second.example.org:1"


def answer_dns(server: socket.socket) -> None:
    """Answer with two service records for plain etcd, and with none for the one with TLS; until nothing is asked.

    A question that is asked again, since its answer took its time, is answered again.
    """
    while True:
        query, peer = server.recvfrom(4096)
        if not query:
            return
        question = dns.message.from_wire(query)
        response = dns.message.make_response(question)
        name = question.question[0].name
        if "-ssl" in str(name):
            response.set_rcode(dns.rcode.NXDOMAIN)
        else:
            records = ("20 0 1 second.example.org.", "10 0 2379 first.example.org.")
            response.answer.append(dns.rrset.from_text(name, 60, "IN", "SRV", *records))
        server.sendto(response.to_wire(), peer)


# --- where settings come from -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("etcd://h1:2379,h2:2379", "etcd://h1:2379,h2:2379"),
        ("etcds://h1:2379,h2", "etcds://h1:2379,h2:2379"),
        ("etcd+https://h1:2379", "etcds://h1:2379"),
        ("etcd+http://h1:2379", "etcd://h1:2379"),
        ("http://h1:2379,http://h2:2379", "etcd://h1:2379,h2:2379"),
        ("https://h1:2379,https://h2:2379/", "etcds://h1:2379,h2:2379"),
        ("https://h1:2379,h2:2379", "etcds://h1:2379,h2:2379"),
    ],
)
def test_a_store_is_opened_by_url(url: str, name: str) -> None:
    store = open_datastore(url, environ={})
    assert isinstance(store, EtcdStore)
    assert store.name == name
    store.close()


@pytest.mark.parametrize("url", ["etcd://", f"etcd://u:{SECRET}@h:1", "etcd://h:1/x", "https://h1:1,http://h2:1"])
def test_a_bad_url_is_one_sentence(url: str) -> None:
    with pytest.raises(InvalidInput, match="an etcd URL is etcd://host:2379,host:2379") as caught:
        open_datastore(url, environ={})
    assert SECRET not in str(vars(caught.value))


def test_a_store_is_opened_by_the_environment(tmp_path: Path) -> None:
    environ = {"ETCD_ENDPOINTS": "http://h1:1, http://h2:2", "ETCD_USERNAME": "root", "ETCD_PASSWORD": SECRET}
    store = open_datastore(environ=environ)
    assert store.name == "etcd://h1:1,h2:2"
    store.close()
    settings = load_settings(environ=environ)
    assert SECRET not in repr(settings)


def test_the_rest_of_a_url_comes_from_the_environment(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"the etcd CA file /nowhere/ca\.pem cannot be read"):
        open_datastore("etcds://h1:1", environ={"ETCD_CA_CERT_FILE": "/nowhere/ca.pem"})


# --- certificates -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def inline(folder: Path, ca: str = "ca", cert: str = "client", key: str = "client") -> dict[str, str]:
    def text(name: str) -> str:
        return (folder / name).read_text()

    return {
        "etcd_ca_cert": text(f"{ca}.pem") if ca else "",
        "etcd_cert": text(f"{cert}.pem") if cert else "",
        "etcd_key": text(f"{key}.key") if key else "",
    }


def files(folder: Path, ca: str = "ca.pem", cert: str = "client.pem", key: str = "client.key") -> dict[str, str]:
    given = {"etcd_ca_cert_file": ca, "etcd_cert_file": cert, "etcd_key_file": key}
    return {name: str(folder / file) for name, file in given.items() if file}


def test_files_and_inline_texts_give_the_same(certificates: Path) -> None:
    by_files = identity_of(etcd("https://h:1", **files(certificates)))
    assert by_files == identity_of(etcd("https://h:1", **inline(certificates)))
    assert by_files.key is not None
    assert by_files.key.decode().splitlines()[1] not in repr(by_files)


BAD: dict[str, tuple[Callable[[Path], dict[str, str]], str]] = {
    "a file that is missing": (
        lambda d: files(d, ca="nothing.pem"),
        "the etcd CA file .*nothing.pem cannot be read: No",
    ),
    "a folder": (lambda d: files(d, ca=""), "the etcd certificate file .* cannot be read"),
    "an empty file": (lambda d: files(d, ca="empty"), "the etcd CA file .*empty holds no certificate"),
    "no certificate in it": (lambda d: files(d, ca="client.key"), "the etcd CA file .*client.key holds no certificate"),
    "binary": (lambda d: files(d, ca="binary"), "the etcd CA file .*binary holds no certificate"),
    "certificate without key": (lambda d: files(d, key=""), "an etcd client certificate is configured without its key"),
    "key without certificate": (
        lambda d: files(d, cert=""),
        "an etcd client key is configured without its certificate",
    ),
    "another key": (lambda d: files(d, key="server.key"), "server.key does not belong to .*client.pem"),
    "key and certificate changed round": (
        lambda d: files(d, cert="client.key", key="client.pem"),
        "hold no certificate with its key",
    ),
    "an encrypted key": (lambda d: files(d, key="encrypted.key"), "encrypted.key is encrypted"),
    "inline key alone": (lambda d: inline(d, cert=""), "an etcd client key is configured without its certificate"),
    "inline certificate alone": (lambda d: inline(d, key=""), "certificate is configured without its key"),
    "inline and files": (lambda d: inline(d) | files(d), "both inline and as files"),
    "inline CA beside files": (lambda d: inline(d, "ca", "", "") | files(d, ca=""), "both inline and as files"),
    "inline CA that is none": (lambda d: inline(d) | {"etcd_ca_cert": "nonsense"}, "the inline etcd CA .* holds no"),
    "inline blanks": (lambda d: inline(d) | {"etcd_ca_cert": "  \n"}, "the inline etcd CA .* holds no certificate"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_certificates_are_told_before_anything_is_sent(case: str, certificates: Path) -> None:
    (certificates / "empty").write_bytes(b"")
    (certificates / "binary").write_bytes(bytes(range(256)))
    encrypted = ["openssl", "ec", "-in", "client.key", "-aes128", "-passout", "pass:word", "-out", "encrypted.key"]
    subprocess.run(encrypted, cwd=certificates, check=True, capture_output=True)
    settings, words = BAD[case]
    given = settings(certificates)
    if case == "a folder":
        given["etcd_cert_file"] = str(certificates)
    with pytest.raises(InvalidInput, match=words) as caught:
        EtcdStore(etcd("https://h:1", **given))
    assert caught.value.hint
    secret = (certificates / "client.key").read_text().splitlines()[1]
    assert secret not in str(vars(caught.value)) + str(caught.value)


@pytest.mark.parametrize("own_authority", [True, False])
def test_no_call_reads_the_certificates_of_the_whole_world(
    own_authority: bool, certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes 40 ms, in every call of a plugin; gRPC brings its own where they are needed."""
    asked: list[object] = []
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda self, purpose=None: asked.append(self))
    identity_of(
        etcd("https://h:1", etcd_ca_cert_file=str(certificates / "ca.pem")) if own_authority else etcd("http://h:1")
    )
    assert asked == []


def test_wishes_for_tls_are_checked_and_what_cannot_be_enforced_is_told(caplog: pytest.LogCaptureFixture) -> None:
    identity_of(etcd("https://h:1", tls_min_version="1.2"))
    assert "cannot be enforced" not in caplog.text
    for wish in ({"tls_min_version": "1.3"}, {"tls_cipher_suites": "TLS_AES_128_GCM_SHA256"}):
        caplog.clear()
        identity_of(etcd("https://h:1", **wish))
        assert "cannot be enforced on this side" in caplog.text
    with pytest.raises(InvalidInput, match=r"TLS_MIN_VERSION has the value '1\.1'"):
        EtcdStore(etcd("https://h:1", tls_min_version="1.1"))


def test_dates_are_read_from_a_certificate(certificates: Path) -> None:
    for name in ("client", "client-expired", "server"):
        dates = validity((certificates / f"{name}.pem").read_bytes())
        assert dates is not None
        told = subprocess.run(
            ["openssl", "x509", "-in", f"{name}.pem", "-noout", "-enddate", "-dateopt", "iso_8601"],
            cwd=certificates,
            capture_output=True,
            text=True,
        ).stdout
        assert told.strip() == f"notAfter={dates[1]:%Y-%m-%d %H:%M:%SZ}"
    assert validity(b"nonsense") is None
    assert validity(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----") is None


# --- the packages -------------------------------------------------------------------------------------------


def python(code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], env=environ, capture_output=True, text=True, timeout=60
    )


USE = "from calico_ipam.datastore.etcd.library import load; load().message('TxnRequest')().SerializeToString()"


@pytest.mark.parametrize(
    "before",
    [
        "",
        "import google.protobuf.descriptor; ",
        "import os; os.environ['PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION'] = 'python'; import google.protobuf.message; ",
        "from google.protobuf import timestamp_pb2; ",
    ],
)
def test_it_does_not_matter_who_loaded_protobuf_before(before: str) -> None:
    done = python(before + USE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_loading_leaves_the_environment_alone_and_is_put_off() -> None:
    code = """if True:
        import os, sys
        from calico_ipam.datastore import config, etcd
        assert not {"grpc", "google.protobuf", "etcd3", "dns"} & set(sys.modules)
        before = dict(os.environ)
        store = config.open_datastore("etcd://h:1", environ={})
        assert dict(os.environ) == before
        assert "grpc" in sys.modules and "etcd3" not in sys.modules and "tenacity" not in sys.modules
        """
    done = python(code)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("module", "package"), [("grpc", "grpcio"), ("google.protobuf", "protobuf")])
def test_a_missing_package_is_named(module: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    for loaded in [name for name in sys.modules if name.startswith("google.protobuf.")]:
        monkeypatch.delitem(sys.modules, loaded)
    with pytest.raises(NotConfigured, match=f"needs the package {package}, which is not installed") as caught:
        load()
    assert "pip install 'calico-ipam[etcd]'" in caught.value.hint


def test_a_missing_etcd3_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    load()  # the other packages are found: this may be the first test of its process
    monkeypatch.setattr(PathFinder, "find_spec", lambda *_: None)
    with pytest.raises(NotConfigured, match="needs the package etcd3, which is not installed"):
        load()


def test_another_etcd3_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "etcd3" / "etcdrpc").mkdir(parents=True)
    (tmp_path / "etcd3" / "__init__.py").write_text("raise AssertionError('it is not to be run')\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(NotConfigured, match=r"etcd3 is not one that the etcd datastore knows: no kv\.proto in it"):
        load()
    (tmp_path / "etcd3" / "etcdrpc" / "kv_pb2.py").write_text("raise AssertionError\n")
    with pytest.raises(NotConfigured, match="not one that the etcd datastore knows"):
        load()


# --- what errors mean ---------------------------------------------------------------------------------------


class GrpcError(Exception):
    def __init__(self, code: str, details: str) -> None:
        self._code, self._details = code, details

    def code(self) -> Any:
        return SimpleNamespace(name=self._code)

    def details(self) -> str:
        return self._details


@pytest.mark.parametrize(
    ("code", "text", "meaning"),
    [
        ("UNAVAILABLE", "failed to connect to all addresses; last error: x: Connection refused", Meaning.UNSENT),
        ("UNAVAILABLE", "errors resolving h:1: [no]", Meaning.UNSENT),
        ("UNAVAILABLE", "etcdserver: no leader", Meaning.UNSENT),
        ("UNAVAILABLE", "etcdserver: rpc not supported for learner", Meaning.UNSENT),
        ("RESOURCE_EXHAUSTED", "etcdserver: too many requests", Meaning.UNSENT),
        ("UNAVAILABLE", "Socket closed", Meaning.UNSURE),
        ("UNAVAILABLE", "recvmsg:Connection reset by peer", Meaning.UNSURE),
        ("UNAVAILABLE", "keepalive watchdog timeout", Meaning.UNSURE),
        ("UNAVAILABLE", "etcdserver: request timed out", Meaning.UNSURE),
        ("UNAVAILABLE", "etcdserver: leader changed", Meaning.UNSURE),
        ("UNAVAILABLE", "something new", Meaning.UNSURE),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", Meaning.UNSURE),
        ("CANCELLED", "Channel closed!", Meaning.UNSURE),
        ("UNKNOWN", "Stream removed", Meaning.UNSURE),
        ("INTERNAL", "Received RST_STREAM with error code 2", Meaning.UNSURE),
        ("UNAUTHENTICATED", "etcdserver: invalid auth token", Meaning.TOKEN),
        ("INVALID_ARGUMENT", "etcdserver: revision of auth store is old", Meaning.TOKEN),
        ("OUT_OF_RANGE", "etcdserver: mvcc: required revision has been compacted", Meaning.GONE),
        ("OUT_OF_RANGE", "etcdserver: mvcc: required revision is a future revision", Meaning.GONE),
        ("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded", Meaning.REFUSED),
        ("PERMISSION_DENIED", "etcdserver: permission denied", Meaning.REFUSED),
        ("INVALID_ARGUMENT", "etcdserver: request is too large", Meaning.REFUSED),
        ("UNIMPLEMENTED", "", Meaning.REFUSED),
    ],
)
def test_what_is_known_after_a_failure(code: str, text: str, meaning: Meaning) -> None:
    failure = failure_of(GrpcError(code, text))
    assert failure.meaning is meaning
    assert failure.short


@pytest.mark.parametrize(
    ("code", "text"), [("DEADLINE_EXCEEDED", "Deadline Exceeded"), ("UNKNOWN", "context deadline exceeded")]
)
def test_whoever_notices_first_that_time_is_over_it_is_told_alike(code: str, text: str) -> None:
    failure = failure_of(GrpcError(code, text))
    assert (failure.meaning, failure.short) == (Meaning.UNSURE, "did not answer in time")


@pytest.mark.parametrize(
    ("code", "text", "kind", "words", "hint"),
    [
        ("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded", StoreFull, "is full", "alarm disarm"),
        ("INVALID_ARGUMENT", "etcdserver: request is too large", StoreError, "of this size", "max-request-bytes"),
        ("INVALID_ARGUMENT", "etcdserver: too many operations in txn request", StoreError, "as many", "max-txn-ops"),
        ("PERMISSION_DENIED", "etcdserver: permission denied", Unauthorized, "user 'u' may not write to", "readwrite"),
        ("INVALID_ARGUMENT", "etcdserver: user name is empty", Unauthorized, "wants a user", "ETCD_USERNAME"),
        (
            "INVALID_ARGUMENT",
            "etcdserver: authentication failed, invalid user ID or password",
            Unauthorized,
            "does not accept the password of user 'u'",
            "ETCD_PASSWORD",
        ),
        ("UNIMPLEMENTED", "unknown service etcdserverpb.KV", StoreError, "is no etcd of version 3", "ETCD_ENDPOINTS"),
        ("DATA_LOSS", "etcdserver: corrupt cluster", StoreError, "refused to write: etcdserver: corrupt cluster", ""),
    ],
)
def test_a_refusal_says_what_to_do(code: str, text: str, kind: type[IPAMError], words: str, hint: str) -> None:
    error = refusal_of(failure_of(GrpcError(code, text)), "etcd://h:1", "u", "write to")
    assert type(error) is kind
    assert words in str(error)
    assert text in str(error)
    assert hint in error.hint
