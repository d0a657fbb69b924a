"""Public reports P09, P17, P25, P26, P28 and P29 on the verbs as values: what a call answers and what it leaves."""

from __future__ import annotations

import fcntl
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from calico_cni import timers
from calico_cni.dataplane.api import DataplaneError
from calico_cni.protocol import CALICO_IPAM
from calico_cni.stopping import Stop
from calico_ipam.datastore import api
from calico_ipam.datastore.api import Update
from calico_ipam.errors import StoreUnavailable
from calico_ipam.model.addresses import parse_network
from calico_ipam.model.keys import BlockKey, ResourceKey
from calico_ipam.model.resource import CLUSTER_INFORMATION, IP_POOL, NODE
from tests import faulty as faulty_store
from tests.clock import SOON, seconds_since
from tests.cni_bench import CNIBench, answer, failure, told
from tests.faulty import Fault, FaultyStore


@pytest.fixture
def bench(tmp_path: Path) -> CNIBench:
    return CNIBench(tmp_path).prepare()


HOLDER = """
import fcntl, sys, time
file = open(sys.argv[1], "a")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def holder(bench: CNIBench) -> Any:
    """Another process that holds the host-wide lock until it is killed."""
    path = bench.folder / "ipam.lock"
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


# --- P09: the lock and the clock -------------------------------------------------------------------------------


class Later:
    """The clock of deadlines, which a test moves on."""

    def __init__(self) -> None:
        self._ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self._ahead

    def sleep(self, seconds: float) -> None:
        self._ahead += seconds


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Later:
    clock = Later()
    monkeypatch.setattr(api, "time", clock)
    return clock


def test_p09_the_clock_of_an_allocation_starts_when_the_lock_is_held(bench: CNIBench, later: Later) -> None:
    """Waiting longer than the whole allocation may take does not use up its time."""
    file = (bench.folder / "ipam.lock").open("a")
    fcntl.flock(file, fcntl.LOCK_EX)

    class Waiting(Stop):
        def heed(self) -> None:
            if not file.closed:  # the lock was asked for in vain, and comes late
                later.sleep(2 * timers.ALLOCATION)
                file.close()

    bench.stop = Waiting()
    assert answer(bench.ipam("ADD"))["ips"]
    assert file.closed, "nobody waited for the lock"


def test_p09_a_lock_dies_with_its_holder(bench: CNIBench, holder: Any) -> None:
    class Killing(Stop):
        def heed(self) -> None:
            holder.kill()

    bench.stop = Killing()
    begin = time.monotonic()
    assert answer(bench.ipam("ADD"))["ips"]
    assert seconds_since(begin) < SOON
    assert holder.wait(SOON) == -signal.SIGKILL, "nobody waited for the lock"


def test_p09_a_lock_that_cannot_be_taken_is_a_warning(bench: CNIBench) -> None:
    (bench.folder / "in-the-way").write_text("a file where the folder should be")
    response = bench.ipam("ADD", ipam_lock_file=str(bench.folder / "in-the-way" / "ipam.lock"))
    assert answer(response)["ips"]
    assert "lock cannot be taken" in bench.log()


def test_p09_the_undo_has_time_of_its_own(bench: CNIBench, later: Later, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is silent until the deadline in the middle of an allocation; no handle without address remains."""
    monkeypatch.setattr(faulty_store, "time", later)
    faulty = FaultyStore(bench.base)
    bench.store = faulty
    faulty.inject(Fault("hang", operation=1, verb="commit"))
    told(bench.ipam("ADD"))
    assert faulty.struck()
    assert bench.addresses() == []
    assert bench.handles() == []


# --- P17: the MTU file -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "configured", "mtu"),
    [(None, None, 0), ("1450", None, 1450), ("1450\n", None, 1450), ("1450", 1400, 1400)],
)
def test_p17_netconf_beats_file_beats_default(
    bench: CNIBench, content: str | None, configured: int | None, mtu: int
) -> None:
    if content is not None:
        (bench.folder / "mtu").write_text(content)
    changes: dict[str, Any] = {"mtu": configured} if configured else {}
    answer(bench.call("ADD", **changes))
    (pair,) = bench.dataplane.pairs.values()
    assert pair.request is not None
    assert pair.request.mtu == mtu


@pytest.mark.parametrize("content", ["", "abc"])
def test_p17_garbage_in_the_file_is_an_error_that_names_it(bench: CNIBench, content: str) -> None:
    (bench.folder / "mtu").write_text(content)
    assert str(bench.folder / "mtu") in told(bench.call("ADD"))
    assert bench.addresses() == []


