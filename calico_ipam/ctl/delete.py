"""``ipamctl delete``: resources by name or file (cli §8.3, §9.3, §12)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from calico_ipam.ctl.commands import Mirrored
from calico_ipam.ctl.failures import Told
from calico_ipam.ctl.options import dry_run_option, namespace_option, yes_option
from calico_ipam.ctl.output import say
from calico_ipam.ctl.session import Session, common_options, confirm, pass_session
from calico_ipam.errors import InvalidInput, IPAMError, NotFound
from calico_ipam.model.resource import CLUSTER_INFORMATION

if TYPE_CHECKING:
    from calico_ipam.engine.resources import Resources

Target = tuple[str, str, str, str]  # kind, name, the namespace it says itself, revision


@click.command(cls=Mirrored)
@click.argument("words", nargs=-1, metavar="[KIND NAME...]")
@click.option("-f", "--filename", "files", multiple=True, metavar="FILE", help="Delete the resources that FILE names.")
@click.option("-R", "--recursive", is_flag=True, help="Look into sub-folders.")
@click.option("--skip-empty", is_flag=True, help="A file without resources is no failure.")
@click.option("-s", "--skip-not-exists", is_flag=True, help="A resource that does not exist is no failure.")
@namespace_option
@yes_option
@dry_run_option
@common_options
@pass_session
def delete(
    session: Session,
    /,
    words: tuple[str, ...],
    files: tuple[str, ...],
    skip_not_exists: bool,
    yes: bool,
    dry_run: bool,
    **more: Any,
) -> None:
    """Delete resources.

    A node takes its endpoints, addresses and blocks with it; addresses of a pool stay with their holders.
    """
    if not words and not files:
        raise click.UsageError("Say what to delete: KIND NAME, or -f FILE.", click.get_current_context())
    from calico_ipam.ctl.get import check_cluster, resources_of

    check_cluster(session, writes=not dry_run)
    targets = _targets(session, words, files, more)
    if targets is None:
        return
    resources = resources_of(session)
    if session.for_people or dry_run:
        _plan(session, targets)
        if dry_run:
            return
        confirm(session, "Delete?", assume_yes=yes, refusal="nothing was deleted.")
    _delete(resources, targets, more["namespace"], skip_not_exists=skip_not_exists)


def _targets(
    session: Session, words: tuple[str, ...], files: tuple[str, ...], more: dict[str, Any]
) -> list[Target] | None:
    if files:
        from calico_ipam.ctl.write import documents_of
        from calico_ipam.engine.resources import identity

        documents = documents_of(session, files, more)
        if documents is None:
            return None
        return [(*identity(each), str(each["metadata"].get("resourceVersion") or "")) for each in documents]
    from calico_ipam.ctl.get import known_kind

    kind = known_kind(session, words[0])
    if kind.ours:
        raise Told(
            f"{kind.name} objects cannot be deleted by hand",
            hint="'ipamctl ipam repair' removes what is stray; 'ipamctl ipam release' frees addresses.",
        )
    names = words[1:] or ("",)
    for name in names:
        if not name and (words[1:] or not session.compat):
            raise Told("resource name may not be empty", hint=f"Say which: ipamctl delete {words[0]} NAME")
    return [(kind.name, name, "", "") for name in names]


def _plan(session: Session, targets: list[Target]) -> None:
    """Say what goes, and what goes with it."""
    for kind, name, _, _ in targets:
        more = ""
        try:
            if kind == "Node":
                from calico_ipam.engine.nodes import plan_node

                plan = plan_node(session.engine, name)
                addresses, endpoints = len(plan.addresses), len(plan.endpoints)
                more = f": releases {addresses} addresses, removes {endpoints} endpoints, gives up its blocks"
            elif kind == "IPPool":
                from calico_ipam.engine.resources import in_use

                use = in_use(session.engine, name)
                more = f": {use}; they stay, in blocks of no pool" if use else ": no address in use"
        except IPAMError as error:
            more = f": {error}"
        say(f"{kind} {name}{more}")


def _nameless(resources: Resources, kind: str) -> IPAMError:
    """Return what calicoctl hears from its datastore when it asks for a resource without a name (cli §8.2)."""
    return InvalidInput("resource name may not be empty") if resources.server_rules else NotFound(f"{kind}()")


def _delete(resources: Resources, targets: list[Target], flag: str | None, *, skip_not_exists: bool) -> None:
    from calico_ipam.ctl.get import namespace_of
    from calico_ipam.ctl.kinds import by_name

    errors: list[IPAMError] = []
    for kind, name, own, revision in targets:
        try:
            namespace = namespace_of(by_name(kind), own, flag)
            if not name and kind != CLUSTER_INFORMATION:
                raise _nameless(resources, kind)
            resources.delete(kind, name, namespace, revision)
        except NotFound as error:
            if not skip_not_exists:
                errors.append(error)
        except IPAMError as error:
            errors.append(error)
    kinds = {kind for kind, *_ in targets}
    noun = f"'{targets[0][0]}' " if len(kinds) == 1 else ""
    deleted = len(targets) - len(errors)
    if deleted:
        say(f"Successfully deleted {deleted} {noun}resource(s)")
    if errors:
        hints = "\n".join(dict.fromkeys(error.hint for error in errors if error.hint))
        raise Told("".join(f"Failed to delete {noun}resource: {error}\n" for error in errors), hint=hints)
