"""Every decision of the collector, as pure functions of what is known and of a moment (gc §6, §7, §10).

Nothing here reads a store, a clock or the environment. Three answers are possible for an address: alive, leaked with a
reason, or alive because nobody can tell; whatever is missing, odd or unknown counts as alive (gc, safety rule 1).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from calico_gc import suspicion as reasons
from calico_gc.facts import Allocation, AllocationKey, Pod, PodKey, VirtualMachines
from calico_gc.suspicion import Moment, Suspicion, leaked, proven
from calico_ipam.model.owner import VMI_NAME

#: floor of the grace period of a virtual machine's address, seconds (gc §6 row 6)
VM_GRACE = 300.0


class Unreadable(Enum):
    """Stands for a pod that could not be read: nothing is known of it."""

    POD = "unreadable"


UNREADABLE = Unreadable.POD


class Workloads(Protocol):
    """Where the holders of addresses are looked up: in the caches of the watches, or live."""

    @property
    def machines(self) -> VirtualMachines | None:
        """Virtual machines; None while nobody knows them."""

    def pod(self, key: PodKey) -> Pod | Unreadable | None:
        """Return a pod; None: it does not exist."""

    def container_gone(self, allocation: Allocation) -> bool:
        """Tell whether the container of an allocation that is no pod's is certainly gone (ruling 7)."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """``reason`` empty: alive. ``remark``: something a person should know all the same."""

    reason: str = ""
    remark: str = ""

    @property
    def alive(self) -> bool:
        return not self.reason


ALIVE = Verdict()
NODE_MISMATCH = "node-mismatch"  #: the holder lives, on another node than the allocation says (limit U16)
FINISHED_WITHOUT_ADDRESS = "finished-without-address"  #: limit U15, report-only unless asked for


@dataclass(frozen=True, slots=True)
class Rules:
    """What of the decisions can be set. Times are seconds; ``leak_grace`` None: absent, not even candidates.

    ``finished_pods``: also collect what pods hold that ended without ever reporting an address (limit U15).
    ``nameless``: also collect what pods that are gone hold without a handle or a node (limit U26).
    """

    leak_grace: float | None = 900.0
    vm_grace: float = VM_GRACE
    finished_pods: bool = False
    nameless: bool = False

    @property
    def machine_grace(self) -> float:
        """Grace of a virtual machine's address; 0 turns its collection off (limit U28)."""
        return max(self.vm_grace, self.leak_grace or 0.0) if self.vm_grace > 0 else self.leak_grace or 0.0


# --- one allocation ------------------------------------------------------------------------------------------


def verdict(allocation: Allocation, knode: str, workloads: Workloads, rules: Rules) -> Verdict:
    """Judge one allocation (gc §7). ``knode``: the Kubernetes node of its node attribute, empty when that is gone."""
    if allocation.of_tunnel:
        return ALIVE if knode else Verdict(reasons.TUNNEL_NODE_GONE)
    if allocation.of_vm:
        return _machine_verdict(allocation, workloads.machines)
    if not allocation.of_pod:
        return Verdict(reasons.CONTAINER_GONE) if workloads.container_gone(allocation) else ALIVE
    if ".vmi." in allocation.handle:
        return ALIVE  # a machine's, which its attributes do not name: nobody can tell whether it lives
    pod = workloads.pod(allocation.pod)
    if pod is None:
        return Verdict(reasons.POD_NOT_FOUND)
    if isinstance(pod, Unreadable):
        return ALIVE
    return _pod_verdict(allocation, knode, pod, rules)


def _machine_verdict(allocation: Allocation, machines: VirtualMachines | None) -> Verdict:
    """Machines keep their addresses from pod to pod, so pods say nothing of them (gc §7.1)."""
    namespace, name = allocation.pod[0], allocation.attrs.get(VMI_NAME, "")
    if machines is None or not namespace or not name or machines.alive((namespace, name)):
        return ALIVE
    return Verdict(reasons.VM_GONE)


def _pod_verdict(allocation: Allocation, knode: str, pod: Pod, rules: Rules) -> Verdict:
    elsewhere = bool(pod.node and knode and pod.node != knode)
    uses_it = (
        pod.reports and not pod.finished and (pod.has(allocation.address) or pod.has_secondary(allocation.address))
    )
    if elsewhere:
        # The node attribute may be the one that is wrong: the pod's own word counts (public report P30, limit U16).
        return Verdict(remark=NODE_MISMATCH) if uses_it else Verdict(reasons.POD_MOVED)
    if not pod.reports:
        if not pod.finished or pod.deleting:
            return ALIVE
        if rules.finished_pods:
            return Verdict(reasons.POD_FINISHED, FINISHED_WITHOUT_ADDRESS)
        return Verdict(remark=FINISHED_WITHOUT_ADDRESS)
    if pod.phase == "Failed" and pod.reason == "Evicted":
        return Verdict(reasons.POD_FINISHED)
    if uses_it or pod.obscure:
        return ALIVE
    return Verdict(reasons.POD_FINISHED if pod.finished else reasons.IP_MISMATCH)


