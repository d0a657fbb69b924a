"""check, repair, gc, release by report, and the lock: found, shown, mended, and never harmful."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from calico_ipam.datastore.api import Create
from calico_ipam.engine.policy import Retry
from calico_ipam.engine.setup import ensure_cluster
from calico_ipam.engine.world import Engine
from calico_ipam.model.addresses import parse_address
from calico_ipam.model.block import Attribute
from calico_ipam.model.handle import Handle
from calico_ipam.model.keys import BlockKey, HandleKey, ResourceKey
from calico_ipam.model.resource import WORKLOAD_ENDPOINT, Resource
from tests.clock import LONG
from tests.cluster import Cluster, cluster
from tests.ctl import PROGRAM, Ctl

OLD = "2026-08-20 10:11:12.1 +0000 UTC"


@pytest.fixture
def world() -> Iterator[Cluster]:
    with cluster() as made:
        made.nodes("node-1", "node-2")
        made.pool("pool-1", "10.0.0.0/24")
        ensure_cluster(engine(made), "0" * 32)
        endpoint(made, "alive", "10.0.0.10", container="alive")
        pod(made, "10.0.0.10", "alive")
        yield made


@pytest.fixture
def ctl(world: Cluster) -> Ctl:
    return Ctl(world.store.inner.path)  # type: ignore[attr-defined]  # the clusters of tests are files


def engine(world: Cluster) -> Engine:
    return Engine(world.store, world.clock, Retry(clock=world.clock))


def pod(world: Cluster, ip: str, name: str, *, node: str = "node-1", **more: str) -> None:
    attrs = {"node": node, "namespace": "ns", "pod": name, "timestamp": OLD, **more}
    world.ipam.assign_ip(parse_address(ip), handle=f"k8s-pod-network.{name}", attrs=attrs, hostname=node)


def endpoint(world: Cluster, name: str, ip: str, *, node: str = "node-1", container: str = "") -> None:
    spec = {"node": node, "pod": name, "orchestrator": "k8s", "containerID": container, "ipNetworks": [f"{ip}/32"]}
    key = ResourceKey(WORKLOAD_ENDPOINT, f"{node.replace('-', '--')}-k8s-{name}-eth0", "ns")
    world.store.inner.commit(Create(key, Resource.new(key.kind, key.name, spec, namespace="ns")))


def findings(ctl: Ctl) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for each in json.loads(ctl.ok("ipam", "check", "--format", "json"))["details"]:
        found.setdefault(each["kind"], []).append(each["subject"])
        assert each["command"].startswith("ipamctl ") and "{" not in each["command"]
    return found


# --- what is found ------------------------------------------------------------------------------------------


def test_a_sound_cluster(ctl: Ctl) -> None:
    assert findings(ctl) == {}
    assert ctl("ipam", "check", "--fail-on-problems").exit_code == 0
    code, screen = ctl.on_terminal("ipam", "check")
    assert code == 0
    assert screen.rstrip().endswith("Nothing is wrong.")


def break_everything(world: Cluster) -> None:
    pod(world, "10.0.0.11", "gone")
    world.put(HandleKey("stray"), Handle("stray", {"10.0.0.0/26": 1}))
    pod(world, "10.0.0.12", "uncounted")
    endpoint(world, "uncounted", "10.0.0.12")
    world.drop(HandleKey("k8s-pod-network.uncounted"))
    pod(world, "10.0.0.13", "miscounted")
    endpoint(world, "miscounted", "10.0.0.13")
    world.put(HandleKey("k8s-pod-network.miscounted"), Handle("k8s-pod-network.miscounted", {"10.0.0.0/26": 7}))
    endpoint(world, "outlaw", "10.0.0.14", container="outlaw")
    endpoint(world, "stranger", "192.0.2.1")
    world.row("10.0.0.64/26", "node-2")
    world.row("10.0.0.0/26", "node-2")


def test_each_finding_names_its_cure(world: Cluster, ctl: Ctl) -> None:
    break_everything(world)
    assert findings(ctl) == {
        "leaked": ["10.0.0.11"],
        "not-allocated": ["10.0.0.14"],
        "not-in-pool": ["192.0.2.1"],
        "stray-handle": ["stray"],
        "missing-handle": ["k8s-pod-network.uncounted"],
        "handle-count": ["k8s-pod-network.miscounted"],
        "row-without-block": ["10.0.0.64/26"],
        "contested-block": ["10.0.0.0/26"],
    }
    assert ctl("ipam", "check", "--fail-on-problems").exit_code == 3
    code, screen = ctl.on_terminal("ipam", "check")
    assert code == 0
    assert screen.index("OUTAGE RISK") < screen.index("CAPACITY LOSS") < screen.index("COSMETIC")
    assert "→ ipamctl ipam gc" in screen


def test_block_sizes_are_findings_each(world: Cluster, ctl: Ctl) -> None:
    """P01: blocks of two sizes in one pool are how an address gets two owners."""
    world.block("10.0.0.128/28", owner="node-2")
    world.block("10.0.0.144/28", owner="node-2")
    found = findings(ctl)
    assert found["block-size"] == ["10.0.0.128/28", "10.0.0.144/28"]


def test_one_address_in_two_blocks(world: Cluster, ctl: Ctl) -> None:
    world.block("10.0.0.0/27", owner="node-2")
    block = world.stored_block("10.0.0.0/27")
    assert block is not None
    world.put(
        BlockKey(block.cidr), block.assign_address(parse_address("10.0.0.10"), handle="x", attrs={"node": "node-2"})
    )
    found = findings(ctl)
    assert found["allocated-twice"] == ["10.0.0.10"]
    assert found["overlapping-blocks"] == ["10.0.0.0/27"]


def test_a_missing_handle_is_no_leak(world: Cluster, ctl: Ctl) -> None:
    """P11: handles that old migrations wrote with a carriage return look missing and stray at once."""
    pod(world, "10.0.0.20", "x")
    endpoint(world, "x", "10.0.0.20")
    block = world.stored_block("10.0.0.0/26")
    assert block is not None
    attribute = block.attribute(20)
    assert attribute is not None
    odd = Attribute("k8s-pod-network.x\r\neth0", attribute.active)
    world.put(BlockKey(block.cidr), block.with_attribute(20, odd))
    assert findings(ctl) == {}


def test_what_was_just_assigned_is_no_leak(world: Cluster, ctl: Ctl) -> None:
    """Limit 18.22: an address is allocated a moment before its endpoint is written."""
    from calico_ipam.model.timestamps import format_attribute_time

    pod(world, "10.0.0.30", "starting", timestamp=format_attribute_time(time.time_ns()))
    assert findings(ctl) == {}


def test_a_second_look_drops_what_went_away(world: Cluster, ctl: Ctl) -> None:
    from calico_ipam.engine.check import confirmed
    from calico_ipam.engine.check import findings as judged
    from calico_ipam.engine.survey import take_survey

    pod(world, "10.0.0.11", "gone")
    first = judged(take_survey(engine(world)))
    world.ipam.release_by_handle("k8s-pod-network.gone")
    pod(world, "10.0.0.11", "gone")  # the same pod name again, another allocation
    second = judged(take_survey(engine(world)))
    assert [each.kind for each in second] == ["leaked"]
    assert confirmed(first, second) == []


# --- repair -------------------------------------------------------------------------------------------------


def test_repair_mends_and_checks_again(world: Cluster, ctl: Ctl) -> None:
    break_everything(world)
    plan = ctl.ok("ipam", "repair", "--dry-run")
    assert "→ delete handle stray, if it is still the same and empty" in plan
    before = world.handles()
    assert world.handles() == before
    out = ctl.ok("ipam", "repair", "--yes")
    assert "Mended 6, skipped 0, failed 0; checked again." in out
    assert findings(ctl) == {"leaked": ["10.0.0.11"], "not-in-pool": ["192.0.2.1"]}
    assert world.handle("k8s-pod-network.uncounted") == {"10.0.0.0/26": 1}
    assert world.handle("k8s-pod-network.miscounted") == {"10.0.0.0/26": 1}
    assert world.handle("k8s-pod-network.outlaw") == {"10.0.0.0/26": 1}


def test_repair_of_one_kind_and_subject(world: Cluster, ctl: Ctl) -> None:
    break_everything(world)
    ctl.ok("ipam", "repair", "--yes", "--only", "stray-handle", "stray")
    assert "stray-handle" not in findings(ctl)
    assert "handle-count" in findings(ctl)
    assert "no repair for 'nonsense'" in ctl.refused("ipam", "repair", "--only", "nonsense")


def test_a_broken_block_is_rewritten_and_nobody_loses_an_address(world: Cluster, ctl: Ctl) -> None:
    from calico_ipam.datastore.documents import RawWrite
    from calico_ipam.datastore.paths import path_of

    block = world.stored_block("10.0.0.0/26")
    assert block is not None
    path = path_of(BlockKey(block.cidr))
    store: Any = world.store.inner
    (row,), _, _ = store._raw_read((path,), ())
    document = json.loads(row.text)
    document["unallocated"] = [o for o in document["unallocated"] if o not in (1, 2)]
    document["allocations"][40] = 99
    store._raw_commit((RawWrite("update", path, json.dumps(document), row.revision),))
    assert findings(ctl)["invalid-block"] == ["10.0.0.0/26"]
    ctl.ok("ipam", "repair", "--yes", "--only", "invalid-block")
    after = world.stored_block("10.0.0.0/26")
    assert after is not None and not after.problems
    assert after.attribute(10) is not None, "the living pod keeps its address"
    assert after.attribute(40) is not None, "a slot that makes no sense stays taken"
    assert {1, 2} <= set(after.unallocated)


# --- gc -----------------------------------------------------------------------------------------------------


def test_gc_releases_leaks_only(world: Cluster, ctl: Ctl) -> None:
    break_everything(world)
    assert "Leaked: 1 address; without an address: 1 handle." in ctl.ok("ipam", "gc", "--dry-run")
    assert "Released 1 addresses, kept 0; deleted 1 of 1 handles." in ctl.ok("ipam", "gc", "--yes")
    assert world.handle("k8s-pod-network.gone") is None
    assert world.handle("k8s-pod-network.alive") == {"10.0.0.0/26": 1}


def test_gc_asks_people(world: Cluster, ctl: Ctl) -> None:
    pod(world, "10.0.0.11", "gone")
    code, screen = ctl.on_terminal("ipam", "gc", answer="n")
    assert code == 1
    assert "Release 1 address and delete 0 handles?" in screen and "nothing was released" in screen
    assert world.handle("k8s-pod-network.gone") is not None


def test_gc_leaves_alone_what_no_datastore_knows(world: Cluster, ctl: Ctl) -> None:
    """A container that another main plugin wired has no endpoint, and lives (ruling 7)."""
    world.ipam.assign_ip(
        parse_address("10.0.0.50"), handle="net.container", attrs={"node": "node-1"}, hostname="node-1"
    )
    assert ctl.ok("ipam", "gc", "--yes") == "Nothing is leaked.\n"
    assert world.handle("net.container") is not None


def test_gc_refuses_when_no_workload_is_known_at_all(world: Cluster, ctl: Ctl) -> None:
    world.drop(ResourceKey(WORKLOAD_ENDPOINT, "node--1-k8s-alive-eth0", "ns"))
    pod(world, "10.0.0.11", "also")
    assert "no workload endpoint is known" in ctl.refused("ipam", "gc", "--yes")


def test_gc_frees_what_has_cooled_down(world: Cluster, ctl: Ctl) -> None:
    world.configure(cooldown_seconds=60)
    pod(world, "10.0.0.11", "gone")
    world.ipam.release_by_handle("k8s-pod-network.gone")
    assert "1 address in 1 block cooled down." in ctl.ok("ipam", "gc", "--cold", "--yes")
    block = world.stored_block("10.0.0.0/26")
    assert block is not None and block.cooling == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_lock_goes_whatever_ends_the_collection(world: Cluster, ctl: Ctl, number: int) -> None:
    """Ruling 10: a killed tool must not stop every pod."""
    pod(world, "10.0.0.11", "gone")
    argv = [*PROGRAM, "--datastore", ctl.url, "ipam", "gc", "--lock", "--confirm-after", "600", "--yes"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        try:
            until = time.monotonic() + LONG
            while "locked by" not in ctl.ok("datastore", "lock", "--status"):
                assert time.monotonic() < until and running.poll() is None
                time.sleep(0.05)
            running.send_signal(number)
            running.communicate(timeout=LONG)
        finally:
            running.kill()
    assert ctl.ok("datastore", "lock", "--status") == "The datastore is not locked.\n"
    assert running.returncode in (130, -number)


# --- reports ------------------------------------------------------------------------------------------------


def report(ctl: Ctl, folder: Path, name: str = "r.json") -> str:
    path = str(folder / name)
    ctl.ok("ipam", "check", "-o", path)
    return path


def test_a_report_taken_again_since(world: Cluster, ctl: Ctl, tmp_path: Path) -> None:
    """P35: an address of the report is somebody's again; it stays theirs, and the others are released."""
    pod(world, "10.0.0.11", "gone")
    pod(world, "10.0.0.12", "gone2")
    ctl.ok("datastore", "lock")
    path = report(ctl, tmp_path)
    world.ipam.release_by_handle("k8s-pod-network.gone")
    pod(world, "10.0.0.11", "new")
    result = ctl("ipam", "release", "--from-report", path)
    assert result.exit_code == 4
    assert "Released 1 IPs successfully" in result.stdout
    assert "update conflict: 10.0.0.11" in result.stdout
    assert "10.0.0.11 is kept: it was assigned again since, to ns/new" in result.stderr
    assert world.handle("k8s-pod-network.new") is not None
    assert world.handle("k8s-pod-network.gone2") is None


