"""``calico`` DEL: everything goes, what is gone is fine, and nothing of anybody else's is touched (rulings 1 and 5)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from calico_cni.dataplane.api import DataplaneError
from calico_ipam.datastore.api import Update
from calico_ipam.errors import StoreUnavailable
from calico_ipam.model.keys import ResourceKey
from calico_ipam.model.resource import CLUSTER_INFORMATION, WORKLOAD_ENDPOINT
from tests.cni_bench import CONTAINER, HOST_NAME, NETNS, CNIBench, answer, failure, told
from tests.fake_dataplane import Pair
from tests.faulty import Fault, FaultyStore


@pytest.fixture
def bench(tmp_path: Path) -> CNIBench:
    return CNIBench(tmp_path).prepare()


def assert_gone(bench: CNIBench) -> None:
    assert bench.addresses() == []
    assert bench.handles() == []
    assert bench.records() == []
    assert bench.dataplane.pairs == {}


def once(operation: str, error: Exception, when: Callable[[], bool] = lambda: True) -> Callable[[str], None]:
    done: list[str] = []

    def fail(called: str) -> None:
        if called == operation and not done and when():
            done.append(called)
            raise error

    return fail


@pytest.mark.parametrize("netns", [NETNS, "", "/run/netns/never"])
def test_del_after_add_and_again(bench: CNIBench, netns: str) -> None:
    answer(bench.call("ADD"))
    for _ in range(3):
        response = bench.call("DEL", netns=netns)
        assert (response.exit_code, response.stdout) == (0, "")
        assert_gone(bench)


def test_del_of_what_never_was(bench: CNIBench) -> None:
    for netns in (NETNS, "", "/run/netns/never"):
        assert bench.call("DEL", netns=netns).exit_code == 0


def test_one_of_two_interfaces_gives_back_its_own_address(bench: CNIBench) -> None:
    """Upstream's plugin may have made a second one; both share the container's handle (cni.md §15.20)."""
    kept = answer(bench.call("ADD"))["ips"][0]["address"]
    second = answer(bench.ipam("ADD", ifname="eth1"))["ips"][0]["address"].partition("/")[0]
    (first,) = bench.records()
    spec = {**first.spec, "endpoint": "eth1", "ipNetworks": [f"{second}/32", "damaged", kept]}
    bench.put(WORKLOAD_ENDPOINT, first.name.replace("eth0", "eth1"), spec, namespace="default")
    assert sorted(bench.addresses()) == sorted([kept.partition("/")[0], second])
    for _ in range(2):
        assert bench.call("DEL", ifname="eth1").exit_code == 0
        assert bench.addresses() == [kept.partition("/")[0]]
    assert [record.name for record in bench.records()] == [first.name]
    assert bench.call("DEL").exit_code == 0
    assert_gone(bench)


def test_the_host_link_goes_when_the_sandbox_is_gone(bench: CNIBench) -> None:
    """Public report P16."""
    answer(bench.call("ADD"))
    bench.dataplane.lose_namespace(NETNS)
    for netns in (NETNS, "", NETNS, ""):
        assert bench.call("DEL", netns=netns).exit_code == 0
    assert_gone(bench)


def test_at_another_version_and_without_prev_result(bench: CNIBench) -> None:
    """Public report P28."""
    answer(bench.call("ADD", cniVersion="1.1.0"))
    assert bench.call("DEL", cniVersion="0.3.1").exit_code == 0
    assert_gone(bench)


# --- links of others ----------------------------------------------------------------------------------------


def test_a_link_without_a_record_whose_sandbox_lives_is_left(bench: CNIBench) -> None:
    bench.dataplane.pairs[HOST_NAME] = Pair(HOST_NAME, "/run/netns/other", "eth0")
    bench.dataplane.inhabited.add("/run/netns/other")
    assert bench.call("DEL", netns="").exit_code == 0
    assert HOST_NAME in bench.dataplane.pairs
    assert "is left alone" in bench.log()


def test_a_link_without_a_record_and_without_inhabitants_goes(bench: CNIBench) -> None:
    bench.dataplane.pairs[HOST_NAME] = Pair(HOST_NAME, "/run/netns/dead", "eth0")
    assert bench.call("DEL", netns="").exit_code == 0
    assert bench.dataplane.pairs == {}


def test_a_link_of_another_interface_of_the_sandbox_is_left(bench: CNIBench) -> None:
    """An ADD of eth7 was killed before its record was written; DEL of eth0 is not about it."""
    bench.dataplane.pairs[HOST_NAME] = Pair(HOST_NAME, NETNS, "eth7")
    assert bench.call("DEL").exit_code == 0
    assert HOST_NAME in bench.dataplane.pairs
    assert bench.call("DEL", ifname="eth7").exit_code == 0
    assert bench.dataplane.pairs == {}


def test_a_link_whose_record_is_of_another_container_is_left(bench: CNIBench) -> None:
    """A second DEL of an old sandbox, when the new one has the name: no process is seen, but the record speaks."""
    pod: dict[str, Any] = {"args": "K8S_POD_NAMESPACE=default;K8S_POD_NAME=nginx"}
    link = "calic440f455693"
    bench.dataplane.pairs[link] = Pair(link, "/run/netns/new", "eth0")
    spec = {"containerID": "newone", "interfaceName": link, "node": "worker-1", "orchestrator": "k8s"}
    bench.put(WORKLOAD_ENDPOINT, "worker--1-k8s-nginx-eth0", spec, "default")
    assert bench.call("DEL", netns="", container="oldone", **pod).exit_code == 0
    assert link in bench.dataplane.pairs
    assert len(bench.records()) == 1
    assert bench.call("DEL", netns="", container="newone", **pod).exit_code == 0
    assert bench.dataplane.pairs == {} and bench.records() == []


def test_the_link_of_another_container_in_the_sandbox_is_left(bench: CNIBench) -> None:
    """A runtime names a living sandbox in the DEL of another container, whose own things go all the same."""
    answer(bench.call("ADD"))
    kept = dict(bench.dataplane.pairs)
    answer(bench.call("ADD", container="ffffffffffff", netns="/run/netns/other"))
    for container in ("ffffffffffff", "never1"):
        assert bench.call("DEL", container=container, netns=NETNS).exit_code == 0
        assert bench.dataplane.pairs == kept
        assert "it is of another attachment" in bench.log()
    assert len(bench.records()) == len(bench.addresses()) == 1
    assert bench.call("DEL").exit_code == 0
    assert_gone(bench)


def test_it_is_left_too_while_the_datastore_does_not_answer(bench: CNIBench) -> None:
    answer(bench.call("ADD"))
    bench.open_error = StoreUnavailable("refused")
    assert failure(bench.call("DEL", container="ffffffffffff"))["code"] == 11
    assert HOST_NAME in bench.dataplane.pairs


def test_a_link_that_somebody_renamed_goes(bench: CNIBench) -> None:
    answer(bench.call("ADD"))
    bench.dataplane.pairs = {"renamed0": bench.dataplane.pairs[HOST_NAME]}
    bench.dataplane.pairs = {"renamed0": Pair("renamed0", NETNS, "eth0")}
    assert bench.call("DEL").exit_code == 0
    assert_gone(bench)


def test_loopback_is_no_interface_of_ours(bench: CNIBench) -> None:
    """It cannot be removed, and was never made: a DEL that names it succeeds each time."""
    answer(bench.call("ADD"))
    for _ in range(2):
        assert bench.call("DEL", ifname="lo", container="abc1").exit_code == 0
    assert len(bench.records()) == 1


def test_the_hosts_own_namespace_is_refused_first(bench: CNIBench) -> None:
    answer(bench.call("ADD"))
    found = failure(bench.call("DEL", netns="/proc/self/ns/net"))
    assert found == {"code": 8, "msg": "plugin's netns and netns from CNI_NETNS should not be the same"}
    assert "remove" not in bench.dataplane.calls
    assert len(bench.records()) == len(bench.addresses()) == 1


# --- when something refuses ---------------------------------------------------------------------------------


def not_ready(bench: CNIBench) -> None:
    entry = bench.base.get(ResourceKey(CLUSTER_INFORMATION, "default"))
    bench.base.commit(Update(entry, entry.value.with_spec({"datastoreReady": False})))


def test_the_link_goes_even_when_the_datastore_is_not_ready(bench: CNIBench) -> None:
    answer(bench.call("ADD"))
    not_ready(bench)
    assert "not ready" in told(bench.call("DEL"))
    assert bench.dataplane.pairs == {}
    assert len(bench.records()) == len(bench.addresses()) == 1, "the record is protected by the rule"


def test_the_link_goes_even_when_the_datastore_does_not_answer(bench: CNIBench) -> None:
    answer(bench.call("ADD"))
    bench.open_error = StoreUnavailable("refused")
    assert failure(bench.call("DEL"))["code"] == 11
    assert bench.dataplane.pairs == {}
    bench.open_error = None
    assert bench.call("DEL").exit_code == 0
    assert_gone(bench)


def test_a_link_that_cannot_be_removed_keeps_record_and_address(bench: CNIBench) -> None:
    answer(bench.call("ADD"))
    bench.dataplane.fail = stubborn
    assert "the link still stands, so its address stays assigned" in told(bench.call("DEL")).lower()
    assert len(bench.records()) == len(bench.addresses()) == 1
    bench.dataplane.fail = lambda _operation: None
    assert bench.call("DEL").exit_code == 0
    assert_gone(bench)


def stubborn(operation: str) -> None:
    if operation == "remove":
        raise DataplaneError("timed out deleting device in netns x")


def test_a_sandbox_that_cannot_be_entered_is_told_but_everything_goes(bench: CNIBench) -> None:
    answer(bench.call("ADD"))
    bench.dataplane.fail = once("remove", DataplaneError('failed to enter netns: unknown FS magic on "x": 1'))
    assert failure(bench.call("DEL"))["msg"].startswith("failed to enter netns: ")
    assert_gone(bench)


def test_a_foreign_plugin_that_fails_is_told_after_link_and_record_went(bench: CNIBench) -> None:
    answer(bench.call("ADD"))
    found = failure(bench.call("DEL", ipam={"type": "absent"}))
    assert found["msg"].startswith('failed to find plugin "absent" in path [')
    assert bench.records() == [] and bench.dataplane.pairs == {}


@pytest.mark.parametrize("kind", ["lost", "conflict"])
def test_the_record_goes_whatever_happens_to_the_answer(bench: CNIBench, kind: Any) -> None:
    answer(bench.call("ADD"))
    record = f"worker--1-cni-{CONTAINER}-eth0"

    def where(key: Any) -> bool:
        return isinstance(key, ResourceKey) and key.name == record

    store = FaultyStore(bench.base, Fault(kind, write=1, where=where))
    bench.store = store
    assert bench.call("DEL").exit_code == 0
    assert store.struck()
    assert_gone(bench)


def test_a_bad_container_id_is_told_by_upstreams_text(bench: CNIBench) -> None:
    expected = (
        "error constructing WorkloadEndpoint name: error with field containerID = 'abc-' "
        "(field must not end with a '-')"
    )
    assert failure(bench.call("DEL", container="abc-"))["msg"] == expected
