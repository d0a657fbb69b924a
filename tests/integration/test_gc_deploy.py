"""What we ship to run the collector and the sweep: rights that suffice and no more, a read-only root, fair requests."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import urllib3
import yaml

from calico_ipam.datastore.kube.store import KubernetesStore
from calico_ipam.engine.client import IPAM
from tests.clock import LONG
from tests.kube_tools import Audited, KubeServer, wait_until
from tests.plugin_account import remove_kubevirt
from tests.ports import free_port
from tests.shared import REPOSITORY

DEPLOY = REPOSITORY / "gc" / "deploy"
Right = tuple[str, str, str]  #: (API group, resource, verb)
CALICO = ("crd.projectcalico.org", "projectcalico.org")

#: rights that one run does not use -> what they are for
SELDOM: Mapping[Right, str] = {
    ("", "events", "patch"): "the same thing happens again within minutes",
    ("calico", "ipamhandles", "create"): "a handle that is missing is made",
    ("calico", "ipamconfigurations", "get"): "the definitions of projectcalico.org/v3 have this name for ipamconfigs",
    **{
        ("calico", "kubecontrollersconfigurations", verb): "--write-kcc-status, in the place of upstream's controller"
        for verb in ("get", "create", "update")
    },
    ("calico", "kubecontrollersconfigurations/status", "update"): "the same",
    **{
        ("kubevirt.io", plural, verb): "clusters with KubeVirt"
        for plural in ("virtualmachines", "virtualmachineinstances")
        for verb in ("list", "watch")
    },
}


def documents(name: str) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all((DEPLOY / name).read_text()) if document]


def granted(name: str) -> set[Right]:
    """Return the rights of a manifest; both of Calico's groups count as one."""
    return {
        ("calico" if group in CALICO else group, resource, verb)
        for document in documents(name)
        for rule in document.get("rules", ())
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def used(request: Audited) -> Right:
    """Return the right that a request needs."""
    parts = [part for part in urlsplit(request.uri).path.split("/") if part]
    group = parts[1] if parts[0] == "apis" else ""
    rest = parts[3:] if parts[0] == "apis" else parts[2:]
    if rest and rest[0] == "namespaces" and len(rest) > 2:
        rest = rest[2:]
    resource = rest[0] + (f"/{rest[2]}" if len(rest) > 2 else "")
    verb = "watch" if parse_qs(urlsplit(request.uri).query).get("watch") else request.verb
    return ("calico" if group in CALICO else group), resource, verb


def of_account(kube: KubeServer, account: str) -> list[Audited]:
    found = [r for r in kube.requests() if r.user == f"system:serviceaccount:kube-system:{account}"]
    return [r for r in found if len([part for part in urlsplit(r.uri).path.split("/") if part]) > 2]  # not discovery


def unused(kube: KubeServer) -> set[Right]:
    return granted("rbac-gc.yaml") - {used(request) for request in of_account(kube, "calico-gc")}


@contextmanager
def running(kube: KubeServer, account: str, *arguments: str, **environ: str) -> Iterator[subprocess.Popen[str]]:
    """Run calico-gc under an account, on a root file system that cannot be written."""
    if os.geteuid() != 0:
        pytest.skip("needs root: the file system is made read-only for the program")
    program = Path(sys.executable).with_name("calico-gc")
    frozen = 'for at in / /tmp; do mount --bind $at $at; mount -o remount,bind,ro $at; done; cd /; exec "$@"'
    log = kube.folder / f"{account}.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            ["unshare", "--mount", "--propagation=private", "sh", "-c", frozen, "sh", str(program), *arguments],
            env={
                "PATH": os.environ["PATH"],
                "KUBECONFIG": str(kube.kubeconfig_of(account)),
                "DATASTORE_TYPE": "kubernetes",
                "CALICO_API_GROUP": kube.api_version,
                "PYTHONDONTWRITEBYTECODE": "1",
                **environ,
            },
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
        )
        try:
            yield process
        except BaseException:
            sys.stderr.write(log.read_text()[-6000:])
            raise
        finally:
            process.terminate()
            try:
                process.wait(LONG)
            finally:
                process.kill()
                process.communicate()


