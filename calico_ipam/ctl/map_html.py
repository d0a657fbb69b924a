"""The map of pools as one page that a browser shows, without anything from elsewhere."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from calico_ipam.ctl.output import readable_share
from calico_ipam.model.timestamps import format_time

if TYPE_CHECKING:
    from calico_ipam.ctl.session import Session
    from calico_ipam.engine.utilization import BlockUtilization, PoolUtilization, Utilization

_STYLE = """
body{font:14px system-ui,sans-serif;margin:2em;color:#222;background:#fff}
h1{font-size:1.3em}h2{font-size:1.1em;margin:1.5em 0 .3em}
.b{display:inline-block;width:12px;height:12px;margin:1px;border-radius:2px}
.e{background:#d5e8d4}.l{background:#8cc084}.m{background:#e8c14d}.f{background:#d9534f}.x{background:#999}
p{margin:.2em 0;color:#555}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}p{color:#aaa}.e{background:#2f4a2f}}
"""


def page(session: Session, usage: Utilization) -> str:
    """Return the page."""
    made = format_time(session.engine.clock.now())
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>",
        f"<title>IP pools</title><style>{_STYLE}</style><h1>IP pools of {escape(session.store.name)}</h1><p>{made}</p>",
    ]
    for pool in usage.pools:
        if not pool.orphans or pool.blocks:
            parts.append(_pool(pool))
    return "".join(parts) + "</html>\n"


def _pool(pool: PoolUtilization) -> str:
    title = f"Blocks in no IPv{pool.cidr.version} pool" if pool.orphans else f"{pool.name} {pool.cidr_text}"
    numbers = (
        ""
        if pool.orphans
        else f"<p>in use {escape(readable_share(pool.in_use, pool.capacity))}, {len(pool.blocks)} blocks</p>"
    )
    blocks = "".join(_block(block) for block in sorted(pool.blocks, key=lambda each: each.cidr))
    return f"<h2>{escape(title)}</h2>{numbers}<div>{blocks}</div>"


def _block(block: BlockUtilization) -> str:
    share = block.in_use / block.capacity
    kind = "x" if block.problem else "e" if share <= 0 else "l" if share <= 0.5 else "m" if share < 1 else "f"
    about = f"{block.cidr} {block.affinity or 'of nobody'}: {block.in_use} of {block.capacity} taken"
    return f'<span class="b {kind}" title="{escape(about)}"></span>'
