"""Where our plugins differ from the recorded CNI cases on purpose (ruling 26).

An entry is keyed by a limit (an item of cni.md §15 or of ipam-library §23, a ruling, a public report) and a predicate
over the run, so that other recordings in the same format replay too. ``expect`` turns what was recorded into what ours
gives; where that cannot be written down, a field becomes ``ANY`` and ``check`` looks at the outcome instead. With
``resync`` the state after the run is put to what was recorded, so that the runs which follow start from the same point.

One rule needs no entry: the ``details`` of our error objects may hold advice where upstream's has none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from calico_cni import __version__, gojson
from tests.golden.cni_host import Outcome
from tests.golden.cni_match import ANY
from tests.golden.cni_replay import Moment, Step

OLD_LIST = '["0.1.0" "0.2.0" "0.3.0" "0.3.1" "0.4.0" "1.0.0"]'
NEW_LIST = OLD_LIST.replace('"1.0.0"]', '"1.0.0" "1.1.0"]')
NODENAME_MISSING = (
    "stat {}: no such file or directory: "
    "check that the calico/node container is running and has mounted /var/lib/calico/"
)
SAME_NETNS = "plugin's netns and netns from CNI_NETNS should not be the same"


def _always_right(_outcome: Outcome) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class CNIDeviation:
    """``ours`` says for people what ours does instead; ``check`` returns what is wrong with an outcome, or nothing."""

    limit: str
    ours: str
    where: Callable[[Moment], bool]
    expect: Callable[[Moment, Step], Step]
    check: Callable[[Outcome], str] = _always_right
    resync: bool = False


# --- ways to change an expectation --------------------------------------------------------------------------


def _error(code: int, message: str, details: str = "") -> dict[str, Any]:
    document: dict[str, Any] = {"code": code, "msg": message}
    if details:
        document["details"] = details
    return {"exit_code": 1, "stdout": document, "stdout_raw": gojson.dump_indented(document)}


def _nothing() -> dict[str, Any]:
    return {"exit_code": 0, "stdout": "", "stdout_raw": ""}


#: No link, no record, no address, no lock file: refused before anything was done.
UNTOUCHED: Mapping[str, Any] = {"datastore_changed": {}, "container": {}, "host": {}, "files": {}}
#: Everything was made; ``check`` says whether it was right.
SUCCESS: Mapping[str, Any] = {
    "exit_code": 0,
    "stdout": "",
    **dict.fromkeys(("stdout_raw", "datastore_changed", "container", "host", "files"), ANY),
}


def _refused_early(moment: Moment, step: Step) -> Step:
    return {**step, **UNTOUCHED}


def _networked(outcome: Outcome) -> str:
    """Tell what an ADD that must have worked lacks."""
    try:
        result = json.loads(outcome.stdout)
    except ValueError:
        return f"no result on stdout: {outcome.stdout!r}"
    if not result.get("ips") and not result.get("ip4"):
        return "the result has no address"
    changed = outcome.datastore_changed.items()
    records = [key for key, value in changed if value and ("/workloadendpoints/" in key or "/pods/" in key)]
    if len(records) != 1 or not outcome.container or not outcome.host:
        return "there is no endpoint record, or no link"
    return ""


def _later_code(moment: Moment, step: Step) -> Step:
    return {**step, **_error(11, moment.message, str(moment.answer.get("details", "")))}


def _any_text(code: int, *parts: str) -> tuple[Callable[[Moment, Step], Step], Callable[[Outcome], str]]:
    """Return an expectation of an error whose text holds ``parts``; everything else is as it was recorded."""

    def expect(_moment: Moment, step: Step) -> Step:
        return {**step, "exit_code": 1, "stdout": "", "stdout_raw": ANY}

    def check(outcome: Outcome) -> str:
        try:
            found = json.loads(outcome.stdout)
        except ValueError:
            return f"no error object on stdout: {outcome.stdout!r}"
        text = f"{found.get('msg')} {found.get('details', '')}"
        missing = [part for part in parts if part not in text]
        return f"code {found.get('code')}, {text!r} lacks {missing}" if missing or found.get("code") != code else ""

    return expect, check


# --- 15.1: specification 1.1.0, and verbs that upstream does not have --------------------------------------


def _version_listed(moment: Moment) -> bool:
    return '"1.0.0"]}' in str(moment.step["stdout_raw"])


def _longer_list(moment: Moment, step: Step) -> Step:
    return {**step, "stdout_raw": str(step["stdout_raw"]).replace('"1.0.0"]}', '"1.0.0","1.1.0"]}')}


def _unknown_version(moment: Moment) -> bool:
    return OLD_LIST in str(moment.answer.get("details", "")) and moment.netconf.get("cniVersion") != "1.1.0"


def _longer_error(moment: Moment, step: Step) -> Step:
    details = str(moment.answer["details"]).replace(OLD_LIST, NEW_LIST)
    return {**step, **_error(1, moment.message, details)}


def _at_newest(moment: Moment) -> bool:
    refused = moment.message.startswith(("incompatible CNI versions", "plugin version does not allow"))
    return refused and moment.netconf.get("cniVersion") == "1.1.0"


def _answer_at_newest(moment: Moment, step: Step) -> Step:
    """Return what the configuration lacks, where that is known; upstream's refusal says nothing about the rest."""
    netconf = moment.netconf
    if moment.verb == "CHECK" and netconf.get("prevResult") is None:
        return {**step, **_error(999, "the network configuration has no prevResult")}
    if moment.verb == "GC" and "cni.dev/valid-attachments" not in netconf:
        return {**step, **_nothing()}
    if step["argv0"] == "calico" and not {"nodename_file", "nodename_file_optional"} & netconf.keys():
        missing = NODENAME_MISSING.format("/var/lib/calico/nodename")
        return {**step, **_error(50 if moment.verb == "STATUS" else 999, missing)}
    state = dict.fromkeys(("exit_code", "stdout_raw", "datastore_changed", "container", "host", "files"), ANY)
    return {**step, "stdout": "", **state}


