"""The versions of this program and of the cluster, and whether they go together (cli §1.5, ruling 20)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from calico_ipam.ctl.commands import Mirrored
from calico_ipam.ctl.failures import Told, is_missing_file
from calico_ipam.ctl.output import document, say
from calico_ipam.ctl.session import Session, common_options, pass_session

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

#: the version that ``--compat`` pretends to be; CALICO_CLIENT_VERSION sets another
COMPAT_VERSION = "v3.32.0"
#: Calico releases whose data this program was tested with, first and last
OLDEST, NEWEST = (3, 20), (3, 33)

_OVERRIDE = "Use --allow-version-mismatch to override"


def client_version(session: Session) -> str:
    """Return the version that reports and comparisons carry."""
    if session.compat:
        return session.environ.get("CALICO_CLIENT_VERSION") or COMPAT_VERSION
    return own_version()


def own_version() -> str:
    from importlib.metadata import version

    return f"calico-ipam-{version('calico-ipam')}"


def check_version(session: Session, *, writes: bool) -> None:
    """Refuse to work on a cluster of another version, where that matters (cli §1.5, §17.2).

    With ``--compat`` any difference is refused, as calicoctl does; otherwise writing to a release that this program
    does not know is, and reading one is told.
    """
    from calico_ipam.errors import IPAMError, NotConfigured

    if session.allow_version_mismatch:
        return
    try:
        session.open()
    except IPAMError as error:
        if is_missing_file(error):
            raise
        return  # whoever uses the store tells it
    try:
        found = session.cluster()
    except NotConfigured:
        return  # as above
    except IPAMError as error:
        if not session.compat:
            raise
        raise Told(
            f"unable to get Cluster Information to verify version mismatch: {error}\n{_OVERRIDE}", hint=error.hint
        ) from error
    cluster = str(found.spec.get("calicoVersion") or "") if found is not None else ""
    if cluster:
        _compare(session, cluster, writes=writes)


def _compare(session: Session, cluster: str, *, writes: bool) -> None:
    if session.compat:
        client = client_version(session)
        if _bare(client) != _bare(cluster):
            raise Told(
                f"version mismatch.\nClient Version:   {client}\nCluster Version:  {_bare(cluster)}\n{_OVERRIDE}"
            )
        return
    release = re.match(r"v?(\d+)\.(\d+)", cluster)
    if release is None or OLDEST <= (int(release[1]), int(release[2])) <= NEWEST:
        return
    known = f"v{OLDEST[0]}.{OLDEST[1]} to v{NEWEST[0]}.{NEWEST[1]}"
    if writes:
        raise Told(
            f"the cluster runs Calico {cluster}, and this program knows {known}",
            hint="Use --allow-version-mismatch to go on all the same; take a backup first: ipamctl datastore export.",
        )
    session.note(f"the cluster runs Calico {cluster}; this program knows {known}.", label="warning")


def _bare(version: str) -> str:
    return _without_suffix(version).removeprefix("v")


def _without_suffix(version: str) -> str:
    return version.partition("-")[0]


def cluster_spec(store: Any) -> Mapping[str, Any]:
    """Return the spec of the cluster information. Raises NotFound."""
    from calico_ipam.model.keys import ResourceKey
    from calico_ipam.model.resource import CLUSTER_INFORMATION

    found: Mapping[str, Any] = store.get(ResourceKey(CLUSTER_INFORMATION, "default")).value.spec
    return found


@click.command(cls=Mirrored)
@click.option("--client", "client_only", is_flag=True, help="The version of this program only; contact nothing.")
@common_options
@pass_session
def version(session: Session, /, client_only: bool) -> None:
    """Show the versions of this program and of the cluster."""
    from calico_ipam.errors import InvalidInput, IPAMError, NotConfigured, NotFound

    rows = {"clientVersion": client_version(session), "gitCommit": ""}
    problem: IPAMError | None = None
    if not client_only:
        try:
            spec = cluster_spec(session.store)
            rows |= {
                "clusterVersion": str(spec.get("calicoVersion") or ""),
                "clusterType": str(spec.get("clusterType") or ""),
            }
        except IPAMError as error:
            if is_missing_file(error):
                raise
            problem = error
    if session.wants_document:
        document(rows, session.output)
    else:
        say(f"Client Version:    {rows['clientVersion']}")
        say(f"Git commit:        {rows['gitCommit']}")
        if "clusterVersion" in rows:
            say(f"Cluster Version:   {rows['clusterVersion'] or 'unknown'}")
            say(f"Cluster Type:      {rows['clusterType'] or 'unknown'}")
    if problem is not None:
        if session.compat or not isinstance(problem, NotFound):
            unreachable = isinstance(problem, NotConfigured | InvalidInput)  # there is nobody to ask
            prefix = "" if unreachable else "unable to retrieve Cluster Version or Type: "
            raise Told(f"{prefix}{problem}", hint=problem.hint)
        session.note("the cluster has no information about itself; 'ipamctl init' makes it.")
