"""What a check can find: each kind with its severity and the command that mends it (cli §17, §18)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

OUTAGE, CAPACITY, COSMETIC = "outage risk", "capacity loss", "cosmetic"
SEVERITIES = (OUTAGE, CAPACITY, COSMETIC)


@dataclass(frozen=True, slots=True)
class Kind:
    """One class of findings. ``cure``: the command that mends one, with ``{subject}`` for what it is about."""

    name: str
    severity: str
    title: str
    cure: str
    upstream: bool = False  #: upstream's check counts it as a problem too


KINDS = {
    kind.name: kind
    for kind in (
        # --- two users of one address, or none that IPAM knows of ---
        Kind("multiple-owners", OUTAGE, "addresses used by several at once", "ipamctl ipam explain {subject}"),
        Kind("allocated-twice", OUTAGE, "addresses allocated in two blocks", "ipamctl ipam explain {subject}"),
        Kind(
            "not-allocated",
            OUTAGE,
            "addresses in use but not allocated",
            "ipamctl ipam repair --only not-allocated {subject}",
            True,
        ),
        Kind("block-size", OUTAGE, "blocks of another size than their pool's", "ipamctl pool resize {pool} {size}"),
        Kind("overlapping-blocks", OUTAGE, "blocks that overlap", "ipamctl ipam explain {subject}"),
        Kind("overlapping-pools", OUTAGE, "pools that overlap", "ipamctl pool delete {pool}"),
        Kind(
            "invalid-block",
            OUTAGE,
            "blocks whose structure is broken",
            "ipamctl ipam repair --only invalid-block {subject}",
            True,
        ),
        Kind("unreadable", OUTAGE, "documents that cannot be understood", "ipamctl datastore export --path {subject}"),
        Kind(
            "contested-block",
            OUTAGE,
            "blocks that several nodes believe they own",
            "ipamctl ipam repair --only contested-block {subject}",
        ),
        Kind(
            "wrong-pod", OUTAGE, "addresses recorded for another node than the pod's", "ipamctl ipam explain {subject}"
        ),
        Kind("settings", OUTAGE, "settings that break a rule", "ipamctl ipam configure"),
        # --- addresses nobody can have ---
        Kind("leaked", CAPACITY, "addresses allocated but not in use", "ipamctl ipam gc", True),
        Kind(
            "unattributed",
            CAPACITY,
            "addresses allocated to nobody in particular",
            "ipamctl ipam release --ip {subject}",
            True,
        ),
        Kind("old-cooldown", CAPACITY, "addresses whose cooldown is long over", "ipamctl ipam gc --cold"),
        Kind(
            "lost-ordinals",
            CAPACITY,
            "free addresses missing from their block's queue",
            "ipamctl ipam repair --only lost-ordinals {subject}",
        ),
        Kind(
            "no-node",
            CAPACITY,
            "blocks that belong to a node that does not exist",
            "ipamctl ipam repair --only no-node {subject}",
        ),
        # --- untidy ---
        Kind(
            "not-in-pool",
            COSMETIC,
            "addresses in use outside every enabled pool",
            "ipamctl pool create {network}",
            True,
        ),
        Kind("no-pool", COSMETIC, "blocks in no pool", "ipamctl ipam explain {subject}"),
        Kind(
            "stray-handle",
            COSMETIC,
            "handles without addresses",
            "ipamctl ipam repair --only stray-handle {subject}",
            True,
        ),
        Kind(
            "missing-handle",
            COSMETIC,
            "handles that addresses name but that do not exist",
            "ipamctl ipam repair --only missing-handle {subject}",
        ),
        Kind(
            "handle-count", COSMETIC, "handles that count wrongly", "ipamctl ipam repair --only handle-count {subject}"
        ),
        Kind(
            "row-without-block",
            COSMETIC,
            "affinity rows without a block",
            "ipamctl ipam repair --only row-without-block {subject}",
        ),
        Kind(
            "block-without-row",
            COSMETIC,
            "blocks whose owner has no affinity row",
            "ipamctl ipam repair --only block-without-row {subject}",
        ),
        Kind(
            "stale-configuration",
            COSMETIC,
            "an IPAMConfiguration that nothing reads",
            "ipamctl delete ipamconfig default",
        ),
        Kind("bad-tunnel", COSMETIC, "tunnel addresses of nodes that do not parse", "ipamctl patch node {subject}"),
    )
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: its kind, what it is about, a sentence, and what a repair needs to know."""

    kind: str
    subject: str
    text: str
    block: str = ""  #: CIDR of the block concerned, where there is one
    data: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def severity(self) -> str:
        return KINDS[self.kind].severity

    @property
    def cure(self) -> str:
        """The command that mends it."""
        return KINDS[self.kind].cure.format_map({"subject": self.subject, **self.data})

    def document(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "severity": self.severity,
            "subject": self.subject,
            "text": self.text,
            "command": self.cure,
        }


def by_severity(findings: list[Finding]) -> dict[str, list[Finding]]:
    """Return findings by severity, worst first; severities without any are left out."""
    found = {severity: [f for f in findings if f.severity == severity] for severity in SEVERITIES}
    return {severity: group for severity, group in found.items() if group}
