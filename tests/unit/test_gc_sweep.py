"""What the sweep of a node believes: what belongs to nobody, by kind, and never before a second look."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from calico_gc.node_sweep import Options, Swept
from calico_gc.sweep import living as sources
from calico_gc.sweep import residue as kinds
from calico_gc.sweep.judge import judge
from calico_gc.sweep.living import Living, NoAnswer, PodHere, Result, Sandbox
from calico_gc.sweep.residue import APART, KINDS, REMOVABLE, Residue, Seen, document_of, loaded, observe
from calico_gc.sweep.traces import Holder, Trace, Traces, holders, pod_link_names

from calico_cni.dataplane.api import Peer
from calico_ipam.errors import InvalidInput
from calico_ipam.model.addresses import parse_address
from calico_ipam.model.endpoint_names import veth_name_for_container, veth_name_for_workload
from tests.gc_views import block, cooling

POD = PodHere(("shop", "web"), "uid-1", ("10.0.0.1",), folders=frozenset({"uid-1"}))
CONTAINER = "a" * 64
OTHER = "b" * 64
LINK = veth_name_for_workload("shop", "web")
NETNS = "/var/run/netns/cni-0a1b2c3d-0000-1111-2222-333344445555"
EVERY = frozenset({*(sources.PODS, sources.ENDPOINTS, sources.SANDBOXES, sources.RESULTS, sources.BLOCKS)})


def living(**more: Any) -> Living:
    given: dict[str, Any] = {
        "pods": {POD.key: POD},
        "sandboxes": {CONTAINER: Sandbox(CONTAINER, POD.key)},
        "results": (Result(f"net-{CONTAINER}-eth0", CONTAINER, frozenset({NETNS})),),
        "configured": EVERY,
        **more,
    }
    return Living("n", **given)


def found(known: Living, traces: Traces, kind: str, slices: Any = ()) -> list[str]:
    return [residue.name for residue in judge(known, traces, slices).found if residue.kind == kind]


# --- links and routes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "peer", "stale"),
    [
        ("cali0123456789a", Peer.EMPTY, True),
        ("cali0123456789a", Peer.HOST, True),
        ("cali0123456789a", Peer.INHABITED, False),  # a process lives there: always kept (ruling 8)
        ("cali0123456789a", Peer.UNKNOWN, False),
        (LINK, Peer.EMPTY, False),  # the pod was made again under its name and is about to use it
        (veth_name_for_container(CONTAINER), Peer.EMPTY, False),
        (veth_name_for_workload("kube-system", "dns"), Peer.EMPTY, False),
        ("cali-endpoint0", Peer.EMPTY, False),
    ],
)
def test_links(name: str, peer: Peer, stale: bool) -> None:
    known = living(
        interfaces=frozenset({"cali-endpoint0"}),
        sandboxes={CONTAINER: Sandbox(CONTAINER, ("kube-system", "dns"))},
    )
    traces = Traces(links=(Trace(name, 7, peer, (parse_address("10.0.0.9"), parse_address("fd00::9"))),))
    assert found(known, traces, kinds.VETH) == ([name] if stale else [])
    routes = [f"10.0.0.9 dev {name}", f"fd00::9 dev {name}"]
    assert found(known, traces, kinds.ROUTE) == (routes if stale else [])


@pytest.mark.parametrize(
    ("prefixes", "name", "matches"),
    [
        ("cali", "cali0123456789a", True),
        ("eni,cali", "eni0123456789a", True),
        ("eni,cali", "cali0123456789a", False),
        ("", "cali0123456789a", True),
        *(
            ("cali", name, False)
            for name in ("vxlan.calico", "tunl0", "wireguard.cali", "cali0123456789", "cali0123456789ab")
        ),
        *(
            ("cali", name, False)
            for name in ("bpfin.cali", "bpfout.cali", "cali012345678Xa", "xcali0123456789a", "eth0")
        ),
    ],
)
def test_only_names_of_pods_links_are_ever_looked_at(prefixes: str, name: str, matches: bool) -> None:
    assert bool(pod_link_names(prefixes).fullmatch(name)) == matches


@pytest.mark.parametrize("silent", [sources.PODS, sources.ENDPOINTS, sources.SANDBOXES, sources.RESULTS])
def test_a_source_that_does_not_answer_keeps_every_link(silent: str) -> None:
    known = replace(living(), unknown={silent: "no answer"})
    judged = judge(known, Traces(links=(Trace("cali0123456789a", 7, Peer.EMPTY),)))
    assert not judged.found
    assert {kinds.VETH, kinds.ROUTE} <= set(judged.why)
    assert not {kinds.VETH, kinds.ROUTE} & judged.kinds


def test_where_nobody_can_be_asked_nothing_is_judged() -> None:
    judged = judge(Living("n"), Traces(links=(Trace("cali0123456789a", 7, Peer.EMPTY),), namespaces={NETNS: (1, 2)}))
    assert judged.found == ()
    assert judged.kinds == {kinds.LOCK}


# --- namespaces, results, locks -------------------------------------------------------------------------------


def test_namespaces() -> None:
    stray = NETNS.replace("0a1b", "ffff")
    traces = Traces(namespaces={NETNS: (4, 1), stray: (4, 2), f"{stray}0": (4, 3)}, inhabited=frozenset({(4, 3)}))
    assert found(living(), traces, kinds.NETNS) == [stray]
    remembered = Result("x", OTHER, frozenset({stray.removeprefix("/var")}))
    assert found(living(results=(*living().results, remembered)), traces, kinds.NETNS) == []


def test_a_sandbox_of_an_unknown_namespace_keeps_all_of_them() -> None:
    traces = Traces(namespaces={NETNS.replace("0a1b", "ffff"): (4, 2)})
    sandboxes = {CONTAINER: Sandbox(CONTAINER, POD.key), OTHER: Sandbox(OTHER, ("kube-system", "proxy"))}
    judged = judge(living(sandboxes=sandboxes), traces)
    assert "nobody knows which namespace" in judged.why[kinds.NETNS]
    host = PodHere(("kube-system", "proxy"), "uid-2", host_network=True)
    judged = judge(living(sandboxes=sandboxes, pods={POD.key: POD, host.key: host}), traces)
    assert [r.kind for r in judged.found] == [kinds.NETNS]


def test_processes_that_cannot_be_seen_keep_all_namespaces() -> None:
    judged = judge(living(), Traces(namespaces={"/x": (4, 2)}, unknown={"inhabited": "cannot see process 7"}))
    assert judged.why[kinds.NETNS] == "cannot see process 7"


def test_results_of_libcni() -> None:
    gone = Result(f"net-{OTHER}-eth0", OTHER, frozenset({"/var/run/netns/cni-gone"}))
    known = living(results=(*living().results, gone))
    assert found(known, Traces(), kinds.CACHE) == [gone.file]
    assert found(known, Traces(namespaces={"/run/netns/cni-gone": (4, 9)}), kinds.CACHE) == []
    assert kinds.CACHE in judge(replace(known, configured=EVERY - {sources.SANDBOXES}), Traces()).why


def test_lock_holders_are_the_same_only_with_the_same_start() -> None:
    [one] = judge(living(), Traces(holders=(Holder(7, "100", "calico"),))).found
    [other] = judge(living(), Traces(holders=(Holder(7, "200", "calico"),))).found
    assert (one.kind, one.name, one.detail) == (kinds.LOCK, "process 7", "calico holds the allocation lock")
    [nameless] = judge(living(), Traces(holders=(Holder(7, "", ""),))).found
    assert nameless.detail.startswith("whoever inherited it")
    assert one.mark != other.mark


def test_lock_holders_are_read_from_the_kernel(tmp_path: Path) -> None:
    lock = tmp_path / "ipam.lock"
    assert holders(lock, Path("/proc")) == ()
    code = "import fcntl,sys,time; f=open(sys.argv[1],'w'); fcntl.flock(f, 2); print('x', flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code, lock], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.read(1)
        [holder] = holders(lock, Path("/proc"))
        assert holder.pid == process.pid and holder.command and holder.started.isdigit()
    finally:
        process.kill()
        process.communicate()
    assert holders(lock, Path("/proc")) == () and lock.exists()


# --- addresses ------------------------------------------------------------------------------------------------


def test_connections_of_addresses_that_nobody_holds() -> None:
    mine = cooling(block("10.0.0.0/29", "n", 3), 2)
    texts = ("10.0.0.0", "10.0.0.2", "10.0.0.5", "10.0.0.6", "10.9.0.1", "8.8.8.8", "10.1.0.1")
    traces = Traces(
        connections={parse_address(text): 3 for text in texts},
        links=(Trace(LINK, 3, Peer.INHABITED, (parse_address("10.0.0.6"),)),),
    )
    known = living(blocks=(mine, block("10.1.0.0/29", "other")))
    assert found(known, traces, kinds.CONNTRACK) == ["10.0.0.2", "10.0.0.5"]


@pytest.mark.parametrize(
    ("attrs", "handle", "told"),
    [
        ({}, f"net.{OTHER}", True),
        ({}, f"net.with.dots.{OTHER}", True),
        ({}, f"net.{CONTAINER}", False),  # the runtime knows it
        ({"node": "other"}, f"net.{OTHER}", False),
        ({"vmi-name": "vm"}, f"net.{OTHER}", False),
        ({"type": "vxlanTunnelAddress"}, f"net.{OTHER}", False),
        ({}, "vxlan-tunnel-addr-n", False),
        ({}, "net.vmi.ns.machine", False),
        ({}, "ns.pod", False),
    ],
)
def test_addresses_of_containers_that_the_runtime_does_not_know(attrs: dict[str, str], handle: str, told: bool) -> None:
    empty = block("10.0.0.0/29", "n")
    made = empty.assign_address(
        empty.address(1), handle=handle, attrs={"node": "n", "pod": "p", "namespace": "d", **attrs}
    )
    assert found(living(blocks=(made,)), Traces(), kinds.IPAM) == (["10.0.0.1"] if told else [])


# --- folders, slices ------------------------------------------------------------------------------------------


def test_folders_of_pods() -> None:
    static = PodHere(("kube-system", "etcd-n"), "mirror", folders=frozenset({"mirror", "hash-of-manifest"}))
    known = living(pods={POD.key: POD, static.key: static})
    traces = Traces(volumes={"uid-1": 5, "hash-of-manifest": 6, "gone": 7})
    assert found(known, traces, kinds.VOLUME) == ["gone"]
    assert kinds.VOLUME in judge(replace(known, configured=EVERY - {sources.PODS}), traces).why


def test_slices_that_name_dead_pods() -> None:
    def entry(uid: str, address: str, kind: str = "Pod") -> Mapping[str, Any]:
        return {"addresses": [address], "nodeName": "n", "targetRef": {"kind": kind, "name": "web", "uid": uid}}

    slices = [
        ("shop", "web-x", "s", entry("uid-1", "10.0.0.1")),
        ("shop", "web-x", "s", entry("uid-1", "10.0.0.2")),
        ("shop", "web-x", "s", entry("uid-9", "10.0.0.3")),
        ("shop", "web-x", "s", entry("uid-9", "10.0.0.4", "VirtualMachine")),
        ("shop", "web-x", "s", {"addresses": None}),
    ]
    assert found(living(), Traces(), kinds.SLICE, slices) == ["shop/web-x 10.0.0.2", "shop/web-x 10.0.0.3"]


# --- two looks ------------------------------------------------------------------------------------------------

STALE = Residue(kinds.VETH, "cali0", "7", "first")


def test_nothing_is_believed_before_two_looks_ten_minutes_apart() -> None:
    memory = observe({}, [STALE], KINDS, 100.0)
    assert not memory[STALE.key].confirmed
    memory = observe(memory, [replace(STALE, detail="second")], KINDS, 100.0 + APART - 1)
    assert not memory[STALE.key].confirmed
    memory = observe(memory, [STALE], KINDS, 100.0 + APART)
    assert (memory[STALE.key].confirmed, memory[STALE.key].looks) == (True, 3)


def test_one_old_look_is_not_two() -> None:
    assert not Seen(STALE, 0.0, APART * 2).confirmed


@pytest.mark.parametrize(
    ("second", "judged", "first"),
    [
        ([replace(STALE, mark="8")], KINDS, 700.0),  # another link of the same name: its time begins now
        ([], KINDS, None),  # gone in between
        ([], {kinds.NETNS}, 100.0),  # not judged: neither counts nor is forgotten
    ],
)
def test_what_changed_begins_anew(second: list[Residue], judged: Any, first: float | None) -> None:
    memory = observe(observe({}, [STALE], KINDS, 100.0), second, judged, 700.0)
    assert [seen.first for seen in memory.values()] == ([] if first is None else [first])


def test_what_could_not_be_judged_for_a_day_is_forgotten() -> None:
    assert observe(observe({}, [STALE], KINDS, 0.0), [], set(), 90_000.0) == {}


def test_the_memory_survives_its_file_and_nothing_else() -> None:
    memory = observe({}, [STALE], KINDS, 100.0)
    text = json.dumps(document_of(memory, "boot-1"))
    assert loaded(text, "boot-1") == memory
    assert loaded(text, "boot-2") == {}, "after a restart of the node its seconds mean nothing"
    for bad in (
        "",
        "{",
        "[]",
        '{"schema": 1, "boot": "boot-1"}',
        '{"schema": 1, "boot": "boot-1", "seen": [{}]}',
        "null",
    ):
        assert loaded(bad, "boot-1") == {}


# --- sources --------------------------------------------------------------------------------------------------


def test_the_runtimes_answer_is_believed_only_when_it_is_understood(tmp_path: Path) -> None:
    good = {"items": [{"id": CONTAINER, "metadata": {"name": "web", "namespace": "shop", "uid": "u"}}]}
    for name, text in (("good", json.dumps(good)), ("none", '{"items": []}'), ("null", '{"items": null}')):
        (tmp_path / name).write_text(text)
    assert sources.ask_runtime(f"cat {tmp_path}/good") == {CONTAINER: Sandbox(CONTAINER, ("shop", "web"))}
    assert sources.ask_runtime(f"cat {tmp_path}/none") == sources.ask_runtime(f"cat {tmp_path}/null") == {}
    for command in ("false", "echo hello", "echo {}", "no-such-program", f"cat {tmp_path}/missing", "echo '"):
        with pytest.raises(NoAnswer):
            sources.ask_runtime(command)


def test_one_result_that_cannot_be_read_makes_all_unknown(tmp_path: Path) -> None:
    assert sources.ask_results(tmp_path / "none") == ()
    document = {
        "containerId": CONTAINER,
        "result": {"interfaces": [{"name": "eth0", "sandbox": NETNS}, {"name": "cali"}]},
    }
    (tmp_path / "net-a-eth0").write_text(json.dumps(document))
    assert sources.ask_results(tmp_path) == (Result("net-a-eth0", CONTAINER, frozenset({NETNS})),)
    for bad in ("{", "[]", "{}"):
        (tmp_path / "bad").write_text(bad)
        with pytest.raises(NoAnswer):
            sources.ask_results(tmp_path)


@pytest.mark.parametrize("kind", sorted(set(KINDS) - set(REMOVABLE)))
def test_kinds_that_are_somebody_elses_have_no_apply(kind: str) -> None:
    with pytest.raises(InvalidInput, match="only reported"):
        Options("n", apply=frozenset({kind}))


def test_unknown_kinds_are_named() -> None:
    with pytest.raises(InvalidInput, match="'veths' are not known"):
        Options("n", apply=frozenset({"veths"}))


def test_the_report_of_nothing() -> None:
    swept = Swept("n", 1_767_323_045 * 10**9, 5000.0)
    assert swept.document() | {"confirmed": {}} == {
        "schema": "calico-ipam-node-sweep/v1",
        "node": "n",
        "generated": "2026-01-02T03:04:05Z",
        "skipped": "",
        "notJudged": {},
        "confirmed": {},
        "residue": [],
    }
    assert 'ipam_gc_node_residue{kind="veth"} 0\n' in swept.metrics()


def test_the_program_says_what_it_cannot_do(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "calico_gc.main", "node-sweep", "--apply", "lock", "--no-kubernetes"],
        env={**os.environ, "CALICO_DATASTORE_TYPE": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "'lock' are only reported" in done.stderr and "Traceback" not in done.stderr
