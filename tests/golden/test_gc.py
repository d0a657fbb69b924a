"""Recorded collector cases (``golden/gc``) replayed under an injected clock, one test per file (ruling 36)."""

from __future__ import annotations

import copy
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from calico_ipam.model.block import Block
from calico_ipam.model.keys import AffinityKey, BlockKey, HandleKey, Key, ResourceKey
from tests.golden.gc_exceptions import EXCEPTIONS
from tests.golden.gc_moments import Exception_, Moment
from tests.golden.gc_recording import Case, UnknownRecording, load
from tests.golden.gc_replay import RESOURCES, Played, comparable, differences, play
from tests.shared import golden, recordings

FOLDER = golden("gc")


def moments(played: Played) -> list[Moment]:
    found, before = [], comparable(played.before)
    for number, phase in enumerate(played.case.phases):
        ours = comparable(played.after[number])
        found.append(Moment(played.case, number, before, comparable(phase.after), ours))
        before = ours
    return found


def compare(played: Played, exceptions: tuple[Exception_, ...] = EXCEPTIONS) -> tuple[list[str], list[Exception_]]:
    """Return what differs beyond the exceptions, and the exceptions that were needed."""
    problems: list[str] = []
    used: list[Exception_] = []
    for moment in moments(played):
        expected = moment.after
        applied = [e for e in exceptions if e.where(moment)]
        for exception in applied:
            changed = exception.expect(Moment(moment.case, moment.phase, moment.before, expected, moment.ours))
            if changed == expected:
                problems.append(f"phase {moment.phase}: exception {exception.limit} is not needed any more")
            expected = changed
        used += applied
        problems += [f"phase {moment.phase}: {line}" for line in differences(expected, moment.ours)]
        if not applied:
            problems += _metrics(played, moment.phase)
    return problems + _resources(played) + _order(played), used


def _metrics(played: Played, phase: int) -> list[str]:
    recorded, ours = played.case.phases[phase].metrics, played.metrics[phase]
    if recorded is None or ours is None:
        return []
    missing = [f"phase {phase}: metrics lack {line}" for line in recorded if line not in ours]
    extra = [f"phase {phase}: metrics have {line}" for line in ours if line not in recorded]
    order = [] if missing or extra or list(recorded) == ours else [f"phase {phase}: metrics are in another order"]
    return missing + extra + order


def _resources(played: Played) -> list[str]:
    """Compare Calico's nodes and what goes with them (etcd only), by what the last phase that touched them left."""
    recorded: dict[Key, Any] = {}
    for phase in played.case.phases:
        recorded.update({k: v for k, v in phase.changed.items() if _compared(k)})
    found = []
    for key, value in recorded.items():
        ours = played.resources.get(key)
        if value is None or ours is None:
            if (value is None) != (ours is None):
                found.append(f"{key}: expected {value}, is {ours}")
        elif _facts(value.document) != _facts(ours.document):
            found.append(f"{key}: expected {_facts(value.document)}, is {_facts(ours.document)}")
    return found


def _compared(key: Key) -> bool:
    return isinstance(key, ResourceKey) and key.kind in (*RESOURCES, "WorkloadEndpoint")


def _facts(document: Mapping[str, Any]) -> Any:
    metadata = document["metadata"]
    return document.get("spec"), metadata.get("labels"), metadata.get("annotations")


def _order(played: Played) -> list[str]:
    """Where writes go one by one, a crash after any of them must leave what can be healed (README, what to compare)."""
    if not played.case.kubernetes:
        return []
    problems: list[str] = []
    written: set[Key] = set()
    for verb, key in played.writes:
        if isinstance(key, HandleKey) and verb == "delete":
            blocks = [k for k, v in played.before.items() if isinstance(v, Block) and v.held_by(key.id)]
            if blocks and not written.intersection(blocks):
                problems.append(f"{key} was removed before any of its blocks was written")
        claimed = played.before.get(BlockKey(key.cidr)) if isinstance(key, AffinityKey) else None
        stale = isinstance(key, AffinityKey) and (not isinstance(claimed, Block) or claimed.owner != key.owner)
        if isinstance(key, AffinityKey) and verb == "delete" and not {key, BlockKey(key.cidr)} <= written and not stale:
            problems.append(f"{key} was removed before it was marked and its block was written")
        if isinstance(key, BlockKey) and verb == "delete":
            value = played.before.get(key)
            owner = value.owner if isinstance(value, Block) else None
            row = AffinityKey(owner, key.cidr) if owner is not None else None
            if row in played.before and row not in written:
                problems.append(f"{key} was removed before its affinity was marked")
        written.add(key)
    return problems


