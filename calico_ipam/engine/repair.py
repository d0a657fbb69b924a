"""Mending what a check found, each finding by one guarded write (cli §18.8; issue of the operator's tool).

A write happens only if what it changes is still what was found; anything else is skipped with the reason. No address is
taken from its holder here: leaked ones are the business of ``ipam gc``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from calico_ipam.datastore.api import Create, Delete, Entry, Update
from calico_ipam.engine.admin import collect_cold_addresses, remove_ipam_host
from calico_ipam.engine.leaks import delete_stray_handle
from calico_ipam.engine.specific import SpecificRequest, assign_ip
from calico_ipam.engine.survey import Survey
from calico_ipam.engine.transaction import handle_write
from calico_ipam.engine.world import CONFIG, Engine
from calico_ipam.errors import IPAMError, RefusedError
from calico_ipam.model.addresses import parse_address, parse_network
from calico_ipam.model.affinity import CONFIRMED, HOST, Affinity, BlockOwner
from calico_ipam.model.block import Block
from calico_ipam.model.config import IPAMConfig
from calico_ipam.model.findings import Finding
from calico_ipam.model.handle import Handle
from calico_ipam.model.keys import AffinityKey, BlockKey, HandleKey


@dataclass(frozen=True, slots=True)
class Cure:
    """What is done about a kind of finding: a sentence with ``{subject}``, and the function that does it."""

    plan: str
    do: Callable[[Engine, Survey, Finding], str]  #: returns why nothing was done; empty when it was


@dataclass(frozen=True, slots=True)
class Mended:
    """What became of one finding; ``skipped`` says why nothing was done."""

    finding: Finding
    skipped: str = ""
    failed: bool = False


def repair(
    engine: Engine, survey: Survey, found: Sequence[Finding], tell: Callable[[Mended], None] | None = None
) -> list[Mended]:
    """Mend findings, each by itself: one that fails does not stop the others."""
    results = []
    for finding in found:
        try:
            result = Mended(finding, CURES[finding.kind].do(engine, survey, finding))
        except IPAMError as error:
            result = Mended(finding, str(error), failed=True)
        results.append(result)
        if tell is not None:
            tell(result)
    return results


_CHANGED = "it changed since it was found"


# --- addresses -----------------------------------------------------------------------------------------------


def _allocate(engine: Engine, survey: Survey, finding: Finding) -> str:
    """Allocate an address to whoever uses it already."""
    address = parse_address(finding.subject)
    users = survey.users.get(address, [])
    if len({user.name for user in users}) != 1:
        return "several use it"
    user = users[0]
    if user.kind == "node":
        node = user.name.removeprefix("Node(").removesuffix(")")
        return f"it is a tunnel address of node {node}, whose agent must take it again"
    if user.kind != "workload":
        return f"{user.name} must ask for it"
    namespace, _, endpoint = user.name.removeprefix("Workload(").removesuffix(")").partition("/")
    stored = _endpoint(engine, namespace, endpoint)
    if stored is None:
        return "its workload is gone"
    spec = stored.value.spec
    node = str(spec.get("node") or "")
    container = str(spec.get("containerID") or "")
    if not node:
        return "its endpoint names no node"
    handle = f"k8s-pod-network.{container}" if container else None
    attrs = {"node": node, "namespace": namespace, "pod": str(spec.get("pod") or spec.get("workload") or endpoint)}
    assign_ip(engine, SpecificRequest(address, node, handle=handle, attrs=attrs))
    return ""


def _endpoint(engine: Engine, namespace: str, name: str) -> Entry | None:
    from calico_ipam.model.keys import ResourceKey
    from calico_ipam.model.resource import WORKLOAD_ENDPOINT

    key = ResourceKey(WORKLOAD_ENDPOINT, name, namespace)
    return engine.store.read(key).entry(key)


# --- blocks --------------------------------------------------------------------------------------------------


def _stored_block(engine: Engine, finding: Finding) -> Entry | None:
    key = BlockKey(parse_network(finding.block))
    return engine.store.read(key).entry(key)


def _rewrite(engine: Engine, _survey: Survey, finding: Finding) -> str:
    """Write a block as it is understood: damaged slots count as in use, what is free and lost joins the queue."""
    entry = _stored_block(engine, finding)
    if entry is None:
        return _CHANGED
    block: Block = entry.value
    known = set(block.unallocated)
    lost = [ordinal for ordinal, index in enumerate(block.allocations) if index is None and ordinal not in known]
    used = sorted({index for index in block.allocations if index is not None})
    moved = {old: new for new, old in enumerate(used)}
    now = engine.clock.now()
    attributes = tuple(
        replace(block.attributes[i], released_at=min(block.attributes[i].released_at or 0, now) or None) for i in used
    )
    sound = replace(
        block,
        unallocated=(*block.unallocated, *lost),
        allocations=tuple(None if index is None else moved[index] for index in block.allocations),
        attributes=attributes,
        stored=None,
        problems=(),
    )
    engine.store.commit(Update(entry, sound.bumped()))
    return ""


def _collect(engine: Engine, _survey: Survey, finding: Finding) -> str:
    entry = _stored_block(engine, finding)
    if entry is None:
        return _CHANGED
    config = engine.store.read(CONFIG).entry(CONFIG)
    collect_cold_addresses(engine, config.value if config is not None else IPAMConfig(), entry)
    return ""


def _forget_node(engine: Engine, _survey: Survey, finding: Finding) -> str:
    """Take its blocks from a node that does not exist; addresses in them stay."""
    from calico_ipam.engine.world import node_key

    node = str(finding.data["node"])
    key = node_key(node)
    if engine.store.read(key).entry(key) is not None:
        return "the node exists again"
    remove_ipam_host(engine, BlockOwner(HOST, node))
    return ""


# --- rows ----------------------------------------------------------------------------------------------------


def _delete_row(engine: Engine, _survey: Survey, finding: Finding) -> str:
    """Remove a row that names a block which its owner does not have."""
    row: Entry = finding.data["row"]
    block = _stored_block(engine, finding)
    owner = row.key.owner  # type: ignore[union-attr]  # rows have affinity keys
    if block is not None and block.value.affinity == str(owner):
        return "the block is its owner's now"
    if not row.value.usable and row.value.state == "pending":
        return "a claim may be under way: it is removed by whoever claims the block"
    engine.store.commit(Delete(row))
    return ""


def _create_row(engine: Engine, _survey: Survey, finding: Finding) -> str:
    entry = _stored_block(engine, finding)
    owner = entry.value.owner if entry is not None else None
    if entry is None or owner is None:
        return _CHANGED
    engine.store.commit(Create(AffinityKey(owner, entry.value.cidr), Affinity(CONFIRMED)))
    return ""


# --- handles -------------------------------------------------------------------------------------------------


def _delete_handle(engine: Engine, _survey: Survey, finding: Finding) -> str:
    entry: Entry = finding.data["entry"]
    return "" if delete_stray_handle(engine, finding.subject, entry.revision) else _CHANGED


def _recount(engine: Engine, _survey: Survey, finding: Finding) -> str:
    """Make a handle count what the blocks hold of it, as they are now."""
    key = HandleKey(finding.subject)
    entry = engine.store.read(key).entry(key)
    real = _held(engine, finding.subject)
    if not real and entry is None:
        return _CHANGED
    value = replace(entry.value, blocks=real) if entry is not None else Handle(finding.subject, real)
    if entry is not None and value == entry.value:
        return _CHANGED
    engine.store.commit(handle_write(key, entry, value))
    return ""


def _held(engine: Engine, handle: str) -> dict[str, int]:
    from calico_ipam.engine.survey import BLOCKS

    found = {}
    for entry in engine.store.list(BLOCKS):
        number = len(entry.value.held_by(handle))
        if number:
            found[str(entry.value.cidr)] = number
    return found


CURES: dict[str, Cure] = {
    "not-allocated": Cure("allocate {subject} to the workload that uses it", _allocate),
    "invalid-block": Cure("rewrite block {subject}; slots that make no sense count as in use", _rewrite),
    "lost-ordinals": Cure("rewrite block {subject}; lost addresses become free", _rewrite),
    "old-cooldown": Cure("free the addresses of block {subject} whose cooldown is over", _collect),
    "no-node": Cure("take block {subject} from the node that does not exist; its addresses stay", _forget_node),
    "contested-block": Cure("remove the row of the node that does not own block {subject}", _delete_row),
    "row-without-block": Cure("remove the row for block {subject}, which does not exist", _delete_row),
    "block-without-row": Cure("write the missing row for block {subject}", _create_row),
    "stray-handle": Cure("delete handle {subject}, if it is still the same and empty", _delete_handle),
    "missing-handle": Cure("make handle {subject} with what the blocks hold of it", _recount),
    "handle-count": Cure("make handle {subject} count what the blocks hold of it", _recount),
}


def mendable(found: Sequence[Finding], only: Sequence[str] = (), subjects: Sequence[str] = ()) -> list[Finding]:
    """Return the findings that can be mended here, of these kinds and about these subjects, where given.

    Raises RefusedError for a kind that does not exist or that has no cure here.
    """
    for kind in only:
        if kind not in CURES:
            raise RefusedError(f"no repair for {kind!r}", subject=kind, hint=f"There is one for {', '.join(CURES)}.")
    return [
        each
        for each in found
        if each.kind in CURES and (not only or each.kind in only) and (not subjects or each.subject in subjects)
    ]