def test_p17_a_file_that_is_demanded_and_absent_is_try_again_later(bench: CNIBench) -> None:
    error = failure(bench.call("ADD", require_mtu_file=True))
    assert error["code"] == 11
    assert str(bench.folder / "mtu") in f"{error['msg']} {error.get('details')}"
    assert bench.addresses() == []


# --- P25: whatever goes wrong, one answer ----------------------------------------------------------------------


def test_p25_an_exception_in_add_is_an_error_object(bench: CNIBench) -> None:
    def explode(operation: str) -> None:
        if operation == "add":
            raise RuntimeError("boom")

    bench.dataplane.fail = explode
    response = bench.call("ADD")
    error = failure(response)
    assert error["code"] == 999
    assert "boom" in error["msg"]
    assert bench.addresses() == []


def test_p25_secrets_are_in_no_log(bench: CNIBench) -> None:
    policy = {"type": "", "k8s_auth_token": "SECRET"}
    for verb in ("ADD", "CHECK", "DEL"):
        bench.call(verb, policy=policy, log_level="debug", etcd_key_file="/nonexistent")
    assert "SECRET" not in bench.log()


# --- P26: a failed ADD costs nothing ---------------------------------------------------------------------------


@pytest.mark.parametrize("cause", ["no such netns", "route refused", "record refused"])
def test_p26_fifty_failed_adds_without_a_del_use_no_address(bench: CNIBench, cause: str) -> None:
    bench.put(IP_POOL, "small", {"cidr": "10.66.0.0/26", "blockSize": 26})
    if cause == "no such netns":
        bench.dataplane.gone.add("/run/netns/gone")
    elif cause == "route refused":

        def refuse(operation: str) -> None:
            if operation == "add":
                raise DataplaneError("route refused")

        bench.dataplane.fail = refuse
    for number in range(50):
        if cause == "record refused":
            bench.store = FaultyStore(
                bench.base,
                Fault(
                    "before",
                    operation=1,
                    verb="commit",
                    where=lambda key: isinstance(key, ResourceKey) and key.kind == "WorkloadEndpoint",
                    error=lambda: StoreUnavailable("500"),
                ),
            )
        response = bench.call("ADD", container=f"c{number:031d}", netns="/run/netns/gone")
        assert failure(response)
    assert bench.addresses() == []
    assert bench.handles() == []
    assert bench.records() == []


# --- P28: versions ---------------------------------------------------------------------------------------------

VERSIONS = ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")


@pytest.mark.parametrize("version", VERSIONS)
def test_p28_the_result_follows_the_asked_version(bench: CNIBench, version: str) -> None:
    result = answer(bench.call("ADD", cniVersion=version))
    assert result["cniVersion"] == version
    assert ("ip4" in result) == (version in ("0.1.0", "0.2.0"))
    other = VERSIONS[(VERSIONS.index(version) + 3) % len(VERSIONS)]
    response = bench.call("DEL", cniVersion=other)
    assert (response.exit_code, response.stdout) == (0, "")
    assert bench.addresses() == []


def test_p28_an_unknown_version_is_error_1(bench: CNIBench) -> None:
    assert failure(bench.call("ADD", cniVersion="9.9.9"))["code"] == 1
    assert bench.addresses() == []


def test_p28_status_says_whether_add_would_work(bench: CNIBench) -> None:
    assert bench.call("STATUS", cniVersion="1.1.0").stdout == ""
    bench.open_error = StoreUnavailable("the datastore does not answer")
    assert failure(bench.call("STATUS", cniVersion="1.1.0"))["code"] == 50
    bench.open_error = None
    entry = bench.base.get(ResourceKey(CLUSTER_INFORMATION, "default"))
    bench.base.commit(Update(entry, entry.value.with_spec({"datastoreReady": False})))
    assert failure(bench.call("STATUS", cniVersion="1.1.0"))["code"] == 50


def test_p28_gc_releases_only_what_is_not_on_the_list(bench: CNIBench) -> None:
    for number in range(3):
        answer(bench.ipam("ADD", container=f"alive{number}"))
        answer(bench.ipam("ADD", container=f"stale{number}"))
    answer(bench.ipam("ADD", container="stale-of-another", name="net2"))
    bench.put(NODE, "other", {})
    answer(bench.ipam("ADD", container="stale-elsewhere", nodename="other"))
    bench.clock.advance(600)
    listed = [{"containerID": f"alive{number}", "ifname": "eth0"} for number in range(3)]
    response = bench.ipam("GC", cniVersion="1.1.0", **{"cni.dev/valid-attachments": listed})
    assert (response.exit_code, response.stdout) == (0, "")
    assert sorted(bench.handles()) == sorted(
        [*(f"net1.alive{n}" for n in range(3)), "net2.stale-of-another", "net1.stale-elsewhere"]
    )


