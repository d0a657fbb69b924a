"""``docs/configuration.md`` knows every key that the plugins read and every annotation that they look at."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from calico_cni import schema
from calico_cni.plugin import annotations as wishes
from calico_ipam.datastore.kube import pods, qos
from tests.shared import REPOSITORY

DOCUMENT = (REPOSITORY / "docs" / "configuration.md").read_text()

#: Sections whose keys stand in the table with the section's name in front.
SECTIONS = ("ipam", "policy", "kubernetes", "feature_control", "container_settings")


def keys() -> Iterator[str]:
    for key, kind in schema.NETCONF.fields.items():
        if key == "RuntimeConfig":
            yield "runtimeConfig"  # as it is written; upstream's field has no other name
        elif key not in SECTIONS:
            yield key
        elif isinstance(kind, schema.Struct):
            yield from (f"{key}.{inner}" for inner in kind.fields if inner != "name")


@pytest.mark.parametrize("key", list(keys()))
def test_every_key_is_told(key: str) -> None:
    assert f"`{key}`" in DOCUMENT


@pytest.mark.parametrize(
    "name",
    [
        wishes.IPV4_POOLS,
        wishes.IPV6_POOLS,
        wishes.IP_FAMILIES,
        wishes.IP_ADDRS,
        wishes.IP_ADDRS_NO_IPAM,
        wishes.HW_ADDR,
        pods.FLOATING_IPS,
        pods.ALLOWED_SOURCES,
        pods.POD_IP,
        pods.POD_IPS,
        pods.CONTAINER_ID,
        "kubernetes.io/ingress-bandwidth",
        "kubernetes.io/egress-bandwidth",
        f"{qos.PREFIX}dscp",
        *(f"{qos.PREFIX}ingress{control}" for control in qos._LIMITS),
        *(f"…/egress{control}" for control in qos._LIMITS),
    ],
)
def test_every_annotation_is_told(name: str) -> None:
    assert f"`{name}`" in DOCUMENT
