"""Where ours differs from calicoctl on purpose (cli §17, §18): the limit, which steps show it, what ours does instead.

Keyed by what a step shows, never by its file, so that other recordings replay too. An entry that a step does not need
makes the replay fail.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.golden.cli_replay import Result, Step, differences, wanted_address


@dataclass(frozen=True, slots=True)
class Beaten:
    """A limit of upstream that ours does not have. ``restores``: the store is put as upstream leaves it."""

    limit: str
    applies: Callable[[Step], bool]
    ours: Callable[[Step, Result], bool]
    restores: bool = True
    sometimes: bool = False  #: what a step shows does not tell whether ours differs; elsewhere an entry must be needed


#: commands that are not built yet
PENDING: frozenset[str] = frozenset()


def cells(text: str) -> list[list[str]]:
    """Return the cells of a table, header first."""
    return [[cell.strip() for cell in line.split("|")] for line in text.splitlines() if line.startswith("|")]


def _is(step: Step, *words: str) -> bool:
    return step.argv[: len(words)] == list(words)


def _ours(step: Step) -> bool:
    return step.voice == "ipamctl"


def _same_but_big_numbers(step: Step, result: Result) -> bool:
    def small(text: str) -> list[list[str]]:
        return [row for row in cells(text) if not re.search(r":.*/[1-6]?\d$", row[2])]

    exact = all("-" not in row[6] and "9.2234e+18" not in row[6] for row in cells(result.stdout)[1:])
    return small(step.stdout) == small(result.stdout) and exact and result.exit_code == 0


def _without_v6_orphans(step: Step, result: Result) -> bool:
    recorded = cells(step.stdout)
    mine = cells(result.stdout)
    return [row for row in mine if row in recorded] == recorded and all(
        ":" in row[2] for row in mine if row not in recorded
    )


def _crash(step: Step) -> bool:
    return step.recorded["exit_code"] == 2


def _polite(_step: Step, result: Result) -> bool:
    return result.exit_code in (0, 1) and "Traceback" not in result.stderr and not result.changed


def _only_files_differ(step: Step, result: Result) -> bool:
    return all(each.startswith("file ") for each in differences(step, result))


def _windows_in_use(step: Step, result: Result) -> bool:
    reports = [each for each in result.files.values() if isinstance(each, dict)]
    reserved = [
        entry
        for report in reports
        for group in report["allocations"].values()
        for entry in group
        if "Reserved for Windows" in (entry["owners"] or ())
    ]
    return _only_files_differ(step, result) and bool(reserved) and all(entry["inUse"] for entry in reserved)


def _has_report(step: Step) -> bool:
    return any(isinstance(each, dict) for each in (step.recorded.get("files_out") or {}).values())


def _hostnames_do_not_count(step: Step, result: Result) -> bool:
    """Of all lines only the numbers that counted an empty address differ."""
    lines = [text.splitlines() for text in (step.stdout, result.stdout)]
    numbers = [re.sub(r"\d+", "N", "\n".join(each)) for each in lines]
    return result.exit_code == 0 and (
        numbers[0] == numbers[1] or "invalid IP" in step.stdout or len(lines[0]) > len(lines[1])
    )


SHOW = (
    Beaten(
        "cli 18.3: counts of an IPv6 pool saturate and wrap", lambda s: "9.2234e+18" in s.stdout, _same_but_big_numbers
    ),
    Beaten(
        "cli 18.4: IPv6 blocks in no pool are not shown",
        lambda s: s.argv[:2] == ["ipam", "show"] and "IPv6 block in no pool" in s.case["about"],
        _without_v6_orphans,
    ),
    Beaten(
        "cli 17.1: an address in cooldown is an error",
        lambda s: _ours(s) and s.argv[:2] == ["ipam", "show"] and "is in cooldown" in s.stderr,
        lambda s, r: r.exit_code == 0 and f"IP {wanted_address(s.argv)} is in cooldown (released " in r.stdout,
    ),
    Beaten(
        "cli 3.4: the persistence row prints a pointer",
        lambda s: "{{addr}}" in s.stdout or "(nil)" in s.stdout,
        lambda _s, r: any(
            f"| KubeVirtVMAddressPersistence | {value} " in r.stdout for value in ("Enabled", "Disabled", "<unset>")
        ),
    ),
    Beaten(
        "cli 17.1, 5.1: a holder in a disabled pool, in no pool, or in a block of another size is not found",
        lambda s: (
            s.held
            and (_ours(s) or s.argv[1] == "release")
            and ("is not assigned" in s.stdout or "is not assigned" in s.stderr)
        ),
        lambda s, r: (
            r.exit_code == 0
            and (f"IP {wanted_address(s.argv)} is in use" in r.stdout or "Successfully released" in r.stdout)
        ),
    ),
)

CHECK = (
    Beaten("cli 18.10: a crash", lambda s: _crash(s) and s.argv[:2] != ["ipam", "check"], _polite),
    Beaten(
        "cli 18.10: a crash of the check",
        _crash,
        lambda _s, r: (
            r.exit_code == 0
            and bool(re.search(r"is invalid: allocation \d+ indexes a nonexistent attribute -1", r.stdout))
        ),
    ),
    Beaten(
        "cli 18.11: a report that cannot be written is not told",
        lambda s: s.argv[:2] == ["ipam", "check"] and None in (s.recorded.get("files_out") or {}).values(),
        lambda s, r: r.stdout == s.stdout and r.exit_code == 1 and "No such file or directory" in r.stderr,
    ),
    Beaten(
        "cli 18.1: IPv6 tunnel addresses are reported as unused",
        lambda s: _has_report(s) and "ipv6vxlantunneladdr" in str(s.case["setup"]).lower(),
        lambda _s, r: "Found 2 node tunnel IPs." in r.stdout and "vxlan-v6" not in str(r.changed),
    ),
    Beaten(
        "cli 18.2: addresses that Windows keeps are reported as unused",
        lambda s: "windows-reserved-ipam-handle" in str(s.case["setup"]) and _has_report(s),
        _windows_in_use,
    ),
    Beaten(
        "cli 18.7: a Service that has only a host name counts as an address",
        lambda s: (
            _is(s, "ipam", "check") and "'hostname'" in str(s.case["setup"]) and "service load balancer(s)" in s.stdout
        ),
        _hostnames_do_not_count,
        sometimes=True,
    ),
    Beaten(
        "cli 18.6: without Kubernetes nothing is checked",
        lambda s: _ours(s) and "KUBECONFIG environment variable" in s.stderr,
        lambda _s, r: r.exit_code == 0 and "skipping service check" in r.stdout,
    ),
    Beaten(
        "cli 1.2: calicoctl answers an unknown command with help and success",
        lambda s: _ours(s) and s.argv == ["ipam", "bogus"],
        lambda _s, r: r.exit_code == 1 and "No such command 'bogus'" in r.stderr,
    ),
)


def _released_more(step: Step, result: Result) -> bool:
    """Stale entries are left out with a reason, and the others of their block are released."""
    changed = set(result.changed) >= set(step.recorded.get("datastore_changed") or {})
    code = result.exit_code in ((0, 4) if _ours(step) else (0,))
    return changed and code and ("update conflict" in result.stdout or "already been cleaned up" in result.stdout)


def _kept_unattributed(step: Step, result: Result) -> bool:
    kept = [key for key in step.recorded["datastore_changed"] if key not in result.changed]
    said = "Released" in result.stdout or "didn't contain any leaked IPs" in result.stdout
    return result.exit_code == 0 and bool(kept) and said


def _nothing_changed(_step: Step, result: Result) -> bool:
    return result.exit_code == 1 and not result.changed and bool(result.stderr)


def _with_holder(step: Step, result: Result) -> bool:
    return (result.stdout, result.exit_code) == (step.stdout, 0) and result.stderr.startswith(
        f"IP {wanted_address(step.argv)} is in use\n"
    )


def _with_owner(step: Step, result: Result) -> bool:
    notes = [
        str(value) for key, value in result.changed.items() if "ClusterInformation" in str(value) or "default" in key
    ]
    return result.stdout == step.stdout and (
        "unlock" in step.argv or any("calico-ipam/lock-owner" in text for text in notes)
    )


RELEASE = (
    Beaten(
        "cli 5.1: a block of another size than its pool's is not found by a report",
        lambda s: (
            _is(s, "ipam", "release", "--from-report")
            and "already been cleaned up" in s.stdout
            and not s.recorded.get("datastore_changed")
            and "Released 0 IPs" in s.stdout
        ),
        lambda _s, r: r.exit_code == 0 and bool(r.changed),
        sometimes=True,
    ),
    Beaten(
        "cli 18.14: one stale address keeps its whole block",
        lambda s: _is(s, "ipam", "release") and "An error occurred while releasing some IPs" in s.stdout,
        _released_more,
        sometimes=True,
    ),
    Beaten(
        "cli 18.1, 18.2: addresses of Windows and IPv6 tunnels are released",
        lambda s: (
            _is(s, "ipam", "release")
            and "--from-report" in s.argv
            and "windows-reserved-ipam-handle" in str(s.case["setup"])
            and bool(s.recorded.get("datastore_changed"))
        ),
        _kept_unattributed,
    ),
    Beaten(
        "ruling 9: the holder is shown",
        lambda s: _ours(s) and _is(s, "ipam", "release") and s.stdout.startswith("Successfully released"),
        _with_holder,
        restores=False,
    ),
    Beaten(
        "cli 17.2: a report of another release is refused",
        lambda s: _ours(s) and "was produced using a different version" in s.stderr + s.stdout,
        lambda s, r: r.exit_code == 0 and "Released" in r.stdout,
    ),
)

SETTINGS = (
    Beaten(
        "cli 18.16: settings outside their limits are stored",
        lambda s: (
            _is(s, "ipam", "configure")
            and any(word in ("--max-blocks-per-host=-5", "--ip-cooldown-seconds=1201") for word in s.argv)
            and s.recorded["exit_code"] == 0
        ),
        lambda _s, r: r.exit_code == 1 and "must lie between 0 and" in r.stderr and not r.changed,
    ),
    Beaten(
        "cli 18.16: each datastore refuses settings in words of its own",
        lambda s: _is(s, "ipam", "configure") and 'IPAMConfig.crd.projectcalico.org "default" is invalid' in s.stderr,
        lambda _s, r: r.exit_code == 1 and "must lie between 0 and" in r.stderr and not r.changed,
    ),
    Beaten(
        "cli 1.4: a server that cannot be reached is told in words of the language's library",
        lambda s: (
            "dial tcp" in s.stderr or "stat {{cwd}}/nope.yaml" in s.stderr + s.stdout or 'context "zzz"' in s.stdout
        ),
        lambda s, r: r.exit_code == 1 and bool(r.stderr + r.stdout) and "Traceback" not in r.stderr,
    ),
    Beaten(
        "datastore 10: what upstream adds to a Kubernetes node while it reads it",
        lambda s: "projectcalico.org/kube-labels" in s.stdout,
        lambda _s, r: r.exit_code == 0 and "ipv4IPIPTunnelAddr: 10.65.79.0" in r.stdout,
    ),
    Beaten(
        "datastore 9: the pods of the recording had no service account",
        lambda s: s.case["backend"] == "kubernetes" and "kns.shop" in s.stdout,
        lambda _s, r: r.exit_code == 0 and "ksa.shop.default" in r.stdout,
        sometimes=True,
    ),
    Beaten(
        "cli 18.5: a split that cannot be done disables or deletes the pool",
        lambda s: (
            _is(s, "ipam", "split")
            and bool(s.recorded.get("datastore_changed"))
            and ("split into 0" in s.stdout or s.recorded["exit_code"] == 1)
        ),
        _nothing_changed,
    ),
    Beaten(
        "cli 18.15: a lock has no owner",
        lambda s: (
            _ours(s)
            and _is(s, "datastore", "migrate")
            and "lock" in s.argv[2]
            and bool(s.recorded.get("datastore_changed"))
        ),
        _with_owner,
        sometimes=True,
    ),
    Beaten(
        "cli 18.15: a second lock has an owner too",
        lambda s: _ours(s) and s.argv == ["datastore", "migrate", "lock"] and s.stdout == "Datastore locked.\n",
        _with_owner,
        sometimes=True,
    ),
    Beaten(
        "datastore 14.14: an empty setting is an error",
        lambda s: "converting '' to type bool" in s.stderr,
        lambda _s, r: r.exit_code == 0,
    ),
    Beaten(
        "cli 1.3: a bad setting is told in words of the parser's inside",
        lambda s: "envconfig.Process" in s.stderr,
        lambda _s, r: r.exit_code == 1 and "has the value 'maybe': not true or false" in r.stderr,
    ),
    Beaten(
        "cli 1.4: etcd that does not answer is waited for without end",
        lambda s: s.recorded["exit_code"] == "timeout",
        lambda _s, r: r.exit_code == 1 and "127.0.0.1:1" in r.stderr + r.stdout,
    ),
)


def _but_for_generation(step: Step, result: Result) -> bool:
    plain = re.sub(r' *"?generation"?: \d+,?\n', "", result.stdout)
    return differences(step, replace(result, stdout=plain)) == []


RESOURCES = (
    Beaten(
        "cli 8.2: the generation of what Calico wrote itself is not shown",
        lambda s: (
            s.case["backend"] == "kubernetes"
            and _is(s, "get")
            and "creationTimestamp" in s.stdout
            and "IPAMConfiguration" not in s.stdout
        ),
        _but_for_generation,
        sometimes=True,
    ),
    Beaten(
        "cli 11: a bad file leaves a datastore that refuses the next import",
        lambda s: (
            "import" in s.argv
            and (s.stdout == "Datastore locked.\n" or "empty.yaml" in s.argv or s.argv[-1] == "import")
        ),
        lambda _s, r: r.exit_code == 1 and not r.changed and bool(r.stderr),
        sometimes=True,
    ),
    Beaten(
        "cli 1.2: an unknown command is told in words of ours",
        lambda s: _ours(s) and s.stderr.startswith("unknown command"),
        lambda _s, r: r.exit_code == 1 and "No such command 'bogus'" in r.stderr,
    ),
    Beaten(
        "cli 1.2: an unknown level is told in words of ours",
        lambda s: _ours(s) and s.stderr.startswith("unknown log level"),
        lambda s, r: r.exit_code == 1 and s.stderr.strip() in r.stderr,
    ),
    Beaten(
        "cli 17.2: formats that calicoctl lacks",
        lambda s: (
            _ours(s) and s.stderr in ("unrecognized output format 'name'\n", "unrecognized output format 'table'\n")
        ),
        lambda _s, r: r.exit_code == 0 and "ippool-name1" in r.stdout,
    ),
    Beaten(
        "cli 17.2: join in a template fails for lists of uses",
        lambda s: "ApplyInjectionDetection" in s.stderr,
        lambda _s, r: r.exit_code == 0 and "Workload,Tunnel" in r.stdout,
    ),
    Beaten(
        "cli 16: blocks, affinities and handles cannot be shown",
        lambda s: (
            _ours(s) and bool(re.search("resource type '(ipamblocks?|ipamhandles?|blockaffinit.*)' is not", s.stderr))
        ),
        lambda s, r: r.exit_code == 0 if len(s.argv) == 2 else "does not exist: IPAMBlock(x)" in r.stderr,
    ),
    Beaten(
        "cli 18.16: an IPAMConfiguration on etcd is read by nothing",
        lambda s: (
            (_ours(s) or s.case["backend"] == "kubernetes")
            and (
                "IPAMConfiguration" in str(s.recorded.get("files_in"))
                or (len(s.argv) > 1 and "ipamconfig" in s.argv[1])
            )
            and s.argv[0] != "validate"
        ),
        lambda s, r: r.exit_code in (0, 1) and not any("/ipamconfigurations/" in key for key in r.changed),
        sometimes=True,
    ),
    Beaten(
        "cli 18.18: an apply without blockSize conflicts with the pool's own blocks",
        lambda s: _ours(s) and _is(s, "apply") and "blocksSize conflicts" in s.stderr,
        lambda _s, r: r.exit_code == 0 and "Successfully applied" in r.stdout,
    ),
    Beaten(
        "cli 18.17: the type of a patch is ignored",
        lambda s: _ours(s) and _is(s, "patch") and "json" in s.argv,
        lambda _s, r: r.exit_code in (0, 1) and "invalid JSON document" not in r.stderr,
    ),
    Beaten(
        "cli 18.1: IPv6 tunnel addresses of a deleted node stay, and their handles are not renamed",
        lambda s: (
            (_is(s, "delete", "node") or "export" in s.argv)
            and s.recorded["exit_code"] == 0
            and "vxlan-v6-tunnel-addr" in str(s.case["setup"])
        ),
        lambda s, r: (
            r.exit_code == 0
            and (
                "vxlan-v6-tunnel-addr-k8s-node" in r.stdout
                or not r.changed.get("/calico/ipam/v2/handle/vxlan-v6-tunnel-addr-node-1", 0)
            )
        ),
    ),
    Beaten(
        "cli 17.2: a version that differs is told, and refused only where it is not known",
        lambda s: _ours(s) and "version mismatch." in s.stderr,
        lambda _s, r: "version mismatch" not in r.stderr,
    ),
    Beaten(
        "cli 17.2: the version is that of ours",
        lambda s: _ours(s) and s.argv == ["version"],
        lambda s, r: r.stdout.splitlines()[1:] == s.stdout.splitlines()[1:] and "calico-ipam-" in r.stdout,
    ),
    Beaten(
        "cli 9.2: what a rule engine says of a CIDR that does not parse",
        lambda s: _is(s, "validate") and "netip.ParsePrefix" in s.stderr,
        lambda _s, r: r.exit_code == 1 and "(IPPool CIDR must be a valid subnet)" in r.stderr,
    ),
)

BEATEN = (*SHOW, *CHECK, *RELEASE, *SETTINGS, *RESOURCES)


def exception_for(step: Step) -> Beaten | None:
    return next((each for each in BEATEN if each.applies(step)), None)
