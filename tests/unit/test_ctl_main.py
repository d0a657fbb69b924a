"""ipamctl as a program: help, version, what goes wrong and how it is told, terminals, pipes, locales."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from calico_ipam.ctl.main import EXIT_CODES, cli, exit_code
from calico_ipam.errors import IPAMError, OutcomeUnknown, StaleError, StoreUnavailable
from tests.cluster import memory_folder
from tests.ctl import PROGRAM, Ctl, on_terminal


@pytest.fixture(scope="module")
def ctl() -> Iterator[Ctl]:
    """A store with two pools and two addresses; no test of this file changes it."""
    from calico_ipam.datastore.sqlite import SQLiteStore
    from calico_ipam.engine.client import IPAM

    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        made = Ctl(Path(folder) / "ipam.db")
        made.ok("init", "--node", "node-1", "--ipv4-pool", "10.244.0.0/16", "--ipv6-pool", "fd00:10:244::/48")
        store = SQLiteStore(made.path)
        attrs = {"node": "node-1", "pod": "caf\u00e9-\u65e5", "namespace": "x"}
        IPAM(store, hostname="node-1").auto_assign(use="Workload", num4=1, num6=1, handle="net.c1", attrs=attrs)
        store.close()
        yield made


def run(*argv: str, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *argv], capture_output=True, text=True, check=False, **more)  # type: ignore[call-overload,no-any-return]  # options of subprocess.run


# --- help and version ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("argv", [(), ("--help",), ("-h",), ("pool",), ("ipam",), ("pool", "create", "--help")])
def test_help_is_no_failure(argv: tuple[str, ...]) -> None:
    result = CliRunner().invoke(cli, argv, prog_name="ipamctl")
    assert result.exit_code == 0
    assert result.stdout.startswith("Usage: ipamctl")
    assert result.stderr == ""


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*path, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


@pytest.mark.parametrize("path", [*commands(cli)], ids=" ".join)
def test_every_command_and_option_explains_itself(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(cli, [*path, "--help"])
    assert result.exit_code == 0
    command: click.Command = cli
    for name in path:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), name)
        assert found is not None
        command = found
    assert command.help
    for parameter in command.params:
        assert not isinstance(parameter, click.Option) or parameter.help, f"{parameter.name} has no help"


def test_help_loads_nothing_but_click() -> None:
    """Help takes well under 150 ms because the library is imported by the commands that need it."""
    code = (
        "import sys\n"
        "from calico_ipam.ctl.main import cli\n"
        "try: cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'sqlite3', 'rich', 'yaml', 'json', 'logging', 'ipaddress', 'asyncio', 'pyroute2', 'kubernetes'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"


def test_version_names_the_program_as_it_was_called() -> None:
    assert CliRunner().invoke(cli, ["--version"], prog_name="calicoctl").stdout.startswith("calicoctl 0.")


def test_shells_can_complete() -> None:
    environment = {**os.environ, "_IPAMCTL_COMPLETE": "zsh_source"}
    script = [sys.executable, "-c", "import sys; sys.argv = ['ipamctl']; from calico_ipam.ctl.main import main; main()"]
    done = subprocess.run(script, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "compdef" in done.stdout
    environment |= {"_IPAMCTL_COMPLETE": "zsh_complete", "COMP_WORDS": "ipamctl pool ", "COMP_CWORD": "2"}
    done = subprocess.run(script, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0
    assert {"create", "list", "delete"} <= set(done.stdout.split())


# --- what goes wrong ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (("bogus",), "No such command 'bogus'"),
        (("ipam", "bogus"), "No such command 'bogus'"),
        (("ipam", "show", "--foo"), "unknown flag: --foo"),
        (("ipam", "show", "--ip"), "flag needs an argument: --ip"),
        (("ipam", "release"), "Say what to release"),
        (("pool", "create"), "Missing argument 'CIDR'"),
        (("pool", "list", "extra"), "unexpected extra argument"),
        (("pool", "list", "-o", "xml"), "'xml' is none of"),
        (("-l", "loud", "pool", "list"), "unknown log level: loud"),
        (("--datastore", "nonsense", "pool", "list"), "nonsense is no datastore URL"),
        (("--datastore", "sqlite://relative", "pool", "list"), "names no absolute path"),
        (("--datastore", "oracle://x", "pool", "list"), "unknown kind of datastore 'oracle'"),
        (("--datastore", "etcd://u:p@h:1", "pool", "list"), "User and password go into ETCD_USERNAME"),
        (("--config", "/does/not/exist", "pool", "list"), "Error reading config file: /does/not/exist"),
        (("--datastore", "sqlite:///", "pool", "list"), "names no absolute path"),
        (("--datastore", "sqlite:///dev", "pool", "list"), "is a folder"),
        (("--datastore", "sqlite:///dev/null/x", "pool", "list"), "there is no datastore /dev/null/x"),
        (("--datastore", "sqlite:///does/not/exist.db", "ipam", "show"), "there is no datastore /does/not/exist.db"),
        (("--datastore", "sqlite:///etc/hostname", "ipam", "show"), "is not a database"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_1(argv: tuple[str, ...], text: str) -> None:
    result = CliRunner().invoke(cli, argv, prog_name="ipamctl")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert text in result.stderr
    own = argv[0] != "ipam" and argv[-2:] != ("ipam", "show")  # calicoctl's commands say nothing but the sentence
    assert result.stderr.startswith("error") is (own or argv == ("ipam", "bogus"))
    assert "Traceback" not in result.stderr


def test_a_mistyped_path_makes_no_store(tmp_path: Path) -> None:
    stderr = Ctl(tmp_path / "typo" / "ipam.db").refused("pool", "list")
    assert "hint: 'ipamctl init' makes one" in stderr
    assert list(tmp_path.iterdir()) == []


def test_the_default_store_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only ipamctl falls back to the store of the host, and it says so (ruling 3)."""
    from calico_ipam.datastore import config

    path = str(tmp_path / "ipam.db")
    found = config.Settings("sqlite", "the default", fallback=True, sqlite_path=path)
    monkeypatch.setattr(config, "load_settings", lambda *_, **__: found)
    told = f"note: no datastore is configured, so this is the one of this host: {path}\n"
    missing = CliRunner().invoke(cli, ["pool", "list"])
    assert missing.stderr.startswith(told + f"error: there is no datastore {path}\n")
    assert not Path(path).exists()
    made = CliRunner().invoke(cli, ["init", "--node", "n", "--ipv4-pool", "none"])
    assert (made.exit_code, made.stderr) == (0, told)


