"""``ipamctl ipam check``: what is wrong, how bad it is, and what mends it (cli §4, §17, §18)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from calico_ipam.ctl.commands import Watching, watch_option
from calico_ipam.ctl.failures import ProblemsFound, Told
from calico_ipam.ctl.options import kubeconfig_option
from calico_ipam.ctl.output import FORMATS, document, say
from calico_ipam.ctl.session import Session, connection_options, pass_session

if TYPE_CHECKING:
    from calico_ipam.datastore.kube.api import KubeApi
    from calico_ipam.engine.survey import Survey
    from calico_ipam.model.findings import Finding

NO_KUBECONFIG = "KUBECONFIG environment variable or --kubeconfig parameter not set"
_SHOWN = 10


@click.command(cls=Watching)
@click.option("--show-all-ips", is_flag=True, help="Print every address, who has it, and every handle without any.")
@click.option("--show-problem-ips", is_flag=True, help="Print each address that is wrong.")
@click.option("-o", "--output", "report_file", metavar="FILE", help="Write a report, for 'ipam release --from-report'.")
@kubeconfig_option
@click.option(
    "--format",
    "form",
    metavar="FORMAT",
    help=f"Write the result as one of {', '.join(FORMATS)} or jsonpath=EXPRESSION.",
)
@click.option("--fail-on-problems", is_flag=True, help="End with exit code 3 when there is a problem.")
@click.option(
    "--confirm-after",
    type=click.FloatRange(0, 86400),
    metavar="SECONDS",
    help="Look again after this time, and tell only what is still so.",
)
@watch_option
@connection_options
@pass_session
def check(
    session: Session,
    /,
    show_all_ips: bool,
    show_problem_ips: bool,
    report_file: str | None,
    kubeconfig: str | None,
    form: str | None,
    fail_on_problems: bool,
    confirm_after: float | None,
    watch: float | None,
) -> None:
    """Look for leaked addresses and whatever else is wrong. Nothing is written to the datastore.

    What is found is looked at a second time before it is told.
    """
    from calico_ipam.ctl.version import check_version

    check_version(session, writes=False)
    if form:
        session.output = form
    if report_file in FORMATS:
        session.note(
            f"-o names a file here: the report goes to ./{report_file}. --format {report_file} prints it.",
            label="warning",
        )

    def once() -> None:
        _once(session, show_all_ips, show_problem_ips, report_file, kubeconfig, fail_on_problems, confirm_after)

    if watch is not None:
        from calico_ipam.ctl.watching import repeat

        repeat(session, once, every=watch)
    else:
        once()


def _once(
    session: Session,
    show_all: bool,
    show_problems: bool,
    report_file: str | None,
    kubeconfig: str | None,
    fail_on_problems: bool,
    confirm_after: float | None,
) -> None:
    services, skipped = services_of(session, kubeconfig)
    plainly = not session.wants_document and not session.for_people
    if plainly:
        say("Checking IPAM for inconsistencies...")
        say()
    whole = bool(report_file) or session.wants_document  # a report tells of every address whether it is in use
    survey, found = survey_twice(session, services, skipped, confirm_after, always=not session.compat, whole=whole)
    if plainly:
        _upstream_words(session, survey, show_all=show_all, show_problems=show_problems, found=found)
    elif session.wants_document:
        content = _document(session, survey, found)
        document(content["details"] if session.output == "csv" else content, session.output)
    else:
        _for_people(session, survey, found, show_all=show_all or show_problems)
    if report_file:
        _write_report(session, survey, found, report_file)
    if fail_on_problems and found:
        raise ProblemsFound


def services_of(session: Session, kubeconfig: str | None) -> tuple[list[Mapping[str, Any]] | None, str]:
    """Return the Services of the cluster, or None and why they are not known (cli §4; limit 18.6)."""
    from dataclasses import replace

    from calico_ipam.datastore.settings import KUBERNETES, Settings
    from calico_ipam.errors import IPAMError

    settings = session.settings
    source: KubeApi | Settings
    if settings.datastore_type == KUBERNETES:
        from calico_ipam.datastore.kube.store import KubernetesStore

        store = session.store
        source = store.api if isinstance(store, KubernetesStore) else settings
    else:
        path = kubeconfig or session.environ.get("KUBECONFIG", "")
        if not path:
            if session.compat:
                raise Told(NO_KUBECONFIG, hint="Services are looked up in Kubernetes.")
            return None, "No Kubernetes API is configured, skipping service check"
        if not os.path.exists(path) and os.pathsep not in path:  # noqa: PTH110  # pathlib costs 7 ms
            raise Told(f"stat {path}: no such file or directory", hint="Name an existing file: --kubeconfig FILE.")
        source = replace(Settings(KUBERNETES), kubeconfig=path, k8s_current_context=settings.k8s_current_context)
    from calico_ipam.datastore.kube.services import list_services

    try:
        return list_services(source), ""
    except IPAMError as error:
        if session.compat:
            raise
        return None, f"Services cannot be listed ({error}), skipping service check"


def survey_twice(
    session: Session,
    services: list[Mapping[str, Any]] | None,
    skipped: str,
    confirm_after: float | None = None,
    *,
    always: bool = True,
    whole: bool = False,
) -> tuple[Survey, list[Finding]]:
    """Return a survey and its findings, those that a second look confirms: an immediate one where the lists of the
    first were not of one moment, or one after the time that was asked for.

    An immediate one is at no more than the findings follow from. ``whole``: at everything, for those who look at what
    is no finding.
    """
    from calico_ipam.ctl.progress import working
    from calico_ipam.engine.check import confirmed, findings, to_read_again
    from calico_ipam.engine.survey import take_survey

    engine = session.engine
    with working(session, "reading blocks, handles, nodes and workloads"):
        survey = take_survey(engine, services, skipped=skipped)
        found = findings(survey)
    again = confirm_after is not None or (always and not engine.store.capabilities.atomic)
    if not found or not again:
        return survey, found
    if confirm_after:
        with working(session, f"waiting {confirm_after:g} s before a second look"):
            engine.clock.sleep(confirm_after)
    with working(session, "looking a second time at what was found"):
        scopes = [] if whole or confirm_after is not None else to_read_again(found)
        second = take_survey(engine, services, skipped=skipped, before=survey, again=scopes)
        return second, confirmed(found, findings(second))


def _upstream_words(
    session: Session, survey: Survey, *, show_all: bool, show_problems: bool, found: list[Finding]
) -> None:
    from calico_ipam.ctl.check_text import lines
    from calico_ipam.engine.survey import CLUSTER

    if survey.cluster is None:
        session.store.get(CLUSTER)  # in the words of the datastore
    for line in lines(survey, show_all=show_all, show_problems=show_problems, found=found):
        say(line)


def _write_report(session: Session, survey: Survey, found: list[Finding], path: str) -> None:
    """Write the report; a failure is told loudly (limit 18.11)."""
    import json

    from calico_ipam.ctl import report
    from calico_ipam.ctl.version import client_version

    if survey.cluster is None:
        raise Told(
            "no report can be written: the cluster has no information about itself",
            hint="'ipamctl init' makes it; a report must name its cluster.",
        )
    content = report.document(survey, client_version(session), survey.cluster)
    if not session.compat:
        content |= report.summary(found)
    report.write_file(path, json.dumps(content, indent=2, ensure_ascii=False))
    session.note(f"the report is in {path}; 'ipamctl ipam release --from-report {path}' releases what it names.")


def _document(session: Session, survey: Survey, found: list[Finding]) -> dict[str, Any]:
    from calico_ipam.ctl import report
    from calico_ipam.ctl.version import client_version

    content = report.document(survey, client_version(session), survey.cluster) if survey.cluster is not None else {}
    return content | report.summary(found)


# --- for people ----------------------------------------------------------------------------------------------


def _for_people(session: Session, survey: Survey, found: list[Finding], *, show_all: bool) -> None:
    """Write what is wrong, worst first, each kind with the command that mends it."""
    from calico_ipam.ctl.output import counted, paragraph
    from calico_ipam.model.findings import KINDS, by_severity

    looked = (
        f"{counted(survey.counts['allocations'], 'address')} in {counted(len(survey.blocks), 'block')}, "
        f"{counted(len(survey.handles), 'handle')}, {counted(len(survey.nodes), 'node')}, "
        f"{counted(survey.counts['workloads'], 'workload address')}"
    )
    say(paragraph(f"Looked at {looked}."))
    if survey.services_skipped:
        say(paragraph(survey.services_skipped + "."))
    for severity, group in by_severity(found).items():
        say()
        say(
            click.style(severity.upper(), bold=True, fg=_COLOURS.get(severity)) if session.colours else severity.upper()
        )
        kinds = dict.fromkeys(each.kind for each in group)
        for kind in kinds:
            these = [each for each in group if each.kind == kind]
            say(f"  {KINDS[kind].title[0].upper()}{KINDS[kind].title[1:]}: {len(these)}")
            shown = these if show_all else these[:_SHOWN]
            for each in shown:
                say(paragraph(each.text, indent="    "))
            if len(these) > len(shown):
                say(f"    … and {len(these) - len(shown)} more (--show-problem-ips shows all)")
            for cure in list(dict.fromkeys(each.cure for each in shown))[:3]:
                say(f"    → {cure}")
    say()
    if found:
        say(f"{counted(len(found), 'problem')} found.")
    else:
        say("Nothing is wrong.")


_COLOURS = {"outage risk": "red", "capacity loss": "yellow", "cosmetic": "cyan"}
