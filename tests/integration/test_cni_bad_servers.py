"""The plugins against an API server that misbehaves: an error object in bounded time, the right code, nothing left."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from calico_cni.context import Context
from calico_cni.dispatch import handle
from calico_cni.protocol import CALICO, CALICO_IPAM, Request
from calico_cni.stopping import Stop
from calico_cni.system import open_cluster, open_store
from calico_ipam.datastore.kube import api
from tests.clock import SOON, seconds_since
from tests.cni_bench import NETNS, CNIBench
from tests.fake_dataplane import Pair
from tests.misbehaving_api import MisbehavingApi, cut, drop, html, saying
from tests.pod_bench import HOST_NAME, NETWORK, X

#: One request's limit where nobody answers, instead of ten seconds. A server that does answer has its ten seconds.
LIMIT = 0.5
#: A verb's bound in these tests: a few requests at their limit, not one at its ten seconds.
BOUND = SOON


@pytest.fixture(autouse=True)
def few_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "LATER_TRIES", 2)


@pytest.fixture
def bench(tmp_path: Path) -> CNIBench:
    """A host without stores of its own: what the configuration names is opened."""
    made = CNIBench(tmp_path)
    made.dataplane.pairs[HOST_NAME] = Pair(HOST_NAME, NETNS, "eth0")
    return made


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], MisbehavingApi]]:
    servers: list[MisbehavingApi] = []

    def make(behaviour: Any) -> MisbehavingApi:
        server = MisbehavingApi(drop)
        if isinstance(behaviour, str):  # those that never answer
            monkeypatch.setattr(api, "REQUEST_SECONDS", LIMIT)
            behaviour = getattr(server, behaviour)
        server.behaviour = behaviour
        servers.append(server)
        return server

    yield make
    for server in servers:
        server.close()


def kubeconfig(folder: Path, server: str, user: Mapping[str, Any] | None = None) -> str:
    file = folder / "kubeconfig"
    file.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "t", "cluster": {"server": server}}],
                "users": [{"name": "t", "user": dict(user or {"token": "SECRET"})}],
                "contexts": [{"name": "t", "context": {"cluster": "t", "user": "t"}}],
                "current-context": "t",
            }
        )
    )
    return str(file)


def call(bench: CNIBench, verb: str, path: str, program: str = CALICO) -> tuple[dict[str, Any], float]:
    """Return the error object of a call and the seconds it took."""
    stop = Stop()
    context: Context = replace(
        bench.context(),
        open_store=lambda settings, environ: open_store(stop, settings, environ),  # a partial() would hide arguments
        open_cluster=lambda settings, environ, store: open_cluster(stop, settings, environ, store),
    )
    netconf = bench.netconf(
        name=NETWORK,
        datastore_type="kubernetes",
        nodename="worker-1",
        policy={"type": "k8s"},
        kubernetes={"kubeconfig": path},
        calico_api_group="crd.projectcalico.org/v1",
        cniVersion="1.1.0" if verb == "STATUS" else "1.0.0",
    )
    environ = {
        "CNI_COMMAND": verb,
        "CNI_CONTAINERID": X,
        "CNI_NETNS": NETNS,
        "CNI_IFNAME": "eth0",
        "CNI_PATH": "/nowhere",
        "CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAMESPACE=test;K8S_POD_NAME=nginx",
    }
    began = time.monotonic()
    response = handle(Request(program, environ, json.dumps(netconf).encode()), context)
    took = seconds_since(began)
    assert response.exit_code == 1 and "SECRET" not in response.stdout + bench.log()
    found: dict[str, Any] = json.loads(response.stdout)
    assert "Traceback" not in response.stdout and "object at 0x" not in response.stdout
    return found, took


SERVERS: list[tuple[str, Any, int, str]] = [
    ("hangs", "hang", 11, "does not answer"),
    ("sends a byte now and then", "drip", 11, "does not answer"),
    ("closes early", cut, 11, "does not answer"),
    ("closes at once", drop, 11, "does not answer"),
    ("401", saying(401, "Unauthorized", "Unauthorized"), 999, "connection is unauthorized: Unauthorized"),
    ("403", saying(403, "Forbidden", 'cannot get resource "clusterinformations"'), 999, "lacks the right to get"),
    ("404", saying(404, "NotFound", 'clusterinformations "default" not found'), 999, '"default" not found'),
    ("410", saying(410, "Gone", "gone"), 999, "gone"),
    ("429", saying(429, "TooManyRequests", "slow down", "Retry-After: 0\r\n"), 11, "slow down"),
    ("500", saying(500, "InternalError", "broken"), 11, "broken"),
    ("503 for long", saying(503, "ServiceUnavailable", "soon", "Retry-After: 900\r\n"), 11, "soon"),
    ("a web page", html, 999, "is not a Kubernetes object"),
]


@pytest.mark.parametrize(("behaviour", "code", "text"), [pytest.param(b, c, t, id=i) for i, b, c, t in SERVERS])
@pytest.mark.parametrize("verb", ["ADD", "DEL", "STATUS"])
def test_each_verb_ends_in_time_with_its_code(
    bench: CNIBench, serve: Callable[[Any], MisbehavingApi], verb: str, behaviour: Any, code: int, text: str
) -> None:
    path = kubeconfig(bench.folder, serve(behaviour).url)
    found, took = call(bench, verb, path)
    told = f"{found['msg']} {found.get('details', '')}"
    assert text in told, told
    assert found["code"] == (50 if verb == "STATUS" else code)
    assert took < BOUND
    assert (HOST_NAME in bench.dataplane.pairs) == (verb != "DEL"), "DEL removes the sandbox's own link all the same"


@pytest.mark.parametrize("verb", ["ADD", "DEL"])
def test_our_ipam_alone(bench: CNIBench, serve: Callable[[Any], MisbehavingApi], verb: str) -> None:
    found, took = call(bench, verb, kubeconfig(bench.folder, serve("hang").url), CALICO_IPAM)
    assert found["code"] == 11 and took < BOUND


def test_credentials_are_named_by_their_file(bench: CNIBench, serve: Callable[[Any], MisbehavingApi]) -> None:
    """Public report P23: which verb, which resource, which file."""
    path = kubeconfig(bench.folder, serve(saying(401, "Unauthorized", "Unauthorized")).url)
    details = call(bench, "ADD", path)[0]["details"]
    assert path in details and "get clusterinformations" in details


def test_a_token_that_was_renewed_meanwhile_is_taken(bench: CNIBench, serve: Callable[[Any], MisbehavingApi]) -> None:
    """Public report P23: 401 for the first token, the file is replaced, the same call goes on with the second."""
    told = saying(401, "Unauthorized", "Unauthorized")

    def renew(connection: Any, line: str) -> None:
        kubeconfig(bench.folder, server.url, {"token": "T2"})
        server.behaviour = saying(404, "NotFound", "no such cluster information")
        told(connection, line)

    server = serve(renew)
    found, _ = call(bench, "ADD", kubeconfig(bench.folder, server.url, {"token": "T1"}))
    assert "does not exist" in found["msg"] and len(server.requests) == 2


def write(text: str) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        (folder / "kubeconfig").write_text(text)
        return str(folder / "kubeconfig")

    return make


def with_exec(folder: Path) -> str:
    command = {"apiVersion": "client.authentication.k8s.io/v1", "command": "/nowhere/login", "interactiveMode": "Never"}
    return kubeconfig(folder, "https://192.0.2.1:6443", {"exec": command})


FILES: list[tuple[str, Callable[[Path], str], int, str]] = [
    ("absent", lambda folder: str(folder / "absent"), 999, "does not exist"),
    ("no yaml", write("{"), 999, "cannot be used"),
    ("no object", write("7"), 999, "cannot be used"),
    ("no context", write("apiVersion: v1\nkind: Config\n"), 999, "cannot be used"),
    ("a folder", lambda folder: str(folder), 999, "cannot be used"),
    ("a login program that is not there", with_exec, 999, "gives no credentials"),
    ("an IPv6 host", lambda folder: kubeconfig(folder, "https://[::1]:1"), 11, "https://[::1]:1 does not answer"),
]


@pytest.mark.parametrize(("make", "code", "text"), [pytest.param(m, c, t, id=i) for i, m, c, t in FILES])
@pytest.mark.parametrize("verb", ["ADD", "DEL"])
def test_kubeconfigs(bench: CNIBench, verb: str, make: Callable[[Path], str], code: int, text: str) -> None:
    path = make(bench.folder)
    found, took = call(bench, verb, path)
    assert text in found["msg"] and found["code"] == code and took < BOUND
