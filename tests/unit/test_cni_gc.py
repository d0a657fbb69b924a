"""GC of both plugins: only what is surely nobody's any more is released (rulings 6)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from calico_cni.context import Finished
from calico_ipam.engine.client import IPAM
from calico_ipam.errors import StoreUnavailable
from calico_ipam.model.addresses import parse_address
from calico_ipam.model.keys import BlockKey
from calico_ipam.model.resource import NODE, WORKLOAD_ENDPOINT
from calico_ipam.model.timestamps import format_attribute_time
from tests.cni_bench import CONTAINER, NETNS, CNIBench, answer, failure, told
from tests.faulty import Fault, FaultyStore

OLD, YOUNG = 301.0, 299.0
GC: dict[str, Any] = {"cniVersion": "1.1.0"}


@pytest.fixture
def bench(tmp_path: Path) -> CNIBench:
    return CNIBench(tmp_path).prepare()


def attachments(*containers: str) -> dict[str, Any]:
    return {"cni.dev/valid-attachments": [{"containerID": c, "ifname": "eth0"} for c in containers]}


def assign(bench: CNIBench, ip: str, handle: str, **attrs: str) -> None:
    """Assign as another program would; ``node`` and ``timestamp`` are filled in."""
    whole = {"node": "worker-1", "timestamp": format_attribute_time(bench.clock.now()), **attrs}
    ipam = IPAM(bench.base, hostname="worker-1", clock=bench.clock)
    ipam.assign_ip(parse_address(ip), handle=handle, attrs={k: v for k, v in whole.items() if v})


# --- calico-ipam --------------------------------------------------------------------------------------------


def test_what_nobody_lists_is_released(bench: CNIBench) -> None:
    for container in ("alive", "dead"):
        answer(bench.ipam("ADD", container=container))
    bench.clock.advance(OLD)
    response = bench.ipam("GC", **GC, **attachments("alive"))
    assert (response.exit_code, response.stdout) == (0, "")
    assert bench.handles() == ["net1.alive"]
    assert len(bench.addresses()) == 1


@pytest.mark.parametrize("key", [{}, {"cni.dev/valid-attachments": None}])
def test_without_a_list_nothing_is_known(bench: CNIBench, key: dict[str, Any]) -> None:
    answer(bench.ipam("ADD"))
    bench.clock.advance(OLD)
    assert bench.ipam("GC", **GC, **key).exit_code == 0
    assert len(bench.addresses()) == 1


def test_an_empty_list_means_that_nothing_is_valid(bench: CNIBench) -> None:
    answer(bench.ipam("ADD"))
    bench.clock.advance(OLD)
    assert bench.ipam("GC", **GC, **attachments()).exit_code == 0
    assert bench.addresses() == []


def test_the_older_key_is_understood(bench: CNIBench) -> None:
    answer(bench.ipam("ADD"))
    bench.clock.advance(OLD)
    assert bench.ipam("GC", **GC, **{"cni.dev/attachments": []}).exit_code == 0
    assert bench.addresses() == []


@pytest.mark.parametrize("text", [5, [{"ifname": "eth0"}], ["x"], [{"containerID": "", "ifname": "eth0"}]])
def test_a_list_that_cannot_be_understood_releases_nothing(bench: CNIBench, text: object) -> None:
    answer(bench.ipam("ADD"))
    bench.clock.advance(OLD)
    assert "cni.dev/valid-attachments" in told(bench.ipam("GC", **GC, **{"cni.dev/valid-attachments": text}))
    assert len(bench.addresses()) == 1


KEPT: list[tuple[str, str, dict[str, str]]] = [
    ("another network", "net11.dead", {}),
    ("a virtual machine", "net1.vmi.ns.vm", {}),
    ("more than a container ID", "net1.a.b", {}),
    ("no container ID", "net1.", {}),
    ("another node", "net1.dead", {"node": "worker-2"}),
    ("no node", "net1.dead", {"node": ""}),
    ("no timestamp", "net1.dead", {"timestamp": ""}),
    ("a timestamp that says nothing", "net1.dead", {"timestamp": "yesterday"}),
    ("a tunnel", "vxlan-tunnel-addr-worker-1", {"type": "vxlanTunnelAddress"}),
    ("reserved for Windows", "windows-reserved-ipam-handle", {}),
]


@pytest.mark.parametrize(("handle", "attrs"), [pytest.param(h, a, id=i) for i, h, a in KEPT])
def test_what_is_kept(bench: CNIBench, handle: str, attrs: dict[str, str]) -> None:
    assign(bench, "10.65.0.5", handle, **attrs)
    assign(bench, "10.65.0.6", "net1.dead")  # the witness: this one goes
    bench.clock.advance(OLD)
    assert bench.ipam("GC", **GC, **attachments()).exit_code == 0
    assert bench.addresses() == ["10.65.0.5"]


def test_a_young_allocation_is_kept(bench: CNIBench) -> None:
    answer(bench.ipam("ADD"))
    bench.clock.advance(YOUNG)
    assert bench.ipam("GC", **GC, **attachments()).exit_code == 0
    assert len(bench.addresses()) == 1


@pytest.mark.parametrize("conf", [{"policy": {"type": "k8s"}}, {"kubernetes": {"kubeconfig": "/x"}}])
def test_for_kubernetes_only_pods_are_released(bench: CNIBench, conf: dict[str, Any]) -> None:
    assign(bench, "10.65.0.5", "net1.dead")
    assign(bench, "10.65.0.6", "net1.deadpod", pod="p", namespace="n")
    bench.clock.advance(OLD)
    assert bench.ipam("GC", **GC, **attachments(), **conf).exit_code == 0
    assert bench.addresses() == ["10.65.0.5"]


def test_borrowed_addresses_are_found(bench: CNIBench) -> None:
    bench.put(NODE, "worker-2", {})
    IPAM(bench.base, hostname="worker-2", clock=bench.clock).assign_ip(parse_address("10.65.0.100"), handle="x.y")
    assign(bench, "10.65.0.101", "net1.dead")
    key = BlockKey(bench.base.get(BlockKey(parse_block("10.65.0.96/28"))).value.cidr)
    assert bench.base.get(key).value.affinity == "host:worker-2"
    bench.clock.advance(OLD)
    assert bench.ipam("GC", **GC, **attachments()).exit_code == 0
    assert bench.addresses() == ["10.65.0.100"]


def parse_block(text: str) -> Any:
    from ipaddress import ip_network

    return ip_network(text)


def test_errors_are_gathered_and_told(bench: CNIBench) -> None:
    for number in range(3):
        assign(bench, f"10.65.0.{5 + number}", f"net1.dead{number}")
    bench.clock.advance(OLD)
    bench.store = FaultyStore(bench.base, Fault("before", operation=1, verb="commit"))
    assert failure(bench.ipam("GC", **GC, **attachments()))["code"] == 11
    assert len(bench.addresses()) == 1, "the others went all the same"


# --- calico -------------------------------------------------------------------------------------------------


def test_link_record_and_address_of_a_stale_attachment_go(bench: CNIBench) -> None:
    answer(bench.call("ADD"))
    answer(bench.call("ADD", container="alive", netns="/run/netns/pod2"))
    age_records(bench)
    response = bench.call("GC", **GC, **attachments("alive"))
    assert (response.exit_code, response.stdout) == (0, "")
    assert [record.spec["containerID"] for record in bench.records()] == ["alive"]
    assert list(bench.dataplane.pairs) == ["calialive"]
    assert bench.handles() == ["net1.alive"]


def age_records(bench: CNIBench) -> None:
    """Let time pass. Records get their time from the store, which keeps the machine's."""
    import time

    bench.clock.at = max(bench.clock.at, time.time_ns())
    bench.clock.advance(OLD)