def _served_at_newest(outcome: Outcome) -> str:
    return "the version is refused" if '"code": 1,' in outcome.stdout else ""


def _stands(moment: Moment) -> bool:
    """Tell whether the container of a run is networked: its last ADD succeeded, and no DEL came since."""
    container = moment.step["env"].get("CNI_CONTAINERID")
    runs = [run for run in moment.earlier() if run.step["env"].get("CNI_CONTAINERID") == container]
    last = [run for run in runs if run.verb in ("ADD", "DEL")][-1:]
    return bool(last) and last[0].verb == "ADD" and last[0].step["exit_code"] == 0


def _check_stub(moment: Moment) -> bool:
    """Tell whether a run is upstream's CHECK, which looks at nothing; calico-ipam's does not even say so."""
    if moment.verb != "CHECK" or moment.step["exit_code"] != 0:
        return False
    silent = moment.step["stdout_raw"] == ""
    without = moment.netconf.get("prevResult") is None or not _stands(moment)
    return moment.step["stdout_raw"] == "OK\n" or (silent and without)


def _real_check(moment: Moment, step: Step) -> Step:
    previous = moment.netconf.get("prevResult")
    if previous is None:
        return {**step, **_error(999, "the network configuration has no prevResult")}
    if not previous.get("interfaces") and step["argv0"] == "calico":
        env = step["env"]
        return {**step, **_error(999, f"prevResult has no interface {env['CNI_IFNAME']} in sandbox {env['CNI_NETNS']}")}
    if _stands(moment):
        return {**step, **_nothing()}
    return {**step, "exit_code": 1, "stdout": "", "stdout_raw": ANY}


# --- 15.2: the sandbox is the plugin's own namespace -------------------------------------------------------


def _same_netns(moment: Moment) -> bool:
    env = moment.step["env"]
    checked = env.get("CNI_NETNS_OVERRIDE", "").lower() not in ("true", "1")
    return moment.verb in ("ADD", "DEL") and env.get("CNI_NETNS") == "{HOST_NETNS}" and checked


def _checked_first(moment: Moment, step: Step) -> Step:
    found: dict[str, Any] = {**step, **_error(8, SAME_NETNS), **UNTOUCHED}
    if any(other["op"] == "ip" for other in moment.case["steps"]):
        found["host"] = ANY  # links that the case made there: they must still stand
    return found


def _links_stand(outcome: Outcome) -> str:
    return "" if "samens1" in outcome.host or not outcome.host else "DEL removed a link of the host"


# --- 15.5, 15.17: what is refused, is refused before anything is made --------------------------------------


def _bad_name(moment: Moment) -> bool:
    return moment.verb == "ADD" and "(name must consist of lower case alphanumeric characters" in moment.message


def _no_dataplane(moment: Moment) -> bool:
    return moment.message.startswith(("invalid dataplane type", "GRPC dataplane socket not configured"))


def _grpc(moment: Moment) -> bool:
    return moment.message.startswith("rpc error: ") and "dataplane_options" in moment.netconf


def _no_grpc(moment: Moment, step: Step) -> Step:
    return {**step, **UNTOUCHED, **_error(999, "the grpc dataplane is not part of this release")}


# --- others -------------------------------------------------------------------------------------------------


def _ready_is_null(moment: Moment) -> bool:
    setup = moment.case["setup"]
    objects = [*setup.get("etcd", {}).values(), *setup.get("k8s", ())]
    return "nil pointer dereference" in moment.message and any(
        given.get("kind") == "ClusterInformation" and given.get("spec", {}).get("datastoreReady") is None
        for given in objects
    )


def _as_when_ready(moment: Moment, step: Step) -> Step:
    if moment.verb == "ADD":
        return {**step, **SUCCESS}
    changed: Any = ANY if moment.case["backend"] == "kubernetes" else {}
    return {**step, **_nothing(), "datastore_changed": changed, "files": {"{LOCK_FILE}": ""}}


