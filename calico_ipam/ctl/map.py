"""``ipamctl ipam map``: pools and their blocks, drawn in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from calico_ipam.ctl.commands import Spelled
from calico_ipam.ctl.output import can_write, counted, paragraph, readable_share, say
from calico_ipam.ctl.session import Session, common_options, pass_session

if TYPE_CHECKING:
    from calico_ipam.engine.utilization import BlockUtilization, PoolUtilization

#: how full a place is, from nobody's to full
_SHADES = "·░▒▓█"
_PLAIN = ".-=+#"
_MOST_PLACES = 4096  # places of a pool that are drawn one by one; of a larger one each sign stands for several


@click.command(name="map", cls=Spelled)
@click.argument("pool", required=False)
@click.option("--html", "target", metavar="FILE", help="Write a page that a browser shows, with every block.")
@common_options
@pass_session
def map_(session: Session, /, pool: str | None, target: str | None) -> None:
    """Draw the pools: a sign for each place of a block, darker the fuller it is."""
    from calico_ipam.engine.utilization import get_utilization
    from calico_ipam.errors import NotFound

    usage = get_utilization(session.engine, [pool] if pool else [])
    if pool and not usage.pools:
        raise NotFound(f"IPPool({pool})", hint="'ipamctl pool list' shows the pools.")
    if target:
        from calico_ipam.ctl.report import write_file

        write_file(target, _page(session, pool or ""))
        say(f"Wrote {target}")
        return
    if session.wants_document:
        from calico_ipam.ctl.output import document
        from calico_ipam.ctl.show import usage_document

        document(usage_document(usage), session.output)
        return
    shades = _signs()
    shown = [each for each in usage.pools if not each.orphans or each.blocks]
    for each in shown:
        for line in drawn(session, each, shades):
            say(line)
        say()
    if not shown:
        say("There are no pools; 'ipamctl pool create CIDR' makes one.")
        return
    say(
        paragraph(
            f"{shades[0]} nobody's  {shades[1]} empty  {shades[2]} up to half  {shades[3]} more  {shades[4]} full"
        )
    )


def _page(session: Session, pool: str) -> str:
    """Return the page; ``pool`` empty: of all pools. Raises NotConfigured when its package is not installed."""
    from calico_ipam.errors import NotConfigured

    try:
        from calico_gc.web.onefile import one_file
        from calico_gc.web.site import templates
        from calico_gc.web.stored import PAGES, view_of_store

        made = templates()
    except ModuleNotFoundError as error:
        raise NotConfigured(
            f"pages need the package {error.name}, which is not installed",
            hint="pip install 'calico-ipam[gc]'; 'ipamctl ipam map' draws in the terminal without it.",
        ) from None
    view = view_of_store(session.store, session.engine.clock.now(), pool)
    return "".join(one_file(view, made, origin=f"IP pools of {session.store.name}", pages=PAGES))


def _signs() -> str:
    """Return signs that the terminal can show."""
    return _SHADES if can_write(_SHADES) else _PLAIN


def drawn(session: Session, pool: PoolUtilization, shades: str) -> list[str]:
    """Return a pool as lines: its name and numbers, then its places."""
    import shutil

    width = max(24, min(80, shutil.get_terminal_size().columns))
    if pool.orphans:
        title = f"blocks in no IPv{pool.cidr.version} pool"
        return [
            title,
            *(f"  {block.cidr}  {block.affinity or 'of nobody'}  {block.in_use} taken" for block in pool.blocks),
        ]
    lines = [
        f"{pool.name}  {pool.cidr_text}",
        f"  in use {readable_share(pool.in_use, pool.capacity)}, {counted(len(pool.blocks), 'block')}",
    ]
    signs = _places(pool, shades)
    if not signs:
        return lines
    step = width - 4
    text = "".join(signs)
    for start in range(0, len(text), step):
        part = text[start : start + step]
        lines.append("  " + (_coloured(part, shades) if session.colours else part))
    return lines


def _places(pool: PoolUtilization, shades: str) -> list[str]:
    """Return the sign of each place of a block in a pool; several places share one where there are too many."""
    if not pool.blocks:
        return [shades[0]] * 16
    size = max(1, min(block.capacity for block in pool.blocks))
    number = pool.capacity // size
    per_sign = max(1, -(-number // _MOST_PLACES))
    signs = min(number, -(-number // per_sign))
    if number > _MOST_PLACES * 4096:
        return _only_blocks(pool.blocks, shades)
    taken: dict[int, list[float]] = {}
    base = int(pool.cidr.network_address)
    for block in pool.blocks:
        first = (int(block.cidr.network_address) - base) // size
        for place in range(first, first + max(1, block.capacity // size)):
            taken.setdefault(place // per_sign, []).append(block.in_use / block.capacity)
    found = []
    for index in range(signs):
        shares = taken.get(index)
        found.append(
            shades[0] if shares is None else _sign(sum(shares) / per_sign if per_sign > 1 else shares[0], shades)
        )
    return found


def _only_blocks(blocks: tuple[BlockUtilization, ...], shades: str) -> list[str]:
    return [_sign(block.in_use / block.capacity, shades) for block in sorted(blocks, key=lambda each: each.cidr)]


def _sign(share: float, shades: str) -> str:
    if share <= 0:
        return shades[1]
    return shades[2] if share <= 0.5 else shades[3] if share < 1 else shades[4]


def _coloured(text: str, shades: str) -> str:
    colours = {shades[0]: None, shades[1]: "green", shades[2]: "green", shades[3]: "yellow", shades[4]: "red"}
    parts = []
    start = 0
    for position in range(1, len(text) + 1):
        if position == len(text) or text[position] != text[start]:
            colour = colours.get(text[start])
            piece = text[start:position]
            parts.append(click.style(piece, fg=colour) if colour else click.style(piece, dim=True))
            start = position
    return "".join(parts)
