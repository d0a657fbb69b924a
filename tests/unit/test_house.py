"""The law of the house that no linter knows: who touches the process, how long a thing may be, what needs a reason."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.shared import REPOSITORY

PACKAGES = ("calico_ipam", "calico_cni", "gc/calico_gc")
MOST_LINES = 420
MOST_LINES_OF_A_FUNCTION = 65

#: What belongs to the process as a whole, and who alone may touch it.
PROCESS = {
    "sys": {"argv", "stdin", "stdout", "exit"},
    "os": {"environ", "environb", "getenv", "putenv", "_exit"},
}
BUILTINS = {"print", "input", "exit", "quit", "breakpoint"}


def product() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (REPOSITORY / package).rglob("*.py"))


def tracked() -> list[Path]:
    """Every file of the repository, those about to be added included."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    return [path for name in listing.stdout.splitlines() if (path := REPOSITORY / name).is_file()]


def name_of(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def may_touch(path: Path, what: str) -> bool:
    name = name_of(path)
    at_the_edge = name == "calico_cni/entry.py" or name.startswith("calico_ipam/ctl/") or path.name == "main.py"
    # The settings' default (rulings 17), and the choice that protobuf takes from nowhere else (rulings 31).
    environment = {"calico_ipam/datastore/config.py", "calico_ipam/datastore/etcd/library.py"}
    return at_the_edge or (name in environment and what == "os.environ")


def process_touches(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of each use of the process: prints, exits, environment, arguments, standard streams."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=module), attr=attr) if attr in PROCESS.get(module, ()):
                yield node.lineno, f"{module}.{attr}"
            case ast.ImportFrom(module=str(module), names=names):
                for alias in names:
                    if alias.name in PROCESS.get(module, ()):
                        yield node.lineno, f"{module}.{alias.name}"
            case ast.Call(func=ast.Name(id=name)) if name in BUILTINS:
                yield node.lineno, name
            case ast.Raise(exc=ast.Name(id="SystemExit") | ast.Call(func=ast.Name(id="SystemExit"))):
                yield node.lineno, "SystemExit"
            case _:
                pass


@pytest.mark.parametrize("path", product(), ids=name_of)
def test_only_the_edge_touches_the_process(path: Path) -> None:
    found = [
        f"{name_of(path)}:{line} uses {what}"
        for line, what in process_touches(ast.parse(path.read_text()))
        if not may_touch(path, what)
    ]
    assert not found, "hand the value in instead: " + "; ".join(found)


def test_touches_are_seen() -> None:
    """The rule above can fail."""
    source = "import os, sys\nfrom os import environ\nprint(1)\nsys.exit(os.environ['A'])\nraise SystemExit(2)\n"
    assert [what for _, what in sorted(process_touches(ast.parse(source)))] == [
        "os.environ",
        "print",
        "os.environ",
        "sys.exit",
        "SystemExit",
    ]


@pytest.mark.parametrize("path", product(), ids=name_of)
def test_a_file_and_a_function_are_one_thing(path: Path) -> None:
    text = path.read_text()
    long = [
        f"{node.name} has {length} lines"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > MOST_LINES_OF_A_FUNCTION
    ]
    if (lines := text.count("\n")) > MOST_LINES:
        long.insert(0, f"the file has {lines} lines")
    assert not long, f"{name_of(path)}: find the seam: " + "; ".join(long)


# --- exemptions ---------------------------------------------------------------------------------------------

EXEMPTION = re.compile(r"#\s*(noqa|type:\s*ignore|pragma:\s*no cover|mypy:\s*\w+|ruff:\s*noqa|fmt:\s*(off|skip))")
#: The codes exempted, then a separator and at least a few words of reason.
REASONED = re.compile(
    r"#\s*(noqa(:\s*[A-Z0-9, ]+)?|type:\s*ignore(\[[\w, -]+\])?|pragma:\s*no cover"
    r"|mypy:\s*[\w-]+|ruff:\s*noqa\S*|fmt:\s*\w+)"
    r"\s*(#|-{1,2}|—)\s*\w+\W+\w+"
)


def test_every_exemption_in_code_has_its_reason_beside_it() -> None:
    bare = [
        f"{name_of(path)}:{number}"
        for path in tracked()
        if path.suffix == ".py" and path != Path(__file__)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if EXEMPTION.search(line) and not REASONED.search(line)
    ]
    assert not bare, f"say why beside it ('# noqa: X1  # why'): {bare}"


#: Where pyproject.toml exempts something: a list, a list on one line, a single setting, a table.
SETTINGS = (
    r"(?ms)^(?:ignore|ignore_imports) = \[\n(.*?)^\]",
    r"(?m)^((?:ignore|ignore_imports) = \[.+)$",
    r"(?m)^(ignore_missing_imports.*)$",
    r"(?ms)^\[tool\.ruff\.lint\.per-file-ignores\]\n(.*?)(?=^\[)",
)


def test_every_exemption_in_the_settings_has_its_reason_beside_it() -> None:
    settings = (REPOSITORY / "pyproject.toml").read_text()
    found = [re.findall(pattern, settings) for pattern in SETTINGS]
    assert all(found), "the settings look different now: teach SETTINGS"
    lines = [line for parts in found for part in parts for line in part.splitlines() if line.strip()]
    bare = [line for line in lines if not line.lstrip().startswith("#") and "  # " not in line]
    assert not bare, "say why beside it"


# --- the repository speaks of the product only --------------------------------------------------------------

PRIVATE_FOLDERS = ("work", "farm", "root", "home")
MACHINE_PATH = re.compile(rf"(?<![\w.{{}}$)/-])/(?:{'|'.join(PRIVATE_FOLDERS)})(?:/|(?![\w-]))")
LEFT_OPEN = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b")


def texts() -> Iterator[tuple[str, str]]:
    for path in tracked():
        try:
            yield name_of(path), path.read_text()
        except UnicodeDecodeError:
            continue


def test_no_path_of_one_machine_is_named() -> None:
    found = [f"{name}: {match[0]}" for name, text in texts() if (match := MACHINE_PATH.search(text))]
    assert not found


def test_nothing_is_left_open() -> None:
    found = [f"{name}: {match[0]}" for name, text in texts() if (match := LEFT_OPEN.search(text))]
    assert not found, "finish it, or write an issue"


def test_file_names_of_tests_are_unique() -> None:
    """A reader is sent to a test by its file name alone."""
    names = Counter(path.name for path in (REPOSITORY / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


#: What measures speed, and a limit in seconds beside a clock. tests/clock.py has the limits that a busy machine keeps.
#: A clock that is only named, in quotes, is one that the test replaces by its own.
TIMED = re.compile(
    r"\b(perf_counter|process_time|thread_time|getrusage)\b(?!\")"
    r"|(monotonic\(\) - \w+|seconds_since\(\w+\)) <=? [\d.]+$"
)


def test_no_test_is_a_benchmark() -> None:
    """Figures are measured by tests/scale: a machine that is busy with something else fails no test."""
    tests = (path for path in tracked() if name_of(path).startswith("tests/") and path.suffix == ".py")
    timed = [
        f"{name_of(path)}:{number}: {line.strip()}"
        for path in tests
        if not name_of(path).startswith("tests/scale/") and path.name != "test_house.py"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if TIMED.search(line)
    ]
    assert timed == []