@pytest.fixture
def cluster(kube: KubeServer) -> KubeServer:
    kube.clear()
    remove_kubevirt(kube)
    kube.node("node-1")
    pool = {"cidr": "10.0.0.0/24", "blockSize": 29}
    body = {"apiVersion": kube.api_version, "kind": "IPPool", "metadata": {"name": "pool-1"}, "spec": pool}
    kube.create(kube.collection("ippools"), body)
    for file in ("rbac-gc.yaml", "rbac-node-sweep.yaml"):
        kube.apply(DEPLOY / file)
    kube.delete("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/calico-ipam-gc")
    return kube


@pytest.mark.timeout(400)
def test_the_collectors_rights_suffice_and_are_needed(cluster: KubeServer) -> None:
    """Everything it does, under its own role: no refusal, and every right is used or has its reason."""
    namespace = cluster.namespace()
    with KubernetesStore(cluster.settings()) as store:
        ipam = IPAM(store, hostname="node-1")
        dead = {"node": "node-1", "namespace": namespace, "pod": "dead"}
        ipam.auto_assign(use="Workload", num4=9, handle="net.dead", attrs=dead)  # two blocks: one becomes empty
        cluster.node("node-gone")
        gone = IPAM(store, hostname="node-gone")
        tunnel = {"node": "node-gone", "type": "vxlanTunnelAddress"}
        gone.auto_assign(use="Tunnel", num4=1, handle="vxlan-tunnel-addr-node-gone", attrs=tunnel)
        cluster.delete("/api/v1/nodes/node-gone")
        port = free_port()
        cluster.mark()
        flags = ("--leak-grace=2s", "--handle-grace=5m", f"--listen=127.0.0.1:{port}", "--lease-namespace=kube-system")
        with running(cluster, "calico-gc", *flags) as process:
            wait_until(lambda: len(cluster.get(cluster.collection("ipamblocks"))["items"]) == 1, 120.0, "the release")
            assert process.poll() is None
            http = urllib3.PoolManager()

            def ready() -> bool:
                with suppress(urllib3.exceptions.HTTPError):
                    return http.request("GET", f"http://127.0.0.1:{port}/readyz").status == 200
                return False

            wait_until(ready, LONG, "readiness")
            metrics = http.request("GET", f"http://127.0.0.1:{port}/metrics").data.decode()
            assert "ipam_gc_leader 1.0" in metrics
            assert "<h1>Pools</h1>" in http.request("GET", f"http://127.0.0.1:{port}/").data.decode()
            resident = _resident(process.pid)
            event = ("", "events", "create")
            wait_until(
                lambda: event in {used(request) for request in of_account(cluster, "calico-gc")}, LONG, "an event"
            )
        assert process.returncode == 0
    # Watches are in the log when the server has noticed that nobody follows any more.
    with suppress(AssertionError):
        wait_until(lambda: unused(cluster) == set(SELDOM), LONG)
    requests = of_account(cluster, "calico-gc")
    refused = sorted({str(r) for r in requests if r.code == 403 or not r.authorised})
    asked = {used(request) for request in requests}
    assert {right for right in asked if right[0] != "kubevirt.io"} - granted("rbac-gc.yaml") == set()
    assert [line for line in refused if "kubevirt" not in line] == []
    assert unused(cluster) == set(SELDOM), "rights that nothing needs, or that this run needs after all"
    [container] = documents("gc.yaml")[0]["spec"]["template"]["spec"]["containers"]
    assert resident < _bytes(container["resources"]["requests"]["memory"])


