"""Rules of new pools, one by one (cli §9.2): upstream's text, and a way out beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from calico_ipam.errors import InvalidInput
from calico_ipam.model.addresses import parse_network
from calico_ipam.model.pool import Pool
from calico_ipam.model.pool_rules import (
    PoolRequest,
    check_existing_blocks,
    check_new_pool,
    check_pool_alone,
    default_pool_name,
    ula_network,
)

OLD = Pool("old", parse_network("1.2.3.0/24"), "1.2.3.0/24", 26)
TOO_SMALL = "IP pool size is too small for use with Calico IPAM. It must be equal to or greater than the block size."
BLOCK_SIZE = "blockSize must be between 20 and 32 for IPv4 pools, and between 116 and 128 for IPv6 pools"


def ask(cidr: str, **fields: Any) -> PoolRequest:
    return PoolRequest(**{"name": "new", "cidr": cidr, **fields})


ALL = ("Workload", "Tunnel", "LoadBalancer")
LB: dict[str, Any] = {"allowed_uses": ("LoadBalancer",)}


@pytest.mark.parametrize(
    ("request_", "text", "hint"),
    [
        (ask(""), "IPPool.Spec.CIDR (IPPool CIDR must be specified)", "such as 10.244.0.0/16"),
        (ask("10.0.1.1"), "IPPool.Spec.CIDR = '10.0.1.1' (IPPool CIDR must be a valid subnet)", "prefix length"),
        (ask("10.0.1.0/33"), "'10.0.1.0/33' (IPPool CIDR must be a valid subnet)", "prefix length"),
        (ask("10.0.0.0/255.0.0.0"), "(IPPool CIDR must be a valid subnet)", "prefix length"),
        (ask("fd5f::2::1/32"), "'fd5f::2::1/32' (IPPool CIDR must be a valid subnet)", "prefix length"),
        (ask("10.0.1.5/24"), "'10.0.1.0/24' (IPPool CIDR is not strictly masked)", "write 10.0.1.0/24"),
        (ask("fd5f::1/123"), "'fd5f::/123' (IPPool CIDR is not strictly masked)", "write fd5f::/123"),
        (
            ask("1.2.3.128/25"),
            "IPPool.Spec.CIDR = '1.2.3.128/25' (IPPool(new) CIDR overlaps with IPPool(old) CIDR 1.2.3.0/24)",
            "delete pool old first",
        ),
        (ask("1.2.0.0/16"), "IPPool(new) CIDR overlaps with IPPool(old) CIDR 1.2.3.0/24", "outside 1.2.3.0/24"),
        (ask("10.0.0.0/16", block_size=19), f"spec ({BLOCK_SIZE})", "/19 is no block size for IPv4"),
        (ask("10.0.0.0/16", block_size=33), f"spec ({BLOCK_SIZE})", "to get /26"),
        (ask("fd00::/64", block_size=115), f"spec ({BLOCK_SIZE})", "to get /122"),
        (ask("10.0.250.0/32"), f"spec ({TOO_SMALL})", "use --block-size 32"),
        (ask("::/128"), f"spec ({TOO_SMALL})", "use --block-size 128"),
        (ask("192.168.0.0/27"), f"spec ({TOO_SMALL})", "One block of /26 does not fit into 192.168.0.0/27"),
        (ask("169.254.5.0/24"), "overlaps with IPv4 link local range 169.254.0.0/16", "another range"),
        (ask("168.0.0.0/6"), "overlaps with IPv4 link local range 169.254.0.0/16", "another range"),
        (ask("fe80::/120"), "overlaps with IPv6 link local range fe80::/10", "another range"),
        (ask("10.0.0.0/16", node_selector="a =="), "NodeSelector = 'a ==' (Reason: failed to validate", "parse"),
        (
            ask("10.0.0.0/16", namespace_selector="a = b", allowed_uses=("Workload",)),
            "NamespaceSelector = 'a = b' (Reason: failed to validate Field: NamespaceSelector",
            "--namespace-selector does not parse",
        ),
        (ask("10.0.0.0/16", name="Bad_Name"), "Metadata.Name = 'Bad_Name' (name must consist", "lower-case"),
        (ask("10.0.0.0/16", name=""), "Metadata.Name = '' (name must consist", "lower-case"),
        (ask("10.0.0.0/16", name="a" * 254), "(name must consist", "at most 253"),
        (ask("10.0.0.0/16", assignment_mode="Sometimes"), 'supported values: "Automatic", "Manual"', "'Sometimes'"),
        (ask("10.0.0.0/16", ipip_mode="Maybe"), 'supported values: "Never", "Always", "CrossSubnet"', "'Maybe'"),
        (ask("10.0.0.0/16", ipip_mode="Always", vxlan_mode="Always"), "cannot both be enabled", "Never"),
        (ask("fd00::/64", ipip_mode="Always"), "IPIP is not supported on IPv6 pools", "vxlanMode"),
        (ask("10.0.0.0/16", vxlan_mode="Always", **LB), "cannot have IPIP or VXLAN enabled", "Never"),
        (ask("10.0.0.0/16", allowed_uses=ALL), "LoadBalancer cannot be combined with", "of its own"),
        (ask("10.0.0.0/16", disable_bgp_export=True, **LB), "cannot disable BGP export", "BGP"),
        (ask("10.0.0.0/16", node_selector="!all()", **LB), "must have nodeSelector set to all()", "--node-selector"),
        (ask("10.0.0.0/16", namespace_selector="a == 'b'"), "cannot have namespaceSelector", "--allowed-use Workload"),
        (ask("10.0.0.0/16", node_selector="global()"), "global() selector is not valid for IPPool nodeSelector", ""),
        (
            ask("10.0.0.0/16", node_selector=f"a == '{'b' * 1024}'"),
            "spec.nodeSelector (may not be more than 1024 bytes)",
            "Shorten",
        ),
        (ask("10.0.0.0/16", allowed_uses=("Workload",) * 11), "at most 10 items", "once"),
    ],
)
def test_refused(request_: PoolRequest, text: str, hint: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_new_pool(request_, [OLD])
    assert text in str(caught.value)
    assert str(caught.value).startswith("error with field ")
    assert hint in caught.value.hint
    assert caught.value.subject == f"IPPool({request_.name})"


@pytest.mark.parametrize(
    "request_",
    [
        ask("10.0.1.0/26"),
        ask("10.64.0.0/10"),
        ask("2002::/122"),
        ask("fd00::/10"),
        ask("10.1.1.0/27", disabled=True),
        ask("2003::1/128", disabled=True),
        ask("10.1.1.0/27", block_size=27),
        ask("10.0.0.0/16", block_size=20),
        ask("10.0.0.0/24", block_size=32),
        ask("fd00::/64", block_size=116),
        ask("2004::/64", vxlan_mode="Always"),
        ask("2001:CAFE:42::/56"),
        ask("5001:0000:0000:001a:0000:0000:0000:0000/64"),
        ask("10.0.0.0/16", allowed_uses=("LoadBalancer",), namespace_selector="all()"),
        ask("10.0.0.0/16", node_selector=""),
        ask("10.0.0.0/16", name="a" * 253),
        ask("10.0.0.0/16", name="a.b-c.0"),
        ask("10.0.0.0/16", node_selector='region in {"east","west"} && has(team)'),
    ],
)
def test_accepted(request_: PoolRequest) -> None:
    assert check_new_pool(request_, [OLD]) == parse_network(request_.cidr)


def test_the_same_name_is_no_overlap() -> None:
    assert check_new_pool(ask("1.2.3.0/24", name="old"), [OLD]) == OLD.cidr


def test_every_overlap_is_named() -> None:
    other = replace(OLD, name="old2", cidr=parse_network("1.2.4.0/24"), cidr_text="1.2.4.0/24")
    with pytest.raises(InvalidInput) as caught:
        check_new_pool(ask("1.2.0.0/16"), [OLD, other])
    first, second = (
        f"-  IPPool.Spec.CIDR = '1.2.0.0/16' (IPPool(new) CIDR overlaps with IPPool({p.name}) CIDR {p.cidr_text})\n"
        for p in (OLD, other)
    )
    assert str(caught.value) == f"error with the following fields:\n{first}{second}"
    assert len(caught.value.hint.splitlines()) == 2


def several(request: PoolRequest) -> str:
    """Return what is said of a pool in which several rules are broken."""
    with pytest.raises(InvalidInput) as caught:
        check_new_pool(request, [])
    head, *lines = str(caught.value).splitlines()
    assert head == "error with the following fields:"
    return "\n".join(line.removeprefix("-  ") for line in lines)


def test_stages_are_told_one_after_the_other() -> None:
    """Host bits hide everything else; the rest is told at once, as upstream: metadata, fields, the schema's order."""
    worst = ask(
        "10.0.1.5/24", name="Bad", block_size=19, node_selector="a ==", allowed_uses=("Gremlin",), ipip_mode="Maybe"
    )
    with pytest.raises(InvalidInput, match="not strictly masked") as caught:
        check_new_pool(worst, [])
    assert "Gremlin" not in str(caught.value)
    starts = [
        "Metadata.Name = 'Bad' (name must consist",
        "NodeSelector = 'a ==' (Reason",
        "IPpool.AllowedUses = '[Gremlin]' (unknown use: Gremlin)",
        'spec.allowedUses[0] (supported values: "Workload", "Tunnel", "LoadBalancer")',
        'spec.ipipMode (supported values: "Never", "Always", "CrossSubnet")',
        f"spec ({BLOCK_SIZE})",
        f"spec ({TOO_SMALL})",
    ]
    lines = several(replace(worst, cidr="10.0.1.0/24")).splitlines()
    assert [line.startswith(start) for line, start in zip(lines, starts, strict=True)] == [True] * len(starts)


