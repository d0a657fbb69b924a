"""Dry run, the report and its other shape, our own metrics (gc §18.3, §18.4)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from calico_gc import report
from calico_gc.decide import Rules
from calico_gc.metrics import Metrics
from calico_gc.options import HandleOptions, Options
from calico_gc.view import View, view_of
from prometheus_client.parser import text_string_to_metric_families

from tests.gc_things import NETWORK, add_block, add_to_handle, calico_node, pod_attrs, pool, running_pod, tunnel_attrs
from tests.gc_world import Observed, World

H1 = f"{NETWORK}.aa"


def busy_world(*, dry_run: bool) -> World:
    """Something of everything: a leak, a held one, a dead node, a cold and an empty block, handles of each class."""
    world = World(options=Options(rules=Rules(leak_grace=900.0), handles=HandleOptions(), dry_run=dry_run))
    pool(world, "pool", "10.0.0.0/16")
    world.node("n1")
    running_pod(world, "alive", "n1", "10.0.0.2")
    add_block(
        world,
        "10.0.0.0/26",
        "n1",
        {
            1: (f"{NETWORK}.leak", pod_attrs("n1", "gone")),
            2: (f"{NETWORK}.dual", pod_attrs("n1", "alive")),
            3: (f"{NETWORK}.dual", pod_attrs("n1", "alive")),
        },
    )
    add_block(world, "10.0.0.64/26", "n1")
    add_block(world, "10.0.0.128/26", "dead", {0: ("vxlan-tunnel-addr-dead", tunnel_attrs("dead"))})
    add_block(world, "10.0.0.192/26", "n1", cooling={1: 5000.0})
    add_to_handle(world, "orphan", "10.0.0.0/26")
    return world


def test_a_dry_run_writes_nothing_at_all() -> None:
    world = busy_world(dry_run=True)
    assert isinstance(world.store, Observed)
    world.store.writes.clear()
    world.start()
    world.run(7200)
    assert world.store.writes == []
    kinds = {kind for kind, _ in world.controller.planned}
    assert kinds == {"release", "give-back", "thaw"}


def test_the_gate_stops_what_a_dry_run_would_write() -> None:
    """A second wall: even an action that is carried out by mistake writes nothing."""
    world = busy_world(dry_run=True)
    assert isinstance(world.store, Observed)
    world.store.writes.clear()
    world.worker.preview = world.worker.run  # type: ignore[method-assign]  # a fake in its place
    world.start()
    world.run(1800)
    assert world.store.writes == []


def seen(*, dry_run: bool = True, seconds: float = 1800.0) -> View:
    world = busy_world(dry_run=dry_run)
    world.start()
    world.run(seconds)
    return view_of(world.controller)


SCHEMA: dict[str, Any] = {
    "schema": str,
    "generated": str,
    "mode": str,
    "clusterGUID": str,
    "datastoreReady": bool,
    "inSync": bool,
    "leader": bool,
    "settings": {"leakGracePeriod": str, "handleGrace": str, "namelessAddresses": bool},
    "summary": dict.fromkeys(
        (
            *("blocks", "allocations", "handles", "candidates", "confirmed", "held", "coldBlocks", "orphanHandles"),
            *(
                "skewedHandles",
                "missingHandles",
                "stuckHandles",
                "emptyBlocks",
                "nodesToRelease",
                "nameless",
                "damaged",
            ),
        ),
        int,
    ),
    "leaks": [
        dict.fromkeys(
            ("ip", "handle", "sequence", "block", "node", "pod", "state", "reason", "firstSeen", "action"), str
        )
        | {"observations": int}
    ],
    "handles": [
        dict.fromkeys(("id", "class", "uid", "revision", "age", "action", "result"), str)
        | {"have": dict, "want": dict, "observations": int}
    ],
    "blocks": [dict.fromkeys(("cidr", "node", "action", "emptyFor"), str)],
    "nodes": [dict.fromkeys(("name", "action", "result"), str)],
    "findings": [dict.fromkeys(("kind", "subject", "detail", "firstSeen"), str)],
    "errors": [str],
}


def conforms(value: Any, schema: Any, where: str = "report") -> None:
    if isinstance(schema, dict):
        assert set(value) == set(schema), f"{where}: {set(value) ^ set(schema)}"
        for name, inner in schema.items():
            conforms(value[name], inner, f"{where}.{name}")
    elif isinstance(schema, list):
        for number, item in enumerate(value):
            conforms(item, schema[0], f"{where}[{number}]")
    else:
        assert isinstance(value, schema), f"{where}: {value!r} is no {schema.__name__}"


def test_the_report_keeps_its_schema() -> None:
    document = report.report(seen(), ("something",))
    conforms(document, SCHEMA)
    assert document["schema"] == "calico-ipam-gc/v1"
    assert document["mode"] == "dry-run"
    states = {leak["ip"]: (leak["state"], leak["reason"], leak["action"]) for leak in document["leaks"]}
    assert states == {
        "10.0.0.1": ("confirmed", "pod-not-found", "release"),
        "10.0.0.3": ("held", "ip-mismatch", "hold"),
        "10.0.0.128": ("confirmed", "tunnel-node-gone", "release"),
    }
    assert [(h["id"], h["class"], h["action"], h["result"]) for h in document["handles"]] == [
        ("orphan", "orphan", "delete", "dry-run")
    ]
    assert document["nodes"] == [{"name": "dead", "action": "release", "result": "dry-run"}]
    assert json.loads(json.dumps(document)) == document


def test_a_clean_cluster_has_no_problems() -> None:
    world = World()
    world.node("n1")
    running_pod(world, "p", "n1", "10.0.0.1")
    add_block(world, "10.0.0.0/26", "n1", {1: ("h", pod_attrs("n1", "p"))})
    world.start()
    assert not report.problems(view_of(world.controller))
    assert report.problems(seen())


def test_calicoctls_shape() -> None:
    document = report.calicoctl_report(seen())
    assert list(document) == [
        *("version", "clusterGUID", "datastoreLocked", "clusterInformationRevision", "clusterType"),
        *("allocations", "leakedHandles"),
    ]
    used = {ip: entries[0]["inUse"] for ip, entries in document["allocations"].items()}
    assert used == {
        "10.0.0.1": False,
        "10.0.0.2": True,
        "10.0.0.3": True,
        "10.0.0.128": False,
        "10.0.0.193": False,
    }
    assert document["allocations"]["10.0.0.193"][0]["coolingDown"] is True
    assert [h["ID"] for h in document["leakedHandles"]] == ["orphan"]


def test_calicoctls_record_of_an_allocation() -> None:
    """cli §4.2, §4.4: the block's host stands in for a node that is not named; Windows' reservations are in use."""
    world = World(options=Options(rules=Rules(leak_grace=900.0), dry_run=True))
    world.node("n1")
    running_pod(world, "p", "n1", "10.0.0.3")
    held = {1: ("h", {}), 2: ("windows-reserved-ipam-handle", {}), 3: (H1, pod_attrs("n2", "p"))}
    add_block(world, "10.0.0.0/26", "n1", held, cooling={4: 10.0})
    world.start()
    found = report.calicoctl_report(view_of(world.controller))["allocations"]
    records = {ip: {k: v for k, v in record.items() if k != "sequenceNumber"} for ip, [record] in found.items()}
    assert records["10.0.0.1"] == {"ip": "10.0.0.1", "handle": "h", "node": "n1", "inUse": True, "owners": None}
    assert records["10.0.0.2"] == {"ip": "10.0.0.2", "node": "n1", "inUse": True, "owners": ["Reserved for Windows"]}
    assert (records["10.0.0.3"]["node"], records["10.0.0.3"]["borrowed"]) == ("n2", True)
    assert records["10.0.0.4"] == {
        "ip": "10.0.0.4",
        "node": "n1",
        "inUse": False,
        "coolingDown": True,
        "owners": None,
    }
    names = ["ip", "handle", "sequenceNumber", "pod", "namespace", "node", "borrowed", "inUse"]
    assert [name for name in found["10.0.0.3"][0] if name != "owners"] == names


@pytest.mark.parametrize(
    ("uid", "shown"),
    [("", None), ("00112233-4455-6677-8899-aabbccddeeff", "008844cc-22aa-66ee-8899-55dd33bb77ff"), ("odd", "odd")],
)
def test_a_stray_handle_carries_the_uid_that_calicoctl_compares(uid: str, shown: str | None) -> None:
    view = seen()
    assert view.handles is not None
    record = view.handles.records["orphan"]
    changed = replace(record, judged=replace(record.judged, uid=uid))
    view = replace(view, handles=replace(view.handles, records={"orphan": changed}))
    assert report.calicoctl_report(view)["leakedHandles"][0]["UID"] == shown


def test_a_report_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    report.write(path, {"a": 1})
    with pytest.raises(TypeError):
        report.write(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


# --- metrics --------------------------------------------------------------------------------------------------------


def page(view: View) -> dict[str, float]:
    text = Metrics(lambda: view).page()
    return {
        f"{s.name}{sorted(s.labels.items()) if s.labels else ''}": s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


def test_our_metrics_say_what_is_known() -> None:
    found = page(seen())
    assert found["ipam_gc_confirmed_leaks[('state', 'held')]"] == 1
    assert found["ipam_gc_confirmed_leaks[('state', 'pending')]"] == 2
    assert found["ipam_gc_handles[('class', 'orphan')]"] == 1
    assert found["ipam_gc_dry_run"] == 1
    assert found["ipam_gc_in_sync"] == 1
    assert found["ipam_gc_leaks_detected_total[('reason', 'pod-not-found')]"] == 1
    assert found["ipam_gc_syncs_total[('result', 'ok')]"] > 0
    assert found["ipam_allocations_in_use[('ippool', 'pool'), ('node', 'n1')]"] == 3


def test_upstreams_names_come_word_for_word() -> None:
    text = Metrics(lambda: seen(dry_run=False)).page()
    assert 'ipam_allocations_gc_reclamations{ippool="pool",node="n1"} 1\n' in text
    assert "ipam_allocations_gc_reclamations_total" not in text


def test_series_end_with_their_object() -> None:
    world = busy_world(dry_run=False)
    world.start()
    metrics = Metrics(lambda: view_of(world.controller))
    assert 'node="n1"' in metrics.page()
    world.no_pod("default", "alive")
    world.no_node("n1")
    world.settle()
    world.run(3000)
    assert 'node="n1"' not in metrics.page()
    assert 'node="dead"' not in metrics.page()


def test_a_standby_only_says_that_it_is_one() -> None:
    world = busy_world(dry_run=False)
    world.controller.active = False
    world.start()
    text = Metrics(lambda: view_of(world.controller)).page()
    assert [line for line in text.splitlines() if not line.startswith("#")] == ["ipam_gc_leader 0.0"]


def test_before_the_first_view_there_is_nothing() -> None:
    assert Metrics(lambda: None).page() == ""


def test_names_are_escaped() -> None:
    world = World(kubernetes=False)
    pool(world, "pool", "10.0.0.0/24")
    calico_node(world, 'odd"\\name\n', "k")
    world.start()
    assert 'node="odd\\"\\\\name\\n"' in Metrics(lambda: view_of(world.controller)).page()
