"""Where a process becomes a call: the only place that touches argv, the environment, stdin, stdout and exit.

Which program runs follows from the name it was started by (cni.md §1). Everything behind :func:`respond` is values.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Mapping, Sequence

import calico_cni.startup  # noqa: F401  # first, before anything imports dataclasses
from calico_cni import __version__, protocol
from calico_cni.errors import IO_FAILURE, CNIError
from calico_cni.protocol import ADD, CALICO, CALICO_IPAM, VERSION, Request, Response

#: First words that mean the command line tool even where a stray CNI_COMMAND is in the environment.
CLI_WORDS = frozenset({"component", "ctl", "health", "version", "help"})

_FLAGS: Mapping[str, tuple[str, ...]] = {CALICO: ("t", "v"), CALICO_IPAM: ("upgrade", "v")}
_HELP: Mapping[str, str] = {
    "v": "\tDisplay version",
    "t": "\tTest datastore connection",
    "upgrade": "\n    \tUpgrade this node from host-local to calico-ipam",
}
_TRUE, _FALSE = ("1", "t", "T", "true", "TRUE", "True"), ("0", "f", "F", "false", "FALSE", "False")
_USAGE = 2
_IGNORE_UNKNOWN = "IgnoreUnknown=1"


def main() -> None:
    """Run as the program that argv[0] names, and exit with its status."""
    gc.disable()  # looking for cycles of garbage costs a process of a fraction of a second more than it could give back
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # nobody wants to see where a plugin was when it was interrupted
    status = run(sys.argv, os.environ)
    try:
        sys.stderr.flush()
    except (OSError, ValueError):
        # Nobody reads the log any more. The interpreter would try once more and turn the exit status into 120.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    sys.exit(status)


def run(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run one call in this process and return its exit status."""
    program = CALICO_IPAM if (argv[0] if argv else "").rpartition("/")[2] == CALICO_IPAM else CALICO
    words = list(argv[1:])
    if program == CALICO and wants_cli(words, environ):
        return _command_line(words, environ)
    answer = _claim_stdout()
    try:
        flag = parse_flag(program, words)
    except CNIError as error:
        sys.stderr.write(f"{error.message}\n{usage(program)}")
        return _USAGE
    if flag == "help":
        sys.stderr.write(usage(program))
        return 0
    if flag == "v":
        return _deliver(answer, Response(__version__ + "\n"))
    if flag == "upgrade":
        sys.stderr.write("The migration from host-local is not part of this release; nothing was changed.\n")
        return 1
    return _serve(program, flag, environ, answer)


