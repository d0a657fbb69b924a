"""The order in which a host tries the blocks of a pool (ipam-library §10.7, §24.10)."""

from __future__ import annotations

from itertools import islice

import pytest

from calico_ipam.model.addresses import contains, parse_network
from calico_ipam.model.block_order import BlockOrder, block_order, host_seed
from calico_ipam.model.go_random import TABLE, GoRandom
from tools.go_random_table import cooked_words, table_text


def test_the_constant_table_follows_from_its_definition() -> None:
    assert table_text(cooked_words()) == TABLE


def test_the_jump_agrees_with_walking() -> None:
    steps = 2000
    words = cooked_words(0)
    tap, feed = 0, 607 - 273
    for _ in range(steps):
        tap, feed = (tap - 1) % 607, (feed - 1) % 607
        words[feed] = (words[feed] + words[tap]) % (1 << 64)
    assert cooked_words(steps) == words


#: first numbers of Go's rand.New(rand.NewSource(seed)).Uint64(), and the one after 2,000 more
GO = {
    1: (5577006791947779410, 8674665223082153551, 15352856648520921629, 5063243833331165138),
    0: (8717895732742165505, 2259404117704393152, 6050128673802995827, 6398385050683532789),
    1258779341: (13767799195581527786, 461448714701784364, 794426057082682889, 11150749516557528663),
    -5: (1811683815564572222, 4427849682616757295, 188166459856594692, 13530000398725049927),
    1787392800250000000: (4312242491419576994, 8569345416538455810, 10374815017307692383, 4465115744283358389),
    2147483647: (8717895732742165505, 2259404117704393152, 6050128673802995827, 6398385050683532789),
}


@pytest.mark.parametrize("seed", GO)
def test_numbers_are_those_of_go(seed: int) -> None:
    source = GoRandom(seed)
    assert tuple(source.uint64() for _ in range(3)) == GO[seed][:3]
    for _ in range(2000):
        source.uint64()
    assert source.uint64() == GO[seed][3]


def test_host_seed() -> None:
    assert [host_seed(h) for h in ("host-a", "node-1", "testHost", "")] == [
        1258779341,
        568266919,
        2118914743,
        2166136261,
    ]


@pytest.mark.parametrize(
    ("pool", "size", "number"),
    [
        ("10.10.0.0/24", 26, 4),
        ("10.10.0.0/16", 20, 16),
        ("10.10.0.0/24", 32, 256),
        ("fd80:24e2:f998:72d6::/120", 122, 4),
        ("fd80:24e2:f998:72d6::/114", 116, 4),
        ("fd80:24e2:f998:72d6::/120", 128, 256),
        ("10.0.0.0/26", 26, 1),
        ("10.0.0.0/27", 26, 0),
    ],
)
def test_every_block_once(pool: str, size: int, number: int) -> None:
    cidr = parse_network(pool)
    blocks = list(block_order(cidr, size, "testHost", 0))
    assert len(blocks) == len(set(blocks)) == number
    assert all(contains(cidr, block) and block.prefixlen == size for block in blocks)


def test_it_goes_round_from_the_start() -> None:
    order = BlockOrder.of_host(parse_network("10.0.0.0/24"), 26, "node-1", 0)
    assert [str(b) for b in order] == ["10.0.0.128/26", "10.0.0.192/26", "10.0.0.0/26", "10.0.0.64/26"]
    assert [order.position(b) for b in order] == [0, 1, 2, 3]
    assert [order.at(p) for p in range(order.count)] == list(order)


def test_what_is_no_block_of_the_pool_has_no_position() -> None:
    order = BlockOrder.of_host(parse_network("10.0.0.0/24"), 26, "node-1", 0)
    for text in ("10.0.1.0/26", "10.0.0.0/27", "10.0.0.0/25", "fd00::/26"):
        assert order.position(parse_network(text)) is None


def test_single_addresses_are_spread_by_the_clock() -> None:
    pool = parse_network("10.0.0.0/16")
    starts = {next(block_order(pool, 32, "node-1", now)) for now in range(20)}
    assert len(starts) > 10
    assert next(block_order(pool, 32, "node-1", 7)) == next(block_order(pool, 32, "node-2", 7))
    assert next(block_order(pool, 26, "node-1", 1)) == next(block_order(pool, 26, "node-1", 2))


def test_a_huge_pool_costs_what_a_small_one_does() -> None:
    pool = parse_network("fd00::/64")
    first = list(islice(block_order(pool, 122, "node-1", 0), 1000))
    order = BlockOrder.of_host(pool, 122, "node-1", 0)
    assert order.count == 1 << 58
    assert order.position(first[999]) == 999
    assert order.at(order.count - 1) != first[0]


def test_a_host_starts_where_upstream_starts_it() -> None:
    starts = {
        ("10.0.0.0/8", 26, "node-1"): "10.39.119.128/26",
        ("192.168.0.0/16", 26, "testHost"): "192.168.4.128/26",
        ("fd00::/57", 121, "host-a"): "fd00::6:6765:293f:110c:6c00/121",
        ("::/0", 122, "host-a"): "7d61:40b6:6b63:7fbd:33a8:c0f4:89bf:35c0/122",
    }
    for (pool, size, host), block in starts.items():
        assert str(next(block_order(parse_network(pool), size, host, 0))) == block
