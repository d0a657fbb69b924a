"""The lock of a datastore: one boolean that everybody honours, and beside it who set it and why (cli §2, 18.15)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from calico_ipam.datastore.api import Entry, Update
from calico_ipam.engine.initialise import CLUSTER
from calico_ipam.engine.world import Engine
from calico_ipam.errors import Conflict
from calico_ipam.model.resource import Resource, mapping
from calico_ipam.model.timestamps import SECOND, format_time, parse_time

_PREFIX = "calico-ipam/lock-"
OWNER, SINCE, REASON, EXPIRES = (_PREFIX + name for name in ("owner", "since", "reason", "expires"))


@dataclass(frozen=True, slots=True)
class LockOwner:
    """Who locks: a name for people, why, and for how many seconds at most (0: until unlocked)."""

    name: str
    reason: str = ""
    seconds: int = 0


@dataclass(frozen=True, slots=True)
class LockState:
    """What the datastore says of its lock. Owner and times are empty where calicoctl locked."""

    locked: bool
    owner: str = ""
    reason: str = ""
    since: str = ""
    expires: str = ""

    def expired(self, now: int) -> bool:
        """Tell whether the lock's owner meant it to have ended by ``now`` (Unix nanoseconds)."""
        return bool(self.locked and self.expires and parse_time(self.expires) <= now)

    def __str__(self) -> str:
        if not self.locked:
            return "not locked"
        parts = [f"locked{' by ' + self.owner if self.owner else ''}", f"since {self.since}" if self.since else ""]
        parts += [f"until {self.expires}" if self.expires else "", f"({self.reason})" if self.reason else ""]
        return " ".join(part for part in parts if part)


def state(entry: Entry) -> LockState:
    """Return the state of the lock by the cluster information."""
    resource: Resource = entry.value
    notes = mapping(resource.metadata.get("annotations"))
    texts = [str(notes.get(name) or "") for name in (OWNER, REASON, SINCE, EXPIRES)]
    return LockState(resource.spec.get("datastoreReady") is False, *texts)


def lock(engine: Engine, owner: LockOwner | None = None) -> LockState:
    """Lock the datastore: no address is assigned or released by plugins until it is unlocked. ``owner`` is noted
    beside the lock. Raises NotFound when the datastore is not initialised, Conflict as a last resort.
    """
    notes: dict[str, str] = {}
    if owner is not None:
        now = engine.clock.now()
        notes = {OWNER: owner.name, SINCE: format_time(now)}
        notes |= {REASON: owner.reason} if owner.reason else {}
        notes |= {EXPIRES: format_time(now + owner.seconds * SECOND)} if owner.seconds else {}
    return _write(engine, ready=False, notes=notes, retry=owner is not None)


def unlock(engine: Engine, *, retry: bool = True) -> LockState:
    """Unlock the datastore and return what its lock said before."""
    return _write(engine, ready=True, notes={}, retry=retry)


def _write(engine: Engine, *, ready: bool, notes: Mapping[str, str], retry: bool) -> LockState:
    """Set the boolean and the notes; return the state before. Equal content is not written again."""
    for _ in engine.retry.tries("changing the lock of the datastore"):
        entry = engine.store.get(CLUSTER)
        before = state(entry)
        resource: Resource = entry.value
        metadata = dict(resource.metadata)
        kept = {k: v for k, v in mapping(metadata.pop("annotations", None)).items() if not k.startswith(_PREFIX)}
        if kept or notes:
            metadata["annotations"] = {**kept, **notes}
        spec = {**resource.spec, "datastoreReady": ready}
        document = {**resource.document, "metadata": metadata, "spec": spec}
        if document == dict(resource.document):
            return before
        try:
            engine.store.commit(Update(entry, Resource(resource.kind, resource.name, document)))
        except Conflict:
            if not retry:
                raise
            continue
        return before
    raise AssertionError("tries() never ends quietly")