# --- one node ------------------------------------------------------------------------------------------------


class Standing(Enum):
    """What a Calico node is to Kubernetes (gc §6 step 1)."""

    PRESENT = "present"  #: Calico names a Kubernetes node for it
    GONE = "gone"  #: Calico has no such node
    FOREIGN = "foreign"  #: a Calico node of another orchestrator: never touched
    UNKNOWN = "unknown"  #: could not be read: looked at again (limit U7)


@dataclass(frozen=True, slots=True)
class LiveNode:
    """A Calico node as it was read a moment ago. ``exists``: Kubernetes has the node that Calico names for it."""

    standing: Standing
    knode: str = ""
    exists: bool = False

    @property
    def gone(self) -> bool:
        """Certainly gone: not merely unknown, not another orchestrator's."""
        return self.standing is Standing.GONE or (self.standing is Standing.PRESENT and not self.exists)


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A Calico node and everything it holds. ``exists``: Kubernetes has the node."""

    name: str
    standing: Standing
    knode: str
    exists: bool
    allocations: Sequence[Allocation]


@dataclass(frozen=True, slots=True)
class Remark:
    """Something that is kept and should be looked at by a person."""

    kind: str
    allocation: Allocation


@dataclass(frozen=True, slots=True)
class NodeDecision:
    """What a look at a node gave. ``suspicions``: new belief for each allocation looked at, None: alive."""

    node: str
    suspicions: Mapping[AllocationKey, Suspicion | None] = field(default_factory=dict)
    release: bool = False  #: nothing of it is in use: its addresses and blocks can go
    look_again: bool = False  #: nothing was decided
    remarks: tuple[Remark, ...] = ()
    in_use: tuple[AllocationKey, ...] = ()  #: what keeps a node that is gone


def look_at_node(
    node: NodeFacts, workloads: Workloads, known: Mapping[AllocationKey, Suspicion], rules: Rules, now: Moment
) -> NodeDecision:
    """Judge all allocations of a node against the caches (gc §6)."""
    if node.standing in (Standing.FOREIGN, Standing.UNKNOWN):
        return NodeDecision(node.name, look_again=node.standing is Standing.UNKNOWN)
    suspicions: dict[AllocationKey, Suspicion | None] = {}
    tunnels: list[Allocation] = []
    remarks: list[Remark] = []
    in_use: list[AllocationKey] = []
    for allocation in node.allocations:
        if allocation.windows_reserved:
            continue
        if not allocation.of_pod and not allocation.of_tunnel and not workloads.container_gone(allocation):
            in_use.append(allocation.key)  # somebody else's business
            if allocation.key in known:
                suspicions[allocation.key] = None
            continue
        if allocation.of_tunnel:
            tunnels.append(allocation)
            continue
        found = verdict(allocation, node.knode, workloads, rules)
        if found.remark:
            remarks.append(Remark(found.remark, allocation))
        if found.alive:
            in_use.append(allocation.key)
            suspicions[allocation.key] = None
            continue
        before = known.get(allocation.key)
        judged = _suspicion(allocation, before, found.reason, node, rules, now)
        if judged is not before:
            suspicions[allocation.key] = judged
    gone = not node.exists
    release = gone and not in_use
    for allocation in tunnels:
        suspicions |= _tunnel(allocation, known.get(allocation.key), node, now, gone=release)
    return NodeDecision(node.name, suspicions, release, remarks=tuple(remarks), in_use=tuple(in_use) if gone else ())


def _tunnel(
    allocation: Allocation, before: Suspicion | None, node: NodeFacts, now: Moment, *, gone: bool
) -> dict[AllocationKey, Suspicion | None]:
    """A tunnel's address goes with its node, and with nothing less."""
    if not gone:
        return {} if before is None else {allocation.key: None}
    return {allocation.key: proven(before, reasons.TUNNEL_NODE_GONE, now, node.knode)}


def _suspicion(
    allocation: Allocation, before: Suspicion | None, reason: str, node: NodeFacts, rules: Rules, now: Moment
) -> Suspicion | None:
    if not node.exists:
        return proven(before, reasons.NODE_GONE if reason == reasons.POD_NOT_FOUND else reason, now, node.knode)
    if allocation.of_vm:
        return leaked(before, reason, rules.machine_grace, now, node.knode)
    if rules.leak_grace is not None:
        return leaked(before, reason, rules.leak_grace, now, node.knode)
    return None


# --- what may be released together ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Group:
    """Confirmed leaks that go together: whole handles, and all of them that lie in the same blocks."""

    allocations: tuple[Allocation, ...]
    suspicions: Mapping[AllocationKey, Suspicion]
    blocks: tuple[str, ...]

    @property
    def key(self) -> str:
        """What failures are counted by: the block of its first address."""
        return self.blocks[0]


