"""``ipamctl ipam repair``: plan, confirm, guarded writes, and a second check (cli §18.8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from calico_ipam.ctl.commands import Spelled
from calico_ipam.ctl.failures import PartlyDone
from calico_ipam.ctl.options import kubeconfig_option, yes_option
from calico_ipam.ctl.output import counted, document, paragraph, say
from calico_ipam.ctl.session import Session, common_options, confirm, pass_session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from calico_ipam.engine.repair import Mended
    from calico_ipam.model.findings import Finding

_SHOWN = 20


@click.command(cls=Spelled)
@click.argument("subjects", nargs=-1, metavar="[SUBJECT]...")
@click.option(
    "--only",
    multiple=True,
    metavar="KIND",
    help="Mend findings of this kind only, such as stray-handle; may be given again.",
)
@kubeconfig_option
@yes_option
@click.option("--dry-run", is_flag=True, help="Show the plan and write nothing.")
@common_options
@pass_session
def repair(
    session: Session,
    /,
    subjects: tuple[str, ...],
    only: tuple[str, ...],
    kubeconfig: str | None,
    yes: bool,
    dry_run: bool,
) -> None:
    """Mend what 'ipam check' finds.

    Every write happens only if its object is still as it was found. SUBJECT is the address, block or handle of a
    finding; without any, all findings that can be mended are.
    """
    from calico_ipam.ctl.check import services_of, survey_twice
    from calico_ipam.ctl.version import check_version
    from calico_ipam.engine.repair import mendable
    from calico_ipam.engine.repair import repair as mend

    check_version(session, writes=not dry_run)
    services, skipped = services_of(session, kubeconfig)
    survey, found = survey_twice(session, services, skipped)
    todo = mendable(found, only, subjects)
    others = [each for each in found if each not in todo] if not (only or subjects) else []
    if not session.wants_document:
        _plan(todo, others)
    if dry_run or not todo:
        if session.wants_document:
            document({"plan": [each.document() for each in todo]}, session.output)
        return
    confirm(session, f"Mend {counted(len(todo), 'finding')}?", assume_yes=yes, refusal="nothing was changed.")
    results = mend(session.engine, survey, todo)
    _, after = survey_twice(session, services, skipped)
    left = {(each.kind, each.subject) for each in after}
    _tell(session, results, left)


def _plan(todo: Sequence[Finding], others: Sequence[Finding]) -> None:
    from calico_ipam.engine.repair import CURES

    if not todo:
        say("There is nothing to mend here.")
    else:
        say(f"{counted(len(todo), 'finding')} can be mended:")
    for each in todo[:_SHOWN]:
        say(paragraph(f"{each.text}", indent="  "))
        say(paragraph(f"→ {CURES[each.kind].plan.format(subject=each.subject)}", indent="    "))
    if len(todo) > _SHOWN:
        say(f"  … and {len(todo) - _SHOWN} more")
    if others:
        say(f"For a person to mend: {counted(len(others), 'finding')}:")
    for each in others[:_SHOWN]:
        say(paragraph(each.text, indent="  "))
        say(f"    → {each.cure}")


def _tell(session: Session, results: Sequence[Mended], left: set[tuple[str, str]]) -> None:
    mended = [each for each in results if not each.skipped and (each.finding.kind, each.finding.subject) not in left]
    skipped = [each for each in results if each.skipped and not each.failed]
    bad = [each for each in results if each not in mended and each not in skipped]
    if session.wants_document:
        document(
            {
                "mended": [each.finding.document() for each in mended],
                "skipped": [{**each.finding.document(), "reason": each.skipped} for each in skipped],
                "failed": [{**each.finding.document(), "reason": each.skipped or "still there"} for each in bad],
            },
            session.output,
        )
    else:
        for each in skipped:
            say(paragraph(f"skipped {each.finding.subject}: {each.skipped}"))
        for each in bad:
            say(paragraph(f"failed {each.finding.subject}: {each.skipped or 'it is still there after the write'}"))
        say(f"Mended {len(mended)}, skipped {len(skipped)}, failed {len(bad)}; checked again.")
    if bad:
        raise PartlyDone
