"""``calico`` ADD and DEL of pods as values, on custom resources and on a store beside the API (cni.md §6, §9, §15)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from calico_cni.context import Finished
from calico_cni.dataplane.api import DataplaneError
from calico_ipam.datastore.api import Update
from calico_ipam.errors import OutcomeUnknown, StoreUnavailable
from calico_ipam.model.keys import ResourceKey
from calico_ipam.model.resource import CLUSTER_INFORMATION, WORKLOAD_ENDPOINT
from tests.cni_bench import NETNS, answer, failure, told
from tests.fake_dataplane import Pair
from tests.faulty import Fault, FaultyStore
from tests.pod_bench import HOST_NAME, NETWORK, STORES, PodBench, X, Y, Z

FEATURES = {"ip_addrs_no_ipam": True, "floating_ips": True}
NETNS2 = "/run/netns/pod2"
DUAL = {"type": "calico-ipam", "assign_ipv6": "true"}


@pytest.fixture(params=STORES)
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> PodBench:
    return PodBench(tmp_path, request.param).prepare()


@pytest.fixture
def kdd(tmp_path: Path) -> PodBench:
    return PodBench(tmp_path, "kubernetes").prepare()


@pytest.fixture
def etcd(tmp_path: Path) -> PodBench:
    return PodBench(tmp_path, "etcd").prepare()


def assert_untouched(bench: PodBench) -> None:
    assert bench.addresses() == bench.handles() == []
    assert bench.records() == []
    assert not bench.dataplane.pairs
    assert (
        not bench.on_kubernetes or "containerID" not in bench.pod_annotations() or not bench.pod_annotations()["podIP"]
    )


def addresses(result: Mapping[str, Any]) -> list[str]:
    return [entry["address"] for entry in result["ips"]]


# --- a pod from beginning to end ----------------------------------------------------------------------------


def test_add_and_delete(bench: PodBench) -> None:
    result = answer(bench.call("ADD"))
    (ip,) = bench.addresses()
    assert result["interfaces"] == [
        {"name": HOST_NAME},
        {"mac": "0a:58:00:00:00:01", "name": "eth0", "sandbox": NETNS},
    ]
    assert result["ips"] == [{"address": f"{ip}/32", "interface": 1}]
    assert result["routes"] == [{"dst": f"{ip}/28"}]
    assert bench.handles() == [f"{NETWORK}.{X}"]
    assert bench.holder(ip).items() >= {"pod": "nginx", "namespace": "test", "node": "worker-1"}.items()
    (record,) = bench.records()
    assert record.spec["ipNetworks"] == [f"{ip}/32"] and record.spec["containerID"] == X
    for _ in range(2):
        assert (bench.call("DEL").exit_code, bench.call("DEL").stdout) == (0, "")
        assert_untouched(bench)


def test_what_a_pod_says_of_itself_on_kubernetes(kdd: PodBench) -> None:
    answer(kdd.call("ADD", ipam=DUAL))
    v4, v6 = kdd.addresses()
    assert kdd.pod_annotations() == {"podIP": f"{v4}/32", "podIPs": f"{v4}/32,{v6}/128", "containerID": X}
    assert kdd.call("DEL", ipam=DUAL).exit_code == 0
    assert kdd.pod_annotations() == {"podIP": "", "podIPs": "", "containerID": X}


def test_the_whole_record_in_etcd(etcd: PodBench) -> None:
    ports = [
        {"name": "http", "containerPort": 8080},
        {"containerPort": 9090},
        {"containerPort": 5000, "hostPort": 15000, "protocol": "UDP"},
    ]
    etcd.pod(
        metadata={"labels": {"app": "web"}, "generateName": "nginx-"},
        spec={"serviceAccountName": "builder", "containers": [{"ports": ports}]},
    )
    pod = etcd.api.objects["/api/v1/namespaces/test/pods/nginx"]
    pod["metadata"]["annotations"] = {
        "cni.projectcalico.org/allowedSourcePrefixes": '["8.8.8.8/32","1.1.1.9/24"]',
        "cni.projectcalico.org/floatingIPs": '["1.1.1.1"]',
        "kubernetes.io/ingress-bandwidth": "1M",
    }
    answer(etcd.call("ADD", feature_control=FEATURES))
    (ip,), (record,) = etcd.addresses(), etcd.records()
    assert record.name == "worker--1-k8s-nginx-eth0" and record.namespace == "test"
    assert record.metadata["generateName"] == "nginx-"
    assert record.labels == {
        "app": "web",
        "projectcalico.org/namespace": "test",
        "projectcalico.org/orchestrator": "k8s",
        "projectcalico.org/serviceaccount": "builder",
    }
    assert dict(record.spec) == {
        "orchestrator": "k8s",
        "node": "worker-1",
        "containerID": X,
        "pod": "nginx",
        "endpoint": "eth0",
        "serviceAccountName": "builder",
        "ipNetworks": [f"{ip}/32"],
        "ipNATs": [{"internalIP": ip, "externalIP": "1.1.1.1"}],
        "profiles": ["kns.test", "ksa.test.builder"],
        "interfaceName": HOST_NAME,
        "mac": "0a:58:00:00:00:01",
        "ports": [
            {"name": "http", "protocol": "TCP", "port": 8080, "hostPort": 0, "hostIP": ""},
            {"name": "", "protocol": "UDP", "port": 5000, "hostPort": 15000, "hostIP": ""},
        ],
        "allowSpoofedSourcePrefixes": ["8.8.8.8/32", "1.1.1.0/24"],
        "qosControls": {"ingressBandwidth": 1000000, "ingressBurst": 4294967296},
    }


def test_without_a_policy_type_no_pod_is_read(etcd: PodBench) -> None:
    etcd.pod(ipAddrs='["10.65.0.9"]')
    answer(etcd.call("ADD", policy={}, kubernetes={}))
    (record,) = etcd.records()
    assert record.spec["profiles"] == etcd.profiles() == [NETWORK]
    assert etcd.addresses() != ["10.65.0.9"] and etcd.api.requests == []
    profile = etcd.base.get(ResourceKey("Profile", NETWORK)).value.spec
    assert profile["ingress"] == profile["egress"] == [{"action": "Allow"}]


def test_kubernetes_has_no_profiles_of_networks(kdd: PodBench) -> None:
    assert failure(kdd.call("ADD", policy={}))["msg"] == f"Invalid name {NETWORK}"
    assert_untouched(kdd)


# --- which pod is meant (§15.6) ------------------------------------------------------------------------------


def test_a_later_pod_of_the_name_is_refused(bench: PodBench) -> None:
    text = told(bench.call("ADD", uid="11111111-2222-3333-4444-555555555555"))
    assert "has UID" in text and "but the sandbox is for UID 11111111-2222" in text
    assert_untouched(bench)


def test_the_pod_of_the_uid_is_taken(bench: PodBench) -> None:
    uid = bench.api.objects["/api/v1/namespaces/test/pods/nginx"]["metadata"]["uid"]
    answer(bench.call("ADD", uid=uid))


def test_a_mirror_pod_has_another_uid_for_the_runtime(bench: PodBench) -> None:
    mirror: dict[str, Any] = {"kubernetes.io/config.mirror": "abc"}
    bench.pod(**mirror)
    answer(bench.call("ADD", uid="of-the-file"))
    assert bench.call("DEL", uid="of-the-file").exit_code == 0
    assert_untouched(bench)


def test_a_pod_made_anew_meanwhile_is_not_written_to(kdd: PodBench) -> None:
    def replaced(operation: str) -> None:
        if operation == "add":
            kdd.pod()

    kdd.dataplane.fail = replaced
    text = told(kdd.call("ADD"))
    assert "pod test/nginx was deleted while its sandbox was set up" in text
    assert kdd.pod_annotations() == {}
    assert_untouched(kdd)


def test_a_delete_does_not_touch_a_pod_made_anew(kdd: PodBench) -> None:
    uid = kdd.api.objects["/api/v1/namespaces/test/pods/nginx"]["metadata"]["uid"]
    answer(kdd.call("ADD", uid=uid))
    kdd.pod()
    assert kdd.call("DEL", uid=uid).exit_code == 0
    assert kdd.pod_annotations() == {} and kdd.addresses() == []


# --- what is refused costs nothing --------------------------------------------------------------------------

REFUSED: list[tuple[str, Callable[[PodBench], Any], dict[str, Any], str]] = [
    ("no pod", lambda b: b.api.objects.pop("/api/v1/namespaces/test/pods/nginx"), {}, 'pods "nginx" not found'),
    ("no namespace", lambda b: b.api.objects.pop("/api/v1/namespaces/test"), {}, 'namespaces "test" not found'),
    ("unscheduled", lambda b: b.pod(node=""), {}, "error with field node (field should be assigned)"),
    ("bad sources", lambda b: b.pod(allowedSourcePrefixes='["gumbo"]'), {}, "failed to parse 'gumbo' as a CIDR"),
    (
        "sources no json",
        lambda b: b.pod(allowedSourcePrefixes="8.8.8.8"),
        {},
        "failed to parse '8.8.8.8' as JSON: invalid character '.' after top-level value",
    ),
    (
        "sources no texts",
        lambda b: b.pod(allowedSourcePrefixes="[8]"),
        {},
        "failed to parse '[8]' as JSON: json: cannot unmarshal number into Go value of type string",
    ),
    ("sources too deep", lambda b: b.pod(allowedSourcePrefixes="[" * 3000), {}, "as JSON: exceeded max depth"),
    ("families of no text", lambda b: b.pod(ipFamilies="\ud800"), {}, "looking for beginning of value"),
    ("sources null", lambda b: b.pod(allowedSourcePrefixes="[null]"), {}, "failed to parse '' as a CIDR: invalid CIDR"),
    ("bad pools", lambda b: b.pod(ipv4pools="pool4"), {}, "invalid character 'p' looking for beginning of value"),
    ("bad pools of the namespace", lambda b: b.namespace(ipv4pools="x"), {}, "The namespace's annotation"),
    ("unknown pool", lambda b: b.pod(ipv4pools='["nope"]'), {}, 'error parsing pool "nope"'),
    (
        "unknown range",
        lambda b: b.pod(ipv4pools='["10.99.0.0/16"]'),
        {},
        "the given pool (10.99.0.0/16) does not exist",
    ),
    ("bad families", lambda b: b.pod(ipFamilies='["ipv4"]'), {}, "error parsing ipFamilies"),
    ("no family", lambda b: b.pod(ipFamilies="[]"), {}, "IPAM plugin returned missing IP config"),
    ("feature off", lambda b: b.pod(floatingIPs='["1.1.1.1"]'), {}, "not enabled: floating_ips"),
    ("bad hardware address", lambda b: b.pod(hwAddr="garbage"), {}, "invalid MAC address"),
    ("floating of the other family", lambda b: b.pod(floatingIPs='["fd00::1"]'), {}, "the pod has no IPv6 address"),
    (
        "not in a pool",
        lambda b: b.pod(ipAddrs='["192.0.2.1"]'),
        {},
        "error getting IP from IPAM: The provided IP address",
    ),
    ("second not in a pool", lambda b: b.pod(ipAddrs='["10.65.0.9","fd99::1"]'), {}, "not in a configured pool"),
    ("gate", lambda _b: None, {"readiness_gates": ["bogus"]}, "invalid URI for request"),
    ("upper case id in etcd only", lambda _b: None, {"container": "a_b"}, "ContainerID"),
]


@pytest.mark.parametrize(("prepare", "changes", "text"), [pytest.param(p, c, t, id=i) for i, p, c, t in REFUSED])
def test_refusals(bench: PodBench, prepare: Callable[[PodBench], Any], changes: dict[str, Any], text: str) -> None:
    if text == "ContainerID" and bench.on_kubernetes:
        text = "cannot be the name of a Kubernetes object"  # there it is the handle's name
    prepare(bench)
    features: dict[str, Any] = {} if "not enabled" in text else {"feature_control": FEATURES}
    assert text in told(bench.call("ADD", **features, **changes))
    pod = bench.api.objects.get("/api/v1/namespaces/test/pods/nginx", {"metadata": {}})
    assert "cni.projectcalico.org/podIP" not in pod["metadata"].get("annotations", {})
    assert bench.addresses() == bench.handles() == [] and not bench.dataplane.pairs


def test_a_store_that_is_not_ready(bench: PodBench) -> None:
    entry = bench.base.get(ResourceKey(CLUSTER_INFORMATION, "default"))
    bench.base.commit(Update(entry, entry.value.with_spec({"datastoreReady": False})))
    bench.dataplane.pairs[HOST_NAME] = Pair(HOST_NAME, NETNS, "eth0")
    for verb in ("ADD", "DEL"):
        assert failure(bench.call(verb))["msg"] == "Calico is currently not ready to process requests"
    assert not bench.dataplane.pairs, "DEL removed the sandbox's own link all the same (§15.19)"


def test_a_container_that_is_no_pod_on_kubernetes(kdd: PodBench) -> None:
    def call(verb: str) -> Any:
        return super(PodBench, kdd).call(verb, container=X)

    assert failure(call("ADD"))["msg"] == (
        f"resource does not exist: WorkloadEndpoint(default/worker--1-cni-{X}-*) with error: "
        "malformed WorkloadEndpoint name - unable to determine Pod name"
    )
    assert call("DEL").exit_code == 0


# --- roll-back (§6.7): every row, nothing stays -------------------------------------------------------------


def unreachable() -> StoreUnavailable:
    return StoreUnavailable("connection refused")


def test_a_link_that_fails(bench: PodBench) -> None:
    def refuse(operation: str) -> None:
        if operation == "add":
            raise DataplaneError("route refused")

    bench.dataplane.fail = refuse
    assert failure(bench.call("ADD"))["msg"] == "route refused"
    assert_untouched(bench)


def test_a_record_that_cannot_be_written(bench: PodBench) -> None:
    if bench.on_kubernetes:
        bench.fail("PATCH", "/pods/", unreachable)
    else:
        bench.store = FaultyStore(bench.base, Fault("before", write=1, where=_is_endpoint))
    assert failure(bench.call("ADD"))["code"] == 11
    assert_untouched(bench)


def _is_endpoint(key: Any) -> bool:
    return isinstance(key, ResourceKey) and key.kind == WORKLOAD_ENDPOINT


def test_a_lost_answer_to_the_record_is_looked_up(bench: PodBench) -> None:
    if bench.on_kubernetes:
        api: Any = bench.api
        real = api.answer

        def losing(request: Any) -> Any:
            found = real(request)
            if request.method == "PATCH":
                api.answer = real
                raise OutcomeUnknown("the answer was lost")
            return found

        api.answer = losing
    else:
        bench.store = FaultyStore(bench.base, Fault("lost", write=1, where=_is_endpoint))
    answer(bench.call("ADD"))
    assert len(bench.records()) == len(bench.addresses()) == 1


def test_a_lost_patch_that_was_not_done_is_undone(kdd: PodBench) -> None:
    kdd.fail("PATCH", "/pods/", lambda: OutcomeUnknown("the answer was lost"))
    assert failure(kdd.call("ADD"))["code"] == 11
    assert_untouched(kdd)


def test_a_result_that_its_version_cannot_tell(bench: PodBench) -> None:
    """Addresses of one family only, asked for without any: the last step fails."""
    bench.pod(ipAddrsNoIpam='["10.9.9.9"]')
    answer(bench.call("ADD", feature_control=FEATURES, cniVersion="0.2.0"))
    assert bench.addresses() == []


def test_an_ipam_plugin_without_addresses(bench: PodBench) -> None:
    none = {"type": "calico-ipam", "assign_ipv4": "false"}
    assert failure(bench.call("ADD", ipam=none))["msg"] == "IPAM plugin returned missing IP config"
    assert_untouched(bench)


def test_a_failed_second_add_keeps_the_first_address(bench: PodBench) -> None:
    """The handle holds both; undoing the second must not free the first, which may still be in use."""
    answer(bench.call("ADD"))
    before = bench.addresses()

    def refuse(operation: str) -> None:
        if operation == "add":
            raise DataplaneError("busy")

    bench.dataplane.fail = refuse
    assert failure(bench.call("ADD"))["msg"] == "busy"
    assert bench.addresses() == before and list(bench.dataplane.pairs) == [HOST_NAME]


# --- old and new sandboxes (rulings 1, 2; P22) --------------------------------------------------------------


def test_a_late_delete_of_the_old_sandbox(bench: PodBench) -> None:
    answer(bench.call("ADD", container=X))
    (old,) = bench.addresses()
    new = addresses(answer(bench.call("ADD", container=Y, netns=NETNS2)))[0]
    for _ in range(2):
        assert bench.call("DEL", container=X).exit_code == 0
        (record,) = bench.records()
        assert (record.spec["containerID"], record.spec["ipNetworks"]) == (Y, [new])
        assert bench.addresses() == [new.partition("/")[0]] != [old]
        assert bench.dataplane.pairs[HOST_NAME].netns == NETNS2
    assert bench.call("DEL", container=X, netns="").exit_code == 0
    assert bench.dataplane.pairs[HOST_NAME].netns == NETNS2
    assert bench.call("DEL", container=Y, netns=NETNS2).exit_code == 0
    assert_untouched(bench)


def test_a_sandbox_that_lives_keeps_its_link(bench: PodBench) -> None:
    answer(bench.call("ADD", container=X))
    bench.dataplane.inhabited.add(NETNS)
    before = bench.addresses()
    text = told(bench.call("ADD", container=Y, netns=NETNS2))
    assert f"host interface {HOST_NAME} belongs to container {X} of pod test/nginx, which may be alive" in text
    assert Y in text and bench.addresses() == before and bench.dataplane.pairs[HOST_NAME].netns == NETNS


def test_a_delete_without_namespace_removes_its_own_link_only(bench: PodBench) -> None:
    answer(bench.call("ADD"))
    assert bench.call("DEL", netns="").exit_code == 0
    assert_untouched(bench)


def test_a_killed_add_leaves_nothing_after_its_delete(bench: PodBench) -> None:
    bench.dataplane.pairs[HOST_NAME] = Pair(HOST_NAME, NETNS, "eth0")
    answer(bench.ipam("ADD"))
    assert bench.call("DEL", netns="").exit_code == 0
    assert_untouched(bench)


def test_a_second_add_of_one_container(bench: PodBench) -> None:
    answer(bench.call("ADD"))
    second = addresses(answer(bench.call("ADD")))
    (record,) = bench.records()
    assert record.spec["ipNetworks"] == second and len(bench.dataplane.pairs) == 1
    assert bench.call("DEL").exit_code == 0
    assert_untouched(bench)


def test_one_of_two_interfaces_gives_back_its_own_addresses(bench: PodBench) -> None:
    """Upstream's plugin may have made a second one; ``prevResult`` tells which addresses are its (cni.md §15.20)."""
    first = answer(bench.call("ADD"))
    before = bench.addresses()
    both = [entry["address"] for entry in answer(bench.call("ADD", program="calico-ipam", ifname="net1"))["ips"]]
    links = [{"name": "net1", "sandbox": NETNS}, {"name": "eth0", "sandbox": NETNS}]
    ips = [{"address": address, "interface": 0} for address in both]
    ips += [{**entry, "interface": 1} for entry in first["ips"]]
    for previous in (None, {"bogus": 5}, {"ips": "x"}, {"interfaces": links, "ips": ips[len(both) :]}):
        assert bench.call("DEL", ifname="net1", prevResult=previous).exit_code == 0
        assert len(bench.addresses()) == len(before) + len(both)
    for _ in range(2):
        assert bench.call("DEL", ifname="net1", prevResult={"interfaces": links, "ips": ips}).exit_code == 0
        assert sorted(bench.addresses()) == sorted(before)
    assert bench.call("DEL").exit_code == 0
    assert_untouched(bench)


