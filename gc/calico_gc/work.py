"""Actions, and carrying them out in a worker: on copies, never on the state."""

from __future__ import annotations

from collections.abc import Callable

from calico_gc import act
from calico_gc.act import Done, GiveBack, Live, Release, Released, ReleaseNode, Thaw
from calico_gc.companions import DeleteNode, SyncLabels, delete_node, sync_labels
from calico_gc.handle_work import ListMarked, LookAtHandles, Looked, Repair, Repaired, RepairHandles, look
from calico_gc.timing import Bucket, Clock
from calico_ipam.engine.world import Engine

ActionKey = tuple[str, str]
Action = Release | Thaw | GiveBack | ReleaseNode | DeleteNode | SyncLabels | LookAtHandles | RepairHandles
Answer = Released | Done | Looked | Repaired


class Worker:
    """Carries out actions. Safe to share between threads. ``handle_bucket``: the pace of repairs of handles."""

    def __init__(
        self,
        engine: Engine,
        live: Live,
        list_marked: ListMarked,
        clock: Clock,
        handle_bucket: Bucket,
        progress: Callable[[Released], None],
    ) -> None:
        self._engine = engine
        self._live = live
        self._list_marked = list_marked
        self._clock = clock
        self._handle_bucket = handle_bucket
        self._progress = progress

    def run(self, action: Action) -> Answer:
        """Carry out an action. Errors of the datastore are part of the answer."""
        engine, live = self._engine, self._live
        match action:
            case Release():
                return act.release(engine, live, action, self._progress)
            case Thaw():
                return act.thaw(engine, action)
            case GiveBack():
                return act.give_back(engine, action)
            case ReleaseNode():
                return act.release_node(engine, live, action)
            case DeleteNode():
                return delete_node(engine, live, action)
            case SyncLabels():
                return sync_labels(engine, action)
            case LookAtHandles():
                return look(self._list_marked, action)
            case RepairHandles():
                return Repair(engine.store, self._list_marked, self._clock, self._handle_bucket).run(action)

    def preview(self, action: Action) -> Answer:
        """Do only what reads of an action; for a dry run."""
        match action:
            case Release():
                leaked = {a.key for a in act.look_again(self._live, action)}
                answer = Released(alive=tuple(a for a in action.group.allocations if a.key not in leaked))
                self._progress(answer)
                return answer
            case LookAtHandles():
                return look(self._list_marked, action)
            case _:
                return Done()


def same_work(before: Action | None, now: Action) -> bool:
    """Tell whether an action would do what was planned before; what is believed of addresses may have changed."""
    if isinstance(before, Release) and isinstance(now, Release):
        return before.group.allocations == now.group.allocations
    return before == now


def told(action: Action) -> tuple[str, str, str]:
    """Return kind, subject and detail of an action for the log of actions."""
    match action:
        case Release(group):
            return "release", group.key, ", ".join(a.id for a in group.allocations)
        case Thaw(cidr):
            return "thaw", cidr, ""
        case GiveBack(cidr, host):
            return "release-block", cidr, host
        case ReleaseNode(node):
            return "release-node", node, ""
        case DeleteNode(node):
            return "delete-node", node, ""
        case SyncLabels(labels):
            return "labels", ", ".join(sorted(labels)), ""
        case LookAtHandles() | RepairHandles():
            return "handles", action.key[1], ""