@pytest.mark.timeout(240)
def test_the_sweeps_rights_suffice_and_are_needed(cluster: KubeServer) -> None:
    status = {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"}]}
    path = "/api/v1/nodes/node-1/status"
    cluster.done("PATCH", path, {"status": status}, content_type="application/merge-patch+json")
    cluster.mark()
    root = cluster.folder / "node"
    shutil.rmtree(root, ignore_errors=True)
    for folder in ("var/run/netns", "var/lib/cni/results", "var/lib/kubelet/pods/gone", "var/run/calico"):
        (root / folder).mkdir(parents=True)
    done = subprocess.run(
        [
            *(str(Path(sys.executable).with_name("calico-gc")), "node-sweep", "--json", "--node=node-1"),
            *(f"--host-root={root}", f"--state={root}/var/run/calico/sweep.json"),
        ],
        env={
            "PATH": os.environ["PATH"],
            "KUBECONFIG": str(cluster.kubeconfig_of("calico-node-sweep")),
            "DATASTORE_TYPE": "kubernetes",
            "CALICO_API_GROUP": cluster.api_version,
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["skipped"] == ""
    assert [line["name"] for line in report["residue"] if line["kind"] == "volume"] == ["gone"]
    requests = of_account(cluster, "calico-node-sweep")
    assert [str(r) for r in requests if r.code == 403] == []
    assert {used(request) for request in requests} == granted("rbac-node-sweep.yaml")


def _resident(pid: int) -> int:
    """Return the resident memory of a process in bytes."""
    [kilobytes] = re.findall(r"^VmRSS:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.M)
    return int(kilobytes) * 1024


def _bytes(text: str) -> int:
    [(number, unit)] = re.findall(r"^(\d+)(Mi|Gi)$", text)
    return int(number) * {"Mi": 1 << 20, "Gi": 1 << 30}[unit]


@pytest.mark.parametrize(("file", "plural"), [("gc.yaml", "deployments"), ("node-sweep.yaml", "daemonsets")])
def test_the_api_server_takes_the_manifests(cluster: KubeServer, file: str, plural: str) -> None:
    for document in documents(file):
        path = f"/apis/apps/v1/namespaces/kube-system/{plural}?dryRun=All&fieldValidation=Strict"
        cluster.create(path, document)


@pytest.mark.parametrize("file", ["gc.yaml", "node-sweep.yaml"])
def test_containers_have_no_more_than_they_need(file: str) -> None:
    [document] = documents(file)
    pod = document["spec"]["template"]["spec"]
    [container] = pod["containers"]
    context = container["securityContext"]
    assert context["readOnlyRootFilesystem"] is True and context["allowPrivilegeEscalation"] is False
    assert context["capabilities"]["drop"] == ["ALL"] and not context.get("privileged")
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    if file == "gc.yaml":
        assert pod["securityContext"]["runAsNonRoot"] is True and "add" not in context["capabilities"]
        assert not pod.get("hostPID") and "volumes" not in pod
    else:
        assert container["volumeMounts"] and not any("--apply" in argument for argument in container["args"])
        writable = [m["name"] for m in container["volumeMounts"] if not m.get("readOnly")]
        assert writable == ["run", "runtime"]


def test_the_arguments_of_the_manifests_are_understood() -> None:
    from calico_gc import main, settings
    from calico_gc.sweep.main import _parser

    [collector] = documents("gc.yaml")[0]["spec"]["template"]["spec"]["containers"]
    assert settings.load(main.parse(collector["args"]), {}).listen == "127.0.0.1:9094"
    [sweep] = documents("node-sweep.yaml")[0]["spec"]["template"]["spec"]["containers"]
    assert _parser().parse_args(sweep["args"]).every == "10m"


def test_the_unit_of_a_bare_host_is_one(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not there: apt-get install systemd")
    text = (DEPLOY / "ipam-gc-host.service").read_text()
    unit = tmp_path / "ipam-gc-host.service"
    program = Path(sys.executable).with_name("ipamctl")
    unit.write_text(text.replace("/usr/local/bin/ipamctl", str(program)))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "ExecStart=/usr/local/bin/ipamctl ipam gc --host\n" in text