def test_an_address_that_both_interfaces_have_stays_with_the_one_that_lives(bench: PodBench) -> None:
    """Upstream's plugin gives both the address that the pod's annotation asks for."""
    ips = [{**entry, "interface": 0} for entry in answer(bench.call("ADD"))["ips"]]
    before = bench.addresses()
    previous = {"interfaces": [{"name": "net1", "sandbox": NETNS}], "ips": ips}
    assert bench.call("DEL", ifname="net1", prevResult=previous).exit_code == 0
    assert bench.addresses() == before
    assert bench.call("DEL").exit_code == 0
    assert_untouched(bench)


def test_a_second_interface_is_refused_and_its_delete_harms_nobody(bench: PodBench) -> None:
    answer(bench.call("ADD"))
    before = (bench.addresses(), bench.handles(), [record.spec for record in bench.records()])
    for network in (NETWORK, "net2"):
        text = told(bench.call("ADD", ifname="net1", name=network))
        assert "pod test/nginx is connected by interface eth0 already; a second interface net1" in text
        for netns in (NETNS, ""):
            bench.dataplane.inhabited.add(NETNS)
            assert bench.call("DEL", ifname="net1", name=network, netns=netns).exit_code == 0
            bench.dataplane.inhabited.clear()
    assert (bench.addresses(), bench.handles(), [record.spec for record in bench.records()]) == before
    assert list(bench.dataplane.pairs) == [HOST_NAME]
    assert bench.call("DEL").exit_code == 0
    assert_untouched(bench)


