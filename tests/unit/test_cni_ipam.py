"""``calico-ipam`` ADD and DEL as values: attributes, specific addresses, roll-back, the host lock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from calico_ipam.datastore.api import Update
from calico_ipam.engine.client import IPAM
from calico_ipam.errors import StoreUnavailable
from calico_ipam.model.addresses import parse_address
from calico_ipam.model.keys import BlockKey, HandleKey, ResourceKey
from calico_ipam.model.resource import IP_POOL
from tests.cluster import START
from tests.cni_bench import CONTAINER, CNIBench, answer, failure, told
from tests.faulty import Fault, FaultyStore
from tests.invariants import violations

DUAL = {"type": "calico-ipam", "assign_ipv6": "true"}
HANDLE = f"net1.{CONTAINER}"


@pytest.fixture
def bench(tmp_path: Path) -> CNIBench:
    return CNIBench(tmp_path).prepare()


def attributes(bench: CNIBench, ip: str) -> dict[str, str]:
    return dict(IPAM(bench.base).assignment_attributes(parse_address(ip)).active)


def pool(bench: CNIBench, name: str, **spec: Any) -> None:
    entry = bench.base.get(ResourceKey(IP_POOL, name))
    bench.base.commit(Update(entry, entry.value.with_spec({**entry.value.spec, **spec})))


def test_what_is_written_beside_an_address(bench: CNIBench) -> None:
    result = answer(bench.ipam("ADD"))
    (ip,) = (entry["address"] for entry in result["ips"])
    assert ip.endswith("/28") and result["routes"] == [{"dst": ip}]
    assert attributes(bench, bench.addresses()[0]) == {
        "node": "worker-1",
        "timestamp": "2026-08-22 10:00:00.25 +0000 UTC",
    }
    assert bench.clock.at == START


def test_a_pod_is_named(bench: CNIBench) -> None:
    answer(bench.ipam("ADD", args="K8S_POD_NAMESPACE=prod;K8S_POD_NAME=web"))
    found = attributes(bench, bench.addresses()[0])
    assert (found["pod"], found["namespace"]) == ("web", "prod")


def test_the_namespace_of_a_pod_needs_kubernetes(bench: CNIBench) -> None:
    for changes in ({"policy": {"type": "k8s"}}, {"kubernetes": {"kubeconfig": "/x"}}):
        text = told(bench.ipam("ADD", args="K8S_POD_NAMESPACE=prod;K8S_POD_NAME=web", **changes))
        assert text.startswith("failed to get namespace prod: ")
    assert bench.addresses() == []


# --- addresses by name --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"args": "IP=10.65.0.9"},
        {"runtimeConfig": {"ips": ["10.65.0.9/24"]}},
        {"runtimeConfig": {"ips": ["10.65.0.9"]}, "args": "IP=10.65.0.200"},
    ],
)
def test_one_address_by_name(bench: CNIBench, changes: dict[str, Any]) -> None:
    assert answer(bench.ipam("ADD", **changes))["ips"] == [{"address": "10.65.0.9/32"}]
    assert bench.addresses() == ["10.65.0.9"]
    assert (bench.folder / "marker" / "upgraded").exists()


def test_one_address_of_each_family_by_name(bench: CNIBench) -> None:
    result = answer(bench.ipam("ADD", runtimeConfig={"ips": ["fd00:65::9/64", "10.65.0.9/24"]}))
    assert result["ips"] == [{"address": "10.65.0.9/32"}, {"address": "fd00:65::9/128"}]


@pytest.mark.parametrize(
    ("ips", "text"),
    [
        (["10.65.0.9", "10.65.0.10"], "runtimeConfig.ips holds two IPv4 addresses"),
        (["nothing"], "runtimeConfig.ips: invalid IP address: nothing"),
        ("10.65.0.9", "runtimeConfig.ips must be a list of addresses as text"),
        ([9], "runtimeConfig.ips must be a list of addresses as text"),
    ],
)
def test_bad_addresses_by_name(bench: CNIBench, ips: object, text: str) -> None:
    assert text in told(bench.ipam("ADD", runtimeConfig={"ips": ips}))
    assert bench.addresses() == []


def test_the_first_address_is_taken_back_when_the_second_is_refused(bench: CNIBench) -> None:
    answer(bench.ipam("ADD", container="other", args="IP=fd00:65::9"))
    text = told(bench.ipam("ADD", runtimeConfig={"ips": ["10.65.0.9", "fd00:65::9"]}))
    assert "resource already exists: fd00:65::9 with error: Address already assigned in block" in text
    assert bench.addresses() == ["fd00:65::9"]


def test_an_address_of_an_earlier_request_of_the_same_container_is_kept(bench: CNIBench) -> None:
    """What is taken back is this request's, told by its timestamp; the handle is shared."""
    answer(bench.ipam("ADD", args="IP=10.65.0.9"))
    bench.clock.advance(1)
    assert failure(bench.ipam("ADD", args="IP=10.65.0.9"))["code"] == 999
    assert bench.addresses() == ["10.65.0.9"]


# --- roll-back ----------------------------------------------------------------------------------------------


def assert_nothing_assigned(bench: CNIBench) -> None:
    assert bench.addresses() == []
    assert bench.handles() == []
    assert not violations(bench.base)


