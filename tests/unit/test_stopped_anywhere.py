"""An ADD that is stopped before each of its requests, one after the other, leaves nothing behind (cni.md §15.5)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from calico_cni.protocol import CALICO, CALICO_IPAM
from calico_cni.stopping import CallStopped, HeedingStore, Stop
from calico_ipam.datastore.api import Datastore
from tests.cni_bench import CNIBench, answer
from tests.pod_bench import STORES, PodBench
from tests.sequential import SequentialStore

MOST = 60  # an ADD needs fewer requests
BOTH = {"ipam": {"type": "calico-ipam", "assign_ipv6": "true"}}


class StoppedAt(Stop):
    """A signal came before the ``place``-th time that it can be heeded."""

    def __init__(self, place: int) -> None:
        super().__init__()
        self._left = place

    def heed(self) -> None:
        self._left -= 1
        if self._left == 0:
            raise CallStopped("SIGTERM")


def atomic(store: Datastore) -> Datastore:
    return store


def stopped_everywhere(bench: CNIBench, wrapped: Callable[[Datastore], Datastore], program: str) -> None:
    """Do ADD after ADD, each stopped one request later than the one before, until one comes to its end; then DEL."""
    for place in range(1, MOST):
        bench.store = HeedingStore(wrapped(bench.base), StoppedAt(place))
        try:
            done = bench.call("ADD", program=program)
        except CallStopped:
            assert bench.addresses() == [] and bench.handles() == [], place
            assert bench.records() == [], place
            assert not bench.dataplane.pairs, place
        else:
            break
    else:
        raise AssertionError("an ADD never came to its end")
    assert place > 5, "it was hardly ever stopped"
    assert len(answer(done)["ips"]) == 2
    bench.store = bench.base
    assert bench.call("DEL", program=program).exit_code == 0
    assert bench.addresses() == [] and bench.handles() == []


@pytest.mark.parametrize("program", [CALICO, CALICO_IPAM])
@pytest.mark.parametrize("wrapped", [atomic, SequentialStore])
def test_nothing_of_a_container_is_left(
    tmp_path: Path, program: str, wrapped: Callable[[Datastore], Datastore]
) -> None:
    bench = CNIBench(tmp_path).prepare()
    bench.extra = BOTH
    stopped_everywhere(bench, wrapped, program)


@pytest.mark.parametrize("kind", STORES)
def test_nothing_of_a_pod_is_left(tmp_path: Path, kind: str) -> None:
    bench = PodBench(tmp_path, kind).prepare()
    bench.extra = BOTH
    stopped_everywhere(bench, atomic, CALICO)
