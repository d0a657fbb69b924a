"""``ipamctl ipam show --handle | --pod | --node``: who holds what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from calico_ipam.ctl.output import Column, document
from calico_ipam.model.timestamps import format_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from calico_ipam.ctl.session import Session
    from calico_ipam.engine.holdings import Held


def show_holdings(session: Session, *, handle: str | None, pod: str | None, node: str | None) -> None:
    """Write the addresses that a handle, a pod or a node holds."""
    from calico_ipam.engine.holdings import held_by_handle, held_by_node, held_by_pod

    if handle:
        held, what = held_by_handle(session.engine, handle), f"handle {handle}"
    elif pod:
        namespace, _, name = pod.rpartition("/")
        held, what = held_by_pod(session.engine, namespace, name), f"pod {pod}"
    else:
        held, what = held_by_node(session.engine, str(node)), f"node {node}"
    if session.wants_document:
        document({"addresses": [as_document(each) for each in held]}, session.output)
        return
    table(session, held)
    if not held:
        session.note(f"{what} holds no address.", label="warning")


def table(session: Session, held: Sequence[Held]) -> None:
    columns = [Column(head) for head in ("IP", "HOLDER", "NODE", "HANDLE", "BLOCK", "SINCE")]
    session.table(
        columns,
        [
            (
                str(h.address),
                h.owner,
                h.node,
                h.handle or "<none>",
                str(h.block),
                format_time(h.since) if h.since else "",
            )
            for h in held
        ],
    )


def as_document(held: Held) -> dict[str, Any]:
    return {
        "ip": str(held.address),
        "holder": held.owner or None,
        "node": held.node or None,
        "handle": held.handle or None,
        "block": str(held.block),
        "borrowed": held.borrowed,
        "since": format_time(held.since) if held.since else None,
    }
