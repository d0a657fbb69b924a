"""Predicates and changes of the table of exceptions that concern custom resources only (datastore §14)."""

from __future__ import annotations

from calico_ipam.errors import InvalidInput, IPAMError, NameTaken
from calico_ipam.model.handle import sanitise_handle
from calico_ipam.model.names import check_handle_name
from tests.golden.library_documents import HANDLES, blocks, rows
from tests.golden.library_patches import no_such_handle
from tests.golden.library_reruns import rerun
from tests.golden.library_scenario import Expectation, Moment, State


def _kube(moment: Moment, *operations: str) -> bool:
    return moment.scenario.backend == "kubernetes" and moment.step.op in operations


# --- owners of one name (L25) -------------------------------------------------------------------------------


def _lost_rows(moment: Moment) -> list[str]:
    """Return the rows that upstream removes in a claim although they are another owner's, of the same name."""
    args = moment.step.args
    owner = f"{args.get('affinity_type') or 'host'}:{args.get('host')}"
    return [key for key, other, _ in rows(moment.before) if key not in moment.after and other != owner]


def drops_namesake(moment: Moment, ours: State) -> bool:
    return _kube(moment, "claim_affinity") and bool(_lost_rows(moment))


def keep_namesake(moment: Moment, expected: Expectation, ours: State) -> None:
    expected.after |= {key: moment.before[key] for key in _lost_rows(moment)}


# --- rows that are marked as deleted (§14.3) ----------------------------------------------------------------


def _marked(state: State) -> set[str]:
    return {key for key, block in blocks(state) if block.get("deleted")}


def counts_marked(moment: Moment, ours: State) -> bool:
    """Upstream takes blocks that are marked as deleted for blocks that are there, and then finds that they are not."""
    return _kube(moment, "auto_assign") and len(_marked(moment.before) & set(moment.step.changed)) > 1


def without_marked(moment: Moment, expected: Expectation, ours: State) -> None:
    marked = _marked(ours)
    other = rerun(moment, {k: v for k, v in ours.items() if k not in marked}, ())
    expected.result, expected.error = other.result, other.error
    expected.after = {key: ours[key] for key in marked} | other.after


# --- names of handles (§14.8, L29) --------------------------------------------------------------------------


def _handle(moment: Moment) -> str:
    return sanitise_handle(moment.step.args.get("handle"))


def _namesake(moment: Moment, state: State) -> str | None:
    """Return the handle whose object has the name that this step's handle would have."""
    handle = _handle(moment)
    known = [key[len(HANDLES) :] for key in state if key.startswith(HANDLES)]
    return next((other for other in known if other != handle and other.lower() == handle.lower()), None)


def shares_object(moment: Moment, ours: State) -> bool:
    return _kube(moment, "auto_assign", "assign_ip") and _namesake(moment, ours) is not None


def refuse_namesake(moment: Moment, expected: Expectation, ours: State) -> None:
    handle, other = _handle(moment), _namesake(moment, ours)
    expected.error = NameTaken(f"IPAMHandleKey(id={handle})", f"IPAMHandleKey(id={other})", handle.lower())
    _nothing(moment, expected)


def reads_shared(moment: Moment, ours: State) -> bool:
    looks = _kube(moment, "ips_by_handle", "release_by_handle") and moment.step.error is None
    return looks and _namesake(moment, ours) is not None and HANDLES + _handle(moment) not in ours


def no_shared(moment: Moment, expected: Expectation, ours: State) -> None:
    no_such_handle(moment, expected, ours)
    expected.result = {"ips": []} if moment.step.op == "ips_by_handle" else None
    expected.after = dict(ours)


def unnameable(moment: Moment, ours: State) -> bool:
    return _kube(moment, "auto_assign", "assign_ip") and _refusal(moment) is not None


def refuse_name(moment: Moment, expected: Expectation, ours: State) -> None:
    expected.error = _refusal(moment)
    _nothing(moment, expected)


def no_handle(moment: Moment, ours: State) -> bool:
    return _kube(moment, "release_by_handle") and not _handle(moment)


def refuse_empty(moment: Moment, expected: Expectation, ours: State) -> None:
    expected.error = InvalidInput(str((moment.step.error or {})["text"]))


def _refusal(moment: Moment) -> IPAMError | None:
    try:
        if _handle(moment):
            check_handle_name(_handle(moment))
    except IPAMError as error:
        return error
    return None


def _nothing(moment: Moment, expected: Expectation) -> None:
    expected.after = dict(moment.before)
    if moment.step.op == "auto_assign":
        empty = {
            "ips": [],
            "ip_version": 4,
            "num_requested": moment.step.args["num4"],
            "msgs": [],
            "partial_error": f"Assigned 0 out of {moment.step.args['num4']} requested IPv4 addresses",
        }
        expected.result = {"ipv4": empty, "ipv6": None}
