"""Replays what the operator program showed and released: the tables of ``ipamctl`` are those of ``calicoctl``.

Only ``ipam show`` and ``ipam release --ip`` of etcd cases, on SQLite, whose keys and documents are etcd's. Standard
output and exit code are compared; of standard error, that it holds upstream's sentence.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from calico_ipam.ctl.main import cli
from tests.golden.library_backends import DocumentBench, _sqlite
from tests.shared import golden, recordings

FOLDER = golden("cli")
CASES = [*recordings(FOLDER, "show-*-etcd.json"), *recordings(FOLDER, "release-*-etcd.json")]

Step = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Beaten:
    """A limit of upstream that ours does not have: which steps show it, and what ours does instead."""

    limit: str
    applies: Callable[[Step], bool]
    ours: Callable[[Step, Result], bool]


def _out(text: str) -> Callable[[Step], bool]:
    return lambda step: text in step["stdout"]


def _ip(step: Step) -> str:
    argv = step["argv"]
    for position, word in enumerate(argv):
        if word.startswith("--ip="):
            return str(word[5:])
        if word == "--ip" and position + 1 < len(argv):
            return str(argv[position + 1])
    return ""


def cells(text: str) -> list[list[str]]:
    """Return the cells of a table, header first."""
    return [[cell.strip() for cell in line.split("|")] for line in text.splitlines() if line.startswith("|")]


def _same_but_big_numbers(step: Step, result: Result) -> bool:
    small = [[row for row in cells(text) if "/48" not in row[2]] for text in (step["stdout"], result.stdout)]
    return small[0] == small[1] and "1.2089e+24 (100%)" in result.stdout


BEATEN = (
    Beaten("cli 18.3: counts of an IPv6 pool saturate and wrap", _out("9.2234e+18"), _same_but_big_numbers),
    Beaten(
        "cli 18.4: IPv6 blocks in no pool are not shown",
        lambda step: "IPv6 block in no pool" in step["about"],
        lambda step, result: (
            [row for row in cells(result.stdout) if "/122" not in row[2]] == cells(step["stdout"])
            and "/122" in result.stdout
        ),
    ),
    Beaten(
        "cli 1.4: a bad address is told on standard output",
        _out("invalid IP address specified"),
        lambda step, result: f"invalid IP address specified: {_ip(step)}\n" in result.stderr and result.stdout == "",
    ),
    Beaten(
        "cli 17.1: an address in cooldown is an error",
        lambda step: step["argv"][1] == "show" and "is in cooldown" in step["stderr"],
        lambda step, result: result.exit_code == 0 and f"IP {_ip(step)} is in cooldown (released " in result.stdout,
    ),
    Beaten(
        "cli 3.4: the persistence row prints a pointer",
        lambda step: "{{addr}}" in step["stdout"] or "(nil)" in step["stdout"],
        lambda step, result: any(
            f"| KubeVirtVMAddressPersistence | {value} " in result.stdout
            for value in ("Enabled", "Disabled", "<unset>")
        ),
    ),
    Beaten(
        "cli 1.2: the parser's words",
        lambda step: "flag needs an argument" in step["stderr"],
        lambda step, result: result.exit_code == 1 and "Option '--ip' requires an argument" in result.stderr,
    ),
    Beaten(
        "cli 17.1, 5.1: a holder in a disabled pool, in no pool, or in a block of another size is not found",
        lambda step: (
            step.get("held", False) and ("is not assigned" in step["stdout"] or "is not assigned" in step["stderr"])
        ),
        lambda step, result: (
            result.exit_code == 0
            and (f"IP {_ip(step)} is in use" in result.stdout or "Successfully released" in result.stdout)
        ),
    ),
)


def steps_of(case: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for step in case.get("steps") or [case]:
        yield {"about": case["about"], **step}


def replayed(step: Step) -> bool:
    """Is this step one of the commands that this version has?"""
    argv = step["argv"]
    return argv[:2] == ["ipam", "show"] or (argv[:2] == ["ipam", "release"] and "--from-report" not in argv)


def run(bench: DocumentBench, argv: list[str]) -> Result:
    return CliRunner().invoke(cli, ["--datastore", bench.store.name, *argv])


def is_held(bench: DocumentBench, text: str) -> bool:
    """Tell from the stored documents alone whether somebody holds an address."""
    try:
        address = ip_address(text)
    except ValueError:
        return False
    for path, document in bench.state().items():
        if "/ipam/v2/assignment/" in path and isinstance(document, dict):
            network = ip_network(document["cidr"])
            if address in network:
                index = document["allocations"][int(address) - int(network.network_address)]
                return index is not None and not document["attributes"][index].get("releasedAt")
    return False


@pytest.mark.parametrize("path", CASES)
def test_replay(path: Path, tmp_path: Path) -> None:
    case = json.loads(path.read_text())
    bench = DocumentBench("sqlite", _sqlite(tmp_path))
    try:
        for document in case["setup"]:
            if "key" in document:
                bench.write(document)
        for position, step in enumerate(steps_of(case)):
            for document in step.get("before") or ():
                bench.write(document)
            before = bench.texts()
            done = replayed(step) and check(bench, step, f"{path.stem} step {position}: {' '.join(step['argv'])}")
            if not done:
                go_on_as_recorded(bench, before, step)
    finally:
        bench.close()


def go_on_as_recorded(bench: DocumentBench, before: Mapping[str, str], step: Step) -> None:
    """Leave the store as upstream left it, after a step that ours does otherwise or not at all."""
    for key in bench.texts().keys() - before.keys():
        bench.delete(key)
    for key, text in before.items():
        bench.put_text(key, text)
    for key, value in (step.get("datastore_changed") or {}).items():
        if key.startswith("/calico/ipam/"):
            bench.write({"key": key} if value is None else {"key": key, "value": value})


def check(bench: DocumentBench, step: dict[str, Any], where: str) -> bool:
    """Compare one step; return False when ours beats upstream in it, so that the stores may differ."""
    step["held"] = is_held(bench, _ip(step))
    result = run(bench, step["argv"])
    assert result.exit_code in (0, 1), f"{where}: {result.stderr}"
    for beaten in BEATEN:
        if beaten.applies(step):
            assert not same(step, result), f"{where}: the exception {beaten.limit!r} is not needed any more"
            assert beaten.ours(step, result), f"{where}: {beaten.limit}\n{result.stdout}{result.stderr}"
            return False
    assert same(step, result), f"{where}\n{result.stdout}{result.stderr}"
    return True


def same(step: Step, result: Result) -> bool:
    """Tell whether ours does what upstream did."""
    told = step["stderr"].strip() in result.stderr
    return told and (result.stdout, result.exit_code) == (step["stdout"], step["exit_code"])
