"""``ipamctl ipam``: look at addresses and release them (cli §3, §5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from calico_ipam.ctl.output import note, say
from calico_ipam.ctl.session import Session, common_options, confirm, pass_session

if TYPE_CHECKING:
    from calico_ipam.model.addresses import Address


@click.group()
def ipam() -> None:
    """Look at addresses, blocks and settings; release addresses."""


@ipam.command()
@click.option("--ip", metavar="ADDRESS", help="Show who holds this address.")
@click.option("--show-blocks", is_flag=True, help="Show the blocks of each pool too.")
@click.option("--show-borrowed", is_flag=True, help="Show addresses that a node holds in another node's block.")
@click.option("--show-configuration", is_flag=True, help="Show the IPAM settings.")
@common_options
@pass_session
def show(session: Session, /, ip: str | None, show_blocks: bool, show_borrowed: bool, show_configuration: bool) -> None:
    """Show how full the pools are.

    Of several options the first in the order of this list counts.
    """
    from calico_ipam.ctl import show as views

    if ip:
        views.show_address(session, parse_ip(ip))
    elif show_borrowed and not show_blocks:
        views.show_borrowed(session)
    elif show_configuration and not show_blocks:
        views.show_configuration(session)
    else:
        views.show_pools(session, blocks=show_blocks)


@ipam.command()
@click.option("--ip", metavar="ADDRESS", required=True, help="The address to release.")
@click.option("--force", is_flag=True, help="Release it although a workload or a tunnel uses it.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Show what would happen and write nothing.")
@common_options
@pass_session
def release(session: Session, /, ip: str, force: bool, yes: bool, dry_run: bool) -> None:
    """Release an address that nothing uses any more.

    It is released only if its holder is still the one that was shown. To take an address from something that lives,
    delete the workload instead.
    """
    from calico_ipam.ctl.show import holding_lines
    from calico_ipam.engine.holder import find_holding, live_users
    from calico_ipam.engine.release import release_from_block
    from calico_ipam.errors import RefusedError

    address = parse_ip(ip)
    held = find_holding(session.engine, address)
    if held is None or held.released_at is not None:
        raise not_assigned(address, cooling=held is not None)
    for line in holding_lines(held):
        click.echo(line, err=True)
    users = live_users(session.engine, address)
    if users and not force:
        raise RefusedError(
            f"address {address} is in use by {' and '.join(users)}",
            subject=str(address),
            hint="Delete the workload, which releases its address; or use --force: another may then get the address "
            "while this one still uses it.",
        )
    if dry_run:
        say(f"Would release IP address {address}")
        return
    confirm(f"Release {address}?", assume_yes=yes, refusal="nothing was released.")
    if release_from_block(session.engine, held.block, [held.release_option()]):
        raise not_assigned(address, cooling=False)
    say(f"Successfully released IP address {address}")
    for user in users:
        note(f"{user} still has it: remove that too.", label="warning")


def parse_ip(text: str) -> Address:
    """Return the address that an operator typed. Raises InvalidInput."""
    from calico_ipam.errors import InvalidInput
    from calico_ipam.model.addresses import parse_address

    try:
        if "%" in text:
            raise InvalidInput("a zone is no part of an address")
        return parse_address(text)
    except InvalidInput:
        raise InvalidInput(
            f"invalid IP address specified: {text}",
            subject=text,
            hint="Give one IPv4 or IPv6 address, without a prefix length or leading zeros.",
        ) from None


def not_assigned(address: Address, *, cooling: bool) -> Exception:
    """Return the error for an address that cannot be released, because nobody holds it."""
    from calico_ipam.errors import RefusedError

    hint = "It was released already and becomes free when its cooldown is over." if cooling else ""
    return RefusedError(f"IP address {address} is not assigned", subject=str(address), hint=hint)