def test_an_address_in_use_by_now_is_kept(world: Cluster, ctl: Ctl, tmp_path: Path) -> None:
    """Unlocked, a pod whose endpoint was written after the check looked leaked, with the same sequence number."""
    pod(world, "10.0.0.11", "late")
    ctl.ok("datastore", "lock")
    path = report(ctl, tmp_path)
    endpoint(world, "late", "10.0.0.11")
    result = ctl("ipam", "release", "--from-report", path)
    assert "10.0.0.11 is kept: Workload(ns/" in result.stderr
    assert world.handle("k8s-pod-network.late") is not None


def test_gates_of_a_report(world: Cluster, ctl: Ctl, tmp_path: Path) -> None:
    pod(world, "10.0.0.11", "gone")
    path = report(ctl, tmp_path)
    assert "data store is not locked" in ctl.refused("ipam", "release", "--from-report", path)
    ctl.ok("datastore", "lock")
    assert "are all stale" in ctl.refused("ipam", "release", "--from-report", path, "--force")
    path = report(ctl, tmp_path)
    content = json.loads(Path(path).read_text())
    for change, text in (({"clusterGUID": "x"}, "mismatched cluster GUID"), ({"version": ""}, "different version")):
        (tmp_path / "bad.json").write_text(json.dumps(content | change))
        assert text in ctl.refused("ipam", "release", "--from-report", str(tmp_path / "bad.json"))
    for text in ("", "[]", '{"allocations": 1}', '{"allocations": {"x": [{"ip": "rubbish"}]}}'):
        (tmp_path / "bad.json").write_text(text)
        ctl.refused("ipam", "release", "--from-report", str(tmp_path / "bad.json"))
    assert ctl.ok("ipam", "release", "--from-report", path, "--dry-run").startswith("Would release 1 addresses")
    assert world.handle("k8s-pod-network.gone") is not None


