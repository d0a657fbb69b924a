"""Predicates and changes of the table of exceptions for steps in which something happens in between."""

from __future__ import annotations

from tests.golden.library_documents import block_key, rows
from tests.golden.library_reruns import as_if_undisturbed, hooks_missed, hooks_of, rerun, take
from tests.golden.library_scenario import Expectation, Hook, Moment, State

CLAIMS = ("auto_assign", "assign_ip", "claim_affinity", "ensure_block")


# --- AssignIP (L2) -------------------------------------------------------------------------------------------


def cap_reached_by_retries(moment: Moment, ours: State) -> bool:
    text = (moment.step.error or {}).get("text", "")
    return moment.step.op == "assign_ip" and bool(moment.step.hooks) and text.startswith("Max retries hit")


def without_missed(moment: Moment, expected: Expectation, ours: State) -> None:
    """As if nothing happened at the calls that ours does not make."""
    missed = hooks_missed(moment, ours)
    take(expected, rerun(moment, ours, [hook for hook in moment.step.hooks if hook not in missed]), moment)


# --- claiming (L5, L31, atomic) ------------------------------------------------------------------------------


def half_claim(moment: Moment, ours: State) -> bool:
    """A claim is disturbed at a write of an affinity row that ours does not make."""
    missed = hooks_missed(moment, ours) if moment.step.op in CLAIMS and _half_claim_hooks(moment) else []
    return any(hook in missed for hook in _half_claim_hooks(moment))


def _half_claim_hooks(moment: Moment) -> list[Hook]:
    return hooks_of(moment, kind="affinity", call="update") + hooks_of(moment, kind="affinity", call="delete")


def left_pending(moment: Moment, ours: State) -> list[str]:
    """Return the rows that upstream leaves pending, because it could not look for their block, or not make it."""
    failing = [*hooks_of(moment, kind="block", call="get"), *hooks_of(moment, kind="block", call="create")]
    if moment.step.op not in CLAIMS or not any(h.when == "before" and h.error for h in failing):
        return []
    return [
        key
        for key, _, _ in rows(moment.after)
        if key in moment.step.changed and key not in ours and moment.after[key].get("state") == "pending"
    ]


def no_row(moment: Moment, expected: Expectation, ours: State) -> None:
    for key in left_pending(moment, ours):
        expected.after.pop(key, None)


def settings_reread(moment: Moment, ours: State) -> bool:
    reads = hooks_of(moment, kind="config", call="get")
    return bool(reads) and bool(hooks_missed(moment, ours))


def _blocks_gone(moment: Moment) -> list[str]:
    """Return the blocks that somebody deletes when upstream is about to write them."""
    hooks = [h for call in ("update", "delete") for h in hooks_of(moment, kind="block", call=call, when="before")]
    return [key for hook in hooks for key in hook.delete if key in moment.before]


def block_gone(moment: Moment, ours: State) -> bool:
    told = (moment.step.error or {}).get("identifier", "").startswith("BlockKey")
    gone = moment.step.op in ("assign_ip", "release_ips", "release_by_handle") and told
    return gone and bool(_blocks_gone(moment))


def as_if_never_there(moment: Moment, expected: Expectation, ours: State) -> None:
    gone = _blocks_gone(moment)
    take(expected, rerun(moment, {k: v for k, v in ours.items() if k not in gone}, ()), moment)


def claim_disturbed(moment: Moment, ours: State) -> bool:
    about = (moment.step.error or {}).get("identifier", "")
    gone = (moment.step.error or {}).get("type") == "errors.ErrorResourceDoesNotExist"
    in_claim = moment.step.op in CLAIMS and gone and about.startswith("BlockAffinityKey")
    return in_claim and not half_claim(moment, ours)


def filled(moment: Moment, ours: State) -> bool:
    text = (moment.step.error or {}).get("text", "")
    return moment.step.op == "auto_assign" and bool(moment.step.hooks) and " free ips which is less than " in text


def next_block(moment: Moment, expected: Expectation, ours: State) -> None:
    outside = {write["key"]: write["value"] for hook in moment.step.hooks for write in hook.put}
    take(expected, rerun(moment, {**ours, **outside}, ()), moment)


def answer_lost(moment: Moment, ours: State) -> bool:
    if moment.step.op == "release_block_affinity" or not hooks_of(moment, when="after", error="datastore"):
        return False  # the former is one attempt: who makes it is told that its outcome is not known
    outcome = rerun(moment, ours, ())
    recorded = Expectation.recorded(moment)
    return (outcome.result, outcome.error, outcome.after) != (recorded.result, recorded.error, recorded.after)


def _put_by_own_host(moment: Moment) -> list[str]:
    """Return the blocks that another process of the same host creates before us."""
    owner = f"host:{moment.step.args.get('hostname')}"
    found = []
    for hook in hooks_of(moment, call="create", kind="block", when="before"):
        found += [w["key"] for w in hook.put if isinstance(w["value"], dict) and w["value"].get("affinity") == owner]
    return found


def lost_to_self(moment: Moment, ours: State) -> bool:
    return moment.step.op in CLAIMS and bool(_put_by_own_host(moment)) and moment.step.error is None


def one_more_write(moment: Moment, expected: Expectation, ours: State) -> None:
    for key in _put_by_own_host(moment):
        put = next(w["value"] for h in moment.step.hooks for w in h.put if w["key"] == key)
        block = expected.after[key] = dict(expected.after[key])
        block["sequenceNumber"] += 1
        numbers = block["sequenceNumberForAllocation"]
        old = put.get("sequenceNumberForAllocation") or {}
        block["sequenceNumberForAllocation"] = {o: n if old.get(o) == n else n + 1 for o, n in numbers.items()}


# --- releasing (atomic) --------------------------------------------------------------------------------------


