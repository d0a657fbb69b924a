"""``ipamctl pool``: create, list and delete IP pools (cli §9)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from calico_ipam.ctl.commands import Commands, Later
from calico_ipam.ctl.completion import live_names
from calico_ipam.ctl.options import dry_run_option, yes_option
from calico_ipam.ctl.output import Cell, Column, Row, document, note, say, table
from calico_ipam.ctl.session import Session, common_options, confirm, group_options, pass_session

if TYPE_CHECKING:
    from calico_ipam.engine.pools import PoolList
    from calico_ipam.model.pool import Pool


#: nobody wants to read how many blocks a larger pool has
_COUNTABLE = 10**6


@group_options
@click.group(
    cls=Commands,
    later={
        "resize": Later("calico_ipam.ctl.pool_resize:resize", "Give a pool blocks of another size, while it lives.")
    },
)
def pool() -> None:
    """Create, list, resize and delete the ranges that addresses come from."""


def describe(made: Pool) -> str:
    """Return a pool's size for people: ``10.244.0.0/16, 1024 blocks of 64 addresses``."""
    width = made.cidr.max_prefixlen
    blocks, size = 1 << max(0, made.block_size - made.cidr.prefixlen), 1 << (width - made.block_size)
    number = "" if blocks > _COUNTABLE else f"{blocks} "
    return f"{made.cidr}, {number}block{'s'[: blocks > 1]} of {size} address{'es'[: 2 * (size > 1)]}"


# --- create ------------------------------------------------------------------------------------------------