def test_a_report_is_written_whole_and_for_its_owner(ctl: Ctl, tmp_path: Path) -> None:
    path = Path(report(ctl, tmp_path))
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["r.json"]
    assert ctl("ipam", "check", "-o", "/proc/nowhere/r.json").exit_code == 1


# --- the lock -----------------------------------------------------------------------------------------------


def test_a_lock_has_an_owner(ctl: Ctl) -> None:
    ctl.ok("datastore", "lock", "--reason", "upgrade", "--for", "600")
    status = json.loads(ctl.ok("datastore", "lock", "--status", "-o", "json"))
    assert status["locked"] and status["reason"] == "upgrade" and "@" in status["owner"] and status["expires"]
    assert ctl.ok("datastore", "unlock") == "Datastore unlocked.\n"
    assert json.loads(ctl.ok("datastore", "lock", "--status", "-o", "json"))["owner"] == ""


def test_somebody_elses_lock_is_told(world: Cluster, ctl: Ctl) -> None:
    from calico_ipam.engine.lock import LockOwner, lock

    lock(engine(world), LockOwner("alice@elsewhere", "upgrade"))
    result = ctl("datastore", "unlock")
    assert result.exit_code == 0
    assert "the lock was alice@elsewhere's (upgrade)" in result.stderr


