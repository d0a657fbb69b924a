"""``ipamctl pool``: what people type, read and are refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from calico_ipam.datastore.sqlite import SQLiteStore
from calico_ipam.engine.client import IPAM
from calico_ipam.model.keys import ResourceKey
from tests.cluster import memory_folder
from tests.ctl import Ctl


@pytest.fixture
def ctl() -> Iterator[Ctl]:
    import tempfile

    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        made = Ctl(Path(folder) / "ipam.db")
        made.ok("init", "--node", "node-1", "--ipv4-pool", "none")
        yield made


def stored(ctl: Ctl, name: str) -> dict[str, Any]:
    store = SQLiteStore(ctl.path)
    try:
        return dict(store.get(ResourceKey("IPPool", name)).value.spec)
    finally:
        store.close()


def assign(ctl: Ctl, number: int) -> list[str]:
    store = SQLiteStore(ctl.path)
    try:
        done = IPAM(store, hostname="node-1").auto_assign(
            use="Workload", num4=number, handle="net.c1", attrs={"node": "node-1"}
        )
        return [str(one.address) for one in done.addresses]
    finally:
        store.close()


def test_create(ctl: Ctl) -> None:
    assert (
        ctl.ok("pool", "create", "10.9.0.0/24")
        == "Created pool pool-10-9-0-0-24: 10.9.0.0/24, 4 blocks of 64 addresses\n"
    )
    assert ctl.ok("pool", "create", "10.8.0.0/32", "--block-size", "/32", "--name", "one") == (
        "Created pool one: 10.8.0.0/32, 1 block of 1 address\n"
    )
    assert ctl.ok("pool", "create", "fd00:10::/48", "--name", "six") == (
        "Created pool six: fd00:10::/48, blocks of 64 addresses\n"
    )


def test_every_option_is_stored(ctl: Ctl) -> None:
    options = ["--name", "p", "--block-size", "28", "--node-selector", "zone == 'a'", "--namespace-selector", "has(x)"]
    options += ["--allowed-use", "WORKLOAD", "--assignment-mode", "manual", "--disabled", "--nat-outgoing"]
    out = ctl.ok("pool", "create", " 10.9.0.0/24", *options, "-o", "json")
    assert (
        json.loads(out)["spec"]
        == stored(ctl, "p")
        == {
            "cidr": "10.9.0.0/24",
            "vxlanMode": "Never",
            "ipipMode": "Never",
            "natOutgoing": True,
            "disabled": True,
            "blockSize": 28,
            "nodeSelector": "zone == 'a'",
            "namespaceSelector": "has(x)",
            "allowedUses": ["Workload"],
            "assignmentMode": "Manual",
        }
    )


@pytest.mark.parametrize("given", [("Workload", "Tunnel"), ("tunnel,workload",), ("Workload", "workload,TUNNEL")])
def test_uses_may_be_given_in_several_ways(ctl: Ctl, given: tuple[str, ...]) -> None:
    ctl.ok("pool", "create", "10.9.0.0/24", "--name", "p", *(word for use in given for word in ("--allowed-use", use)))
    assert sorted(stored(ctl, "p")["allowedUses"]) == ["Tunnel", "Workload"]


@pytest.mark.parametrize(
    ("argv", "text", "hint"),
    [
        (("",), "IPPool CIDR must be specified", "such as 10.244.0.0/16"),
        (("10.0.0.5/24",), "is not strictly masked", "write 10.0.0.0/24"),
        (("10.9.1.0/24",), "IPPool(pool-10-9-1-0-24) CIDR overlaps with IPPool(big) CIDR 10.9.0.0/16", "pool big"),
        (("10.0.0.0/24", "--block-size", "x"), "'x' is no prefix length", "--help"),
        (("10.0.0.0/24", "--block-size", "-1"), "'-1' is no prefix length", "--help"),
        (("10.0.0.0/24", "--block-size", "19"), "blockSize must be between 20 and 32", "/19"),
        (("10.0.0.0/27",), "IP pool size is too small", "--block-size 27"),
        (("10.0.0.0/24", "--name", "big"), "resource already exists: IPPool(big)", "10.9.0.0/16"),
        (("10.0.0.0/24", "--name", "BIG"), "name must consist of lower case", "lower-case"),
        (("10.0.0.0/24", "--name", ""), "name must consist of lower case", "lower-case"),
        (("10.0.0.0/24", "--name", "a/b"), "name must consist of lower case", "lower-case"),
        (("10.0.0.0/24", "--allowed-use", "Gremlin"), "unknown use: Gremlin", "Workload, Tunnel, LoadBalancer"),
        (("10.0.0.0/24", "--assignment-mode", "x"), "supported values", "assignmentMode cannot be 'x'"),
        (("10.0.0.0/24", "--namespace-selector", "a == 'b'"), "cannot have namespaceSelector", "--allowed-use"),
        (("10.0.0.0/24", "--node-selector", "("), "NodeSelector = '('", "--node-selector does not parse"),
    ],
)
def test_bad_pools(ctl: Ctl, argv: tuple[str, ...], text: str, hint: str) -> None:
    ctl.ok("pool", "create", "10.9.0.0/16", "--name", "big")
    before = ctl.ok("pool", "list", "-o", "json")
    for more in ((), ("--dry-run",)):
        stderr = ctl.refused("pool", "create", *argv, *more)
        error, _, hints = stderr.partition("hint: ")
        assert text in error
        assert hint in hints
    assert ctl.ok("pool", "list", "-o", "json") == before


def test_dry_run_writes_nothing(ctl: Ctl) -> None:
    before = ctl.path.read_bytes()
    assert ctl.ok("pool", "create", "10.9.0.0/24", "--dry-run").startswith("Would create pool pool-10-9-0-0-24: ")
    assert ctl.path.read_bytes() == before
    assert json.loads(ctl.ok("pool", "list", "-o", "json"))["items"] == []


def test_list(ctl: Ctl) -> None:
    empty = ctl("pool", "list")
    assert "there are no pools; 'ipamctl init' or 'ipamctl pool create CIDR' makes one" in empty.stderr
    ctl.ok("pool", "create", "10.9.0.0/24", "--name", "b", "--disabled")
    ctl.ok("pool", "create", "10.10.0.0/24", "--name", "a", "--node-selector", "zone == 'x'")
    assert ctl.ok("pool", "list") == (
        "+------+--------------+--------+----------+-------------+\n"
        "| NAME | CIDR         | BLOCKS | STATE    | NODES       |\n"
        "+------+--------------+--------+----------+-------------+\n"
        "| a    | 10.10.0.0/24 | /26    | enabled  | zone == 'x' |\n"
        "| b    | 10.9.0.0/24  | /26    | disabled | all()       |\n"
        "+------+--------------+--------+----------+-------------+\n"
    )
    assert "Workload, Tunnel | Automatic | false | Never | Never |" in ctl.ok("pool", "list", "-o", "wide")
    listed = json.loads(ctl.ok("pool", "list", "-o", "json"))
    assert listed["kind"] == "IPPoolList"
    assert [item["metadata"]["name"] for item in listed["items"]] == ["a", "b"]
    assert yaml.safe_load(ctl.ok("pool", "list", "-o", "yaml")) == listed


def test_a_pool_that_cannot_be_used_is_named(ctl: Ctl) -> None:
    from calico_ipam.datastore.api import Create
    from calico_ipam.model.resource import Resource

    store = SQLiteStore(ctl.path)
    store.commit(Create(ResourceKey("IPPool", "bad"), Resource.new("IPPool", "bad", {"cidr": "rubbish"})))
    store.close()
    for argv in (("pool", "list"), ("ipam", "show")):
        result = ctl(*argv)
        assert result.exit_code == 0
        assert "warning: pool bad " in result.stderr
        assert "rubbish" in result.stderr
    assert ctl.ok("pool", "delete", "bad") == "Deleted pool bad\n"


def test_delete(ctl: Ctl) -> None:
    ctl.ok("pool", "create", "10.9.0.0/24", "--name", "p")
    assert ctl.ok("pool", "delete", "p", "--dry-run") == "Would delete pool p (10.9.0.0/24): no address in use\n"
    assert stored(ctl, "p")
    assert ctl.ok("pool", "delete", "p") == "Deleted pool p\n"
    assert "resource does not exist: IPPool(p)" in ctl.refused("pool", "delete", "p")


def test_delete_a_pool_in_use(ctl: Ctl) -> None:
    ctl.ok("pool", "create", "10.9.0.0/24", "--name", "p")
    assign(ctl, 3)
    stderr = ctl.refused("pool", "delete", "p")
    assert "pool p is in use: 3 addresses in use (3 on node-1)" in stderr
    assert "--force" in stderr
    assert "disabled" not in stored(ctl, "p")
    forced = ctl("pool", "delete", "p", "--force")
    assert (forced.exit_code, forced.stdout) == (0, "Deleted pool p\n")
    assert "3 addresses in use (3 on node-1); they stay until they are released" in forced.stderr
    assert "| Block    | 10.9.0." in ctl.ok("ipam", "show", "--show-blocks")


def test_people_are_asked(ctl: Ctl) -> None:
    ctl.ok("pool", "create", "10.9.0.0/24", "--name", "p")
    code, screen = ctl.on_terminal("pool", "delete", "p", answer="n")
    assert code == 1
    assert "Delete pool p (10.9.0.0/24): no address in use? [y/N]: n" in screen
    assert "note: nothing was deleted." in screen
    assert stored(ctl, "p")
    code, screen = ctl.on_terminal("pool", "delete", "p", answer="y")
    assert code == 0
    assert "Deleted pool p" in screen
