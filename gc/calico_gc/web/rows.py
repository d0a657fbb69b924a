"""The lines of the page's tables: addresses of a block, nodes, candidates, handles (values only)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from calico_gc.facts import Allocation, AllocationKey, Tracked
from calico_gc.handles import HandleLook, Observed
from calico_gc.suspicion import Suspicion
from calico_gc.view import View
from calico_gc.web import words
from calico_gc.web.cells import owner_of
from calico_ipam.model.block import Attribute
from calico_ipam.model.timestamps import parse_attribute_time

FREE, HELD, COOLING, SUSPECTED, RESERVED = "free", "held", "cooling", "suspected", "reserved"
#: where the plugins note when they gave an address out
TIMESTAMP = "timestamp"


# --- addresses ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Address:
    """One ordinal of a block. ``holder``: pod, machine, tunnel or note; ``age``: since it was given out or released."""

    ordinal: int
    address: str
    state: str
    holder: str = ""
    handle: str = ""
    node: str = ""
    age: str = ""
    sequence: int = 0
    why: str = ""  #: of a suspected one

    @property
    def title(self) -> str:
        text = f"{self.address}: {self.state}"
        for part in (self.holder or self.handle, f"for {self.age}" if self.age else "", self.why):
            text += f", {part}" if part else ""
        return text


def addresses(view: View, tracked: Tracked) -> list[Address]:
    """Return every address of a block, ascending."""
    block = tracked.block
    reserved = view.reservations.ordinal_test(block.cidr)
    found = []
    for ordinal in range(block.size):
        attribute = block.attribute(ordinal)
        if attribute is None:
            state = RESERVED if reserved(ordinal) else FREE
            found.append(Address(ordinal, str(block.address(ordinal)), state))
        else:
            found.append(_taken(view, tracked, ordinal, attribute))
    return found


def _taken(view: View, tracked: Tracked, ordinal: int, attribute: Attribute) -> Address:
    text, sequence = str(tracked.block.address(ordinal)), tracked.block.sequence_of(ordinal)
    if attribute.released_at is not None:
        age = words.ago(attribute.released_at, view.at.wall)
        return Address(ordinal, text, COOLING, "released", attribute.handle or "", age=age, sequence=sequence)
    given = parse_attribute_time(attribute.active.get(TIMESTAMP, ""))
    allocation = tracked.allocation(ordinal)
    suspicion = view.suspects.get((tracked.cidr, ordinal))
    return Address(
        ordinal,
        text,
        RESERVED if attribute.windows_reserved else SUSPECTED if suspicion is not None else HELD,
        holder_of(attribute.active) or ("" if attribute.handle else "nobody is named"),
        allocation.clean_handle if allocation is not None else attribute.clean_handle,
        attribute.active.get("node", ""),
        words.ago(given, view.at.wall) if given is not None else "",
        sequence,
        words.sentence(suspicion.reason) if suspicion is not None else "",
    )


def holder_of(attrs: Mapping[str, str]) -> str:
    """Return who holds an address, by its attributes: ``namespace/pod``, the machine, or what kind of address it is."""
    namespace = attrs.get("namespace", "")
    prefix = f"{namespace}/" if namespace else ""
    if attrs.get("vmi-name"):
        return f"{prefix}{attrs['vmi-name']} (machine)"
    if attrs.get("pod"):
        return f"{prefix}{attrs['pod']}"
    if attrs.get("service"):
        return f"{prefix}{attrs['service']} (service)"
    return attrs.get("type") or attrs.get("note") or ""


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring addresses of which there is nothing to tell but that they are free or reserved."""

    first: Address
    last: Address
    number: int

    @property
    def state(self) -> str:
        return self.first.state


def folded(found: Sequence[Address]) -> list[Address | Run]:
    """Return the addresses with runs of free, and of reserved ones as one line each."""
    lines: list[Address | Run] = []
    start = 0
    while start < len(found):
        end = start + 1
        if not found[start].holder and not found[start].handle and found[start].state in (FREE, RESERVED):
            while end < len(found) and found[end].state == found[start].state and not found[end].holder:
                end += 1
        lines.append(found[start] if end == start + 1 else Run(found[start], found[end - 1], end - start))
        start = end
    return lines


# --- blocks and nodes ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node with everything that is its. ``standing``: what it is to Kubernetes."""

    name: str
    standing: str
    knode: str
    blocks: int
    in_use: int
    borrowed: int
    suspected: int


def node_rows(view: View) -> list[NodeRow]:
    """Return all nodes that are known, own a block or are named by a holder; those with suspects first."""
    blocks: Counter[str] = Counter()
    in_use: Counter[str] = Counter()
    borrowed: Counter[str] = Counter()
    for tracked in view.blocks.values():
        if tracked.host:
            blocks[tracked.host] += 1
        for node, number in tracked.tally.items():
            in_use[node] += number
            if node and node != tracked.host:
                borrowed[node] += number
    suspected: Counter[str] = Counter()
    for key in view.suspects:
        allocation = view.allocation(key)
        if allocation is not None:
            suspected[allocation.node] += 1
    names = {*view.nodes, *blocks, *in_use} - {""}
    rows = [
        NodeRow(
            name,
            _standing(view, name),
            view.nodes.get(name, ""),
            *(blocks[name], in_use[name], borrowed[name], suspected[name]),
        )
        for name in names
    ]
    return sorted(rows, key=lambda row: (-row.suspected, row.standing == "present", row.name))


