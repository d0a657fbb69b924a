"""Where the collector differs from the recorded cases on purpose: the limit, when, and what ours does (ruling 26).

An entry is keyed by a limit of gc.md §17 (or of ipam-library §23 for the library below) and a predicate over the
recorded phase, so that other recordings of the same format replay too. An entry that applies although ours does what
upstream does fails, and so does one that no recording needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from calico_ipam.model.addresses import Network, contains, parse_network
from calico_ipam.model.affinity import HOST, BlockOwner
from calico_ipam.model.block import Attribute, Block
from calico_ipam.model.keys import AffinityKey, BlockKey, HandleKey, Key, ResourceKey
from calico_ipam.model.resource import IP_POOL
from tests.golden.gc_recording import Case

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

    def _present(self, kind: str) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        things = [*self.case.before, *(t for p in self.case.phases[: self.phase + 1] for t in p.events)]
        for thing in things:
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
    """``where``: does it apply; ``ours``: what ours does instead; ``expect``: the end of the phase as it is ours."""

    limit: str
    where: Callable[[Moment], bool]
    ours: str
    expect: Callable[[Moment], State]


# --- what narrows ------------------------------------------------------------------------------------------------


def _on_other_node(moment: Moment) -> list[tuple[Block, int, Attribute]]:
    """Addresses whose pod runs on another node than IPAM noted, and reports the address."""
    return [
        (block, ordinal, attribute)
        for block, ordinal, attribute in moment.held()
        if (pod := moment.pod_of(attribute)) is not None
        and pod["spec"].get("nodeName") != attribute.active.get("node")
        and str(block.address(ordinal)) in _reported(pod)
    ]


def _reported(pod: Mapping[str, Any]) -> set[str]:
    return {item["ip"] for item in pod.get("status", {}).get("podIPs", ())}


def _secondary(moment: Moment) -> list[tuple[Block, int, Attribute]]:
    """Addresses that a pod has on a further network only."""
    found = []
    for block, ordinal, attribute in moment.held():
        pod = moment.pod_of(attribute)
        text = (pod or {}).get("metadata", {}).get("annotations", {}).get("k8s.v1.cni.cncf.io/network-status", "")
        if f'"{block.address(ordinal)}"' in text:
            found.append((block, ordinal, attribute))
    return found


def _kept(which: Callable[[Moment], list[tuple[Block, int, Attribute]]]) -> Callable[[Moment], State]:
    def expect(moment: Moment) -> State:
        state = dict(moment.after)
        for block, _, attribute in which(moment):
            for key in (BlockKey(block.cidr), HandleKey(attribute.clean_handle)):
                state[key] = moment.before[key]
        return state

    return expect


# --- what upstream misses -----------------------------------------------------------------------------------------


def _pool_of(moment: Moment, cidr: Network) -> Any:
    pools = [t.value for t in moment.case.before if isinstance(t.key, ResourceKey) and t.key.kind == IP_POOL]
    return next((p for p in pools if contains(parse_network(p.spec["cidr"]), cidr)), None)


def _of_other_size(moment: Moment) -> list[Block]:
    """Blocks of another size than their pool's, in which everything leaked."""
    found = []
    for value in moment.before.values():
        if not isinstance(value, Block):
            continue
        pool = _pool_of(moment, value.cidr)
        taken = list(value.taken())
        if pool is None or pool.spec.get("blockSize") == value.cidr.prefixlen or not taken:
            continue
        if all(moment.pod_of(attribute) is None for _, attribute in taken):
            found.append(value)
    return found


def _freed(moment: Moment) -> State:
    state = dict(moment.after)
    for block in _of_other_size(moment):
        _gone(state, block)
        for _, attribute in block.taken():
            state.pop(HandleKey(attribute.clean_handle))
    return state


def _gone(state: State, block: Block) -> None:
    assert block.owner is not None
    del state[BlockKey(block.cidr)]
    state.pop(AffinityKey(block.owner, block.cidr), None)