def test_a_stale_link_that_somebody_lives_behind_keeps_everything(bench: CNIBench) -> None:
    answer(bench.call("ADD"))
    bench.dataplane.inhabited.add(NETNS)
    age_records(bench)
    assert bench.call("GC", **GC, **attachments()).exit_code == 0
    assert len(bench.records()) == len(bench.dataplane.pairs) == len(bench.addresses()) == 1
    assert "is kept: its link may be in use" in bench.log()


def test_without_a_list_calico_forwards_nothing(bench: CNIBench) -> None:
    answer(bench.call("ADD"))
    age_records(bench)
    assert bench.call("GC", **GC, ipam={"type": "host-local"}).exit_code == 0
    assert len(bench.records()) == 1


def test_records_of_other_networks_nodes_and_orchestrators_are_left(bench: CNIBench) -> None:
    base: dict[str, Any] = {
        "orchestrator": "cni",
        "node": "worker-1",
        "endpoint": "eth0",
        "profiles": ["net1"],
        "containerID": "x",
    }
    records: dict[str, dict[str, Any]] = {
        "worker--1-cni-a-eth0": {"profiles": ["net2"]},
        "worker--1-cni-b-eth0": {"profiles": ["net1", "net2"]},
        "worker--2-cni-c-eth0": {"node": "worker-2"},
        "worker--1-k8s-d-eth0": {"orchestrator": "k8s"},
    }
    for name, changes in records.items():
        bench.put(WORKLOAD_ENDPOINT, name, {**base, **changes}, "default")
    age_records(bench)
    before = bench.records()
    assert bench.call("GC", **GC, **attachments()).exit_code == 0
    assert bench.records() == before