def test_a_file_that_silences_the_environment_is_named(ctl: Ctl, tmp_path: Path) -> None:
    config = tmp_path / "ctl.cfg"
    config.write_text(
        "apiVersion: projectcalico.org/v3\nkind: CalicoAPIConfig\n"
        f"spec: {{datastoreType: sqlite, sqlitePath: '{ctl.path}'}}\n"
    )
    alone = CliRunner().invoke(cli, ["-c", str(config), "pool", "list"], env=dict.fromkeys(_telling()))
    assert (alone.exit_code, alone.stderr) == (0, "")
    both = CliRunner().invoke(cli, ["pool", "list", "--config", str(config)], env={"DATASTORE_TYPE": "kubernetes"})
    assert both.exit_code == 0
    assert both.stderr == f"note: settings come from the file {config}; those in the environment are not used.\n"


def _telling() -> list[str]:
    words = ("DATASTORE", "ETCD", "KUBE", "K8S", "SQLITE")
    return [name for name in os.environ if any(word in name for word in words)]


def test_options_after_the_command_win(ctl: Ctl) -> None:
    result = CliRunner().invoke(cli, ["--datastore", "sqlite:///nowhere", "pool", "list", "--datastore", ctl.url])
    assert result.exit_code == 0, result.stderr


def test_every_error_has_an_exit_code() -> None:
    assert [exit_code(error) for error in (StoreUnavailable("x"), StaleError("x"), OutcomeUnknown("x"))] == [1, 1, 1]
    assert exit_code(KeyboardInterrupt()) == 130
    assert exit_code(BrokenPipeError()) == 141
    assert exit_code(ValueError()) == 2
    kinds = [kind for kind, _ in EXIT_CODES]
    assert not any(issubclass(later, earlier) for i, earlier in enumerate(kinds) for later in kinds[i + 1 :])


@pytest.mark.parametrize(
    ("error", "code", "lines"),
    [
        (IPAMError("it is so", hint="do this\nor that"), 1, ["error: it is so", "hint: do this", "hint: or that"]),
        (IPAMError("error with field x (y)"), 1, ["error with field x (y)"]),
        (KeyboardInterrupt(), 130, ["error: interrupted"]),
        (PermissionError(13, "Permission denied", "/a/b"), 1, ["error: /a/b: Permission denied"]),
        (
            RuntimeError("oops"),
            2,
            [
                "error: internal error: RuntimeError: oops",
                "hint: This is a defect of ipamctl: --log-level debug shows where. Please report it.",
            ],
        ),
    ],
)
def test_whatever_is_raised_is_told(
    error: BaseException, code: int, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_context: click.Context) -> None:
        raise error

    from calico_ipam.ctl.pool import pool

    monkeypatch.setattr(pool, "invoke", fail)
    result = CliRunner().invoke(cli, ["pool", "list"])
    assert (result.exit_code, result.stderr.strip().splitlines()) == (code, lines)