def _of_dead_nodes(moment: Moment) -> list[Block]:
    """Empty blocks of nodes that were gone before the collector started, and that hold nothing anywhere."""
    busy = {attribute.active.get("node") for _, _, attribute in moment.held()}
    return [
        value
        for value in moment.before.values()
        if isinstance(value, Block)
        and moment.phase == 0
        and value.owner is not None
        and value.owner.kind == HOST
        and value.owner.host not in moment.nodes() | busy
        and not list(value.taken())
        and BlockKey(value.cidr) in moment.after
    ]


def _at_once(moment: Moment) -> State:
    state = dict(moment.after)
    for block in _of_dead_nodes(moment):
        _gone(state, block)
    return state


def _left_over(moment: Moment) -> list[HandleKey]:
    """Handles that upstream leaves behind although their last address was released: they had counted too few."""
    found = []
    for key, value in moment.after.items():
        if not isinstance(key, HandleKey) or key not in moment.before:
            continue
        before = sum(a.clean_handle == key.id for _, _, a in moment.held())
        after = sum(
            a.clean_handle == key.id for v in moment.after.values() if isinstance(v, Block) for _, a in v.taken()
        )
        if before > sum(moment.before[key].blocks.values()) and not after and value == moment.before[key]:
            found.append(key)
    return found


def _removed(moment: Moment) -> State:
    return {key: value for key, value in moment.after.items() if key not in _left_over(moment)}


# --- what is open ----------------------------------------------------------------------------------------------


def _empty_blocks(state: Mapping[Key, Any]) -> dict[str, set[Network]]:
    found: dict[str, set[Network]] = {}
    for value in state.values():
        if isinstance(value, Block) and value.owner is not None and not list(value.taken()):
            found.setdefault(value.owner.host, set()).add(value.cidr)
    return found


def _other_stays(moment: Moment) -> bool:
    """A host keeps one empty block; which one is nobody's promise."""
    recorded, ours = _empty_blocks(moment.after), _empty_blocks(moment.ours)
    return any(len(cidrs) == len(ours.get(host, ())) == 1 and cidrs != ours[host] for host, cidrs in recorded.items())


def _exchanged(moment: Moment) -> State:
    state = dict(moment.after)
    recorded, ours = _empty_blocks(moment.after), _empty_blocks(moment.ours)
    for host, cidrs in recorded.items():
        if len(cidrs) != 1 or len(ours.get(host, ())) != 1 or cidrs == ours[host]:
            continue
        owner, (old,), (new,) = BlockOwner(HOST, host), tuple(cidrs), tuple(ours[host])
        state[AffinityKey(owner, new)] = state.pop(AffinityKey(owner, old))
        del state[BlockKey(old)]
        # What an empty block looks like depends on what was in it before: only that it is empty can be expected.
        state[BlockKey(new)] = moment.ours[BlockKey(new)]
    return state


EXCEPTIONS: tuple[Exception_, ...] = (
    Exception_(
        "U16",
        lambda moment: bool(_on_other_node(moment)),
        "a pod that reports the address keeps it, whatever node IPAM has noted; the mismatch is told",
        _kept(_on_other_node),
    ),
    Exception_(
        "U17",
        lambda moment: bool(_secondary(moment)),
        "an address that a pod has on a further network is in use",
        _kept(_secondary),
    ),
    Exception_(
        "U23",
        lambda moment: bool(_of_dead_nodes(moment)),
        "nodes that went while nobody looked are found at once, not half a grace period later",
        _at_once,
    ),
    Exception_(
        "U29",
        lambda moment: bool(_of_other_size(moment)),
        "a leak is released from the block it was found in, whatever block size the pool has today",
        _freed,
    ),
    Exception_(
        "ipam-library §9 (U2)",
        lambda moment: bool(_left_over(moment)),
        "a handle that counts too few is removed with its last address",
        _removed,
    ),
    Exception_(
        "§10 any of them",
        _other_stays,
        "of several empty blocks another one stays",
        _exchanged,
    ),
)
