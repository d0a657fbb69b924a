"""How whatever ends a call is told, and with which exit code (cli §1.2, §1.4, §17).

Two voices: for people, with a label and the way out; and exactly calicoctl's words, for the commands that it has too,
wherever a script may read them.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable

import click

from calico_ipam.errors import IPAMError, NotConfigured


class Told(IPAMError):
    """A failure in calicoctl's words. ``exact``: those, where people are told less stiffly. ``on_stdout``: some of its
    failures are results (cli §1.4)."""

    def __init__(self, message: str, *, exact: str = "", hint: str = "", on_stdout: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.exact = exact or message
        self.on_stdout = on_stdout


class ProblemsFound(Exception):
    """The check found problems, and the caller asked to be told by the exit code."""


class PartlyDone(Exception):
    """Some of what was asked for could not be done; the output says what."""


#: What ended the call, and the exit code. The first match counts. Ordinary failures are 1, as upstream's (cli §1.4).
EXIT_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (KeyboardInterrupt, 130),  # what a shell sees of a program that SIGINT ended
    (BrokenPipeError, 141),  # likewise SIGPIPE: the reader had enough
    (ProblemsFound, 3),  # ipam check --fail-on-problems
    (PartlyDone, 4),  # ipam release --from-report, ipam gc, ipam repair
    (click.Abort, 1),  # the answer to a question was no
    (click.ClickException, 1),  # usage; click's own 2 means a crash upstream
    (IPAMError, 1),
    (OSError, 1),  # a disk is full, a file cannot be read
    (Exception, 2),  # a defect of ours
)

#: these have been told by the command itself
SILENT: tuple[type[BaseException], ...] = (BrokenPipeError, click.Abort, ProblemsFound, PartlyDone)


def exit_code(error: BaseException) -> int:
    """Return the exit code for what ended a call."""
    return next(code for kind, code in EXIT_CODES if isinstance(error, kind))


def told(error: BaseException) -> list[tuple[str, str]]:
    """Return what people are told: pairs of a label and a line; the failure, then the way out."""
    hint = ""
    if isinstance(error, IPAMError):
        text, hint = str(error).rstrip("\n"), error.hint
    elif isinstance(error, click.UsageError):
        if isinstance(error, click.NoSuchOption):
            from calico_ipam.ctl import guesses

            hint = guesses.OPTIONS.get(error.option_name, "")
        # What an option of another tool means here tells more than what is spelled like it.
        text = error.message if hint else error.format_message()
        hint = hint or getattr(error, "hint", "")
        if error.ctx is not None and not hint:
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
    return [("error", text), *(("hint", line) for line in hint.splitlines())]


def exact(error: BaseException) -> tuple[str, bool]:
    """Return the words that calicoctl would use, and whether they are part of its standard output."""
    if isinstance(error, Told):
        return error.exact, error.on_stdout
    if is_missing_file(error):
        return str(error), True
    if isinstance(error, click.UsageError) and hasattr(error, "command_name"):
        program = error.ctx.find_root().info_name if error.ctx is not None else ""
        return f'unknown command "{error.command_name}" for "{program}"{_suggestions(error.command_name)}', False
    for kind, words in _PARSER_WORDS:
        if isinstance(error, kind):
            return words(error), False
    return without_parser_words(told(error)[0][1]), False


#: calicoctl's commands, in the order in which it suggests them
_COMMANDS = (
    *("apply", "cluster", "create", "datastore", "delete", "get", "ipam", "label", "node", "patch", "replace"),
    *("validate", "version", "completion", "help"),
)


def _suggestions(name: str) -> str:
    """Return what calicoctl adds about a command that it does not know: those that are spelled nearly so."""
    wanted = name.lower()
    close = [each for each in _COMMANDS if each.startswith(wanted) or _distance(each, wanted) <= 2]
    return "\n\nDid you mean this?\n" + "".join(f"\t{each}\n" for each in close) if close else ""


def _distance(one: str, other: str) -> int:
    """Return how many letters must be added, removed or changed to make one word the other."""
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        before, row[0] = row[0], i
        for j, its in enumerate(other, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (letter != its))
    return row[-1]


def is_missing_file(error: BaseException) -> bool:
    """Tell whether the file of settings that was named is not there: calicoctl says so at once (cli §1.3)."""
    return isinstance(error, NotConfigured) and str(error).startswith("Error reading config file")


def without_parser_words(text: str) -> str:
    """Return an error as calicoctl tells it: a field that is not known replaces the whole text (cli §1.4)."""
    unknown = re.search(r'unknown field "(?:[^"]*\.)?([^".]+)"', text)
    if unknown is not None:
        return f"field in document is not recognized or is in the wrong location: {unknown[1]}"
    return text.removeprefix("error unmarshaling JSON: while decoding JSON: json: ")


def _unknown_option(error: click.NoSuchOption) -> str:
    name = error.option_name
    return f"unknown flag: {name}" if name.startswith("--") else f"unknown shorthand flag: '{name[1:2]}' in {name}"


def _bad_option(error: click.BadOptionUsage) -> str:
    name = str(error.option_name)
    if "requires an argument" not in error.message:
        return error.format_message()
    return (
        f"flag needs an argument: {name}"
        if name.startswith("--")
        else (f"flag needs an argument: '{name[1:2]}' in {name}")
    )


#: usage errors that have words of their own upstream (cli §1.2)
_PARSER_WORDS: tuple[tuple[type[BaseException], Callable[..., str]], ...] = (
    (click.NoSuchOption, _unknown_option),
    (click.BadOptionUsage, _bad_option),
)
