"""A host without Kubernetes: dead only if every source answered and none knows the container (ruling 7)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from calico_gc.decide import Rules
from calico_gc.host import HostLive, Runtime, Sources
from calico_gc.intake import RUNTIME, Change
from calico_gc.options import Options

from calico_ipam.model.addresses import parse_address
from tests.gc_things import add_block, holders
from tests.gc_world import World

CIDR = "10.0.0.0/26"


def cached(folder: Path, container: str, network: str = "net") -> None:
    folder.mkdir(exist_ok=True)
    document = {"kind": "cniCacheV1", "containerId": container, "networkName": network, "ifName": "eth0"}
    (folder / f"{network}-{container}-eth0").write_text(json.dumps(document))


def sources(tmp_path: Path, command: str = "") -> Sources:
    (tmp_path / "results").mkdir(exist_ok=True)
    return Sources(cache=str(tmp_path / "results"), command=command, processes=processes(tmp_path, os.getpid()))


def processes(tmp_path: Path, *numbers: int) -> str:
    """Return a folder with some of the real processes: in a container even root may not look into all of them."""
    folder = tmp_path / "some-processes"
    folder.mkdir(exist_ok=True)
    for number in numbers:
        (folder / str(number)).symlink_to(f"/proc/{number}")
    return str(folder)


def test_all_sources_together(tmp_path: Path) -> None:
    cached(tmp_path / "results", "c1")
    runtime = sources(tmp_path, f"{sys.executable} -c \"print('c2 x\\nc3')\"").look()
    assert (runtime.complete, runtime.containers) == (True, frozenset({"c1", "c2", "c3"}))
    assert parse_address("127.0.0.1") in runtime.addresses, "this process is in a namespace that has it"


@pytest.mark.parametrize("command", ["false", "/no/such/program", "sh -c 'exit 3'"])
def test_a_runtime_that_does_not_answer_keeps_everything(tmp_path: Path, command: str) -> None:
    runtime = sources(tmp_path, command).look()
    assert not runtime.complete
    assert command.split()[0] in runtime.reasons[0]


def test_a_cache_that_is_not_there_keeps_everything(tmp_path: Path) -> None:
    runtime = Sources(cache=str(tmp_path / "absent")).look()
    assert not runtime.complete
    assert "cannot be read" in runtime.reasons[0]


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"kind": "x"}'])
def test_a_cache_entry_that_cannot_be_understood_keeps_everything(tmp_path: Path, content: str) -> None:
    asked = sources(tmp_path)
    (tmp_path / "results" / "net-c1-eth0").write_text(content)
    assert not asked.look().complete


def test_addresses_of_a_namespace_with_a_process(tmp_path: Path) -> None:
    """What the kernel writes of a namespace, as files: the real thing is looked at above."""
    process = tmp_path / "proc" / "42"
    (process / "ns").mkdir(parents=True)
    (process / "net").mkdir()
    (process / "ns" / "net").write_text("")
    (process / "net" / "fib_trie").write_text(
        "Local:\n  +-- 10.0.0.0/8 2 0 2\n     |-- 10.0.0.5\n        /32 host LOCAL\n"
        "     |-- 10.0.0.9\n        /32 link UNICAST\n"
    )
    (process / "net" / "if_inet6").write_text("fd000000000000000000000000000007 02 40 00 80     eth0\n")
    (tmp_path / "results").mkdir()
    runtime = Sources(cache=str(tmp_path / "results"), processes=str(tmp_path / "proc")).look()
    assert runtime.complete
    assert runtime.addresses == {parse_address("10.0.0.5"), parse_address("fd00::7")}


def test_a_process_that_ends_meanwhile_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "proc" / "42").mkdir(parents=True)
    (tmp_path / "results").mkdir()
    assert Sources(cache=str(tmp_path / "results"), processes=str(tmp_path / "proc")).look().complete


# --- decisions -----------------------------------------------------------------------------------------------------


class Told:
    """Sources whose answer the test sets."""

    def __init__(self, answer: Runtime) -> None:
        self.answer = answer

    def look(self) -> Runtime:
        return self.answer


def host_world(answer: Runtime) -> tuple[World, Told]:
    told = Told(answer)
    world = World(kubernetes=False, options=Options(rules=Rules(leak_grace=60.0)))
    world.state.kubernetes = False
    world.state.runtime = answer
    live = HostLive("here", told)  # type: ignore[arg-type]  # a fake in its place
    world.controller.live = live
    world.worker._live = live
    held = {
        1: ("net.dead", {"node": "here"}),
        2: ("net.alive", {"node": "here"}),
        3: ("net.elsewhere", {"node": "there"}),
        4: ("my.net.dotted", {"node": "here"}),
        5: ("nodot", {"node": "here"}),
        6: ("net.uses", {"node": "here"}),
        7: ("net.podlike", {"node": "here", "pod": "p", "namespace": "d"}),
        8: ("ipip-tunnel-addr-here", {"node": "here", "type": "ipipTunnelAddress"}),
    }
    add_block(world, CIDR, "here", held)
    return world, told


KNOWN = Runtime(True, frozenset({"alive", "dotted"}), frozenset({parse_address("10.0.0.6")}))


def test_only_what_is_certainly_dead_goes() -> None:
    world, _ = host_world(KNOWN)
    world.start()
    assert set(holders(world, CIDR)) == set(range(1, 9)), "the first look releases nothing"
    world.run(200)
    assert set(holders(world, CIDR)) == {2, 3, 4, 5, 6, 7, 8}


def test_an_incomplete_answer_keeps_everything() -> None:
    world, _ = host_world(Runtime(False, frozenset(), frozenset(), ("the runtime is away",)))
    world.start()
    world.run(1000)
    assert set(holders(world, CIDR)) == set(range(1, 9))


def test_a_container_that_is_back_at_the_second_look_is_kept() -> None:
    world, told = host_world(KNOWN)
    world.start()
    told.answer = Runtime(True, frozenset({"dead", "alive", "dotted"}), KNOWN.addresses)
    world.run(200)
    assert set(holders(world, CIDR)) == set(range(1, 9)), "the live look right before the release"
    world.changed(Change(RUNTIME, "", told.answer))
    world.settle()
    assert world.state.suspects == {}


def test_without_being_asked_nothing_is_ever_dead() -> None:
    world, _ = host_world(Runtime())
    live = HostLive("here", None)
    world.controller.live = live
    world.worker._live = live
    world.start()
    world.run(10_000)
    assert set(holders(world, CIDR)) == set(range(1, 9))


def test_a_real_namespace_with_a_process_keeps_its_address(tmp_path: Path) -> None:
    """A process in a network namespace of its own has an address there; its namespace has no name."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    script = "ip addr add 10.231.77.5/32 dev lo && ip link set lo up && echo ready && read line"
    with subprocess.Popen(
        ["unshare", "--net", "sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        (tmp_path / "results").mkdir()
        runtime = Sources(cache=str(tmp_path / "results"), processes=processes(tmp_path, process.pid)).look()
        process.communicate("\n")
    assert parse_address("10.231.77.5") in runtime.addresses
