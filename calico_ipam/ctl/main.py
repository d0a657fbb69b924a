"""ipamctl: the entry, and how whatever goes wrong is told (cli §1, §17)."""

from __future__ import annotations

import errno
import os
import sys
from typing import Any

import click

from calico_ipam.ctl.init import init
from calico_ipam.ctl.ipam import ipam
from calico_ipam.ctl.output import note
from calico_ipam.ctl.pool import pool
from calico_ipam.ctl.session import Session, common_options
from calico_ipam.errors import IPAMError

#: names under which this program may be installed (ruling 20); any other shows as ``ipamctl``
NAMES = ("ipamctl", "calicoctl", "kubectl-calico", "kubectl-calico_ipam")

#: What ended the call, and the exit code. The first match counts. Ordinary failures are 1, as upstream's (cli §1.4).
EXIT_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (KeyboardInterrupt, 130),  # what a shell sees of a program that SIGINT ended
    (BrokenPipeError, 141),  # likewise SIGPIPE: the reader had enough
    (click.Abort, 1),  # the answer to a question was no
    (click.ClickException, 1),  # usage; click's own 2 means a crash upstream
    (IPAMError, 1),
    (OSError, 1),  # a disk is full, a file cannot be read
    (Exception, 2),  # a defect of ours
)


def exit_code(error: BaseException) -> int:
    """Return the exit code for what ended a call."""
    return next(code for kind, code in EXIT_CODES if isinstance(error, kind))


class Program(click.Group):
    """A command group that reports every failure in a sentence and never shows a traceback unasked."""

    def main(self, *args: Any, **extra: Any) -> Any:
        code, output = 0, sys.stdout
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
            _report(ended)
        _discard_unwritten()
        sys.exit(code)


def _report(error: BaseException) -> None:
    """Tell a failure: what, and the way out."""
    if isinstance(error, (BrokenPipeError, click.Abort)):
        return
    try:
        for label, text in _explained(error):
            note(text, label=label)
    except OSError:
        return  # there is nobody left to tell


def _explained(error: BaseException) -> list[tuple[str, str]]:
    hint = ""
    if isinstance(error, IPAMError):
        text, hint = str(error).rstrip("\n"), error.hint
    elif isinstance(error, click.UsageError):
        text = error.format_message()
        if error.ctx is not None:
            hint = f"'{error.ctx.command_path} --help' lists what it takes."
    elif isinstance(error, click.ClickException):
        text = error.format_message()
    elif isinstance(error, KeyboardInterrupt):
        text = "interrupted"
    elif isinstance(error, OSError):
        text = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error)
        if error.errno == errno.ENOSPC:
            hint = "The disk is full: free some space."
    else:
        text = f"internal error: {type(error).__name__}: {error}"
        hint = "This is a defect of ipamctl: --log-level debug shows where. Please report it."
        _trace(error)
    return [("error", text), *(("hint", line) for line in hint.splitlines())]


def _trace(error: BaseException) -> None:
    import logging

    logging.getLogger(__name__).debug("internal error", exc_info=error)


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
        with open(os.devnull, "wb") as nothing:  # noqa: PTH123 - a device, and only its descriptor is needed
            os.dup2(nothing.fileno(), sys.stdout.fileno())


def _show_version(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if not wanted or context.resilient_parsing:
        return
    from importlib.metadata import version

    click.echo(f"{context.find_root().info_name} {version('calico-ipam')}")
    context.exit()


@click.group(
    cls=Program,
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


cli.add_command(init)
cli.add_command(pool)
cli.add_command(ipam)


def main() -> None:
    """Run ipamctl with the process's arguments and end the process."""
    for stream in (sys.stdout, sys.stderr):
        # Names come from elsewhere and may hold what the locale cannot write: show it escaped instead of failing.
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    name = os.path.basename(sys.argv[0])  # noqa: PTH119 - pathlib is not needed otherwise, and costs 7 ms
    cli.main(prog_name=name if name in NAMES else NAMES[0])


if __name__ == "__main__":
    main()
