"""``ipamctl completion``: the completion script of a shell; and the live names that complete arguments (cli §17.2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from calico_ipam.ctl.commands import Spelled
from calico_ipam.ctl.output import say

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

SHELLS = ("bash", "zsh", "fish")
PATIENCE = 2.0  # seconds; later than that nobody waits for a suggestion


@click.command(cls=Spelled)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, /, shell: str) -> None:
    """Print the completion script of a shell.

    \b
    For bash:  source <(ipamctl completion bash)
    For fish:  ipamctl completion fish | source
    """
    from click.shell_completion import get_completion_class

    root = context.find_root()
    name = root.info_name or "ipamctl"
    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101  # the choices are those that click has
    variable = f"_{name.replace('-', '_')}_COMPLETE".upper()
    say(kind(root.command, {}, name, variable).source())


Complete = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]


def live_names(*kinds: str) -> Complete:
    """Return a completion by what the datastore holds: ``pool``, ``node``, ``block``, ``handle``. Failing suggests
    nothing."""

    def complete(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        try:
            names = [name for kind in kinds for name in _names(context, kind)]
        except Exception:  # a shell must never be disturbed by a completion
            return []
        return [CompletionItem(name) for name in dict.fromkeys(names) if name.startswith(incomplete)][:200]

    return complete


def _names(context: click.Context, kind: str) -> list[str]:
    from calico_ipam.ctl.session import Session
    from calico_ipam.datastore.api import Deadline
    from calico_ipam.engine.survey import BLOCKS, HANDLES, NODES
    from calico_ipam.engine.world import POOLS

    session = context.find_object(Session) or Session()
    session.compat = True  # notes have no place here
    session.patience = PATIENCE
    root: dict[str, Any] = context.find_root().params
    session.datastore = session.datastore or root.get("datastore")
    store = session.store.within(Deadline.after(PATIENCE))
    scopes: dict[str, Any] = {"pool": POOLS, "node": NODES, "block": BLOCKS, "handle": HANDLES}
    values = [entry.value for entry in store.list(scopes[kind])]
    if kind == "block":
        return [str(value.cidr) for value in values]
    return [value.id if kind == "handle" else value.name for value in values]