def test_a_young_record_is_left(bench: CNIBench) -> None:
    answer(bench.call("ADD"))
    import time

    bench.clock.at = time.time_ns()
    assert bench.call("GC", **GC, **attachments()).exit_code == 0
    assert len(bench.records()) == 1


def test_every_error_is_told_and_the_rest_is_done(bench: CNIBench) -> None:
    answer(bench.call("ADD"))
    answer(bench.call("ADD", container="other", netns="/run/netns/pod2"))
    age_records(bench)

    def fail(operation: str) -> None:
        if operation == "remove":
            from calico_cni.dataplane.api import DataplaneError

            bench.dataplane.fail = lambda _operation: None
            raise DataplaneError("device busy")

    bench.dataplane.fail = fail
    assert "device busy" in told(bench.call("GC", **GC, **attachments()))
    assert len(bench.records()) == len(bench.dataplane.pairs) == len(bench.addresses()) == 1


class Foreign:
    """An IPAM plugin of others that answers VERSION with a list, and remembers what else it was asked."""

    def __init__(self, bench: CNIBench, supported: list[str]) -> None:
        self.supported = supported
        self.asked: list[tuple[str, Mapping[str, Any]]] = []
        (bench.folder / "bin").mkdir()
        (bench.folder / "bin" / "other").touch()
        bench.run_program = self.run

    def run(self, path: Path, environ: Mapping[str, str], stdin: bytes, timeout: float) -> Finished:
        if environ["CNI_COMMAND"] == "VERSION":
            return Finished(0, json.dumps({"cniVersion": "1.1.0", "supportedVersions": self.supported}).encode(), b"")
        self.asked.append((environ["CNI_COMMAND"], json.loads(stdin)))
        return Finished(0, b"", b"")


def test_a_foreign_plugin_that_knows_gc_gets_the_list(bench: CNIBench) -> None:
    foreign = Foreign(bench, ["1.0.0", "1.1.0"])
    assert bench.call("GC", **GC, **attachments("a"), ipam={"type": "other"}).exit_code == 0
    ((verb, netconf),) = foreign.asked
    assert verb == "GC" and netconf["cni.dev/valid-attachments"] == [{"containerID": "a", "ifname": "eth0"}]


def test_a_foreign_plugin_that_does_not_know_gc_is_left_out(bench: CNIBench) -> None:
    foreign = Foreign(bench, ["1.0.0"])
    assert bench.call("GC", **GC, **attachments("a"), ipam={"type": "other"}).exit_code == 0
    assert foreign.asked == []
    assert "does not know GC" in bench.log()


def test_attachments_that_had_to_be_kept_are_forwarded_as_valid(bench: CNIBench) -> None:
    answer(bench.call("ADD"))
    bench.dataplane.inhabited.add(NETNS)
    age_records(bench)
    foreign = Foreign(bench, ["1.1.0"])
    assert bench.call("GC", **GC, **attachments(), ipam={"type": "other"}).exit_code == 0
    assert foreign.asked[0][1]["cni.dev/valid-attachments"] == [{"containerID": CONTAINER, "ifname": "eth0"}]


def test_a_store_that_does_not_answer(bench: CNIBench) -> None:
    bench.open_error = StoreUnavailable("refused")
    assert failure(bench.call("GC", **GC, **attachments()))["code"] == 11
