"""Recorded library scenarios as typed values (the recordings' README §1).

Loading is strict: a field, operation argument or hook that is not known here is an error. A recording that says more
than the replay understands must never pass by being half ignored.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calico_ipam.errors import IPAMError
from calico_ipam.model.timestamps import parse_time
from tests.golden import library_kube

State = dict[str, Any]  #: key of a document -> its parsed value, as README §1.1 writes both

SCENARIO_FIELDS = {"name", "about", "spec", "backend", "volatile", "setup", "steps", "final", "raw"}
STEP_FIELDS = {"op", "args", "now", "result", "error", "changed", "touched", "writes", "panic", "hooks"}
ERROR_FIELDS = {"type", "text", "identifier", "is", "cause"}
HOOK_FIELDS = {"when", "call", "kind", "nth", "key", "do"}
HOOK_CALLS = {"get", "list", "create", "update", "apply", "delete"}
HOOK_KINDS = {"block", "affinity", "handle", "config", "ipam_host", "node", "ippool", "ipreservation"}
ACTION_FIELDS = {"bump", "delete", "put", "error"}
ACTION_ERRORS = {None, "datastore", "conflict", "does_not_exist"}


class UnknownRecording(AssertionError):
    """A recording holds something that this replay does not understand."""


@dataclass(frozen=True)
class Hook:
    """What somebody else does in the middle of an operation (README §1.7)."""

    when: str
    call: str
    kind: str
    nth: int
    key: str | None
    bump: tuple[str, ...] = ()
    delete: tuple[str, ...] = ()
    put: tuple[Mapping[str, Any], ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class Step:
    op: str
    args: Mapping[str, Any]
    now: int  #: Unix nanoseconds
    changed: Mapping[str, Any]
    result: Any = None
    error: Mapping[str, Any] | None = None
    panic: str | None = None
    hooks: tuple[Hook, ...] = ()


@dataclass(frozen=True)
class Scenario:
    """One file. ``name`` is the path below the folder of recordings, such as ``etcd/alloc-first-address``."""

    name: str
    spec: tuple[str, ...]
    backend: str
    setup: tuple[Mapping[str, Any], ...]
    steps: tuple[Step, ...]
    final: State
    raw: Mapping[str, str] | None
    volatile: tuple[tuple[str | int, ...], ...] = ()

    @property
    def family(self) -> str:
        """The word its name begins with: ``alloc``, ``race`` …"""
        return self.name.rpartition("/")[2].partition("-")[0]

    def is_volatile(self, *path: str | int) -> bool:
        """Tell whether two recordings of this file differed at ``path``, or at something that holds it."""
        return any(path[: len(entry)] == entry for entry in self.volatile)

    def states(self) -> Iterator[tuple[Step, State, State]]:
        """Yield each step with everything that upstream had stored before and after it."""
        state = start_state(self.setup)
        for step in self.steps:
            after = dict(state)
            for key, value in step.changed.items():
                if value is None:
                    after.pop(key, None)
                else:
                    after[key] = value
            yield step, state, after
            state = after


@dataclass
class Moment:
    """A step and the recorded state around it; what the predicates of exceptions look at."""

    scenario: Scenario
    index: int
    step: Step
    before: State
    after: State


def moments(scenario: Scenario) -> Iterator[Moment]:
    for index, (step, before, after) in enumerate(scenario.states()):
        yield Moment(scenario, index, step, before, after)


@dataclass
class Expectation:
    """What must be true after a step. Exceptions change it; documents in ``after`` are replaced, never changed."""

    result: Any
    error: Mapping[str, Any] | IPAMError | None
    after: State
    hooks_that_may_miss: set[int] = field(default_factory=set)

    @classmethod
    def recorded(cls, moment: Moment) -> Expectation:
        return cls(copy.deepcopy(moment.step.result), moment.step.error, dict(moment.after))


def start_state(setup: tuple[Mapping[str, Any], ...]) -> State:
    """Return what ``setup`` leaves stored (etcd form)."""
    state: State = {}
    for write in setup:
        if "object" in write:
            state |= library_kube.shown(write["object"])
        elif "value" in write:
            state[write["key"]] = parsed(exact_text(write["value"]))
        else:
            state.pop(write["key"], None)
    return state


def exact_text(value: Any) -> str:
    """Return the text that a write stores: a string as it is, anything else as compact JSON (README §1.2)."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def parsed(text: str) -> Any:
    """Return stored text as README §1.1 shows it: parsed, or as text when it is no JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def find_scenarios(folder: Path, pattern: str) -> list[Path]:
    """Return the files of a folder by listing it. Raises UnknownRecording when there is none."""
    found = sorted(folder.glob(pattern))
    if not found:
        raise UnknownRecording(f"{folder} holds no file {pattern}: nothing would be replayed")
    return found


def load_scenario(path: Path, name: str) -> Scenario:
    """Return the scenario in a file. Raises UnknownRecording for anything that is not understood."""
    document = json.loads(path.read_text(encoding="utf-8"))
    _only(document, SCENARIO_FIELDS, name)
    if document["backend"] not in ("etcdv3", "kubernetes"):
        raise UnknownRecording(f"{name}: backend {document['backend']!r}")
    for write in document["setup"]:
        _only(write, {"key", "value", "object"}, f"{name}: setup")
    if document["backend"] == "kubernetes":
        document = converted(document)
    return Scenario(
        name=name,
        spec=tuple(document["spec"]),
        backend=document["backend"],
        setup=tuple(document["setup"]),
        steps=tuple(_step(step, f"{name}: step {i}") for i, step in enumerate(document["steps"])),
        final=document["final"],
        raw=document.get("raw"),
        volatile=tuple(tuple(entry) for entry in document.get("volatile", ())),
    )


def converted(document: dict[str, Any]) -> dict[str, Any]:
    """Return a recording of custom resources whose states are in the form of etcd's documents."""
    places = {_place(write["object"]): library_kube.key_of(write["object"]) for write in document["setup"]}
    steps = []
    for step in document["steps"]:
        changed: dict[str, Any] = {}
        for place, resource in step["changed"].items():
            before = places.pop(place, None)
            if resource is not None:
                places[place] = library_kube.key_of(resource)
                changed |= library_kube.shown(resource)
            if before is not None and before not in changed:
                # It is gone, or its content says another key now.
                changed |= {before: None, library_kube.REST + before: None}
        steps.append({**step, "changed": changed})
    return {**document, "steps": steps, "final": library_kube.state_of(document["final"].values())}


