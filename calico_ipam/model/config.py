"""The cluster-wide IPAM settings and their rules (ipam-library §16, datastore §3.5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from calico_ipam.errors import InvalidInput

#: blocks a host may own when neither the request nor the settings say (a limit of 0 means this, not "unlimited")
DEFAULT_MAX_BLOCKS_PER_HOST = 20
MAX_COOLDOWN_SECONDS = 1200
MAX_BLOCKS_PER_HOST_CEILING = 1_000_000


@dataclass(frozen=True, slots=True)
class IPAMConfig:
    """Settings; the defaults here are those of a cluster that stores no settings object."""

    strict_affinity: bool = False
    auto_allocate_blocks: bool = True
    max_blocks_per_host: int = 0
    kubevirt_persistence: str | None = "Enabled"
    cooldown_seconds: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)  #: unknown fields of the document, kept on rewrite

    def problems(self) -> list[str]:
        """Return one sentence for each rule that these settings break."""
        found = []
        if not self.strict_affinity and not self.auto_allocate_blocks:
            found.append("Cannot disable 'StrictAffinity' and 'AutoAllocateBlocks' at the same time")
        if self.max_blocks_per_host > 0 and not self.strict_affinity:
            found.append("MaxBlocksPerHost requires StrictAffinity to be enabled")
        if not 0 <= self.max_blocks_per_host <= MAX_BLOCKS_PER_HOST_CEILING:
            found.append(f"MaxBlocksPerHost must lie between 0 and {MAX_BLOCKS_PER_HOST_CEILING}")
        if not 0 <= self.cooldown_seconds <= MAX_COOLDOWN_SECONDS:
            found.append(f"IPCooldownSeconds must lie between 0 and {MAX_COOLDOWN_SECONDS}")
        if self.kubevirt_persistence not in (None, "", "Enabled", "Disabled"):
            found.append("KubeVirtVMAddressPersistence must be Enabled or Disabled")
        return found

    def check(self) -> None:
        """Raise InvalidInput for the first broken rule; for new settings only, stored ones are used as they are."""
        for problem in self.problems():
            raise InvalidInput(problem, subject="IPAMConfig")

    def block_limit(self, requested: int) -> tuple[int, str]:
        """Return the number of blocks a host may own and where that number came from (ipam-library §11.3)."""
        if requested > 0 and self.max_blocks_per_host > 0:
            if requested < self.max_blocks_per_host:
                return requested, "the request"
            return self.max_blocks_per_host, "MaxBlocksPerHost of the IPAM configuration"
        if requested > 0:
            return requested, "the request"
        if self.max_blocks_per_host > 0:
            return self.max_blocks_per_host, "MaxBlocksPerHost of the IPAM configuration"
        return DEFAULT_MAX_BLOCKS_PER_HOST, "the built-in default, since MaxBlocksPerHost is 0"