def _ready_outcome(outcome: Outcome) -> str:
    return _networked(outcome) if outcome.stdout else ""


def _newline_in_name(moment: Moment) -> bool:
    return re.search(r"Node\(\s|Node\([^()]*\s\)", moment.message) is not None


def _stale_handle(moment: Moment) -> bool:
    """A handle that holds nothing, found by a DEL of its container."""
    if moment.verb != "DEL" or moment.step["datastore_changed"]:
        return False
    return _handle_key(moment) in moment.case["setup"].get("etcd", {})


def _handle_key(moment: Moment) -> str:
    return f"/calico/ipam/v2/handle/{moment.netconf.get('name')}.{moment.step['env'].get('CNI_CONTAINERID')}"


def _removed_handle(moment: Moment, step: Step) -> Step:
    return {**step, "datastore_changed": {_handle_key(moment): None}}


def _unreachable(moment: Moment) -> bool:
    elsewhere = moment.netconf.get("etcd_endpoints", "{ETCD_ENDPOINTS}") != "{ETCD_ENDPOINTS}"
    waits = moment.step["exit_code"] == "timeout" or "context deadline exceeded" in str(moment.answer.get("details"))
    gate = moment.message in ("context deadline exceeded", "timed out waiting for the condition")
    return (elsewhere and waits) or (gate and bool(moment.netconf.get("readiness_gates")))


_EXPECT_UNREACHABLE, _ = _any_text(11)


def _told_unreachable(outcome: Outcome) -> str:
    wanted = 100 if "data store connection failed" in outcome.stdout else 11
    return _any_text(wanted)[1](outcome)


def _files_free(expect: Callable[[Moment, Step], Step]) -> Callable[[Moment, Step], Step]:
    return lambda moment, step: {**expect(moment, step), "files": ANY}


_EXPECT_CERTIFICATE, _CHECK_CERTIFICATE = _any_text(999, "No such file or directory")
_EXPECT_KUBERNETES, _CHECK_KUBERNETES = _any_text(999, "kube")


DEVIATIONS: tuple[CNIDeviation, ...] = (
    CNIDeviation(
        "version",
        "the program knows its version; the recorded ones were built without",
        lambda moment: bool(moment.step.get("argv")) and moment.step["stdout_raw"] == "\n",
        lambda _moment, step: {**step, "stdout_raw": f"{__version__}\n"},
    ),
    CNIDeviation("15.1", "VERSION lists 1.1.0 too", _version_listed, _longer_list),
    CNIDeviation("15.1", "the list in the refusal of a version ends in 1.1.0", _unknown_version, _longer_error),
    CNIDeviation(
        "15.1",
        "configurations of 1.1.0 are served, GC and STATUS among them",
        _at_newest,
        _answer_at_newest,
        _served_at_newest,
        resync=True,
    ),
    CNIDeviation("15.1", "CHECK compares the sandbox with prevResult and prints nothing", _check_stub, _real_check),
    CNIDeviation(
        "15.2", "the host's own namespace is refused before anything is done", _same_netns, _checked_first, _links_stand
    ),
    CNIDeviation("15.5", "an unknown dataplane is refused before an address is taken", _no_dataplane, _refused_early),
    CNIDeviation("8.2", "the grpc dataplane, optional for us, is refused before an address is taken", _grpc, _no_grpc),
    CNIDeviation(
        "15.17",
        "names that the datastore refuses are refused before address and link are made",
        _bad_name,
        _refused_early,
    ),
    CNIDeviation(
        "ruling-12", "datastoreReady null means ready", _ready_is_null, _as_when_ready, _ready_outcome, resync=True
    ),
    CNIDeviation(
        "15.14",
        "blanks around the node name in the file are cut off",
        _newline_in_name,
        lambda _moment, step: {**step, **SUCCESS},
        _networked,
        resync=True,
    ),
    CNIDeviation("L10", "a handle that holds nothing any more is removed", _stale_handle, _removed_handle),
    CNIDeviation(
        "15.10",
        "a datastore that does not answer is told with code 11 within the deadline",
        _unreachable,
        _files_free(_EXPECT_UNREACHABLE),
        _told_unreachable,
    ),
    CNIDeviation(
        "P17",
        "a missing MTU file that is required is code 11: try again later",
        lambda moment: moment.message.startswith("failed to read MTU file: open {MTU_FILE}: no such file"),
        _later_code,
    ),
    CNIDeviation(
        "etcd-files",
        "a certificate that cannot be read is named with its setting",
        lambda moment: "could not initialize etcdv3 client: open " in moment.message,
        _EXPECT_CERTIFICATE,
        _CHECK_CERTIFICATE,
    ),
    CNIDeviation(
        "kubernetes",
        "the error names the kubeconfig, or the backend that there is not",
        lambda moment: moment.message.removeprefix("error creating calico client: ").startswith("stat {TMP}"),
        _EXPECT_KUBERNETES,
        _CHECK_KUBERNETES,
    ),
)
