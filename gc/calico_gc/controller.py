"""The collector as a machine of events: changes in, actions out, answers in (gc §3, §6 to §11).

It owns the state and is used by one thread only. It reads nothing but nodes whose standing the caches do not tell;
everything that writes is an action that a worker carries out on copies and whose answer comes back as an event. So the
changes of other nodes are still taken in while thousands of addresses are being released.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from calico_gc import conclude, decide
from calico_gc.act import GiveBack, Live, Release, Released, ReleaseNode, Thaw
from calico_gc.companions import Companions
from calico_gc.decide import LiveNode, NodeDecision, NodeFacts, Standing
from calico_gc.facts import Allocation, AllocationKey
from calico_gc.gate import NotAllowed
from calico_gc.handle_work import HandleKeeper, LookAtHandles, RepairHandles
from calico_gc.handles import Rules as HandleRules
from calico_gc.machines import machine_handles, orphaned_machine_handles
from calico_gc.nameless import look_at_nameless
from calico_gc.options import Options
from calico_gc.record import Record
from calico_gc.state import State
from calico_gc.suspicion import Moment, Suspicion
from calico_gc.timing import MOST_FAILURES, Backoff, Clock, Jumps, moment
from calico_gc.work import Action, ActionKey, Answer, same_work
from calico_ipam.errors import IPAMError, OutcomeUnknown, TransientError
from calico_ipam.model.config import IPAMConfig

log = logging.getLogger(__name__)

#: seconds for which the IPAM settings are believed; they only say when a cooling address is worth a look
CONFIG_SECONDS = 5.0
#: a leak that is held for so many grace periods is told as an event
STUCK_GRACES = 4.0
#: kinds of findings that every full scan either meets again or closes
LOOKED_FOR = (
    decide.NODE_MISMATCH,
    decide.FINISHED_WITHOUT_ADDRESS,
    "in-use-on-gone-node",
    "held",
    "nameless",
    "machine-gone",
)


@dataclass(slots=True)
class Controller:
    """Decides what to do. ``submit`` hands an action to a worker; ``config`` reads the IPAM settings."""

    state: State
    live: Live
    submit: Callable[[Action], None]
    config: Callable[[], IPAMConfig]
    clock: Clock
    options: Options = field(default_factory=Options)
    record: Record = field(default_factory=Record)
    notify: Callable[[str, str, str], None] = lambda *_: None

    companions: Companions = field(default_factory=Companions)
    handles: HandleKeeper = field(default_factory=HandleKeeper)
    folded_names: bool = False  #: handles are stored under lower-case names (the Kubernetes API)
    active: bool = True  #: leader, or alone
    busy: dict[ActionKey, Action] = field(default_factory=dict)  #: actions that are with a worker
    backoff: Backoff = field(default_factory=Backoff)
    jumps: Jumps = field(default_factory=Jumps)
    leaving: dict[str, None] = field(default_factory=dict)  #: nodes that are gone and use nothing
    held: tuple[AllocationKey, ...] = ()
    refused: dict[str, str] = field(default_factory=dict)  #: empty block that was not given back -> its revision
    thawed: dict[str, str] = field(default_factory=dict)  #: block that was written -> revision it was then
    planned: dict[ActionKey, Action] = field(default_factory=dict)  #: what a dry run would do
    wake_at: float | None = None
    _config: tuple[float, IPAMConfig] | None = None

    # --- events --------------------------------------------------------------------------------------------

    def block_changed(self, cidr: str) -> None:
        """Something about a block is new: what was refused or failed because of its old state is worth a try."""
        self.refused.pop(cidr, None)
        self.thawed.pop(cidr, None)
        host = self.state.owners.get(cidr)
        if host in self.leaving:
            self.backoff.succeeded(("node", host))

    def node_changed(self, name: str) -> None:
        """A Calico node came or went: what waited because of it is tried again at once."""
        self.backoff.succeeded(("node", name))
        self.backoff.succeeded(("look", name))
        for allocation in self.state.by_node.get(name, {}).values():
            self.backoff.succeeded(("release", allocation.block))

    def tick(self) -> None:
        self.state.full_scan = True

    def step_down(self) -> None:
        """Leadership is lost: nothing that was believed counts any more (gc §18.2)."""
        self.active = False
        self.state.forget_suspicions()
        self.leaving.clear()
        self.held = ()
        self.handles.forget()

    # --- one pass ------------------------------------------------------------------------------------------

    def sync(self) -> bool:
        """Look at what changed and hand out what is to be done. False: the datastore is locked or not in sync."""
        self.wake_at = None
        if not self.state.ready or not self.state.in_sync or not self.active:
            self.handles.forget()
            self.record.syncs["skipped"] += 1
            return False
        now = moment(self.clock)
        if jump := self.jumps.jumped(now):
            log.warning("this machine's clock was set by %+.0f s: cooling addresses wait for a whole cooldown", jump)
        self._scan(now)
        self._release_leaks(now)
        self._thaw(now)
        self._give_back(now)
        self._release_nodes(now)
        self._companions(now)
        self._look_at_handles(now)
        self.sleep_until(self.backoff.next_due(now.mono))
        self.record.syncs["ok"] += 1
        self.record.last_success = now.wall
        return True

    def failed(self, key: ActionKey, now: Moment, error: IPAMError | None = None) -> float | None:
        """Something failed, or led nowhere: return when it is tried again, None: with the next full scan.

        A server that is away is no fault of what was tried: once it is back, nothing has to wait for a scan.
        """
        away = isinstance(error, TransientError | OutcomeUnknown | NotAllowed)
        due = self.backoff.failed(key, now.mono, math.inf if away else MOST_FAILURES)
        if due is None:
            self.record.parked[key[0]] += 1
            log.warning(
                "%s %s failed %d times in a row and waits for the next full scan", *key, self.backoff.count(key)
            )
        self.sleep_until(due)
        return due

    def sleep_until(self, due: float | None) -> None:
        if due is not None and (self.wake_at is None or due < self.wake_at):
            self.wake_at = due

    def _scan(self, now: Moment) -> None:
        full, self.state.full_scan = self.state.full_scan, False
        if full:
            self.backoff.unpark(now.mono)
        names = list(self.state.nodes_of_interest() if full else self.state.dirty)
        names = [name for name in names if self.backoff.ready(("look", name), now.mono)]
        for decision in self._decisions(names, now):
            self._believe(decision, now)
        if full:
            self._look_at_nameless(now)
            self._remark_machines(now)
            self.record.settle(LOOKED_FOR, now.mono)

    def _decisions(self, names: Sequence[str], now: Moment) -> Iterable[NodeDecision]:
        alone = not self.state.kubernetes  # then only a live look tells, and it knows this host alone
        unknown = [name for name in names if alone or not self.state.nodes.get(name)]
        standings = self.live.nodes(unknown) if unknown else {}
        for name in names:
            knode = "" if alone else self.state.nodes.get(name, "")
            standing = Standing.PRESENT if knode else standings.get(name, LiveNode(Standing.UNKNOWN)).standing
            if not knode and standing is Standing.PRESENT:
                knode = standings[name].knode
            facts = NodeFacts(
                name,
                standing,
                knode,
                bool(knode) and (alone or knode in self.state.kube_nodes),
                tuple(self.state.by_node.get(name, {}).values()),
            )
            yield decide.look_at_node(facts, self.state, self.state.suspects, self.options.rules, now)

    def _believe(self, decision: NodeDecision, now: Moment) -> None:
        node = decision.node
        if decision.look_again:
            self.state.mark_dirty(node)
            self.failed(("look", node), now)
            return
        self.backoff.succeeded(("look", node))
        self._note(decision.suspicions)
        for remark in decision.remarks:
            self._remark(now, remark.kind, remark.allocation)
        if decision.release and node not in self.state.owned and node not in self.state.by_node:
            self.record.forget_node(node)  # nothing is left of it: its series end
        elif decision.release:
            self.leaving.setdefault(node)  # looked at again by every full scan, and when something of it changes
            self.state.dirty.pop(node, None)
            return
        self.leaving.pop(node, None)
        self.state.dirty.pop(node, None)
        for key in decision.in_use:
            allocation = self.state.allocation(key)
            if allocation is not None:
                self._remark(now, "in-use-on-gone-node", allocation)

    def _note(self, suspicions: Mapping[AllocationKey, Suspicion | None]) -> None:
        """Take over what is believed of allocations now, and say what is new."""
        for key, suspicion in suspicions.items():
            before = self.state.suspects.get(key)
            if before is None and suspicion is None:
                continue
            self.state.suspect(key, suspicion)
            if suspicion is not None and before is None:
                self.record.detected[suspicion.reason] += 1
                log.info("Candidate IP leak: %s (%s)", self.named(key), suspicion.reason)
            if suspicion is not None and suspicion.confirmed and not (before and before.confirmed):
                log.warning("Confirmed IP leak: %s (%s)", self.named(key), suspicion.reason)
            if suspicion is None:
                log.info("IP is in use after all: %s", self.named(key))

    def _remark(self, now: Moment, kind: str, allocation: Allocation) -> None:
        text = f"{allocation.id} of {_pod_text(allocation)} on node {allocation.node or 'unknown'}"
        if self.record.found(now, kind, allocation.id, text) and kind == decide.NODE_MISMATCH:
            log.warning("%s is used by a pod on another node than IPAM has noted; it is kept", text)
            self.notify("IPInUseNodeMismatch", allocation.node, text)

    def _look_at_nameless(self, now: Moment) -> None:
        """Addresses without a handle or a node are told, and looked at where that was asked for (limit U26)."""
        for cidr, tracked in self.state.blocks.items():
            self._note(
                look_at_nameless(tracked, self.state.nodes, self.state, self.state.suspects, self.options.rules, now)
            )
            if tracked.nameless:
                text = f"block {cidr} holds {len(tracked.nameless)} addresses without a handle"
                self.record.found(now, "nameless", cidr, text)
            if "" in tracked.tally and tracked.host:
                text = f"block {cidr} holds {tracked.tally['']} addresses that name no node"
                self.record.found(now, "nameless", f"{cidr} node", text)

    def _remark_machines(self, now: Moment) -> None:
        """Handles of machines that are gone make a machine of that name unable to start; they are told (limit U5)."""
        machines = self.state.machines
        if machines is None:
            return
        theirs = [handle for handle in self.state.by_handle if ".vmi." in handle]
        for handle in orphaned_machine_handles(theirs, machine_handles(theirs, machines)):
            text = f"handle {handle} holds addresses of a virtual machine that is gone"
            if self.record.found(now, "machine-gone", handle, text):
                self.notify("VMHandleOrphaned", "", text)

    def named(self, key: AllocationKey) -> str:
        found = self.state.allocation(key)
        if found is None:
            return f"ordinal {key[1]} of {key[0]}"
        return f"ip={found.address} handle={found.handle!r} node={found.node} pod={_pod_text(found)}"

    # --- handing out -------------------------------------------------------------------------------------------

    def _start(self, action: Action, now: Moment) -> bool:
        """Hand an action to a worker unless it is there already or has to wait."""
        if action.key in self.busy:
            return False
        if not self.backoff.ready(action.key, now.mono):
            return False
        if self.options.dry_run and same_work(self.planned.get(action.key), action):
            return False
        self.busy[action.key] = action
        self.submit(action)
        return True

    def _release_leaks(self, now: Moment) -> None:
        releases = [action for action in self.busy.values() if isinstance(action, Release)]
        taken = {block for action in releases for block in action.group.blocks}
        waiting = {key[1] for key in self.backoff.waiting(now.mono) if key[0] == "release"}
        groups, held = decide.group_leaks(self.state, taken | waiting, self.options.most_releases, self.held)
        for group in groups:
            self._start(Release(group, self.options.rules, *self._unreadable()), now)
        self.held = tuple(held)
        for key in held:
            self._remark_held(key, now)

    def _remark_held(self, key: AllocationKey, now: Moment) -> None:
        allocation, suspicion = self.state.allocation(key), self.state.suspects[key]
        if allocation is None:
            return
        text = f"{allocation.id} looks leaked, but its handle has another address that is in use"
        self.record.found(now, "held", allocation.id, text)
        if now.mono - suspicion.first.mono > STUCK_GRACES * max(suspicion.grace, self.options.period):
            self.notify("IPLeakStuck", allocation.node, text)

    def _thaw(self, now: Moment) -> None:
        if not self.state.cold:
            return
        if self._config is None or now.mono - self._config[0] > CONFIG_SECONDS:
            try:
                self._config = (now.mono, self.config())
            except IPAMError as error:
                log.warning("the IPAM configuration cannot be read, cooling addresses wait: %s", error)
                self.sleep_until(now.mono + CONFIG_SECONDS)
                return
        config = self._config[1]
        if now.mono < (settled := self.jumps.settled_at(config.cooldown_seconds)):
            self.sleep_until(settled)
            return
        for cidr in decide.cooled_down(self.state.cold, config.cooldown_seconds, now):
            tracked = self.state.blocks[cidr]
            if self.thawed.get(cidr) != tracked.revision:
                self._start(Thaw(cidr, tracked.revision, config), now)
        later = [at for at in self.state.cold.values() if at > now.wall - config.cooldown_seconds * 1_000_000_000]
        if later:
            wait = (min(later) - now.wall) / 1e9 + config.cooldown_seconds
            self.sleep_until(now.mono + max(1.0, wait))

    def _give_back(self, now: Moment) -> None:
        busy = {cidr for kind, cidr in self.busy if kind == "give-back"}
        empty = {c: h for c, h in self.state.empty.items() if c not in self.refused and c not in busy}
        look = decide.look_at_empty_blocks(
            empty,
            {host: blocks - busy for host, blocks in self.state.owned.items()} if busy else self.state.owned,
            self.state.empty_since,
            {host: self._untouched_by_flannel(host) for host in set(empty.values())},
            self.options.rules.leak_grace,
            now,
        )
        others = {c: s for c, s in self.state.empty_since.items() if c not in empty}
        self.state.empty_since = {**others, **look.since}
        for cidr in look.release:
            tracked = self.state.blocks[cidr]
            self._start(GiveBack(cidr, self.state.empty[cidr], tracked.block, self.options.repair_rowless), now)

    def _untouched_by_flannel(self, host: str) -> bool:
        knode = self.state.nodes.get(host, "")
        node = self.state.kube_nodes.get(knode)
        return node is None or not node.migrating

    def _release_nodes(self, now: Moment) -> None:
        for node in list(self.leaving):
            mine = self.state.by_node.get(node, {})
            if all(allocation.windows_reserved for allocation in mine.values()):
                self._start(ReleaseNode(node), now)

    def _companions(self, now: Moment) -> None:
        if self.options.node_deletion:
            for gone in self.companions.gone_nodes(self.state):
                if not self._start(gone, now):
                    self.companions.look_for_gone = True
        if self.options.label_sync:
            work = self.companions.label_work(self.state, now)
            if work is not None and not self._start(work, now):
                self.companions.relabel.update(self.state.kube_nodes)

    def _look_at_handles(self, now: Moment) -> None:
        period, keeper = self.options.handle_period(), self.handles
        if period is None:
            return
        rules = HandleRules(self.options.handles.keep, self.folded_names)
        if now.mono >= keeper.next_at:
            keeper.next_at = now.mono + period
            blocks = tuple(tracked.block for tracked in self.state.blocks.values())
            unreadable, blind = self._unreadable()
            self._start(LookAtHandles(blocks, unreadable, blind, self._leaking(), rules), now)
        if keeper.go_on_at is not None and now.mono >= keeper.go_on_at:
            keeper.go_on_at = None
            self.repair_handles(now)
        self.sleep_until(keeper.next_at)
        self.sleep_until(keeper.go_on_at)

    def _unreadable(self) -> tuple[frozenset[str], bool]:
        """Return what cannot be read, and whether a block whose very CIDR is unknown is among it.

        Such a block may hold something of any handle.
        """
        names = frozenset(self.state.damaged)
        return names, any("/assignment/" in name or name.startswith("IPAMBlock/") for name in names)

    def _leaking(self) -> frozenset[str]:
        found = (self.state.allocation(key) for key in self.state.suspects)
        return frozenset(allocation.clean_handle for allocation in found if allocation is not None)

    def repair_handles(self, now: Moment) -> None:
        due = self.handles.due(self.options.handles)
        if not due:
            return
        if self.options.dry_run:
            new = [r.judged for r in due if self.handles.results.get(r.judged.id) != "dry-run"]
            self.record.handle_actions.update((judged.kind, "dryrun") for judged in new)
            self.handles.results.update({judged.id: "dry-run" for judged in new})
            return
        rules = HandleRules(self.options.handles.keep, self.folded_names)
        self._start(RepairHandles(due, rules, self._leaking()), now)

    # --- answers -----------------------------------------------------------------------------------------------

    def progress(self, part: Released) -> None:
        """Take over what a worker has done so far of a release."""
        conclude.progress(self, part)

    def conclude(self, action: Action, answer: Answer) -> None:
        """Take over the last answer to an action."""
        conclude.conclude(self, action, answer)


def _pod_text(allocation: Allocation) -> str:
    namespace, name = allocation.pod
    return f"{namespace}/{name}" if name else "-"