def test_an_interface_of_another_name_alone(bench: PodBench) -> None:
    answer(bench.call("ADD", ifname="net1"))
    assert bench.call("DEL", ifname="net1").exit_code == 0
    assert_untouched(bench)


def test_pods_whose_names_begin_alike(bench: PodBench) -> None:
    bench.pod("p")
    bench.pod("p-1")
    for name, container, netns in (("p", X, NETNS), ("p-1", Y, NETNS2)):
        answer(bench.call("ADD", pod=name, container=container, netns=netns))
    assert bench.call("DEL", pod="p", container=X).exit_code == 0
    (record,) = bench.records()
    assert record.spec["pod"] == "p-1" and len(bench.addresses()) == 1


def test_a_pod_of_another_node_keeps_its_annotations(kdd: PodBench) -> None:
    kdd.pod(node="worker-2")
    answer(kdd.call("ADD"))
    assert kdd.call("DEL").exit_code == 0
    assert kdd.pod_annotations()["podIP"] and kdd.addresses() == []
    assert "bound to another node than this one is called; set nodename" in kdd.log()


def test_a_pod_that_changes_all_the_time_is_told_after_six_tries(kdd: PodBench) -> None:
    answer(kdd.call("ADD"))

    def change(request: Any) -> None:
        if request.method == "PATCH":
            path = request.path.removesuffix("/status")
            kdd.api._store(path, kdd.api.objects[path])

    kdd.api.before = change
    text = told(kdd.call("DEL"))
    assert "error deleting endpoint: endpoint was modified before it could be deleted: " in text
    assert len([r for r in kdd.api.requests if r.startswith("PATCH")]) == 1 + 6
    assert kdd.addresses(), "the address stays with its record"


