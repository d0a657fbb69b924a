"""What follows from the answers of workers: state, counters, events, patience. Called by the loop only."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from calico_gc.act import NOT_GONE, Done, GiveBack, Release, Released, ReleaseNode, Thaw
from calico_gc.companions import DeleteNode
from calico_gc.facts import Allocation
from calico_gc.gate import NotAllowed
from calico_gc.handle_work import CHUNK_PAUSE, Looked, Repaired
from calico_gc.suspicion import Moment
from calico_gc.timing import moment
from calico_gc.view import UNKNOWN_NODE
from calico_gc.work import Action, ActionKey, Answer, told
from calico_ipam.errors import BadHandle, BadSequenceNumber, Conflict, IPAMError

if TYPE_CHECKING:
    from calico_gc.controller import Controller

log = logging.getLogger(__name__)


def progress(controller: Controller, part: Released) -> None:
    """Take over what a worker has done so far of a release."""
    now = moment(controller.clock)
    for allocation in part.freed:
        pool = controller.state.pools.of_block.get(allocation.block, "no_ippool")
        controller.record.reclaim(pool, allocation.node or UNKNOWN_NODE)
        reason = controller.state.suspects[allocation.key].reason if allocation.key in controller.state.suspects else ""
        controller.record.happened(now, "release", allocation.id, reason)
        log.info("Garbage collected leaked IP: %s", controller.named(allocation.key))
        controller.state.forget(allocation)
    if part.freed:
        nodes = {a.node for a in part.freed}  # an empty name: about the collector itself
        for node in sorted(nodes):
            number = sum(a.node == node for a in part.freed)
            controller.notify(
                "IPLeakReclaimed", node, f"{number} leaked addresses of block {part.freed[0].block} released"
            )
    for allocation in part.free:
        controller.state.forget(allocation)
    for allocation in part.alive + part.stale:
        if _same(controller, allocation):
            controller.state.suspect(allocation.key, None)
            controller.state.mark_dirty(allocation.node)
    level = logging.INFO if isinstance(part.error, NotAllowed) else logging.WARNING
    for allocation in part.failed:
        log.log(level, "leaked IP was not collected and stays for now: %s: %s", allocation.id, part.error)


def _same(controller: Controller, allocation: Allocation) -> bool:
    return controller.state.allocation(allocation.key) is allocation


def conclude(controller: Controller, action: Action, answer: Answer) -> None:
    """Take over the last answer to an action."""
    now = moment(controller.clock)
    controller.busy.pop(action.key, None)
    if isinstance(answer, Looked | Repaired):
        _concluded_handles(controller, action.key, answer, now)
        return
    if controller.options.dry_run:
        controller.planned[action.key] = action
        controller.record.happened(now, *told(action), result="dry-run")
        return
    error = answer.error
    if isinstance(error, NotAllowed):
        log.info("%s was not done: %s", action.key, error)
    if error is None and not _in_vain(answer):
        controller.backoff.succeeded(action.key)
    else:
        controller.failed(action.key, now, error)
    match action, answer:
        case Release(), Released():
            _concluded_release(controller, answer)
        case GiveBack(), Done():
            _concluded_give_back(controller, action, answer, now)
        case ReleaseNode(), Done():
            _concluded_node(controller, action, answer, now)
        case Thaw(), Done() if error is None:
            tracked = controller.state.blocks.get(action.cidr)
            if answer.gone and tracked is not None and tracked.revision == action.revision:
                controller.state.drop_block(action.cidr)
            elif not answer.gone:
                controller.thawed[action.cidr] = action.revision
        case DeleteNode(), Done():
            _concluded_deletion(controller, action, answer, now)


def _in_vain(answer: Done | Released) -> bool:
    """Tell whether the caches say what a live look does not, or cannot: that is asked again less and less often."""
    if isinstance(answer, Released):
        return bool(answer.alive or answer.stale) and not answer.freed
    return answer.note == NOT_GONE


def _concluded_handles(controller: Controller, key: ActionKey, answer: Looked | Repaired, now: Moment) -> None:
    if isinstance(answer, Looked):
        controller.handles.looked(answer, now.mono, now.wall, controller.options.handle_period() or 0.0)
        controller.repair_handles(now)
        return
    told = controller.handles.repaired(answer)
    controller.record.handle_actions.update(told)
    removed = sum(kind in ("orphan", "stuck") and result == "ok" for kind, result in told)
    repaired = sum(kind in ("skewed", "missing") and result == "ok" for kind, result in told)
    if removed:
        controller.record.happened(now, "handles-deleted", f"{removed} handles", "nothing in any block refers to them")
        controller.notify("OrphanHandlesDeleted", "", f"{removed} handles without addresses deleted")
    if repaired:
        controller.record.happened(now, "handles-repaired", f"{repaired} handles", "they count what blocks hold again")
        controller.notify("HandleRepaired", "", f"{repaired} handles repaired")
    if answer.error is not None:
        controller.handles.go_on_at = controller.failed(key, now, answer.error)
        return
    controller.backoff.succeeded(key)
    if controller.handles.due(controller.options.handles):
        controller.handles.go_on_at = now.mono + CHUNK_PAUSE  # more is left; the next pass begins with fresh lists
        controller.sleep_until(controller.handles.go_on_at)


def _concluded_release(controller: Controller, answer: Released) -> None:
    if answer.stale:
        controller.record.release_errors["sequence"] += len(answer.stale)
    if answer.error is not None:
        controller.record.syncs["error"] += 1
        controller.record.release_errors[_kind(answer.error)] += 1


def _concluded_give_back(controller: Controller, action: GiveBack, answer: Done, now: Moment) -> None:
    if answer.error is not None:
        log.warning("empty block %s of %s was not released: %s", action.cidr, action.host, answer.error)
        controller.record.happened(now, "release-block", action.cidr, action.host, str(answer.error))
        return
    tracked = controller.state.blocks.get(action.cidr)
    # If it is another one, the watch knows newer things than this answer.
    as_before = tracked is not None and tracked.block is action.block
    if answer.gone:
        controller.record.blocks_released += 1
        controller.record.happened(now, "release-block", action.cidr, action.host)
        controller.notify("EmptyBlockReleased", action.host, f"empty block {action.cidr} released")
        if as_before:
            controller.state.drop_block(action.cidr)
        return
    if answer.entry is not None and as_before:
        controller.state.put_block(answer.entry.value, answer.entry.revision)
        tracked = controller.state.blocks[action.cidr]
        controller.refused[action.cidr] = tracked.revision
        if answer.note == "no-affinity-row":
            text = f"block {action.cidr} says it belongs to {action.host}, but no affinity row says so; it is kept"
            if controller.record.found(now, answer.note, action.cidr, text):
                log.warning("%s", text)


def _concluded_deletion(controller: Controller, action: DeleteNode, answer: Done, now: Moment) -> None:
    if answer.note == NOT_GONE:
        controller.companions.look_for_gone = True
    elif answer.error is not None:
        controller.companions.look_for_gone = True
        log.warning("node %s, which Kubernetes has no more, was not deleted: %s", action.node, answer.error)
    elif answer.gone:
        controller.record.happened(now, "delete-node", action.node)
        log.info("Deleted Calico node %s, which Kubernetes has no more", action.node)


def _concluded_node(controller: Controller, action: ReleaseNode, answer: Done, now: Moment) -> None:
    node = action.node
    if answer.note == NOT_GONE:
        controller.leaving.pop(node, None)
        controller.state.mark_dirty(node)
        return
    if answer.error is not None:
        controller.record.nodes_released["error"] += 1
        text = f"node {node} is gone, but its blocks could not all be released: {answer.error}"
        if controller.record.found(now, "node-not-released", node, text):
            log.warning("%s", text)
            controller.notify("NodeIPAMReleaseFailed", node, text)
        return
    controller.record.nodes_released["ok"] += 1
    controller.record.findings.pop(("node-not-released", node), None)
    controller.record.forget_node(node)
    controller.record.happened(now, "release-node", node)
    controller.notify("NodeIPAMReleased", node, f"the blocks of node {node}, which is gone, were released")
    log.info("Released all blocks of node %s, which is gone", node)
    controller.leaving.pop(node, None)
    controller.state.dirty.pop(node, None)


def _kind(error: IPAMError) -> str:
    if isinstance(error, BadSequenceNumber):
        return "sequence"
    if isinstance(error, BadHandle):
        return "handle"
    return "conflict" if isinstance(error, Conflict) else "other"