def test_a_missing_family_takes_the_other_back(bench: CNIBench) -> None:
    pool(bench, "pool6", disabled=True)
    assert failure(bench.ipam("ADD", ipam=DUAL))["msg"] == "cannot find a qualified ippool"
    assert_nothing_assigned(bench)


@pytest.mark.parametrize(("full", "version"), [("pool6", 6), ("pool4", 4)])
def test_a_family_that_runs_out_takes_the_other_back(bench: CNIBench, full: str, version: int) -> None:
    reserved = {"pool6": "fd00:65::/64", "pool4": "10.65.0.0/24"}[full]
    bench.put("IPReservation", "all", {"reservedCIDRs": [reserved]})
    message = failure(bench.ipam("ADD", ipam=DUAL))["msg"]
    assert message.startswith(f"failed to request IPv{version} addresses: Assigned 0 out of 1 requested")
    assert_nothing_assigned(bench)


@pytest.mark.parametrize("write", range(1, 7))
@pytest.mark.parametrize("kind", ["before", "lost"])
def test_a_store_that_fails_at_any_write_keeps_nothing_half(bench: CNIBench, kind: Any, write: int) -> None:
    """Either the request succeeds and its addresses are held, or it fails and nothing is (rulings 4)."""
    store = FaultyStore(bench.base, Fault(kind, write=write))
    bench.store = store
    response = bench.ipam("ADD", ipam=DUAL)
    if response.exit_code == 0:
        assert len(bench.addresses()) == 2 and bench.handles() == [HANDLE]
    else:
        assert failure(response)["code"] == 11
        assert_nothing_assigned(bench)
    assert not violations(bench.base)


def test_taking_back_never_takes_from_others(bench: CNIBench) -> None:
    """Limit §15.21: while the roll-back runs the address belongs to somebody else already."""
    answer(bench.ipam("ADD", ipam=DUAL))
    ipam = IPAM(bench.base, hostname="worker-1", clock=bench.clock)
    theirs = bench.addresses()[0]
    ipam.release_by_handle(HANDLE)
    ipam.assign_ip(parse_address(theirs), handle="other", attrs={"node": "x"})
    pool(bench, "pool6", disabled=True)
    assert failure(bench.ipam("ADD", ipam=DUAL))["code"] == 999
    assert bench.addresses() == [theirs]


# --- DEL ----------------------------------------------------------------------------------------------------


def test_del_frees_the_handle_and_the_one_of_old_releases(bench: CNIBench) -> None:
    ipam = IPAM(bench.base, hostname="worker-1", clock=bench.clock)
    answer(bench.ipam("ADD", ipam=DUAL))
    ipam.assign_ip(parse_address("10.65.0.77"), handle=CONTAINER)
    ipam.assign_ip(parse_address("10.65.0.78"), handle="prod.web")
    assert bench.ipam("DEL").exit_code == 0
    assert bench.addresses() == ["10.65.0.78"]
    assert bench.ipam("DEL", args="K8S_POD_NAMESPACE=prod;K8S_POD_NAME=web").exit_code == 0
    assert_nothing_assigned(bench)
    assert bench.ipam("DEL").exit_code == 0


def test_del_passes_other_errors_on(bench: CNIBench) -> None:
    answer(bench.ipam("ADD"))
    bench.store = FaultyStore(bench.base, Fault("before", operation=1, times=100, error=lambda: StoreUnavailable("no")))
    assert failure(bench.ipam("DEL")) == {"code": 11, "msg": "no"}


# --- lock and marker ----------------------------------------------------------------------------------------


def test_a_lock_that_cannot_be_had_is_a_warning(bench: CNIBench) -> None:
    (bench.folder / "file").touch()
    impossible = str(bench.folder / "file" / "ipam.lock")
    answer(bench.ipam("ADD", ipam_lock_file=impossible))
    assert "lock cannot be taken" in bench.log()


def test_the_folder_of_the_lock_is_made(bench: CNIBench) -> None:
    lock = bench.folder / "deep" / "er" / "ipam.lock"
    answer(bench.ipam("ADD", ipam_lock_file=str(lock)))
    assert lock.exists()


def test_a_marker_that_cannot_be_made_fails_the_request_and_takes_nothing(bench: CNIBench) -> None:
    (bench.folder / "marker").touch()
    assert "open " in told(bench.ipam("ADD", args="IP=10.65.0.9"))
    assert_nothing_assigned(bench)


@pytest.mark.parametrize("container", ["abc-", "-"])
def test_identifiers_must_form_a_name(bench: CNIBench, container: str) -> None:
    assert failure(bench.ipam("ADD", container=container))["code"] in (4, 999)


def test_handles_of_others_with_a_like_name_are_left(bench: CNIBench) -> None:
    answer(bench.ipam("ADD", container="ab"))
    assert bench.ipam("DEL", container="a").exit_code == 0
    assert bench.base.get(HandleKey("net1.ab")).value.blocks
    (cidr,) = bench.base.get(HandleKey("net1.ab")).value.blocks
    from ipaddress import ip_network

    assert bench.base.get(BlockKey(ip_network(cidr))).value.held_by("net1.ab")