@pytest.mark.parametrize("path", recordings(FOLDER))
def test_replay(path: Path, record_property: Any) -> None:
    case = load(path)
    problems, used = compare(play(case))
    for exception in used:
        record_property("excepted", f"{exception.limit} {case.name}")
    record_property("replayed", f"{len(case.phases)} {case.name}")
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("exception", EXCEPTIONS, ids=lambda exception: exception.limit)
def test_every_exception_is_needed(exception: Exception_) -> None:
    if not FOLDER.is_dir():
        pytest.skip(f"{FOLDER} is absent")
    path = FOLDER / f"{exception.seen}.json"  # where these are other recordings, nothing tells that it is not needed
    assert not path.is_file() or exception in compare(play(load(path)))[1]


# --- the harness can fail -----------------------------------------------------------------------------------


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    source = FOLDER / "leak-pod-gone-kdd.json"
    if not source.is_file():
        pytest.skip(f"{source} is absent")
    return Path(shutil.copy(source, tmp_path))


def spoiled(path: Path, change: Any) -> Case:
    path.chmod(0o600)
    document = json.loads(path.read_text(encoding="utf-8"))
    change(document)
    path.write_text(json.dumps(document), encoding="utf-8")
    return load(path)


@pytest.mark.parametrize("place", ["case", "config", "before"])
def test_an_unknown_field_fails(recording: Path, place: str) -> None:
    def change(document: dict[str, Any]) -> None:
        {"case": document, "config": document["config"], "before": document["before"][0]}[place]["novelty"] = 1

    with pytest.raises(UnknownRecording, match="novelty"):
        spoiled(recording, change)


BLOCK = "IPAMBlock/192-168-0-128-26"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda d: d["after"].pop(BLOCK), "must not be stored"),
        (lambda d: d["after"][BLOCK]["spec"].update(sequenceNumber=1), "expected"),
        (lambda d: d["after"].update({"IPAMHandle/x": {"spec": {"handleID": "x", "block": {}}}}), "must be stored"),
        (lambda d: d["metrics"].append('ipam_blocks{ippool="x",node="y"} 1'), "metrics lack"),
        (lambda d: d["metrics"].pop(), "metrics have"),
    ],
)
def test_a_difference_fails(recording: Path, change: Any, complaint: str) -> None:
    problems, _ = compare(play(spoiled(recording, change)))
    assert any(complaint in line for line in problems), problems


def test_an_exception_without_need_fails(recording: Path) -> None:
    needless = Exception_("U0", lambda moment: True, "nothing", lambda moment: dict(moment.after))
    problems, _ = compare(play(load(recording)), (needless,))
    assert any("U0 is not needed any more" in line for line in problems)


# --- neighbours of what was recorded --------------------------------------------------------------------------


def parts(document: dict[str, Any]) -> dict[str, Any]:
    """Take the members of the only phase out of a case."""
    names = ("events", "first_change_after_s", "last_change_after_s", "state_changed", "after", "metrics")
    return {name: document.pop(name) for name in names if name in document}


def untouched(document: dict[str, Any]) -> dict[str, Any]:
    """Return a phase in which nothing happens."""
    kinds = ("IPAMBlock", "BlockAffinity", "IPAMHandle")
    objects = [entry["k8s"] for entry in document["before"] if entry["k8s"]["kind"] in kinds]
    after = {f"{each['kind']}/{each['metadata']['name']}": each for each in objects}
    return {"events": [], "state_changed": {}, "after": after, "metrics": None, "last_change_after_s": 0.3}


def configuration(document: dict[str, Any]) -> dict[str, Any]:
    found = [entry for entry in document["before"] if entry["k8s"]["kind"] == "KubeControllersConfiguration"]
    return dict(found[0]["k8s"])


@pytest.mark.parametrize("first", ["15m0s", "0s", None])
def test_a_grace_period_that_changes_while_it_runs(recording: Path, first: str | None) -> None:
    def change(document: dict[str, Any]) -> None:
        event = {"k8s": copy.deepcopy(configuration(document)), "replace": True}
        later = {**parts(document), "events": [event]}
        configuration(document)["spec"]["controllers"]["node"]["leakGracePeriod"] = first
        document["phases"] = [untouched(document), later]

    assert compare(play(spoiled(recording, change))) == ([], [])


@pytest.mark.parametrize("controllers", ["loadbalancer", "node,nobody", "node,"])
def test_a_program_without_a_collector_leaves_everything(recording: Path, controllers: str) -> None:
    def change(document: dict[str, Any]) -> None:
        document["config"]["env"]["ENABLED_CONTROLLERS"] = controllers
        document.update(untouched(document), process_exit_code=1)

    assert compare(play(spoiled(recording, change))) == ([], [])