def _place(resource: Mapping[str, Any]) -> str:
    return f"{library_kube.plural_of(resource)}/{resource['metadata']['name']}"


def _step(document: Mapping[str, Any], where: str) -> Step:
    _only(document, STEP_FIELDS, where)
    error = document.get("error")
    while error is not None:
        _only(error, ERROR_FIELDS, f"{where}: error")
        error = error.get("cause")
    return Step(
        op=document["op"],
        args=document["args"],
        now=parse_time(document["now"]),
        changed=document["changed"],
        result=document.get("result"),
        error=document.get("error"),
        panic=document.get("panic"),
        hooks=tuple(_hook(hook, where) for hook in document.get("hooks", ())),
    )


def _hook(document: Mapping[str, Any], where: str) -> Hook:
    _only(document, HOOK_FIELDS, f"{where}: hook")
    do = document["do"]
    _only(do, ACTION_FIELDS, f"{where}: hook action")
    wrong = (
        document["when"] not in ("before", "after")
        or document["call"] not in HOOK_CALLS
        or document["kind"] not in HOOK_KINDS
        or do.get("error") not in ACTION_ERRORS
    )
    if wrong:
        raise UnknownRecording(f"{where}: hook {document}")
    return Hook(
        when=document["when"],
        call=document["call"],
        kind=document["kind"],
        nth=document["nth"],
        key=document.get("key"),
        bump=tuple(do.get("bump", ())),
        delete=tuple(do.get("delete", ())),
        put=tuple(do.get("put", ())),
        error=do.get("error"),
    )


def _only(document: Mapping[str, Any], known: set[str], where: str) -> None:
    unknown = set(document) - known
    if unknown:
        raise UnknownRecording(f"{where}: unknown fields {sorted(unknown)}")
