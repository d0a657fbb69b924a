"""What a step shows, and what ours may do instead: the predicates of the table of exceptions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_network
from typing import Any

import click

from calico_ipam.ctl.main import cli
from calico_ipam.model.resource import mapping
from tests.golden.cli_replay import Result, Step, differences, wanted_address


def cells(text: str) -> list[list[str]]:
    """Return the cells of a table, header first."""
    return [[cell.strip() for cell in line.split("|")] for line in text.splitlines() if line.startswith("|")]


def begins(step: Step, *words: str) -> bool:
    return step.argv[: len(words)] == list(words)


def our_voice(step: Step) -> bool:
    return step.voice == "ipamctl"


def same_but_big_numbers(step: Step, result: Result) -> bool:
    def small(text: str) -> list[list[str]]:
        return [row for row in cells(text) if not re.search(r":.*/[1-6]?\d$", row[2])]

    exact = all("-" not in row[6] and "9.2234e+18" not in row[6] for row in cells(result.stdout)[1:])
    return small(step.stdout) == small(result.stdout) and exact and result.exit_code == 0


def without_v6_orphans(step: Step, result: Result) -> bool:
    recorded = cells(step.stdout)
    mine = cells(result.stdout)
    return [row for row in mine if row in recorded] == recorded and all(
        ":" in row[2] for row in mine if row not in recorded
    )


def crash(step: Step) -> bool:
    return bool(step.recorded["exit_code"] == 2)


def polite(_step: Step, result: Result) -> bool:
    return result.exit_code in (0, 1) and "Traceback" not in result.stderr and not result.changed


def only_files_differ(step: Step, result: Result) -> bool:
    return all(each.startswith("file ") for each in differences(step, result))


def windows_in_use(step: Step, result: Result) -> bool:
    reports = [each for each in result.files.values() if isinstance(each, dict)]
    reserved = [
        entry
        for report in reports
        for group in report["allocations"].values()
        for entry in group
        if "Reserved for Windows" in (entry["owners"] or ())
    ]
    return only_files_differ(step, result) and bool(reserved) and all(entry["inUse"] for entry in reserved)


def has_report(step: Step) -> bool:
    return any(isinstance(each, dict) for each in (step.recorded.get("files_out") or {}).values())


def hostnames_do_not_count(step: Step, result: Result) -> bool:
    """Of all lines only the numbers that counted an empty address differ."""
    lines = [text.splitlines() for text in (step.stdout, result.stdout)]
    numbers = [re.sub(r"\d+", "N", "\n".join(each)) for each in lines]
    return result.exit_code == 0 and (
        numbers[0] == numbers[1] or "invalid IP" in step.stdout or len(lines[0]) > len(lines[1])
    )


def released_more(step: Step, result: Result) -> bool:
    """Stale entries are left out with a reason, and the others of their block are released."""
    changed = set(result.changed) >= set(step.recorded.get("datastore_changed") or {})
    code = result.exit_code in ((0, 4) if our_voice(step) else (0,))
    return changed and code and ("update conflict" in result.stdout or "already been cleaned up" in result.stdout)


def kept_unattributed(step: Step, result: Result) -> bool:
    kept = [key for key in step.recorded["datastore_changed"] if key not in result.changed]
    said = "Released" in result.stdout or "didn't contain any leaked IPs" in result.stdout
    return result.exit_code == 0 and bool(kept) and said


def nothing_changed(_step: Step, result: Result) -> bool:
    return result.exit_code == 1 and not result.changed and bool(result.stderr)


def freed(step: Step, changed: Mapping[str, Any]) -> set[str]:
    """Return the addresses that a change of blocks makes free."""
    found = set()
    for key, document in changed.items():
        before, after = (mapping(each or {}).get("spec", each or {}) for each in (step.before.get(key), document))
        if "allocations" in before:
            first = ip_network(before["cidr"]).network_address
            left = after.get("allocations") or [None] * len(before["allocations"])
            pairs = zip(before["allocations"], left, strict=True)
            found |= {str(first + i) for i, (old, new) in enumerate(pairs) if old is not None and new is None}
    return found


def used_since(step: Step) -> set[str]:
    """Return the addresses that upstream frees although an endpoint has them."""
    users = [str(value) for key, value in step.before.items() if "/workloadendpoints/" in key or key.startswith("Pod/")]
    gone = freed(step, step.recorded.get("datastore_changed") or {})
    return {each for each in gone if any(re.search(rf"'{re.escape(each)}(/\d+)?'", user) for user in users)}


def unknown_command(step: Step) -> str:
    """Return what stands where a command of a group should; empty when it is one, or help is asked for."""
    words = [word for word in step.argv if not word.startswith("-")]
    if len(words) != len(step.argv):
        return ""
    known: click.Command | None = cli
    for word in words:
        if not isinstance(known, click.Group):
            return ""
        known = known.get_command(click.Context(known), word)
        if known is None:
            return "" if word == "help" else word
    return ""


def outside_limits(step: Step) -> bool:
    """A setting is given that is outside the limits of the schema."""
    limits = {"--max-blocks-per-host": (0, 1000000), "--ip-cooldown-seconds": (-(2**63), 1200)}
    words = [part for word in step.argv for part in word.split("=", 1)]
    given = {name: words[words.index(name) + 1] for name in limits if name in words[:-1]}
    return any(
        bool(re.fullmatch(r"[+-]?\d+", text)) and not limits[name][0] <= int(text) <= limits[name][1]
        for name, text in given.items()
    )


def with_holder(step: Step, result: Result) -> bool:
    """The holder is shown first; one that lives keeps its address."""
    if result.exit_code == 1 and " is in use by " in result.stderr:
        return not result.changed
    return (result.stdout, result.exit_code) == (step.stdout, 0) and result.stderr.startswith(
        f"IP {wanted_address(step.argv)} is in use\n"
    )


def with_owner(step: Step, result: Result) -> bool:
    notes = [
        str(value) for key, value in result.changed.items() if "ClusterInformation" in str(value) or "default" in key
    ]
    return result.stdout == step.stdout and (
        "unlock" in step.argv or any("calico-ipam/lock-owner" in text for text in notes)
    )


def but_for_generation(step: Step, result: Result) -> bool:
    plain = re.sub(r' *"?generation"?: \d+,?\n', "", result.stdout)
    return differences(step, replace(result, stdout=plain)) == []
