"""``ipamctl ipam show`` and ``ipam release``; the recorded tables of calicoctl are in golden/."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from calico_ipam.datastore.api import Create
from calico_ipam.model.addresses import parse_address
from calico_ipam.model.keys import ResourceKey
from calico_ipam.model.resource import WORKLOAD_ENDPOINT, Resource
from tests.cluster import Cluster, memory_folder
from tests.ctl import Ctl

WHO = {"node": "node-1", "pod": "p", "namespace": "ns", "timestamp": "2026-08-20 10:11:12.1 +0000 UTC"}


@pytest.fixture
def world() -> Iterator[Cluster]:
    from calico_ipam.datastore.sqlite import SQLiteStore

    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        store = SQLiteStore(Path(folder) / "ipam.db")
        made = Cluster(store)
        made.clock.at = time.time_ns()  # ipamctl has the clock of the host
        made.nodes("node-1", "node-2")
        made.pool("pool-1", "10.0.0.0/16", 26)
        made.block("10.0.0.0/26", owner="node-1")
        yield made
        store.close()


@pytest.fixture
def ctl(world: Cluster) -> Ctl:
    return Ctl(Path(world.store.name.removeprefix("sqlite://")))


def assign(world: Cluster, address: str, handle: str | None = "net.c1", **attrs: str) -> str:
    world.ipam.assign_ip(parse_address(address), handle=handle, attrs=attrs or WHO, hostname="node-1")
    return address


# --- pools --------------------------------------------------------------------------------------------------


def test_counts_as_a_document(world: Cluster, ctl: Ctl) -> None:
    world.pool("pool-6", "fd00::/48")
    world.reserve("10.0.1.0/24")
    world.block("10.9.0.0/26")
    assign(world, "10.0.0.1")
    found = json.loads(ctl.ok("ipam", "show", "-o", "json"))
    assert [pool["name"] for pool in found["pools"]] == ["pool-1", "pool-6"]
    first = found["pools"][0]
    counts = {key: first[key] for key in ("cidr", "capacity", "inUse", "reserved", "available", "cooling")}
    assert counts == {
        "cidr": "10.0.0.0/16",
        "capacity": 65536,
        "inUse": 1,
        "reserved": 256,
        "available": 65279,
        "cooling": 0,
    }
    assert first["blocks"][0]["affinity"] == "host:node-1"
    assert found["pools"][1]["capacity"] == found["pools"][1]["available"] == 2**80
    assert [block["cidr"] for block in found["orphanBlocks"]] == ["10.9.0.0/26"]


def test_blocks_are_in_number_order_for_people(world: Cluster, ctl: Ctl) -> None:
    world.block("10.0.10.0/26", owner="node-1")
    world.block("10.0.2.0/26", owner="node-1")
    plain = ctl.ok("ipam", "show", "--show-blocks")
    assert plain.index("10.0.10.0/26") < plain.index("10.0.2.0/26")
    _, screen = ctl.on_terminal("ipam", "show", "--show-blocks")
    assert screen.index("10.0.2.0/26") < screen.index("10.0.10.0/26")


def test_what_people_see(world: Cluster, ctl: Ctl) -> None:
    """No column of zeros, whole numbers, and shares that are 0 or 100 % only when they are."""
    assign(world, "10.0.0.1")
    code, screen = ctl.on_terminal("ipam", "show", "--show-blocks")
    assert code == 0
    assert screen == (
        "+----------+-------------+-----------+------------+----------------+\n"
        "| GROUPING | CIDR        | IPS TOTAL | IPS IN USE |       IPS FREE |\n"
        "+----------+-------------+-----------+------------+----------------+\n"
        "| IP Pool  | 10.0.0.0/16 |     65536 |  1 (<0.1%) | 65535 (>99.9%) |\n"
        "| Block    | 10.0.0.0/26 |        64 |   1 (1.6%) |     63 (98.4%) |\n"
        "+----------+-------------+-----------+------------+----------------+\n"
    )


def test_columns_for_people_appear_when_they_say_something(world: Cluster, ctl: Ctl) -> None:
    world.reserve("10.0.1.0/24")
    world.configure(cooldown_seconds=600)
    assign(world, "10.0.0.1")
    world.ipam.release_by_handle("net.c1")
    _, screen = ctl.on_terminal("ipam", "show", columns=120)
    header = screen.splitlines()[1]
    assert "IPS RESERVED" in header
    assert "OF THEM COOLING" in header


def test_wide(ctl: Ctl) -> None:
    out = ctl.ok("ipam", "show", "--show-blocks", "-o", "wide")
    assert "| AFFINITY    | NODES USING | CLAIMED" in out
    assert "| host:node-1 |             | 20" in out


def test_no_pools(world: Cluster, ctl: Ctl) -> None:
    world.no_pool("pool-1")
    _, screen = ctl.on_terminal("ipam", "show")
    assert "note: there are no pools" in screen


def test_damage_is_told(world: Cluster, ctl: Ctl) -> None:
    from calico_ipam.datastore.documents import DocumentStore, RawWrite

    assert isinstance(world.store.inner, DocumentStore)
    path = "/calico/ipam/v2/assignment/ipv4/block/10.0.0.64-26"
    world.store.inner._raw_commit((RawWrite("create", path, "{broken"),))
    world.reserve("rubbish")
    result = ctl("ipam", "show")
    assert result.exit_code == 0
    assert "warning: block 10.0.0.64/26 is damaged: " in result.stderr
    assert "warning: reservation 'rubbish' is neither a CIDR nor an address" in result.stderr


# --- other views --------------------------------------------------------------------------------------------


def test_borrowed_as_a_document(world: Cluster, ctl: Ctl) -> None:
    assign(world, "10.0.0.1", node="node-2", pod="p", namespace="ns")
    assign(world, "10.0.0.2", handle="net.c2", note="no node")
    assert json.loads(ctl.ok("ipam", "show", "--show-borrowed", "-o", "json")) == {
        "borrowed": [
            {
                "ip": "10.0.0.1",
                "node": "node-2",
                "block": "10.0.0.0/26",
                "blockOwner": "node-1",
                "type": "pod",
                "allocatedTo": "ns/p",
            }
        ],
        "withoutNode": 1,
    }


def test_settings(world: Cluster, ctl: Ctl) -> None:
    world.configure(strict_affinity=True, max_blocks_per_host=5, kubevirt_persistence=None)
    assert json.loads(ctl.ok("ipam", "show", "--show-configuration", "-o", "json")) == {
        "strictAffinity": True,
        "autoAllocateBlocks": True,
        "maxBlocksPerHost": 5,
        "kubeVirtVMAddressPersistence": None,
        "ipCooldownSeconds": 0,
    }
    assert "| KubeVirtVMAddressPersistence | <unset> |" in ctl.ok("ipam", "show", "--show-configuration")


# --- one address --------------------------------------------------------------------------------------------

BAD = ["10.240.0.300", "10.65.79.1/32", "010.65.79.1", "rubbish", " 10.0.0.1", "fe80::1%eth0", "10.0.0", "1"]


@pytest.mark.parametrize("command", ["show", "release"])
@pytest.mark.parametrize("text", BAD)
def test_bad_addresses(ctl: Ctl, command: str, text: str) -> None:
    result = ctl("ipam", command, "--ip", text)
    assert (result.exit_code, result.stderr) == (1, "")
    assert result.stdout == f"Error executing command: invalid IP address specified: {text}\n"


def test_bad_addresses_on_a_terminal(ctl: Ctl) -> None:
    assert ctl.on_terminal("ipam", "show", "--ip", "10.0.0") == (
        1,
        "error: invalid IP address specified: 10.0.0\n"
        "hint: Give one IPv4 or IPv6 address, without a prefix length or leading zeros.\n",
    )


def test_who_holds_it(world: Cluster, ctl: Ctl) -> None:
    assign(world, "10.0.0.1")
    shown = (
        "IP 10.0.0.1 is in use\n"
        "Handle ID: net.c1\n"
        "Active Owner Attributes:\n"
        "  namespace: ns\n"
        "  node: node-1\n"
        "  pod: p\n"
        "  timestamp: 2026-08-20 10:11:12.1 +0000 UTC\n"
    )
    more = "Block: 10.0.0.0/26, of node-1, in pool pool-1\nBorrowed: no\nSince: 2026-08-20T10:11:12Z\n"
    assert ctl.ok("ipam", "show", "--ip", "10.0.0.1") == shown
    assert ctl.ok("ipam", "show", "--ip", "10.0.0.1", "-o", "wide") == shown + more
    assert ctl.on_terminal("ipam", "show", "--ip", "10.0.0.1") == (0, shown + more)


def test_who_holds_it_as_a_document(world: Cluster, ctl: Ctl) -> None:
    assign(world, "10.0.0.1", node="node-2")
    found = json.loads(ctl.ok("ipam", "show", "--ip", "10.0.0.1", "-o", "json"))
    assert (found["state"], found["handle"], found["borrowed"], found["since"]) == ("in use", "net.c1", True, None)
    assert found["sequenceNumber"] > 0
    assert json.loads(ctl.ok("ipam", "show", "--ip", "10.0.0.9", "-o", "json")) == {"ip": "10.0.0.9", "state": "free"}


@pytest.mark.parametrize(("handle", "attrs"), [(None, {}), ("net.c1", {})])
def test_little_is_known(world: Cluster, ctl: Ctl, handle: str | None, attrs: dict[str, str]) -> None:
    world.ipam.assign_ip(parse_address("10.0.0.1"), handle=handle, attrs=attrs, hostname="node-1")
    out = ctl.ok("ipam", "show", "--ip", "10.0.0.1", "-o", "wide")
    assert f"Handle ID: {handle or '<none>'}\nNo Active Owner attributes defined\n" in out
    assert "Borrowed: unknown\nSince: unknown\n" in out


def test_an_orphan(world: Cluster, ctl: Ctl) -> None:
    assign(world, "10.0.0.1")
    world.no_pool("pool-1")
    assert "Block: 10.0.0.0/26, of node-1, in no pool\n" in ctl.ok("ipam", "show", "--ip", "10.0.0.1", "-o", "wide")


def test_cooldown_is_an_answer(world: Cluster, ctl: Ctl) -> None:
    world.configure(cooldown_seconds=600)
    assign(world, "10.0.0.1")
    world.ipam.release_by_handle("net.c1")
    out = ctl.ok("ipam", "show", "--ip", "10.0.0.1")
    assert out.startswith("IP 10.0.0.1 is in cooldown (released 20")
    left = int(out.rpartition("~")[2].partition(" s)")[0])
    assert 500 < left <= 600
    assert json.loads(ctl.ok("ipam", "show", "--ip", "10.0.0.1", "-o", "json"))["state"] == "cooldown"
    world.configure(cooldown_seconds=0)
    assert ctl.ok("ipam", "show", "--ip", "10.0.0.1") == "10.0.0.1 is not assigned\n"
    assert json.loads(ctl.ok("ipam", "show", "--ip", "10.0.0.1", "-o", "json"))["state"] == "free"


# --- releasing ----------------------------------------------------------------------------------------------


def test_release(world: Cluster, ctl: Ctl) -> None:
    assign(world, "10.0.0.1")
    result = ctl("ipam", "release", "--ip", "10.0.0.1")
    assert (result.exit_code, result.stdout) == (0, "Successfully released IP address 10.0.0.1\n")
    assert result.stderr.startswith("IP 10.0.0.1 is in use\nHandle ID: net.c1\n")
    assert world.handle("net.c1") is None
    assert ctl.refused("ipam", "release", "--ip", "10.0.0.1") == "IP address 10.0.0.1 is not assigned\n"


def test_release_writes_nothing_on_a_dry_run(world: Cluster, ctl: Ctl) -> None:
    assign(world, "10.0.0.1")
    assert ctl.ok("ipam", "release", "--ip", "10.0.0.1", "--dry-run") == "Would release IP address 10.0.0.1\n"
    assert world.handle("net.c1") == {"10.0.0.0/26": 1}


def test_release_asks_people(world: Cluster, ctl: Ctl) -> None:
    assign(world, "10.0.0.1")
    code, screen = ctl.on_terminal("ipam", "release", "--ip", "10.0.0.1", answer="n")
    assert code == 1
    assert screen.index("Handle ID: net.c1") < screen.index("Release 10.0.0.1? [y/N]: n") < screen.index("nothing was")
    assert world.handle("net.c1") == {"10.0.0.0/26": 1}
    code, screen = ctl.on_terminal("ipam", "release", "--ip", "10.0.0.1", "--yes")
    assert code == 0
    assert "?" not in screen


def test_the_end_of_input_is_a_no(world: Cluster, ctl: Ctl) -> None:
    assign(world, "10.0.0.1")
    code, screen = ctl.on_terminal("ipam", "release", "--ip", "10.0.0.1", answer="\x04")
    assert code == 1
    assert "nothing was released" in screen


def test_what_lives_keeps_its_address(world: Cluster, ctl: Ctl) -> None:
    assign(world, "10.0.0.1")
    value = Resource.new(WORKLOAD_ENDPOINT, "e1", {"ipNetworks": ["10.0.0.1/32"]}, namespace="ns")
    world.store.inner.commit(Create(ResourceKey(WORKLOAD_ENDPOINT, "e1", "ns"), value))
    stderr = ctl.refused("ipam", "release", "--ip", "10.0.0.1", "--yes")
    assert "address 10.0.0.1 is in use by workload endpoint ns/e1\n" in stderr
    code, screen = ctl.on_terminal("ipam", "release", "--ip", "10.0.0.1", "--yes")
    assert code == 1
    assert "--force" in screen
    assert world.handle("net.c1") == {"10.0.0.0/26": 1}
    forced = ctl("ipam", "release", "--ip", "10.0.0.1", "--force")
    assert (forced.exit_code, forced.stdout) == (0, "Successfully released IP address 10.0.0.1\n")
    assert "warning: workload endpoint ns/e1 still has it" in forced.stderr


def test_scripts_for_calicoctl_release_as_it_does(world: Cluster, ctl: Ctl) -> None:
    """cli §5.1: by address alone, whoever uses it."""
    assign(world, "10.0.0.1")
    value = Resource.new(WORKLOAD_ENDPOINT, "e1", {"ipNetworks": ["10.0.0.1/32"]}, namespace="ns")
    world.store.inner.commit(Create(ResourceKey(WORKLOAD_ENDPOINT, "e1", "ns"), value))
    released = ctl("--compat", "ipam", "release", "--ip", "10.0.0.1")
    assert (released.exit_code, released.stdout) == (0, "Successfully released IP address 10.0.0.1\n")
    assert released.stderr == ""


def test_cooling_addresses_cannot_be_released(world: Cluster, ctl: Ctl) -> None:
    world.configure(cooldown_seconds=600)
    assign(world, "10.0.0.1")
    ctl.ok("ipam", "release", "--ip", "10.0.0.1")
    assert ctl.refused("ipam", "release", "--ip", "10.0.0.1") == "IP address 10.0.0.1 is not assigned\n"
    code, screen = ctl.on_terminal("ipam", "release", "--ip", "10.0.0.1")
    assert code == 1
    assert screen.startswith("error: IP address 10.0.0.1 is not assigned\nhint: It was released already")


def test_a_holder_that_changes_while_people_think(world: Cluster, ctl: Ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the question and the answer the address goes to somebody else: it is not taken from them (ruling 9)."""
    from calico_ipam.ctl import release as commands

    assign(world, "10.0.0.1")

    def meanwhile(*_args: object, **_options: object) -> None:
        world.ipam.release_by_handle("net.c1")
        assign(world, "10.0.0.1", handle="net.c2")

    monkeypatch.setattr(commands, "confirm", meanwhile)
    stderr = ctl.refused("ipam", "release", "--ip", "10.0.0.1")
    assert "when attempting to release IP" in stderr
    assert world.handle("net.c2") == {"10.0.0.0/26": 1}


def test_an_address_without_a_handle(world: Cluster, ctl: Ctl) -> None:
    world.ipam.assign_ip(parse_address("10.0.0.1"), hostname="node-1")
    ctl.ok("ipam", "release", "--ip", "10.0.0.1")


def test_an_address_whose_handle_was_never_stored(world: Cluster, ctl: Ctl) -> None:
    """P11: a handle that holds a carriage return, as an old migration wrote it; there is no handle object."""
    from calico_ipam.model.block import Attribute
    from calico_ipam.model.keys import BlockKey

    block = world.stored_block("10.0.0.0/26")
    assert block is not None
    block = block.assign_address(parse_address("10.0.0.2"), handle="x", attrs={})
    world.put(BlockKey(block.cidr), block.with_attribute(2, Attribute("net.dd37\r\neth0", {"node": "node-1"})))
    assert "Handle ID: net.dd37\n" in ctl.ok("ipam", "show", "--ip", "10.0.0.2")
    ctl.ok("ipam", "release", "--ip", "10.0.0.2")
    assert ctl.ok("ipam", "show", "--ip", "10.0.0.2") == "10.0.0.2 is not assigned\n"
