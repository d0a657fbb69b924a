"""A call that is stopped before each of its requests, one after the other, leaves nothing behind (cni.md §15.5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest

from calico_cni.context import Finished
from calico_cni.protocol import CALICO, CALICO_IPAM, Response
from calico_cni.stopping import CallStopped, HeedingStore, Stop
from calico_ipam.datastore.api import Datastore
from calico_ipam.model.keys import Key, ResourceKey, Scope
from calico_ipam.model.resource import IP_RESERVATION, PROFILE
from tests.cni_bench import CNIBench, answer, failure
from tests.faulty import Fault, FaultyStore
from tests.memory import MemoryStore
from tests.pod_bench import STORES, PodBench
from tests.sequential import SequentialStore

MOST = 60  # an ADD needs fewer requests
BOTH = {"ipam": {"type": "calico-ipam", "assign_ipv6": "true"}}


class StoppedAt(Stop):
    """A signal comes before the ``place``-th time that it can be heeded."""

    def __init__(self, place: int) -> None:
        super().__init__()
        self._left = place

    def heed(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._name = "SIGTERM"
        super().heed()

    @property
    def came(self) -> bool:
        return self._left <= 0


def came(stop: StoppedAt, _subject: Key | Scope) -> bool:
    return stop.came


def atomic(store: Datastore) -> Datastore:
    return store


def stopped_everywhere(bench: CNIBench, kind: Callable[[Datastore], Datastore], program: str) -> Response:
    """Stop one ADD after the other, each a request later; return what the first that was not stopped says."""
    for place in range(1, MOST):
        bench.stop = stop = StoppedAt(place)
        bench.store = HeedingStore(kind(bench.base), stop)
        try:
            done = bench.call("ADD", program=program)
        except CallStopped as stopped:
            assert stopped.undone, place
            found = None
        else:
            found = done
        if found is None or found.exit_code != 0:
            assert bench.addresses() == [] and bench.handles() == [], place
            assert bench.records() == [], place
            assert not bench.dataplane.pairs, place
        if found is not None and not stop.came:
            assert place > 5, "it was hardly ever stopped"
            return found
    raise AssertionError("an ADD never came to its end")


def nothing_is_left(bench: CNIBench, kind: Callable[[Datastore], Datastore], program: str) -> None:
    """Neither of an ADD that was stopped, nor of the one that was not, once its DEL was done."""
    bench.extra = BOTH
    done = stopped_everywhere(bench, kind, program)
    assert len(answer(done)["ips"]) == 2
    bench.store = bench.base
    assert bench.call("DEL", program=program).exit_code == 0
    assert bench.addresses() == [] and bench.handles() == []


@pytest.mark.parametrize("program", [CALICO, CALICO_IPAM])
@pytest.mark.parametrize("kind", [atomic, SequentialStore])
def test_nothing_of_a_container_is_left(tmp_path: Path, program: str, kind: Callable[[Datastore], Datastore]) -> None:
    nothing_is_left(CNIBench(tmp_path).prepare(), kind, program)


@pytest.mark.parametrize("kind", STORES)
def test_nothing_of_a_pod_is_left(tmp_path: Path, kind: str) -> None:
    nothing_is_left(PodBench(tmp_path, kind).prepare(), atomic, CALICO)


@pytest.mark.parametrize("program", [CALICO, CALICO_IPAM])
@pytest.mark.parametrize("kind", [atomic, SequentialStore])
def test_a_signal_does_not_cut_short_the_undoing_of_a_failure(
    tmp_path: Path, program: str, kind: Callable[[Datastore], Datastore]
) -> None:
    """IPv4 is assigned, IPv6 is not to be had, and the signal comes while the one is given back."""
    bench = CNIBench(tmp_path).prepare()
    bench.put(IP_RESERVATION, "all6", {"reservedCIDRs": ["fd00:65::/64"]})
    bench.extra = BOTH
    assert "IPv6" in failure(stopped_everywhere(bench, kind, program))["msg"]


@pytest.mark.parametrize("kind", [atomic, SequentialStore])
def test_nor_that_of_a_failure_at_the_very_end(tmp_path: Path, kind: Callable[[Datastore], Datastore]) -> None:
    """Address, link and record are there, and the signal comes while they are taken back."""

    def without_profiles(store: Datastore) -> Datastore:
        def is_profile(key: Key | Scope) -> bool:
            return isinstance(key, ResourceKey) and key.kind == PROFILE

        return kind(FaultyStore(store, Fault("before", operation=1, times=MOST, verb="commit", where=is_profile)))

    done = stopped_everywhere(CNIBench(tmp_path).prepare(), without_profiles, CALICO)
    assert "injected failure" in failure(done)["msg"]


@pytest.mark.parametrize("args", ["", "K8S_POD_NAMESPACE=default;K8S_POD_NAME=p"])
def test_a_foreign_plugin_gives_back_what_is_of_no_use(tmp_path: Path, args: str) -> None:
    """It told of no address; what it may have taken all the same is given back, whatever signal comes then."""
    bench = CNIBench(tmp_path).prepare()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "other").touch()
    bench.extra = {"ipam": {"type": "other"}}
    asked: list[str] = []

    def run(path: Path, environ: Mapping[str, str], stdin: bytes, timeout: float) -> Finished:
        bench.stop.heed()
        asked.append(environ["CNI_COMMAND"])
        return Finished(0, b'{"cniVersion": "1.0.0", "ips": []}', b"")

    bench.run_program = run
    for place in range(1, MOST):
        bench.stop = stop = StoppedAt(place)
        bench.store = HeedingStore(bench.base, stop)
        asked.clear()
        try:
            done = bench.call("ADD", args=args)
        except CallStopped:
            assert asked[-1:] != ["ADD"], place
        else:
            assert asked == ["ADD", "DEL"], place
            assert "IPAM plugin returned" in failure(done)["msg"]
            if not stop.came:
                return
    raise AssertionError("an ADD never came to its end")


def test_what_could_not_be_given_back_is_told(tmp_path: Path) -> None:
    """The store is away when the addresses of a call that was stopped are to be released."""
    bench = CNIBench(tmp_path).prepare()
    told = set()
    for place in range(1, MOST):
        bench.stop = stop = StoppedAt(place)
        away = Fault("before", operation=1, times=MOST, where=partial(came, stop))
        bench.store = HeedingStore(FaultyStore(bench.base, away), stop)
        try:
            assert bench.call("ADD").exit_code == 0
        except CallStopped as stopped:
            told.add(stopped.undone)
            assert not (stopped.undone and bench.addresses()), place
            bench.store, bench.stop = bench.base, Stop()
            assert bench.call("DEL").exit_code == 0
        else:
            break
    assert told == {True, False}


def test_a_call_inside_another_is_stopped_with_it(tmp_path: Path) -> None:
    """``sharing`` and ``knowing`` make contexts for it; they hear the same signal."""
    context = CNIBench(tmp_path).context()
    assert context.sharing(MemoryStore()).stop is context.stop
