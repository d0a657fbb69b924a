"""Locking the datastore: calicoctl's commands, and ours that say who locked and why (cli §2; limit 18.15)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from calico_ipam.ctl.commands import Mirrored, Spelled
from calico_ipam.ctl.failures import Told
from calico_ipam.ctl.options import yes_option
from calico_ipam.ctl.output import document, say
from calico_ipam.ctl.session import Session, common_options, confirm, pass_session
from calico_ipam.errors import IPAMError

if TYPE_CHECKING:
    from calico_ipam.model.resource import Resource


@click.command(cls=Mirrored)
@click.option("--dry-run", is_flag=True, help="Say what would happen and write nothing.")
@common_options
@pass_session
def lock(session: Session, /, dry_run: bool) -> None:
    """Lock the datastore: plugins wait, and collectors rest, until it is unlocked."""
    from calico_ipam.ctl.version import check_version

    check_version(session, writes=not dry_run)
    if dry_run:
        say("Would lock the datastore.")
        return
    _lock(session, reason="", seconds=0)
    say("Datastore locked.")


@click.command(cls=Mirrored)
@click.option("--dry-run", is_flag=True, help="Say what would happen and write nothing.")
@common_options
@pass_session
def unlock(session: Session, /, dry_run: bool) -> None:
    """Unlock the datastore."""
    from calico_ipam.ctl.version import check_version

    check_version(session, writes=not dry_run)
    if dry_run:
        say("Would unlock the datastore.")
        return
    _unlock(session)
    say("Datastore unlocked.")


@click.command(cls=Spelled)
@click.option("--reason", default="", help="Why, for whoever wonders.")
@click.option(
    "--for", "seconds", type=click.IntRange(0), default=0, metavar="SECONDS", help="When it may be taken for forgotten."
)
@click.option("--status", is_flag=True, help="Show the lock and change nothing.")
@yes_option
@click.option("--dry-run", is_flag=True, help="Say what would happen and write nothing.")
@common_options
@pass_session
def own_lock(session: Session, /, reason: str, seconds: int, status: bool, yes: bool, dry_run: bool) -> None:
    """Lock the datastore: plugins wait, and collectors rest, until it is unlocked. Says who locked, and why."""
    from calico_ipam.engine.lock import state
    from calico_ipam.engine.survey import CLUSTER

    if status or dry_run:
        found = state(session.store.get(CLUSTER))
        if session.wants_document:
            content = {"locked": found.locked, "owner": found.owner, "since": found.since, "reason": found.reason}
            document(content | {"expires": found.expires}, session.output)
        else:
            say(f"The datastore is {found}." if status else f"Would lock the datastore, which is {found}.")
        return
    confirm(
        session, "Lock it? No pod gets or loses its address meanwhile.", assume_yes=yes, refusal="nothing was locked."
    )
    _lock(session, reason=reason, seconds=seconds)
    say("Datastore locked.")


@click.command(cls=Spelled)
@yes_option
@click.option("--dry-run", is_flag=True, help="Say what would happen and write nothing.")
@common_options
@pass_session
def own_unlock(session: Session, /, yes: bool, dry_run: bool) -> None:
    """Unlock the datastore."""
    from calico_ipam.engine.lock import state
    from calico_ipam.engine.survey import CLUSTER

    found = state(session.store.get(CLUSTER))
    if dry_run:
        say(f"Would unlock the datastore, which is {found}.")
        return
    if found.owner and found.owner != owner_name():
        confirm(session, f"It is {found}. Unlock it all the same?", assume_yes=yes, refusal="it stays locked.")
    _unlock(session)
    say("Datastore unlocked.")


def owner_name() -> str:
    """Return who runs this program, for people: ``root@host``."""
    import getpass
    import socket

    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def cluster_when_locked(session: Session, purpose: str) -> Resource:
    """Return what the cluster says about itself. Raises Told unless it says that the datastore is locked; ``purpose``
    completes the sentence."""
    from calico_ipam.engine.survey import CLUSTER
    from calico_ipam.errors import NotFound

    try:
        cluster: Resource = session.store.get(CLUSTER).value
    except NotFound as error:
        reason = f"error retrieving ClusterInformation: {error}"
        raise Told(
            f"error while checking if datastore was locked: {reason}",
            hint="The datastore is not initialised: 'ipamctl datastore migrate lock' does that, and locks it.",
        ) from None
    if cluster.spec.get("datastoreReady") is not False:
        raise Told(
            f"datastore is not locked. Run the `calicoctl datastore migrate lock` command in order {purpose}",
            hint="'ipamctl datastore migrate lock' locks it; afterwards 'ipamctl datastore migrate unlock'.",
        )
    return cluster


def is_kubernetes(session: Session) -> bool:
    return session.settings.datastore_type == "kubernetes"


def _lock(session: Session, *, reason: str, seconds: int) -> None:
    from calico_ipam.engine.initialise import initialise
    from calico_ipam.engine.lock import LockOwner, lock
    from calico_ipam.errors import NotConfigured, NotFound

    session.open()
    try:
        initialise(session.engine, kubernetes=is_kubernetes(session))
    except NotConfigured:
        raise
    except IPAMError as error:
        raise Told(
            f"unable to initialize cluster information for the datastore migration: {error}", hint=error.hint
        ) from error
    try:
        lock(session.engine, None if session.compat else LockOwner(owner_name(), reason, seconds))
    except NotFound as error:
        raise Told(f"error retrieving ClusterInformation for locking: {error}", hint=error.hint) from error
    except IPAMError as error:
        raise Told(f"error updating ClusterInformation for locking: {error}", hint=error.hint) from error


def _unlock(session: Session) -> None:
    from calico_ipam.engine.lock import unlock
    from calico_ipam.errors import NotFound

    session.open()
    try:
        before = unlock(session.engine, retry=not session.compat)
    except NotFound as error:
        raise Told(
            f"error retrieving ClusterInformation for unlocking: {error}",
            hint="The datastore is not initialised: 'ipamctl init' does that.",
        ) from error
    except IPAMError as error:
        raise Told(f"error updating ClusterInformation for unlocking: {error}", hint=error.hint) from error
    if before.owner and before.owner != owner_name():
        session.note(f"the lock was {before.owner}'s{f' ({before.reason})' if before.reason else ''}.", label="warning")
