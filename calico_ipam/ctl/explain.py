"""``ipamctl ipam explain``: why did this get no address, who has that one, what is this handle (cli §17.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from calico_ipam.ctl.commands import Spelled
from calico_ipam.ctl.completion import live_names
from calico_ipam.ctl.failures import Told
from calico_ipam.ctl.output import counted, document, paragraph, readable_count, say
from calico_ipam.ctl.session import Session, common_options, pass_session

if TYPE_CHECKING:
    from calico_ipam.engine.explain import HandleAnswer, NodeAnswer, PodAnswer, PoolAnswer


@click.command(cls=Spelled)
@click.argument("subject", required=False, shell_complete=live_names("node", "pool", "block", "handle"))
@click.option(
    "--node", metavar="NAME", shell_complete=live_names("node"), help="What a workload on this node would get."
)
@click.option("--pod", metavar="NAMESPACE/NAME", help="The addresses of a pod, or why it has none.")
@click.option(
    "--pool",
    metavar="NAME",
    shell_complete=live_names("pool"),
    help="A pool; with --node: whether it serves that node.",
)
@click.option("--handle", metavar="ID", shell_complete=live_names("handle"), help="A handle and its addresses.")
@click.option("--namespace", metavar="NAME", default="", help="With --node: the namespace of the workload.")
@click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="KEY=VALUE",
    help="With --node: a label of that namespace; may be given again.",
)
@click.option("--ipv6", is_flag=True, help="With --node: ask for an IPv6 address.")
@click.option(
    "--use", default="Workload", metavar="USE", help="With --node: Workload, Tunnel or LoadBalancer. Default: Workload."
)
@common_options
@pass_session
def explain(
    session: Session,
    /,
    subject: str | None,
    node: str | None,
    pod: str | None,
    pool: str | None,
    handle: str | None,
    namespace: str,
    labels: tuple[str, ...],
    ipv6: bool,
    use: str,
) -> None:
    """Say why something is as it is, and what would happen next.

    SUBJECT is an address, a NAMESPACE/POD, a node, a pool or its CIDR, or a handle; the options say which it is when
    that is not clear.
    """
    from calico_ipam.engine import explain as engine

    if subject:
        kind = _recognised(session, subject)
        node, pod = (subject, pod) if kind == "node" else (node, subject if kind == "pod" else pod)
        pool, handle = (subject, handle) if kind == "pool" else (pool, subject if kind == "handle" else handle)
        if kind == "address":
            from calico_ipam.ctl.explain_address import explain_address

            explain_address(session, subject)
            return
    if node:
        given = dict(text.partition("=")[::2] for text in labels)
        answer = engine.explain_node(
            session.engine,
            node,
            version=6 if ipv6 else 4,
            use=use,
            namespace=namespace,
            namespace_labels=given if labels or namespace else None,
            requested=pool or "",
        )
        _write(session, _node_document(answer), lambda: tell_node(session, answer))
    elif pod:
        where, _, name = pod.rpartition("/")
        found = engine.explain_pod(session.engine, where or "default", name)
        _write(session, _pod_document(found), lambda: _tell_pod(session, found))
    elif handle:
        told = engine.explain_handle(session.engine, handle)
        _write(session, _handle_document(told), lambda: _tell_handle(session, told))
    elif pool:
        about = engine.explain_pool(session.engine, pool)
        _write(session, _pool_document(about), lambda: _tell_pool(about))
    else:
        raise click.UsageError(
            "Say what to explain: an address, NAMESPACE/POD, node, pool or handle.", click.get_current_context()
        )


def _write(session: Session, content: dict[str, Any], tell: Any) -> None:
    if session.wants_document:
        document(content, session.output)
    else:
        tell()


def _recognised(session: Session, subject: str) -> str:
    """Return what kind of thing a word names. Raises Told when it names nothing."""
    from calico_ipam.engine.survey import NODES
    from calico_ipam.engine.world import POOLS
    from calico_ipam.errors import InvalidInput
    from calico_ipam.model.addresses import parse_address, parse_network
    from calico_ipam.model.keys import HandleKey

    try:
        parse_address(subject)
        return "address"
    except InvalidInput:
        pass
    key = HandleKey(subject)
    snapshot = session.store.read(POOLS, NODES, key)
    pools = [entry.value for entry in snapshot.listing(POOLS)]
    if any(subject in (pool.name, str(pool.spec.get("cidr"))) for pool in pools):
        return "pool"
    nodes = [entry.value.name for entry in snapshot.listing(NODES)]
    if subject in nodes:
        return "node"
    try:
        parse_network(subject)
        return "address"  # a block
    except InvalidInput:
        pass
    if snapshot.entry(key) is not None:
        return "handle"
    if "/" in subject:
        return "pod"
    from difflib import get_close_matches

    close = get_close_matches(subject, [*nodes, *(pool.name for pool in pools)], n=3)
    raise Told(
        f"{subject!r} is no address, pool, node or handle",
        hint=f"Did you mean {' or '.join(close)}?" if close else "A pod is NAMESPACE/NAME.",
    )


# --- a node --------------------------------------------------------------------------------------------------


def tell_node(session: Session, answer: NodeAnswer) -> None:
    """Say what a workload on a node gets, and why."""
    say(paragraph(f"A workload on node {answer.node} that asks for an IPv{answer.version} address:"))
    say()
    for each in answer.pools:
        mark = _mark(session, each.accepted)
        more = f"; unclaimed: {readable_count(each.free_blocks)} of its blocks" if each.accepted else ""
        say(paragraph(f"{mark} pool {each.pool.name} ({each.pool.cidr_text}) {each.reason}{more}", indent="  "))
    if not answer.pools:
        say("  There is no pool.")
    say()
    say(paragraph(f"Own blocks: {len(answer.blocks)} of at most {answer.limit}, {answer.limit_from}."))
    for block in answer.blocks:
        say(
            f"  {block.block.cidr}  {block.free} of {block.block.size} free  "
            f"{'in pool ' + block.pool if block.pool else 'in no pool'}"
        )
    rule = (
        "Strict affinity is on: it never borrows."
        if answer.strict
        else f"Borrowing is allowed: {answer.borrowable} addresses."
    )
    say(paragraph(rule if answer.auto else rule + " Blocks are not claimed by themselves."))
    say()
    say(paragraph("→ " + answer.outcome))


def _mark(session: Session, good: bool) -> str:
    if not session.colours:
        return "+" if good else "-"
    return click.style("✓", fg="green") if good else click.style("✗", fg="red")


def _node_document(answer: NodeAnswer) -> dict[str, Any]:
    return {
        "node": answer.node,
        "exists": answer.known,
        "ipVersion": answer.version,
        "pools": [
            {
                "name": p.pool.name,
                "cidr": p.pool.cidr_text,
                "accepted": p.accepted,
                "reason": p.reason,
                "unclaimedBlocks": p.free_blocks,
            }
            for p in answer.pools
        ],
        "blocks": [{"cidr": str(b.block.cidr), "free": b.free, "pool": b.pool or None} for b in answer.blocks],
        "blockLimit": answer.limit,
        "blockLimitFrom": answer.limit_from,
        "strictAffinity": answer.strict,
        "autoAllocateBlocks": answer.auto,
        "borrowable": answer.borrowable,
        "getsAddress": answer.ok,
        "outcome": answer.outcome,
    }


# --- a pod ---------------------------------------------------------------------------------------------------


def _tell_pod(session: Session, found: PodAnswer) -> None:
    from calico_ipam.ctl.holdings import table

    if found.held:
        say(f"Pod {found.namespace}/{found.name} holds:")
        table(session, found.held)
    else:
        say(f"No address is allocated to pod {found.namespace}/{found.name}.")
    have = {network.partition("/")[0] for _, networks in found.endpoints for network in networks}
    held = {str(each.address) for each in found.held}
    for node, networks in found.endpoints:
        say(paragraph(f"Its endpoint on node {node} has {', '.join(networks) or 'no address'}."))
    if not found.endpoints:
        say("No endpoint is recorded for it.")
    if have - held:
        say(
            paragraph(
                f"{', '.join(sorted(have - held))} is in use but not allocated to it: 'ipamctl ipam check' tells more."
            )
        )
    if held and found.endpoints and held - have:
        say(paragraph(f"{', '.join(sorted(held - have))} is allocated, but its endpoint does not use it."))
    if found.next is not None:
        say()
        tell_node(session, found.next)


def _pod_document(found: PodAnswer) -> dict[str, Any]:
    from calico_ipam.ctl.holdings import as_document

    return {
        "namespace": found.namespace,
        "pod": found.name,
        "addresses": [as_document(each) for each in found.held],
        "endpoints": [{"node": node, "networks": list(networks)} for node, networks in found.endpoints],
        "node": found.node or None,
        "next": _node_document(found.next) if found.next is not None else None,
    }


# --- a handle, a pool ----------------------------------------------------------------------------------------


def _tell_handle(session: Session, told: HandleAnswer) -> None:
    from calico_ipam.ctl.holdings import table

    if told.counted is None:
        say(f"Handle {told.id} has no object, but blocks name it:")
    else:
        counts = ", ".join(f"{number} in {cidr}" for cidr, number in sorted(told.counted.items())) or "nothing"
        say(paragraph(f"Handle {told.id} counts {counts}."))
    if told.held:
        table(session, told.held)
    else:
        say("No block names it.")
    if not told.agrees:
        kind = "missing-handle" if told.counted is None else "handle-count" if told.held else "stray-handle"
        say(f"→ ipamctl ipam repair --only {kind} {told.id}")


def _handle_document(told: HandleAnswer) -> dict[str, Any]:
    from calico_ipam.ctl.holdings import as_document

    return {
        "id": told.id,
        "exists": told.counted is not None,
        "counts": dict(told.counted or {}),
        "addresses": [as_document(each) for each in told.held],
        "agrees": told.agrees,
    }


def _tell_pool(about: PoolAnswer) -> None:
    from calico_ipam.ctl.output import readable_share

    pool, usage = about.pool, about.usage
    state = "enabled" if pool.enabled else pool.unusable_reason
    say(paragraph(f"Pool {pool.name} ({pool.cidr_text}), blocks of /{pool.block_size}: {state}"))
    say(
        paragraph(
            f"In use {readable_share(usage.in_use, usage.capacity)}, "
            f"free {readable_share(usage.available, usage.capacity)}, "
            f"reserved {readable_count(usage.reserved)}, cooling {readable_count(usage.cooling)}"
        )
    )
    say(
        paragraph(
            f"For {', '.join(pool.allowed_uses)}; nodes {pool.node_selector}; "
            f"namespaces {pool.namespace_selector or 'all'}; {pool.assignment_mode}"
        )
    )
    if about.serves or about.refuses:
        say(
            paragraph(
                f"Serves {counted(len(about.serves), 'node')}"
                + (
                    f", not {', '.join(about.refuses[:8])}{' …' if len(about.refuses) > 8 else ''}"
                    if about.refuses
                    else ""
                )
                + "."
            )
        )
    say(f"{counted(len(usage.blocks), 'block')}:")
    for owner, blocks, used in about.owners[:10]:
        say(f"  {owner}: {counted(blocks, 'block')}, {counted(used, 'address')} taken")
    if len(about.owners) > 10:
        say(f"  … and {len(about.owners) - 10} more owners")
    for note in about.notes:
        say(paragraph("→ " + note))


def _pool_document(about: PoolAnswer) -> dict[str, Any]:
    usage = about.usage
    return {
        "name": about.pool.name,
        "cidr": about.pool.cidr_text,
        "enabled": about.pool.enabled,
        "capacity": usage.capacity,
        "inUse": usage.in_use,
        "available": usage.available,
        "reserved": usage.reserved,
        "cooling": usage.cooling,
        "owners": [{"owner": o, "blocks": b, "inUse": u} for o, b, u in about.owners],
        "serves": list(about.serves),
        "refuses": list(about.refuses),
        "notes": list(about.notes),
    }
