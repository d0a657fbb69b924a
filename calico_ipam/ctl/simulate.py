"""``ipamctl ipam simulate``: nodes lost, pools changed, pods added, leaks collected, on a copy (cli §17)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from calico_ipam.ctl.commands import Spelled
from calico_ipam.ctl.failures import ProblemsFound
from calico_ipam.ctl.output import Column, document, paragraph, readable_count, readable_share, say
from calico_ipam.ctl.session import Session, common_options, pass_session

if TYPE_CHECKING:
    from calico_ipam.engine.simulate import Story
    from calico_ipam.engine.world import Engine


@click.command(cls=Spelled)
@click.option("--lose-node", "lost", multiple=True, metavar="NAME", help="A node is lost; may be given again.")
@click.option(
    "--add-pool", "added", multiple=True, metavar="CIDR[:LENGTH]", help="A pool is made, with blocks of LENGTH."
)
@click.option("--disable-pool", "disabled", multiple=True, metavar="NAME", help="A pool is disabled.")
@click.option("--enable-pool", "enabled", multiple=True, metavar="NAME", help="A pool is enabled.")
@click.option("--resize-pool", "resized", multiple=True, metavar="NAME:LENGTH", help="A pool gets blocks of LENGTH.")
@click.option("--gc", "collect", is_flag=True, help="Leaked addresses are released.")
@click.option("--pods", type=click.IntRange(0, 100_000), default=0, metavar="NUMBER", help="So many pods start.")
@click.option("--on", "nodes", multiple=True, metavar="NODE", help="Nodes that they start on, in turn. Default: all.")
@click.option("--ipv6", is_flag=True, help="The pods ask for IPv6 addresses.")
@click.option("--dump", metavar="FILE", help="Work on a dump that 'datastore export' made, not on the live data.")
@click.option("--fail-on-problems", is_flag=True, help="End with exit code 3 when something does not go well.")
@common_options
@pass_session
def simulate(
    session: Session,
    /,
    lost: tuple[str, ...],
    added: tuple[str, ...],
    disabled: tuple[str, ...],
    enabled: tuple[str, ...],
    resized: tuple[str, ...],
    collect: bool,
    pods: int,
    nodes: tuple[str, ...],
    ipv6: bool,
    dump: str | None,
    fail_on_problems: bool,
) -> None:
    """Say what would happen if. Everything is done for real on a copy of the data; the data itself is only read.

    The steps are done in the order of this list of options.
    """
    from calico_ipam.engine import simulate as engine

    if not (lost or added or disabled or enabled or resized or collect or pods):
        raise click.UsageError(
            "Say what should happen, such as --lose-node NAME or --pods 100.", click.get_current_context()
        )
    objects = None
    if dump:
        from calico_ipam.datastore.dump import parse_dump

        with open(dump, encoding="utf-8") as file:  # noqa: PTH123  # pathlib is not needed otherwise, and costs 7 ms
            objects = parse_dump(file, dump).objects
        session.makes_store = True
    story = engine.Story()
    with engine.copied(session.engine if dump is None else _nowhere(), objects) as copy:
        story.before = engine.measure(copy)
        engine.lose_nodes(copy, story, lost)
        for text in added:
            cidr, _, length = text.partition(":") if text.count(":") == 1 else (text, "", "")
            engine.add_pool(copy, story, cidr, int(length.lstrip("/") or 0) if length.lstrip("/").isdigit() else 0)
        for name in disabled:
            engine.change_pool(copy, story, name, disabled=True)
        for name in enabled:
            engine.change_pool(copy, story, name, disabled=False)
        for text in resized:
            name, _, length = text.rpartition(":")
            if not name or not length.lstrip("/").isdecimal():
                raise click.BadParameter(f"{text!r} is not NAME:LENGTH, such as pods:28.", param_hint="--resize-pool")
            engine.resize_pool(copy, story, name, int(length.lstrip("/")))
        if collect:
            _collect(copy, story)
        if pods:
            engine.add_pods(copy, story, pods, nodes or _all_nodes(copy), version=6 if ipv6 else 4)
        story.after = engine.measure(copy)
    _tell(session, story)
    if fail_on_problems and not story.ok:
        raise ProblemsFound


def _nowhere() -> Engine:
    """Return an engine for a simulation on a dump: nothing of its store is read."""
    from typing import Any, cast

    from calico_ipam.engine.policy import Retry, SystemClock
    from calico_ipam.engine.world import Engine

    clock = SystemClock()
    return Engine(cast(Any, None), clock, Retry(clock=clock))


def _all_nodes(engine: Engine) -> list[str]:
    from calico_ipam.engine.survey import NODES

    return [entry.value.name for entry in engine.store.list(NODES)]


def _collect(engine: Engine, story: Story) -> None:
    from calico_ipam.engine.check import findings
    from calico_ipam.engine.leaks import release_leaks
    from calico_ipam.engine.survey import take_survey
    from calico_ipam.model.block import ReleaseOption

    leaks = [each.data["allocation"] for each in findings(take_survey(engine)) if each.kind == "leaked"]
    outcome = release_leaks(
        engine, [ReleaseOption(each.address, each.attribute.handle, each.sequence_number) for each in leaks]
    )
    story.steps.append((f"a collection releases {len(outcome.released)} leaked addresses", True))


def _tell(session: Session, story: Story) -> None:
    before = {pool.cidr_text: pool for pool in story.before.pools} if story.before is not None else {}
    after = {pool.cidr_text: pool for pool in story.after.pools} if story.after is not None else {}
    rows = []
    documents = []
    for cidr in dict.fromkeys((*before, *after)):
        old, new = before.get(cidr), after.get(cidr)
        shown = new or old
        if shown is None or shown.orphans:
            continue
        numbers = [
            (each.in_use, each.available, len(each.blocks)) if each is not None else (0, 0, 0) for each in (old, new)
        ]
        capacity = shown.capacity
        documents.append(
            {
                "pool": shown.name,
                "cidr": cidr,
                "before": dict(zip(("inUse", "available", "blocks"), numbers[0], strict=True)),
                "after": dict(zip(("inUse", "available", "blocks"), numbers[1], strict=True)),
            }
        )
        rows.append(
            (
                shown.name,
                cidr,
                readable_share(numbers[0][0], capacity),
                readable_share(numbers[1][0], capacity),
                readable_count(numbers[1][1]),
                f"{numbers[0][2]} → {numbers[1][2]}",
            )
        )
    if session.wants_document:
        steps = [{"text": text, "ok": ok} for text, ok in story.steps]
        document({"steps": steps, "pools": documents, "ok": story.ok}, session.output)
        return
    for text, ok in story.steps:
        say(paragraph(f"{'' if ok else '! '}{text}"))
    say()
    heads = ("POOL", "CIDR", "IN USE BEFORE", "IN USE AFTER", "FREE AFTER", "BLOCKS")
    session.table([Column(head, right=head.startswith(("IN", "FREE"))) for head in heads], rows)
    say("Nothing was changed: this was a copy.")
