"""Where the collector differs from the recorded cases on purpose: the limit, when, and what ours does (ruling 26).

An entry is keyed by a limit of gc.md §17 (or of ipam-library §23 for the library below) and a predicate over the
recorded phase, so that other recordings of the same format replay too. An entry that applies although ours does what
upstream does fails, and so does one that no recording needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from calico_gc.facts import NETWORK_STATUS, NETWORKS

from calico_ipam.model.addresses import Address, Network, contains, parse_address, parse_network
from calico_ipam.model.affinity import HOST, BlockOwner
from calico_ipam.model.block import Attribute, Block
from calico_ipam.model.keys import AffinityKey, BlockKey, HandleKey, Key, ResourceKey
from calico_ipam.model.owner import VMI_NAME
from calico_ipam.model.resource import IP_POOL, mapping
from tests.golden.gc_moments import Exception_, Moment, State

# --- single addresses ---------------------------------------------------------------------------------------------

Held = tuple[Block, int, Attribute]


def _holds(state: Mapping[Key, Any], block: Block, ordinal: int, attribute: Attribute) -> bool:
    """Tell whether an ordinal has the same holder in a state."""
    value = state.get(BlockKey(block.cidr))
    return isinstance(value, Block) and dict(value.taken()).get(ordinal) == attribute


def _differing(which: Callable[[Moment], Iterator[Held]], *, kept: bool) -> Callable[[Moment], list[Held]]:
    """Return those addresses of a rule that upstream released and ours ``kept``, or the other way round."""

    def found(moment: Moment) -> list[Held]:
        one, other = (moment.ours, moment.after) if kept else (moment.after, moment.ours)
        return [held for held in which(moment) if _holds(one, *held) and not _holds(other, *held)]

    return found


def _as_ours(which: Callable[[Moment], list[Held]]) -> Callable[[Moment], State]:
    """Expect what upstream left, but for some addresses: in their blocks nothing else may differ.

    Numbers of writes, and what goes with the last address of a block or a handle, follow from that.
    """

    def expect(moment: Moment) -> State:
        state, found = dict(moment.after), which(moment)
        for block in {block.cidr: block for block, _, _ in found}.values():
            but = {ordinal for b, ordinal, _ in found if b.cidr == block.cidr}
            key = BlockKey(block.cidr)
            if _taken(moment.ours.get(key), but) == _taken(moment.after.get(key), but):
                rows = [AffinityKey(block.owner, block.cidr)] if block.owner is not None else []
                _take_over(state, moment.ours, [key, *rows])
        _take_over(state, moment.ours, [HandleKey(attribute.clean_handle) for _, _, attribute in found])
        return state

    return expect


def _taken(block: Block | None, but: set[int]) -> dict[int, Attribute]:
    return {o: a for o, a in block.taken() if o not in but} if block is not None else {}


def _take_over(state: State, ours: Mapping[Key, Any], keys: list[Any]) -> None:
    for key in keys:
        state.pop(key, None)
        if key in ours:
            state[key] = ours[key]


# --- what narrows ------------------------------------------------------------------------------------------------


def _on_other_node(moment: Moment) -> Iterator[Held]:
    """Yield addresses whose pod runs on another node than IPAM noted, and reports the address."""
    for block, ordinal, attribute in moment.held():
        pod = moment.pod_of(attribute) or {}
        node, noted = mapping(pod.get("spec")).get("nodeName"), moment.knode(attribute.active.get("node", ""))
        if node and noted and node != noted and block.address(ordinal) in _reported(pod):
            yield block, ordinal, attribute


def _reported(pod: Mapping[str, Any]) -> set[Address]:
    return {parse_address(item["ip"]) for item in mapping(pod.get("status")).get("podIPs") or ()}


def _secondary(moment: Moment) -> Iterator[Held]:
    """Yield addresses that a pod has, or may have, on a further network only."""
    for block, ordinal, attribute in moment.held():
        pod = moment.pod_of(attribute) or {}
        annotations = mapping(mapping(pod.get("metadata")).get("annotations"))
        told = "".join(annotations.get(name) or "" for name in NETWORK_STATUS)
        if f'"{block.address(ordinal)}"' in told or (annotations.get(NETWORKS) and not told):
            yield block, ordinal, attribute


def _of_unnamed_machine(moment: Moment) -> Iterator[Held]:
    """Yield addresses under the handle of a machine that their attributes do not name."""
    yield from (held for held in moment.held() if ".vmi." in held[2].clean_handle and VMI_NAME not in held[2].active)


# --- what upstream misses -----------------------------------------------------------------------------------------


def _of_other_size(moment: Moment) -> Iterator[Held]:
    """Yield leaks in blocks of another size than their pool's."""
    for block, ordinal, attribute in moment.held():
        pool = _pool_of(moment, block.cidr)
        size = 26 if block.cidr.version == 4 else 122
        other = pool is not None and (pool.spec.get("blockSize") or size) != block.cidr.prefixlen
        if other and moment.pod_of(attribute) is None:
            yield block, ordinal, attribute


def _pool_of(moment: Moment, cidr: Network) -> Any:
    pools = [t.value for t in moment.case.before if isinstance(t.key, ResourceKey) and t.key.kind == IP_POOL]
    return next((p for p in pools if contains(parse_network(p.spec["cidr"]), cidr)), None)


def _gone(state: State, block: Block) -> None:
    assert block.owner is not None
    del state[BlockKey(block.cidr)]
    state.pop(AffinityKey(block.owner, block.cidr), None)


