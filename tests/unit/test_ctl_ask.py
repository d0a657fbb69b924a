"""Questions: explain, show by holder, map, simulate, history, doctor, pool resize; formats and watching."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from calico_ipam.datastore.api import Create
from calico_ipam.engine.policy import Retry
from calico_ipam.engine.setup import ensure_cluster
from calico_ipam.engine.world import Engine
from calico_ipam.model.addresses import parse_address
from calico_ipam.model.keys import ResourceKey
from calico_ipam.model.resource import WORKLOAD_ENDPOINT, Resource
from tests.cluster import Cluster, cluster
from tests.ctl import Ctl


@pytest.fixture
def world() -> Iterator[Cluster]:
    with cluster() as made:
        made.nodes("node-1")
        made.nodes("node-2", labels={"zone": "b"})
        made.pool("pool-1", "10.0.0.0/25", 26)
        ensure_cluster(Engine(made.store, made.clock, Retry(clock=made.clock)), "0" * 32)
        yield made


@pytest.fixture
def ctl(world: Cluster) -> Ctl:
    return Ctl(world.store.inner.path)  # type: ignore[attr-defined]  # the clusters of tests are files


def assign(world: Cluster, number: int = 1, *, node: str = "node-1", pod: str = "web") -> list[str]:
    attrs = {"node": node, "namespace": "shop", "pod": pod, "timestamp": "2026-08-20 10:11:12.1 +0000 UTC"}
    handle = f"k8s-pod-network.{pod}"
    made = world.ipam.auto_assign(use="Workload", num4=number, handle=handle, attrs=attrs, hostname=node)
    return [str(each.address) for each in made.addresses]


def outcome(ctl: Ctl, *argv: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ctl.ok("ipam", "explain", *argv, "-o", "json"))
    return found


# --- explain ------------------------------------------------------------------------------------------------


def test_why_a_node_gets_an_address_or_none(world: Cluster, ctl: Ctl) -> None:
    """What is predicted is what happens then."""
    assert "claims a new block in pool pool-1, where 2 are free" in outcome(ctl, "node-1")["outcome"]
    assign(world)
    assert "takes an address of its own block" in outcome(ctl, "node-1")["outcome"]
    assign(world, 63)
    assign(world, 1, node="node-2")
    answer = outcome(ctl, "node-1")
    assert answer["getsAddress"] and "borrows an address" in answer["outcome"] and answer["borrowable"] == 63
    assert assign(world) != [], "and so it does"
    world.configure(strict_affinity=True)
    answer = outcome(ctl, "node-1")
    assert not answer["getsAddress"] and "strict affinity forbids borrowing" in answer["outcome"]


def test_each_pool_says_why_not(world: Cluster, ctl: Ctl) -> None:
    world.pool("off", "10.1.0.0/24", disabled=True)
    world.pool("other", "10.2.0.0/24", nodeSelector="zone == 'b'")
    world.pool("six", "fd00::/64")
    world.pool("tunnels", "10.3.0.0/24", allowedUses=["Tunnel"])
    world.pool("asked", "10.4.0.0/24", assignmentMode="Manual")
    world.pool("broken", "10.5.0.0/24", nodeSelector="zone ==")
    world.pool("ns", "10.6.0.0/24", namespaceSelector="team == 'x'", allowedUses=["Workload"])
    reasons = {
        each["name"]: each["reason"] for each in outcome(ctl, "--node", "node-1", "--namespace", "shop")["pools"]
    }
    for name, text in {
        "off": "is disabled",
        "other": "does not select this node",
        "six": "holds IPv6 addresses",
        "tunnels": "is for Tunnel only",
        "asked": "only when a workload asks for it",
        "broken": "does not parse",
        "ns": "does not select namespace shop",
        "pool-1": "selected: all()",
    }.items():
        assert text in reasons[name], (name, reasons[name])


def test_a_node_that_does_not_exist(ctl: Ctl) -> None:
    assert "there is no Node of this name" in outcome(ctl, "--node", "nowhere")["outcome"]


def test_what_a_word_means(world: Cluster, ctl: Ctl) -> None:
    (address,) = assign(world)
    assert outcome(ctl, address)["verdict"].startswith("Allocated, but nothing uses it")
    assert outcome(ctl, "pool-1")["owners"] == [{"owner": "host:node-1", "blocks": 1, "inUse": 1}]
    assert outcome(ctl, "shop/web")["addresses"][0]["ip"] == address
    assert outcome(ctl, "k8s-pod-network.web")["agrees"] is True
    assert outcome(ctl, "node-1")["node"] == "node-1"
    block = outcome(ctl, outcome(ctl, "node-1")["blocks"][0]["cidr"])["blocks"][0]
    assert (block["taken"], block["holders"]) == (1, {"node-1": 1})
    assert "Did you mean node-1" in ctl.refused("ipam", "explain", "nodde-1")
    assert "A pod is NAMESPACE/NAME" in ctl.refused("ipam", "explain", "xyz")


def test_an_address_in_use_but_not_allocated(world: Cluster, ctl: Ctl) -> None:
    value = Resource.new(WORKLOAD_ENDPOINT, "e", {"node": "node-1", "ipNetworks": ["10.0.0.9/32"]}, namespace="ns")
    world.store.inner.commit(Create(ResourceKey(WORKLOAD_ENDPOINT, "e", "ns"), value))
    answer = outcome(ctl, "10.0.0.9")
    assert answer["state"] == "free" and answer["users"] == ["workload endpoint ns/e"]
    assert "ipam repair --only not-allocated 10.0.0.9" in answer["verdict"]


@pytest.mark.parametrize("columns", [60, 80])
def test_explanations_fit(world: Cluster, ctl: Ctl, columns: int) -> None:
    assign(world)
    for subject in ("node-1", "pool-1", "shop/web", "k8s-pod-network.web", "10.0.0.1", "shop/nothing"):
        code, screen = ctl.on_terminal("ipam", "explain", subject, columns=columns)
        assert code == 0
        assert max(len(line) for line in screen.splitlines()) <= columns, screen


# --- holders ------------------------------------------------------------------------------------------------


def test_who_holds_what(world: Cluster, ctl: Ctl) -> None:
    addresses = assign(world, 2)
    for argv in (("--pod", "shop/web"), ("--pod", "web"), ("--handle", "k8s-pod-network.web"), ("--node", "node-1")):
        found = json.loads(ctl.ok("ipam", "show", *argv, "-o", "json"))["addresses"]
        assert [each["ip"] for each in found] == addresses
    assert ctl.ok("ipam", "show", "--node", "node-1", "-o", "name").split() == addresses
    path = "jsonpath={range .addresses[*]}{.ip}={.holder}{'\\n'}{end}"
    assert ctl.ok("ipam", "show", "--node", "node-1", "-o", path) == "".join(f"{each}=shop/web\n" for each in addresses)
    assert "pod nobody holds no address" in ctl("ipam", "show", "--pod", "nobody").stderr


# --- map ----------------------------------------------------------------------------------------------------


def test_map(world: Cluster, ctl: Ctl, tmp_path: Path) -> None:
    assign(world, 64)
    out = ctl.ok("ipam", "map")
    assert "pool-1  10.0.0.0/25\n  in use 64 (50.0%), 1 block\n" in out
    assert "█·" in out or "·█" in out
    page = tmp_path / "map.html"
    ctl.ok("ipam", "map", "--html", str(page))
    text = page.read_text()
    assert "pool-1" in text and "<script src" not in text and "http" not in text.partition("<body")[2]
    assert "does not exist: IPPool(nothing)" in ctl.refused("ipam", "map", "nothing")


def test_a_map_of_2_to_the_64_addresses_is_drawn_at_once(world: Cluster, ctl: Ctl) -> None:
    world.pool("six", "fd00::/64")
    world.ipam.auto_assign(use="Workload", num6=1, handle="h", hostname="node-1")
    code, screen = ctl.on_terminal("ipam", "map", "six", columns=60)
    assert code == 0
    assert max(len(line) for line in screen.splitlines()) <= 60


# --- simulate -----------------------------------------------------------------------------------------------


def test_a_simulation_changes_nothing(world: Cluster, ctl: Ctl) -> None:
    assign(world, 3)
    before = ctl.ok("datastore", "export")
    argv = ("--lose-node", "node-1", "--add-pool", "10.9.0.0/24:28", "--disable-pool", "pool-1", "--pods", "20")
    found = json.loads(ctl.ok("ipam", "simulate", *argv, "--on", "node-2", "-o", "json"))
    assert ctl.ok("datastore", "export") == before
    assert found["ok"], found["steps"]
    pools = {each["pool"]: each for each in found["pools"]}
    assert pools["simulated"]["after"]["inUse"] == 20
    assert pools["pool-1"]["after"]["inUse"] == 3, "addresses of pods whose endpoints nobody knows stay"


def test_a_simulated_change_of_block_size(world: Cluster, ctl: Ctl) -> None:
    assign(world)
    before = ctl.ok("datastore", "export")
    out = ctl.ok("ipam", "simulate", "--resize-pool", "pool-1:28")
    assert "! pool pool-1 stays disabled; blocks that must empty first: 1, with addresses: 1 on node-1;" in " ".join(
        out.split()
    )
    world.pool("empty", "10.7.0.0/24")
    assert "pool empty has blocks of /28; empty blocks of the" in ctl.ok(
        "ipam", "simulate", "--resize-pool", "empty:28"
    )
    world.no_pool("empty")
    assert ctl("ipam", "simulate", "--resize-pool", "empty").exit_code != 0
    assert ctl.ok("ipam", "simulate", "--resize-pool", "empty:28").startswith("! pool empty cannot get blocks of /28")
    assert ctl.ok("datastore", "export") == before


def test_a_simulation_says_what_does_not_fit(ctl: Ctl, tmp_path: Path) -> None:
    result = ctl("ipam", "simulate", "--pods", "200", "--fail-on-problems")
    assert result.exit_code == 3
    assert "128 of 200 pods get an address" in result.stdout
    dump = tmp_path / "dump"
    ctl.ok("datastore", "export", str(dump))
    assert "128 of 200 pods" in ctl.ok("ipam", "simulate", "--pods", "200", "--dump", str(dump))
    assert "Say what should happen" in ctl.refused("ipam", "simulate")


# --- history ------------------------------------------------------------------------------------------------


def test_history(world: Cluster, ctl: Ctl) -> None:
    (address,) = assign(world)
    world.ipam.release_by_handle("k8s-pod-network.web")
    world.ipam.assign_ip(parse_address(address), handle="x.other", attrs={"node": "node-2"}, hostname="node-2")
    rows = json.loads(ctl.ok("ipam", "history", address, "-o", "json"))["changes"]
    assert [(each["what"], each["holder"]) for each in rows] == [
        ("assigned", "shop/web on node-1"),
        ("released", "shop/web on node-1"),
        ("assigned", "x.other on node-2"),
    ]
    assert json.loads(ctl.ok("ipam", "history", "x.other", "-o", "json"))["changes"][0]["what"] == "added"


# --- doctor -------------------------------------------------------------------------------------------------


def test_doctor(world: Cluster, ctl: Ctl) -> None:
    lines = {each["about"]: each for each in json.loads(ctl.ok("doctor", "--node", "node-1", "-o", "json"))}
    assert lines["node"]["state"] == "ok" and lines["datastore"]["state"] == "ok"
    ctl.ok("datastore", "lock")
    lines = {each["about"]: each for each in json.loads(ctl.ok("doctor", "--node", "nowhere", "-o", "json"))}
    assert lines["lock"]["state"] == "problem" and "unlock" in lines["lock"]["cure"]
    assert lines["node"]["state"] == "problem" and "ipamctl init --node nowhere" in lines["node"]["cure"]
    assert ctl("doctor", "--fail-on-problems").exit_code == 3


def test_doctor_of_no_datastore(tmp_path: Path) -> None:
    result = Ctl(tmp_path / "none.db")("doctor")
    assert result.exit_code == 0
    assert "'ipamctl init' makes" in result.stdout


# --- pool resize --------------------------------------------------------------------------------------------


def test_resize_never_overlaps_and_goes_on(world: Cluster, ctl: Ctl) -> None:
    (address,) = assign(world)
    assign(world, 64, pod="more")
    world.ipam.release_by_handle("k8s-pod-network.more")
    out = ctl.ok("pool", "resize", "pool-1", "28", "--yes")
    assert "Left: 1 block of the old size, with 1 address:" in out and "node-1: 1" in out
    assert "is being changed to blocks of /28 already" in ctl.refused("pool", "resize", "pool-1", "27", "--yes")
    assert {block.prefixlen for block in (b.cidr for b in world.blocks().values())} == {26}
    world.ipam.release_by_handle("k8s-pod-network.web")
    assert "Done: pool pool-1 has blocks of /28 now." in ctl.ok("pool", "resize", "pool-1", "28", "--yes")
    assert assign(world) != []
    assert {b.cidr.prefixlen for b in world.blocks().values()} == {28}
    assert address


def test_resize_can_be_forgotten(world: Cluster, ctl: Ctl) -> None:
    assign(world)
    ctl.ok("pool", "resize", "pool-1", "28", "--yes")
    assert "disabled" in ctl.ok("pool", "list")
    assert ctl.ok("pool", "resize", "pool-1", "--cancel") == "Pool pool-1 goes on as it was.\n"
    assert "enabled" in ctl.ok("pool", "list")
    assert "blockSize must be between" in ctl.refused("pool", "resize", "pool-1", "33", "--yes")
    assert "Give the new prefix length" in ctl.refused("pool", "resize", "pool-1")


# --- watching -----------------------------------------------------------------------------------------------


def test_watching_shows_what_changed(capsys: pytest.CaptureFixture[str]) -> None:
    from calico_ipam.ctl import watching
    from calico_ipam.ctl.session import Session

    texts = iter(["one", "one", "two"])
    session = Session()
    session.compat = True
    watching.repeat(session, lambda: click.echo(next(texts)), every=0.0, rounds=3)
    assert capsys.readouterr().out == "one\ntwo\n"


def test_watching_writes_json_a_line_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    from calico_ipam.ctl import watching
    from calico_ipam.ctl.session import Session
    from calico_ipam.errors import StoreUnavailable

    shows = iter(['{\n "a": 1}', StoreUnavailable("gone"), '{"a":\n 1}', KeyboardInterrupt()])

    def once() -> None:
        each = next(shows)
        if isinstance(each, BaseException):
            raise each
        click.echo(each)

    watching.repeat(Session(), once, every=0.0, lines=True)
    assert capsys.readouterr().out == '{"a": 1}\ngone\n{"a": 1}\n'


@pytest.mark.parametrize(
    "argv", [["get", "--watch", "ippools"], ["get", "ippools", "--watch=0.5"], ["ipam", "show", "--watch"]]
)
def test_watch_may_name_its_seconds(ctl: Ctl, argv: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from calico_ipam.ctl import watching

    asked: list[float] = []

    def repeat(_session: object, once: Callable[[], None], *, every: float, **_: object) -> None:
        asked.append(every)
        once()

    monkeypatch.setattr(watching, "repeat", repeat)
    assert "10.0.0.0/25" in ctl.ok(*argv)
    assert asked == [0.5 if "=" in argv[-1] else 2.0]


# --- formats ------------------------------------------------------------------------------------------------


def test_csv_is_for_every_command(world: Cluster, ctl: Ctl) -> None:
    assign(world)
    rows = ctl.ok("ipam", "show", "--show-blocks", "-o", "csv").splitlines()
    assert rows[0].startswith("grouping,name,cidr,capacity,inUse,reserved,available,cooling")
    assert rows[1].startswith("pool,pool-1,10.0.0.0/25,128,")
    assert rows[2].startswith("block,pool-1,10.0.0.")
    assert ctl.ok("get", "ippools", "-o", "csv").splitlines()[0].startswith("kind,apiVersion,metadata.name,")
    for command in (
        "pool list",
        "ipam show --show-configuration",
        "ipam explain node-1",
        "version --client",
        "ipam check --format csv",
    ):
        words = command.split()
        more = [] if "csv" in words else ["-o", "csv"]
        assert "," in ctl.ok(*words, *more).splitlines()[0], command


def test_cells_of_csv_are_quoted_and_fields_within_fields_named() -> None:
    from calico_ipam.ctl.sheets import as_csv

    value = {
        "note": "x",
        "items": [{"a": {"b": 1, "c": 'say "x, y"'}, "d": None, "e": [1, 2]}, {"f": True, "g": [{"h": 1}]}],
    }
    assert as_csv(value) == 'a.b,a.c,d,e,f\n1,"say ""x, y""",,1 2,\n,,,,true\n'
    assert as_csv([]) == "\n"
    assert as_csv({"a": [], "b": {}}) == "a,b\n,\n"


