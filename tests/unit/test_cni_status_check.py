"""STATUS and CHECK of both plugins (cni.md §2.7)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from calico_ipam.datastore.api import Delete, Update
from calico_ipam.engine.client import IPAM
from calico_ipam.errors import StoreUnavailable
from calico_ipam.model.keys import ResourceKey
from calico_ipam.model.resource import CLUSTER_INFORMATION, IP_POOL, WORKLOAD_ENDPOINT
from tests.cni_bench import CONTAINER, NETNS, CNIBench, answer, failure, told
from tests.unit.test_cni_gc import Foreign

NEWEST: dict[str, Any] = {"cniVersion": "1.1.0"}


@pytest.fixture
def bench(tmp_path: Path) -> CNIBench:
    return CNIBench(tmp_path).prepare()


def change(bench: CNIBench, kind: str, name: str, spec: dict[str, Any]) -> None:
    entry = bench.base.get(ResourceKey(kind, name))
    bench.base.commit(Update(entry, entry.value.with_spec({**entry.value.spec, **spec})))


# --- STATUS -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", ["calico", "calico-ipam"])
def test_ready_says_nothing(bench: CNIBench, program: str) -> None:
    response = bench.call("STATUS", program=program, **NEWEST)
    assert (response.exit_code, response.stdout) == (0, "")
    assert bench.dataplane.calls == []


def test_not_ready_is_50(bench: CNIBench) -> None:
    change(bench, CLUSTER_INFORMATION, "default", {"datastoreReady": False})
    expected = {"code": 50, "msg": "Calico is currently not ready to process requests"}
    found = failure(bench.call("STATUS", **NEWEST))
    assert expected.items() <= found.items()
    assert bench.ipam("STATUS", **NEWEST).exit_code == 0, "calico-ipam does not look at readiness"


def test_no_cluster_information_is_50(bench: CNIBench) -> None:
    bench.base.commit(Delete(bench.base.get(ResourceKey(CLUSTER_INFORMATION, "default"))))
    assert failure(bench.call("STATUS", **NEWEST))["code"] == 50


@pytest.mark.parametrize("program", ["calico", "calico-ipam"])
def test_no_datastore_is_50(bench: CNIBench, program: str) -> None:
    bench.open_error = StoreUnavailable("connection refused")
    assert failure(bench.call("STATUS", program=program, **NEWEST))["code"] == 50


def test_a_missing_nodename_file_is_50(bench: CNIBench) -> None:
    file = str(bench.folder / "absent")
    found = failure(bench.call("STATUS", nodename_file=file, nodename_file_optional=False, **NEWEST))
    assert found["code"] == 50 and found["msg"].startswith(f"stat {file}: no such file")


@pytest.mark.parametrize("spec", [{"disabled": True}, {"allowedUses": ["Tunnel"]}])
@pytest.mark.parametrize("program", ["calico", "calico-ipam"])
def test_a_family_without_a_usable_pool_is_50(bench: CNIBench, program: str, spec: dict[str, Any]) -> None:
    change(bench, IP_POOL, "pool6", spec)
    assert bench.call("STATUS", program=program, **NEWEST).exit_code == 0, "IPv6 was not asked for"
    dual = {"type": "calico-ipam", "assign_ipv6": "true"}
    found = failure(bench.call("STATUS", program=program, ipam=dual, **NEWEST))
    assert found["code"] == 50 and "no enabled IPv6 pool" in found["msg"]


def test_a_foreign_plugin_without_the_newest_version_is_50_by_name(bench: CNIBench) -> None:
    Foreign(bench, ["0.4.0", "1.0.0"])
    found = failure(bench.call("STATUS", ipam={"type": "other"}, **NEWEST))
    assert found["code"] == 50 and '"other" does not support CNI 1.1.0' in found["msg"]


def test_a_foreign_plugin_that_is_ready(bench: CNIBench) -> None:
    foreign = Foreign(bench, ["1.1.0"])
    assert bench.call("STATUS", ipam={"type": "other"}, **NEWEST).exit_code == 0
    assert [verb for verb, _ in foreign.asked] == ["STATUS"]


def test_a_foreign_plugin_that_is_not_there_is_50(bench: CNIBench) -> None:
    found = failure(bench.call("STATUS", ipam={"type": "other"}, **NEWEST))
    assert found["code"] == 50 and found["msg"].startswith('failed to find plugin "other"')


@pytest.mark.parametrize("verb", ["STATUS", "GC"])
def test_status_and_gc_need_no_attachment(bench: CNIBench, verb: str) -> None:
    nothing = {"CNI_CONTAINERID": "", "CNI_NETNS": "", "CNI_IFNAME": ""}
    assert bench.call(verb, environ=nothing, **NEWEST).exit_code == 0


# --- CHECK --------------------------------------------------------------------------------------------------


@pytest.fixture
def added(bench: CNIBench) -> tuple[CNIBench, dict[str, Any]]:
    return bench, answer(bench.call("ADD", ipam={"type": "calico-ipam", "assign_ipv6": "true"}))


def test_an_intact_sandbox_says_nothing(added: tuple[CNIBench, dict[str, Any]]) -> None:
    bench, result = added
    for version in ("0.4.0", "1.0.0", "1.1.0"):
        previous = {**result, "cniVersion": version}
        response = bench.call("CHECK", cniVersion=version, prevResult=previous)
        assert (response.exit_code, response.stdout) == (0, ""), version


def test_check_needs_prev_result(added: tuple[CNIBench, dict[str, Any]]) -> None:
    bench, result = added
    assert "has no prevResult" in told(bench.call("CHECK"))
    assert "has no prevResult" in told(bench.ipam("CHECK"))
    assert 'prevResult is of CNI "0.2.0"' in told(bench.call("CHECK", prevResult={**result, "cniVersion": "0.2.0"}))


@pytest.mark.parametrize("change", [{"name": "eth9"}, {"sandbox": "/run/netns/other"}])
def test_check_needs_its_interface_in_prev_result(
    added: tuple[CNIBench, dict[str, Any]], change: dict[str, str]
) -> None:
    bench, result = added
    host, pod = result["interfaces"]
    previous = {**result, "interfaces": [host, {**pod, **change}]}
    assert f"prevResult has no interface eth0 in sandbox {NETNS}" in told(bench.call("CHECK", prevResult=previous))


def test_everything_that_is_wrong_is_told_at_once(added: tuple[CNIBench, dict[str, Any]]) -> None:
    bench, result = added
    key = ResourceKey(WORKLOAD_ENDPOINT, f"worker--1-cni-{CONTAINER}-eth0", "default")
    bench.base.commit(Delete(bench.base.get(key)))
    bench.dataplane.pairs.clear()
    bench.dataplane.problems = ["no route to 10.65.0.1"]
    text = told(bench.call("CHECK", prevResult=result))
    for part in ("there is no endpoint record", "no route to 10.65.0.1", f"there is no eth0 in {NETNS}"):
        assert part in text


def test_a_record_of_another_container_is_told(added: tuple[CNIBench, dict[str, Any]]) -> None:
    bench, result = added
    key = ResourceKey(WORKLOAD_ENDPOINT, f"worker--1-cni-{CONTAINER}-eth0", "default")
    entry = bench.base.get(key)
    bench.base.commit(Update(entry, entry.value.with_spec({**entry.value.spec, "containerID": "other"})))
    assert f"belongs to container other, not {CONTAINER}" in told(bench.call("CHECK", prevResult=result))


@pytest.mark.parametrize("program", ["calico", "calico-ipam"])
def test_an_address_that_was_released_behind_the_back_is_told(
    added: tuple[CNIBench, dict[str, Any]], program: str
) -> None:
    bench, result = added
    IPAM(bench.base, hostname="worker-1", clock=bench.clock).release_by_handle(f"net1.{CONTAINER}")
    text = told(bench.call("CHECK", program=program, prevResult=result))
    addresses = ", ".join(ip["address"].partition("/")[0] for ip in result["ips"])
    assert f"handle net1.{CONTAINER} does not hold {addresses}" in text


def test_routes_of_prev_result_are_not_looked_at(added: tuple[CNIBench, dict[str, Any]]) -> None:
    bench, result = added
    previous = {**result, "routes": [{"dst": "203.0.113.0/24"}]}
    assert bench.call("CHECK", prevResult=previous).exit_code == 0
