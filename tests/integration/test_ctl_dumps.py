"""ipamctl datastore export, import, copy, backup: between SQLite and a real etcd, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from calico_ipam.engine.policy import Retry
from calico_ipam.engine.setup import ensure_cluster
from calico_ipam.engine.world import Engine
from tests.cluster import Cluster, cluster
from tests.ctl import Ctl
from tests.etcd_tools import Etcd


@pytest.fixture
def world() -> Iterator[Cluster]:
    with cluster() as made:
        made.nodes("node-1")
        made.pool("pods", "10.0.0.0/24")
        made.pool("quotes", "10.1.0.0/24", nodeSelector="zone == 'ä\\b\"'")
        ensure_cluster(Engine(made.store, made.clock, Retry(clock=made.clock)), "0" * 32)
        made.auto(130)
        yield made


@pytest.fixture
def ctl(world: Cluster) -> Ctl:
    return Ctl(world.store.inner.path)  # type: ignore[attr-defined]  # the clusters of tests are files


@pytest.fixture(scope="module")
def etcd() -> Iterator[Etcd]:
    with Etcd() as running:
        yield running


def objects(ctl: Ctl) -> list[str]:
    return ctl.ok("datastore", "export").splitlines()[1:]


def test_a_dump_comes_back_the_same(ctl: Ctl, tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    assert "Exported" in ctl.ok("datastore", "export", str(dump))
    assert "exists" in ctl.refused("datastore", "export", str(dump))
    other = Ctl(tmp_path / "other.db")
    assert "Compared: all" in other.ok("datastore", "import", str(dump), "--yes")
    assert objects(other) == objects(ctl)


def test_a_store_that_holds_something_is_left_alone(ctl: Ctl, tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    ctl.ok("datastore", "export", str(dump))
    other = Ctl(tmp_path / "other.db")
    other.ok("init", "--node", "other", "--ipv4-pool", "10.9.0.0/24")
    before = objects(other)
    for more in (["--yes"], ["--dry-run"]):
        said = other.refused("datastore", "import", str(dump), *more)
        assert "is not empty" in said and "--merge" in said
    assert objects(other) == before
    found = json.loads(other.ok("datastore", "import", str(dump), "--merge", "--yes", "-o", "json"))
    assert found["verified"] and found["extra"] and not found["missing"]
    assert set(objects(ctl)) <= set(objects(other))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda text: text[: len(text) // 2], "damaged"),
        (lambda text: "\n".join(text.splitlines()[:-1]) + "\n", "was cut off"),
        (lambda _: "", "is empty"),
        (lambda _: "{}\n", "is no dump"),
        (lambda text: text.replace('"version": 1', '"version": 2', 1), "is a dump of version 2"),
        (lambda text: text.replace('"/calico/', '"/registry/', 1), "is none of Calico's keys"),
    ],
)
def test_a_bad_dump_writes_nothing(ctl: Ctl, tmp_path: Path, damage: object, words: str) -> None:
    assert callable(damage)
    dump = tmp_path / "dump"
    dump.write_text(damage(ctl.ok("datastore", "export")))
    other = Ctl(tmp_path / "other.db")
    assert words in other.refused("datastore", "import", str(dump), "--yes")
    assert not other.path.exists()


def test_to_etcd_and_back(ctl: Ctl, etcd: Etcd, tmp_path: Path) -> None:
    etcd.clear()
    url = f"etcd://{etcd.address}"
    assert "Compared: all" in ctl.ok("datastore", "copy", url, "--yes")
    assert "is not empty" in ctl.refused("datastore", "copy", url, "--yes")
    back = Ctl(tmp_path / "back.db")
    away = ctl("--datastore", url, "datastore", "copy", back.url, "--yes")
    assert away.exit_code == 0, away.stderr
    assert "the source is not locked" in away.stderr
    assert objects(back) == objects(ctl)
    assert ctl.ok("ipam", "check", "--format", "name") == back.ok("ipam", "check", "--format", "name")
    assert "the same datastore" in ctl.refused("datastore", "copy", ctl.url, "--yes")


def test_a_backup_is_a_store(ctl: Ctl, etcd: Etcd, tmp_path: Path) -> None:
    copy = Ctl(tmp_path / "copy.db")
    ctl.ok("datastore", "backup", str(copy.path))
    assert objects(copy) == objects(ctl)
    said = ctl("--datastore", f"etcd://{etcd.address}", "datastore", "backup", str(tmp_path / "x"))
    assert said.exit_code == 1
    assert "etcdctl snapshot save" in said.stderr
