"""The names that ipamctl answers to, each as an installed program (ruling 20): what pip installs, and links."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from calico_ipam.ctl.main import NAMES, cli
from tests.cluster import memory_folder
from tests.ctl import Ctl

REPOSITORY = Path(__file__).resolve().parent.parent.parent
PROGRAM = Path(sys.executable).parent / "ipamctl"


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with a link to the installed program under each name."""
    assert PROGRAM.exists(), "ipamctl is not installed beside this interpreter"
    for name in (*NAMES, "other"):
        (tmp_path / name).symlink_to(PROGRAM)
    return tmp_path


@pytest.fixture(scope="module")
def ctl() -> Iterator[Ctl]:
    """A store with a pool; no test of this file changes it."""
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        made = Ctl(Path(folder) / "ipam.db")
        made.ok("init", "--node", "node-1", "--ipv4-pool", "10.0.0.0/24")
        yield made


def run(program: Path | str, *argv: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(folder)}
    return subprocess.run([program, *argv], capture_output=True, text=True, check=False, env=environ)


def test_what_is_installed_never_hides_upstreams_programs() -> None:
    scripts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["scripts"]
    ours = {name for name, where in scripts.items() if where == "calico_ipam.ctl.main:main"}
    assert ours == {"ipamctl", "kubectl-calico_ipam"}


@pytest.mark.parametrize("name", NAMES)
def test_help_and_version_name_the_program(programs: Path, name: str) -> None:
    done = run(programs / name, "ipam", "show", "--help", folder=programs)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Usage: {name} ipam show [OPTIONS]")
    assert run(name, "--version", folder=programs).stdout.startswith(f"{name} 0.")


@pytest.mark.parametrize("name", NAMES[1:])
def test_upstreams_names_ask_for_upstreams_words(programs: Path, name: str) -> None:
    unknown = run(name, "bogus", folder=programs)
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert unknown.stderr == f'unknown command "bogus" for "{name}"\n'
    helped = run(name, "ipam", "bogus", folder=programs)
    assert (helped.returncode, helped.stderr) == (0, "")
    assert helped.stdout.startswith("Usage: ")
    assert run(name, "version", "--client", folder=programs).stdout.splitlines()[0] == "Client Version:    v3.32.0"


@pytest.mark.parametrize("name", ["ipamctl", "other"])
def test_other_names_are_ipamctl(programs: Path, name: str) -> None:
    unknown = run(name, "ipam", "shwo", folder=programs)
    assert unknown.returncode == 1
    assert "No such command 'shwo'. Did you mean 'show'" in unknown.stderr
    assert "calico-ipam-" in run(name, "version", "--client", folder=programs).stdout


@pytest.mark.parametrize(("words", "name"), [("calico-ipam", "kubectl-calico_ipam"), ("calico", "kubectl-calico")])
def test_a_call_through_kubectl(programs: Path, words: str, name: str) -> None:
    """kubectl runs ``kubectl-calico_ipam``, by its path, for ``kubectl calico-ipam``; where there is none, we do so."""
    kubectl = shutil.which("kubectl")
    call = [kubectl, words] if kubectl else [str(programs / name)]
    done = run(*call, "ipam", "bogus", folder=programs)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Usage: {name} ipam")


# --- what people type who know another tool -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "error", "hint"),
    [
        ("check", "Did you mean 'ipam check'?", ""),
        ("gc", "Did you mean 'ipam gc'?", ""),
        ("explain x", "Did you mean 'ipam explain'?", ""),
        ("lock", "Did you mean 'datastore lock'?", ""),
        ("pool add 10.0.0.0/24", "Did you mean 'create'?", ""),
        ("pool rm x", "Did you mean 'delete'?", ""),
        ("ipam shwo", "Did you mean 'show'?", ""),
        ("describe ippool x", "No such command 'describe'.", "ipamctl ipam explain NAME"),
        ("drain node-1", "No such command 'drain'.", "ipamctl delete node NAME"),
        ("node status", "No such command 'node'.", "ipamctl doctor"),
        ("xyzzy", "No such command 'xyzzy'.", "ipamctl --help"),
        ("create ippool --cidr 10.0.0.0/24", "No such option '--cidr'.", "ipamctl pool create CIDR"),
        ("ipam check --ip 10.0.0.1", "No such option '--ip'.", "ipamctl ipam check --help"),
        ("get pods", "resource type 'pods' is not supported", "ipamctl ipam explain NAMESPACE/POD"),
        ("get ip 10.0.0.1", "resource type 'ip' is not supported", "ipamctl ipam explain ADDRESS"),
        ("get ippol", "resource type 'ippol' is not supported", "Did you mean ippool"),
        ("get widgets", "resource type 'widgets' is not supported", "Known are ippool"),
        ("get ippool/x", "resource type 'ippool/x' is not supported", "Write two words: ippool x."),
        ("ipam release 10.0.0.1", "'10.0.0.1' is no option", "ipamctl ipam release --ip 10.0.0.1"),
        ("ipam show shop/web", "'shop/web' is not one address", "ipamctl ipam explain shop/web"),
    ],
)
def test_a_wrong_word_leads_on(ctl: Ctl, command: str, error: str, hint: str) -> None:
    code, screen = ctl.on_terminal(*command.split(), columns=200)
    assert code == 1
    said = " ".join(line.strip() for line in screen.splitlines())
    assert error in said.partition("hint:")[0]
    assert hint in said.partition("hint:")[2]


def test_an_address_needs_no_option(ctl: Ctl) -> None:
    assert ctl.on_terminal("ipam", "show", "10.0.0.1") == (0, "10.0.0.1 is not assigned\n")
    assert "GROUPING" in ctl.ok("ipam", "show", "10.0.0.1"), "calicoctl takes no notice of it"


def test_every_guess_names_a_command_that_is_there() -> None:
    from calico_ipam.ctl import guesses

    for text in (*guesses.COMMANDS.values(), *guesses.KINDS.values(), *guesses.OPTIONS.values()):
        for words in re.findall(r"'ipamctl ([a-z -]+)", text):
            group = cli
            for word in words.split():
                if word.startswith("-") or not isinstance(group, click.Group):
                    break
                found = group.get_command(click.Context(group), word)
                assert found is not None, text
                group = found  # type: ignore[assignment]  # a command ends the search
