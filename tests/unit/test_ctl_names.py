"""The names that ipamctl answers to, each as an installed program (ruling 20): what pip installs, and links."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from calico_ipam.ctl.main import NAMES

REPOSITORY = Path(__file__).resolve().parent.parent.parent
PROGRAM = Path(sys.executable).parent / "ipamctl"


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with a link to the installed program under each name."""
    assert PROGRAM.exists(), "ipamctl is not installed beside this interpreter"
    for name in (*NAMES, "other"):
        (tmp_path / name).symlink_to(PROGRAM)
    return tmp_path


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