def _marked(moment: Moment, ours: State) -> list[str]:
    """Return the rows that upstream leaves marked for deletion by an operation which did not come to its end."""
    return [
        key
        for key, _, _ in rows(moment.after)
        if moment.after[key] != ours.get(key) and moment.after[key].get("state") == "pendingDeletion"
    ]


def _half_release_hooks(moment: Moment) -> list[Hook]:
    released = moment.step.op.startswith("release_") or moment.step.op == "remove_ipam_host"
    return [
        *(hooks_of(moment, kind="affinity", call="update") if released else ()),
        *(hooks_of(moment, kind="affinity", call="delete", error="datastore") if released else ()),
    ]


def half_release(moment: Moment, ours: State) -> bool:
    if reclaim_fails(moment, ours):
        return False
    return bool(moment.step.hooks) and bool(_marked(moment, ours) or _half_release_hooks(moment))


def row_unchanged(moment: Moment, expected: Expectation, ours: State) -> None:
    """A row that upstream leaves marked, and its block, are released whole or not at all, as ours does it."""
    missed = hooks_missed(moment, ours)
    outcome = rerun(moment, ours, [hook for hook in moment.step.hooks if hook not in missed])
    for key, _, cidr in rows(moment.after):
        marked = isinstance(moment.after[key], dict) and moment.after[key].get("state") == "pendingDeletion"
        if marked and {key, block_key(cidr)} & moment.step.changed.keys():
            for whole in (key, block_key(cidr)):
                expected.after.pop(whole, None)
                expected.after |= {whole: outcome.after[whole]} if whole in outcome.after else {}
    for hook in _half_release_hooks(moment):
        if hook.call == "delete":
            continue
        if hook.error or hook.delete or (moment.step.error or {}).get("type") == "errors.ErrorResourceUpdateConflict":
            # There is no such write that could fail, or lose.
            as_if_undisturbed(moment, expected, ours)
        else:
            expected.hooks_that_may_miss.add(moment.step.hooks.index(hook))


def reclaim_fails(moment: Moment, ours: State) -> bool:
    """A block cannot be taken from its owner, because somebody touches the owner's row: upstream has taken half."""
    return moment.step.op == "auto_assign" and bool(moment.step.hooks) and bool(_marked(moment, ours))


def node_unread(moment: Moment, ours: State) -> bool:
    """After a release upstream reads the node of the block's host, and pools, whether or not it could be given back."""
    reads = _reads_after(moment)
    missed = hooks_missed(moment, ours) if reads else []
    return any(hook in missed for hook in reads)


def _reads_after(moment: Moment) -> list[Hook]:
    if moment.step.op not in ("release_ips", "release_by_handle"):
        return []
    return [*hooks_of(moment, kind="node", call="get"), *hooks_of(moment, kind="ippool", call="list")]


def nothing_surfaces(moment: Moment, expected: Expectation, ours: State) -> None:
    reads = _reads_after(moment)
    expected.hooks_that_may_miss |= {i for i, hook in enumerate(moment.step.hooks) if hook in reads}


# --- handles and reads ---------------------------------------------------------------------------------------


def counts_down_in_steps(moment: Moment, ours: State) -> bool:
    """A release by handle is disturbed where upstream counts the handle down block by block."""
    steps = hooks_of(moment, kind="handle", call="update")
    steps += [hook for hook in hooks_of(moment, kind="handle", call="get") if hook.nth > 1]
    missed = hooks_missed(moment, ours) if moment.step.op == "release_by_handle" and steps else []
    return any(hook in missed for hook in steps)


def handle_fails(moment: Moment, ours: State) -> bool:
    return moment.step.op == "auto_assign" and any(hook.call != "get" for hook in _failing_handle(moment))


def _failing_handle(moment: Moment) -> list[Hook]:
    return hooks_of(moment, kind="handle", when="before", error="datastore")


def handle_keeps(moment: Moment, ours: State) -> bool:
    """The handle can be read, or written, only after the block was; for ours both are one."""
    calls = {"assign_ip": {"create", "update"}, "release_by_handle": {"update", "delete"}}
    calls["release_ips"] = {"get", "update", "delete"}
    wanted = calls.get(moment.step.op, set())
    missed = hooks_missed(moment, ours) if wanted else []
    failing = _failing_handle(moment)
    if moment.step.op == "release_by_handle":
        failing += hooks_of(moment, kind="ippool", call="list", error="datastore")
        wanted = wanted | {"list"}
    return moment.step.error is None and any(h.call in wanted and h not in missed for h in failing)


def nothing_changes(moment: Moment, expected: Expectation, ours: State) -> None:
    expected.error = {"type": "errors.ErrorDatastoreError", "text": "injected failure"}
    expected.result = {"unallocated": [], "released": []} if moment.step.op == "release_ips" else None
    expected.after = dict(ours)


def say_so(moment: Moment, expected: Expectation, ours: State) -> None:
    for family in ("ipv4", "ipv6"):
        if expected.result[family]:
            expected.result[family]["msgs"] = ["Failed to assign IPs in newly allocated block"]


def prelude_fails(moment: Moment, ours: State) -> bool:
    failing = [h for h in _failing_handle(moment) if h.call == "get" and h.nth == 1]
    failing += hooks_of(moment, kind="affinity", call="get", when="before", error="datastore")  # read by the list
    missed = hooks_missed(moment, ours) if moment.step.op == "auto_assign" and failing else failing
    return any(hook not in missed for hook in failing)


def store_error(moment: Moment, expected: Expectation, ours: State) -> None:
    expected.error = {"type": "errors.ErrorDatastoreError", "text": "injected failure"}
    expected.result = {"ipv4": None, "ipv6": None}
    expected.after = dict(ours)