# --- fixed addresses ----------------------------------------------------------------------------------------


def test_fixed_addresses_in_the_order_of_the_annotation(bench: PodBench) -> None:
    bench.pod(ipAddrs='["fd00:65::9","10.65.0.9"]')
    result = answer(bench.call("ADD"))
    assert addresses(result) == ["fd00:65::9/128", "10.65.0.9/32"] and "routes" not in result
    request = bench.dataplane.pairs[HOST_NAME].request
    assert request is not None and request.host_routes
    assert bench.call("DEL").exit_code == 0
    assert_untouched(bench)


def test_the_annotation_beats_what_the_runtime_asks_for(bench: PodBench) -> None:
    bench.pod(ipAddrs='["10.65.0.9"]')
    result = answer(bench.call("ADD", args="IP=10.65.0.77", runtimeConfig={"ips": ["10.65.0.78"]}))
    assert addresses(result) == ["10.65.0.9/32"]


def test_a_new_sandbox_gets_the_address_of_the_old_one(bench: PodBench) -> None:
    bench.pod(ipAddrs='["10.65.0.9"]')
    answer(bench.call("ADD", container=X))
    assert addresses(answer(bench.call("ADD", container=Y, netns=NETNS2))) == ["10.65.0.9/32"]
    assert bench.handles() == [f"{NETWORK}.{Y}"]
    assert bench.call("DEL", container=X).exit_code == 0
    assert bench.addresses() == ["10.65.0.9"]


