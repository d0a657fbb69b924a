"""``ipamctl ipam gc``: leaked addresses are found, shown, confirmed and released, in one safe command (ruling 10).

No lock is taken unless asked for: age, a second look, handle and sequence number are enough, and a killed tool must not
stop every pod. With ``--lock`` the lock carries owner and expiry, and goes away on INT, TERM and HUP too.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from calico_ipam.ctl.commands import Spelled
from calico_ipam.ctl.failures import PartlyDone
from calico_ipam.ctl.options import kubeconfig_option, yes_option
from calico_ipam.ctl.output import counted, document, say, say_first
from calico_ipam.ctl.session import Session, common_options, confirm, pass_session

if TYPE_CHECKING:
    from calico_ipam.engine.survey import Allocation, Survey
    from calico_ipam.model.addresses import Address
    from calico_ipam.model.findings import Finding

GRACE = 300  # seconds an allocation must be old
LOCK_SECONDS = 600
_SHOWN = 20


@click.command(cls=Spelled)
@click.option(
    "--older-than",
    type=click.IntRange(0),
    default=GRACE,
    metavar="SECONDS",
    help=f"Leave younger allocations alone. Default: {GRACE}.",
)
@click.option(
    "--confirm-after", type=click.FloatRange(0, 86400), metavar="SECONDS", help="Look a second time after this time."
)
@click.option("--handles/--no-handles", default=True, help="Delete handles without addresses too. Default: yes.")
@click.option("--cold", is_flag=True, help="Only free addresses whose cooldown is over.")
@click.option("--include-unattributed", is_flag=True, help="Also addresses that are nobody's in particular.")
@click.option("--lock", "locked", is_flag=True, help="Lock the datastore meanwhile; no pod starts or stops then.")
@kubeconfig_option
@click.option("--host", is_flag=True, help="A host without Kubernetes: its container runtime says who lives.")
@click.option(
    "--host-runtime",
    metavar="COMMAND",
    default="",
    help="With --host: lists the runtime's containers, one a line. Default: $GC_HOST_RUNTIME, else libcni's memory.",
)
@yes_option
@click.option("--dry-run", is_flag=True, help="Show the plan and write nothing.")
@common_options
@pass_session
def gc(
    session: Session,
    /,
    older_than: int,
    confirm_after: float | None,
    handles: bool,
    cold: bool,
    include_unattributed: bool,
    locked: bool,
    kubeconfig: str | None,
    host: bool,
    host_runtime: str,
    yes: bool,
    dry_run: bool,
) -> None:
    """Find leaked addresses and release them: scan, plan, confirm, guarded release, second check.

    An address is released only if nothing uses it, it is old enough, and its handle and sequence number are still
    those that were seen.
    """
    from calico_ipam.ctl.check import services_of, survey_twice
    from calico_ipam.ctl.version import check_version

    if host:
        from calico_ipam.ctl.gc_host import APART, collect_on_host

        apart = APART if confirm_after is None else max(1, round(confirm_after))
        runtime = host_runtime or session.environ.get("GC_HOST_RUNTIME", "")
        collect_on_host(session, runtime=runtime, apart=apart, dry_run=dry_run)
        return
    check_version(session, writes=not dry_run)
    services, skipped = services_of(session, kubeconfig)
    if skipped and not skipped.startswith("No configuration") and not session.wants_document:
        session.note(f"{skipped}: addresses of load balancers are left alone.", label="warning")

    def collect() -> None:
        survey, found = survey_twice(session, services, skipped, confirm_after)
        if cold:
            _collect(session, survey, yes=yes, dry_run=dry_run)
            return
        _refuse_blindness(survey, found)
        leaks = _leaks(
            survey, found, older_than, services_known=services is not None, unattributed=include_unattributed
        )
        stray = [each for each in found if each.kind == "stray-handle"] if handles else []
        _plan(session, leaks, stray, dry_run=dry_run)
        if dry_run or not (leaks or stray):
            return
        question = f"Release {counted(len(leaks), 'address')} and delete {counted(len(stray), 'handle')}?"
        confirm(session, question, assume_yes=yes, refusal="nothing was released.")
        _carry_out(session, leaks, stray, unattributed=include_unattributed)

    if locked and not dry_run:
        _locked(session, collect)
    else:
        collect()


def _leaks(
    survey: Survey, found: list[Finding], older_than: int, *, services_known: bool, unattributed: bool
) -> list[Allocation]:
    from calico_ipam.engine.check import is_young

    kinds = ("leaked", "unattributed") if unattributed else ("leaked",)
    chosen: list[Allocation] = [each.data["allocation"] for each in found if each.kind in kinds]
    return [
        each
        for each in chosen
        if not is_young(each, survey.now, older_than)
        and (unattributed or _known_elsewhere(each))
        and (services_known or survey.services is not None or each.attribute.active.get("type") != "LoadBalancer")
    ]


def _known_elsewhere(each: Allocation) -> bool:
    """Tell whether its workload would be known to the datastore: pods, machines and tunnels are; a container that
    another runtime started may have no endpoint and live (ruling 7: only its host can tell)."""
    active = each.attribute.active
    return bool(active.get("pod") or active.get("vmi-name") or active.get("type"))


def _refuse_blindness(survey: Survey, found: list[Finding]) -> None:
    """Raise RefusedError when no workload is known at all: then nothing tells a leak from a living pod."""
    from calico_ipam.errors import RefusedError

    pods = [each for each in found if each.kind == "leaked" and each.data["allocation"].attribute.active.get("pod")]
    if len(pods) > 1 and not survey.counts["workloads"]:
        raise RefusedError(
            f"no workload endpoint is known, so all {len(pods)} addresses of pods would be released",
            hint="Another main plugin than calico records no endpoints. If these pods are really gone: "
            "'ipamctl ipam check -o FILE', then 'ipamctl ipam release --from-report FILE'.",
        )


def _plan(session: Session, leaks: list[Allocation], stray: list[Finding], *, dry_run: bool) -> None:
    if session.wants_document:
        if dry_run:
            document(
                {"leaked": [_leak_document(each) for each in leaks], "strayHandles": [e.subject for e in stray]},
                session.output,
            )
        return
    if not leaks and not stray:
        say("Nothing is leaked.")
        return
    say_first([leak_line(e.address, e.attribute.active, e.attribute.clean_handle, e.node) for e in leaks], _SHOWN)
    say_first([f"  handle {finding.subject}" for finding in stray], _SHOWN, "handles")
    say(f"Leaked: {counted(len(leaks), 'address')}; without an address: {counted(len(stray), 'handle')}.")


def leak_line(address: Address, claims: Mapping[str, Any], handle: str | None, node: str) -> str:
    """Return a line for people about an address and who had it."""
    whose = f"{claims.get('namespace')}/{claims['pod']}" if claims.get("pod") else handle or "nobody"
    return f"  {address}  {whose}{f' on {node}' if node else ''}"


def _leak_document(each: Allocation) -> dict[str, Any]:
    return {
        "ip": str(each.address),
        "handle": each.attribute.clean_handle or None,
        "node": each.node or None,
        "pod": each.attribute.active.get("pod"),
        "namespace": each.attribute.active.get("namespace"),
        "sequenceNumber": each.sequence_number,
    }


def _carry_out(session: Session, leaks: list[Allocation], stray: list[Finding], *, unattributed: bool) -> None:
    from calico_ipam.ctl.progress import working
    from calico_ipam.ctl.release_report import addresses_in_use
    from calico_ipam.engine.leaks import Stray, delete_stray_handles, release_leaks
    from calico_ipam.model.block import ReleaseOption

    engine = session.engine
    options = [ReleaseOption(each.address, each.attribute.handle, each.sequence_number) for each in leaks]
    with working(session, "releasing addresses"):
        outcome = release_leaks(engine, options, unattributed=unattributed, in_use=addresses_in_use(session))
        strays = [Stray(each.subject, each.data["entry"].revision) for each in stray]
        done = list(delete_stray_handles(engine, strays))
    deleted = sum(1 for each in done if each is True)
    failures = [each for each in done if not isinstance(each, bool)]
    kept = [*outcome.stale, *outcome.kept, *outcome.failed]
    if session.wants_document:
        document(
            {
                "released": [str(each) for each in outcome.released],
                "alreadyFree": [str(each) for each in outcome.already_free],
                "kept": [{"ip": str(each.address), "reason": each.reason} for each in kept],
                "handlesDeleted": deleted,
            },
            session.output,
        )
    else:
        for each in kept:
            say(f"kept {each.address}: {each.reason}")
        say(f"Released {len(outcome.released)} addresses, kept {len(kept)}; deleted {deleted} of {len(stray)} handles.")
    for text in dict.fromkeys(str(each) for each in failures):
        session.note(f"{counted(len(failures), 'handle')} could not be deleted: {text}", label="warning")
    if outcome.failed or failures:
        raise PartlyDone


def _collect(session: Session, survey: Survey, *, yes: bool, dry_run: bool) -> None:
    """Free what has cooled down: blocks that nobody writes keep such addresses for ever (limit 18.23)."""
    from calico_ipam.engine.repair import repair
    from calico_ipam.model.findings import Finding
    from calico_ipam.model.timestamps import SECOND

    limit = survey.config.cooldown_seconds * SECOND
    ripe = {
        str(block.cidr): sum(
            1 for _, a in block.taken() if a.released_at is not None and survey.now - a.released_at >= limit
        )
        for block in survey.blocks
    }
    todo = [Finding("old-cooldown", cidr, f"{number} in {cidr}", block=cidr) for cidr, number in ripe.items() if number]
    total = sum(ripe.values())
    say(f"{counted(total, 'address')} in {counted(len(todo), 'block')} cooled down.")
    if dry_run or not todo:
        return
    confirm(session, f"Free {counted(total, 'address')}?", assume_yes=yes, refusal="nothing was changed.")
    results = repair(session.engine, survey, todo)
    say(f"Freed them in {counted(sum(1 for each in results if not each.skipped), 'block')}.")


class _Ended(BaseException):
    """A signal that ends the program; the lock goes first."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class _Signals:
    """The signals that end a program, as _Ended, but never in the middle of what must be done as a whole.

    The first one ends the body; from then on, and once :meth:`leave` was called, they are only noted: whoever is
    impatient, or two signals of one shutdown, must not cut short what the first one began.
    """

    _NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._waits = False
        self.came: int | None = None  #: the first signal

    def listen(self) -> None:
        for each in self._NUMBERS:
            if (handler := signal.getsignal(each)) != signal.SIG_IGN:  # nohup asks for that
                self._before[each] = handler
                signal.signal(each, self._end)

    def restore(self) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def _end(self, number: int, _frame: FrameType | None) -> None:
        if self.came is None:
            self.came = number
        if not self._waits:
            self._waits = True
            raise _Ended(number)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Let the body end before a signal does. A body that fails is left for good."""
        self._waits = True
        yield
        self._waits = False
        if self.came is not None:
            self._waits = True
            raise _Ended(self.came)

    def leave(self) -> None:
        """Raise no more."""
        self._waits = True


def _locked(session: Session, work: Callable[[], None]) -> None:
    """Do some work under the datastore's lock, and undo the lock however that ends.

    No context manager: a signal that comes between the end of its body and the first step of its exit skips the exit.
    """
    from calico_ipam.ctl.locking import owner_name
    from calico_ipam.engine.lock import LockOwner, LockState, lock

    signals = _Signals()
    before: LockState | None = None
    try:
        try:
            signals.listen()
            with signals.waiting():
                before = lock(session.engine, LockOwner(owner_name(), "ipam gc", LOCK_SECONDS))
            work()
        finally:
            signals.leave()
    except BaseException:
        if signals.came is None:
            raise  # else, whatever was said: the signal came in the middle of it
    finally:
        # From the first signal on, and after leave(), the next ones are only noted: nothing cuts this short.
        try:
            if before is not None and not before.locked:
                _undo(session)
        finally:
            signals.restore()
    # Also where Python dropped what was raised, in a finalizer say, or when the signal came while the lock was undone.
    if signals.came is not None:
        if signals.came == signal.SIGINT:
            raise KeyboardInterrupt
        signal.raise_signal(signals.came)
        raise SystemExit(128 + signals.came)  # where somebody handles it


def _undo(session: Session) -> None:
    from calico_ipam.engine.lock import unlock
    from calico_ipam.errors import IPAMError

    try:
        unlock(session.engine)
    except IPAMError as error:
        error.hint = "The datastore stays locked: 'ipamctl datastore unlock', as soon as it answers again."
        raise
