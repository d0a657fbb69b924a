"""Replays one recorded CNI case on the embedded store and compares every run of a program (rulings 25, 26).

The store's settings of a network configuration are rewritten, and nothing else. Differences that are meant stand in
:mod:`tests.golden.cni_exceptions`.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from calico_cni import gojson
from tests.clock import SOON
from tests.golden.cni_host import CaseHost, Outcome, case_host, wait
from tests.golden.cni_match import ANY, Matcher
from tests.kube_tools import KubeServer

#: Everything the format knows; whatever else turns up fails.
CASE_KEYS = {"name", "about", "spec", "backend", "binary", "setup", "steps", "volatile"}
SETUP_KEYS = {"etcd", "k8s", "files", "netns"}
BACKENDS = {"none", "etcdv3", "kubernetes"}
STEP_KEYS: Mapping[str, set[str]] = {
    "etcd_put": {"key", "value"},
    "etcd_del": {"key"},
    "k8s_create": {"object"},
    "k8s_patch": {"path", "body"},
    "k8s_delete": {"path", "body"},
    "netns_add": {"netns"},
    "netns_del": {"netns"},
    "ip": {"args", "netns"},
    "file": {"path", "content"},
    "background_file": {"path", "content", "delay_s"},
    "sleep": {"seconds", "delay_s"},
    "exec": {
        *("argv0", "argv", "env", "stdin", "stdin_raw", "exit_code", "stdout", "stdout_raw", "stderr_contains"),
        *("datastore_changed", "etcd_requests", "k8s_requests", "container", "host", "files", "duration_s"),
    },
}

#: Seconds that the kernel may take to give a link its link-local address.
SETTLE = SOON

Step = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Moment:
    """A run of a program within its case."""

    case: Mapping[str, Any]
    index: int

    @property
    def step(self) -> Step:
        found: Step = self.case["steps"][self.index]
        return found

    @property
    def verb(self) -> str:
        return str(self.step["env"].get("CNI_COMMAND", ""))

    @property
    def netconf(self) -> Mapping[str, Any]:
        """The configuration on stdin, empty when it is no object."""
        found = self.step.get("stdin")
        return found if isinstance(found, Mapping) else {}

    @property
    def answer(self) -> Mapping[str, Any]:
        """The recorded answer, empty when it is no object."""
        found = self.step["stdout"]
        return found if isinstance(found, Mapping) else {}

    @property
    def message(self) -> str:
        return str(self.answer.get("msg", ""))

    def earlier(self) -> list[Moment]:
        """Return the runs before this one."""
        return [Moment(self.case, i) for i in range(self.index) if self.case["steps"][i]["op"] == "exec"]


class Deviation(Protocol):
    """An expected difference; ``expect`` turns what was recorded into what ours gives."""

    @property
    def limit(self) -> str: ...

    @property
    def where(self) -> Callable[[Moment], bool]: ...

    @property
    def expect(self) -> Callable[[Moment, Step], Step]: ...

    @property
    def check(self) -> Callable[[Outcome], str]: ...

    @property
    def resync(self) -> bool: ...


@dataclass
class Report:
    """What a replay found."""

    steps: int = 0
    problems: list[str] = field(default_factory=list)
    excepted: list[str] = field(default_factory=list)


def check_format(case: Mapping[str, Any]) -> None:
    """Raise AssertionError for anything that this replay does not know."""
    name = case.get("name")
    assert set(case) <= CASE_KEYS, f"{name}: unknown {set(case) - CASE_KEYS}"
    assert set(case["setup"]) <= SETUP_KEYS, f"{name}: unknown set-up {set(case['setup']) - SETUP_KEYS}"
    assert case["backend"] in BACKENDS, f"{name}: unknown backend {case['backend']}"
    for index, step in enumerate(case["steps"]):
        known = STEP_KEYS.get(step["op"])
        assert known is not None, f"{name} step {index}: unknown operation {step['op']}"
        assert set(step) - {"op"} <= known, f"{name} step {index}: unknown {set(step) - known - {'op'}}"


def needs_kubernetes(case: Mapping[str, Any]) -> bool:
    """Tell whether a case has pods in a Kubernetes API, be it the datastore too or not."""
    return case["backend"] == "kubernetes" or bool(case["setup"].get("k8s"))


def replay(case: Mapping[str, Any], deviations: Sequence[Deviation], kube: KubeServer | None = None) -> Report:
    """Run a case from its beginning and compare each run of a program. ``kube``: for cases that need it."""
    report = Report()
    with case_host(case["setup"], kube) as host:
        matcher = Matcher(host.inputs)
        _set_up(host, matcher, case)
        for index, step in enumerate(case["steps"]):
            if step["op"] != "exec":
                _operate(host, matcher, step)
                continue
            report.steps += 1
            matcher = _run(host, matcher, Moment(case, index), deviations, report)
    return report


def _set_up(host: CaseHost, matcher: Matcher, case: Mapping[str, Any]) -> None:
    for key, value in case["setup"].get("etcd", {}).items():
        host.bench.put_text(key, json.dumps(value))
    for given in case["setup"].get("k8s", ()):
        _create(host, matcher, given)
    for path, content in case["setup"].get("files", {}).items():
        host.give_file(matcher.filled(path), matcher.filled(content))
    if any("{ETCD_ENDPOINTS}/" in gate for step in case["steps"] for gate in _gates(step)):
        host.answer_http()


def _gates(step: Step) -> list[str]:
    netconf = step.get("stdin")
    found = netconf.get("readiness_gates", []) if isinstance(netconf, Mapping) else []
    return [str(gate) for gate in found]


def _operate(host: CaseHost, matcher: Matcher, step: Step) -> None:
    given = matcher.filled({key: value for key, value in step.items() if key not in ("op", "netns")})
    match step["op"]:
        case "etcd_put":
            host.bench.put_text(given["key"], json.dumps(given["value"]))
        case "etcd_del":
            host.bench.delete(given["key"])
        case "netns_add":
            host.add_pod(step["netns"])
        case "netns_del":
            host.remove_pod(step["netns"])
        case "ip":
            host.ip(step["args"], step.get("netns"))
        case "file":
            host.write_file(given["path"], given["content"])
        case "background_file":
            host.write_file_later(given["path"], given["content"], given["delay_s"])
        case "sleep":
            wait(given.get("seconds", given.get("delay_s", 0)))
        case "k8s_create":
            _create(host, matcher, step["object"])
        case "k8s_patch" if host.kube:
            host.kube.patch(given["path"], given["body"])
        case "k8s_delete" if host.kube:
            host.kube.delete(given["path"], given.get("body"))
        case other:
            raise AssertionError(f"operation {other} needs a Kubernetes API")


def _create(host: CaseHost, matcher: Matcher, given: Mapping[str, Any]) -> None:
    """Create an object of Kubernetes; its UID has a placeholder of its own from now on."""
    assert host.kube is not None, "the case needs a Kubernetes API"
    host.kube.create(matcher.filled(given))
    matcher.inputs |= host.kube.inputs


def _stdin(host: CaseHost, matcher: Matcher, step: Step) -> bytes:
    """Return what a program reads: the recorded text, with the embedded store in the place of etcd."""
    if "stdin_raw" in step:
        return str(matcher.filled(step["stdin_raw"])).encode()
    recorded = step.get("stdin")
    if recorded is None:
        return b""
    netconf = matcher.filled(recorded)
    if isinstance(recorded, Mapping) and recorded.get("etcd_endpoints") == "{ETCD_ENDPOINTS}":
        netconf = {key: value for key, value in netconf.items() if key != "etcd_endpoints"}
        netconf["datastore_type"] = "sqlite"
        netconf["sqlite_path"] = str(host.folder / "store" / "ipam.db")
    return json.dumps(netconf).encode()


def _run(host: CaseHost, matcher: Matcher, moment: Moment, deviations: Sequence[Deviation], report: Report) -> Matcher:
    step = moment.step
    environ = {name: str(value) for name, value in matcher.filled(step["env"]).items()}
    stdin = _stdin(host, matcher, step)
    before = host.bench.texts()
    outcome = host.run(step["argv0"], step.get("argv", ()), environ, stdin)
    applying = [deviation for deviation in deviations if deviation.where(moment)]
    expected = step
    for deviation in applying:
        expected = deviation.expect(moment, expected)
    where = f"{moment.case['name']} step {moment.index} ({step['argv0']} {moment.verb})"
    lines, after = _settled(host, matcher, expected, outcome)
    lines += [wrong for deviation in applying if (wrong := deviation.check(outcome))]
    if lines:
        report.problems += [f"{where}: {line}" for line in lines]
        report.problems.append(f"{where}: stderr was {outcome.stderr!r}")
    for deviation in applying:
        report.excepted.append(deviation.limit)
        without = step
        for other in applying:
            without = without if other is deviation else other.expect(moment, without)
        if not _differences(copy.deepcopy(matcher), without, outcome):
            report.problems.append(f"{where}: the exception {deviation.limit} is not needed any more")
        if deviation.resync:
            _back(host, step, environ, stdin, before)
    return after


def _back(host: CaseHost, step: Step, environ: Mapping[str, str], stdin: bytes, before: Mapping[str, str]) -> None:
    """Take back what ours made in a run that changed nothing in the recording."""
    host.run(step["argv0"], (), {**environ, "CNI_COMMAND": "DEL"}, stdin)
    for key in host.bench.texts().keys() - before.keys():
        host.bench.delete(key)
    for key, text in before.items():
        if host.bench.texts().get(key) != text:
            host.bench.put_text(key, text)
    host.forget_files()


def _settled(host: CaseHost, matcher: Matcher, expected: Step, outcome: Outcome) -> tuple[list[str], Matcher]:
    """Compare until the kernel has done what it does behind everybody's back, for a few seconds."""
    deadline = time.monotonic() + SETTLE
    while True:
        trial = copy.deepcopy(matcher)
        lines = _differences(trial, expected, outcome)
        of_links = [line for line in lines if line.startswith(("container", "host"))]
        if not lines or len(of_links) < len(lines) or time.monotonic() > deadline:
            return lines, trial
        time.sleep(0.05)
        host.look_again(outcome)