def _prefix_length(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int:
    """Return a prefix length that was written with or without its slash; 0 for none."""
    if text is None:
        return 0
    digits = text.strip().removeprefix("/")
    if not (digits.isascii() and digits.isdigit()):
        raise click.BadParameter(f"{text!r} is no prefix length; 26 gives blocks of 64 IPv4 addresses.")
    return int(digits)


def _canonical(text: str, choices: tuple[str, ...]) -> str:
    """Return the choice that ``text`` names in any case; other text is left for the rules to refuse."""
    return next((choice for choice in choices if choice.lower() == text.lower()), text)


@pool.command()
@click.argument("cidr")
@click.option("--name", help="Name of the pool. Default: made from the CIDR.")
@click.option(
    "--block-size",
    callback=_prefix_length,
    metavar="LENGTH",
    help="Prefix length of its blocks. Default: 26 (64 addresses) for IPv4, 122 for IPv6. It can never be changed.",
)
@click.option("--node-selector", default="all()", help="Nodes that may use it, such as  zone == 'a'.  Default: all().")
@click.option("--namespace-selector", default="", help="Namespaces that may use it. Default: every namespace.")
@click.option(
    "--allowed-use",
    "uses",
    multiple=True,
    metavar="USE",
    help="Workload, Tunnel or LoadBalancer; may be given again. Default: Workload and Tunnel.",
)
@click.option(
    "--assignment-mode",
    default="Automatic",
    metavar="MODE",
    help="Automatic, or Manual: used only when a workload asks for it. Default: Automatic.",
)
@click.option("--disabled", is_flag=True, help="No new addresses come from it until it is enabled.")
@click.option("--nat-outgoing", is_flag=True, help="Ask Felix to masquerade traffic that leaves the pool.")
@click.option("--dry-run", is_flag=True, help="Check everything and write nothing.")
@common_options
@pass_session
def create(session: Session, /, cidr: str, uses: tuple[str, ...], dry_run: bool, **settings: Any) -> None:
    """Create a pool of addresses, such as  10.245.0.0/16.

    Nothing may overlap it: no other pool, and no block of another size that is still in use.
    """
    from calico_ipam.engine.pools import check_pool, create_pool
    from calico_ipam.model.pool import Pool
    from calico_ipam.model.pool_rules import PoolRequest, default_pool_name
    from calico_ipam.model.pool_schema import ALLOWED_USES, ASSIGNMENT_MODES

    named = [use for given in uses for use in given.split(",") if use]
    settings["assignment_mode"] = _canonical(settings["assignment_mode"], ASSIGNMENT_MODES)
    settings["name"] = default_pool_name(cidr) if settings["name"] is None else settings["name"]
    request = PoolRequest(
        cidr=cidr.strip(),
        allowed_uses=tuple(dict.fromkeys(_canonical(use, ALLOWED_USES) for use in named)),
        **settings,
    )
    made = Pool.from_resource(check_pool(session.engine, request)) if dry_run else create_pool(session.engine, request)
    if session.wants_document:
        document(made.document, session.output)
    else:
        say(f"{'Would create' if dry_run else 'Created'} pool {made.name}: {describe(made)}")


# --- list --------------------------------------------------------------------------------------------------


@pool.command(name="list")
@common_options
@pass_session
def list_(session: Session, /) -> None:
    """List all pools, disabled ones included."""
    from calico_ipam.engine.pools import list_pools

    found = list_pools(session.engine)
    for name, reason in found.unreadable:
        note(f"pool {name} cannot be used: {reason}", label="warning")
    if session.wants_document:
        items = [one.document for one in found.pools]
        document({"kind": "IPPoolList", "apiVersion": "projectcalico.org/v3", "items": items}, session.output)
        return
    _list_table(found, wide=session.output == "wide")
    if not found.pools and not found.unreadable:
        note("there are no pools; 'ipamctl init' or 'ipamctl pool create CIDR' makes one.")


def _list_table(found: PoolList, *, wide: bool) -> None:
    columns = [Column("NAME"), Column("CIDR"), Column("BLOCKS"), Column("STATE")]
    columns.append(Column("NODES"))
    if wide:
        columns += [Column("NAMESPACES"), Column("USES"), Column("MODE"), Column("NAT")]
        columns += [Column("IPIP"), Column("VXLAN")]
    table(columns, [_list_row(one, wide=wide) for one in found.pools])


def _list_row(one: Pool, *, wide: bool) -> Row:
    state = Cell("enabled") if one.enabled else Cell(one.unusable_reason.removeprefix("is "), "warn")
    row: list[str | Cell] = [one.name, one.cidr_text, f"/{one.block_size}", state, one.node_selector]
    if wide:
        spec = one.document.get("spec") or {}
        row += [one.namespace_selector or "all()", ", ".join(one.allowed_uses), one.assignment_mode]
        row += [str(spec.get("natOutgoing") is True).lower()]
        row += [str(spec.get(mode) or "Never") for mode in ("ipipMode", "vxlanMode")]
    return row


# --- delete ------------------------------------------------------------------------------------------------


@pool.command()
@click.argument("name", shell_complete=live_names("pool"))
@click.option(
    "--force", is_flag=True, help="Delete it although addresses of it are in use; they stay with their holders."
)
@yes_option
@dry_run_option
@common_options
@pass_session
def delete(session: Session, /, name: str, force: bool, yes: bool, dry_run: bool) -> None:
    """Delete a pool.

    A pool that somebody holds an address of is refused. The pool is disabled, its blocks are given up by their nodes,
    and then it goes.
    """
    from calico_ipam.engine.pools import delete_unused_pool, delete_used_pool, look_at_pool, refuse_used

    engine = session.engine
    resource, use = look_at_pool(engine, name)
    if not force:
        refuse_used(name, use)
    what = f"pool {name} ({resource.spec.get('cidr')}): {use}"
    if dry_run:
        say(f"Would delete {what}")
        return
    confirm(session, f"Delete {what}?", assume_yes=yes, refusal="nothing was deleted.")
    remove = delete_used_pool if force else delete_unused_pool
    remove(engine, name, session.ipam.release_pool_affinities)
    say(f"Deleted pool {name}")
    if use.any:
        note(f"{use}; they stay until they are released, in blocks that belong to no pool.", label="warning")
