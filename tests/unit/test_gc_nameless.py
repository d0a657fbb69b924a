"""Addresses for which no handle or no node is noted (limit U26): told, and released only when asked for and proven."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from calico_gc.decide import Rules
from calico_gc.facts import track
from calico_gc.main import parse
from calico_gc.metrics import own
from calico_gc.nameless import collectable
from calico_gc.options import Options
from calico_gc.report import report
from calico_gc.settings import load
from calico_gc.view import view_of

from calico_ipam.datastore.api import Update
from calico_ipam.model.keys import BlockKey
from tests.gc_things import (
    NETWORK,
    add_block,
    block_of,
    calico_node,
    drop,
    holders,
    pod_attrs,
    pool,
    put,
    running_pod,
    stored_block,
)
from tests.gc_world import World

CIDR = "192.168.0.0/26"
ADDRESS = "192.168.0.1"
H1 = f"{NETWORK}.{'a' * 64}"
NODELESS = {"pod": "p", "namespace": "default"}
GRACE = 60.0


def world_of(
    attrs: dict[str, str], handle: str = "", *, asked: bool = True, grace: float | None = GRACE, **more: Any
) -> World:
    """A world with one address in a block of the live node n1, and a pod that keeps the block."""
    world = World(options=Options(rules=Rules(leak_grace=grace, nameless=asked), dry_run=more.pop("dry_run", False)))
    world.node("n1")
    pool(world, "pool", "192.168.0.0/24")
    running_pod(world, "alive", "n1", "192.168.0.9")
    held = {1: (handle, attrs), 9: (f"{NETWORK}.alive", pod_attrs("n1", "alive"))}
    add_block(world, CIDR, "n1", held, **more)
    return world


def kept(world: World, seconds: float = 4 * GRACE) -> bool:
    world.start()
    world.run(seconds)
    return 1 in holders(world, CIDR)


@pytest.mark.parametrize(
    ("attrs", "handle"), [(pod_attrs("n1", "p"), ""), (NODELESS, H1), (NODELESS, "")], ids=["handle", "node", "both"]
)
@pytest.mark.parametrize("asked", [False, True])
def test_only_when_asked_for_and_the_pod_is_gone(attrs: dict[str, str], handle: str, asked: bool) -> None:
    world = world_of(attrs, handle, asked=asked)
    assert kept(world) is not asked
    assert holders(world, CIDR)[9] == f"{NETWORK}.alive"
    found = {f.kind for f in world.controller.record.findings.values()}
    assert found == (set() if asked else {"nameless"})
    label = attrs.get("node", "unknown_node")
    assert world.controller.record.reclaimed == ({("pool", label): 1} if asked else {})


@pytest.mark.parametrize("attrs", [pod_attrs("n1", "p"), NODELESS])
@pytest.mark.parametrize("ips", [(), (ADDRESS,)])
def test_a_pod_that_has_it_or_says_nothing_keeps_it(attrs: dict[str, str], ips: tuple[str, ...]) -> None:
    world = world_of(attrs)
    running_pod(world, "p", "n1", *ips)
    assert kept(world)


def test_a_pod_that_reports_another_address_does_not() -> None:
    world = world_of(pod_attrs("n1", "p"))
    running_pod(world, "p", "n1", "192.168.0.77")
    assert not kept(world)


@pytest.mark.parametrize(
    ("attrs", "handle"),
    [
        ({}, ""),
        ({"node": "n1"}, ""),
        ({"pod": "p"}, H1),
        ({"note": "reserved"}, "windows-reserved-ipam-handle"),
        ({**NODELESS, "note": "reserved"}, "windows-reserved-ipam-handle"),
        ({"type": "vxlanTunnelAddress"}, "vxlan-tunnel-addr-n1"),
        ({"type": "vxlanTunnelAddress", "node": "gone"}, ""),
        ({**NODELESS, "type": "ipipTunnelAddress"}, ""),
        ({"service": "s", "namespace": "default", "type": "LoadBalancer"}, "lb-1"),
        ({**NODELESS, "service": "s"}, ""),
        ({**NODELESS, "vmi-name": "m"}, ""),
        (NODELESS, f"{NETWORK}.vmi.default.m"),
    ],
)
def test_what_is_not_plainly_a_pods_is_kept(attrs: dict[str, str], handle: str) -> None:
    """Reservations of Windows, tunnels, Services, machines, and those of which nobody can tell anything."""
    assert kept(world_of(attrs, handle))


def test_a_block_of_the_load_balancer_is_left_alone() -> None:
    world = world_of({"node": "n1"})
    add_block(world, "192.168.0.64/26", "load-balancer", {1: ("", NODELESS)}, kind="virtual")
    assert kept(world)
    assert holders(world, "192.168.0.64/26") == {1: ""}


def test_a_block_of_nobody_goes_with_its_last_address() -> None:
    world = world_of({"node": "n1"})
    add_block(world, "192.168.0.64/26", None, {1: ("", NODELESS)})
    assert kept(world)
    assert stored_block(world, "192.168.0.64/26") is None


@pytest.mark.parametrize(
    ("block", "attribute"),
    [
        ({}, {}),
        ({"problems": ("a slot that nobody understands",)}, {}),
        ({}, {"released_at": 1}),
        ({}, {"alternate": NODELESS}),
    ],
)
def test_an_address_that_cools_or_lies_in_a_damaged_block_is_left_alone(
    block: dict[str, Any], attribute: dict[str, Any]
) -> None:
    whole = block_of(World(), CIDR, "n1", {1: (H1, NODELESS)})
    made = replace(whole, attributes=(replace(whole.attributes[0], **attribute),), **block)
    tracked = track(made, "1")
    assert collectable(tracked, tracked.allocations[1]) is (not block and not attribute)


def test_a_node_of_another_orchestrator_is_left_alone() -> None:
    world = World(kubernetes=False, options=Options(rules=Rules(leak_grace=GRACE, nameless=True)))
    calico_node(world, "theirs", "theirs", "openstack")
    add_block(world, CIDR, "theirs", {1: ("", pod_attrs("theirs", "p"))})
    assert kept(world)


@pytest.mark.parametrize("node", ["n1", "gone"])
def test_two_looks_a_grace_period_apart(node: str) -> None:
    """That its node is gone confirms nothing at once either."""
    world = world_of(pod_attrs(node, "p"))
    world.start()
    world.run(GRACE - 1)
    assert 1 in holders(world, CIDR)
    [suspicion] = world.state.suspects.values()
    assert suspicion.candidate and suspicion.reason == "pod-not-found"
    world.run(GRACE)
    assert 1 not in holders(world, CIDR)


@pytest.mark.parametrize("grace", [None, 0.0])
def test_without_a_grace_period_none_is_even_suspected(grace: float | None) -> None:
    world = world_of(NODELESS, grace=grace)
    assert kept(world, 3600.0)
    assert world.state.suspects == {}


def test_a_pod_that_only_a_live_look_finds_keeps_it() -> None:
    world = world_of(NODELESS)
    world.start()
    running_pod(world, "p", "n1", ADDRESS)
    document = world.kube.pods["default", "p"]
    world.no_pod("default", "p")
    world.kube.pods["default", "p"] = document
    assert kept(world)


def test_a_pod_that_cannot_be_read_keeps_it() -> None:
    world = world_of(NODELESS)
    world.kube.failing.add(("default", "p"))
    assert kept(world)


@pytest.mark.parametrize("attrs", [pod_attrs("n1", "p"), NODELESS])
def test_an_address_that_was_given_anew_at_the_last_moment_stays(attrs: dict[str, str]) -> None:
    """The guard of a handle is missing, that of the sequence number is not."""
    world = world_of(attrs)
    world.start()
    key, look = BlockKey(block_of(world, CIDR).cidr), world.live.workloads

    def given_anew(pods: Any) -> Any:
        entry = world.store.get(key)
        block = entry.value
        if block.sequence_of(1) < 200:
            world.store.commit(Update(entry, replace(block, sequence_for={**block.sequence_for, 1: 5000})))
        return look(pods)

    world.live.workloads = given_anew  # type: ignore[method-assign]  # a fake in its place
    world.run(2 * GRACE - 1)
    block = stored_block(world, CIDR)
    assert block is not None and block.sequence_of(1) == 5000 and 1 in holders(world, CIDR)
    assert world.controller.record.reclaimed == {}


def test_a_handle_is_still_returned_whole_or_not_at_all() -> None:
    """One address of it names no node, the other is a living pod's."""
    world = world_of(NODELESS, f"{NETWORK}.alive")
    assert kept(world)
    [key] = world.controller.held
    assert key == (CIDR, 1)
    world.no_pod("default", "alive")
    world.run(4 * GRACE)
    assert holders(world, CIDR) == {}


