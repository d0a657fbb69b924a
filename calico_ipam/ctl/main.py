"""ipamctl: the entry (cli §1, §17)."""

from __future__ import annotations

import gc
import os
import sys
from typing import Any

import click

from calico_ipam.ctl.commands import Commands, Later, is_exact
from calico_ipam.ctl.failures import EXIT_CODES, SILENT, Told, exact, exit_code, told
from calico_ipam.ctl.output import note, on_terminal
from calico_ipam.ctl.session import Session, common_options
from calico_ipam.errors import IPAMError

__all__ = ["EXIT_CODES", "cli", "exit_code", "main"]

#: names under which this program may be installed (ruling 20); any other shows as ``ipamctl``
NAMES = ("ipamctl", "calicoctl", "kubectl-calico", "kubectl-calico_ipam")

_CTL = "calico_ipam.ctl."
_ADDRESSES, _RESOURCES, _STORE = "Addresses", "Resources", "This host and its datastore"
COMMANDS = {
    "ipam": Later(_CTL + "ipam:ipam", "Look at addresses, find out why, release, check and repair.", _ADDRESSES),
    "pool": Later(
        _CTL + "pool:pool", "Create, list, resize and delete the ranges that addresses come from.", _ADDRESSES
    ),
    "get": Later(_CTL + "get:get", "Show resources: pools, reservations, nodes, blocks, handles.", _RESOURCES),
    "create": Later(_CTL + "write:create", "Create resources from a file.", _RESOURCES),
    "apply": Later(_CTL + "write:apply", "Create resources from a file, or replace those that exist.", _RESOURCES),
    "replace": Later(_CTL + "write:replace", "Replace resources by those of a file.", _RESOURCES),
    "delete": Later(_CTL + "delete:delete", "Delete resources by name or by file.", _RESOURCES),
    "patch": Later(_CTL + "patch:patch", "Change some fields of a resource.", _RESOURCES),
    "label": Later(_CTL + "patch:label", "Set or remove a label of a resource.", _RESOURCES),
    "validate": Later(_CTL + "write:validate", "Check resources of a file; nothing is contacted.", _RESOURCES),
    "init": Later(_CTL + "init:init", "Make a datastore ready for the first address.", _STORE),
    "doctor": Later(_CTL + "doctor:doctor", "Look whether this host and its datastore are fit to serve.", _STORE),
    "datastore": Later(_CTL + "datastore:datastore", "Lock, export, import, copy and back up the datastore.", _STORE),
    "version": Later(_CTL + "version:version", "Show the versions of this program and of the cluster.", _STORE),
    "completion": Later(_CTL + "completion:completion", "Print the completion script of a shell.", _STORE),
}


class Program(Commands):
    """A command group that reports every failure in a sentence and never shows a traceback unasked."""

    def main(self, *args: Any, **extra: Any) -> Any:
        code, output = 0, sys.stdout
        session = extra.setdefault("obj", Session())
        name = extra.get("prog_name")
        session.compat = name in NAMES[1:] and not on_terminal()  # scripts written for calicoctl
        try:
            code = super().main(*args, **{**extra, "standalone_mode": False}) or 0
            _flush()
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message())
        except click.exceptions.Exit as error:
            code = error.exit_code
        except SystemExit as error:  # click ends the program itself to complete, and when a stream is closed
            closed = sys.stdout is not output  # it wraps the streams then
            sys.stdout = output
            code = exit_code(BrokenPipeError()) if closed else int(error.code or 0)
        except (KeyboardInterrupt, Exception) as error:
            ended = error.__cause__ if isinstance(error.__cause__, KeyboardInterrupt) else error  # click wraps it
            code = exit_code(ended)
            _report(ended, session)
        _discard_unwritten()
        sys.exit(code)


def _report(error: BaseException, session: Session) -> None:
    """Tell a failure: what, and the way out."""
    if isinstance(error, SILENT):
        return
    if not isinstance(error, click.ClickException | OSError | KeyboardInterrupt):
        _trace(error)
    try:
        known = isinstance(error, click.ClickException | IPAMError)  # to calicoctl
        if known and (is_exact(session) or (session.compat and isinstance(error, click.UsageError | Told))):
            text, on_stdout = exact(error)
            click.echo(text, err=not on_stdout)
            return
        for label, line in told(error):
            note(line, label=label, color=session.color_choice)
    except OSError:
        return  # there is nobody left to tell


def _trace(error: BaseException) -> None:
    import logging

    logging.getLogger(__name__).debug("the call ended with", exc_info=error)


def _flush() -> None:
    """Write out what is buffered, so that a closed pipe or a full disk is seen while it can still be told."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()


def _discard_unwritten() -> None:
    """Point a standard output that cannot be written at nothing: the interpreter flushes once more when it ends."""
    try:
        _flush()
    except OSError:
        with open(os.devnull, "wb") as nothing:  # noqa: PTH123  # a device, and only its descriptor is needed
            os.dup2(nothing.fileno(), sys.stdout.fileno())


def _show_version(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if not wanted or context.resilient_parsing:
        return
    from importlib.metadata import version

    click.echo(f"{context.find_root().info_name} {version('calico-ipam')}")
    context.exit()


@click.group(
    cls=Program,
    later=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="First time here? 'ipamctl init' makes a datastore on this host; 'ipamctl ipam show' looks into it.",
)
@common_options
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_show_version,
    help="Show the version and exit.",
)
@click.pass_context
def cli(context: click.Context) -> None:
    """Look after Calico's IP addresses: pools, blocks, and who holds which address."""
    context.call_on_close(context.ensure_object(Session).close)


def main() -> None:
    """Run ipamctl with the process's arguments and end the process."""
    # A call ends before garbage in circles matters; on a large cluster looking for it takes as long as everything else.
    gc.disable()
    for stream in (sys.stdout, sys.stderr):
        # Names come from elsewhere and may hold what the locale cannot write: show it escaped instead of failing.
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    name = os.path.basename(sys.argv[0])  # noqa: PTH119  # pathlib is not needed otherwise, and costs 7 ms
    cli.main(prog_name=name if name in NAMES else NAMES[0])


if __name__ == "__main__":
    main()
