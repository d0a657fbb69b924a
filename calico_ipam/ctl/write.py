"""``ipamctl create | apply | replace | validate``: resources from files (cli §8.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from calico_ipam.ctl.commands import Mirrored
from calico_ipam.ctl.failures import Told
from calico_ipam.ctl.get import check_cluster
from calico_ipam.ctl.options import namespace_option, yes_option
from calico_ipam.ctl.output import say
from calico_ipam.ctl.session import Command, Session, common_options, pass_session
from calico_ipam.errors import AlreadyExists, IPAMError

Document = dict[str, Any]


@dataclass(slots=True)
class Outcome:
    """What became of the resources of a call."""

    kinds: list[str]
    handled: int = 0
    errors: list[IPAMError] = field(default_factory=list)
    misplaced: int = 0  #: how many of the errors are about a namespace

    @property
    def noun(self) -> str:
        """``'IPPool' `` when all are of one kind."""
        return f"'{self.kinds[0]}' " if len(set(self.kinds)) == 1 else ""

    @property
    def some(self) -> str:
        """What is said when none of them was handled: ``'IPPool' resource``, ``any resources``."""
        return f"any {self.noun}resources" if len(self.kinds) > 1 else f"{self.noun}resource"


def file_options(command: Command) -> Command:
    """Add the options of commands that read files."""
    for add in reversed(
        (
            click.option(
                "-f",
                "--filename",
                "files",
                multiple=True,
                metavar="FILE",
                help="A file, a folder, or - for standard input.",
            ),
            click.option("-R", "--recursive", is_flag=True, help="Look into sub-folders."),
            click.option("--skip-empty", is_flag=True, help="A file without resources is no failure."),
            namespace_option,
            click.option("--dry-run", is_flag=True, help="Check everything and write nothing."),
            yes_option,
        )
    ):
        command = add(command)
    return command


@click.command(cls=Mirrored)
@file_options
@click.option("--skip-exists", is_flag=True, help="A resource that exists already is no failure.")
@common_options
@pass_session
def create(session: Session, /, files: tuple[str, ...], skip_exists: bool, dry_run: bool, **more: Any) -> None:
    """Create the resources of a file."""
    check_cluster(session, writes=not dry_run)
    documents = documents_of(session, files, more)
    if documents is None:
        return
    resources = _ready(session, dry_run=dry_run)

    def one(document: Document) -> None:
        try:
            resources.create(document, dry_run=dry_run)
        except AlreadyExists:
            if not skip_exists:
                raise

    _finish(session, each_of(documents, one, more), "create", "created", dry_run=dry_run)


@click.command(cls=Mirrored)
@file_options
@common_options
@pass_session
def apply(session: Session, /, files: tuple[str, ...], dry_run: bool, **more: Any) -> None:
    """Create the resources of a file, or replace those that exist."""
    check_cluster(session, writes=not dry_run)
    documents = documents_of(session, files, more)
    if documents is None:
        return
    resources = _ready(session, dry_run=dry_run)

    def one(document: Document) -> None:
        resources.apply(document, dry_run=dry_run, merge_fixed=not session.compat)

    outcome = each_of(documents, one, more)
    _finish(session, outcome, "apply", "applied", dry_run=dry_run)


@click.command(cls=Mirrored)
@file_options
@common_options
@pass_session
def replace(session: Session, /, files: tuple[str, ...], dry_run: bool, **more: Any) -> None:
    """Replace resources by those of a file. A resourceVersion in the file must be the stored one."""
    check_cluster(session, writes=not dry_run)
    documents = documents_of(session, files, more)
    if documents is None:
        return
    resources = _ready(session, dry_run=dry_run)
    outcome = each_of(documents, lambda document: resources.replace(document, dry_run=dry_run), more)
    if not outcome.errors:
        _finish(session, outcome, "replace", "replaced", dry_run=dry_run)
        return
    # calicoctl counts what failed as replaced, and tells the last error only.
    last = outcome.errors[-1]
    number = outcome.handled if session.for_people else len(documents) - outcome.misplaced
    if not number:
        raise Told(f"failed to replace {outcome.some}: {last}", hint=last.hint)
    say(f"Partial success: replaced the first {number} out of {len(documents)} {outcome.noun}resources:")
    raise Told(f"hit error: {last}", hint=last.hint)


@click.command(cls=Mirrored)
@file_options
@common_options
@pass_session
def validate(session: Session, /, files: tuple[str, ...], **more: Any) -> None:
    """Check the resources of a file by every rule that needs no datastore."""
    documents = documents_of(session, files, more)
    if documents is None:
        return
    _finish(session, each_of(documents, _validated, more), "validate", "validated")


def _validated(document: Document) -> None:
    from calico_ipam.model.other_rules import check_resource, completed_spec
    from calico_ipam.model.pool_rules import PoolRequest, check_pool_alone

    kind = str(document["kind"])
    if kind == "IPPool":
        check_pool_alone(PoolRequest.from_document(document))
    else:
        check_resource(kind, {**document, "spec": completed_spec(kind, document.get("spec") or {})})


# --- what all have in common ---------------------------------------------------------------------------------


def documents_of(session: Session, files: Sequence[str], more: dict[str, Any]) -> list[Document] | None:
    """Return the documents of files; None when there are none and that may be so. Raises Told."""
    from calico_ipam.ctl.files import NothingThere, read_resources
    from calico_ipam.engine.resources import identity

    if not files:
        raise click.UsageError("Say which file: -f FILE, or -f - for standard input.", click.get_current_context())
    found: list[Document] = []
    for path in files:
        try:
            found += read_resources(path, recursive=more["recursive"], skip_empty=more["skip_empty"])
        except NothingThere:
            if not more["skip_empty"]:
                raise
    if not found:
        say("No resources specified")
        return None
    seen: set[tuple[str, str, str]] = set()
    for document in found:
        kind, name, namespace = identity(document)
        if (kind, name, namespace) in seen:
            session.note(f"{kind} {name} stands twice in these files.", label="warning")
        seen.add((kind, name, namespace))
    return found


def _ready(session: Session, *, dry_run: bool) -> Any:
    from calico_ipam.ctl.get import resources_of
    from calico_ipam.ctl.locking import is_kubernetes
    from calico_ipam.engine.initialise import initialise_quietly

    resources = resources_of(session)
    if not dry_run:
        initialise_quietly(session.engine, kubernetes=is_kubernetes(session))
    return resources


def each_of(documents: Sequence[Document], do: Callable[[Document], Any], more: dict[str, Any]) -> Outcome:
    """Do something with every document, in the namespace that is meant; an error does not stop the others."""
    outcome = Outcome([str(document["kind"]) for document in documents])
    for document in documents:
        try:
            placed = _placed(document, more.get("namespace"))
        except IPAMError as error:
            outcome.errors.append(error)
            outcome.misplaced += 1
            continue
        try:
            do(placed)
        except IPAMError as error:
            outcome.errors.append(error)
        else:
            outcome.handled += 1
    return outcome


def _placed(document: Document, flag: str | None) -> Document:
    """Return a resource with its namespace. Raises Told when it has another than the flag says, or may have none."""
    from calico_ipam.ctl.get import namespace_of
    from calico_ipam.ctl.kinds import by_name
    from calico_ipam.engine.resources import identity

    kind, _, own = identity(document)
    namespace = namespace_of(by_name(kind), own, flag)
    metadata = {**document["metadata"], **({"namespace": namespace} if namespace else {})}
    return {**document, "metadata": metadata}


def _finish(session: Session, outcome: Outcome, verb: str, done: str, *, dry_run: bool = False) -> None:
    """Say what became of all. Raises Told when something failed."""
    total, errors = len(outcome.kinds), outcome.errors
    noun = outcome.noun
    if not errors:
        say(f"{'Would have' if dry_run else 'Successfully'} {done} {total} {noun}resource(s)")
        return
    hints = "\n".join(dict.fromkeys(error.hint for error in errors if error.hint))
    texts = "[" + " ".join(str(error) for error in errors) + "]"
    if outcome.handled == 0:
        raise Told(f"failed to {verb} {outcome.some}: {texts}", hint=hints)
    if outcome.handled > len(errors) or session.for_people:
        say(f"Partial success: {done} the first {outcome.handled} out of {total} {noun}resources:")
    raise Told(f"hit error: {texts}", hint=hints)