# --- P29: which pool -------------------------------------------------------------------------------------------


def test_p29_a_pool_is_found_by_name_and_by_any_spelling_of_its_cidr(bench: CNIBench) -> None:
    bench.put(IP_POOL, "odd", {"cidr": "C001:C0AF::12/120", "blockSize": 124})
    for number, wanted in enumerate(("odd", "c001:c0af::/120", "C001:C0AF::12/120", "c001:c0af:0::0/120")):
        ipam = {"type": "calico-ipam", "assign_ipv4": "false", "assign_ipv6": "true", "ipv6_pools": [wanted]}
        result = answer(bench.ipam("ADD", container=f"c{number}", ipam=ipam))
        assert result["ips"][0]["address"].startswith("c001:c0af::")


def test_p29_a_cidr_with_host_bits_is_compared_as_a_network(bench: CNIBench) -> None:
    bench.put(IP_POOL, "wide", {"cidr": "192.168.0.0/16", "blockSize": 26})
    for number, wanted in enumerate(("192.168.0.0/16", "192.168.5.0/16")):
        ipam = {"type": "calico-ipam", "ipv4_pools": [wanted]}
        assert answer(bench.ipam("ADD", container=f"c{number}", ipam=ipam))["ips"][0]["address"].startswith("192.168.")


def test_p29_not_found_disabled_and_not_for_this_node_are_told_apart(bench: CNIBench) -> None:
    bench.put(IP_POOL, "off", {"cidr": "10.70.0.0/24", "disabled": True})
    bench.put(IP_POOL, "tunnels", {"cidr": "10.71.0.0/24", "allowedUses": ["Tunnel"]})
    texts = {}
    for name, pools in (("missing", ["10.99.0.0/24"]), ("off", ["off"]), ("tunnels", ["tunnels"]), ("unknown", ["x"])):
        texts[name] = told(bench.ipam("ADD", ipam={"type": "calico-ipam", "ipv4_pools": pools}))
    assert "No pool has this CIDR" in texts["missing"]
    assert "off is disabled" in texts["off"]
    assert "no pools match the required use" in texts["tunnels"]
    assert 'parsing pool "x"' in texts["unknown"]
    assert len(set(texts.values())) == len(texts)
    for pool in ("pool4", "off", "tunnels"):
        entry = bench.base.get(ResourceKey(IP_POOL, pool))
        bench.base.commit(Update(entry, entry.value.with_spec({**entry.value.spec, "nodeSelector": "!all()"})))
    assert "selects nodes with !all()" in told(bench.ipam("ADD"))
    assert bench.addresses() == []


def test_p29_nested_pools_never_give_overlapping_blocks(bench: CNIBench) -> None:
    for size in (22, 24, 26):
        bench.put(IP_POOL, f"nested-{size}", {"cidr": f"10.192.228.0/{size}", "nodeSelector": "!all()"})
    for number, size in enumerate((26, 24, 22, 26, 22)):
        ipam = {"type": "calico-ipam", "ipv4_pools": [f"10.192.228.0/{size}"]}
        answer(bench.ipam("ADD", container=f"c{number}", ipam=ipam))  # asking overrides the node selector
    found = [a for a in bench.addresses() if a.startswith("10.192.")]
    assert len(set(found)) == 5


def test_p29_a_pool_smaller_than_its_block_is_a_clear_error(bench: CNIBench) -> None:
    for pool in ("pool4", "pool6"):
        entry = bench.base.get(ResourceKey(IP_POOL, pool))
        bench.base.commit(Update(entry, entry.value.with_spec({**entry.value.spec, "disabled": True})))
    bench.put(IP_POOL, "tiny", {"cidr": "10.80.0.0/28", "blockSize": 26})
    text = told(bench.ipam("ADD"))
    assert "Pool tiny (10.80.0.0/28) is smaller than one of its /26 blocks" in text
    assert bench.addresses() == []
    assert BlockKey(parse_network("10.80.0.0/26")) not in [e.key for e in bench.base.list(_blocks())]


def _blocks() -> Any:
    from calico_ipam.model.keys import Blocks

    return Blocks()


def test_p29_a_lost_configuration_is_valid_json_all_the_same(bench: CNIBench) -> None:
    response = bench.call("ADD", program=CALICO_IPAM, ipam={"type": "calico-ipam", "ipv4_pools": ["bad/99"]})
    assert json.loads(response.stdout)["code"] == 999
