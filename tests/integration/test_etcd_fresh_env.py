"""`pip install calico-ipam[etcd]` beside the newest protobuf and grpcio, in a fresh environment: talks to an etcd."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.etcd_tools import Etcd
from tests.shared import REPOSITORY

USE = """
import sys
import google.protobuf.descriptor  # as another library would have done before us
from calico_ipam.datastore.api import Create, Delete
from calico_ipam.datastore.config import open_datastore
from calico_ipam.model.handle import Handle
from calico_ipam.model.keys import HandleKey, Handles

store = open_datastore(sys.argv[1], environ={})
watch = store.watch(Handles(), store.list(Handles()).revision)
(entry,) = store.commit(Create(HandleKey("h"), Handle("h", {"10.0.0.0/26": 1})))
assert next(watch).entry == entry == store.get(HandleKey("h"))
store.commit(Delete(entry))
assert next(watch).kind == "deleted"
store.close()
"""


def run(*command: str | Path) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def install(pip: Path, *what: str | Path) -> None:
    """Install from the network, which may fail for a moment."""
    again = REPOSITORY / "scripts" / "again"
    run(again, pip, "install", "--quiet", "--disable-pip-version-check", *what)


def versions(pip: Path) -> dict[str, str]:
    return {each["name"]: each["version"] for each in json.loads(run(pip, "list", "--format=json"))}


@pytest.mark.timeout(600)
def test_the_extra_works_with_the_newest_protobuf_and_grpcio(tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    pip, python = tmp_path / "venv/bin/pip", tmp_path / "venv/bin/python"
    install(pip, "--upgrade", "protobuf", "grpcio")
    newest = versions(pip)
    install(pip, f"{REPOSITORY}[etcd]")
    installed = versions(pip)
    assert {name: installed[name] for name in ("protobuf", "grpcio")} == {
        name: newest[name] for name in ("protobuf", "grpcio")
    }
    assert int(installed["protobuf"].partition(".")[0]) >= 7
    run(pip, "check")
    with Etcd() as etcd:
        assert run(python, "-W", "error", "-c", USE, f"etcd://{etcd.address}") == ""


@pytest.mark.timeout(600)
def test_without_the_extra_it_is_named(tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    install(tmp_path / "venv/bin/pip", REPOSITORY)
    code = "from calico_ipam.datastore.config import open_datastore\nopen_datastore('etcd://h:1', environ={})"
    done = subprocess.run([tmp_path / "venv/bin/python", "-c", code], capture_output=True, text=True)
    assert "NotConfigured: the etcd datastore needs the package grpcio, which is not installed" in done.stderr
