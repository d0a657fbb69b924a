"""``ipamctl ipam history``: what happened to an address, a block or a handle, as far as the change log goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from calico_ipam.ctl.commands import Spelled
from calico_ipam.ctl.failures import Told
from calico_ipam.ctl.output import Column, document
from calico_ipam.ctl.session import Session, common_options, pass_session

if TYPE_CHECKING:
    from calico_ipam.datastore.changes import Change


@click.command(cls=Spelled)
@click.argument("subject")
@click.option(
    "--last", type=click.IntRange(1), default=50, metavar="NUMBER", help="Show at most this many changes. Default: 50."
)
@common_options
@pass_session
def history(session: Session, /, subject: str, last: int) -> None:
    """Show what happened to SUBJECT: an address, a block's CIDR, or a handle.

    Embedded datastores keep their last few thousand changes; etcd and Kubernetes keep none that could be read.
    """
    from calico_ipam.datastore.changes import changes_of
    from calico_ipam.datastore.sqlite import SQLiteStore
    from calico_ipam.errors import InvalidInput
    from calico_ipam.model.addresses import parse_address, parse_network

    store = session.store
    if not isinstance(store, SQLiteStore):
        raise Told(
            f"{store.name} keeps no history",
            hint="Only embedded datastores do. Since when an address is held: ipamctl ipam explain ADDRESS.",
        )
    try:
        rows = _address_rows(store, str(parse_address(subject)))
    except InvalidInput:
        try:
            cidr = parse_network(subject)
            rows = [_block_row(change) for change in changes_of(store, f"/block/{str(cidr).replace('/', '-')}")]
        except InvalidInput:
            rows = [_handle_row(change) for change in changes_of(store, f"/handle/{subject}")]
    rows = rows[-last:]
    if session.wants_document:
        names = ("revision", "what", "holder", "details")
        document({"subject": subject, "changes": [dict(zip(names, row, strict=True)) for row in rows]}, session.output)
        return
    session.table([Column("REVISION", right=True), Column("WHAT"), Column("HOLDER"), Column("DETAILS")], rows)
    if not rows:
        session.note("the change log has nothing of it; it holds the last few thousand changes only.")


def _address_rows(store: Any, text: str) -> list[tuple[str, str, str, str]]:
    """Return the changes of one address, from those of every block that could hold it."""
    from calico_ipam.datastore.changes import changes_of
    from calico_ipam.model.addresses import contains, network_of, parse_address

    address = parse_address(text)
    host = network_of(address, address.max_prefixlen)
    rows: list[tuple[str, str, str, str]] = []
    known: Any = None
    for change in changes_of(store, "/ipam/v2/assignment/"):
        block = change.block
        if block is None or not contains(block.cidr, host):
            continue
        ordinal = block.ordinal(address)
        attribute = block.attribute(ordinal) if change.kind != "deleted" else None
        now = (attribute, block.sequence_of(ordinal) if attribute is not None else 0)
        if known is not None and now == known:
            continue
        if attribute is None:
            if known is not None and known[0] is not None:
                rows.append((str(change.revision), "released", _holder(known[0]), ""))
        elif attribute.cold:
            rows.append((str(change.revision), "cooling", _holder(known[0]) if known and known[0] else "", ""))
        else:
            rows.append((str(change.revision), "assigned", _holder(attribute), attribute.clean_handle))
        known = now
    return rows


def _holder(attribute: Any) -> str:
    active = attribute.active
    who = f"{active.get('namespace', '')}/{active['pod']}" if active.get("pod") else active.get("type", "")
    return f"{who or attribute.clean_handle or 'nobody'}{' on ' + active['node'] if active.get('node') else ''}"


def _block_row(change: Change) -> tuple[str, str, str, str]:
    block = change.block
    if block is None:
        return (str(change.revision), change.kind, "", change.path.rpartition("/")[2])
    taken = block.size - len(block.unallocated)
    return (str(change.revision), change.kind, block.affinity or "nobody", f"{taken} of {block.size} taken")


def _handle_row(change: Change) -> tuple[str, str, str, str]:
    counts = change.document.get("block") or {}
    text = ", ".join(f"{number} in {cidr}" for cidr, number in sorted(counts.items()))
    return (str(change.revision), change.kind, change.path.rpartition("/handle/")[2], text)