def test_two_without_a_handle_do_not_hold_each_other() -> None:
    world = world_of(NODELESS)
    running_pod(world, "q", "n1", "192.168.0.66")
    add_block(world, "192.168.0.64/26", "n1", {2: ("", {"pod": "q", "namespace": "default"})})
    assert not kept(world)
    assert 2 in holders(world, "192.168.0.64/26")


def test_a_dry_run_tells_and_writes_nothing() -> None:
    world = world_of(NODELESS, dry_run=True)
    assert kept(world)
    document = report(view_of(world.controller))
    [leak] = document["leaks"]
    assert (leak["ip"], leak["handle"], leak["node"], leak["state"]) == (ADDRESS, "", "", "confirmed")
    assert document["settings"]["namelessAddresses"] is True
    assert document["summary"]["nameless"] == 1


def test_they_are_counted() -> None:
    world = world_of(NODELESS, asked=False)
    add_block(world, "192.168.0.64/26", "n1", {1: (H1, NODELESS), 2: ("lb", {"service": "s"})})
    add_block(world, "192.168.0.128/26", "lb", {1: ("lb", {"service": "s"})}, kind="virtual")
    world.start()
    [family] = [m for m in own(view_of(world.controller)) if m.name == "ipam_gc_nameless_addresses"]
    assert [sample.value for sample in family.samples] == [3.0]