class Confirmed(Protocol):
    """The part of the state that :func:`group_leaks` looks at."""

    confirmed: dict[AllocationKey, None]
    suspects: dict[AllocationKey, Suspicion]
    by_handle: dict[str, tuple[AllocationKey, ...]]

    def allocation(self, key: AllocationKey) -> Allocation | None: ...

    def all_confirmed(self, handle: str) -> bool: ...


def group_leaks(
    state: Confirmed, busy: Collection[str], limit: int, held_before: Collection[AllocationKey] = ()
) -> tuple[list[Group], list[AllocationKey]]:
    """Return what can be released now, and what is held because its handle has an address that is alive (gc §8).

    ``busy``: blocks that are being worked on; they are passed over quickly, since this is asked again with each answer
    while thousands wait. At most ``limit`` addresses are taken, but a handle is never cut.
    """
    held = [key for key in held_before if key[0] in busy and key in state.confirmed]
    joined = _Joined()
    chosen: dict[str, list[Allocation]] = {}
    taken = 0
    for key in state.confirmed:
        if key[0] in busy:
            continue
        allocation = state.allocation(key)
        if allocation is None:
            continue
        unit = allocation.unit
        if allocation.clean_handle and not state.all_confirmed(unit):
            held.append(key)
            continue
        if unit not in chosen:
            if taken >= limit or any(block in busy for block, _ in state.by_handle.get(unit, ())):
                continue
            chosen[unit] = []
        taken += 1
        chosen[unit].append(allocation)
        joined.join(allocation.block, f"unit {unit}")
    groups: dict[str, list[Allocation]] = {}
    for allocations in chosen.values():
        for allocation in allocations:
            groups.setdefault(joined.root(allocation.block), []).append(allocation)
    return [_group(group, state.suspects) for group in groups.values()], held


def _group(allocations: Sequence[Allocation], suspects: Mapping[AllocationKey, Suspicion]) -> Group:
    blocks = tuple(dict.fromkeys(a.block for a in allocations))
    return Group(tuple(allocations), {a.key: suspects[a.key] for a in allocations}, blocks)


class _Joined:
    """Which blocks belong together because a handle holds addresses in both."""

    def __init__(self) -> None:
        self._parent: dict[str, str] = {}

    def root(self, name: str) -> str:
        while (parent := self._parent.setdefault(name, name)) != name:
            self._parent[name] = self._parent[parent]
            name = parent
        return name

    def join(self, one: str, other: str) -> None:
        self._parent[self.root(one)] = self.root(other)


def still_leaked(group: Group, nodes: Mapping[str, LiveNode], live: Workloads, rules: Rules) -> list[Allocation]:
    """Return which of a group are leaked on a second, live look (gc §8 step 1).

    A node that came back, or that cannot be read, clears everything that was believed because it was gone (public
    report P31). A handle is returned whole or not at all.
    """
    spared = {
        a.unit
        for a in group.allocations
        if not _still(a, group.suspicions[a.key], nodes.get(a.node, LiveNode(Standing.UNKNOWN)), live, rules)
    }
    return [a for a in group.allocations if a.unit not in spared]


def _still(allocation: Allocation, believed: Suspicion, node: LiveNode, live: Workloads, rules: Rules) -> bool:
    if not allocation.node:  # no node to ask about: its pod alone tells, and never at once (limit U26)
        return (
            believed.since is not None and not allocation.of_tunnel and not verdict(allocation, "", live, rules).alive
        )
    if node.standing in (Standing.UNKNOWN, Standing.FOREIGN) or (believed.since is None and not node.gone):
        return False
    return not verdict(allocation, node.knode, live, rules).alive


# --- empty and cooling blocks ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EmptyBlocks:
    """What a look at empty blocks gave: those to release, and since when the others have been empty."""

    release: tuple[str, ...]
    since: Mapping[str, float]


def look_at_empty_blocks(
    empty: Mapping[str, str],
    owned: Mapping[str, Collection[str]],
    since: Mapping[str, float],
    touched: Mapping[str, bool],
    grace: float | None,
    now: Moment,
) -> EmptyBlocks:
    """Decide which empty blocks their hosts give back; each keeps one, of either family (gc §10).

    ``touched``: host -> it may be worked on (no migration, and it could be read). The timer of a block starts again
    while it is the only one of its host (limit U19).
    """
    left = {host: len(blocks) for host, blocks in owned.items()}
    release: list[str] = []
    kept: dict[str, float] = {}
    for cidr, host in empty.items():
        if left.get(host, 0) <= 1 or not touched.get(host, False):
            continue
        if grace is None or grace <= 0:
            continue
        first = since.get(cidr)
        if first is None:
            kept[cidr] = now.mono
        else:
            kept[cidr] = first
            if now.mono - first > grace:
                release.append(cidr)
                left[host] -= 1
    return EmptyBlocks(tuple(release), kept)


def cooled_down(cold: Mapping[str, int], cooldown: int, now: Moment) -> list[str]:
    """Return the blocks that hold an address whose cooldown (seconds) is over (gc §9)."""
    limit = now.wall - cooldown * 1_000_000_000
    return [cidr for cidr, released in cold.items() if released <= limit]
