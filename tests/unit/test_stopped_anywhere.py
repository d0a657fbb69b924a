"""An ADD that is stopped before each of its requests, one after the other, leaves nothing behind (cni.md §15.5)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from calico_cni.protocol import CALICO, CALICO_IPAM
from calico_cni.stopping import CallStopped, HeedingStore, Stop
from calico_ipam.datastore.api import Datastore
from tests.cni_bench import NETNS, CNIBench, answer
from tests.sequential import SequentialStore

MOST = 60  # an ADD needs fewer requests


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


@pytest.mark.parametrize("program", [CALICO, CALICO_IPAM])
@pytest.mark.parametrize("kind", [atomic, SequentialStore])
def test_nothing_is_left(tmp_path: Path, program: str, kind: Callable[[Datastore], Datastore]) -> None:
    bench = CNIBench(tmp_path).prepare()
    bench.extra = {"ipam": {"type": "calico-ipam", "assign_ipv6": "true"}}
    for place in range(1, MOST):
        bench.store = HeedingStore(kind(bench.base), StoppedAt(place))
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
    assert bench.call("DEL", program=program, netns=NETNS).exit_code == 0
    assert bench.addresses() == [] and bench.handles() == []