def test_what_becomes_of_one_while_it_is_suspected() -> None:
    """It gets a handle, a block is deleted: nothing that was believed stays behind (the invariants hold)."""
    world = world_of(NODELESS)
    world.start()
    assert len(world.state.suspects) == 1
    put(world, BlockKey(block_of(world, CIDR).cidr), block_of(world, CIDR, "n1", {1: (H1, pod_attrs("n1", "alive"))}))
    world.settle()
    assert all(s.reason != "pod-not-found" for s in world.state.suspects.values())
    put(world, BlockKey(block_of(world, CIDR).cidr), block_of(world, CIDR, "n1", {1: ("", NODELESS)}))
    world.state.full_scan = True
    world.settle()
    assert (CIDR, 1) in world.state.suspects
    drop(world, BlockKey(block_of(world, CIDR).cidr))
    world.settle()
    assert world.state.suspects == {}


@pytest.mark.parametrize("where", ["flag", "environment", "file"])
def test_it_is_asked_for_as_every_other_setting(where: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("nameless-addresses: true\n")
    flags, environ = {
        "flag": (parse(["--nameless-addresses"]), {}),
        "environment": ({}, {"GC_NAMELESS_ADDRESSES": "true"}),
        "file": ({"config": str(file)}, {}),
    }[where]
    assert load(flags, environ).options(None, etcd=False).rules.nameless
    assert not load({}, {}).options(None, etcd=False).rules.nameless
