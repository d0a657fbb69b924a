"""Groups of commands that are imported when they are called: help stays cheap (cli §17)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NoReturn

import click

from calico_ipam.ctl.flags import spelled_out
from calico_ipam.ctl.output import errors_on_terminal, on_terminal
from calico_ipam.ctl.session import Session


@dataclass(frozen=True, slots=True)
class Later:
    """A command that is imported when it is needed: ``module:attribute``, its line in the help, and its section."""

    where: str
    help: str
    section: str = "Commands"
    hidden: bool = False

    def load(self) -> click.Command:
        module, _, attribute = self.where.partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command


class UnknownCommand(click.UsageError):
    """There is no command of this name. ``hint``: what somebody may have meant who knows another tool."""

    def __init__(self, name: str, known: Sequence[str], context: click.Context) -> None:
        from difflib import get_close_matches

        from calico_ipam.ctl import guesses

        close = get_close_matches(name, known, n=3)
        meant = guesses.SYNONYMS.get(name.lower(), name)
        close = [meant] if meant in known else close or elsewhere(name) or elsewhere(meant)
        tail = f" Did you mean {' or '.join(repr(each) for each in close)}?" if close else ""
        super().__init__(f"No such command {name!r}.{tail}", context)
        self.command_name = name
        self.hint = "" if close else guesses.COMMANDS.get(name.lower(), "")


def elsewhere(name: str) -> list[str]:
    """Return where in the groups of the program a command of this name is: ``ipam check`` for ``check``."""
    from calico_ipam.ctl.main import COMMANDS

    groups = {group: COMMANDS[group].load() for group in ("ipam", "pool", "datastore")}
    found = [f"{group} {name}" for group, each in groups.items() if isinstance(each, Commands) and name in each.names()]
    return found if len(found) < 3 else []


class Spelled(click.Command):
    """A command whose options may be spelled as calicoctl's (see :func:`spelled_out`)."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, spelled_out(ctx, args, interspersed=True))


class Commands(click.Group):
    """A group whose commands are named in a table. ``helps_with_unknown``: calicoctl answers a name that it does not
    know with the help of the group and exit code 0 (cli §1.2); ours does so for scripts written for calicoctl only."""

    command_class = Spelled

    def __init__(self, *arguments: Any, later: Mapping[str, Later], helps_with_unknown: bool = False, **more: Any):
        super().__init__(*arguments, **more)
        self.later = dict(later)
        self.helps_with_unknown = helps_with_unknown

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        return self.names()

    def names(self) -> list[str]:
        """Return the names of the commands that help shows."""
        return [*self.commands, *(name for name, each in self.later.items() if not each.hidden)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.later:
            return self.later[cmd_name].load()
        return super().get_command(ctx, cmd_name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, spelled_out(ctx, args, interspersed=False))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        command = self.get_command(ctx, name)
        if command is not None:
            return name, command, args[1:]
        if name == "help" and not ctx.resilient_parsing:
            _help(self, ctx, args[1:])
        if name.startswith("-") and not ctx.resilient_parsing:
            raise click.NoSuchOption(name, ctx=ctx)
        if self.helps_with_unknown and ctx.ensure_object(Session).compat:
            click.echo(ctx.get_help())
            ctx.exit()
        if ctx.resilient_parsing:
            return None, None, args[1:]
        raise UnknownCommand(name, self.list_commands(ctx), ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  # as above
        """Write the commands by section, from the table: nothing is imported."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            sections.setdefault("Commands", []).append((name, command.get_short_help_str()))
        for name, each in self.later.items():
            if not each.hidden:
                sections.setdefault(each.section, []).append((name, each.help))
        for section, rows in sections.items():
            with formatter.section(section):
                formatter.write_dl(rows)


def _help(group: click.Group, ctx: click.Context, path: list[str]) -> NoReturn:
    """Show the help of the command that a path leads to, as ``help ipam show`` asks for, and end."""
    command: click.Command = group
    for name in path:
        found = command.get_command(ctx, name) if isinstance(command, click.Group) else None
        if found is None:
            raise UnknownCommand(name, command.list_commands(ctx) if isinstance(command, click.Group) else (), ctx)
        command, ctx = found, click.Context(found, ctx, name)
    click.echo(command.get_help(ctx))
    ctx.exit()


class Mirrored(Spelled):
    """A command that calicoctl has too: where a script may read it, it says exactly what calicoctl says.

    Arguments that it does not take are ignored then, as upstream's parser does.
    """

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        session = parent.ensure_object(Session) if parent is not None else Session()
        session.mirrored = True
        if session.compat or not on_terminal():
            extra.setdefault("allow_extra_args", True)
        return super().make_context(info_name, args, parent, **extra)


#: ``--watch`` or ``--watch=SECONDS``; see :class:`Watching`
watch_option = click.option(
    "-w",
    "--watch",
    type=click.FloatRange(min=0.1, max=86400),
    metavar="[=SECONDS]",
    help="Show it again whenever it changes, until interrupted; look every 2 SECONDS.",
)


class Watching(Mirrored):
    """A command with ``watch_option``: its value is written with a sign and may be left out, so that
    ``get --watch pools`` means what it says."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        short = () if ctx.ensure_object(Session).compat else ("-w",)  # as kubectl's
        return super().parse_args(ctx, ["--watch=2" if each in ("--watch", *short) else each for each in args])


def is_exact(session: Session) -> bool:
    """Tell whether failures are told in exactly calicoctl's words: no label, no way out."""
    return session.mirrored and (session.compat or not errors_on_terminal())