def test_somebody_elses_address_is_neither_given_nor_taken(bench: PodBench) -> None:
    """The record of this pod names it, but by now it is another pod's (§15.21, P24 b)."""
    bench.pod(ipAddrs='["10.65.0.9"]')
    answer(bench.call("ADD", container=X))
    bench.ipam("DEL", container=X)
    bench.pod("other", ipAddrs='["10.65.0.9"]')
    answer(bench.call("ADD", pod="other", container=Z, netns="/run/netns/other"))
    text = told(bench.call("ADD", container=Y, netns=NETNS2))
    assert "error getting IP from IPAM: resource already exists: 10.65.0.9" in text
    assert "test/other" in text and "worker-1" in text, "the holder is named"
    assert bench.holder("10.65.0.9")["pod"] == "other"


def test_addresses_that_no_ipam_knows(bench: PodBench) -> None:
    bench.pod(ipAddrsNoIpam='["203.0.113.9","fd77::1"]')
    result = answer(bench.call("ADD", feature_control=FEATURES))
    assert addresses(result) == ["203.0.113.9/32", "fd77::1/128"] and bench.addresses() == []
    checked = bench.call("CHECK", feature_control=FEATURES, prevResult=result)
    assert checked.exit_code == 0, checked.stdout
    assert bench.call("DEL", feature_control=FEATURES).exit_code == 0
    assert_untouched(bench)


