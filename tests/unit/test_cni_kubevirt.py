"""Addresses that follow KubeVirt's virtual machines from pod to pod (cni.md §7.5)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from calico_cni.ipam.kubevirt import Machine
from calico_ipam.engine.client import IPAM
from calico_ipam.errors import InvalidInput, StoreUnavailable
from calico_ipam.model.addresses import parse_address
from calico_ipam.model.config import IPAMConfig
from tests.cni_bench import answer, failure, told
from tests.pod_bench import HOST_NAME, NETWORK, STORES, PodBench, X, Y, Z

MACHINES = "/apis/kubevirt.io/v1/namespaces/test/virtualmachines"
INSTANCES = "/apis/kubevirt.io/v1/namespaces/test/virtualmachineinstances"
FIRST, SECOND = "virt-launcher-vm1-aaaaa", "virt-launcher-vm1-bbbbb"
HANDLE = f"{NETWORK}.vmi.test.vm1"


class Farm:
    """A virtual machine in the namespace test, and pods that run it."""

    def __init__(self, bench: PodBench) -> None:
        self.bench = bench
        self.vm = bench.api.put(MACHINES, {"metadata": {"name": "vm1", "namespace": "test"}})
        self.instance()

    def instance(self, *, owned: bool = True) -> str:
        """Make the instance, or make it anew; returns its UID."""
        owner = [_owner("VirtualMachine", self.vm["metadata"]["uid"])] if owned else []
        metadata = {"name": "vm1", "namespace": "test", "ownerReferences": owner}
        self.vmi = self.bench.api.put(INSTANCES, {"metadata": metadata})
        uid: str = self.vmi["metadata"]["uid"]
        return uid

    def pod(self, name: str, *, migration: str = "") -> None:
        labels = {"kubevirt.io": "virt-launcher", **({"kubevirt.io/migrationJobUID": migration} if migration else {})}
        owner = [_owner("VirtualMachineInstance", self.vmi["metadata"]["uid"])]
        self.bench.pod(name, metadata={"labels": labels, "ownerReferences": owner})

    def ending(self, collection: str) -> None:
        self.bench.api.objects[f"{collection}/vm1"]["metadata"]["deletionTimestamp"] = "2026-08-22T10:00:00Z"

    def owners(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return active and alternate owner of the machine's only address."""
        (ip,) = self.bench.addresses()
        found = IPAM(self.bench.base).assignment_attributes(parse_address(ip))
        assert found.handle == HANDLE
        return dict(found.active), dict(found.alternate)


def _owner(kind: str, uid: str) -> dict[str, Any]:
    return {"apiVersion": "kubevirt.io/v1", "kind": kind, "name": "vm1", "uid": uid, "controller": True}


@pytest.fixture(params=STORES)
def farm(tmp_path: Path, request: pytest.FixtureRequest) -> Farm:
    made = Farm(PodBench(tmp_path, request.param).prepare())
    made.pod(FIRST)
    made.pod(SECOND)
    return made


def add(farm: Farm, pod: str = FIRST, container: str = X, **more: Any) -> dict[str, Any]:
    return answer(farm.bench.ipam("ADD", pod=pod, container=container, **more))


def delete(farm: Farm, pod: str = FIRST, container: str = X) -> None:
    response = farm.bench.ipam("DEL", pod=pod, container=container)
    assert (response.exit_code, response.stdout) == (0, "")


def test_an_address_follows_its_machine(farm: Farm) -> None:
    first = add(farm)
    assert farm.bench.handles() == [HANDLE]
    active, alternate = farm.owners()
    assert (
        alternate == {}
        and {
            "pod": FIRST,
            "vmi-name": "vm1",
            "vmi-uid": farm.vmi["metadata"]["uid"],
            "vm-uid": farm.vm["metadata"]["uid"],
        }.items()
        <= active.items()
    )
    delete(farm)
    assert farm.owners() == ({}, {})
    second = add(farm, SECOND, Y)
    ip = first["ips"][0]["address"].partition("/")[0]
    assert second["ips"] == [{"address": f"{ip}/32"}] and second["routes"] == [{"dst": f"{ip}/32"}]
    assert farm.owners()[0]["pod"] == SECOND


