"""``ipamctl pool resize``: another size of blocks for a pool that lives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from calico_ipam.ctl.commands import Spelled
from calico_ipam.ctl.completion import live_names
from calico_ipam.ctl.options import dry_run_option, yes_option
from calico_ipam.ctl.output import counted, document, paragraph, say
from calico_ipam.ctl.session import Session, common_options, confirm, pass_session

if TYPE_CHECKING:
    from calico_ipam.engine.resize import Resize


@click.command(cls=Spelled)
@click.argument("name", shell_complete=live_names("pool"))
@click.argument("size", metavar="LENGTH", required=False)
@click.option(
    "--cancel", "cancelled", is_flag=True, help="Forget a change that is under way: the pool goes on as it was."
)
@yes_option
@dry_run_option
@common_options
@pass_session
def resize(session: Session, /, name: str, size: str | None, cancelled: bool, yes: bool, dry_run: bool) -> None:
    """Give a pool blocks of another prefix LENGTH, such as 28.

    The pool is disabled, its empty blocks are given up, the others drain as their workloads end; then it goes on with
    the new size. Blocks of two sizes never overlap. Run it again to go on; workloads that start meanwhile need
    another pool.
    """
    from calico_ipam.engine import resize as engine

    if cancelled:
        done = engine.cancel(session.engine, name)
        say(f"Pool {name} goes on as it was." if done else f"Pool {name} is not being changed.")
        return
    digits = (size or "").removeprefix("/")
    if not (digits.isascii() and digits.isdigit()):
        raise click.UsageError("Give the new prefix length of its blocks, such as 28.", click.get_current_context())
    length = int(digits)
    before = engine.look(session.engine, name, length)
    if not session.wants_document:
        _plan(before)
    if dry_run:
        if session.wants_document:
            document(_document(before), session.output)
        return
    if before.old == before.new and not before.blocks:
        say(f"Pool {name} has blocks of /{length}.")
        return
    confirm(session, "Go on?", assume_yes=yes, refusal="nothing was changed.")
    after = engine.carry_on(session.engine, name, length)
    if session.wants_document:
        document(_document(after), session.output)
    else:
        _tell(after)


def _plan(state: Resize) -> None:
    if state.old == state.new and not state.blocks:
        return
    say(f"Pool {state.pool} ({state.cidr}): blocks of /{state.old} become blocks of /{state.new}.")
    say(
        f"  {counted(len(state.blocks), 'block')} of another size, "
        f"{counted(sum(state.left.values()), 'address')} in them."
    )
    say("  The pool gives out no address until they are gone.")


def _tell(state: Resize) -> None:
    if state.given_up:
        say(f"Gave up {len(state.given_up)} empty blocks.")
    if state.done:
        say(f"Done: pool {state.pool} has blocks of /{state.new} now.")
        return
    say(
        f"Left: {counted(len(state.blocks), 'block')} of the old size, "
        f"with {counted(sum(state.left.values()), 'address')}:"
    )
    for node, number in sorted(state.left.items(), key=lambda item: -item[1])[:20]:
        say(f"  {node}: {number}")
    say(paragraph(f"→ Restart those workloads, then: ipamctl pool resize {state.pool} {state.new}"))


def _document(state: Resize) -> dict[str, object]:
    return {
        "pool": state.pool,
        "cidr": str(state.cidr),
        "oldBlockSize": state.old,
        "newBlockSize": state.new,
        "givenUp": [str(each) for each in state.given_up],
        "blocksLeft": [str(each) for each in state.blocks],
        "addressesLeft": dict(state.left),
        "done": state.done,
    }
