"""Replays recorded operator commands (README of golden/cli): a store, the commands, what was seen.

A *voice* is how ipamctl is called: ``calicoctl`` is that name in a script, ``ipamctl`` ours in a script.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any, Protocol

from click.testing import CliRunner

from calico_ipam.ctl.main import cli
from tests.golden.cli_tokens import Known, changes, expand, same_document, same_text

VOICES = ("calicoctl", "ipamctl")

CASE_FIELDS = {"name", "about", "spec", "backend", "setup", "steps", "volatile"}
STEP_FIELDS = {
    *("before", "argv", "env", "stdin", "files_in", "stdout", "stderr", "exit_code", "seconds", "files_out"),
    "datastore_changed",
}


class Bench(Protocol):
    """A datastore that cases are replayed on."""

    name: str
    lacks: frozenset[str]

    def write(self, entry: Mapping[str, Any]) -> None:
        """Carry out an entry of ``setup`` or ``before``."""

    def state(self) -> dict[str, Any]: ...

    def known(self, token: str) -> str | None:
        """Return what a token stands for now."""

    def environment(self, recorded: Mapping[str, str]) -> dict[str, str]: ...

    def restore(self, state: Mapping[str, Any], changed: Mapping[str, Any]) -> None:
        """Leave the store as upstream left it, after a step that ours does otherwise."""


@dataclass(frozen=True)
class Result:
    """What a command of ours did."""

    stdout: str
    stderr: str
    exit_code: int
    changed: Mapping[str, Any]
    files: Mapping[str, Any]


@dataclass
class Step:
    """One recorded command and what is known when it ran."""

    case: Mapping[str, Any]
    recorded: Mapping[str, Any]
    voice: str
    number: int
    where: str
    known: Known = field(default=lambda _: None)
    before: Mapping[str, Any] = field(default_factory=dict)  #: what was stored
    lacks: frozenset[str] = frozenset()  #: kinds that the bench has no place for
    held: bool = False  #: somebody holds the address that is asked for, wherever its block is

    @property
    def argv(self) -> list[str]:
        return list(self.recorded["argv"])

    @property
    def stdout(self) -> str:
        return str(self.recorded["stdout"])

    @property
    def stderr(self) -> str:
        return str(self.recorded["stderr"])

    @property
    def command(self) -> str:
        """The command without its options, for counting."""
        words = [word for word in self.argv if not word.startswith("-")]
        return " ".join(words[: 3 if words[:1] == ["datastore"] else 2 if words[:1] == ["ipam"] else 1]) or "(none)"


def load(path: Path) -> dict[str, Any]:
    """Read a case; a field that nobody knows fails."""
    case: dict[str, Any] = json.loads(path.read_text())
    steps = case.get("steps") or [{k: v for k, v in case.items() if k not in CASE_FIELDS}]
    unknown = set(case) - CASE_FIELDS - (set() if "steps" in case else STEP_FIELDS)
    for step in steps:
        unknown |= set(step) - STEP_FIELDS
    assert not unknown, f"{path.name} has fields that the replay does not know: {sorted(unknown)}"
    return {**case, "steps": steps}


def recorded_steps(case: Mapping[str, Any], voice: str) -> Iterator[Step]:
    """Yield the steps of a case as they were recorded, each with what was stored then; nothing is run."""
    stored: dict[str, Any] = {}

    def write(entry: Mapping[str, Any]) -> None:
        if "key" in entry:
            stored[entry["key"]] = entry["value"]
        else:
            thing = entry["k8s"]
            stored[f"{thing['kind']}/{thing['metadata']['name']}"] = thing

    for entry in case["setup"]:
        write(entry)
    for number, recorded in enumerate(case["steps"]):
        for entry in recorded.get("before") or ():
            write(entry)
        step = Step(case, recorded, voice, number, f"{case['name']}[{voice}] step {number}")
        step.before = {key: value for key, value in stored.items() if value is not None}
        step.held = is_held(step.before, wanted_address(step.argv))
        yield step
        stored.update(recorded.get("datastore_changed") or {})


def run(case: Mapping[str, Any], bench: Bench, voice: str, folder: Path) -> Iterator[tuple[Step, Result]]:
    """Set a case up and yield each step with what ours did; the receiver may restore the store in between."""
    for entry in case["setup"]:
        bench.write(entry)
    for number, recorded in enumerate(case["steps"]):
        for entry in recorded.get("before") or ():
            bench.write(entry)
        step = Step(
            case, recorded, voice, number, f"{case['name']}[{voice}] step {number}: {' '.join(recorded['argv'])}"
        )
        now = _knowing(bench, folder)
        for name, content in (recorded.get("files_in") or {}).items():
            text = content if isinstance(content, str) else json.dumps(content)
            (folder / name).write_text(expand(text, now))
        before = bench.state()
        step.before = before
        step.lacks = bench.lacks
        step.held = is_held(before, wanted_address(step.argv))
        seen: dict[str, set[str]] = {}
        ours = _call(step, bench, now, folder, before)
        after = _knowing(bench, folder)

        def known(
            token: str, now: Known = now, after: Known = after, seen: dict[str, set[str]] = seen
        ) -> set[str] | None:
            if token not in seen:
                seen[token] = (now(token) or set()) | (after(token) or set())
            return seen[token] or None

        # What a token stood for is asked now: the store goes on changing.
        for token in set(re.findall(r"\{\{([^{}]+)\}\}", json.dumps(recorded, ensure_ascii=False))):
            seen[token] = (ours.tokens.get(token) or set()) | (after(token) or set())
        step.known = known
        yield step, ours.result


def wanted_address(argv: Iterable[str]) -> str:
    """Return the address that a command asks for; empty when none."""
    words = list(argv)
    for position, word in enumerate(words):
        if word.startswith("--ip="):
            return word[5:]
        if word == "--ip" and position + 1 < len(words):
            return words[position + 1]
    return ""


def is_held(state: Mapping[str, Any], text: str) -> bool:
    """Tell from the stored documents alone whether somebody holds an address."""
    try:
        address = ip_address(text)
    except ValueError:
        return False
    for path, document in state.items():
        spec = document.get("spec", document) if isinstance(document, dict) else {}
        if ("/ipam/v2/assignment/" in path or path.startswith("IPAMBlock/")) and "cidr" in spec:
            network = ip_network(spec["cidr"])
            if address in network:
                index = spec["allocations"][int(address) - int(network.network_address)]
                return index is not None and not spec["attributes"][index].get("releasedAt")
    return False


@dataclass
class _Called:
    result: Result
    tokens: dict[str, set[str]]


def _knowing(bench: Bench, folder: Path) -> Known:
    def known(token: str) -> set[str] | None:
        if token == "cwd":
            return {str(folder)}
        found = bench.known(token)
        return None if found is None else {found}

    return known


def _call(step: Step, bench: Bench, now: Known, folder: Path, before: Mapping[str, Any]) -> _Called:
    recorded = step.recorded
    tokens = {
        token: found
        for token in set(re.findall(r"\{\{([^{}]+)\}\}", json.dumps(recorded, ensure_ascii=False)))
        if (found := now(token))
    }
    argv = [expand(word, now) for word in recorded["argv"]]
    wanted = {key: expand(value, now) for key, value in (recorded.get("env") or {}).items()}
    cleared: dict[str, str | None] = dict.fromkeys(os.environ)
    kept = {key: os.environ.get(key) for key in ("PATH", "LANG", "LC_ALL")}
    env = {**cleared, **kept, "HOME": str(folder), **bench.environment(wanted)}
    here = Path.cwd()
    os.chdir(folder)
    try:
        stdin = recorded.get("stdin")
        called = CliRunner().invoke(
            cli, argv, prog_name=step.voice, env=env, input=None if stdin is None else expand(stdin, now)
        )
    finally:
        os.chdir(here)
    files = {name: _file(folder / name) for name in recorded.get("files_out") or ()}
    result = Result(called.stdout, called.stderr, called.exit_code, changes(before, bench.state()), files)
    return _Called(result, tokens)


def _file(path: Path) -> Any:
    try:
        text = path.read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text


# --- comparing ----------------------------------------------------------------------------------------------


def differences(step: Step, result: Result) -> list[str]:
    """Return in what ours differs from the recording; nothing when it is the same."""
    found = []
    recorded = step.recorded
    if is_help(step):
        if (recorded["exit_code"], bool(recorded["stdout"])) != (result.exit_code, bool(result.stdout)):
            found.append(f"help: exit code {result.exit_code}, {result.stdout!r} {result.stderr!r}")
        return found
    if recorded["exit_code"] != result.exit_code:
        found.append(f"exit code {result.exit_code}, recorded {recorded['exit_code']}")
    for channel in ("stdout", "stderr"):
        texts = [in_order(text, step) for text in (recorded[channel], getattr(result, channel))]
        if channel == "stderr" and step.voice == "ipamctl":  # what calicoctl keeps to itself
            texts[1] = re.sub(r"^warning: .*\n", "", texts[1], flags=re.MULTILINE)
        if not same_text(texts[0], texts[1], step.known):
            found.append(f"{channel}:\n{texts[1]}\n--- recorded ---\n{texts[0]}")
    found += changed_differences(step, result)
    for name, content in (recorded.get("files_out") or {}).items():
        pair = [sorted_report(content), sorted_report(result.files[name])]
        if step.voice == "ipamctl":  # a report of ours says so, and says more (cli §17.2)
            pair = [without(each, ("version", "problems", "details")) for each in pair]
        if not same_document(pair[0], pair[1], step.known, ordered=False):
            found.append(f"file {name}:\n{result.files[name]}\n--- recorded ---\n{content}")
    return found


def changed_differences(step: Step, result: Result) -> list[str]:
    """Return which changes of the store differ."""
    recorded = {
        key: plainly(value)
        for key, value in (step.recorded.get("datastore_changed") or {}).items()
        if key.partition("/")[0] not in step.lacks
    }
    changed = {key: plainly(value) for key, value in result.changed.items()}
    return [
        f"{key}: {json.dumps(changed.get(key, '(unchanged)'))}\n"
        f"--- recorded: {json.dumps(recorded.get(key, '(unchanged)'))}"
        for key in sorted(recorded.keys() | changed.keys())
        if not (key in recorded and key in changed and same_document(recorded[key], changed[key], step.known))
    ]


_NOTE = "projectcalico.org/metadata"


def plainly(value: Any) -> Any:
    """Return a custom resource without the copies of the API server's own metadata that upstream keeps in it: the time
    of its creation, its generation, and who wrote which field."""
    notes = value.get("metadata", {}).get("annotations", {}) if isinstance(value, dict) else {}
    if _NOTE not in notes:
        return value
    kept = without(json.loads(notes[_NOTE]), ("creationTimestamp", "generation", "managedFields"))
    return {**value, "metadata": {**value["metadata"], "annotations": {**notes, _NOTE: json.dumps(kept)}}}


def is_help(step: Step) -> bool:
    """Usage and help are texts of our own: only channel and exit code count."""
    return "\nUsage:\n" in step.stdout


#: Of a list of the Kubernetes API: the server writes things of its own meanwhile, and the revision goes on.
_LIST_REVISION = re.compile(
    r"(List\nmetadata:\n  resourceVersion: "
    r'|List",\n  "apiVersion": "[^"]*",\n  "metadata": \{\n    "resourceVersion": )'
    r'"(?:\d+|\{\{rev:[^"]*\}\})"'
)


def in_order(text: str, step: Step) -> str:
    """Return an output with what stands in random order put in order (README, Order)."""
    if step.argv[:2] == ["ipam", "check"]:
        return "\n".join(_sections(text.split("\n")))
    if step.argv[:2] == ["ipam", "release"]:
        return re.sub(r"^[.x]+$", lambda match: "".join(sorted(match[0])), text, flags=re.MULTILINE)
    if step.case["backend"] == "kubernetes" and step.argv[:1] == ["get"]:
        text = _LIST_REVISION.sub(r'\1"some"', text)
    if "valid values are: " in text:
        head, _, names = text.partition("valid values are: ")
        return head + "valid values are: " + ", ".join(sorted(names.strip().split(", ")))
    return text


def _sections(lines: list[str]) -> Iterator[str]:
    indented: list[str] = []
    for line in lines:
        if line.startswith("  "):
            indented.append(line)
            continue
        yield from sorted(indented)
        indented = []
        yield line
    yield from sorted(indented)


def without(content: Any, names: Iterable[str]) -> Any:
    """Return a document without some of its members."""
    return {k: v for k, v in content.items() if k not in names} if isinstance(content, dict) else content


def sorted_report(content: Any) -> Any:
    if isinstance(content, dict) and isinstance(content.get("leakedHandles"), list):
        return {**content, "leakedHandles": sorted(content["leakedHandles"], key=lambda each: each["ID"])}
    return content
