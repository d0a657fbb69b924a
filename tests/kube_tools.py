"""A private Kubernetes API server for tests: kube-apiserver on an etcd of its own, with Calico's definitions.

::

    def test_something(kube: KubeServer) -> None:      # tests/conftest.py; one server for the whole session
        kube.clear()                                   # no custom resources, no nodes
        store = KubernetesStore(kube.settings())

No controllers run (ruling 35): namespaces get their ServiceAccount from :meth:`KubeServer.namespace`, pods are bound by
``nodeName`` and deleted without grace. A server that is not there skips with the way to get it, and fails in CI.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import urllib3
import yaml

from calico_ipam.datastore.settings import KUBERNETES, Settings
from tests.clock import LONG
from tests.ports import free_ports
from tests.shared import SHARED

VERSION = "v1.34.4"
READY = 100.0  # seconds the server may take to start on a machine that is busy with tests; it takes about five
MISSING = "kube-apiserver is not there: scripts/build-kube-apiserver builds it once (or set KUBEBUILDER_ASSETS)"

ADMIN = "admin-token"
V1, V3 = "crd.projectcalico.org/v1", "projectcalico.org/v3"
#: folder of definitions below shared/crds -> the API group they make
GROUPS = {"v1": V1, "v3": V3}


def assets() -> Path:
    """Return the folder with kube-apiserver and etcd; skips where there is none."""
    named = os.environ.get("KUBEBUILDER_ASSETS")
    cache = os.environ.get("CALICO_IPAM_CACHE") or (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "calico-ipam"
    )
    folder = Path(named) if named else Path(cache) / f"kube-{VERSION}"
    if not (folder / "kube-apiserver").exists() or not (folder / "etcd").exists():
        pytest.skip(MISSING)
    return folder


def wait_until(true: Callable[[], Any], seconds: float = LONG, what: str = "the condition") -> Any:
    """Return the first true answer; fail when none comes."""
    until = time.monotonic() + seconds
    while not (answer := true()):
        assert time.monotonic() < until, f"waited {seconds} s in vain for {what}"
        time.sleep(0.01)
    return answer


@dataclass(frozen=True)
class Audited:
    """One request as the API server's audit log has it."""

    verb: str
    uri: str
    user: str
    agent: str
    code: int
    authorised: bool

    def __str__(self) -> str:
        return f"{self.verb} {self.uri} {self.code}"