def test_objects_that_are_deleted_by_name_alone(recording: Path) -> None:
    def change(document: dict[str, Any]) -> None:
        first = parts(document)
        names = [name for name in first["after"] if name.startswith(("IPAMHandle/", "IPAMBlock/"))]
        gone = [
            {"k8s": {"kind": kind, "metadata": {"name": name}}, "delete": True}
            for kind, _, name in (name.partition("/") for name in names)
        ]
        after = {name: value for name, value in first["after"].items() if name not in names}
        document["phases"] = [first, {**first, "events": gone, "after": after, "metrics": None}]

    problems, _ = compare(play(spoiled(recording, change)))
    assert problems == []


def test_machines_and_what_the_collector_does_not_follow(recording: Path) -> None:
    def change(document: dict[str, Any]) -> None:
        for group, kind in (("kubevirt.io/v1", "VirtualMachine"), ("v1", "Namespace"), ("apps/v1", "DaemonSet")):
            thing = {"apiVersion": group, "kind": kind, "metadata": {"name": "x", "namespace": "default"}}
            document["before"].append({"k8s": thing})

    assert compare(play(spoiled(recording, change))) == ([], [])


def test_a_block_of_nobody_that_is_emptied_by_cooling_down_goes(tmp_path: Path) -> None:
    """Limit L9 of ipam-library: upstream leaves it for ever."""
    source = FOLDER / "cold-expired-empties-block-kdd.json"
    if not source.is_file():
        pytest.skip(f"{source} is absent")

    def change(document: dict[str, Any]) -> None:
        blocks = [each["k8s"] for each in document["before"] if each["k8s"]["kind"] == "IPAMBlock"]
        (cold,) = [each for each in blocks if "releasedAt" in json.dumps(each)]
        cold["spec"]["affinity"] = None
        rows = [entry for entry in document["before"] if entry["k8s"]["kind"] == "BlockAffinity"]
        document["before"] = [e for e in document["before"] if e not in rows or cold["spec"]["cidr"] not in str(e)]
        size = len(cold["spec"]["allocations"])
        free = {"allocations": [None] * size, "unallocated": list(range(size)), "attributes": []}
        document["after"][f"IPAMBlock/{cold['metadata']['name']}"] = {**cold, "spec": {**cold["spec"], **free}}

    problems, used = compare(play(spoiled(Path(shutil.copy(source, tmp_path)), change)))
    assert (problems, [each.limit for each in used]) == ([], ["ipam-library L9"])


def test_a_row_of_a_node_that_is_gone_goes_without_its_block(tmp_path: Path) -> None:
    """Limit L8 of ipam-library: upstream leaves it for ever."""
    source = FOLDER / "node-gone-kdd.json"
    if not source.is_file():
        pytest.skip(f"{source} is absent")

    def change(document: dict[str, Any]) -> None:
        rows = [e["k8s"] for e in document["before"] if e["k8s"]["kind"] == "BlockAffinity"]
        row = copy.deepcopy(next(row for row in rows if row["spec"]["node"] == "node-z"))
        row["metadata"]["name"] = "node-z-192-168-9-0-26"
        row["spec"]["cidr"] = "192.168.9.0/26"
        document["before"].append({"k8s": row})
        document["after"][f"BlockAffinity/{row['metadata']['name']}"] = row

    problems, used = compare(play(spoiled(Path(shutil.copy(source, tmp_path)), change)))
    assert (problems, [each.limit for each in used]) == ([], ["ipam-library L8"])


def test_addresses_that_cool_down_queue_in_the_order_of_their_release(tmp_path: Path) -> None:
    """Limit L22 of ipam-library: upstream queues them by ordinal."""
    source = FOLDER / "cold-noconfig-kdd.json"
    if not source.is_file():
        pytest.skip(f"{source} is absent")

    def change(document: dict[str, Any]) -> None:
        (cold,) = [e["k8s"] for e in document["before"] if "releasedAt" in json.dumps(e)]
        spec = cold["spec"]
        spec["allocations"][20] = len(spec["attributes"])
        spec["attributes"].append({"releasedAt": "2026-08-01T10:00:00Z"})
        spec["unallocated"].remove(20)
        after = document["after"][f"IPAMBlock/{cold['metadata']['name']}"]["spec"]["unallocated"]
        after.remove(20)
        after.append(20)

    problems, used = compare(play(spoiled(Path(shutil.copy(source, tmp_path)), change)))
    assert (problems, [each.limit for each in used]) == ([], ["ipam-library L22"])


def test_an_address_under_the_handle_of_an_unnamed_machine_is_kept(recording: Path) -> None:
    """Safety rule 1: nobody can tell whether the machine lives; upstream goes by the pod alone."""

    def change(document: dict[str, Any]) -> None:
        text = json.dumps(document)
        (gone,) = set(re.findall(r"IPAMHandle/([\w.-]+)", json.dumps(document["state_changed"])))
        document.update(json.loads(text.replace(gone, "k8s-pod-network.vmi.default.vm1")))

    problems, used = compare(play(spoiled(recording, change)))
    assert (problems, [each.limit for each in used]) == ([], ["safety rule 1"])
