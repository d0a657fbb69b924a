"""``kill -9`` at any moment of ADD and DEL: the next call heals it.

A call is run once with a look after every effect it has, on the store or on a link. Each of those moments is what a
killed call leaves behind; from each, ADD must work again and DEL must leave nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from calico_ipam.datastore.api import Revision
from calico_ipam.datastore.documents import RawWrite, Row
from tests.cni_bench import HOST_NAME, NETNS, CNIBench, answer
from tests.fake_dataplane import FakeDataplane
from tests.invariants import violations
from tests.memory import MemoryStore

DUAL = {"type": "calico-ipam", "assign_ipv6": "true"}


@dataclass(frozen=True)
class Moment:
    """The world as a killed call leaves it."""

    rows: dict[str, Row]
    dataplane: FakeDataplane


class WatchedStore(MemoryStore):
    """Calls ``effect`` after each commit."""

    def __init__(self) -> None:
        super().__init__()
        self.effect: Callable[[], None] = lambda: None

    def _raw_commit(self, writes: Sequence[RawWrite]) -> list[Revision]:
        revisions = super()._raw_commit(writes)
        self.effect()
        return revisions


def moments(folder: Path, verbs: Sequence[str], **changes: Any) -> list[Moment]:
    """Return what each effect of the last of ``verbs`` leaves."""
    store = WatchedStore()
    bench = CNIBench(folder, base=store).prepare()
    for verb in verbs[:-1]:
        assert bench.call(verb, **changes).exit_code == 0
    found: list[Moment] = []

    def look() -> None:
        found.append(Moment(dict(store._rows), bench.dataplane.copy()))

    store.effect = look
    bench.dataplane.effects = look
    assert bench.call(verbs[-1], **changes).exit_code == 0
    return found


def restored(folder: Path, moment: Moment) -> CNIBench:
    store = MemoryStore()
    store._rows.update(moment.rows)
    store._revision = max(int(row.revision) for row in moment.rows.values())
    return CNIBench(folder, base=store, dataplane=moment.dataplane.copy())


def assert_nothing_left(bench: CNIBench) -> None:
    assert bench.addresses() == []
    assert bench.handles() == []
    assert bench.records() == []
    assert bench.dataplane.pairs == {}
    assert not violations(bench.base)


CALLS = [
    pytest.param(["ADD"], {"ipam": DUAL}, id="add"),
    pytest.param(["ADD"], {"args": "IP=10.65.0.7"}, id="add-with-address"),
    pytest.param(["ADD", "DEL"], {"ipam": DUAL}, id="del"),
    pytest.param(["ADD", "DEL"], {"args": "IP=10.65.0.7"}, id="del-with-address"),
]


@pytest.mark.parametrize(("verbs", "changes"), CALLS)
def test_del_after_a_killed_call_leaves_nothing(tmp_path: Path, verbs: list[str], changes: dict[str, Any]) -> None:
    cuts = moments(tmp_path, verbs, **changes)
    assert len(cuts) >= 3, "address, link and record are effects of their own"
    for cut in cuts:
        bench = restored(tmp_path, cut)
        assert bench.call("DEL", **changes).exit_code == 0
        assert_nothing_left(bench)


@pytest.mark.parametrize("netns", ["", "/run/netns/gone"])
@pytest.mark.parametrize(("verbs", "changes"), CALLS)
def test_del_without_a_sandbox_leaves_nothing(
    tmp_path: Path, verbs: list[str], changes: dict[str, Any], netns: str
) -> None:
    for cut in moments(tmp_path, verbs, **changes):
        bench = restored(tmp_path, cut)
        bench.dataplane.lose_namespace(NETNS)
        assert bench.call("DEL", netns=netns, **changes).exit_code == 0
        assert_nothing_left(bench)


@pytest.mark.parametrize(("verbs", "changes"), CALLS)
def test_add_after_a_killed_call_works(tmp_path: Path, verbs: list[str], changes: dict[str, Any]) -> None:
    for cut in moments(tmp_path, verbs, **changes):
        bench = restored(tmp_path, cut)
        result = answer(bench.call("ADD", **changes))
        (record,) = bench.records()
        assert record.spec["ipNetworks"] == [ip["address"] for ip in result["ips"]]
        pair = bench.dataplane.pairs[HOST_NAME]
        assert (pair.netns, pair.container_name) == (NETNS, "eth0")
        assert {ip["address"].partition("/")[0] for ip in result["ips"]} <= set(bench.addresses())
        assert bench.call("DEL", **changes).exit_code == 0
        assert_nothing_left(bench)