def test_floating_addresses_are_set_anew(etcd: PodBench) -> None:
    etcd.pod(floatingIPs='["1.1.1.1","2001:647f::21"]')
    for container in (X, Y):
        answer(etcd.call("ADD", container=container, feature_control=FEATURES, ipam=DUAL))
        (record,) = etcd.records()
        inside = [network.partition("/")[0] for network in record.spec["ipNetworks"]]
        assert [nat["internalIP"] for nat in record.spec["ipNATs"]] == inside
    etcd.pod()
    answer(etcd.call("ADD", container=Z))
    assert "ipNATs" not in etcd.records()[0].spec


def test_hardware_address_and_pools(bench: PodBench) -> None:
    bench.create("IPPool", "pool-b", {"cidr": "10.66.0.0/24", "blockSize": 28, "nodeSelector": "all()"})
    bench.namespace(ipv4pools='["pool-b"]', ipFamilies='["IPv4","IPv6"]')
    bench.pod(hwAddr="CA:FE:CA:FE:CA:FE")
    v4, v6 = addresses(answer(bench.call("ADD")))
    assert v4.startswith("10.66.0.") and v6.startswith("fd00:65:")
    request = bench.dataplane.pairs[HOST_NAME].request
    assert request is not None and request.mac == "ca:fe:ca:fe:ca:fe"


