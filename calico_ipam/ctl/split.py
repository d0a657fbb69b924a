"""``ipamctl ipam split``: a pool becomes several smaller ones (cli §7, §17.3)."""

from __future__ import annotations

import click

from calico_ipam.ctl.commands import Mirrored
from calico_ipam.ctl.completion import live_names
from calico_ipam.ctl.failures import Told
from calico_ipam.ctl.flags import whole_number
from calico_ipam.ctl.locking import cluster_when_locked
from calico_ipam.ctl.options import dry_run_option, yes_option
from calico_ipam.ctl.output import say
from calico_ipam.ctl.session import Session, common_options, confirm, pass_session


@click.command(cls=Mirrored)
@click.argument("number", nargs=-1, metavar="NUMBER")
@click.option("--cidr", metavar="CIDR", help="CIDR of the pool to split, as the pool has it.")
@click.option(
    "--name", metavar="POOL", shell_complete=live_names("pool"), help="Name of the pool to split; beats --cidr."
)
@yes_option
@dry_run_option
@common_options
@pass_session
def split(
    session: Session, /, number: tuple[str, ...], cidr: str | None, name: str | None, yes: bool, dry_run: bool
) -> None:
    """Split a pool into NUMBER smaller ones of equal size: 2, 4, 8 and so on.

    The datastore must be locked. Addresses stay with their holders. After an interruption the same command goes on.
    """
    from calico_ipam.ctl.version import check_version
    from calico_ipam.engine import split as engine
    from calico_ipam.errors import IPAMError, NotFound

    if len(number) != 1:
        raise Told(f"accepts 1 arg(s), received {len(number)}", hint="For example: ipamctl ipam split 4 --name my-pool")
    check_version(session, writes=not dry_run)
    parts = _number(number[0])
    if not (name or cidr):
        raise Told(
            "no name or CIDR provided. Provide a name or CIDR to denote the IP pool to split",
            hint="'ipamctl pool list' shows the pools.",
        )
    cluster_when_locked(session, "split the IP pools")
    try:
        wanted = engine.plan(session.engine, parts, name=name or "", cidr=cidr or "")
    except NotFound as error:
        raise Told(f"unable to find IP pool with name {name}: {error}", hint=error.hint) from None
    if session.for_people or dry_run:
        say(f"Pool {wanted.pool} ({wanted.cidr}) becomes:")
        for part, network in wanted.parts:
            say(f"  {part}  {network}{'  (made already)' if part in wanted.existing else ''}")
    if dry_run:
        return
    if session.for_people:
        confirm(session, "Split it?", assume_yes=yes, refusal="nothing was changed.")
    try:
        made = engine.carry_out(session.engine, wanted)
    except IPAMError as error:
        again = f"ipamctl ipam split {parts} --name {wanted.pool}"
        error.hint = f"Pool {wanted.pool} is disabled now; the same command goes on: {again}"
        raise
    lines = [f"Created {part} with CIDR {network}.\n" for part, network in made]
    first = f"IP Pool {wanted.pool} was successfully split into {parts} smaller pools."
    gap = "\n" if session.for_people else ""  # calicoctl forgets the end of the line
    click.echo(f"{first}{gap}{''.join(lines)}Please refer to the documentation for final steps.{gap}", nl=False)


def _number(text: str) -> int:
    try:
        return whole_number(text)
    except ValueError as error:
        raise Told(
            f"error reading number to split IP pools into. {text} is not a valid number: strconv.Atoi: "
            f'parsing "{text}": {error}',
            hint="Give 2, 4, 8 and so on.",
        ) from None