class KubeServer:
    """One kube-apiserver with RBAC, token and certificate authentication, audit log and Calico's definitions."""

    def __init__(self, *groups: str, definitions: Path = SHARED / "crds") -> None:
        self.assets = assets()
        self.groups = groups or ("v1",)
        self.definitions = definitions
        self.folder = Path(tempfile.mkdtemp(prefix="kube-test-"))
        self.port, self._etcd_port, self._peer_port = free_ports(3)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._http = urllib3.PoolManager(ca_certs=str(self.folder / "ca.pem"), retries=False)
        self._seen = 0
        self._marked = ""

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def api_version(self) -> str:
        """The first of the groups whose definitions are installed."""
        return GROUPS[self.groups[0]]

    # --- life ----------------------------------------------------------------------------------------------

    def __enter__(self) -> KubeServer:
        try:
            self._write_files()
            self.start()
            for name in ("default", "kube-system", "kube-public", "kube-node-lease"):  # made a moment after it is ready
                wait_until(partial(self._served, f"/api/v1/namespaces/{name}"), READY, f"the namespace {name}")
            for group in self.groups:
                self.install(self.definitions / group)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        """Start etcd and the API server on the data that is there; returns when the server is ready."""
        client, peer = (f"http://127.0.0.1:{port}" for port in (self._etcd_port, self._peer_port))
        self._run(
            *("etcd", "--name", "test", "--data-dir", str(self.folder / "data"), "--unsafe-no-fsync"),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"test={peer}"),
        )
        self._run("kube-apiserver", *self._arguments(client))
        wait_until(self._ready, READY, "kube-apiserver to start")

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait()
        self._processes.clear()
        self._http.clear()

    def _run(self, program: str, *arguments: str) -> None:
        with (self.folder / f"{program}.log").open("ab") as log:
            self._processes.append(
                subprocess.Popen([str(self.assets / program), *arguments], stdout=log, stderr=log, cwd=self.folder)
            )

    def _ready(self) -> bool:
        for process in self._processes:
            assert process.poll() is None, self._log()[-4000:]
        try:
            return self.ask("GET", "/readyz")[0] == 200
        except urllib3.exceptions.HTTPError:
            return False

    def _log(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(self.folder.glob("*.log")))

    def _arguments(self, etcd: str) -> Sequence[str]:
        folder = self.folder
        return (
            f"--etcd-servers={etcd}",
            f"--secure-port={self.port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--tls-cert-file={folder}/server.pem",
            f"--tls-private-key-file={folder}/server.key",
            f"--client-ca-file={folder}/ca.pem",
            f"--token-auth-file={folder}/tokens.csv",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={folder}/server.pem",
            f"--service-account-signing-key-file={folder}/server.key",
            "--service-cluster-ip-range=10.0.0.0/24",
            f"--audit-policy-file={folder}/audit.yaml",
            f"--audit-log-path={folder}/audit",
            "--audit-log-maxsize=100000",  # megabytes; it is read from where it was marked, and not in pieces
            "--endpoint-reconciler-type=none",
            "--shutdown-delay-duration=0s",
            "--v=0",
        )

    def _write_files(self) -> None:
        make_certificates(self.folder)
        (self.folder / "tokens.csv").write_text(f"{ADMIN},admin,admin,system:masters\nnobody-token,nobody,nobody\n")
        # Only people's requests: the server's own (leases, quota) would drown them.
        (self.folder / "audit.yaml").write_text(
            "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived, ResponseStarted]\n"
            "rules:\n- {level: None, users: ['system:apiserver']}\n- {level: Metadata}\n"
        )
        (self.folder / "kubeconfig").write_text(self.kubeconfig())

    # --- how to reach it -----------------------------------------------------------------------------------

    def kubeconfig(self, token: str = ADMIN, *, server: str = "", **user: str) -> str:
        """Return the text of a kubeconfig. ``user``: other fields of the user instead of a token."""
        return yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [
                    {
                        "name": "test",
                        "cluster": {"server": server or self.url, "certificate-authority": str(self.folder / "ca.pem")},
                    }
                ],
                "users": [{"name": "test", "user": dict(user) if user else {"token": token}}],
                "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
                "current-context": "test",
            }
        )

    def settings(self, **more: Any) -> Settings:
        """Return settings of an administrator, for the group that is installed."""
        given = {"kubeconfig": str(self.folder / "kubeconfig"), "calico_api_group": self.api_version, **more}
        return Settings(KUBERNETES, "the test", **given)

    def kubeconfig_of(self, account: str, namespace: str = "kube-system") -> Path:
        """Return a kubeconfig of a service account, with a token that the server signed."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        self.put(f"{path}/{account}", {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account}})
        token = self.create(f"{path}/{account}/token", {"spec": {"expirationSeconds": 7200}})["status"]["token"]
        file = self.folder / f"kubeconfig-{account}"
        file.write_text(self.kubeconfig(token))
        file.chmod(0o600)
        return file

    # --- behind the back of the library --------------------------------------------------------------------

    def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        content_type: str = "application/json",
        token: str = ADMIN,
    ) -> tuple[int, dict[str, Any]]:
        """Do a request; returns status and the object answered."""
        answer = self._http.request(
            method,
            self.url + path,
            body=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {token}", "Content-Type": content_type, "User-Agent": "test"},
            timeout=30.0,
        )
        try:
            return answer.status, cast(dict[str, Any], json.loads(answer.data))
        except ValueError:
            return answer.status, {"text": answer.data.decode(errors="replace")}

    def done(self, method: str, path: str, body: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        """Do a request that must succeed."""
        status, answer = self.ask(method, path, body, **more)
        assert status < 300, f"{method} {path}: {status} {answer.get('message', answer)}"
        return answer

    def get(self, path: str) -> dict[str, Any]:
        return self.done("GET", path)

    def create(self, collection: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self.done("POST", collection, body)

    def put(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object or replace what is there."""
        collection, _, name = path.rpartition("/")
        body = {**body, "metadata": {**body.get("metadata", {}), "name": name}}
        status, answer = self.ask("POST", collection, body)
        if status == 409:
            body["metadata"] |= {"resourceVersion": self.get(path)["metadata"]["resourceVersion"]}
            return self.done("PUT", path, body)
        assert status < 300, f"POST {collection}: {status} {answer.get('message')}"
        return answer

    def delete(self, path: str) -> None:
        status, answer = self.ask("DELETE", path, {"gracePeriodSeconds": 0})
        assert status < 300 or status == 404, answer.get("message")

    def collection(self, plural: str, group: str = "") -> str:
        """Return the path of a collection of Calico's: ``kube.collection("ipamblocks")``."""
        return f"/apis/{group or self.api_version}/{plural}"

    def plurals(self) -> list[str]:
        """The names of Calico's collections of the first group."""
        listed = self.get(f"/apis/{self.api_version}")["resources"]
        return sorted(item["name"] for item in listed if "/" not in item["name"])

    def clear(self) -> None:
        """Remove all custom resources and nodes."""
        for collection in [*(self.collection(plural) for plural in self.plurals()), "/api/v1/nodes"]:
            self.done("DELETE", collection, {"gracePeriodSeconds": 0})
            for item in self.get(collection)["items"]:  # finalizers keep it
                item["metadata"]["finalizers"] = []
                self.done("PUT", f"{collection}/{item['metadata']['name']}", item)

    def install(self, folder: Path) -> None:
        """Install the definitions of a folder and wait until their collections answer."""
        names = []
        for file in sorted(folder.glob("*.yaml")):
            for document in yaml.load_all(file.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
                made = self.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", document)
                spec = made["spec"]
                names += [f"/apis/{spec['group']}/{v['name']}/{spec['names']['plural']}" for v in spec["versions"]]
        assert names, f"{folder} holds no definitions"
        for path in names:
            wait_until(partial(self._served, path), READY, f"{path} to be served")

    def _served(self, path: str) -> bool:
        return self.ask("GET", path)[0] == 200

    def apply(self, file: Path) -> None:
        """Create the objects of a manifest of roles and accounts, or replace them; returns when the rights hold."""
        self.apply_documents([document for document in yaml.safe_load_all(file.read_text()) if document])

    def apply_documents(self, documents: Sequence[Mapping[str, Any]]) -> None:
        for document in documents:
            self.put(_path_of(document), document)
        roles = {(each["kind"], each["metadata"]["name"]): each["rules"] for each in documents if "rules" in each}
        for binding in documents:
            if "roleRef" in binding:
                for rule in roles[binding["roleRef"]["kind"], binding["roleRef"]["name"]]:
                    for subject in binding["subjects"]:
                        review = _review(subject, rule, binding["metadata"].get("namespace", ""))
                        wait_until(partial(self._allows, review), READY, f"{review} to be allowed")

    def _allows(self, review: Mapping[str, Any]) -> bool:
        """Tell whether a right is in force. The server learns of roles and bindings a moment after it stored them."""
        answer = self.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
        return bool(answer["status"]["allowed"])

    # --- nodes, namespaces, pods ---------------------------------------------------------------------------

    def node(self, name: str, **labels: str) -> dict[str, Any]:
        metadata = {"name": name, "labels": {key.replace("_", "-"): value for key, value in labels.items()}}
        return self.put(f"/api/v1/nodes/{name}", {"apiVersion": "v1", "kind": "Node", "metadata": metadata})

    def namespace(self, annotations: Mapping[str, str] | None = None, **labels: str) -> str:
        """Make a namespace of a fresh name, with the ServiceAccount that a controller would make."""
        name = f"ns-{uuid.uuid4().hex[:10]}"
        metadata = {"name": name, "annotations": dict(annotations or {}), "labels": labels}
        self.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        self.create(
            f"/api/v1/namespaces/{name}/serviceaccounts",
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}},
        )
        return name

    def pod(
        self, namespace: str, name: str, node: str = "", annotations: Mapping[str, str] | None = None, **spec: Any
    ) -> dict[str, Any]:
        """Make a pod, bound to ``node`` if one is given. ``spec``: more of its spec; ``labels`` go to its metadata."""
        labels = spec.pop("labels", {})
        containers = [{"name": "main", "image": "none"}]
        bound = {"nodeName": node} if node else {}
        return self.create(
            f"/api/v1/namespaces/{namespace}/pods",
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "annotations": dict(annotations or {}), "labels": labels},
                "spec": {"containers": containers, "automountServiceAccountToken": False, **bound, **spec},
            },
        )

    def delete_pod(self, namespace: str, name: str) -> None:
        self.delete(f"/api/v1/namespaces/{namespace}/pods/{name}")

    # --- the audit log -------------------------------------------------------------------------------------

    def mark(self) -> None:
        """Forget the requests so far, those that are not over yet included; :meth:`requests` tells what follows."""
        self._seen = (self.folder / "audit").stat().st_size
        self._marked = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"

    def requests(self, agent: str = "calico-ipam") -> list[Audited]:
        """Return the requests since :meth:`mark` of clients whose user agent begins with ``agent``."""
        with (self.folder / "audit").open("rb") as log:
            log.seek(max(0, self._seen - 1))
            text = log.read()
        text = text[: text.rfind(b"\n") + 1]  # somebody may be writing the next line
        if self._seen:
            text = text.partition(b"\n")[2]  # and may have been writing one at the mark
        events = [json.loads(line) for line in text.splitlines()]
        found = [_audited(event) for event in events if event["requestReceivedTimestamp"] >= self._marked]
        return [request for request in found if request.agent.startswith(agent)]


