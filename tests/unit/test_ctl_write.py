"""Resources from files: get, create, apply, replace, patch, delete, label, validate; what is refused, and how."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from calico_ipam.ctl.main import cli
from calico_ipam.engine.policy import Retry
from calico_ipam.engine.setup import ensure_cluster
from calico_ipam.engine.world import Engine
from tests.cluster import Cluster, cluster
from tests.ctl import Ctl

POOL = """apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {{name: {name}}}
spec: {{cidr: {cidr}}}
"""


@pytest.fixture
def world() -> Iterator[Cluster]:
    with cluster() as made:
        made.nodes("node-1")
        made.pool("pods", "10.0.0.0/24")
        ensure_cluster(Engine(made.store, made.clock, Retry(clock=made.clock)), "0" * 32)
        yield made


@pytest.fixture
def ctl(world: Cluster) -> Ctl:
    return Ctl(world.store.inner.path)  # type: ignore[attr-defined]  # the clusters of tests are files


def spec(ctl: Ctl, name: str = "pods") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ctl.ok("get", "ippool", name, "-o", "json"))
    return {**found["spec"], "labels": found["metadata"].get("labels")}


def given(folder: Path, text: str, name: str = "given.yaml") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_what_was_got_can_be_given_back(ctl: Ctl, tmp_path: Path) -> None:
    for form in ("yaml", "json"):
        for verb in ("replace", "apply"):
            path = given(tmp_path, ctl.ok("get", "ippool", "pods", "-o", form), f"pool.{form}")
            ctl.ok(verb, "-f", path)
        assert "update conflict" in ctl.refused("replace", "-f", path), "somebody wrote it meanwhile"
        assert "must not be set for a Create" in ctl.refused("create", "-f", path)
    path = given(tmp_path, POOL.format(name="pods", cidr="10.0.0.0/24"))
    assert "already exists" in ctl.refused("create", "-f", path)
    ctl.ok("create", "-f", path, "--skip-exists")


def test_a_folder_of_files(ctl: Ctl, tmp_path: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    given(folder, POOL.format(name="a", cidr="10.1.0.0/24"), "a.yaml")
    given(folder, POOL.format(name="b", cidr="10.2.0.0/24") + "---\n" + POOL.format(name="c", cidr="10.3.0.0/24"))
    given(folder, "not: [read", "notes.txt")
    ctl.ok("create", "-f", str(folder))
    assert ctl.ok("get", "ippools", "-o", "name").split() == [f"ippool/{each}" for each in ("a", "b", "c", "pods")]


def test_from_standard_input(ctl: Ctl) -> None:
    argv = ["--datastore", ctl.url, "create", "-f", "-"]
    assert CliRunner().invoke(cli, argv, input=POOL.format(name="piped", cidr="10.4.0.0/24")).exit_code == 0
    assert spec(ctl, "piped")["cidr"] == "10.4.0.0/24"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "line"),
        ("{", "line"),
        ("", "No resources specified"),
        ("kind: IPPol\napiVersion: projectcalico.org/v3\nmetadata: {name: x}\n", "IPPol"),
        (POOL.format(name="x", cidr="10.9.0.0/24").replace("cidr", "cdir"), "cdir"),
        (POOL.format(name="x", cidr="10.9.0.0/33"), "10.9.0.0/33"),
        (POOL.format(name="x", cidr="10.0.0.0/25"), "overlaps"),
        (POOL.format(name="X_x", cidr="10.9.0.0/24"), "X_x"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_written(ctl: Ctl, tmp_path: Path, text: str, words: str) -> None:
    before = ctl.ok("get", "ippools", "-o", "name")
    said = ctl.refused("create", "-f", given(tmp_path, text))
    assert words.lower() in said.lower()
    assert ctl.ok("get", "ippools", "-o", "name") == before


def test_a_file_that_is_not_there(ctl: Ctl, tmp_path: Path) -> None:
    assert "no such file" in ctl.refused("apply", "-f", str(tmp_path / "none.yaml")).lower()


@pytest.mark.parametrize(
    ("kind", "patch"),
    [
        ("merge", '{"spec": {"disabled": true}}'),
        ("strategic", '{"spec": {"disabled": true}}'),
        ("json", '[{"op": "add", "path": "/spec/disabled", "value": true}]'),
    ],
)
def test_patches(ctl: Ctl, kind: str, patch: str) -> None:
    ctl.ok("patch", "ippool", "pods", "--type", kind, "-p", patch)
    assert spec(ctl)["disabled"] is True


@pytest.mark.parametrize("patch", ["{", "[]x", '{"spec": {"cidr": "nonsense"}}', '{"spec": {"blockSize": 99}}'])
def test_bad_patches(ctl: Ctl, patch: str) -> None:
    before = spec(ctl)
    ctl.refused("patch", "ippool", "pods", "-p", patch)
    assert spec(ctl) == before


def test_labels(ctl: Ctl) -> None:
    ctl.ok("label", "ippools", "pods", "team=a")
    assert spec(ctl)["labels"] == {"team": "a"}
    ctl.refused("label", "ippools", "pods", "team=b")
    ctl.ok("label", "ippools", "pods", "team=b", "--overwrite")
    assert spec(ctl)["labels"] == {"team": "b"}
    ctl.ok("label", "ippools", "pods", "team", "--remove")
    assert not spec(ctl)["labels"]


def test_ipams_own_objects_can_be_seen(world: Cluster, ctl: Ctl) -> None:
    (address,) = world.auto(handle="h")
    for kind, words in (("blocks", "10.0.0."), ("handles", "h"), ("blockaffinities", "node-1")):
        assert words in ctl.ok("get", kind), kind
    assert address


def test_paths_into_documents(ctl: Ctl) -> None:
    path = "jsonpath={range .items[*]}{.metadata.name}{'\\t'}{.spec.cidr}{'\\n'}{end}"
    assert ctl.ok("get", "ippools", "-o", path) == "pods\t10.0.0.0/24\n"
    template = "go-template={{range .}}{{range .Items}}{{.ObjectMeta.Name}}={{.Spec.CIDR}};{{end}}{{end}}"
    assert ctl.ok("get", "ippools", "-o", template) == "pods=10.0.0.0/24;"
    assert ctl.ok("get", "ippools", "-o", "jsonpath=x}{'{'}") == "x}{"
    for wrong in ("{.items[", "{.items", "{'\\x'}", "{range .items[*]}{.x}", "{.items[a]}", "{.items[0:1:0]}"):
        assert "jsonpath" in ctl.refused("get", "ippools", "-o", f"jsonpath={wrong}"), wrong
    ctl.refused("get", "ippools", "-o", "go-template={{range .}}")


def test_validate_contacts_nothing(tmp_path: Path) -> None:
    path = given(tmp_path, POOL.format(name="x", cidr="10.9.0.0/24"))
    nowhere = Ctl(tmp_path / "none" / "none.db")
    nowhere.ok("validate", "-f", path)
    assert not nowhere.path.parent.exists()


#: What a command has no use for; loading it would cost every call of it.
USELESS = {
    "ipam show": {"rich", "yaml", "calico_ipam.engine.check", "calico_ipam.engine.assign", "kubernetes", "grpc"},
    "ipam check": {"rich", "yaml", "calico_ipam.engine.simulate", "calico_ipam.ctl.gc", "kubernetes", "grpc"},
    "ipam explain 10.0.0.1": {"rich", "yaml", "calico_ipam.engine.check", "kubernetes", "grpc"},
    "get ippools": {"rich", "calico_ipam.engine.check", "calico_ipam.ctl.ipam", "kubernetes", "grpc"},
    "datastore export": {"rich", "yaml", "calico_ipam.engine.check", "kubernetes", "grpc"},
    "version": {"rich", "yaml", "calico_ipam.engine.check", "calico_ipam.engine.assign", "kubernetes", "grpc"},
}


@pytest.mark.parametrize("command", USELESS)
def test_a_command_loads_what_it_needs(ctl: Ctl, command: str) -> None:
    code = (
        "import sys\n"
        "from calico_ipam.ctl.main import cli\n"
        f"try: cli.main(['--datastore', {ctl.url!r}, *{command.split()!r}])\n"
        "except SystemExit: pass\n"
        f"print(sorted({USELESS[command]!r} & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]"
