"""``ipamctl datastore``: locking, plain-file dumps, copies and backups; ``migrate`` is calicoctl's (cli §2, §11)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

import click

from calico_ipam.ctl.commands import Commands, Later, Spelled
from calico_ipam.ctl.failures import PartlyDone, Told
from calico_ipam.ctl.options import yes_option
from calico_ipam.ctl.output import document, say
from calico_ipam.ctl.session import Session, common_options, confirm, group_options, pass_session

if TYPE_CHECKING:
    from calico_ipam.datastore.documents import DocumentStore
    from calico_ipam.datastore.dump import Comparison

_CTL = "calico_ipam.ctl."
COMMANDS = {
    "export": Later(_CTL + "datastore:export", "Write everything into a plain file."),
    "import": Later(_CTL + "datastore:import_", "Read such a file into an empty datastore."),
    "copy": Later(_CTL + "datastore:copy", "Copy one datastore into another, and compare."),
    "backup": Later(_CTL + "datastore:backup", "Copy the live file of an embedded datastore."),
    "lock": Later(_CTL + "locking:own_lock", "Lock the datastore, saying who and why; --status shows the lock."),
    "unlock": Later(_CTL + "locking:own_unlock", "Unlock the datastore."),
    "migrate": Later(_CTL + "datastore:migrate", "calicoctl's commands: lock, unlock, export, import."),
}
MIGRATE = {
    "lock": Later(_CTL + "locking:lock", "Lock the datastore: plugins wait until it is unlocked."),
    "unlock": Later(_CTL + "locking:unlock", "Unlock the datastore."),
    "export": Later(_CTL + "migrate:export", "Write what an etcd datastore holds, for the Kubernetes datastore."),
    "import": Later(_CTL + "migrate:import_", "Read that into the Kubernetes datastore."),
}


@group_options
@click.group(cls=Commands, later=COMMANDS, helps_with_unknown=True)
def datastore() -> None:
    """Lock, export, import, copy and back up the datastore."""


@group_options
@click.group(cls=Commands, later=MIGRATE, helps_with_unknown=True)
def migrate() -> None:
    """calicoctl's commands to move a cluster from etcd to the Kubernetes API."""


@click.command(cls=Spelled)
@click.argument("target", metavar="[FILE]", default="-")
@click.option("--force", is_flag=True, help="Overwrite FILE.")
@common_options
@pass_session
def export(session: Session, /, target: str, force: bool) -> None:
    """Write everything that the datastore holds into FILE, or to standard output.

    It is read at one moment: the datastore need not be locked. Lines of JSON, under etcd's keys.
    """
    import os

    from calico_ipam.datastore.dump import documents_of, lines_of

    lines = lines_of(documents_of(session.store))
    if target == "-":
        for line in lines:
            click.echo(line, nl=False)
        return
    if os.path.exists(target) and not force:  # noqa: PTH110  # pathlib is not needed otherwise, and costs 7 ms
        raise Told(f"{target} exists", hint="Name another file, or use --force.")
    from calico_ipam.ctl.report import write_file

    text = "".join(lines)
    write_file(target, text)
    say(f"Exported {text.count(chr(10)) - 1} objects of {session.store.name} to {target}")


@contextmanager
def _opened(source: str) -> Iterator[IO[str]]:
    if source == "-":
        from calico_ipam.ctl.files import standard_input

        yield standard_input()
        return
    with open(source, encoding="utf-8") as file:  # noqa: PTH123  # pathlib is not needed otherwise, and costs 7 ms
        yield file


@click.command(cls=Spelled)
@click.argument("source", metavar="FILE")
@click.option("--merge", is_flag=True, help="Import although the datastore holds something; objects of the dump win.")
@yes_option
@click.option("--dry-run", is_flag=True, help="Show what would be written and write nothing.")
@common_options
@pass_session
def import_(session: Session, /, source: str, merge: bool, yes: bool, dry_run: bool) -> None:
    """Read a dump that 'datastore export' made; FILE may be - for standard input.

    The datastore must be empty, unless --merge is given. At the end both are compared.
    """
    from calico_ipam.datastore.dump import documents_of, parse_dump

    try:
        with _opened(source) as file:
            dump = parse_dump(file, source)
    except UnicodeDecodeError:
        raise Told(f"{source} is no text", hint="A dump is made by 'ipamctl datastore export'.") from None
    session.makes_store = True
    _bring_in(
        session, documents_of(session.store), dict(dump.objects), dump.source, merge=merge, yes=yes, dry_run=dry_run
    )


