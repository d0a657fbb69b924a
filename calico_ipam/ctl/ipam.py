"""``ipamctl ipam``: looking at addresses, and what is done about them."""

from __future__ import annotations

import click

from calico_ipam.ctl.commands import Commands, Later, Watching, watch_option
from calico_ipam.ctl.completion import live_names
from calico_ipam.ctl.failures import Told
from calico_ipam.ctl.session import Session, common_options, group_options, pass_session

_CTL = "calico_ipam.ctl."
_LOOK, _MEND, _SET = "Look", "Mend", "Set"
COMMANDS = {
    "show": Later(_CTL + "ipam:show", "How full the pools are; who holds an address.", _LOOK),
    "explain": Later(_CTL + "explain:explain", "Why a node, pod, pool, address or handle is as it is.", _LOOK),
    "map": Later(_CTL + "map:map_", "Pools and their blocks, drawn.", _LOOK),
    "history": Later(_CTL + "history:history", "What happened to an address, block or handle.", _LOOK),
    "simulate": Later(
        _CTL + "simulate:simulate", "What would happen if: nodes lost, pools changed, pods added.", _LOOK
    ),
    "check": Later(_CTL + "check:check", "Find leaks and whatever else is wrong; each with the cure.", _MEND),
    "repair": Later(_CTL + "repair:repair", "Mend what check finds: plan, confirm, write, verify.", _MEND),
    "gc": Later(_CTL + "gc:gc", "Find leaked addresses and release them, safely.", _MEND),
    "release": Later(_CTL + "release:release", "Release an address, or the leaks of a report.", _MEND),
    "configure": Later(_CTL + "configure:configure", "Change the IPAM settings of the cluster.", _SET),
    "split": Later(_CTL + "split:split", "Split a pool into smaller ones.", _SET),
}


@group_options
@click.group(cls=Commands, later=COMMANDS, helps_with_unknown=True)
def ipam() -> None:
    """Look at addresses, blocks and settings; find what is wrong and mend it."""


@click.command(cls=Watching)
@click.argument("words", nargs=-1, metavar="[ADDRESS]")
@click.option("--ip", metavar="ADDRESS", help="Show who holds this address.")
@click.option("--handle", metavar="ID", shell_complete=live_names("handle"), help="Show the addresses of this handle.")
@click.option("--pod", metavar="NAMESPACE/NAME", help="Show the addresses of this pod.")
@click.option(
    "--node",
    metavar="NAME",
    shell_complete=live_names("node"),
    help="Show the addresses that this node holds, and its blocks.",
)
@click.option("--show-blocks", is_flag=True, help="Show the blocks of each pool too.")
@click.option("--show-borrowed", is_flag=True, help="Show addresses that a node holds in another node's block.")
@click.option("--show-configuration", is_flag=True, help="Show the IPAM settings.")
@click.option("--sort", type=click.Choice(("cidr", "used", "free", "node")), help="Order of blocks. Default: by CIDR.")
@watch_option
@common_options
@pass_session
def show(
    session: Session,
    /,
    words: tuple[str, ...],
    ip: str | None,
    handle: str | None,
    pod: str | None,
    node: str | None,
    show_blocks: bool,
    show_borrowed: bool,
    show_configuration: bool,
    sort: str | None,
    watch: float | None,
) -> None:
    """Show how full the pools are, or who holds what.

    Of several options the first in the order of this list counts.
    """
    from calico_ipam.ctl import show as views
    from calico_ipam.ctl.version import check_version

    check_version(session, writes=False)
    if words and session.for_people:  # calicoctl takes no notice of them
        if len(words) > 1 or "/" in words[0] or not any(mark in words[0] for mark in ".:"):
            hint = f"'ipamctl ipam explain {words[0]}' tells what it is."
            raise Told(f"'{' '.join(words)}' is not one address", hint=hint)
        ip = ip or words[0]

    def once() -> None:
        if ip:
            from calico_ipam.ctl.release import parse_ip

            views.show_address(session, parse_ip(ip))
        elif handle or pod or node:
            from calico_ipam.ctl.holdings import show_holdings

            show_holdings(session, handle=handle, pod=pod, node=node)
        elif show_borrowed and not show_blocks:
            views.show_borrowed(session)
        elif show_configuration and not show_blocks:
            views.show_configuration(session)
        else:
            views.show_pools(session, blocks=show_blocks, order=sort)

    if watch is not None:
        from calico_ipam.ctl.watching import repeat

        repeat(session, once, every=watch)
    else:
        once()
