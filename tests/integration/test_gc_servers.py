"""The collector on real servers: recorded cases, elections, damage, restarts (ruling 36)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from calico_gc.view import View

from calico_ipam.datastore.api import Create, Datastore
from calico_ipam.datastore.etcd import EtcdStore
from calico_ipam.datastore.kube.store import KubernetesStore
from calico_ipam.model.handle import Handle
from calico_ipam.model.keys import BlockKey, HandleKey, Handles, Key
from tests.clock import LONG
from tests.gc_servers import clear_pods, collecting, load_entry, place_of, read_case, stored
from tests.golden.gc_exceptions import EXCEPTIONS
from tests.golden.gc_moments import Moment
from tests.golden.gc_recording import load
from tests.golden.gc_replay import comparable, differences
from tests.invariants import new_violations, violations
from tests.kube_tools import KubeServer, wait_until
from tests.shared import golden

pytestmark = pytest.mark.timeout(300)  # each wait may take its SECONDS on a machine that is busy with tests

FOLDER = golden("gc")
SECONDS = LONG
#: cases that together use every kind of action
ON_KUBERNETES = (
    *("leak-pod-gone-kdd", "node-gone-kdd", "empty-five-kdd", "cold-expired-empties-block-kdd"),
    *("handle-all-or-none-kdd", "pod-on-other-node-kdd"),
)
ON_ETCD = ("leak-pod-gone-etcd", "node-gone-etcd", "etcd-node-deleter-etcd", "event-pod-deleted-etcd", "locked-etcd")


def recording(name: str) -> Path:
    path = FOLDER / f"{name}.json"
    if not path.is_file():
        pytest.skip(f"{path} is absent (set CALICO_IPAM_SHARED)")
    return path


@pytest.fixture
def clean(kube: KubeServer) -> KubeServer:
    kube.clear()
    clear_pods(kube)
    return kube


@pytest.fixture
def on_kubernetes(clean: KubeServer) -> Iterator[KubernetesStore]:
    with KubernetesStore(clean.settings()) as store:
        yield store


@pytest.fixture
def on_etcd(clean: KubeServer) -> Iterator[EtcdStore]:
    from tests.etcd_tools import Etcd

    with Etcd() as etcd, EtcdStore(etcd.settings()) as store:
        yield store


def replay(kube: KubeServer, store: Datastore, name: str) -> None:
    """Load a case, let a collector work, and wait until every phase has ended as recorded."""
    path = recording(name)
    case, raw = load(path), read_case(path)
    for entry in raw["before"]:
        load_entry(kube, store, entry)
    before = comparable(stored(store))
    with collecting(place_of(kube, store)):
        for number, phase in enumerate(raw.get("phases", [raw])):
            for entry in phase.get("events") or ():
                load_entry(kube, store, entry)
            after = comparable(case.phases[number].after)

            def left(number: int = number, before: dict[Key, Any] = before, after: dict[Key, Any] = after) -> list[str]:
                ours = comparable(stored(store))
                expected = after
                for exception in EXCEPTIONS:
                    moment = Moment(case, number, before, expected, ours)
                    if exception.where(moment):
                        expected = exception.expect(moment)
                return differences(expected, ours)

            def nothing_left(left: Callable[[], list[str]] = left) -> bool:
                return not left()

            try:
                wait_until(nothing_left, SECONDS, f"phase {number}")
            except AssertionError:
                raise AssertionError("\n".join(left())) from None
            before = comparable(stored(store))


@pytest.mark.parametrize("name", ON_KUBERNETES)
def test_recorded_case_on_kubernetes(clean: KubeServer, on_kubernetes: KubernetesStore, name: str) -> None:
    replay(clean, on_kubernetes, name)


@pytest.mark.parametrize("name", ON_ETCD)
def test_recorded_case_on_etcd(clean: KubeServer, on_etcd: EtcdStore, name: str) -> None:
    replay(clean, on_etcd, name)


def loaded(kube: KubeServer, store: Datastore, name: str = "leak-pod-gone-kdd") -> None:
    for entry in read_case(recording(name))["before"]:
        load_entry(kube, store, entry)


def leak(store: Datastore) -> bool:
    return HandleKey("k8s-pod-network.x1") in stored(store)


def settled(view: View | None) -> bool:
    return view is not None and view.measured and not view.busy


# --- elections -----------------------------------------------------------------------------------------------


def test_of_two_collectors_one_acts_and_the_other_follows(clean: KubeServer, on_kubernetes: KubernetesStore) -> None:
    clean.delete("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/calico-ipam-gc")
    loaded(clean, on_kubernetes)
    with collecting(place_of(clean, on_kubernetes, "second"), leak_grace=3600.0) as second:
        with collecting(place_of(clean, on_kubernetes, "first"), leak_grace=3600.0) as first:
            both = (first, second)
            wait_until(lambda: sum(c.controller.active for c in both) == 1, SECONDS, "a leader")
            wait_until(lambda: all(c.controller.state.in_sync for c in both), SECONDS, "both to be in sync")
            wait_until(lambda: any(c.controller.state.suspects for c in both), SECONDS, "a candidate")
            standby = next(c for c in both if not c.controller.active)
            assert standby.controller.state.suspects == {}
            assert "ipam_gc_leader 0.0" in standby.metrics.page()
        wait_until(lambda: second.controller.active, SECONDS, "the other to take over")
    assert leak(on_kubernetes)


def test_a_dry_run_never_takes_the_lease_and_writes_nothing(clean: KubeServer, on_kubernetes: KubernetesStore) -> None:
    clean.delete("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/calico-ipam-gc")
    loaded(clean, on_kubernetes, "node-gone-kdd")
    before = stored(on_kubernetes)
    clean.mark()
    with collecting(place_of(clean, on_kubernetes, drop_in=True), dry_run=True, events=True) as collector:
        wait_until(lambda: collector.controller.planned, SECONDS, "a plan")
    assert stored(on_kubernetes) == before
    verbs = {request.verb for request in clean.requests()}
    assert verbs <= {"get", "list", "watch"}, [
        str(r) for r in clean.requests() if r.verb not in ("get", "list", "watch")
    ]


def test_two_collectors_without_election_do_no_harm(clean: KubeServer, on_etcd: EtcdStore) -> None:
    loaded(clean, on_etcd, "leak-five-in-two-blocks-etcd")
    before = violations(on_etcd)
    with (
        collecting(place_of(clean, on_etcd, "a"), leader_elect=False) as one,
        collecting(place_of(clean, on_etcd, "b"), leader_elect=False) as two,
    ):
        wait_until(lambda: one.controller.state.in_sync and two.controller.state.in_sync, SECONDS, "both in sync")
        wait_until(
            lambda: (
                settled(one.loop.view()) and not one.controller.state.suspects and not two.controller.state.suspects
            ),
            SECONDS,
            "nothing to be suspected",
        )
    assert new_violations(before, violations(on_etcd)) == []


# --- bad input ------------------------------------------------------------------------------------------------


def test_one_damaged_block_stops_nothing(clean: KubeServer, on_etcd: EtcdStore) -> None:
    from tests.gc_servers import put_text

    loaded(clean, on_etcd, "leak-pod-gone-etcd")
    path = "/calico/ipam/v2/assignment/ipv4/block/10.99.0.0-26"
    put_text(on_etcd, path, "{ this is no JSON")
    put_text(on_etcd, "/calico/resources/v3/projectcalico.org/nodes/odd", '{"kind":"Node","spec":[]}')
    with collecting(place_of(clean, on_etcd)) as collector:
        wait_until(lambda: not leak(on_etcd), SECONDS, "the leak to go")
        view = collector.loop.view()
        assert view is not None
        assert "10.99.0.0/26" in view.damaged
        put_text(on_etcd, path, None)
        wait_until(lambda: "10.99.0.0/26" not in collector.controller.state.damaged, SECONDS, "it to be forgotten")


def test_it_goes_on_after_the_api_server_was_away(clean: KubeServer, on_kubernetes: KubernetesStore) -> None:
    loaded(clean, on_kubernetes, "clean-kdd")
    with collecting(place_of(clean, on_kubernetes), leader_elect=False) as collector:
        wait_until(lambda: collector.controller.state.in_sync, SECONDS, "in sync")
        clean.stop()
        clean.start()
        clean.delete("/api/v1/namespaces/default/pods/pod-a1")
        wait_until(
            lambda: HandleKey("k8s-pod-network.a1") not in stored(on_kubernetes), 2 * LONG, "the pod's address to go"
        )


def test_unfinished_deletions_are_listed_and_finished(clean: KubeServer, on_kubernetes: KubernetesStore) -> None:
    """Class C2: upstream marks a handle as deleted and does not live to remove it."""
    from calico_gc.kube import list_marked

    loaded(clean, on_kubernetes, "clean-kdd")
    path = clean.collection("ipamhandles")
    clean.put(
        f"{path}/stuck",
        {
            "apiVersion": clean.api_version,
            "kind": "IPAMHandle",
            "spec": {"handleID": "stuck", "block": {}, "deleted": True},
        },
    )
    on_kubernetes.commit(Create(HandleKey("orphan"), Handle("orphan", {"192.168.0.0/26": 1})))
    assert {e.value.id for e in list_marked(on_kubernetes, Handles())} >= {"stuck", "orphan"}
    assert HandleKey("stuck") not in stored(on_kubernetes)
    settings = {"leader_elect": False, "handle_grace": 300.0}
    with collecting(place_of(clean, on_kubernetes), **settings) as collector:
        wait_until(lambda: collector.controller.handles.last is not None, SECONDS, "a look at handles")
        assert collector.controller.handles.last is not None
        assert collector.controller.handles.last.numbers["stuck"] == 1
        for _ in range(3):

            def again() -> None:
                collector._clock.offset += 301.0  # type: ignore[attr-defined]  # of this test's store
                collector.controller.handles.next_at = 0.0

            collector.inbox.call(again)
            wait_until(lambda: settled(collector.loop.view()), SECONDS, "another look")
        wait_until(lambda: clean.ask("GET", f"{path}/stuck")[0] == 404, SECONDS, "the stuck handle to go")
        wait_until(lambda: clean.ask("GET", f"{path}/orphan")[0] == 404, SECONDS, "the orphan to go")
    assert BlockKey in {type(key) for key in stored(on_kubernetes)}


def test_absent_configuration_is_created_in_upstreams_place(clean: KubeServer, on_kubernetes: KubernetesStore) -> None:
    path = f"{clean.collection('kubecontrollersconfigurations')}/default"
    assert clean.ask("GET", path)[0] == 404
    place = place_of(clean, on_kubernetes, drop_in=True, environ={"ENABLED_CONTROLLERS": "node"})
    with collecting(place, leak_grace=None) as collector:
        wait_until(lambda: clean.ask("GET", path)[0] == 200, SECONDS, "the configuration to be created")
        wait_until(lambda: "status" in clean.get(path), SECONDS, "its status")
        wait_until(lambda: collector.controller.options.rules.leak_grace == 900.0, SECONDS, "its grace to be honoured")
        change = {"spec": {"controllers": {"node": {"leakGracePeriod": "7m0s"}}}}
        clean.done("PATCH", path, change, content_type="application/merge-patch+json")  # the status may be written now
        wait_until(lambda: collector.controller.options.rules.leak_grace == 420.0, SECONDS, "the change to be honoured")
        running = "7m0s"
        wait_until(
            lambda: clean.get(path)["status"]["runningConfig"]["controllers"]["node"]["leakGracePeriod"] == running,
            SECONDS,
            "the status to follow",
        )