def test_a_migration(farm: Farm) -> None:
    ip = add(farm)["ips"][0]["address"].partition("/")[0]
    farm.pod(SECOND, migration="m-1")
    target = add(farm, SECOND, Y)
    assert target["ips"] == [{"address": f"{ip}/32"}] and "routes" not in target
    active, alternate = farm.owners()
    assert (active["pod"], alternate["pod"], alternate["vmim-uid"]) == (FIRST, SECOND, "m-1")
    delete(farm)
    assert farm.owners()[0] == {} and farm.owners()[1]["pod"] == SECOND
    delete(farm, SECOND, Y)
    assert farm.owners() == ({}, {})


def test_a_target_has_no_route_on_the_host_yet(farm: Farm) -> None:
    answer(farm.bench.call("ADD", pod=FIRST, container=X))
    farm.pod(SECOND, migration="m-1")
    answer(farm.bench.call("ADD", pod=SECOND, container=Y, netns="/run/netns/target"))
    requests = {pair.netns: pair.request for pair in farm.bench.dataplane.pairs.values() if pair.request}
    assert requests["/run/netns/target"].host_routes is False
    assert requests["/run/netns/pod1"].host_routes is True
    assert HOST_NAME not in farm.bench.dataplane.pairs, "each pod has a link of its own"


def test_a_machine_keeps_its_address_whatever_its_pod_asks_for(farm: Farm) -> None:
    ip = add(farm)["ips"][0]["address"].partition("/")[0]
    farm.pod(SECOND, migration="m-1")
    for name in (FIRST, SECOND):
        pod = farm.bench.api.objects[f"/api/v1/namespaces/test/pods/{name}"]
        pod["metadata"].setdefault("annotations", {})["cni.projectcalico.org/ipAddrs"] = '["10.65.0.9"]'
    for name, container, routes in ((FIRST, Y, True), (SECOND, Z, False)):
        found = answer(farm.bench.call("ADD", pod=name, container=container, netns=f"/run/netns/{name}"))
        assert [entry["address"] for entry in found["ips"]] == [f"{ip}/32"]
        (request,) = [
            pair.request
            for pair in farm.bench.dataplane.pairs.values()
            if pair.request is not None and pair.request.netns.endswith(name)
        ]
        assert request.host_routes is routes
    assert farm.bench.addresses() == [ip]


def test_a_target_without_a_source(farm: Farm) -> None:
    farm.pod(SECOND, migration="m-1")
    text = told(farm.bench.ipam("ADD", pod=SECOND, container=Y))
    assert f"no IP allocated to VM handle {HANDLE}: resource does not exist: IPAMHandle" in text


def test_a_failed_pod_of_a_machine_keeps_the_machines_address(farm: Farm) -> None:
    add(farm)
    before = farm.bench.addresses()
    delete(farm)
    farm.bench.fail("PATCH", "/pods/", lambda: StoreUnavailable("gone"))
    if farm.bench.on_kubernetes:
        assert failure(farm.bench.call("ADD", pod=SECOND, container=Y))["code"] == 11
        assert farm.owners() == ({}, {})
    assert farm.bench.addresses() == before


def test_a_machine_made_anew_keeps_its_address(farm: Farm) -> None:
    add(farm)
    delete(farm)
    uid = farm.instance()
    farm.pod(SECOND)
    add(farm, SECOND, Y)
    assert farm.owners()[0]["vmi-uid"] == uid


@pytest.mark.parametrize(("collection", "released"), [(MACHINES, True), (INSTANCES, False)])
def test_only_the_machines_own_end_releases(farm: Farm, collection: str, released: bool) -> None:
    add(farm)
    farm.pod(SECOND, migration="m-1")
    add(farm, SECOND, Y)
    farm.ending(collection)
    delete(farm)
    assert farm.bench.addresses(), "the target still has it"
    delete(farm, SECOND, Y)
    assert (farm.bench.addresses() == []) is released


def test_an_instance_of_its_own_releases_when_it_ends(farm: Farm) -> None:
    farm.instance(owned=False)
    farm.pod(FIRST)
    add(farm)
    assert "vm-uid" not in farm.owners()[0]
    farm.ending(INSTANCES)
    delete(farm)
    assert farm.bench.addresses() == farm.bench.handles() == []