def wants_cli(words: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Tell whether ``calico`` was started as the command line tool and not as a plugin."""
    first = words[0] if words else ""
    if first in CLI_WORDS:
        return True
    # Without a command of a runtime, bare words can only be meant for the tool; flags are the plugin's.
    return not environ.get("CNI_COMMAND") and bool(first) and not first.startswith("-")


def parse_flag(program: str, words: Sequence[str]) -> str:
    """Return the flag that decides what is done, or an empty text. Raises CNIError for one that cannot be read.

    The version goes before everything else that is asked for, and help before that.
    """
    found: set[str] = set()
    for word in words:
        if word == "--" or not word.startswith("-") or word == "-":
            break
        name, equals, value = word[2 if word.startswith("--") else 1 :].partition("=")
        if not name or name.startswith("-"):
            raise CNIError(f"bad flag syntax: {word}")
        if name not in _FLAGS[program]:
            if name in ("h", "help"):
                return "help"
            raise CNIError(f"flag provided but not defined: -{name}")
        if equals and value not in (*_TRUE, *_FALSE):
            raise CNIError(f"invalid boolean value {protocol.go_quote(value)} for -{name}: parse error")
        if equals and value in _FALSE:
            found.discard(name)
        else:
            found.add(name)
    return next((flag for flag in ("v", *_FLAGS[program]) if flag in found), "")


def usage(program: str) -> str:
    """Return the flags of a program, as they are shown after an unknown one."""
    lines = "".join(f"  -{flag}{_HELP[flag]}\n" for flag in _FLAGS[program])
    return f"Usage of {'Calico' if program == CALICO else program}:\n{lines}"


def _serve(program: str, flag: str, environ: Mapping[str, str], answer: int) -> int:
    command = environ.get("CNI_COMMAND", "")
    if flag != "t" and not command:
        sys.stderr.write(protocol.about(program, __version__))
        return 0
    if flag != "t" and command == VERSION:
        return _deliver(answer, Response(protocol.version_answer()))
    try:
        if flag != "t":
            protocol.check_environment(environ)  # before stdin is read: a terminal would wait for ever
        request = Request(program, plugin_environment(program, environ), _read_stdin())
    except CNIError as error:
        return _deliver(answer, Response.error(error))
    return respond(request, flag, answer)


def plugin_environment(program: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the call: ``calico`` and what it delegates to take arguments they do not know (§1)."""
    found = dict(environ)
    if program == CALICO:
        old = found.get("CNI_ARGS", "")
        found["CNI_ARGS"] = f"{_IGNORE_UNKNOWN};{old}" if old else _IGNORE_UNKNOWN
    return found


def respond(request: Request, flag: str, answer: int) -> int:
    """Do the call and deliver its answer; when nobody takes the answer of an ADD, take back what it made."""
    from calico_cni.dispatch import handle
    from calico_cni.logs import logging_to
    from calico_cni.stopping import CallStopped, Stop
    from calico_cni.system import system_context

    stop = Stop()
    context = system_context(sys.stderr, stop)
    with logging_to(sys.stderr):
        try:
            with stop.listening():
                if flag == "t":
                    from calico_cni.plugin.connection import test_connection

                    response = test_connection(request, context)
                else:
                    response = handle(request, context)
        except CallStopped as stopped:
            return _deliver(answer, Response.error(stopped.error(request.command)))
        status = _deliver(answer, response)
        if status != response.exit_code and request.command == ADD and response.undo is not None:
            with stop.undoing():
                handle(response.undo, context)
        return status


def _claim_stdout() -> int:
    """Return a descriptor of the real stdout; whatever else prints from now on goes to stderr (§2.3).

    A caller that gave no stdout gets no answer: -1 is a descriptor that cannot be written.
    """
    if sys.stderr is None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115  # it stays open
    try:
        answer = os.dup(1)
    except OSError:
        answer = -1
    os.dup2(2, 1)
    return answer


def _read_stdin() -> bytes:
    try:
        return sys.stdin.buffer.read() if sys.stdin is not None else b""
    except (OSError, ValueError) as error:
        raise CNIError(f"error reading from stdin: {error}", code=IO_FAILURE) from None


def _deliver(answer: int, response: Response) -> int:
    """Write the answer; return the exit status, 1 when it could not be written."""
    data = response.stdout.encode("utf-8", "replace")
    try:
        while data:
            data = data[os.write(answer, data) :]
    except OSError as error:
        sys.stderr.write(f"The answer could not be written: {error}\n")
        return 1
    return response.exit_code


def _command_line(words: list[str], environ: Mapping[str, str]) -> int:
    """Become ipamctl, which stands in the place of the command line tool that upstream's ``calico`` also is."""
    from pathlib import Path
    from shutil import which

    words = words[1:] if words[0] == "ctl" else words
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    beside = Path(sys.argv[0]).resolve().parent
    tool = which("ipamctl", path=f"{beside}{os.pathsep}{environ.get('PATH', os.defpath)}")
    if tool is not None:
        os.execve(tool, ["ipamctl", *words], dict(environ))  # noqa: S606  # no shell is wanted
    sys.stderr.write(f"{CALICO}: the command line tool 'ipamctl' is not installed on this machine.\n")
    return 1


if __name__ == "__main__":
    main()
