"""``ipamctl ipam gc --host`` as it runs at boot: what no container of this host has is released, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from calico_ipam.datastore.api import Create
from calico_ipam.datastore.sqlite import SQLiteStore
from calico_ipam.engine.client import IPAM
from calico_ipam.model.keys import ResourceKey
from calico_ipam.model.resource import IP_POOL, NODE, Resource
from tests.netns_tools import Node, require_root

LIVING, DEAD, USED = "a" * 64, "b" * 64, "c" * 64


@pytest.fixture
def database(tmp_path: Path) -> Path:
    require_root()
    file = tmp_path / "ipam" / "ipam.db"
    hostname = os.uname().nodename.lower()
    with SQLiteStore(str(file)) as store:
        spec = {"cidr": "10.77.0.0/24", "blockSize": 29}
        store.commit(Create(ResourceKey(IP_POOL, "p"), Resource.new(IP_POOL, "p", spec)))
        store.commit(Create(ResourceKey(NODE, hostname), Resource.new(NODE, hostname, {})))
        for container in (LIVING, DEAD, USED):
            IPAM(store, hostname=hostname).auto_assign(
                use="Workload", num4=1, handle=f"net.{container}", attrs={"node": hostname}
            )
    return file


def holders(database: Path) -> set[str]:
    with SQLiteStore(str(database)) as store:
        ipam = IPAM(store, hostname="x")
        return {container for container in (LIVING, DEAD, USED) if _held(ipam, f"net.{container}")}


def _held(ipam: IPAM, handle: str) -> bool:
    from calico_ipam.errors import NotFound

    try:
        return bool(ipam.ips_by_handle(handle))
    except NotFound:
        return False


def collect(database: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("ipamctl")
    return subprocess.run(
        [program, "ipam", "gc", "--host", "--confirm-after=1", f"--datastore=sqlite://{database}", *arguments],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_only_the_dead_are_released(database: Path, node: Node) -> None:
    with SQLiteStore(str(database)) as store:
        [used] = IPAM(store, hostname="x").ips_by_handle(f"net.{USED}")
    sandbox = node.sandbox()
    sandbox.ip("addr", "add", f"{used}/32", "dev", "lo")  # no runtime knows who has it
    sandbox.settle_in()
    done = collect(database, f"--host-runtime=echo {LIVING}")
    assert done.returncode == 0, done.stderr
    assert holders(database) == {LIVING, USED}
    assert "Released 1 addresses" in done.stdout


def test_a_source_that_does_not_answer_keeps_everything(database: Path) -> None:
    done = collect(database, "--host-runtime=false")
    assert holders(database) == {LIVING, DEAD, USED}
    assert "Released 0 addresses" in done.stdout


def test_a_dry_run_writes_nothing(database: Path) -> None:
    before = database.read_bytes()
    done = collect(database, "--dry-run", f"--host-runtime=echo {LIVING}")
    assert done.returncode == 0, done.stderr
    assert holders(database) == {LIVING, DEAD, USED}
    assert DEAD in done.stdout and LIVING not in done.stdout
    assert database.read_bytes() == before