def test_what_the_api_server_checks_is_left_to_it() -> None:
    with pytest.raises(InvalidInput) as caught:
        check_new_pool(ask("10.0.1.0/24", block_size=19, allowed_uses=("Workload", "Gremlin")), [], schema=False)
    assert str(caught.value) == "error with field IPpool.AllowedUses = '[Workload Gremlin]' (unknown use: Gremlin)"


@pytest.mark.parametrize(
    ("request_", "lines"),
    [
        (ask("fd00::/64", block_size=26), [f"spec ({BLOCK_SIZE})", f"spec ({TOO_SMALL})"]),
        (
            ask("10.0.0.0/24", block_size=129),
            ["spec.blockSize (spec.blockSize in body should be less than or equal to 128)", f"spec ({BLOCK_SIZE})"],
        ),
        (
            ask("10.0.0.0/16", ipip_mode="Always", vxlan_mode="Always", **LB),
            [
                "spec (ipipMode and vxlanMode cannot both be enabled)",
                "spec (LoadBalancer IP pool cannot have IPIP or VXLAN enabled)",
            ],
        ),
        (
            ask("fe80::/128", ipip_mode="CrossSubnet"),
            [
                "spec (IPIP is not supported on IPv6 pools)",
                "spec (IPPool CIDR overlaps with IPv6 link local range fe80::/10)",
                f"spec ({TOO_SMALL})",
            ],
        ),
        (
            ask("10.0.0.0/16", allowed_uses=ALL, namespace_selector="global()"),
            [
                "spec (LoadBalancer cannot be combined with Workload or Tunnel allowed uses)",
                "spec (IP Pool with AllowedUse Tunnel cannot have namespaceSelector)",
                "spec (global() selector is not valid for IPPool namespaceSelector)",
            ],
        ),
    ],
)
def test_several_rules_are_told_in_the_order_of_the_definition(request_: PoolRequest, lines: list[str]) -> None:
    assert several(request_).splitlines() == lines


