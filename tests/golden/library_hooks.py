"""A store wrapper that does what somebody else did in the middle of a recorded operation (README §1.7, ruling 27).

Hooks count upstream's calls. Ours are fewer: a commit counts as each write in it, a read as a get of each key, a list
as a list and as a get of each object in it. A hook fires around the call of ours that holds the call it waits for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from calico_ipam.datastore.api import (
    Create,
    Datastore,
    Deadline,
    Delete,
    Entry,
    Listing,
    Snapshot,
    Write,
)
from calico_ipam.datastore.passing import PassingStore
from calico_ipam.errors import Conflict, IPAMError, NotFound, OutcomeUnknown, StoreError
from calico_ipam.model import resource
from calico_ipam.model.keys import (
    Affinities,
    AffinityKey,
    BlockKey,
    Blocks,
    ConfigKey,
    HandleKey,
    Handles,
    HostKey,
    Key,
    ResourceKey,
    Resources,
    Scope,
)
from tests.golden.library_scenario import Hook

T = TypeVar("T")

KINDS = {
    BlockKey: "block",
    Blocks: "block",
    AffinityKey: "affinity",
    Affinities: "affinity",
    HandleKey: "handle",
    Handles: "handle",
    ConfigKey: "config",
    HostKey: "ipam_host",
}
RESOURCE_KINDS = {resource.NODE: "node", resource.IP_POOL: "ippool", resource.IP_RESERVATION: "ipreservation"}


@dataclass(frozen=True)
class Call:
    """One call as upstream would have made it: ``get``, ``list``, ``create``, ``update``, ``apply`` or ``delete``."""

    verb: str
    kind: str
    subject: Key | Scope


class Outside(Protocol):
    """Who changes the datastore behind the library's back."""

    def path(self, key: Key) -> str: ...

    def put_text(self, key: str, text: str) -> None: ...

    def delete(self, key: str) -> None: ...

    def bump(self, key: str) -> None: ...

    def write(self, document: Mapping[str, Any]) -> None: ...


@dataclass
class Waiting:
    """A hook of the present step and how many of its calls have been seen."""

    hook: Hook
    seen: int = 0
    fired: bool = False

    def concerns(self, call: Call, outside: Outside) -> bool:
        hook = self.hook
        # Upstream applies the configuration where ours creates or updates it.
        verbs = {"create", "update", "apply"} if hook.call == "apply" else {hook.call}
        if call.verb not in verbs or call.kind != hook.kind:
            return False
        if hook.key is None:
            return True
        return not isinstance(call.subject, Scope) and outside.path(call.subject) == hook.key


@dataclass
class HookedStore(PassingStore):
    """A Datastore with hooks. ``calls`` counts what the library asked of the store, by operation."""

    inner: Datastore
    outside: Outside
    waiting: list[Waiting] = field(default_factory=list)
    looked_at: set[Key] = field(default_factory=set)  #: objects that were read, or made, in this step

    def set_hooks(self, hooks: Sequence[Hook]) -> None:
        """Begin a step: only these hooks wait from now on."""
        self.waiting = [Waiting(hook) for hook in hooks]
        self.looked_at = set()

    def missed(self) -> list[int]:
        """Return the positions of hooks that did not fire in this step."""
        return [position for position, waiting in enumerate(self.waiting) if not waiting.fired]

    def get(self, key: Key) -> Entry:
        return self._around(lambda: [_call("get", key)], lambda: self.inner.get(key), lost=StoreError)

    def list(self, scope: Scope) -> Listing:
        return self._around(lambda: self._list_calls(scope), lambda: self.inner.list(scope), lost=StoreError)

    def read(self, *wanted: Key | Scope) -> Snapshot:
        def calls() -> list[Call]:
            found: list[Call] = []
            for item in wanted:
                found += self._list_calls(item) if isinstance(item, Scope) else [_call("get", item)]
            return found

        return self._around(calls, lambda: self.inner.read(*wanted), lost=StoreError)

    def commit(self, *writes: Write) -> Sequence[Entry]:
        return self._around(
            lambda: self._write_calls(writes),
            lambda: self.inner.commit(*writes),
            lost=OutcomeUnknown,
        )

    def within(self, deadline: Deadline | None) -> Datastore:
        return self

    def _write_calls(self, writes: Sequence[Write]) -> Sequence[Call]:
        """A block that is created unseen was looked for by upstream, between the writes of its row (§10.4)."""
        found: list[Call] = []
        for write in writes:
            unseen = isinstance(write, Create) and isinstance(write.key, BlockKey) and write.key not in self.looked_at
            found += [_call("get", write.key)] if unseen else []
            found.append(_call(_verb(write), write.key))
        return found

    def _list_calls(self, scope: Scope) -> Sequence[Call]:
        return [_call("list", scope), *(_call("get", entry.key) for entry in self.inner.list(scope))]

    def _around(self, calls: Callable[[], Sequence[Call]], carry_out: Callable[[], T], *, lost: type[IPAMError]) -> T:
        if all(waiting.fired for waiting in self.waiting):
            return carry_out()
        due = self._due(calls())
        for waiting, call in due:
            if waiting.hook.when == "before":
                self._act(waiting.hook, call, StoreError)
        try:
            answer = carry_out()
        finally:
            for waiting, call in due:
                if waiting.hook.when == "after":
                    self._act(waiting.hook, call, lost)
        return answer

    def _due(self, calls: Sequence[Call]) -> Sequence[tuple[Waiting, Call]]:
        due = []
        for call in calls:
            if not isinstance(call.subject, Scope):
                self.looked_at.add(call.subject)
            for waiting in self.waiting:
                if not waiting.fired and waiting.concerns(call, self.outside):
                    waiting.seen += 1
                    if waiting.seen == waiting.hook.nth:
                        waiting.fired = True
                        due.append((waiting, call))
        return due

    def _act(self, hook: Hook, call: Call, failure: type[IPAMError]) -> None:
        for key in hook.bump:
            self.outside.bump(key)
        for key in hook.delete:
            self.outside.delete(key)
        for write in hook.put:
            # The recorder's outsider wrote JSON with blanks; it stands in ``raw`` where it was the last to write.
            self.outside.put_text(write["key"], json.dumps(write["value"], ensure_ascii=False))
        if hook.error == "datastore":
            raise failure("injected failure", subject=_subject(call))
        if hook.error == "conflict":
            raise Conflict(_subject(call))
        if hook.error == "does_not_exist":
            raise NotFound(_subject(call))


def _subject(call: Call) -> str:
    match call.subject:  # the texts by which upstream names its lists
        case Affinities(kind, host, version):
            return f"{{{host} {kind} {version}}}"
        case Blocks():
            return "{0}"
        case _:
            return str(call.subject)


def _call(verb: str, subject: Key | Scope) -> Call:
    if isinstance(subject, ResourceKey | Resources):
        kind = RESOURCE_KINDS.get(subject.kind, subject.kind)
    else:
        kind = KINDS[type(subject)]
    return Call(verb, kind, subject)


def _verb(write: Write) -> str:
    if isinstance(write, Create):
        return "create"
    return "delete" if isinstance(write, Delete) else "update"