def _of_dead_nodes(moment: Moment) -> list[Block]:
    """Empty blocks of nodes that are gone and hold nothing anywhere, which upstream has not looked at yet."""
    busy = {attribute.active.get("node") for _, _, attribute in moment.held()}
    return [
        value
        for value in moment.before.values()
        if isinstance(value, Block)
        and value.owner is not None
        and value.owner.kind == HOST
        and value.owner.host not in busy
        and not moment.known(value.owner.host)
        and not moment.locked()
        and not list(value.taken())
        and AffinityKey(value.owner, value.cidr) in moment.before
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


def _emptied(moment: Moment) -> list[BlockKey]:
    """Blocks of nobody that upstream empties by cooling down, and then leaves for ever."""
    return [
        key
        for key, value in moment.after.items()
        if isinstance(key, BlockKey)
        and value.affinity is None
        and not list(value.taken())
        and list(getattr(moment.before.get(key), "taken", tuple)())
        and key not in moment.ours
    ]


def _astray(moment: Moment) -> list[AffinityKey]:
    """Rows of nodes that are gone whose blocks do not exist."""
    return [
        key
        for key in moment.after
        if isinstance(key, AffinityKey)
        and BlockKey(key.cidr) not in moment.before
        and not moment.known(key.owner.host)
        and key not in moment.ours
    ]


def _counted_twice(moment: Moment) -> list[HandleKey]:
    """Handles over several blocks, more than two addresses of which upstream released at once: they stay, astray."""
    return [
        key
        for key, value in moment.after.items()
        if isinstance(key, HandleKey)
        and len({block.cidr for block, _, a in moment.held() if a.clean_handle == key.id}) > 1
        and not any(v.held_by(key.id) for v in moment.after.values() if isinstance(v, Block))
        and value != moment.before.get(key)
        and key not in moment.ours
    ]


def _out_of_order(moment: Moment) -> State:
    """Blocks whose addresses had cooled down in another order than that of their ordinals, as ours leaves them."""
    found: State = {}
    for key, value in moment.after.items():
        ours, raw = moment.ours.get(key), moment.stored(key)
        if not isinstance(key, BlockKey) or not isinstance(ours, Block) or not isinstance(raw, Block) or ours == value:
            continue
        times = [at for _, attribute in raw.taken() if (at := attribute.released_at) is not None]
        same = sorted(ours.unallocated) == sorted(value.unallocated)
        if same and times != sorted(times) and replace(value, unallocated=ours.unallocated) == ours:
            found[key] = ours
    return found


def _but(which: Callable[[Moment], Iterable[Key]]) -> Callable[[Moment], State]:
    """Expect what upstream left, without some objects."""
    return lambda moment: {key: value for key, value in moment.after.items() if key not in set(which(moment))}


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


_kept_elsewhere = _differing(_on_other_node, kept=True)
_kept_secondary = _differing(_secondary, kept=True)
_kept_machine = _differing(_of_unnamed_machine, kept=True)
_freed_all_the_same = _differing(_of_other_size, kept=False)

EXCEPTIONS: tuple[Exception_, ...] = (
    Exception_(
        "U16",
        lambda moment: bool(_kept_elsewhere(moment)),
        "a pod that reports the address keeps it, whatever node IPAM has noted; the mismatch is told",
        _as_ours(_kept_elsewhere),
        "pod-on-other-node-kdd",
    ),
    Exception_(
        "U17",
        lambda moment: bool(_kept_secondary(moment)),
        "an address that a pod has on a further network is in use",
        _as_ours(_kept_secondary),
        "pod-secondary-network-kdd",
    ),
    Exception_(
        "safety rule 1",
        lambda moment: bool(_kept_machine(moment)),
        "an address under a machine's handle (`….vmi.…`) whose attributes name no machine is kept",
        _as_ours(_kept_machine),
    ),
    Exception_(
        "U23",
        lambda moment: bool(_of_dead_nodes(moment)),
        "nodes that went while nobody looked are found at once, not half a grace period later",
        _at_once,
        "node-gone-only-empty-block-default-grace-kdd",
    ),
    Exception_(
        "U29",
        lambda moment: bool(_freed_all_the_same(moment)),
        "a leak is released from the block it was found in, whatever block size the pool has today",
        _as_ours(_freed_all_the_same),
        "block-size-mismatch-kdd",
    ),
    Exception_(
        "ipam-library §9 (U2)",
        lambda moment: bool(_left_over(moment)),
        "a handle that counts too few is removed with its last address",
        _but(_left_over),
        "handle-count-low-kdd",
    ),
    Exception_(
        "ipam-library L9",
        lambda moment: bool(_emptied(moment)),
        "a block of nobody that is emptied by cooling down goes",
        _but(_emptied),
    ),
    Exception_(
        "ipam-library L8",
        lambda moment: bool(_astray(moment)),
        "a row of a node that is gone is removed although its block does not exist",
        _but(_astray),
    ),
    Exception_(
        "ipam-library L28",
        lambda moment: bool(_counted_twice(moment)),
        "a handle over several blocks is counted down once for each address",
        _but(_counted_twice),
    ),
    Exception_(
        "ipam-library L22",
        lambda moment: bool(_out_of_order(moment)),
        "what was released first is handed out first",
        lambda moment: {**moment.after, **_out_of_order(moment)},
    ),
    Exception_(
        "§10 any of them",
        _other_stays,
        "of several empty blocks another one stays",
        _exchanged,
        "empty-five-etcd",
    ),
)
