"""``ipamctl ipam release --from-report``: every gate of cli §5.2, then what is still leaked, then the stray handles."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from calico_ipam.ctl.failures import PartlyDone, Told
from calico_ipam.ctl.gc import leak_line
from calico_ipam.ctl.output import counted, say, say_first
from calico_ipam.ctl.report import Leak, Report, StrayHandle, merge, read
from calico_ipam.ctl.session import Session, confirm
from calico_ipam.ctl.version import client_version

if TYPE_CHECKING:
    from calico_ipam.datastore.api import Entry
    from calico_ipam.engine.leaks import LeakOutcome
    from calico_ipam.model.addresses import Address

_SHOWN = 20


def release_reported(
    session: Session, paths: Sequence[str], *, force: bool, unattributed: bool, yes: bool, dry_run: bool
) -> None:
    """Release what all reports say is leaked. Raises Told for a gate that is shut, PartlyDone when something failed."""
    cluster = _cluster(session)
    reports = [_gated(session, path, cluster, force=force) for path in paths]
    if all(report.revision != cluster.revision for report in reports):
        raise Told(
            STALE,
            hint="The cluster was locked, unlocked or changed since: lock first, then 'ipamctl ipam check -o FILE'.",
        )
    _locked(cluster, force=force)
    leaks, handles = merge(reports, strictly=not session.compat)
    _plan(session, leaks, handles)
    if dry_run:
        say(f"Would release {len(leaks)} addresses and delete {len(handles)} handles.")
        return
    if leaks or handles:
        question = f"Release {counted(len(leaks), 'address')} and delete {counted(len(handles), 'handle')}?"
        confirm(session, question, assume_yes=yes, refusal="nothing was released.")
    clean = _release(session, leaks, unattributed=unattributed, force=force)
    clean = _delete_handles(session, handles) and clean
    say("You may now unlock the data store.")
    if not clean and not session.compat:
        raise PartlyDone


STALE = (
    "the provided reports are all stale - at least one should be up-to-date."
    "  Please regenerate IPAM reports while the data store is locked"
)


def _cluster(session: Session) -> Entry:
    from calico_ipam.engine.survey import CLUSTER

    return session.store.get(CLUSTER)


# --- the gates -----------------------------------------------------------------------------------------------


def _gated(session: Session, path: str, cluster: Entry, *, force: bool) -> Report:
    report = read(path)
    if report.guid != str(cluster.value.spec.get("clusterGUID") or ""):
        raise Told(
            f"cluster does not match the provided report ({path}): mismatched cluster GUID. Refusing to release",
            hint="The report was made on another cluster; nothing overrides this.",
        )
    version = client_version(session)
    if report.version == version or (not session.compat and _understood(report.version)):
        if report.version != version:
            session.note(f"{path} was made by {report.version}, whose reports are understood.")
        return report
    if not force:
        raise Told(
            f"the provided report ({path}) was produced using a different version ({report.version}) of calicoctl. "
            "Refusing to release",
            hint="Make a new report with this program, or use --force.",
        )
    say("WARNING: Report was produced using a different version of calicoctl. Ignoring due to --force option")
    return report


def _understood(version: str) -> bool:
    """Tell whether a report's format is known: ours, or any release of Calico's (cli §17.2)."""
    return bool(re.match(r"calico-ipam-\d|v?\d+\.\d+", version))


def _locked(cluster: Entry, *, force: bool) -> None:
    if cluster.value.spec.get("datastoreReady") is False:
        return
    if not force:
        raise Told(
            "data store is not locked. Either lock the data store, or re-run with --force",
            hint="'ipamctl datastore migrate lock', then make the report again; or use 'ipamctl ipam gc'.",
        )
    say(UNLOCKED)


UNLOCKED = "WARNING: Data store is not locked. Ignoring due to --force option"


def _plan(session: Session, leaks: dict[Address, Leak], handles: dict[str, StrayHandle]) -> None:
    """Show people what will be released before they are asked."""
    if not session.for_people:
        return
    if leaks:
        say(f"Leaked: {counted(len(leaks), 'address')}.")
    ordered = sorted(leaks.values(), key=lambda each: (each.address.version, int(each.address)))
    say_first([leak_line(e.address, e.claims, e.handle, e.claims.get("node") or "") for e in ordered], _SHOWN)
    if handles:
        say(f"Without an address: {counted(len(handles), 'handle')}.")
    say_first([f"  {name}" for name in sorted(handles)], _SHOWN)


# --- addresses -----------------------------------------------------------------------------------------------


def _release(session: Session, leaks: dict[Address, Leak], *, unattributed: bool, force: bool) -> bool:
    from calico_ipam.ctl.progress import working
    from calico_ipam.engine.leaks import release_leaks
    from calico_ipam.model.block import ReleaseOption

    if not leaks:
        say("Report didn't contain any leaked IPs to clean up.")
        return True
    in_use = {} if force else addresses_in_use(session)
    options = [ReleaseOption(each.address, each.handle, each.sequence_number) for each in leaks.values()]
    say(f"Releasing {len(leaks)} old IPs...")
    with working(session, "releasing addresses"):
        outcome = release_leaks(session.engine, options, unattributed=unattributed, in_use=in_use)
    return tell(session, outcome)


def addresses_in_use(session: Session) -> dict[Address, str]:
    """Return the addresses that nodes and workloads use now, with who."""
    from calico_ipam.engine.survey import take_survey

    survey = take_survey(session.engine)
    return {address: users[0].name for address, users in survey.users.items() if users[0].kind != "windows"}


def tell(session: Session, outcome: LeakOutcome) -> bool:
    """Write what became of leaked addresses; return whether all went well."""
    bad = [*outcome.stale, *outcome.failed]
    for dropped in (*bad, *outcome.kept):
        session.note(f"{dropped.address} is kept: {dropped.reason}", label="warning")
    if outcome.released or not bad:
        say(f"Released {len(outcome.released)} IPs successfully")
    if outcome.already_free:
        say(f"{len(outcome.already_free)} addresses marked as leaked in the report had already been cleaned up.")
    if bad:
        what = f"update conflict: {bad[0].address}" if outcome.stale else bad[0].reason
        say(
            f"An error occurred while releasing some IPs: {what}.  Problems are often caused by an out-of-date IPAM "
            "report.  Try regenerating the IPAM report and retry."
        )
    return not bad


# --- handles -------------------------------------------------------------------------------------------------


def _delete_handles(session: Session, handles: dict[str, StrayHandle]) -> bool:
    from calico_ipam.engine.leaks import Stray, delete_stray_handles
    from calico_ipam.errors import IPAMError

    if not handles:
        say("Report didn't contain any handles to clean up.")
        return True
    say(f"Deleting {len(handles)} handles...")
    say("Key: '.' = Deleted OK; 'x' = skip, handle missing/changed.")
    ordered = sorted(handles.values(), key=lambda each: each.id)
    strays = [Stray(each.id, each.revision, frozenset(uid_forms(each.uid))) for each in ordered]
    deleted, skipped, errors = 0, 0, 0
    for stray, done in zip(strays, delete_stray_handles(session.engine, strays), strict=True):
        if isinstance(done, IPAMError):
            _mark(f"\nDeleting handle {stray.handle} failed: {done}.\n")
            errors += 1
            continue
        _mark("." if done else "x")
        deleted, skipped = deleted + done, skipped + (not done)
    say()
    say(f"Released {deleted} handles; {skipped} skipped; {errors} errors.")
    return not errors


def _mark(text: str) -> None:
    """Write what became of one handle at once: on a large cluster this takes a while."""
    import sys

    sys.stdout.write(text)
    if sys.stdout.isatty():
        sys.stdout.flush()


def uid_forms(uid: str) -> set[str]:
    """Return a UID and the form in which calicoctl prints it: the bits of most bytes in reverse order."""
    from calico_ipam.errors import InvalidInput
    from calico_ipam.model.names import convert_uid

    try:
        return {uid, convert_uid(uid)} if uid else set()
    except InvalidInput:
        return {uid}
