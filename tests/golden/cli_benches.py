"""Stores that recorded operator commands are replayed on."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from calico_ipam.datastore.documents import DocumentStore
from tests.golden.library_backends import DocumentBench

if TYPE_CHECKING:
    from tests.etcd_tools import Etcd

_TYPES = ("DATASTORE_TYPE", "CALICO_DATASTORE_TYPE")


class ServiceApi:
    """An API server that knows nothing but Services: what the check asks of Kubernetes when the data is in etcd."""

    def __init__(self, folder: Path) -> None:
        from tests.kube_tools import make_certificates

        make_certificates(folder)
        self.services: list[Mapping[str, Any]] = []
        self.folder = folder
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                known = self.path.partition("?")[0] == "/api/v1/services"
                answer = {"kind": "ServiceList", "apiVersion": "v1", "metadata": {}, "items": api.services}
                body = json.dumps(answer if known else {"kind": "Status", "code": 404, "message": "unknown"}).encode()
                self.send_response(200 if known else 404)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.pem", folder / "server.key")
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.address = f"127.0.0.1:{self._server.server_port}"
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [
                        {
                            "name": "c",
                            "cluster": {
                                "server": f"https://{self.address}",
                                "certificate-authority": str(folder / "ca.pem"),
                            },
                        }
                    ],
                    "users": [{"name": "u", "user": {"token": "t"}}],
                    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                    "current-context": "c",
                }
            )
        )

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


class TextBench:
    """A store of texts under etcd's keys, with Services in an API server beside it."""

    lacks: frozenset[str] = frozenset()

    def __init__(self, name: str, store: DocumentStore, environment: Mapping[str, str], api: ServiceApi) -> None:
        self.name = name
        self._documents = DocumentBench(name, store)
        self._environment = environment
        self._api = api
        api.services = []

    def write(self, entry: Mapping[str, Any]) -> None:
        if "k8s" in entry:
            assert entry["k8s"]["kind"] == "Service", entry["k8s"]["kind"]
            self._api.services.append(entry["k8s"])
        elif entry["value"] is None:
            self._documents.delete(entry["key"])
        else:
            self._documents.write(entry)

    def state(self) -> dict[str, Any]:
        return dict(self._documents.state())

    def known(self, token: str) -> str | None:
        kind, _, name = token.partition(":")
        if kind == "rev":
            return self._documents._revision(name)
        return {
            "etcd": self._environment.get("ETCD", "127.0.0.1:2"),  # at port 1 is the etcd that does not answer
            "k8s": self._api.address,
            "kubeconfig": str(self._api.kubeconfig),
            "token": "t",
        }.get(kind)

    def environment(self, recorded: Mapping[str, str]) -> dict[str, str]:
        """Return the recorded environment, with this store where etcd stands in it."""
        if "ETCD" in self._environment:
            return dict(recorded)
        found = dict(recorded)
        if found.get("ETCD_ENDPOINTS", "").endswith("127.0.0.1:1"):
            return found  # nobody listens there, and that is what the case is about
        for name in _TYPES:
            if found.get(name) == "etcdv3":
                found[name] = "sqlite"
        if recorded.get("ETCD_ENDPOINTS") and not any(name in recorded for name in _TYPES):
            found["DATASTORE_TYPE"] = "sqlite"
        return found | dict(self._environment)

    def restore(self, state: Mapping[str, Any], changed: Mapping[str, Any]) -> None:
        now = self.state()
        wanted = {key: value for key, value in {**state, **changed}.items() if value is not None}
        for key in now.keys() - wanted.keys():
            self._documents.delete(key)
        for key, value in wanted.items():
            if key not in now or json.dumps(now[key]) != json.dumps(value):
                self._documents.write({"key": key, "value": value})

    def close(self) -> None:
        self._documents.close()


@contextmanager
def etcd_bench(etcd: Etcd, api: ServiceApi) -> Iterator[TextBench]:
    """Give a bench on a real etcd, which is empty at first."""
    from calico_ipam.datastore.config import open_datastore

    etcd.clear()
    store = open_datastore(etcd.settings())
    assert isinstance(store, DocumentStore)
    bench = TextBench("etcd", store, {"ETCD": etcd.address}, api)
    try:
        yield bench
    finally:
        bench.close()


@contextmanager
def sqlite_bench(folder: Path, api: ServiceApi) -> Iterator[TextBench]:
    from calico_ipam.datastore.sqlite import SQLiteStore

    path = folder / "store" / "ipam.db"
    bench = TextBench("sqlite", SQLiteStore(path), {"SQLITE_PATH": str(path)}, api)
    try:
        yield bench
    finally:
        bench.close()
