"""Objects damaged in every way: skipped, named, counted; the cycle goes on and nothing that lives is released.

Each seed damages one document of a healthy cluster at one place, by hand of somebody who does not know what it means.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from calico_gc import report
from calico_gc.decide import Rules
from calico_gc.metrics import Metrics
from calico_gc.options import HandleOptions, Options
from calico_gc.view import view_of
from calico_gc.web.onefile import one_file
from calico_gc.web.site import templates

from calico_ipam.datastore.documents import Row
from tests.gc_things import (
    add_block,
    calico_node,
    cooldown,
    holders,
    pod_attrs,
    pool,
    ready,
    reservation,
    running_pod,
    tunnel_attrs,
)
from tests.gc_world import World

GRACE = 60.0
SEEDS = 5
PAGES = templates()
#: what somebody may write in the place of anything
ODD: tuple[Any, ...] = (
    *(None, "", "x", "..", "\u0000", "\ud800", 0, -1, 1, 2**63, 2**64, 10**30, 1.5, True, False),
    *(
        [],
        {},
        [None],
        [[]],
        [{}],
        {"": None},
        "10.0.0.0/33",
        "10.0.0.1",
        "::/0",
        "host:",
        "host:n2",
        "1e999",
        "9" * 400,
    ),
)
STORED = (
    "/assignment/",
    "/handle/",
    "/nodes/",
    "/ippools/",
    "/ipreservations/",
    "/clusterinformations/",
    "/config",
    "/host/",
)
KUBERNETES = ("pod", "node")


def cluster(*, kubernetes: bool) -> World:
    """A cluster in which 10.0.1.1 to 10.0.1.3 live, 10.0.1.4 is leaked, and one block is to be damaged."""
    handles = HandleOptions(grace=GRACE, rate=0.0)
    rules, beside = Rules(leak_grace=GRACE, nameless=True), not kubernetes
    options = Options(rules=rules, handles=handles, node_deletion=beside, label_sync=beside)
    world = World(kubernetes=kubernetes, options=options)
    cooldown(world, 30)
    pool(world, "pool", "10.0.0.0/16", 26)
    reservation(world, "reserved", "10.0.9.0/28")
    ready(world, True)
    for node in ("n1", "n2"):
        world.node(node, {"zone": "a"})
        if not kubernetes:
            calico_node(world, node, node)
    for n in (1, 2):
        running_pod(world, f"p{n}", "n1", f"10.0.1.{n}")
    running_pod(world, "q", "n2", "10.0.0.1")
    held = {n: (f"k8s-pod-network.{n}", pod_attrs("n1", f"p{n}")) for n in (1, 2, 4)}
    add_block(world, "10.0.1.0/26", "n1", held | {3: ("vxlan-tunnel-addr-n1", tunnel_attrs("n1"))})
    add_block(
        world,
        "10.0.0.0/26",
        "n2",
        {1: ("k8s-pod-network.q", pod_attrs("n2", "q")), 2: ("vxlan-tunnel-addr-n2", tunnel_attrs("n2"))},
        cooling={5: 600.0},
    )
    return world


def places(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield every place in a document."""
    items = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


def damaged(document: Mapping[str, Any], choose: random.Random) -> Any:
    """Return a document with one place replaced, removed or doubled."""
    made = copy.deepcopy(dict(document))
    *way, last = choose.choice(list(places(made)))
    place: Any = made
    for step in way:
        place = place[step]
    if choose.random() < 0.2:
        del place[last]
    elif isinstance(place, list) and choose.random() < 0.2:
        place.insert(last, copy.deepcopy(place[last]))
    else:
        place[last] = copy.deepcopy(choose.choice(ODD))
    return made


def damage_stored(world: World, kind: str, choose: random.Random) -> str:
    rows: dict[str, Row] = world.store._rows  # type: ignore[attr-defined]  # of this test's store
    path = choose.choice(
        [path for path in sorted(rows) if kind in path and "10.0.1.0" not in path and "/n1" not in path]
    )
    text = rows[path].text
    try:
        text = json.dumps(damaged(json.loads(text), choose))
    except (ValueError, IndexError, TypeError):
        text = choose.choice(["", "{", "null", "[]", "7"])
    rows[path] = Row(path, text, rows[path].revision)
    return f"{path} = {text}"


def damage_kubernetes(world: World, kind: str, choose: random.Random) -> str:
    if kind == "pod":
        key = ("default", "q")
        world.kube.pods[key] = damaged(world.kube.pods[key], choose)
        return str(world.kube.pods[key])
    world.kube.nodes["n2"] = damaged(world.kube.nodes["n2"], choose)
    return str(world.kube.nodes["n2"])


def look_at_everything(world: World) -> None:
    """What people and machines are shown must not break either."""
    view = view_of(world.controller)
    json.dumps(report.report(view)).encode()
    json.dumps(report.calicoctl_report(view)).encode()
    for piece in one_file(view, PAGES, origin="test"):
        piece.encode()
    Metrics(lambda: view, legacy=True).page().encode()


@pytest.mark.parametrize("kind", (*STORED, *KUBERNETES))
@pytest.mark.parametrize("kubernetes", [True, False], ids=["kubernetes", "etcd"])
def test_one_damaged_object(kind: str, kubernetes: bool) -> None:
    if kubernetes and kind == "/nodes/":
        kind = "node"  # there Kubernetes' nodes are Calico's
    for seed in range(SEEDS):
        choose = random.Random(f"{kind} {seed}")
        world = cluster(kubernetes=kubernetes)
        what = (damage_kubernetes if kind in KUBERNETES else damage_stored)(world, kind, choose)
        try:
            world.start()
            world.run(4 * GRACE)
            look_at_everything(world)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {what}") from error
        assert {1, 2, 3} <= set(holders(world, "10.0.1.0/26")), f"seed {seed}: {what}: released what lives"
        stored = {path.rpartition("/")[2] for path in world.store._rows}  # type: ignore[attr-defined]  # of this test's store
        assert {f"k8s-pod-network.{n}" for n in (1, 2)} <= stored, f"seed {seed}: {what}: a handle is gone"
        if kind in ("/nodes/", "node"):
            assert 1 in holders(world, "10.0.0.0/26"), f"seed {seed}: {what}: released what lives"
        if world.state.ready and kind != "/config":  # nobody can tell how long what is released has to cool down
            assert 4 not in holders(world, "10.0.1.0/26"), f"seed {seed}: {what}: left what is leaked"


@pytest.mark.parametrize(
    ("cidr", "size"), [("10.0.0.1", 26), ("10.0.0.0/24", 8), ("10.0.0.0/24", 10**30), ("fd00::/64", 26)]
)
def test_a_pool_of_impossible_blocks_is_shown(cidr: str, size: int) -> None:
    world = cluster(kubernetes=True)
    pool(world, "odd", cidr, size)
    world.start()
    look_at_everything(world)
