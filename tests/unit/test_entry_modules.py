"""The programs as processes: dispatch by name, flags, streams, and which modules each verb loads."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from calico_cni import __version__, entry
from calico_cni.errors import CNIError
from calico_ipam.datastore.api import Create
from calico_ipam.datastore.sqlite import SQLiteStore
from calico_ipam.model.keys import Blocks, ResourceKey
from calico_ipam.model.resource import CLUSTER_INFORMATION, IP_POOL, NODE, Resource
from tests.shared import REPOSITORY

PROGRAM = """
import sys
sys.argv = {argv!r}
before = set(sys.modules)
{extra}
from calico_cni.entry import main
try:
    main()
finally:
    sys.stderr.write("\\nMODULES " + " ".join(sorted(set(sys.modules) - before)) + "\\n")
"""


@pytest.fixture
def netconf(tmp_path: Path) -> dict[str, Any]:
    """A configuration whose store is ready, with a pool."""
    path = tmp_path / "store" / "ipam.db"
    store = SQLiteStore(path)
    for kind, name, spec in (
        (CLUSTER_INFORMATION, "default", {"datastoreReady": True}),
        (NODE, "worker-1", {}),
        (IP_POOL, "pool", {"cidr": "10.65.0.0/24", "blockSize": 28}),
    ):
        store.commit(Create(ResourceKey(kind, name), Resource.new(kind, name, spec)))
    store.close()
    return {
        "cniVersion": "1.1.0",
        "name": "net1",
        "type": "calico",
        "nodename": "worker-1",
        "nodename_file_optional": True,
        "datastore_type": "sqlite",
        "sqlite_path": str(path),
        "ipam_lock_file": str(tmp_path / "ipam.lock"),
        "ipam": {"type": "calico-ipam"},
    }


class Ran:
    """A process that ended."""

    def __init__(self, done: subprocess.CompletedProcess[bytes]) -> None:
        self.status = done.returncode
        self.stdout = done.stdout.decode()
        self.stderr = done.stderr.decode()

    @property
    def modules(self) -> set[str]:
        (line,) = [line for line in self.stderr.splitlines() if line.startswith("MODULES ")]
        return set(line.split()[1:])


def run(
    *argv: str,
    environ: Mapping[str, str] | None = None,
    stdin: Mapping[str, Any] | None = None,
    extra: str = "",
    stdout: Any = subprocess.PIPE,
) -> Ran:
    program = PROGRAM.format(argv=list(argv), extra=extra)
    return Ran(
        subprocess.run(
            [sys.executable, "-W", "error", "-c", program],
            env={"PATH": os.environ["PATH"], **(environ or {})},
            input=json.dumps(stdin).encode() if stdin is not None else b"",
            stdout=stdout,
            stderr=subprocess.PIPE,
            cwd=REPOSITORY,
            timeout=60,
        )
    )


def attachment(verb: str, **more: str) -> dict[str, str]:
    return {
        "CNI_COMMAND": verb,
        "CNI_CONTAINERID": "abc",
        "CNI_NETNS": "/run/netns/never",
        "CNI_IFNAME": "eth0",
        "CNI_PATH": "/x",
        **more,
    }


# --- modules ------------------------------------------------------------------------------------------------

#: What costs a cold process most; each stands with the verbs that may pay for it.
NEVER = (
    "click",
    "rich",
    "yaml",
    "kubernetes",
    "etcd3",
    "grpc",
    "importlib.metadata",
    "asyncio",
    "email",
    "http.client",
)
NETLINK, LOCK, SQLITE, ENGINE = "pyroute2", "filelock", "sqlite3", "calico_ipam.engine"

LOADS: list[tuple[str, str, set[str]]] = [
    ("calico", "VERSION", set()),
    ("calico-ipam", "VERSION", set()),
    ("calico", "STATUS", {SQLITE}),
    ("calico-ipam", "STATUS", {SQLITE}),
    ("calico-ipam", "ADD", {SQLITE, LOCK, ENGINE}),
    ("calico-ipam", "DEL", {SQLITE, LOCK, ENGINE}),
    ("calico", "DEL", {SQLITE, LOCK, ENGINE, NETLINK}),
]


def loaded(modules: set[str], name: str) -> bool:
    return any(module == name or module.startswith(f"{name}.") for module in modules)


@pytest.mark.parametrize("program", ["calico", "calico-ipam"])
def test_status_loads_neither_links_nor_results(program: str, netconf: dict[str, Any]) -> None:
    modules = run(program, environ=attachment("STATUS"), stdin=netconf).modules
    assert "calico_cni.dispatch" in modules
    assert not {"calico_cni.dataplane.api", "calico_cni.results", "subprocess"} & modules
    # Making the classes of values that nobody reads costs more than reading those that somebody does.
    assert not {"calico_ipam.model.block", "calico_ipam.model.affinity", "calico_ipam.model.selector"} & modules


@pytest.mark.parametrize(("program", "verb", "allowed"), LOADS)
def test_modules_by_verb(program: str, verb: str, allowed: set[str], netconf: dict[str, Any]) -> None:
    done = run(f"/opt/cni/bin/{program}", environ=attachment(verb), stdin=netconf)
    assert done.status == 0, done.stdout + done.stderr
    found = {name for name in (NETLINK, LOCK, SQLITE, ENGINE, *NEVER) if loaded(done.modules, name)}
    assert found <= allowed, "a verb loads what it does not need"
    assert {SQLITE} & allowed <= found, "the test would not see it"


def test_del_loads_nothing_that_only_add_or_a_machine_needs(netconf: dict[str, Any]) -> None:
    modules = run("calico", environ=attachment("DEL"), stdin=netconf).modules
    unneeded = {"calico_cni.results", "calico_cni.plugin.workload", "calico_cni.plugin.podcidr"}
    assert not (unneeded | {"calico_cni.ipam.kubevirt", "calico_ipam.model.selector"}) & modules


def test_version_loads_almost_nothing_of_ours() -> None:
    modules = run("calico", environ={"CNI_COMMAND": "VERSION"}).modules
    ours = {module for module in modules if module.startswith(("calico_", "calico."))}
    expected = {"calico_cni", "calico_cni.entry", "calico_cni.errors", "calico_cni.gojson", "calico_cni.protocol"}
    assert ours == expected | {"calico_cni.startup", "calico_ipam", "calico_ipam.errors"}
    assert not {"logging", "socket", "subprocess", "pathlib", "ipaddress", "sqlite3"} & modules


@pytest.mark.parametrize("verb", ["VERSION", "STATUS"])
def test_inspect_is_a_stand_in_that_nobody_needed(verb: str, netconf: dict[str, Any]) -> None:
    modules = run("calico", environ=attachment(verb), stdin=netconf).modules
    assert "inspect" in modules and not {"ast", "dis"} & modules, "a dataclass on the way has no docstring"


def test_who_needs_a_postponed_module_gets_the_whole_of_it() -> None:
    program = (
        "import calico_cni.startup, sys, inspect as early\n"
        "assert 'dis' not in sys.modules\n"
        "assert early.signature(len).parameters and 'dis' in sys.modules\n"
        "import inspect as late\n"
        "assert late is not early and late.__file__ and early.isclass is late.isclass\n"
        "from inspect import getsource\n"
        "calico_cni.startup.postpone('inspect')\n"
        "assert sys.modules['inspect'] is late\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_version_is_the_packages() -> None:
    project = (REPOSITORY / "pyproject.toml").read_text()
    assert re.findall(r'^version = "(.+)"$', project, re.MULTILINE) == [__version__]


# --- dispatch and flags -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "command", "cli"),
    [
        ([], None, False),
        ([], "ADD", False),
        (["component", "felix"], "ADD", True),
        (["component", "felix"], None, True),
        (["ctl", "get", "nodes"], None, True),
        (["version"], "ADD", True),
        (["health"], None, True),
        (["help"], None, True),
        (["node", "status"], None, True),
        (["node", "status"], "ADD", False),
        (["-t"], "VERSION", False),
        (["-t"], None, False),
        (["-v"], None, False),
    ],
)
def test_plugin_or_command_line_tool(words: list[str], command: str | None, cli: bool) -> None:
    assert entry.wants_cli(words, {"CNI_COMMAND": command} if command else {}) is cli


@pytest.mark.parametrize(
    ("program", "words", "flag"),
    [
        ("calico", ["-v"], "v"),
        ("calico", ["--v"], "v"),
        ("calico", ["-v=true"], "v"),
        ("calico", ["-v=false", "-t"], "t"),
        ("calico", ["word", "-v"], ""),
        ("calico", ["--", "-v"], ""),
        ("calico", [], ""),
        ("calico", ["-t", "-v"], "v"),
        ("calico", ["-v", "--v=F"], ""),
        ("calico", ["-v", "-help", "-nope"], "help"),
        ("calico-ipam", ["-upgrade"], "upgrade"),
    ],
)
def test_flags(program: str, words: list[str], flag: str) -> None:
    assert entry.parse_flag(program, words) == flag


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("-v=maybe", 'invalid boolean value "maybe" for -v: parse error'),
        ("---v", "bad flag syntax: ---v"),
        ("-=1", "bad flag syntax: -=1"),
    ],
)
def test_flags_that_cannot_be_read(word: str, text: str) -> None:
    with pytest.raises(CNIError) as found:
        entry.parse_flag("calico", [word])
    assert found.value.message == text


def test_help() -> None:
    done = run("calico-ipam", "-h")
    assert (done.status, done.stdout) == (0, "")
    assert (
        done.stderr.startswith("Usage of calico-ipam:\n  -upgrade\n    \t") and "  -v\tDisplay version\n" in done.stderr
    )


@pytest.mark.parametrize(("program", "word"), [("calico", "-nope"), ("calico", "-upgrade"), ("calico-ipam", "-t")])
def test_unknown_flags(program: str, word: str) -> None:
    with pytest.raises(CNIError, match="flag provided but not defined"):
        entry.parse_flag(program, [word])
    done = run(program, word, environ={"CNI_COMMAND": "ADD"} if program == "calico" else {})
    assert (done.status, done.stdout) == (2, "")
    title = {"calico": "Calico"}.get(program, program)
    assert f"flag provided but not defined: {word}\nUsage of {title}:\n  -" in done.stderr


def test_v_prints_the_version_whatever_the_command() -> None:
    for environ in ({}, {"CNI_COMMAND": "ADD"}):
        done = run("calico", "-v", environ=environ)
        assert (done.status, done.stdout) == (0, f"{__version__}\n")


@pytest.mark.parametrize(("name", "title"), [("calico", "Calico CNI plugin"), ("calico-ipam", "Calico CNI IPAM")])
def test_started_by_hand(name: str, title: str) -> None:
    done = run(f"/opt/cni/bin/{name}")
    assert (done.status, done.stdout) == (0, "")
    assert done.stderr.startswith(f"{title} {__version__}\nCNI protocol versions supported: 0.1.0, 0.2.0, ")


def test_any_other_name_is_calico() -> None:
    done = run("/opt/cni/bin/something", environ={"CNI_COMMAND": "VERSION"})
    assert json.loads(done.stdout)["cniVersion"] == "1.1.0"


def test_words_lead_to_ipamctl(tmp_path: Path) -> None:
    tool = tmp_path / "ipamctl"
    tool.write_text('#!/bin/sh\necho "$0" "$@" "$CNI_COMMAND"\n')
    tool.chmod(0o755)
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin", "CNI_COMMAND": "ADD"}
    for words, given in ((["ctl", "ipam", "show"], "ipam show"), (["version"], "version"), (["help"], "--help")):
        done = run(f"{tmp_path}/calico", *words, environ=path)
        assert (done.status, done.stdout) == (0, f"{tmp_path}/ipamctl {given} ADD\n")


def test_words_without_ipamctl(tmp_path: Path) -> None:
    done = run(f"{tmp_path}/calico", "version", environ={"PATH": str(tmp_path)})
    assert (done.status, done.stdout) == (1, "")
    assert "'ipamctl' is not installed" in done.stderr


def test_upgrade_is_not_here_yet() -> None:
    done = run("calico-ipam", "-upgrade")
    assert done.status == 1 and "nothing was changed" in done.stderr


# --- streams ------------------------------------------------------------------------------------------------


def test_whatever_prints_never_reaches_stdout(netconf: dict[str, Any]) -> None:
    """Public report P25: a library that prints at import, and a debug log."""
    noise = "import atexit, os\natexit.register(lambda: (print('noise'), os.system('echo noise')))\n"
    noise += "import calico_cni.schema\nold = calico_cni.schema.decode\n"
    noise += "calico_cni.schema.decode = lambda *a: (print('noise'), os.system('echo noise'), old(*a))[2]"
    done = run("calico-ipam", environ=attachment("ADD"), stdin={**netconf, "log_level": "debug"}, extra=noise)
    assert done.status == 0
    assert json.loads(done.stdout)["ips"] and "noise" not in done.stdout
    assert done.stderr.count("noise") >= 2


def test_a_crash_is_one_error_object(netconf: dict[str, Any]) -> None:
    crash = "import calico_cni.netconf\ncalico_cni.netconf.load = lambda d: 1 // 0"
    for verb in ("ADD", "DEL", "CHECK", "STATUS"):
        done = run("calico", environ=attachment(verb), stdin=netconf, extra=crash)
        assert done.status == 1
        found = json.loads(done.stdout)
        assert found["code"] == 999 and found["msg"].startswith(f"Calico CNI panicked during {verb}: ZeroDivisionError")
        assert "Traceback" not in done.stdout


def test_secrets_are_nowhere(netconf: dict[str, Any], tmp_path: Path) -> None:
    secret = {**netconf, "policy": {"k8s_auth_token": "SECRET"}, "log_level": "debug", "prevResult": {"x": "SECRET"}}
    secret["log_file_path"] = str(tmp_path / "cni.log")
    for verb in ("ADD", "DEL", "CHECK", "GC", "STATUS"):
        for program in ("calico", "calico-ipam"):
            done = run(program, environ=attachment(verb), stdin=secret)
            assert "SECRET" not in done.stdout + done.stderr
    assert "SECRET" not in (tmp_path / "cni.log").read_text()


def shell(command: str, environ: Mapping[str, str], stdin: Mapping[str, Any]) -> subprocess.CompletedProcess[bytes]:
    """Run the program under a shell that redirects; ``$0`` is the interpreter, ``$1`` the program."""
    return subprocess.run(
        ["sh", "-c", command, sys.executable, "from calico_cni.entry import main; main()"],
        env={"PATH": os.environ["PATH"], **environ},
        input=json.dumps(stdin).encode(),
        capture_output=True,
        cwd=REPOSITORY,
        timeout=60,
    )


def test_closed_streams(netconf: dict[str, Any]) -> None:
    run_it = '"$0" -c "import sys; sys.argv=[\'calico-ipam\']; $1"'
    done = shell(f"{run_it} <&-", attachment("ADD"), netconf)
    assert done.returncode == 1 and json.loads(done.stdout)["code"] == 6
    done = shell(f"{run_it} 2>&-", attachment("ADD"), netconf)
    assert done.returncode == 0 and json.loads(done.stdout)["ips"]
    done = shell(f"{run_it} 2>&1 >/dev/full | cat; exit ${{PIPESTATUS:-0}}", attachment("ADD"), netconf)
    assert b"could not be written" in done.stdout


@pytest.mark.parametrize("sink", [">&-", ">/dev/full"])
def test_an_answer_that_nobody_takes_is_taken_back(netconf: dict[str, Any], sink: str) -> None:
    """Public report P26: the output pipe is closed."""
    run_it = '"$0" -c "import sys; sys.argv=[\'calico-ipam\']; $1"'
    for _ in range(3):
        assert shell(f"{run_it} {sink}", attachment("ADD"), netconf).returncode == 1
    store = SQLiteStore(netconf["sqlite_path"])
    try:
        assert [list(entry.value.taken()) for entry in store.list(Blocks())] == [[]]
    finally:
        store.close()


def test_stdin_is_not_read_before_the_environment_is_right() -> None:
    """Somebody who tries the program on a terminal must not wait for ever."""
    reading, writing = os.pipe()
    try:
        program = PROGRAM.format(argv=["calico"], extra="")
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={"PATH": os.environ["PATH"], "CNI_COMMAND": "ADD"},
            stdin=reading,
            capture_output=True,
            cwd=REPOSITORY,
            timeout=60,
        )
    finally:
        os.close(reading)
        os.close(writing)
    assert json.loads(done.stdout)["code"] == 4


def test_calico_adds_ignore_unknown_and_calico_ipam_does_not() -> None:
    given: Sequence[tuple[str, dict[str, str], str | None]] = [
        ("calico", {}, "IgnoreUnknown=1"),
        ("calico", {"CNI_ARGS": "A=b"}, "IgnoreUnknown=1;A=b"),
        ("calico-ipam", {"CNI_ARGS": "A=b"}, "A=b"),
        ("calico-ipam", {}, None),
    ]
    for program, environ, expected in given:
        assert entry.plugin_environment(program, environ).get("CNI_ARGS") == expected


# --- calico -t ----------------------------------------------------------------------------------------------


def test_connection_test(netconf: dict[str, Any], tmp_path: Path) -> None:
    good = run("calico", "-t", environ={"CNI_COMMAND": "VERSION"}, stdin=netconf)
    assert (good.status, good.stdout) == (0, "")
    missing = {**netconf, "kubernetes": {"kubeconfig": str(tmp_path / "absent")}}
    for stdin, details in (
        (missing, f"error building K8s client config: stat {tmp_path}/absent: no such file or directory"),
        ({**netconf, "name": "a b"}, "invalid characters detected in the given network name. Only letters a-z, "),
        ({}, "invalid characters detected in the given network name. Only letters a-z, "),
        ({**netconf, "datastore_type": "bogus"}, "unknown datastore type: bogus"),
        ({**netconf, "mtu": "x"}, "failed to load netconf: json: cannot unmarshal string"),
    ):
        done = run("calico", "-t", stdin=stdin)
        found = json.loads(done.stdout)
        assert (done.status, found["code"], found["msg"]) == (1, 100, "data store connection failed")
        assert found["details"].startswith(details)