# --- host-local ---------------------------------------------------------------------------------------------


def with_host_local(bench: PodBench) -> list[tuple[str, dict[str, Any]]]:
    """Put a host-local in place that answers with 10.50.0.2; returns what it is called with."""
    calls: list[tuple[str, dict[str, Any]]] = []
    (bench.folder / "bin").mkdir()
    (bench.folder / "bin" / "host-local").touch()

    def run(path: Path, environ: Mapping[str, str], stdin: bytes, timeout: float) -> Finished:
        calls.append((environ["CNI_COMMAND"], json.loads(stdin)))
        printed = {"cniVersion": "1.0.0", "ips": [{"address": "10.50.0.2/24"}]} if len(calls) == 1 else None
        return Finished(0, json.dumps(printed).encode() if printed else b"", b"")

    bench.run_program = run
    return calls


def test_host_local_gets_the_nodes_range_and_never_an_overlapping_one(bench: PodBench) -> None:
    calls = with_host_local(bench)
    ipam = {
        "type": "host-local",
        "ranges": [[{"subnet": "usePodCidr"}], [{"subnet": "10.60.0.0/24"}]],
        "routes": [{"dst": "10.123.0.0/16"}],
    }
    assert addresses(answer(bench.call("ADD", ipam=ipam))) == ["10.50.0.2/32"]
    request = bench.dataplane.pairs[HOST_NAME].request
    assert request is not None and [str(route) for route in request.routes] == ["10.123.0.0/16"]
    assert bench.call("DEL", ipam=ipam).exit_code == 0
    (_, added), (verb, deleted) = calls
    assert added["ipam"]["ranges"] == [[{"subnet": "10.50.0.0/24"}], [{"subnet": "10.60.0.0/24"}]]
    assert verb == "DEL" and deleted["ipam"]["ranges"] == [
        [{"subnet": "198.51.100.0/29"}],
        [{"subnet": "10.60.0.0/24"}],
    ]
    assert_untouched(bench)