def _standing(view: View, name: str) -> str:
    if name in view.leaving:
        return "gone, being cleaned up"
    knode = view.nodes.get(name)
    if knode is None:
        return "unknown to Calico" if name not in view.kube_nodes else "present"
    if not knode:
        return "not Kubernetes\N{RIGHT SINGLE QUOTATION MARK}"
    return "present" if knode in view.kube_nodes else "gone from Kubernetes"


@dataclass(frozen=True, slots=True)
class BlockRow:
    """A block in a list."""

    cidr: str
    pool: str
    owner: str
    size: int
    held: int
    cooling: int
    suspected: int
    empty_for: str = ""  #: how long nobody has used it


def block_row(view: View, cidr: str, suspected: Mapping[str, int]) -> BlockRow:
    tracked = view.blocks[cidr]
    cooling = tracked.block.cooling if tracked.cold_since is not None else 0
    since = view.empty_since.get(cidr)
    return BlockRow(
        cidr,
        view.pool_of.get(cidr, ""),
        owner_of(tracked),
        tracked.block.size,
        tracked.used - cooling,
        cooling,
        suspected.get(cidr, 0),
        words.duration(view.at.mono - since) if since is not None else "",
    )


# --- candidates ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Candidate:
    """An address that looks leaked: why, the first and the last look, and what comes next."""

    address: str
    block: str
    ordinal: int
    holder: str
    handle: str
    node: str
    reason: str
    state: str  #: candidate, confirmed, held, releasing, failing
    first: str
    last: str
    looks: int
    left: str


def candidates(view: View) -> list[Candidate]:
    """Return all suspected addresses: first what is stuck, then what is confirmed, then by the time that is left."""
    found = []
    for key, suspicion in view.suspects.items():
        allocation = view.allocation(key)
        if allocation is not None:
            found.append((_urgency(view, key, suspicion), _candidate(view, allocation, suspicion)))
    found.sort(key=lambda item: (item[0], item[1].block, item[1].ordinal))
    return [row for _, row in found]


def _urgency(view: View, key: AllocationKey, suspicion: Suspicion) -> tuple[int, float]:
    if key in view.held:
        return 0, 0.0
    if suspicion.confirmed:
        return 1, 0.0
    due = suspicion.due()
    return (3, 0.0) if due is None else (2, due)


def _candidate(view: View, allocation: Allocation, suspicion: Suspicion) -> Candidate:
    state, left = _prospect(view, allocation, suspicion)
    return Candidate(
        str(allocation.address),
        allocation.block,
        allocation.key[1],
        holder_of(allocation.attrs),
        allocation.clean_handle,
        allocation.node,
        suspicion.reason,
        state,
        f"{words.clock_time(suspicion.first.wall)}",
        f"{words.clock_time(suspicion.last.wall)}",
        suspicion.observations,
        left,
    )


def _prospect(view: View, allocation: Allocation, suspicion: Suspicion) -> tuple[str, str]:
    """Return the state of a suspected address, and when or whether it is going to be released."""
    if allocation.key in view.held:
        return "held", "until every address of its handle is confirmed"
    block = allocation.block
    if suspicion.confirmed:
        failures = view.failing.get(("release", block), 0)
        if view.options.dry_run:
            return "confirmed", "never: this is a dry run"
        if ("release", block) in view.busy:
            return "releasing", "now"
        return ("failing", f"tried again ({failures} failures)") if failures else ("confirmed", "at the next pass")
    due = suspicion.due()
    if due is None:
        return "candidate", "never: the grace period is 0"
    left = due - view.at.mono
    return "candidate", words.duration(left) if left > 0 else "at the next look"


# --- handles ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HandleRow:
    """A handle that is not as its blocks say."""

    id: str
    kind: str
    have: str
    want: str
    looks: int
    age: str
    result: str


def handle_rows(look: HandleLook) -> list[HandleRow]:
    return [_handle(handle, seen, look) for handle, seen in sorted(look.records.items(), key=_handle_order)]


def _handle_order(item: tuple[str, Observed]) -> tuple[str, str]:
    return item[1].judged.kind, item[0]


def _handle(handle: str, seen: Observed, look: HandleLook) -> HandleRow:
    judged = seen.judged
    return HandleRow(
        handle,
        judged.kind,
        _counts(judged.have),
        _counts(judged.want),
        seen.observations,
        words.duration(seen.last - seen.first),
        look.results.get(handle, ""),
    )


def _counts(counts: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{number} in {block}" for block, number in counts) or "none"


# --- searching ----------------------------------------------------------------------------------------------


def matching(view: View, wanted: str) -> Iterator[tuple[Tracked, Allocation]]:
    """Yield the allocations whose address is, or whose holder, handle or node contains, the text looked for."""
    text = wanted.strip().lower()
    if not text:
        return
    for tracked in view.blocks.values():
        for allocation in (*tracked.allocations.values(), *tracked.nameless.values()):
            if str(allocation.address) == text or any(
                text in part.lower() for part in (allocation.handle, allocation.node, holder_of(allocation.attrs))
            ):
                yield tracked, allocation