def _audited(event: Mapping[str, Any]) -> Audited:
    decision = event.get("annotations", {}).get("authorization.k8s.io/decision", "")
    return Audited(
        event["verb"],
        event["requestURI"],
        event["user"].get("username", ""),
        event.get("userAgent", ""),
        event.get("responseStatus", {}).get("code", 0),
        decision == "allow",
    )


def _review(subject: Mapping[str, Any], rule: Mapping[str, Any], namespace: str) -> dict[str, Any]:
    """Return the question whether an account has the last right of a rule."""
    resource, _, subresource = rule["resources"][-1].partition("/")
    attributes = {
        "verb": rule["verbs"][-1],
        "group": rule["apiGroups"][-1],
        "resource": resource,
        "subresource": subresource,
        "namespace": namespace,
        "name": (rule.get("resourceNames") or [""])[-1],
    }
    user = f"system:serviceaccount:{subject['namespace']}:{subject['name']}"
    return {"kind": "SubjectAccessReview", "spec": {"user": user, "resourceAttributes": attributes}}


def _path_of(document: Mapping[str, Any]) -> str:
    """Return where an object of a manifest goes."""
    kind, metadata = document["kind"], document["metadata"]
    plural = {"ServiceAccount": "serviceaccounts"}.get(kind, f"{kind.lower()}s")
    version = document["apiVersion"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    inside = f"/namespaces/{metadata['namespace']}" if metadata.get("namespace") else ""
    return f"{root}{inside}/{plural}/{metadata['name']}"


@contextlib.contextmanager
def running(*groups: str) -> Iterator[KubeServer]:
    """Yield a server of one's own; most tests share the session's."""
    with KubeServer(*groups) as server:
        yield server


# --- certificates -------------------------------------------------------------------------------------------

_NEW = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"


def make_certificates(folder: Path) -> None:
    """Make ca.pem, a certificate of the server (also its key for tokens) and one of an administrator."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: apt-get install openssl")
    _openssl(folder, f"req -x509 {_NEW} -keyout ca.key -out ca.pem -subj /CN=test-ca -days 30")
    names = "subjectAltName=IP:127.0.0.1,IP:::1,DNS:localhost"
    for name, subject, extension in (
        ("server", "/CN=kube-apiserver", names),
        ("admin", "/O=system:masters/CN=admin-by-certificate", "extendedKeyUsage=clientAuth"),
    ):
        _openssl(folder, f"req {_NEW} -keyout {name}.key -out {name}.csr -subj {subject}")
        (folder / "extension").write_text(f"{extension}\n")
        _openssl(
            folder,
            f"x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 10 -out {name}.pem "
            "-extfile extension",
        )


def _openssl(folder: Path, arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments.split()], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
