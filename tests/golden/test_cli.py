"""Replays what the operator program said and did (golden/cli): the same words, the same documents, the same exit codes.

Cases of etcd run on SQLite, whose keys and documents are etcd's. Where ours is meant to differ, one table says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.golden.cli_benches import ServiceApi, etcd_bench, sqlite_bench
from tests.golden.cli_exceptions import BEATEN, PENDING, exception_for
from tests.golden.cli_replay import VOICES, Bench, differences, load, recorded_steps, run
from tests.shared import golden, recordings

if TYPE_CHECKING:
    from tests.etcd_tools import Etcd
    from tests.kube_tools import KubeServer

FOLDER = golden("cli")
#: recordings of ours, worked out from the specification: what those of upstream do not reach
MADE = Path(__file__).parent / "made_cli"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceApi]:
    made = ServiceApi(tmp_path_factory.mktemp("api"))
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("voice", VOICES)
@pytest.mark.parametrize("path", [*recordings(FOLDER, "*-etcd.json"), *recordings(MADE)])
def test_on_sqlite(path: Path, voice: str, tmp_path: Path, api: ServiceApi, record_property: Any) -> None:
    case = load(path)
    assert case["backend"] == "etcdv3"
    with sqlite_bench(tmp_path, api) as bench:
        replay(case, bench, voice, tmp_path, record_property)


#: Kinds of recordings of which one runs on a real etcd too: keys and documents are those of SQLite.
ON_ETCD = ("check", "report", "show", "get", "ippool", "release", "split", "configure", "lock", "version")


def one_of_each() -> list[Any]:
    return [recordings(FOLDER, f"{kind}-*-etcd.json")[0] for kind in ON_ETCD]


@pytest.mark.parametrize("path", one_of_each())
def test_on_etcd(path: Path, etcd: Etcd, tmp_path: Path, api: ServiceApi, record_property: Any) -> None:
    with etcd_bench(etcd, api) as bench:
        replay(load(path), bench, "calicoctl", tmp_path, record_property)


def replay(case: Any, bench: Bench, voice: str, folder: Path, record_property: Any) -> None:
    work = folder / "work"
    work.mkdir()
    wrong = []
    for step, result in run(case, bench, voice, work):
        if step.command in PENDING:
            record_property("pending", step.command)
            bench.restore(step.before, step.recorded.get("datastore_changed") or {})
            continue
        assert "Traceback" not in result.stderr and "internal error" not in result.stderr, f"{step.where}\n{result}"
        found = differences(step, result)
        exception = exception_for(step)
        if exception is None:
            if found:
                wrong.append("\n".join([step.where, *found]))
                break
            record_property("replayed", step.command)
            continue
        if not found:
            if not exception.sometimes:
                wrong.append(f"{step.where}: the exception {exception.limit!r} is not needed")
                break
            record_property("replayed", step.command)
            continue
        if not exception.ours(step, result):
            wrong.append("\n".join([f"{step.where}: not what ours should do under {exception.limit!r}", *found]))
            break
        record_property("excepted", f"{exception.limit}")
        if exception.restores(result):
            bench.restore(step.before, step.recorded.get("datastore_changed") or {})
    assert not wrong, "\n\n".join(wrong)


def test_every_exception_is_for_something_recorded() -> None:
    paths = sorted(FOLDER.glob("*.json"))
    if not paths:
        pytest.skip(f"no recordings in {FOLDER}")
    used = {
        id(exception)
        for path in (*paths, *MADE.glob("*.json"))
        for voice in VOICES
        for step in recorded_steps(load(path), voice)
        if (exception := exception_for(step)) is not None
    }
    assert [each.limit for each in BEATEN if id(each) not in used] == []


@pytest.mark.xdist_group("host")
@pytest.mark.parametrize("path", recordings(FOLDER, "*-kdd.json"))
def test_on_kubernetes(path: Path, kube: KubeServer, tmp_path: Path, record_property: Any) -> None:
    from tests.golden.cli_kube_bench import KubeBench

    case = load(path)
    assert case["backend"] == "kubernetes"
    replay(case, KubeBench(kube), "calicoctl", tmp_path, record_property)
