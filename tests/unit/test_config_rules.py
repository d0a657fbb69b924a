"""Rules of the cluster-wide settings (ipam-library §16, §11.3)."""

from __future__ import annotations

import pytest

from calico_ipam.errors import InvalidInput
from calico_ipam.model.config import IPAMConfig


def test_defaults_of_a_cluster_without_settings() -> None:
    config = IPAMConfig()
    assert (config.strict_affinity, config.auto_allocate_blocks) == (False, True)
    assert (config.max_blocks_per_host, config.cooldown_seconds, config.kubevirt_persistence) == (0, 0, "Enabled")
    assert config.problems() == []
    config.check()


BROKEN = [
    (
        IPAMConfig(strict_affinity=False, auto_allocate_blocks=False),
        "Cannot disable 'StrictAffinity' and 'AutoAllocateBlocks' at the same time",
    ),
    (IPAMConfig(max_blocks_per_host=1), "MaxBlocksPerHost requires StrictAffinity to be enabled"),
    (IPAMConfig(max_blocks_per_host=-1), "MaxBlocksPerHost must lie between 0 and 1000000"),
    (
        IPAMConfig(strict_affinity=True, max_blocks_per_host=1_000_001),
        "MaxBlocksPerHost must lie between 0 and 1000000",
    ),
    (IPAMConfig(cooldown_seconds=-1), "IPCooldownSeconds must lie between 0 and 1200"),
    (IPAMConfig(cooldown_seconds=1201), "IPCooldownSeconds must lie between 0 and 1200"),
    (IPAMConfig(kubevirt_persistence="enabled"), "KubeVirtVMAddressPersistence must be Enabled or Disabled"),
]


@pytest.mark.parametrize(("config", "text"), BROKEN, ids=[text for _, text in BROKEN])
def test_broken_rule(config: IPAMConfig, text: str) -> None:
    assert config.problems() == [text]
    with pytest.raises(InvalidInput) as caught:
        config.check()
    assert str(caught.value) == text


@pytest.mark.parametrize(
    "config",
    [
        IPAMConfig(strict_affinity=True, auto_allocate_blocks=False),
        IPAMConfig(strict_affinity=True, max_blocks_per_host=1_000_000),
        IPAMConfig(cooldown_seconds=1200),
        IPAMConfig(kubevirt_persistence=None),
        IPAMConfig(kubevirt_persistence="Disabled"),
    ],
)
def test_accepted(config: IPAMConfig) -> None:
    config.check()


@pytest.mark.parametrize(
    ("stored", "requested", "limit"),
    [(0, 0, 20), (3, 0, 3), (0, 50, 50), (3, 2, 2), (2, 3, 2), (2, 2, 2)],
)
def test_block_limit(stored: int, requested: int, limit: int) -> None:
    config = IPAMConfig(strict_affinity=True, max_blocks_per_host=stored)
    assert config.block_limit(requested)[0] == limit


def test_block_limit_says_where_it_comes_from() -> None:
    assert "default" in IPAMConfig().block_limit(0)[1]
    assert IPAMConfig(max_blocks_per_host=2).block_limit(3)[1] == "MaxBlocksPerHost of the IPAM configuration"
    assert IPAMConfig(max_blocks_per_host=3).block_limit(2)[1] == "the request"
