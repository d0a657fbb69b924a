"""``ipamctl ipam release``: one address, or what a report found leaked (cli §5; ruling 9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from calico_ipam.ctl.commands import Mirrored
from calico_ipam.ctl.failures import Told
from calico_ipam.ctl.options import dry_run_option, yes_option
from calico_ipam.ctl.output import say
from calico_ipam.ctl.session import Session, common_options, confirm, pass_session

if TYPE_CHECKING:
    from calico_ipam.model.addresses import Address


@click.command(cls=Mirrored)
@click.argument("words", nargs=-1, metavar="")
@click.option("--ip", metavar="ADDRESS", help="The address to release.")
@click.option(
    "--from-report", "reports", multiple=True, metavar="FILE", help="Release what is leaked in all of these reports."
)
@click.option("--force", is_flag=True, help="Release an address that is in use; release by a report without the lock.")
@click.option(
    "--include-unattributed", is_flag=True, help="With a report: also addresses that are nobody's in particular."
)
@click.option("--handle", metavar="ID", help="With --ip: only if this handle holds it.")
@yes_option
@dry_run_option
@common_options
@pass_session
def release(
    session: Session,
    /,
    words: tuple[str, ...],
    ip: str | None,
    reports: tuple[str, ...],
    force: bool,
    include_unattributed: bool,
    handle: str | None,
    yes: bool,
    dry_run: bool,
) -> None:
    """Release an address that nothing uses any more, or all that a report of 'ipam check' found leaked.

    An address is released only if its holder is still the one that was shown, or reported. To take an address from
    something that lives, delete the workload instead.
    """
    from calico_ipam.ctl.version import check_version

    if words and session.for_people:  # calicoctl takes no notice of them
        hint = f"To release an address: ipamctl ipam release --ip {words[0]}"
        raise Told(f"'{' '.join(words)}' is no option", hint=hint)
    check_version(session, writes=not dry_run)
    if reports:
        from calico_ipam.ctl.release_report import release_reported

        release_reported(session, reports, force=force, unattributed=include_unattributed, yes=yes, dry_run=dry_run)
    elif ip:
        _release_one(session, parse_ip(ip), handle=handle, force=force, yes=yes, dry_run=dry_run)
    elif not session.compat:  # calicoctl does nothing and says so to nobody (limit 18.12)
        raise click.UsageError("Say what to release: --ip ADDRESS or --from-report FILE.", click.get_current_context())


def _release_one(
    session: Session, address: Address, *, handle: str | None, force: bool, yes: bool, dry_run: bool
) -> None:
    from calico_ipam.ctl.show import holding_lines
    from calico_ipam.engine.holder import find_holding, live_users
    from calico_ipam.engine.release import release_from_block
    from calico_ipam.errors import RefusedError

    held = find_holding(session.engine, address)
    if held is None or held.released_at is not None:
        raise not_assigned(address, cooling=held is not None)
    if not session.compat:
        for line in holding_lines(held):
            click.echo(line, err=True)
    if handle and handle != held.handle:
        raise RefusedError(
            f"address {address} belongs to handle {held.handle or '<none>'}, not to {handle}",
            subject=str(address),
            hint="Nothing was released: look who holds it now.",
        )
    users = live_users(session.engine, address)
    if users and not (force or session.compat):
        raise RefusedError(
            f"address {address} is in use by {' and '.join(users)}",
            subject=str(address),
            hint="Delete the workload, which releases its address; or use --force: another may then get the address "
            "while this one still uses it.",
        )
    if dry_run:
        say(f"Would release IP address {address}")
        return
    confirm(session, f"Release {address}?", assume_yes=yes, refusal="nothing was released.")
    if release_from_block(session.engine, held.block, [held.release_option()]):
        raise not_assigned(address, cooling=False)
    say(f"Successfully released IP address {address}")
    for user in users:
        session.note(f"{user} still has it: remove that too.", label="warning")


def parse_ip(text: str) -> Address:
    """Return the address that an operator typed. Raises InvalidInput."""
    from calico_ipam.errors import InvalidInput
    from calico_ipam.model.addresses import parse_address

    try:
        if "%" in text:
            raise InvalidInput("a zone is no part of an address")
        return parse_address(text)
    except InvalidInput:
        raise Told(
            f"invalid IP address specified: {text}",
            exact=f"Error executing command: invalid IP address specified: {text}",
            hint="Give one IPv4 or IPv6 address, without a prefix length or leading zeros.",
            on_stdout=True,
        ) from None


def not_assigned(address: Address, *, cooling: bool) -> Exception:
    """Return the error for an address that cannot be released, because nobody holds it."""
    from calico_ipam.errors import RefusedError

    hint = "It was released already and becomes free when its cooldown is over." if cooling else ""
    return RefusedError(f"IP address {address} is not assigned", subject=str(address), hint=hint)