# --- colours ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("when", "coloured"), [("always", True), ("never", False), ("auto", False)])
def test_colours_when_asked_for(ctl: Ctl, when: str, coloured: bool) -> None:
    assert ("\x1b[" in ctl("ipam", "explain", "no.such.thing", "--color", when).stderr) is coloured
    assert ("\x1b[" in ctl("--color", when, "ipam", "explain", "no.such.thing").stderr) is coloured


# --- names --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["datastore lock", "datastore unlock", "datastore migrate import", "datastore import", "pool list"]
)
def test_help_names_the_command_as_it_was_called(path: str) -> None:
    from click.testing import CliRunner

    from calico_ipam.ctl.main import cli

    shown = CliRunner().invoke(cli, [*path.split(), "--help"], prog_name="ipamctl").stdout
    assert shown.startswith(f"Usage: ipamctl {path} [OPTIONS]")


# --- rows of pools and blocks -------------------------------------------------------------------------------


def test_a_pool_of_everything_has_no_row_for_scripts(world: Cluster, ctl: Ctl) -> None:
    """calicoctl keeps 0.0.0.0/0 for blocks in no pool (cli §3.2); people see what is there."""
    world.pool("everything", "0.0.0.0/0")
    world.block("10.0.0.0/26", owner="node-1")
    shown = ctl.ok("ipam", "show", "--show-blocks")
    assert "0.0.0.0/0" not in shown and "| Block    | 10.0.0." in shown
    assert "0.0.0.0/0" in ctl.on_terminal("ipam", "show")[1]


def test_wide_names_the_nodes_that_use_a_block(world: Cluster, ctl: Ctl) -> None:
    world.nodes("node-9")
    for node in ("node-9", "node-1"):
        world.auto(host="node-1", attrs={"node": node})
    lines = ctl.ok("ipam", "show", "--show-blocks", "-o", "wide").splitlines()
    assert "NODES USING" in lines[1]
    assert any("| node-1 node-9 |" in line for line in lines)