def test_a_pool_alone_is_told_its_host_bits_beside_everything_else() -> None:
    with pytest.raises(InvalidInput) as caught:
        check_pool_alone(ask("10.0.1.5/24", node_selector="a =="))
    assert str(caught.value) == (
        "error with the following fields:\n"
        "-  CIDR = '10.0.1.5/24' (Reason: failed to validate Field: CIDR because of Tag: net )\n"
        "-  NodeSelector = 'a ==' (Reason: failed to validate Field: NodeSelector because of Tag: selector )\n"
        "-  spec (IPPool CIDR must be strictly masked)\n"
    )


BLOCKS = [parse_network(text) for text in ("10.0.1.0/26", "10.0.9.0/28", "fd00::/122")]


@pytest.mark.parametrize(("cidr", "size"), [("10.0.1.0/24", 26), ("10.0.2.0/24", 28), ("fd00::/64", 122)])
def test_blocks_of_the_same_size_or_elsewhere_do_not_matter(cidr: str, size: int) -> None:
    check_existing_blocks(ask(cidr, block_size=size), parse_network(cidr), BLOCKS)


@pytest.mark.parametrize(
    ("cidr", "size", "sizes", "way_out"),
    [
        ("10.0.1.0/24", 28, "/26", "Use --block-size 26"),
        ("10.0.0.0/16", 24, "/26 and /28", "Release the addresses of these blocks first, or choose another CIDR"),
        ("fd00::/64", 124, "/122", "Use --block-size 122"),
    ],
)
def test_blocks_of_another_size_refuse_the_pool(cidr: str, size: int, sizes: str, way_out: str) -> None:
    """P01: one address, two blocks, two owners."""
    with pytest.raises(InvalidInput) as caught:
        check_existing_blocks(ask(cidr, block_size=size), parse_network(cidr), BLOCKS)
    reason = "IPPool blocksSize conflicts with existing allocations that use a different blockSize"
    assert str(caught.value) == f"error with field IPPool.Spec.BlockSize = '{size}' ({reason})"
    assert f"{cidr} already holds blocks of {sizes}." in caught.value.hint
    assert way_out in caught.value.hint


@pytest.mark.parametrize(
    ("cidr", "name"),
    [("10.244.0.0/16", "pool-10-244-0-0-16"), (" FD00::/48 ", "pool-fd00---48"), ("::/0", "pool-0"), ("?", "pool-")],
)
def test_default_name(cidr: str, name: str) -> None:
    assert default_pool_name(cidr) == name


def test_default_names_are_names() -> None:
    for cidr in ("10.244.0.0/16", "fd00::/48", "2001:db8::/32"):
        check_new_pool(ask(cidr, name=default_pool_name(cidr)), [])


def test_unique_local_network() -> None:
    assert str(ula_network(0x145FD45712)) == "fd14:5fd4:5712::/48"
    assert str(ula_network((1 << 41) | 1)) == "fd00:0:1::/48"