# --- many handles -------------------------------------------------------------------------------------------


def test_many_handles_go_side_by_side_and_one_failure_stops_no_other(
    world: Cluster, ctl: Ctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from calico_ipam.engine import leaks
    from calico_ipam.errors import StoreUnavailable

    names = [f"stray-{number:03}" for number in range(60)]
    for name in names:
        world.put(HandleKey(name), Handle(name, {}))
    ctl.ok("datastore", "lock")
    path = report(ctl, tmp_path)
    world.put(HandleKey(names[7]), Handle(names[7], {"10.0.0.0/26": 1}))
    original = leaks.delete_stray_handle

    def flaky(engine: Engine, handle: str, *more: Any) -> bool:
        if handle == names[30]:
            raise StoreUnavailable("the datastore hiccups")
        return original(engine, handle, *more)

    monkeypatch.setattr(leaks, "delete_stray_handle", flaky)
    result = ctl("ipam", "release", "--from-report", path)
    assert result.exit_code == 4
    marks = f".......x{'.' * 22}\nDeleting handle {names[30]} failed: the datastore hiccups.\n{'.' * 29}\n"
    assert marks in result.stdout
    assert "Released 58 handles; 1 skipped; 1 errors." in result.stdout
    assert {name for name in names if world.handle(name) is not None} == {names[7], names[30]}
    gone = ctl("ipam", "gc", "--yes")
    assert gone.exit_code == 4
    assert "warning: 1 handle could not be deleted: the datastore hiccups" in gone.stderr
