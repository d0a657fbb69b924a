"""Public reports P11 to P14, P21 to P24, P27 and the Kubernetes side of P25, P26, P28 and P29, on pods as values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from calico_cni.dataplane.api import DataplaneError
from calico_ipam.datastore.api import Create, Delete, Update
from calico_ipam.engine.client import IPAM
from calico_ipam.errors import InvalidInput, NotConfigured, NotFound, StoreUnavailable
from calico_ipam.model import names
from calico_ipam.model.addresses import parse_address, parse_network
from calico_ipam.model.block import Attribute, ReleaseOption
from calico_ipam.model.keys import Affinities, Blocks, HandleKey, ResourceKey
from calico_ipam.model.resource import IP_POOL
from calico_ipam.model.timestamps import format_attribute_time
from tests.cni_bench import NETNS, answer, failure, told
from tests.fake_dataplane import Pair
from tests.pod_bench import HOST_NAME, NETWORK, STORES, PodBench, X, Y, Z
from tests.shared import SHARED

NETNS2 = "/run/netns/pod2"
AFFINITIES = "/apis/crd.projectcalico.org/v1/blockaffinities"


@pytest.fixture(params=STORES)
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> PodBench:
    return PodBench(tmp_path, request.param).prepare()


@pytest.fixture
def kdd(tmp_path: Path) -> PodBench:
    return PodBench(tmp_path, "kubernetes").prepare()


def only_block(bench: PodBench) -> Any:
    (entry,) = bench.base.list(Blocks())
    return entry


def rewrite_attribute(bench: PodBench, attribute: Attribute) -> str:
    """Let the only address that is held be held as ``attribute`` says; returns the address."""
    entry = only_block(bench)
    ((ordinal, _),) = list(entry.value.taken())
    bench.base.commit(Update(entry, entry.value.with_attribute(ordinal, attribute).bumped()))
    return str(entry.value.address(ordinal))


def forget_handles(bench: PodBench, *handles: str) -> None:
    for handle in handles:
        bench.base.commit(Delete(bench.base.get(HandleKey(handle))))


# --- P11: handles that the migrator wrote ---------------------------------------------------------------------


def migrated(bench: PodBench) -> tuple[str, str]:
    """Return an address whose block names a handle with a carriage return that no object has, and that handle."""
    answer(bench.ipam("ADD", container="dd37"))
    handle = f"{NETWORK}.dd37\r\neth0"
    forget_handles(bench, f"{NETWORK}.dd37")
    old = {"node": "worker-1", "pod": "nginx", "namespace": "test", "timestamp": format_attribute_time(0)}
    return rewrite_attribute(bench, Attribute(handle, old)), handle


def test_p11_the_collector_verb_frees_an_address_whose_handle_was_never_stored(bench: PodBench) -> None:
    migrated(bench)
    alive = [{"containerID": X, "ifname": "eth0"}]
    response = bench.ipam("GC", cniVersion="1.1.0", **{"cni.dev/valid-attachments": alive})
    assert (response.exit_code, response.stdout) == (0, "")
    assert bench.addresses() == []


def test_p11_release_by_address_frees_it(bench: PodBench) -> None:
    ip, _ = migrated(bench)
    IPAM(bench.base, hostname="worker-1").release_ips([ReleaseOption(parse_address(ip))])
    assert bench.addresses() == []


@pytest.mark.parametrize("container", ["bad/slash"])
def test_p11_new_handles_are_checked_before_anything_is_written(bench: PodBench, container: str) -> None:
    with pytest.raises(InvalidInput):
        IPAM(bench.base, hostname="worker-1").auto_assign(use="Workload", num4=1, handle=f"n.{container}\r\neth0")
    assert bench.addresses() == bench.handles() == []


# --- P12: handle and block are two writes ----------------------------------------------------------------------


@pytest.mark.parametrize("write", ["/ipamhandles", "/ipamblocks/"])
def test_p12_an_add_that_fails_between_handle_and_block_leaves_neither(kdd: PodBench, write: str) -> None:
    answer(kdd.ipam("ADD", container=Z))
    kdd.fail("POST" if write.endswith("s") else "PUT", write, lambda: StoreUnavailable("connection refused"))
    assert failure(kdd.call("ADD"))["code"] == 11
    assert kdd.handles() == [f"{NETWORK}.{Z}"] and len(kdd.addresses()) == 1


def test_p12_a_delete_that_fails_between_block_and_handle_is_finished_by_the_next(kdd: PodBench) -> None:
    answer(kdd.call("ADD"))
    kdd.fail("DELETE", "/ipamhandles/", lambda: StoreUnavailable("connection refused"))
    kdd.call("DEL")
    assert kdd.addresses() == []
    assert kdd.call("DEL").exit_code == 0
    assert kdd.handles() == []


# --- P13: rows of older releases have no labels ----------------------------------------------------------------


def test_p13_rows_without_labels_are_upgraded_before_a_block_is_claimed(kdd: PodBench) -> None:
    answer(kdd.ipam("ADD", container=Z))
    own = [path for path in kdd.api.objects if path.startswith(AFFINITIES)]
    row = kdd.api.objects[own[0]]
    row["metadata"].pop("labels")
    row["spec"].pop("type", None)
    row["spec"]["deleted"] = "false"
    gone = {
        "metadata": {"name": "worker-1-10-65-0-240-28"},
        "spec": {"cidr": "10.65.0.240/28", "node": "worker-1", "state": "confirmed", "deleted": "true"},
    }
    kdd.api.put(AFFINITIES, gone)
    (kdd.folder / "marker" / "upgraded").unlink()
    answer(kdd.call("ADD"))
    assert len(kdd.base.list(Blocks())) == 1, "the row is seen: no second block"
    assert [str(entry.cidr) for entry in kdd.base.list(Affinities("host", "worker-1"))] == [str(only_block(kdd).cidr)]
    assert kdd.api.objects[own[0]]["metadata"]["labels"]["projectcalico.org/affinity-type"] == "host"
    assert (kdd.folder / "marker" / "upgraded").exists()


def test_p13_the_upgrade_is_done_once(kdd: PodBench) -> None:
    answer(kdd.call("ADD"))
    kdd.api.requests.clear()
    answer(kdd.call("ADD", container=Y, netns=NETNS2))
    assert len([request for request in kdd.api.requests if request == f"GET {AFFINITIES}"]) == 1


def test_p13_an_upgrade_that_fails_claims_nothing(kdd: PodBench) -> None:
    struck = kdd.fail("GET", "/blockaffinities", lambda: StoreUnavailable("connection refused"), times=99)
    assert failure(kdd.call("ADD"))["code"] == 11
    assert struck and len(kdd.base.list(Blocks())) == 0
    assert not (kdd.folder / "marker" / "upgraded").exists()


def test_p13_what_we_write_has_every_field_that_the_schemas_demand(kdd: PodBench) -> None:
    if not (SHARED / "crds").is_dir():
        pytest.skip(f"{SHARED}/crds is absent")
    answer(kdd.call("ADD", ipam={"type": "calico-ipam", "assign_ipv6": "true"}))
    checked = 0
    for plural in ("ipamblocks", "blockaffinities", "ipamhandles"):
        demanded = required_fields(plural)
        for path, item in kdd.api.objects.items():
            if f"/{plural}/" in path:
                assert demanded <= item["spec"].keys() and item["spec"].get("deleted") in (False, "false")
                checked += 1
    assert checked == 5


def required_fields(plural: str) -> set[str]:
    """Return what the v1 definition of a kind demands of its spec."""
    for file in (SHARED / "crds" / "v1").glob(f"*{plural}*.yaml"):
        for document in yaml.safe_load_all(file.read_text()):
            schema = document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
            return set(schema["properties"]["spec"].get("required", ()))
    raise AssertionError(f"no definition of {plural}")


# --- P14: texts that become names ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cidr", "name"),
    [
        ("3311:10:11:124::/64", "3311-10-11-124---64"),
        ("::/122", "---122"),
        ("fd00::/122", "fd00---122"),
        ("2001:db8:0:1::/122", "2001-db8-0-1---122"),
    ],
)
def test_p14_names_are_upstreams(cidr: str, name: str) -> None:
    assert names.cidr_name(parse_network(cidr)) == name


def test_p14_long_hosts_that_differ_at_the_end_have_objects_of_their_own() -> None:
    network = parse_network("10.0.0.0/26")
    hosts = ["h" * 252 + end for end in "ab"]
    found = {names.affinity_name(host, network) for host in hosts}
    assert len(found) == 2 and all(len(name) <= 253 for name in found)


@pytest.mark.parametrize(("length", "labelled"), [(62, True), (63, False), (64, False)])
def test_p14_a_service_account_is_a_label_only_while_it_fits(tmp_path: Path, length: int, labelled: bool) -> None:
    bench = PodBench(tmp_path, "etcd").prepare()
    bench.pod(spec={"serviceAccountName": "s" * length})
    answer(bench.call("ADD"))
    (record,) = bench.records()
    assert ("projectcalico.org/serviceaccount" in record.labels) is labelled
    assert record.spec["serviceAccountName"] == "s" * length
    assert record.spec["profiles"] == ["kns.test", f"ksa.test.{'s' * length}"]


def test_p14_a_network_whose_name_no_object_may_have_is_refused_first(kdd: PodBench) -> None:
    text = told(kdd.call("ADD", name="k8s_pod_network"))
    assert "cannot be the name of a Kubernetes object" in text and "'_'" in text
    assert kdd.addresses() == [] and not kdd.dataplane.pairs


# --- P21: a delete finds nothing -------------------------------------------------------------------------------


def assert_quiet(bench: PodBench, **changes: Any) -> None:
    response = bench.call("DEL", **changes)
    assert (response.exit_code, response.stdout) == (0, ""), response.stdout


def test_p21_a_delete_of_something_unknown_or_twice(bench: PodBench) -> None:
    assert_quiet(bench, container="never-seen")
    answer(bench.call("ADD"))
    for _ in range(2):
        assert_quiet(bench)
    assert bench.addresses() == []


def test_p21_the_pod_is_gone(bench: PodBench) -> None:
    answer(bench.call("ADD"))
    del bench.api.objects["/api/v1/namespaces/test/pods/nginx"]
    assert_quiet(bench)
    assert bench.addresses() == [] and not bench.dataplane.pairs


def test_p21_the_block_is_gone(bench: PodBench) -> None:
    answer(bench.call("ADD"))
    bench.base.commit(Delete(only_block(bench)))
    assert_quiet(bench)
    assert bench.handles() == []


def test_p21_the_nodename_file_is_gone(bench: PodBench) -> None:
    answer(bench.call("ADD"))
    assert_quiet(bench, nodename_file=str(bench.folder / "absent"), nodename_file_optional=False)
    assert bench.addresses() == []


def test_p21_both_forms_of_a_handle_are_released(bench: PodBench) -> None:
    ipam = IPAM(bench.base, hostname="worker-1")
    for handle in (f"{NETWORK}.{X}", "test.nginx"):
        ipam.auto_assign(use="Workload", num4=1, handle=handle)
    assert_quiet(bench)
    assert bench.addresses() == bench.handles() == []


def test_p21_annotations_that_cannot_be_read_do_not_hold_a_pod(bench: PodBench) -> None:
    answer(bench.call("ADD"))
    found = bench.api.objects["/api/v1/namespaces/test/pods/nginx"]["metadata"]
    broken = {f"cni.projectcalico.org/{name}": "{" for name in ("floatingIPs", "allowedSourcePrefixes", "ipAddrs")}
    found["annotations"] = {**found.get("annotations", {}), **broken, "cni.projectcalico.org/podIPs": "gumbo"}
    assert_quiet(bench)
    assert bench.addresses() == []


# --- P22: late deletes, pods of one name ------------------------------------------------------------------------


def test_p22_a_late_delete_harms_nobody(bench: PodBench) -> None:
    answer(bench.call("ADD", container=X))
    new = answer(bench.call("ADD", container=Y, netns=NETNS2))["ips"][0]["address"].partition("/")[0]
    for _ in range(2):
        assert_quiet(bench, container=X)
        (record,) = bench.records()
        assert record.spec["containerID"] == Y and bench.addresses() == [new]
    stale = "11111111-2222-3333-4444-555555555555"
    bench.pod()
    assert "has UID" in told(bench.call("ADD", container=Z, netns="/run/netns/pod3", uid=stale))
    assert bench.addresses() == [new]


# --- P23: credentials -------------------------------------------------------------------------------------------


def test_p23_reading_never_creates_the_settings(kdd: PodBench) -> None:
    answer(kdd.call("ADD"))
    assert_quiet(kdd)
    assert not [request for request in kdd.api.requests if "ipamconfigs" in request and not request.startswith("GET")]


# --- P24: fixed addresses ---------------------------------------------------------------------------------------


def former_sandbox(bench: PodBench, pod: str) -> None:
    """Let 10.65.0.1 be held by a sandbox whose pod object is a new one by now."""
    bench.pod(pod, ipAddrs='["10.65.0.1"]')
    answer(bench.call("ADD", pod=pod, container="old", netns=NETNS2))
    bench.dataplane.pairs.clear()
    bench.pod(pod, ipAddrs='["10.65.0.1"]')
    for entry in list(bench.base.list(_endpoints())) if not bench.on_kubernetes else ():
        bench.base.commit(Delete(entry))


def _endpoints() -> Any:
    from calico_ipam.model.keys import Resources

    return Resources("WorkloadEndpoint")


@pytest.mark.parametrize("holder", ["nginx", "other"])
def test_p24_a_fixed_address_that_is_held_names_its_holder(bench: PodBench, holder: str) -> None:
    former_sandbox(bench, holder)
    bench.pod(ipAddrs='["10.65.0.1"]')
    text = told(bench.call("ADD"))
    assert "error getting IP from IPAM: resource already exists: 10.65.0.1 with error: Address already assigned" in text
    assert f"test/{holder}" in text and "worker-1" in text and "2026-08-22" in text, "pod, node, since when"
    assert "garbage collection frees the address" in text
    assert bench.holder("10.65.0.1")["pod"] == holder


def test_p24_the_collector_verb_ends_the_wait(bench: PodBench) -> None:
    former_sandbox(bench, "nginx")
    assert failure(bench.call("ADD"))["code"] == 999
    bench.clock.advance(600)
    listed = [{"containerID": X, "ifname": "eth0"}]
    assert bench.ipam("GC", cniVersion="1.1.0", **{"cni.dev/valid-attachments": listed}).exit_code == 0
    assert answer(bench.call("ADD"))["ips"][0]["address"] == "10.65.0.1/32"


@pytest.mark.parametrize("text", ['["90.0.0.1","90.0.0.2"]', "[]", '[""]', '"90.0.0.1"', '["::1"]', '["90.0.0.1"]'])
def test_p24_every_list_that_cannot_be_is_quoted(bench: PodBench, text: str) -> None:
    bench.pod(ipAddrs=text)
    found = told(bench.call("ADD"))
    assert "cni.projectcalico.org/ipAddrs" in found
    assert text in found or "not in a configured pool" in found
    assert bench.addresses() == [] and not bench.dataplane.pairs


# --- P25: stdout, secrets, crashes ------------------------------------------------------------------------------


def test_p25_secrets_of_pods_and_configurations_are_in_no_log(bench: PodBench) -> None:
    told: dict[str, Any] = {"example.org/token": "SECRET"}
    bench.pod(spec={"containers": [{"env": [{"name": "PASSWORD", "value": "SECRET"}]}]}, **told)
    policy = {"type": "k8s", "k8s_auth_token": "SECRET", "k8s_client_key": "SECRET"}
    for verb in ("ADD", "DEL"):
        response = bench.call(verb, policy=policy, log_level="debug")
        assert "SECRET" not in response.stdout + bench.log()
    bench.dataplane.fail = lambda _operation: 1 / 0
    response = bench.call("ADD", policy=policy, log_level="debug")
    assert json.loads(response.stdout)["code"] == 999 and "SECRET" not in response.stdout + bench.log()


# --- P26: nothing is lost by failed ADDs ------------------------------------------------------------------------


@pytest.mark.parametrize("cause", ["link", "record", "wait"])
def test_p26_fifty_failed_adds_use_no_address(bench: PodBench, cause: str) -> None:
    def refuse(operation: str) -> None:
        if operation == "add" and cause == "link":
            raise DataplaneError("no such namespace")

    bench.dataplane.fail = refuse
    before = bench.addresses()
    for number in range(50):
        changes: dict[str, Any] = {"policy_setup_timeout_seconds": -1} if cause == "wait" else {}
        if cause == "record":
            bench.pod(floatingIPs='["fd00::1"]')
            changes = {"feature_control": {"floating_ips": True}}
        failure(bench.call("ADD", container=f"c{number}", **changes))
    assert bench.addresses() == before == [] and bench.handles() == [] and not bench.dataplane.pairs


def test_p26_after_a_reboot_the_old_go_and_the_new_stay(bench: PodBench) -> None:
    for number in range(8):
        bench.pod(f"p{number}")
        answer(bench.call("ADD", pod=f"p{number}", container=f"old{number}", netns=f"/run/netns/old{number}"))
    bench.dataplane.pairs.clear()
    bench.clock.advance(600)
    for number in range(8):
        answer(bench.call("ADD", pod=f"p{number}", container=f"new{number}", netns=f"/run/netns/new{number}"))
    listed = [{"containerID": f"new{number}", "ifname": "eth0"} for number in range(8)]
    changes: dict[str, Any] = {"cniVersion": "1.1.0", "cni.dev/valid-attachments": listed}
    response = bench.call("GC", **changes)
    assert (response.exit_code, response.stdout) == (0, "")
    assert sorted(bench.handles()) == [f"{NETWORK}.new{number}" for number in range(8)]
    assert len(bench.records()) == 8 and len(bench.dataplane.pairs) == 8


# --- P27: a configuration that lost its datastore ---------------------------------------------------------------


def test_p27_a_stripped_delete_releases_or_says_that_it_could_not(kdd: PodBench) -> None:
    keys = ("datastore_type", "nodename", "nodename_file_optional", "policy", "kubernetes", "ipam_lock_file")
    stripped: dict[str, Any] = dict.fromkeys(keys)
    answer(kdd.call("ADD"))
    kdd.open_error = NotConfigured("no Kubernetes API server is configured")
    assert failure(kdd.call("DEL", **stripped))["code"] == 11
    kdd.open_error = None
    (kdd.folder / "installed.conflist").write_text(json.dumps({"plugins": [kdd.netconf()]}))
    assert_quiet(kdd, **stripped)
    assert kdd.addresses() == []


# --- P28: versions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"])
def test_p28_a_pod_at_each_version_and_its_delete_at_another(bench: PodBench, version: str) -> None:
    result = answer(bench.call("ADD", cniVersion=version))
    assert result["cniVersion"] == version
    assert ("ip4" in result) == (version < "0.3")
    assert_quiet(bench, cniVersion="1.0.0" if version != "1.0.0" else "0.3.1")
    assert bench.addresses() == []


def test_p28_status_of_a_cluster(bench: PodBench) -> None:
    assert bench.call("STATUS", cniVersion="1.1.0").stdout == ""
    bench.open_error = StoreUnavailable("connection refused")
    assert failure(bench.call("STATUS", cniVersion="1.1.0"))["code"] == 50


# --- P29: pools by annotation -----------------------------------------------------------------------------------


def with_pool(bench: PodBench, name: str, **spec: Any) -> None:
    from calico_ipam.model.resource import Resource

    whole = {"blockSize": 28, "nodeSelector": "all()", **spec}
    bench.base.commit(Create(ResourceKey(IP_POOL, name), Resource.new(IP_POOL, name, whole)))


@pytest.mark.parametrize("wanted", ['["odd"]', '["c001:c0af::/120"]', '["C001:C0AF::12/120"]'])
def test_p29_a_pool_by_name_and_by_any_spelling(bench: PodBench, wanted: str) -> None:
    with_pool(bench, "odd", cidr="C001:C0AF::12/120", blockSize=124)
    bench.pod(ipv6pools=wanted, ipFamilies='["IPv6"]')
    assert answer(bench.call("ADD"))["ips"][0]["address"].startswith("c001:c0af::")


def test_p29_three_answers_for_three_cases(bench: PodBench) -> None:
    with_pool(bench, "off", cidr="10.70.0.0/24", disabled=True)
    with_pool(bench, "tunnels", cidr="10.71.0.0/24", allowedUses=["Tunnel"])
    texts = []
    for wanted in ('["10.99.0.0/24"]', '["off"]', '["tunnels"]', '["nope"]', '[""]'):
        bench.pod(ipv4pools=wanted)
        texts.append(told(bench.call("ADD")))
    assert len(set(texts)) == len(texts)
    for text, part in zip(
        texts,
        ("No pool has this CIDR", "off is disabled", "no pools match", 'parsing pool "nope"', 'parsing pool ""'),
        strict=True,
    ):
        assert part in text
    assert bench.addresses() == []


def test_p29_an_annotation_overrides_the_node_selector(bench: PodBench) -> None:
    with_pool(bench, "elsewhere", cidr="10.72.0.0/24", nodeSelector="!all()")
    bench.pod(ipv4pools='["elsewhere"]')
    assert answer(bench.call("ADD"))["ips"][0]["address"].startswith("10.72.0.")


def test_p29_a_dead_sandbox_of_the_name_makes_way(bench: PodBench) -> None:
    """What is left of a pod that was networked before does not keep its namesake from another pool."""
    bench.dataplane.pairs[HOST_NAME] = Pair(HOST_NAME, NETNS2, "eth0")
    with_pool(bench, "second", cidr="10.73.0.0/24")
    bench.pod(ipv4pools='["second"]')
    answer(bench.call("ADD"))
    assert bench.dataplane.pairs[HOST_NAME].netns == NETNS
    with pytest.raises(NotFound):
        IPAM(bench.base).ips_by_handle("nobody")
