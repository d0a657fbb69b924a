"""``calico`` ADD for workloads without Kubernetes: what it makes, what it refuses, what a failure leaves behind."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from calico_cni.context import Finished
from calico_cni.dataplane.api import DataplaneError
from calico_cni.plugin.labels import sanitised
from calico_cni.system import fetch
from calico_ipam.datastore.api import Delete, Update
from calico_ipam.errors import StoreUnavailable
from calico_ipam.model.keys import Blocks, Key, ResourceKey, Scope
from calico_ipam.model.resource import CLUSTER_INFORMATION, IP_POOL, PROFILE, WORKLOAD_ENDPOINT
from tests.clock import LONG
from tests.cni_bench import CONTAINER, HOST_NAME, NETNS, CNIBench, answer, failure, told
from tests.fake_dataplane import FakeDataplane, Pair
from tests.faulty import Fault, FaultyStore

DUAL = {"type": "calico-ipam", "assign_ipv6": "true"}
RECORD = f"worker--1-cni-{CONTAINER}-eth0"


@pytest.fixture
def bench(tmp_path: Path) -> CNIBench:
    return CNIBench(tmp_path).prepare()


def raising(operation: str, error: Exception, times: int = 1) -> Callable[[str], None]:
    """Return a hook that fails the first ``times`` calls of one dataplane operation."""
    left = [times]

    def fail(called: str) -> None:
        if called == operation and left[0] > 0:
            left[0] -= 1
            raise error

    return fail


def test_everything_is_made(bench: CNIBench) -> None:
    result = answer(bench.call("ADD", ipam=DUAL, mtu=1400, num_queues=2))
    four, six = (ip["address"] for ip in result["ips"])
    assert four.startswith("10.65.0.") and four.endswith("/32")
    assert six.startswith("fd00:65:") and six.endswith("/128")
    assert [ip["interface"] for ip in result["ips"]] == [1, 1]
    assert result["interfaces"] == [
        {"name": HOST_NAME},
        {"mac": "0a:58:00:00:00:01", "mtu": 1400, "name": "eth0", "sandbox": NETNS},
    ]
    (record,) = bench.records()
    assert record.name == RECORD
    assert record.spec["ipNetworks"] == [four, six]
    assert record.spec["containerID"] == CONTAINER
    assert record.spec["interfaceName"] == HOST_NAME
    assert bench.profiles() == ["net1"]
    request = bench.dataplane.pairs[HOST_NAME].request
    assert request is not None
    assert (request.mtu, request.queues, request.device_type, request.ip_forwarding) == (1400, 2, "veth", False)
    assert [str(route) for route in request.routes] == ["0.0.0.0/0", "::/0"]


def test_a_policy_type_means_no_profile(bench: CNIBench) -> None:
    answer(bench.call("ADD", policy={"type": "other"}))
    assert bench.profiles() == []


def test_the_settings_of_the_datastore_are_handed_over(bench: CNIBench) -> None:
    bench.call("ADD", datastore_type="sqlite", sqlite_path="/x/ipam.db", kubernetes={"node_name": "n"})
    expected = {"datastore_type": "sqlite", "sqlite_path": "/x/ipam.db", "kubernetes": {"node_name": "n"}}
    assert bench.opened == [expected], "one call opens one store, its own IPAM included"


# --- failures leave nothing ---------------------------------------------------------------------------------


def assert_untouched(bench: CNIBench) -> None:
    assert bench.addresses() == []
    assert bench.handles() == []
    assert bench.records() == []
    assert bench.dataplane.pairs == {}


@pytest.mark.parametrize("text", ["route (Ifindex: 7) already exists", "file exists"])
def test_a_link_that_cannot_be_made_frees_the_address(bench: CNIBench, text: str) -> None:
    bench.dataplane.fail = raising("add", DataplaneError(text, hint="Look there."))
    assert failure(bench.call("ADD", ipam=DUAL)) == {"code": 999, "msg": text, "details": "Look there."}
    assert_untouched(bench)


def test_a_sandbox_that_is_gone_costs_no_address_however_often(bench: CNIBench) -> None:
    bench.dataplane.lose_namespace(NETNS)
    for number in range(50):  # more often than a block has addresses
        assert "no such file or directory" in told(bench.call("ADD", container=f"c{number}"))
    assert_untouched(bench)


def test_a_record_that_cannot_be_written_takes_the_link_back_first(bench: CNIBench) -> None:
    order: list[str] = []

    class Watched(FakeDataplane):
        def remove(self, netns: str, container_name: str, host_name: str | None) -> None:
            order.append(f"link removed while {len(bench.addresses())} addresses are held")
            super().remove(netns, container_name, host_name)

    bench.dataplane = Watched()
    bench.store = FaultyStore(bench.base, Fault("before", write=1, where=of_kind(WORKLOAD_ENDPOINT)))
    assert failure(bench.call("ADD"))["code"] == 11
    assert order == ["link removed while 1 addresses are held"]
    assert_untouched(bench)


def of_kind(kind: str) -> Callable[[Key | Scope], bool]:
    return lambda key: isinstance(key, ResourceKey) and key.kind == kind


def test_a_profile_that_cannot_be_written_takes_everything_back(bench: CNIBench) -> None:
    store = FaultyStore(bench.base, Fault("before", write=1, where=of_kind(PROFILE)))
    bench.store = store
    assert failure(bench.call("ADD"))["code"] == 11
    assert store.struck()
    assert_untouched(bench)


def test_a_lost_answer_to_the_record_is_looked_up(bench: CNIBench) -> None:
    store = FaultyStore(bench.base, Fault("lost", write=1, where=of_kind(WORKLOAD_ENDPOINT)))
    bench.store = store
    answer(bench.call("ADD"))
    assert store.struck()
    assert len(bench.records()) == len(bench.addresses()) == 1


def test_a_link_that_cannot_be_removed_keeps_its_address_and_says_so(bench: CNIBench) -> None:
    bench.store = FaultyStore(bench.base, Fault("before", write=1, where=of_kind(WORKLOAD_ENDPOINT)))
    bench.dataplane.fail = raising("remove", DataplaneError("device busy"))
    text = told(bench.call("ADD"))
    assert "could not be removed (device busy), so its address stays assigned" in text
    assert len(bench.addresses()) == 1
    assert list(bench.dataplane.pairs) == [HOST_NAME]
    assert bench.call("DEL").exit_code == 0
    assert_untouched(bench)


def test_a_link_that_the_dataplane_left_behind_keeps_its_address(bench: CNIBench) -> None:
    bench.dataplane.fail = raising("add", DataplaneError("route refused", left_behind=True))
    text = told(bench.call("ADD"))
    assert text.startswith("route refused") and "its address stays assigned" in text
    assert len(bench.addresses()) == 1


def test_an_answer_without_addresses_is_refused(bench: CNIBench) -> None:
    none = {"type": "calico-ipam", "assign_ipv4": "false"}
    assert failure(bench.call("ADD", ipam=none))["msg"] == "IPAM plugin returned no IP addresses in result"
    assert_untouched(bench)


def test_a_foreign_answer_that_cannot_be_read_gives_the_address_back(bench: CNIBench) -> None:
    verbs: list[str] = []

    def run(path: Path, environ: Mapping[str, str], stdin: bytes, timeout: float) -> Finished:
        verbs.append(environ["CNI_COMMAND"])
        return Finished(0, b'{"cniVersion":"7.0.0"}' if verbs == ["ADD"] else b"", b"")

    bench.run_program = run
    folder = bench.folder / "bin"
    folder.mkdir()
    (folder / "host-local").touch()
    assert 'unsupported CNI result version "7.0.0"' in told(bench.call("ADD", ipam={"type": "host-local"}))
    assert verbs == ["ADD", "DEL"]


# --- refused before anything is made ------------------------------------------------------------------------

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("device type", {"device_type": "bogus"}, 'unknown device_type "bogus"'),
    ("dataplane", {"dataplane_options": {"type": "x"}}, "invalid dataplane type: x"),
    ("dataplane of no name", {"dataplane_options": {"type": ""}}, "invalid dataplane type: "),
    ("dataplane of another kind", {"dataplane_options": {"type": True}}, "invalid dataplane type: true"),
    ("grpc without socket", {"dataplane_options": {"type": "grpc"}}, "GRPC dataplane socket not configured"),
    ("feature", {"feature_control": {"ip_addrs_no_ipam": True}}, "not supported for this runtime: ip_addrs_no_ipam"),
    ("upper case container", {"container": "ABC"}, "error with field Metadata.Name = 'worker--1-cni-ABC-eth0'"),
    ("underscore in container", {"container": "a_b"}, "ContainerID = 'a_b'"),
    ("dash at the end", {"container": "abc-"}, "error with field containerID = 'abc-'"),
    ("upper case network", {"name": "Net1"}, "Profiles[0] = 'Net1'"),
    ("gate", {"readiness_gates": ["bogus"]}, 'Error:parse "bogus": invalid URI for request'),
    ("half a gate", {"readiness_gates": ["http://[::1"]}, 'Error:parse "http://[::1": invalid URI for request'),
    ("empty gate", {"readiness_gates": [""]}, 'Error:parse "": empty url'),
    ("gate with a blank", {"readiness_gates": ["http://a b/"]}, 'invalid character " " in host name'),
    ("gate with a bad port", {"readiness_gates": ["http://a:b/"]}, 'invalid port ":b" after host'),
    ("gate with a port beyond all", {"readiness_gates": ["http://a:70000/"]}, 'invalid port ":70000" after host'),
    ("gate with a newline", {"readiness_gates": ["http://a/\n"]}, "invalid control character in URL"),
    ("half a character", {"nodename": "\ud800"}, "Metadata.Name = '\ufffd-cni-"),
    ("own namespace", {"netns": "/proc/self/ns/net"}, "should not be the same"),
]


@pytest.mark.parametrize(("changes", "text"), [pytest.param(c, t, id=i) for i, c, t in REFUSED])
def test_what_is_refused_costs_nothing(bench: CNIBench, changes: dict[str, Any], text: str) -> None:
    assert text in told(bench.call("ADD", **changes))
    assert_untouched(bench)
    assert not list(bench.base.list(Blocks())), "not even a block was claimed"


def test_a_namespace_check_can_be_switched_off(bench: CNIBench) -> None:
    answer(bench.call("ADD", netns="/proc/self/ns/net", environ={"CNI_NETNS_OVERRIDE": "True"}))


@pytest.mark.parametrize("ready", [True, None, "absent"])
def test_only_false_means_not_ready(bench: CNIBench, ready: object) -> None:
    set_information(bench, {} if ready == "absent" else {"datastoreReady": ready})
    answer(bench.call("ADD"))


def test_a_datastore_that_is_not_ready_is_refused(bench: CNIBench) -> None:
    set_information(bench, {"datastoreReady": False})
    assert failure(bench.call("ADD"))["msg"] == "Calico is currently not ready to process requests"
    assert_untouched(bench)


def set_information(bench: CNIBench, spec: dict[str, object]) -> None:
    entry = bench.base.get(ResourceKey(CLUSTER_INFORMATION, "default"))
    bench.base.commit(Update(entry, entry.value.with_spec(spec)))


def test_a_datastore_that_does_not_answer_is_told_as_try_again(bench: CNIBench) -> None:
    bench.open_error = StoreUnavailable("connect: connection refused", hint="Is it running?")
    found = failure(bench.call("ADD"))
    expected = {
        "code": 11,
        "msg": "error creating calico client: connect: connection refused",
        "details": "Is it running?",
    }
    assert found == expected


# --- readiness gates ----------------------------------------------------------------------------------------


def test_a_gate_is_tried_at_once(bench: CNIBench) -> None:
    bench.fetch = lambda _url, _timeout: 204
    answer(bench.call("ADD", readiness_gates=["http://127.0.0.1:9099/readiness"]))
    assert bench.clock.slept == 0


@pytest.mark.parametrize("kind", [None, "absent"])
def test_no_dataplane_type_is_the_linux_dataplane(bench: CNIBench, kind: str | None) -> None:
    answer(bench.call("ADD", dataplane_options={} if kind else {"type": None}))


def test_blanks_in_a_path_are_sent_escaped() -> None:
    asked: list[str] = []

    class Gate(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_args: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Gate) as server:
        thread = Thread(target=server.handle_request)
        thread.start()
        assert fetch(f"http://127.0.0.1:{server.server_port}/is ready?a=%20b", LONG) == 204
        thread.join()
    assert asked == ["/is%20ready?a=%20b"]


def test_a_gate_that_opens_later_is_waited_for(bench: CNIBench) -> None:
    statuses = iter([503, 503, 200])
    bench.fetch = lambda _url, _timeout: next(statuses)
    answer(bench.call("ADD", readiness_gates=["http://127.0.0.1:9099/readiness"]))
    assert bench.clock.slept == 10


def test_a_gate_that_stays_closed_is_code_11(bench: CNIBench) -> None:
    def refuse(_url: str, _timeout: float) -> int:
        raise OSError("connection refused")

    bench.fetch = refuse
    found = failure(bench.call("ADD", readiness_gates=["http://127.0.0.1:9099/readiness"]))
    assert found["code"] == 11 and "did not open within 30 s: connection refused" in found["msg"]
    assert bench.clock.slept == 30
    assert_untouched(bench)


# --- existing records and links (rulings 1 and 2) -----------------------------------------------------------


def test_a_second_add_answers_with_what_the_first_made(bench: CNIBench) -> None:
    first = answer(bench.call("ADD"))
    second = answer(bench.call("ADD"))
    assert second.pop("routes", None) is None and first.pop("routes")
    assert second == first
    assert len(bench.addresses()) == len(bench.records()) == 1


def test_another_network_joins_the_same_interface(bench: CNIBench) -> None:
    answer(bench.call("ADD"))
    answer(bench.call("ADD", name="net2"))
    (record,) = bench.records()
    assert record.spec["profiles"] == ["net1", "net2"]
    assert bench.profiles() == ["net1", "net2"]
    assert len(bench.addresses()) == 1


def test_a_renamed_host_link_changes_nothing(bench: CNIBench) -> None:
    first = answer(bench.call("ADD"))
    bench.dataplane.pairs["renamed"] = replace(bench.dataplane.pairs.pop(HOST_NAME), host_name="renamed")
    assert answer(bench.call("ADD"))["ips"] == first["ips"]


def test_a_record_without_a_link_is_networked_anew(bench: CNIBench) -> None:
    answer(bench.call("ADD"))
    bench.dataplane.pairs.clear()
    answer(bench.call("ADD"))
    assert len(bench.addresses()) == len(bench.records()) == len(bench.dataplane.pairs) == 1
    assert bench.records()[0].spec["ipNetworks"] == [f"{bench.addresses()[0]}/32"]


def test_a_second_interface_is_refused(bench: CNIBench) -> None:
    """Public report P19, outside Kubernetes."""
    answer(bench.call("ADD"))
    before = bench.addresses()
    text = told(bench.call("ADD", ifname="eth1", name="net2"))
    assert "connected by interface eth0 already; a second interface eth1" in text
    assert bench.addresses() == before


@pytest.mark.parametrize("network", ["net1", "net2"])
def test_deleting_the_refused_interface_leaves_the_first_alone(bench: CNIBench, network: str) -> None:
    answer(bench.call("ADD"))
    before = (bench.addresses(), bench.records(), bench.dataplane.pairs.copy())
    bench.call("ADD", ifname="eth1", name=network)
    for netns in (NETNS, ""):
        assert bench.call("DEL", ifname="eth1", name=network, netns=netns).exit_code == 0
    assert (bench.addresses(), bench.records(), bench.dataplane.pairs) == before


def test_a_killed_second_interface_is_refused_too(bench: CNIBench) -> None:
    bench.dataplane.pairs[HOST_NAME] = Pair(HOST_NAME, NETNS, "eth7")
    assert "interface eth7 already" in told(bench.call("ADD"))


def test_containers_that_share_eleven_characters_share_a_name(bench: CNIBench) -> None:
    answer(bench.call("ADD"))
    other = CONTAINER[:11] + "zzz"
    text = told(bench.call("ADD", container=other, netns="/run/netns/pod2"))
    assert f"belongs to container {CONTAINER}; container {other} cannot have it too" in text
    assert bench.call("DEL", container=other, netns="").exit_code == 0
    assert len(bench.addresses()) == len(bench.records()) == len(bench.dataplane.pairs) == 1


def test_a_link_that_somebody_lives_behind_is_never_replaced(bench: CNIBench) -> None:
    bench.dataplane.pairs[HOST_NAME] = Pair(HOST_NAME, "/run/netns/other", "eth0")
    bench.dataplane.inhabited.add("/run/netns/other")
    assert f"host interface {HOST_NAME} exists and may be in use" in told(bench.call("ADD"))
    assert bench.dataplane.pairs[HOST_NAME].netns == "/run/netns/other"
    assert bench.addresses() == []


@pytest.mark.parametrize("netns", ["/run/netns/dead", "", NETNS])
def test_an_abandoned_link_is_replaced(bench: CNIBench, netns: str) -> None:
    bench.dataplane.pairs[HOST_NAME] = Pair(HOST_NAME, netns, "eth0")
    answer(bench.call("ADD"))
    assert bench.dataplane.pairs[HOST_NAME].netns == NETNS


# --- labels, node name, MTU ---------------------------------------------------------------------------------


def test_labels_of_another_orchestrator(bench: CNIBench) -> None:
    labels = [
        {"key": "rack", "value": "-my$val"},
        {"key": "//my rack/", "value": "7"},
        {"key": "projectcalico.org/namespace", "value": "prod"},
    ]
    bench.extra = {"args": {"org.apache.mesos": {"network_info": {"labels": {"labels": labels}}}}}
    answer(bench.call("ADD"))
    (record,) = bench.records()
    assert record.namespace == "prod"
    assert record.labels == {
        "rack": "my-val",
        "my-rack": "7",
        "projectcalico.org/namespace": "prod",
        "projectcalico.org/orchestrator": "cni",
    }
    assert bench.call("DEL").exit_code == 0
    assert bench.records() == []


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("-my-val", "my-val"),
        ("$my..val", "my.val"),
        ("m$y.val", "m-y.val"),
        ("//my/val/", "my.val"),
        ("some_val-with.lots*of^weird#characters", "some_val-with.lots-of-weird-characters"),
    ],
)
def test_sanitised_label_values(value: str, expected: str) -> None:
    assert sanitised(value) == expected


@pytest.mark.parametrize(
    ("content", "mtu", "expected"),
    [(None, 0, 0), ("1450", 0, 1450), ("1450\n", 0, 1450), ("1450", 1400, 1400)],
)
def test_mtu_of_configuration_beats_the_file(bench: CNIBench, content: str | None, mtu: int, expected: int) -> None:
    if content is not None:
        (bench.folder / "mtu").write_text(content)
    answer(bench.call("ADD", mtu=mtu))
    request = bench.dataplane.pairs[HOST_NAME].request
    assert request is not None and request.mtu == expected


@pytest.mark.parametrize("content", ["abc", "", "1450 1500", "9" * 19, "9" * 5000])
def test_garbage_in_the_mtu_file_is_an_error_that_names_it(bench: CNIBench, content: str) -> None:
    (bench.folder / "mtu").write_text(content)
    text = told(bench.call("ADD", mtu=1400))
    assert f'failed to read MTU file: strconv.Atoi: parsing "{content}"' in text and str(bench.folder / "mtu") in text


def test_a_demanded_mtu_file_that_is_missing_is_code_11(bench: CNIBench) -> None:
    assert failure(bench.call("ADD", mtu=1400, require_mtu_file=True))["code"] == 11


def test_node_name_from_the_file_without_its_newline(bench: CNIBench) -> None:
    (bench.folder / "nodename").write_text("worker-1\n")
    answer(bench.call("ADD", nodename_file=str(bench.folder / "nodename"), nodename_file_optional=False, hostname="x"))
    assert bench.records()[0].spec["node"] == "worker-1"


def test_a_missing_nodename_file(bench: CNIBench) -> None:
    file = str(bench.folder / "nodename")
    expected = (
        f"stat {file}: no such file or directory: check that the calico/node container is running and has mounted "
        "/var/lib/calico/"
    )
    for verb in ("ADD", "DEL"):
        assert failure(bench.call(verb, nodename_file=file, nodename_file_optional=False))["msg"] == expected


def test_nothing_secret_is_logged(bench: CNIBench) -> None:
    policy = {"k8s_auth_token": "SECRET", "k8s_client_key": "SECRET"}
    bench.dataplane.fail = raising("add", DataplaneError("no"))
    response = bench.call("ADD", policy={**policy, "type": "other"})
    assert "SECRET" not in bench.log() + response.stdout
    assert "has no effect on the datastore's client" in bench.log()


def test_a_defect_is_told_as_an_error_object(bench: CNIBench) -> None:
    bench.dataplane.fail = raising("add", ZeroDivisionError("division by zero"))
    found = failure(bench.call("ADD"))
    assert found["code"] == 999
    assert found["msg"] == "Calico CNI panicked during ADD: ZeroDivisionError: division by zero"
    assert "Traceback" not in json.dumps(found)
    assert "Traceback" in bench.log()
    assert_untouched(bench)


# --- outbound traffic (ruling 22) ---------------------------------------------------------------------------


def test_masquerading_is_off_unless_it_is_asked_for(bench: CNIBench) -> None:
    answer(bench.call("ADD"))
    assert bench.call("DEL").exit_code == 0
    assert bench.dataplane.masqueraded is None


def test_masquerading_follows_the_pools(bench: CNIBench) -> None:
    answer(bench.call("ADD", nat_outgoing=True))
    assert bench.dataplane.masqueraded == ["10.65.0.0/24", "fd00:65::/64"]
    for pool in ("pool4", "pool6"):
        bench.base.commit(Delete(bench.base.get(ResourceKey(IP_POOL, pool))))
    assert bench.call("DEL", nat_outgoing=True).exit_code == 0
    assert bench.dataplane.masqueraded == []


def test_masquerading_that_fails_fails_add_but_not_del(bench: CNIBench) -> None:
    bench.dataplane.fail = raising("masquerade", DataplaneError("nft is not installed"), times=2)
    assert "nft is not installed" in told(bench.call("ADD", nat_outgoing=True))
    assert_untouched(bench)
    assert bench.call("DEL", nat_outgoing=True).exit_code == 0
    assert "nft is not installed" in bench.log()
