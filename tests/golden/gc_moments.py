"""A recorded phase as those see it who judge differences, and what such a difference is (ruling 26)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from calico_gc.facts import kubernetes_name

from calico_ipam.model.block import Attribute, Block
from calico_ipam.model.keys import Key, ResourceKey
from calico_ipam.model.resource import CLUSTER_INFORMATION, NODE
from tests.golden.gc_recording import Case, Thing

State = dict[Key, Any]


@dataclass(frozen=True)
class Moment:
    """A recorded phase. ``before``: stored at its start; ``after``: as recorded at its end; ``ours``: at ours."""

    case: Case
    phase: int
    before: Mapping[Key, Any]
    after: Mapping[Key, Any]
    ours: Mapping[Key, Any]

    def pods(self) -> dict[tuple[str, str], Mapping[str, Any]]:
        """Return the pods that exist at the end of the phase."""
        return self._present("Pod")

    def nodes(self) -> set[str]:
        return set(self._present("Node"))

    def knode(self, node: str) -> str:
        """Return the Kubernetes node of the name that IPAM has for a node; empty when there is none."""
        if self.case.kubernetes:
            return node if node in self.nodes() else ""
        known = self.stored(ResourceKey(NODE, node))
        return (kubernetes_name(known) or "") if known is not None else ""

    def known(self, node: str) -> bool:
        """Tell whether Calico has a node of that name."""
        return self.knode(node) != "" or self.stored(ResourceKey(NODE, node)) is not None

    def locked(self) -> bool:
        found = self.stored(ResourceKey(CLUSTER_INFORMATION, "default"))
        return found is not None and found.spec.get("datastoreReady") is False

    def stored(self, key: Key) -> Any:
        """Return what was last stored under a key, by the recording and not by a collector."""
        return next((thing.value for thing in reversed(self._things()) if thing.key == key), None)

    def _things(self) -> list[Thing]:
        return [*self.case.before, *(t for p in self.case.phases[: self.phase + 1] for t in p.events)]

    def _present(self, kind: str) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for thing in self._things():
            if thing.kind == kind and thing.raw is None:
                found.pop(thing.key, None)
            elif thing.kind == kind:
                found[thing.key] = thing.raw
        return found

    def held(self) -> Iterator[tuple[Block, int, Attribute]]:
        """Yield every ordinal that somebody holds at the start."""
        for value in self.before.values():
            if isinstance(value, Block):
                yield from ((value, o, a) for o, a in value.taken() if not a.cold and a.handle)

    def pod_of(self, attribute: Attribute) -> Mapping[str, Any] | None:
        return self.pods().get((attribute.active.get("namespace", ""), attribute.active.get("pod", "")))


@dataclass(frozen=True)
class Exception_:
    """``where``: does it apply; ``ours``: what ours does instead; ``expect``: the end of the phase as it is ours.

    ``seen``: a recording that needs it, so that one which is not needed any more is noticed.
    """

    limit: str
    where: Callable[[Moment], bool]
    ours: str
    expect: Callable[[Moment], State]
    seen: str = ""
