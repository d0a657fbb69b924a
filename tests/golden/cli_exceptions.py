"""Where ours differs from calicoctl on purpose (cli §17, §18): the limit, which steps show it, what ours does instead.

Keyed by what a step shows, never by its file, so that other recordings replay too. An entry that a step does not need
makes the replay fail.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from calico_ipam.ctl.kinds import KINDS
from tests.golden.cli_predicates import (
    begins,
    but_for_generation,
    crash,
    freed,
    has_report,
    hostnames_do_not_count,
    kept_unattributed,
    nothing_changed,
    our_voice,
    outside_limits,
    polite,
    released_more,
    same_but_big_numbers,
    unknown_command,
    used_since,
    windows_in_use,
    with_holder,
    with_owner,
    without_v6_orphans,
)
from tests.golden.cli_replay import Result, Step, is_help, wanted_address


@dataclass(frozen=True, slots=True)
class Beaten:
    """A limit of upstream that ours does not have. ``restores``: whether the store is put as upstream leaves it, after
    what ours did."""

    limit: str
    applies: Callable[[Step], bool]
    ours: Callable[[Step, Result], bool]
    restores: Callable[[Result], bool] = lambda _result: True
    sometimes: bool = False  #: what a step shows does not tell whether ours differs; elsewhere an entry must be needed


#: commands that are not built yet
PENDING: frozenset[str] = frozenset()

#: names of kinds that only ours shows
OURS = tuple(alias for kind in KINDS if kind.ours for alias in kind.aliases)


SHOW = (
    Beaten(
        "cli 18.3: counts of an IPv6 pool saturate and wrap", lambda s: "9.2234e+18" in s.stdout, same_but_big_numbers
    ),
    Beaten(
        "cli 18.4: IPv6 blocks in no pool are not shown",
        lambda s: s.argv[:2] == ["ipam", "show"] and "IPv6 block in no pool" in s.case["about"],
        without_v6_orphans,
    ),
    Beaten(
        "cli 17.1: an address in cooldown is an error",
        lambda s: our_voice(s) and s.argv[:2] == ["ipam", "show"] and "is in cooldown" in s.stderr,
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
            and (our_voice(s) or s.argv[1] == "release")
            and ("is not assigned" in s.stdout or "is not assigned" in s.stderr)
        ),
        lambda s, r: (
            r.exit_code == 0
            and (f"IP {wanted_address(s.argv)} is in use" in r.stdout or "Successfully released" in r.stdout)
        ),
    ),
)

CHECK = (
    Beaten("cli 18.10: a crash", lambda s: crash(s) and s.argv[:2] != ["ipam", "check"], polite),
    Beaten(
        "cli 18.10: a crash of the check",
        crash,
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
        lambda s: has_report(s) and "ipv6vxlantunneladdr" in str(s.case["setup"]).lower(),
        lambda _s, r: "Found 2 node tunnel IPs." in r.stdout and "vxlan-v6" not in str(r.changed),
    ),
    Beaten(
        "cli 18.2: addresses that Windows keeps are reported as unused",
        lambda s: "windows-reserved-ipam-handle" in str(s.case["setup"]) and has_report(s),
        windows_in_use,
    ),
    Beaten(
        "cli 18.7: a Service that has only a host name counts as an address",
        lambda s: (
            begins(s, "ipam", "check")
            and "'hostname'" in str(s.case["setup"])
            and "service load balancer(s)" in s.stdout
        ),
        hostnames_do_not_count,
        sometimes=True,
    ),
    Beaten(
        "cli 18.6: without Kubernetes nothing is checked",
        lambda s: our_voice(s) and "KUBECONFIG environment variable" in s.stderr,
        lambda _s, r: r.exit_code == 0 and "skipping service check" in r.stdout,
    ),
    Beaten(
        "cli 1.2: calicoctl answers an unknown command with help and success",
        lambda s: our_voice(s) and is_help(s) and bool(unknown_command(s)),
        lambda s, r: r.exit_code == 1 and f"No such command {unknown_command(s)!r}" in r.stderr,
    ),
)


RELEASE = (
    Beaten(
        "ruling 1: what somebody has come to use since the report is released",
        lambda s: begins(s, "ipam", "release") and "IPs successfully" in s.stdout and bool(used_since(s)),
        lambda s, r: r.exit_code in (0, 4) and not used_since(s) & freed(s, r.changed),
    ),
    Beaten(
        "cli 5.1: a block of another size than its pool's is not found by a report",
        lambda s: (
            begins(s, "ipam", "release", "--from-report")
            and "already been cleaned up" in s.stdout
            and not s.recorded.get("datastore_changed")
            and "Released 0 IPs" in s.stdout
        ),
        lambda _s, r: r.exit_code == 0 and bool(r.changed),
        sometimes=True,
    ),
    Beaten(
        "cli 18.14: one stale address keeps its whole block",
        lambda s: begins(s, "ipam", "release") and "An error occurred while releasing some IPs" in s.stdout,
        released_more,
        sometimes=True,
    ),
    Beaten(
        "cli 18.1, 18.2: addresses of Windows and IPv6 tunnels are released",
        lambda s: (
            begins(s, "ipam", "release")
            and "--from-report" in s.argv
            and "windows-reserved-ipam-handle" in str(s.case["setup"])
            and bool(s.recorded.get("datastore_changed"))
        ),
        kept_unattributed,
    ),
    Beaten(
        "ruling 9: the holder is shown",
        lambda s: our_voice(s) and begins(s, "ipam", "release") and s.stdout.startswith("Successfully released"),
        with_holder,
        restores=lambda r: r.exit_code == 1,
    ),
    Beaten(
        "cli 17.2: a report of another release is refused",
        lambda s: our_voice(s) and "was produced using a different version" in s.stderr + s.stdout,
        lambda s, r: r.exit_code == 0 and "Released" in r.stdout,
    ),
)

SETTINGS = (
    Beaten(
        "cli 18.16: settings outside their limits are stored",
        lambda s: begins(s, "ipam", "configure") and outside_limits(s) and s.recorded["exit_code"] == 0,
        lambda _s, r: r.exit_code == 1 and "must lie between 0 and" in r.stderr and not r.changed,
    ),
    Beaten(
        "cli 18.16: each datastore refuses settings in words of its own",
        lambda s: (
            begins(s, "ipam", "configure") and 'IPAMConfig.crd.projectcalico.org "default" is invalid' in s.stderr
        ),
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
        "datastore 9: the pods of the recording had no service account",
        lambda s: s.case["backend"] == "kubernetes" and "kns.shop" in s.stdout,
        lambda _s, r: r.exit_code == 0 and "ksa.shop.default" in r.stdout,
        sometimes=True,
    ),
    Beaten(
        "cli 18.5: a split that cannot be done disables or deletes the pool",
        lambda s: (
            begins(s, "ipam", "split")
            and bool(s.recorded.get("datastore_changed"))
            and ("split into 0" in s.stdout or s.recorded["exit_code"] == 1)
        ),
        nothing_changed,
    ),
    Beaten(
        "cli 18.15: a lock has no owner",
        lambda s: (
            our_voice(s)
            and begins(s, "datastore", "migrate")
            and "lock" in s.argv[2]
            and bool(s.recorded.get("datastore_changed"))
        ),
        with_owner,
        sometimes=True,
    ),
    Beaten(
        "cli 18.15: a second lock has an owner too",
        lambda s: our_voice(s) and s.argv == ["datastore", "migrate", "lock"] and s.stdout == "Datastore locked.\n",
        with_owner,
        sometimes=True,
    ),
    Beaten(
        "datastore 14.14: an empty setting is an error",
        lambda s: "converting '' to type " in s.stderr + s.stdout,
        lambda _s, r: r.exit_code == 0,
    ),
    Beaten(
        "cli 1.3: a bad setting is told in words of the parser's inside",
        lambda s: "envconfig.Process" in s.stderr + s.stdout,
        lambda s, r: (
            r.exit_code == 1 and bool(re.search("has the value '.*': not ", r.stdout if s.stdout else r.stderr))
        ),
    ),
    Beaten(
        "cli 1.4: etcd that does not answer is waited for without end",
        lambda s: s.recorded["exit_code"] == "timeout",
        lambda _s, r: r.exit_code == 1 and "127.0.0.1:1" in r.stderr + r.stdout,
    ),
)


RESOURCES = (
    Beaten(
        "datastore 14.9: the blocks of virtual owners stay when their pool goes",
        lambda s: (
            begins(s, "delete")
            and s.case["backend"] == "etcdv3"
            and any("/ipam/v2/virtual/" in key for key in s.before)
        ),
        lambda s, r: (
            (r.stdout, r.exit_code) == (s.stdout, 0) and set(r.changed) >= set(s.recorded["datastore_changed"])
        ),
        sometimes=True,
    ),
    Beaten(
        "cli 8.2: the generation of what Calico wrote itself is not shown",
        lambda s: (
            s.case["backend"] == "kubernetes"
            and begins(s, "get")
            and "creationTimestamp" in s.stdout
            and "IPAMConfiguration" not in s.stdout
        ),
        but_for_generation,
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
        lambda s: our_voice(s) and s.stderr.startswith("unknown command"),
        lambda s, r: r.exit_code == 1 and f"No such command '{s.stderr.split(chr(34))[1]}'" in r.stderr,
    ),
    Beaten(
        "cli 1.2: an unknown level is told in words of ours",
        lambda s: our_voice(s) and s.stderr.startswith("unknown log level"),
        lambda s, r: r.exit_code == 1 and s.stderr.strip() in r.stderr,
    ),
    Beaten(
        "cli 17.2: formats that calicoctl lacks",
        lambda s: (
            our_voice(s)
            and bool(re.match("unrecognized output format '(name|table|csv|jsonpath=.+)'", s.stderr, re.DOTALL))
        ),
        lambda _s, r: r.exit_code in (0, 1) and "unrecognized" not in r.stderr,
    ),
    Beaten(
        "cli 17.2: join in a template fails for lists of uses",
        lambda s: "ApplyInjectionDetection" in s.stderr,
        lambda _s, r: r.exit_code == 0 and "Workload,Tunnel" in r.stdout,
    ),
    Beaten(
        "cli 16: blocks, affinities and handles cannot be shown",
        lambda s: (
            our_voice(s) and bool(re.search(rf"resource type '({'|'.join(OURS)})' is not", s.stderr, re.IGNORECASE))
        ),
        lambda _s, r: r.exit_code == 0 or "does not exist: " in r.stderr or "by hand" in r.stderr,
    ),
    Beaten(
        "cli 18.16: an IPAMConfiguration on etcd is read by nothing",
        lambda s: (
            (our_voice(s) or s.case["backend"] == "kubernetes")
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
        lambda s: our_voice(s) and begins(s, "apply") and "blocksSize conflicts" in s.stderr,
        lambda _s, r: r.exit_code == 0 and "Successfully applied" in r.stdout,
    ),
    Beaten(
        "cli 18.17: the type of a patch is ignored",
        lambda s: our_voice(s) and begins(s, "patch") and any(word.endswith("json") for word in s.argv),
        lambda _s, r: r.exit_code in (0, 1) and "invalid JSON document" not in r.stderr,
    ),
    Beaten(
        "cli 18.1: IPv6 tunnel addresses of a deleted node stay, and their handles are not renamed",
        lambda s: (
            (begins(s, "delete", "node") or "export" in s.argv)
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
        lambda s: our_voice(s) and "version mismatch." in s.stderr,
        lambda _s, r: "version mismatch" not in r.stderr,
    ),
    Beaten(
        "cli 17.2: the version is that of ours",
        lambda s: our_voice(s) and "version" in s.argv and "Client Version:   " in s.stdout,
        lambda s, r: r.stdout.splitlines()[1:] == s.stdout.splitlines()[1:] and "calico-ipam-" in r.stdout,
    ),
    Beaten(
        "cli 9.2: what a rule engine says of a CIDR that does not parse",
        lambda s: begins(s, "validate") and "netip.ParsePrefix" in s.stderr,
        lambda _s, r: r.exit_code == 1 and "(IPPool CIDR must be " in r.stderr,
    ),
)

BEATEN = (*SHOW, *CHECK, *RELEASE, *SETTINGS, *RESOURCES)


def exception_for(step: Step) -> Beaten | None:
    return next((each for each in BEATEN if each.applies(step)), None)