def test_an_instance_that_is_gone_does_not_keep_its_pod(farm: Farm) -> None:
    add(farm)
    del farm.bench.api.objects[f"{INSTANCES}/vm1"]
    delete(farm)
    assert farm.owners() == ({}, {}), "its machine is there, and starts again with the address"
    farm.pod(FIRST)
    del farm.bench.api.objects[f"{MACHINES}/vm1"]
    delete(farm)
    assert farm.bench.addresses() == []


def test_a_pod_of_a_former_instance_gives_up_only_its_own_part(farm: Farm) -> None:
    add(farm)
    farm.instance()
    delete(farm)
    assert farm.owners() == ({}, {})


def test_the_pod_is_gone(farm: Farm) -> None:
    add(farm)
    del farm.bench.api.objects[f"/api/v1/namespaces/test/pods/{FIRST}"]
    delete(farm)
    assert farm.owners()[0]["pod"] == FIRST, "the collector knows what to make of it"


@pytest.mark.parametrize(
    ("break_it", "text"),
    [
        (
            lambda farm: farm.bench.api.objects.pop(f"{INSTANCES}/vm1"),
            'failed to query VMI resource test/vm1: virtualmachineinstances.kubevirt.io "vm1" not found',
        ),
        (lambda farm: farm.instance(), "VMI UID mismatch: pod ownerReference has "),
        (lambda farm: farm.bench.api.objects.pop(f"/api/v1/namespaces/test/pods/{FIRST}"), f'pods "{FIRST}" not found'),
    ],
)
def test_machines_that_cannot_be_found_at_add(farm: Farm, break_it: Any, text: str) -> None:
    break_it(farm)
    found = failure(farm.bench.ipam("ADD", pod=FIRST))
    assert found["msg"].startswith(f"failed to get VMI info: {text}")
    assert farm.bench.addresses() == []


def test_an_api_that_does_not_answer_is_code_11(farm: Farm) -> None:
    farm.bench.fail("GET", "/virtualmachineinstances/", lambda: StoreUnavailable("refused"), times=9)
    for verb in ("ADD", "DEL"):
        assert failure(farm.bench.ipam(verb, pod=FIRST)) == {"code": 11, "msg": "failed to get VMI info: refused"}


def test_persistence_can_be_switched_off(farm: Farm) -> None:
    IPAM(farm.bench.base).set_config(IPAMConfig(kubevirt_persistence="Disabled"))
    add(farm)
    add(farm, SECOND, Y)
    assert sorted(farm.bench.handles()) == [f"{NETWORK}.{X}", f"{NETWORK}.{Y}"] and len(farm.bench.addresses()) == 2
    farm.pod(SECOND, migration="m-1")
    text = told(farm.bench.ipam("ADD", pod=SECOND, container=Z))
    assert "live migration target pod is not allowed when KubeVirtVMAddressPersistence is disabled" in text
    delete(farm)
    delete(farm, SECOND, Y)
    assert farm.bench.addresses() == []


def test_persistence_switched_on_meanwhile_loses_no_address(farm: Farm) -> None:
    IPAM(farm.bench.base).set_config(IPAMConfig(kubevirt_persistence="Disabled"))
    add(farm)
    IPAM(farm.bench.base).set_config(IPAMConfig())
    delete(farm)
    assert farm.bench.addresses() == []


def test_a_pod_that_is_only_called_so(farm: Farm) -> None:
    farm.bench.pod(FIRST)
    add(farm)
    assert farm.bench.handles() == [f"{NETWORK}.{X}"]
    delete(farm)
    assert farm.bench.addresses() == []


def test_a_name_that_no_handle_can_hold_is_told() -> None:
    """Upstream crashes on these (§15.22); data of such a machine cannot exist (limit L21)."""
    with pytest.raises(InvalidInput, match="no handle can be made for virtual machine test/vm-xxx") as found:
        Machine("test", "vm-" + "x" * 60, "uid").handle("n" * 60)
    assert "Shorten the name" in found.value.hint
    assert Machine("test", "vm1", "uid").handle("n" * 100) == f"{'n' * 100}.vmi.test.vm1"


def test_check_knows_the_machines_handle(farm: Farm) -> None:
    result = add(farm)
    previous = {**result, "cniVersion": "1.0.0"}
    response = farm.bench.ipam("CHECK", pod=FIRST, prevResult=previous)
    assert (response.exit_code, response.stdout) == (0, "")