def test_ranges_are_read_before_routes_and_both_before_the_pod(bench: PodBench) -> None:
    wrong_routes = {"type": "host-local", "subnet": "usePodCidr", "routes": {"dst": "10.0.0.0/8"}}
    assert "subnet:10.50.0.0/24" in failure(bench.call("ADD", ipam=wrong_routes))["msg"]
    both = failure(bench.call("ADD", pod="absent", ipam={**wrong_routes, "ranges": {}}))
    assert both["msg"].startswith("failed to parse host-local IPAM ranges section")


def test_default_routes_beside_those_of_host_local(bench: PodBench) -> None:
    with_host_local(bench)
    ipam = {"type": "host-local", "subnet": "usePodCidr", "routes": [{"dst": "10.123.0.0/16"}]}
    answer(bench.call("ADD", ipam=ipam, include_default_routes=True))
    request = bench.dataplane.pairs[HOST_NAME].request
    assert request is not None and [str(r) for r in request.routes] == ["0.0.0.0/0", "::/0", "10.123.0.0/16"]


def test_the_node_can_have_another_name_in_kubernetes(bench: PodBench) -> None:
    calls = with_host_local(bench)
    bench.api.put("/api/v1/nodes", {"metadata": {"name": "k8s-1"}, "spec": {"podCIDRs": ["10.77.0.0/24"]}})
    kubernetes = {"kubeconfig": "/x", "node_name": "k8s-1"}
    answer(bench.call("ADD", ipam={"type": "host-local", "subnet": "usePodCidr"}, kubernetes=kubernetes))
    assert calls[0][1]["ipam"]["subnet"] == "10.77.0.0/24"


# --- namespaces that pools select ---------------------------------------------------------------------------


def test_a_pool_selects_namespaces(bench: PodBench) -> None:
    for name, cidr, team in (("a", "10.43.0.0/24", "a"), ("b", "10.44.0.0/24", "b")):
        selector = {"namespaceSelector": f"team == '{team}'", "nodeSelector": "all()", "blockSize": 28}
        bench.create("IPPool", name, {"cidr": cidr, **selector})
    for pool in ("pool4",):
        entry = bench.base.get(ResourceKey("IPPool", pool))
        bench.base.commit(Update(entry, entry.value.with_spec({**entry.value.spec, "disabled": True})))
    bench.namespace(labels={"team": "b"})
    (ip,) = addresses(answer(bench.call("ADD")))
    assert ip.startswith("10.44.0.")


def test_the_cni_check_of_a_pod(bench: PodBench) -> None:
    result = answer(bench.call("ADD"))
    assert bench.call("CHECK", prevResult=result).exit_code == 0
    answer(bench.call("ADD", container=Y, netns=NETNS2))
    text = told(bench.call("CHECK", prevResult=result))
    assert f"the endpoint record of the pod belongs to container {Y}, not {X}" in text
