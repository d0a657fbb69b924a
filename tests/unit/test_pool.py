"""Pools: reading them and choosing among them (ipam-library §6, §18.1, §24.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from calico_ipam.errors import InvalidInput, NoQualifiedPool
from calico_ipam.model.addresses import parse_address, parse_network
from calico_ipam.model.block import HostReserved
from calico_ipam.model.pool import (
    Pool,
    PoolChoice,
    choose_pools,
    enabled_pools,
    max_prefix_length,
    parse_pools,
    pool_for,
)
from calico_ipam.model.resource import Resource

NODE = {"foo": "bar"}


def pool(name: str, cidr: str, **spec: Any) -> Pool:
    return Pool.from_resource(Resource.new("IPPool", name, {"cidr": cidr, **spec}))


def choose(
    pools: Sequence[Pool],
    *requested: str,
    version: int = 4,
    node: Mapping[str, str] = NODE,
    namespace: Mapping[str, str] | None = None,
    max_prefix: int = 128,
) -> PoolChoice:
    return choose_pools(
        pools,
        version=version,
        requested=[parse_network(cidr) for cidr in requested],
        node_labels=node,
        namespace_labels=namespace or {},
        max_prefix=max_prefix,
    )


def names(choice: PoolChoice) -> list[str]:
    return [p.name for p in choice.matching]


# --- reading ------------------------------------------------------------------------------------------------


def test_defaults() -> None:
    four, six = pool("four", "10.0.0.1/24"), pool("six", "5001:0000:0000:001a::/64", blockSize=0, allowedUses=[])
    assert (str(four.cidr), four.cidr_text, four.block_size) == ("10.0.0.0/24", "10.0.0.1/24", 26)
    assert (str(six.cidr), six.block_size) == ("5001:0:0:1a::/64", 122)
    assert four.allowed_uses == six.allowed_uses == ("Workload", "Tunnel")
    assert (four.node_selector, four.namespace_selector, four.assignment_mode) == ("all()", "", "Automatic")
    assert four.enabled


def test_null_and_damaged_fields_read_as_absent() -> None:
    spec = {"cidr": "10.0.0.0/8", "allowedUses": "x"}
    document: dict[str, Any] = {"kind": "IPPool", "metadata": None, "status": [], "spec": spec}
    read = Pool.from_resource(Resource("IPPool", "p", document))
    assert read.enabled
    assert read.allowed_uses == ("Workload", "Tunnel")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"spec": {"cidr": "10.0.0.0/24", "disabled": True}}, "is disabled"),
        ({"metadata": {"name": "p", "deletionTimestamp": "2026-01-02T03:04:05Z"}}, "is being deleted"),
        (
            {"status": {"conditions": [{"type": "Allocatable", "status": "False", "reason": "CIDROverlap"}]}},
            "is not allocatable (CIDROverlap)",
        ),
    ],
)
def test_not_enabled(change: dict[str, Any], reason: str) -> None:
    document = {"metadata": {"name": "p"}, "spec": {"cidr": "10.0.0.0/24"}} | change
    read = Pool.from_resource(Resource("IPPool", "p", document))
    assert not read.enabled
    assert read.unusable_reason == reason


def test_an_allocatable_condition_that_is_true_or_another_one_disables_nothing() -> None:
    conditions = [{"type": "Allocatable", "status": "True"}, {"type": "Other", "status": "False"}, None]
    document = {"spec": {"cidr": "10.0.0.0/24"}, "status": {"conditions": conditions}}
    assert Pool.from_resource(Resource("IPPool", "p", document)).enabled


def test_pools_come_in_name_order_and_bad_ones_are_named() -> None:
    resources = [
        Resource.new("IPPool", "c", {"cidr": "10.2.0.0/24"}),
        Resource.new("IPPool", "b", {"cidr": "nonsense"}),
        Resource.new("IPPool", "a", {"cidr": "10.1.0.0/24"}),
        Resource.new("IPPool", "e", {"cidr": "10.3.0.0/24", "blockSize": 33}),
        Resource.new("IPPool", "f", {"cidr": "10.4.0.0/24", "blockSize": "26"}),
        Resource.new("IPPool", "d", {}),
    ]
    pools, bad = parse_pools(resources)
    assert [p.name for p in pools] == ["a", "c"]
    assert [name for name, _ in bad] == ["b", "d", "e", "f"]
    assert bad[2][1] == "block size 33 of pool e is no prefix length of an IPv4 block"


def test_enabled_pools_of_a_family() -> None:
    pools = [pool("a", "10.0.0.0/24"), pool("b", "fd00::/64"), pool("c", "10.1.0.0/24", disabled=True)]
    assert [p.name for p in enabled_pools(pools, 4)] == ["a"]
    assert [p.name for p in enabled_pools(pools, 6)] == ["b"]


def test_pool_of_an_address_and_its_block() -> None:
    pools = [pool("a", "10.0.0.0/24"), pool("b", "10.0.0.0/8", blockSize=30), pool("c", "fd00::/64")]
    found = pool_for(pools, parse_address("10.0.0.9"))
    assert found is not None and found.name == "a"
    wide = pool_for(pools, parse_address("::ffff:10.9.0.6"))
    assert wide is not None and wide.name == "b"
    assert str(wide.block_of(parse_address("10.9.0.6"))) == "10.9.0.4/30"
    assert pool_for(pools, parse_address("11.0.0.1")) is None
    assert pool_for(pools, parse_address("fe80::1")) is None


# --- choosing -----------------------------------------------------------------------------------------------


def test_all_that_select_in_name_order() -> None:
    pools = [pool("p1", "10.0.0.1/24"), pool("p2", "20.0.0.0/24")]
    assert names(choose(pools)) == ["p1", "p2"]


@pytest.mark.parametrize(
    "cidrs", [("10.0.0.0/24", "20.0.0.0/24", "10.0.0.1/24"), ("fd00::/64", "5001:0:0:1a::/64", "fd00::/64")]
)
def test_requested_pools_win_over_selectors_and_mode(cidrs: tuple[str, str, str]) -> None:
    version = 6 if ":" in cidrs[0] else 4
    pools = [
        pool("p1", cidrs[0], nodeSelector='foo != "bar"', namespaceSelector='a == "b"', assignmentMode="Manual"),
        pool("p2", cidrs[1]),
    ]
    assert names(choose(pools, version=version)) == ["p2"]
    assert names(choose(pools, cidrs[2], version=version)) == ["p1"]
    assert names(choose(pools, cidrs[1], cidrs[0], version=version)) == ["p2", "p1"]


def test_node_selector() -> None:
    pools = [
        pool("p1", "10.0.0.0/24", nodeSelector='foo == "bar"'),
        pool("p2", "20.0.0.0/24", nodeSelector='foo != "bar"'),
    ]
    assert names(choose(pools)) == ["p1"]
    assert names(choose(pools, node={})) == ["p2"]


def test_a_disabled_pool_cannot_be_requested() -> None:
    pools = [pool("p1", "10.0.0.0/24", disabled=True), pool("p2", "20.0.0.0/24", nodeSelector="has(x)")]
    with pytest.raises(InvalidInput) as caught:
        choose(pools, "10.0.0.7/24")
    assert str(caught.value) == "the given pool (10.0.0.0/24) does not exist, or is not enabled"
    assert caught.value.hint == "Pool p1 is disabled."
    choice = choose(pools)
    assert (choice.matching, [p.name for p in choice.enabled]) == ((), ["p2"])


@pytest.mark.parametrize("requested", [("10.0.0.0/24", "40.0.0.0/24"), ("40.0.0.0/24",), ("10.0.0.0/24", "fd00::/64")])
def test_one_bad_request_fails_everything(requested: tuple[str, ...]) -> None:
    pools = [pool("p1", "10.0.0.0/24"), pool("p6", "fd00::/64")]
    with pytest.raises(InvalidInput, match="does not exist, or is not enabled"):
        choose(pools, *requested)


def test_no_enabled_pool_of_the_family() -> None:
    pools = [pool("p1", "10.0.0.0/24", disabled=True)]
    for version, hint in ((4, "pool p1 is disabled"), (6, "There is no IPv6 pool")):
        with pytest.raises(NoQualifiedPool) as caught:
            choose(pools, "10.0.0.0/24", version=version)
        assert str(caught.value) == "cannot find a qualified ippool"
        assert hint in caught.value.hint


NAMESPACE_CASES = [
    ("", {}, True),
    ('env == "prod"', {"env": "prod"}, True),
    ('env == "prod"', {"env": "dev"}, False),
    ('env == "prod"', {}, False),
    ('env != "prod"', {}, True),
    ("!has(env)", {}, True),
    ('env == "prod" && region == "east"', {"env": "prod", "region": "east"}, True),
    ('env == "prod" && region == "east"', {"env": "prod"}, False),
]


@pytest.mark.parametrize(("selector", "labels", "matches"), NAMESPACE_CASES)
def test_namespace_selector(selector: str, labels: dict[str, str], matches: bool) -> None:
    pools = [
        pool("p1", "10.0.0.0/24", namespaceSelector=selector, nodeSelector='foo == "bar"'),
        pool("p2", "20.0.0.0/24", namespaceSelector=selector, nodeSelector="has(other)"),
    ]
    assert names(choose(pools, namespace=labels)) == (["p1"] if matches else [])


def test_prod_dev_and_unmarked_pools() -> None:
    pools = [
        pool("dev", "10.0.0.0/24", namespaceSelector='env == "dev"'),
        pool("none", "20.0.0.0/24"),
        pool("prod", "30.0.0.0/24", namespaceSelector='env == "prod"'),
    ]
    assert names(choose(pools, namespace={"env": "prod"})) == ["none", "prod"]


@pytest.mark.parametrize("selector", ["invalid selector syntax [", "region == ", 'region === "east"'])
def test_a_broken_selector_is_an_error_only_where_no_other_pool_matches(selector: str) -> None:
    broken = pool("p1", "10.0.0.0/24", namespaceSelector=selector)
    with pytest.raises(InvalidInput):
        choose([broken])
    choice = choose([broken, pool("p2", "20.0.0.0/24")])
    assert names(choice) == ["p2"]
    assert len(choice.warnings) == 1 and "p1" in choice.warnings[0]
    assert names(choose([broken], "10.0.0.0/24")) == ["p1"]


def test_the_namespace_selector_is_read_only_when_the_node_matches() -> None:
    choice = choose([pool("p1", "10.0.0.0/24", nodeSelector="has(x)", namespaceSelector="[")])
    assert (choice.matching, choice.warnings) == ((), ())


def test_manual_pools_are_only_used_when_requested() -> None:
    pools = [pool("p1", "10.0.0.0/24", assignmentMode="Manual"), pool("p2", "20.0.0.0/24")]
    assert names(choose(pools)) == ["p2"]
    assert names(choose(pools, "10.0.0.0/24")) == ["p1"]


# --- room beside reserved ordinals --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "start", "end", "longest"), [(4, 3, 1, 29), (4, 64, 1, 25), (4, 1, 0, 31), (6, 2, 1, 126)]
)
def test_longest_prefix(version: int, start: int, end: int, longest: int) -> None:
    assert max_prefix_length(version, HostReserved(start, end, "h", "")) == longest


def test_longest_prefix_without_and_with_wrong_parameters() -> None:
    assert (max_prefix_length(4, None), max_prefix_length(6, None)) == (32, 128)
    with pytest.raises(InvalidInput, match="HostReservedAttr has wrong parameters"):
        max_prefix_length(4, HostReserved(0, 0, "h", ""))


def test_pools_with_blocks_too_small_for_the_reservation() -> None:
    pools = [pool("p1", "10.0.0.0/24", blockSize=30), pool("p2", "20.0.0.0/24", blockSize=26)]
    with pytest.raises(InvalidInput) as caught:
        choose(pools, "10.0.0.0/24", max_prefix=29)
    assert "too small" in caught.value.hint
    with pytest.raises(NoQualifiedPool):
        choose(pools[:1], max_prefix=29)