def _bring_in(
    session: Session,
    target: DocumentStore,
    objects: dict[str, str],
    source: str,
    *,
    merge: bool,
    yes: bool,
    dry_run: bool,
) -> None:
    """Write objects into a datastore and compare at the end. Raises PartlyDone when the comparison fails."""
    from calico_ipam.ctl.progress import working
    from calico_ipam.datastore.dump import compare, not_empty, read_all, write_all

    there = read_all(target)
    if there and not merge:
        raise not_empty(target, len(there))
    before = compare(objects, there)
    what = f"{len(before.missing)} new and {len(before.different)} changed objects from {source} into {target.name}"
    if dry_run:
        say(f"Would write {what}")
        return
    if session.for_people:
        say(f"{len(before.missing)} new and {len(before.different)} changed objects")
        say(f"  from {source}\n  into {target.name}")
        say(f"({before.same} are the same there, {len(before.extra)} others stay.)")
        confirm(session, "Write them?", assume_yes=yes, refusal="nothing was written.")
    with working(session, "writing"):
        written = write_all(target, objects, merge=merge)
    found = compare(objects, read_all(target))
    _tell(session, found, written, target.name)


def _tell(session: Session, found: Comparison, written: int, target: str) -> None:
    verified = not (found.missing or found.different)
    if session.wants_document:
        document(
            {
                "written": written,
                "same": found.same,
                "missing": list(found.missing),
                "different": list(found.different),
                "extra": list(found.extra),
                "verified": verified,
            },
            session.output,
        )
    else:
        say(f"Wrote {written} objects to {target}")
        for title, keys in (("missing", found.missing), ("different", found.different)):
            for key in keys[:10]:
                say(f"  {title}: {key}")
        extra = f"; {len(found.extra)} others were there already" if found.extra else ""
        if verified:
            say(f"Compared: all {found.same} objects are the same{extra}")
    if not verified:
        raise PartlyDone


@click.command(cls=Spelled)
@click.argument("target", metavar="URL")
@click.option("--merge", is_flag=True, help="Copy although the target holds something; objects of the source win.")
@yes_option
@click.option("--dry-run", is_flag=True, help="Show what would be written and write nothing.")
@common_options
@pass_session
def copy(session: Session, /, target: str, merge: bool, yes: bool, dry_run: bool) -> None:
    """Copy everything into the datastore URL, such as etcd://host:2379 or sqlite:///path/ipam.db, and compare.

    Lock the source first if pods come and go meanwhile: ipamctl datastore lock.
    """
    from calico_ipam.datastore.config import load_settings, open_datastore
    from calico_ipam.datastore.dump import documents_of, read_all
    from calico_ipam.engine.lock import state
    from calico_ipam.engine.survey import CLUSTER

    source = documents_of(session.store)
    settings = load_settings(target, environ=session.environ, config_file=session.config)
    with open_datastore(settings) as opened:
        if opened.name == source.name:
            raise Told(f"source and target are the same datastore, {source.name}", hint="Name another one.")
        cluster = source.read(CLUSTER).entry(CLUSTER)
        if cluster is not None and not state(cluster).locked:
            session.note("the source is not locked: what changes from now on is not in the copy.", label="warning")
        _bring_in(session, documents_of(opened), read_all(source), source.name, merge=merge, yes=yes, dry_run=dry_run)


@click.command(cls=Spelled)
@click.argument("target", metavar="FILE")
@common_options
@pass_session
def backup(session: Session, /, target: str) -> None:
    """Copy the live file of an embedded datastore, while it is in use, into the new FILE."""
    from calico_ipam.datastore.sqlite import SQLiteStore

    store = session.store
    if not isinstance(store, SQLiteStore):
        raise Told(
            f"{store.name} is no file that could be copied",
            hint="'ipamctl datastore export FILE' writes a dump; for etcd also 'etcdctl snapshot save FILE'.",
        )
    store.backup(target)
    say(f"Backed up {store.name} to {target}; it is a datastore of its own: --datastore sqlite:///absolute/path")