def test_a_defect_shows_where_it_is_only_when_asked(ctl: Ctl) -> None:
    code = (
        "import calico_ipam.ctl.main as m, sys\n"
        "def fail(context): raise RuntimeError('oops')\n"
        "import calico_ipam.ctl.pool as p\n"
        "p.pool.invoke = fail\n"
        "m.cli.main(sys.argv[1:])\n"
    )
    argv = [sys.executable, "-c", code]
    quiet = subprocess.run([*argv, "pool", "list"], capture_output=True, text=True, check=False)
    loud = subprocess.run([*argv, "-l", "debug", "pool", "list"], capture_output=True, text=True, check=False)
    assert (quiet.returncode, loud.returncode) == (2, 2)
    assert "Traceback" not in quiet.stderr
    assert "Traceback" in loud.stderr


# --- pipes, disks, locales ----------------------------------------------------------------------------------


def test_a_reader_that_had_enough_is_no_failure(ctl: Ctl) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed:
        argv = [*PROGRAM, "--datastore", ctl.url, "ipam", "show", "--show-blocks"]
        done = subprocess.run(argv, stdout=closed, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (141, b"")


def test_help_into_a_closed_pipe(ctl: Ctl) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed:
        done = subprocess.run([*PROGRAM, "--help"], stdout=closed, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (141, b"")


def test_errors_into_a_closed_pipe(ctl: Ctl) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed:
        done = subprocess.run([*PROGRAM, "bogus"], stdout=subprocess.PIPE, stderr=closed, check=False)
    assert (done.returncode, done.stdout) == (1, b"")


def test_a_full_disk_is_told(ctl: Ctl) -> None:
    with Path("/dev/full").open("wb") as full:
        argv = [*PROGRAM, "--datastore", ctl.url, "ipam", "show"]
        done = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: No space left on device\n")
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr


@pytest.mark.parametrize("stream", [">&-", "2>&-", "<&-"])
def test_closed_streams(ctl: Ctl, stream: str) -> None:
    line = f'"$@" {stream}'
    argv = ["/bin/sh", "-c", line, "sh", *PROGRAM, "--datastore", ctl.url, "ipam", "show"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "locale",
    [{"LC_ALL": "C"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"PYTHONIOENCODING": "ascii"}],
)
def test_names_that_the_locale_cannot_write(ctl: Ctl, locale: dict[str, str]) -> None:
    """Names in a datastore come from elsewhere: they are shown somehow, never refused with a traceback."""
    blocks = json.loads(ctl.ok("ipam", "show", "-o", "json"))["pools"][0]["blocks"]
    address = blocks[0]["cidr"].partition("/")[0]
    argv = [*PROGRAM, "--datastore", ctl.url, "ipam", "show", "--ip", address]
    for form in ("table", "wide", "json", "yaml"):
        done = subprocess.run([*argv, "-o", form], capture_output=True, check=False, env={**os.environ, **locale})
        assert (done.returncode, done.stderr) == (0, b""), form
        assert b"net.c1" in done.stdout


def test_arguments_that_are_no_text(ctl: Ctl) -> None:
    argv: list[str | bytes] = [*PROGRAM, "--datastore", ctl.url, "pool", "create", "10.9.0.0/24", "--name", b"\xff\xe9"]
    done = subprocess.run(argv, capture_output=True, check=False)
    assert done.returncode == 1
    assert b"Metadata.Name" in done.stderr
    assert b"Traceback" not in done.stderr


# --- terminals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [40, 60, 80, 200])
@pytest.mark.parametrize(
    "argv",
    [
        ("ipam", "show"),
        ("ipam", "show", "--show-blocks"),
        ("ipam", "show", "--show-blocks", "-o", "wide"),
        ("pool", "list"),
        ("pool", "list", "-o", "wide"),
    ],
    ids=" ".join,
)
def test_tables_fit_the_terminal_and_break_no_cell(ctl: Ctl, argv: tuple[str, ...], columns: int) -> None:
    code, screen = ctl.on_terminal(*argv, columns=columns)
    assert code == 0
    longest_cell = len("Block fd00:10:244:ffff:ffff:ffff:ffff:ffff/122")
    assert max(map(len, screen.splitlines())) <= max(columns, longest_cell)
    for whole in ("10.244.0.0/16", "fd00:10:244::/48"):
        assert whole in screen


def test_colour_only_on_terminals(ctl: Ctl) -> None:
    assert "\x1b" not in run("bogus").stderr
    assert "\x1b[31merror:" in on_terminal([*PROGRAM, "bogus"], columns=80)[1]
    assert "\x1b" not in on_terminal([*PROGRAM, "bogus"], columns=80, env={"NO_COLOR": "1"})[1]
