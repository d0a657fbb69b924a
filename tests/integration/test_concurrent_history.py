"""A recorded history of eight processes on one datastore is one that a sequential allocator could have had."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from calico_ipam.datastore.api import Create
from calico_ipam.datastore.config import open_datastore
from calico_ipam.model.keys import Blocks, ResourceKey
from calico_ipam.model.resource import IP_POOL, NODE, Resource
from tests.etcd_tools import Etcd
from tests.history import LEAST, History, Hold, contradictions, record
from tests.invariants import violations

HOSTS = 8
SECONDS = 6.0


@pytest.fixture(params=["sqlite", "etcd"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite://{tmp_path}/store/ipam.db"
    else:
        with Etcd() as etcd:
            yield f"etcd+http://{etcd.address}"


@pytest.mark.timeout(240)
def test_a_history_of_eight_processes_has_a_sequential_explanation(url: str) -> None:
    with open_datastore(url, environ={}) as store:
        pool = Resource.new(IP_POOL, "p", {"cidr": "10.77.0.0/23", "blockSize": 29})
        store.commit(Create(ResourceKey(IP_POOL, "p"), pool))
        for number in range(HOSTS):
            name = f"host-{number}"
            store.commit(Create(ResourceKey(NODE, name), Resource.new(NODE, name, {})))
        history = record(url, HOSTS, SECONDS)
        assert history.errors == ()
        assert list(contradictions(history)) == []
        assert len(history.holds) >= HOSTS * LEAST
        held = {
            str(entry.value.address(ordinal)): attribute.clean_handle
            for entry in store.list(Blocks())
            for ordinal, attribute in entry.value.taken()
        }
        assert held == history.kept
        assert violations(store) == []


def test_an_address_in_two_hands_is_found() -> None:
    holds = (Hold("10.0.0.1", "a", 1.0, 3.0), Hold("10.0.0.1", "b", 2.0, 4.0), Hold("10.0.0.1", "c", 4.5, 5.0))
    found = list(contradictions(History(holds, (), {}, 3)))
    assert found == ["10.0.0.1 was a's until 3.0 and b's from 2.0"]