def _differences(matcher: Matcher, expected: Step, outcome: Outcome) -> list[str]:
    lines = matcher.differences(expected["exit_code"], outcome.exit_code, "exit_code")
    lines += _answer_differences(matcher, expected, outcome.stdout)
    for text in expected.get("stderr_contains", ()):
        if matcher.filled(text) not in outcome.stderr:
            lines.append(f"stderr lacks {text!r}")
    # Links first: they bind the hardware addresses in the order in which the recording counted them.
    for name, found in (("container", outcome.container), ("host", outcome.host)):
        lines += matcher.differences(expected.get(name, {}), found, name)
    lines += matcher.differences(expected["datastore_changed"], outcome.datastore_changed, "datastore_changed")
    return lines + _file_differences(matcher, expected.get("files", {}), outcome.files)


def _answer_differences(matcher: Matcher, expected: Step, stdout: str) -> list[str]:
    """Compare the exact text; an error object of ours may say more in its details where upstream has none."""
    recorded = expected["stdout_raw"]
    if recorded is ANY:
        return []
    wanted = expected["stdout"]
    if isinstance(wanted, Mapping) and "code" in wanted and "details" not in wanted:
        try:
            found = json.loads(stdout)
        except ValueError:
            found = None
        if isinstance(found, dict) and found.pop("details", None):
            stdout = gojson.dump_indented(found)
    return matcher.differences(recorded, stdout, "stdout")


def _file_differences(matcher: Matcher, expected: Any, found: Mapping[str, str]) -> list[str]:
    """Only the start of each file was recorded."""
    if expected is ANY:
        return []
    cut = {}
    for name, content in found.items():
        recorded = next((text for key, text in expected.items() if matcher.filled(key) == name), None)
        start = recorded if isinstance(recorded, str) and "{" not in recorded else ""
        cut[name] = start if start and content.startswith(start) else content
    return matcher.differences(expected, cut, "files")
