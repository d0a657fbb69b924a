"""Documents of etcd and SQLite: calico_ipam/datastore/{gojson,paths,codec}.py."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from calico_ipam.datastore.api import Damaged, Entry
from calico_ipam.datastore.codec import at_revision, created, decode, encode, rewritten, updated
from calico_ipam.datastore.gojson import BadDocument, parse, serialise
from calico_ipam.datastore.paths import PathRange, key_of, path_of, ranges_of, within_scope
from calico_ipam.errors import InvalidInput, NotSupported
from calico_ipam.model.addresses import parse_network
from calico_ipam.model.affinity import HOST, VIRTUAL, Affinity, BlockOwner
from calico_ipam.model.block import Attribute, Block
from calico_ipam.model.config import IPAMConfig
from calico_ipam.model.handle import Handle
from calico_ipam.model.keys import (
    Affinities,
    AffinityKey,
    BlockKey,
    Blocks,
    ConfigKey,
    HandleKey,
    Handles,
    HostKey,
    Key,
    ResourceKey,
    Resources,
    Scope,
)
from calico_ipam.model.resource import Resource

NET = parse_network("10.0.0.0/30")
KEY = BlockKey(NET)
ROW = AffinityKey(BlockOwner(HOST, "n"), NET)
POOL = ResourceKey("IPPool", "p")
BLOCK: dict[str, Any] = {
    "cidr": "10.0.0.0/30",
    "affinity": "host:n",
    "allocations": [0, None, None, None],
    "unallocated": [1, 2, 3],
    "attributes": [{"handle_id": "h"}],
    "sequenceNumber": 1_787_392_800_250_000_001,
    "sequenceNumberForAllocation": {"0": 1_787_392_800_250_000_000},
    "deleted": False,
}


def read(key: Key, text: str) -> Entry:
    found = decode(key, path_of(key), text, "7")
    assert isinstance(found, Entry), found
    return found


def reason(key: Key, text: str) -> str:
    found = decode(key, path_of(key), text, "7")
    assert isinstance(found, Damaged), found
    assert (found.key, found.path, found.text, found.revision) == (key, path_of(key), text, "7")
    return found.reason


def block(**changes: Any) -> Block:
    value = read(KEY, json.dumps(BLOCK | changes)).value
    assert isinstance(value, Block)
    return value


def compact(document: Any) -> str:
    return json.dumps(document, separators=(",", ":"))


# --- Go's JSON -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a<b", '"a\\u003cb"'),
        ("<a>&b", '"\\u003ca\\u003e\\u0026b"'),
        ("\u2028\u2029é\U0001f600", '"\\u2028\\u2029é\U0001f600"'),
        ('"\\\n\r\t\b\f\0\x1f\x7f', '"\\"\\\\\\n\\r\\t\\b\\f\\u0000\\u001f\x7f"'),
        ("lone \ud800 half", '"lone \ufffd half"'),
        ({"b": 1, "a": (None, True, 2**63)}, '{"b":1,"a":[null,true,9223372036854775808]}'),
    ],
)
def test_text_is_gos(value: Any, text: str) -> None:
    assert serialise(value) == text


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("garbage", "invalid character 'g' looking for beginning of value"),
        ("", "unexpected end of JSON input"),
        ('{"a":1', "unexpected end of JSON input"),
        ('"abc', "unexpected end of JSON input"),
        ("{} x", "invalid character 'x' after top-level value"),
        ("{a:1}", "invalid character 'a' looking for beginning of object key string"),
        ('{"a" 1}', "invalid character '1' after object key"),
        ("NaN", "invalid character 'N' looking for beginning of value"),
        ("[" * 100_000, "exceeded max depth"),
    ],
)
def test_bad_text_is_told_as_go_tells_it(text: str, cause: str) -> None:
    with pytest.raises(BadDocument) as caught:
        parse(text)
    assert str(caught.value) == cause


def test_a_number_of_any_length_is_an_error_or_itself() -> None:
    assert parse("18446744073709551615") == 2**64 - 1
    with pytest.raises(BadDocument):
        parse("1" * 5000)


def test_lone_surrogates_are_replaced_on_reading() -> None:
    assert parse('{"a\\ud800":["\\uDFFFx"]}') == {"a\ufffd": ["\ufffdx"]}


# --- paths ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "path"),
    [
        (BlockKey(parse_network("fd00::/122")), "/calico/ipam/v2/assignment/ipv6/block/fd00::-122"),
        (
            AffinityKey(BlockOwner(VIRTUAL, "load-balancer"), NET),
            "/calico/ipam/v2/virtual/load-balancer/ipv4/block/10.0.0.0-30",
        ),
        (HandleKey("Net.C1"), "/calico/ipam/v2/handle/Net.C1"),
        (ConfigKey(), "/calico/ipam/v2/config"),
        (POOL, "/calico/resources/v3/projectcalico.org/ippools/p"),
        (ResourceKey("WorkloadEndpoint", "w", "ns"), "/calico/resources/v3/projectcalico.org/workloadendpoints/ns/w"),
        (ResourceKey("BlockAffinity", "b"), "/calico/resources/v3/projectcalico.org/blockaffinities/b"),
    ],
)
def test_paths_there_and_back(key: Key, path: str) -> None:
    assert path_of(key) == path
    assert key_of(path) == key


def test_the_legacy_tree_of_a_host_has_a_path() -> None:
    assert path_of(HostKey("n")) == "/calico/ipam/v2/host/n"


@pytest.mark.parametrize(
    "key",
    [
        HandleKey(""),
        HostKey("a/b"),
        AffinityKey(BlockOwner(HOST, ""), NET),
        ResourceKey("IPPool", "a/b"),
        ResourceKey("WorkloadEndpoint", "w"),
        ResourceKey("Nonsense", "n"),
        HandleKey("lone \ud800 half"),
    ],
)
def test_keys_without_a_path_are_refused(key: Key) -> None:
    with pytest.raises(InvalidInput):
        path_of(key)


@pytest.mark.parametrize("prefix", ["/a/", "/a", "z\ud7ff", "q\U0010ffff"])
def test_a_range_holds_what_begins_with_its_prefix(prefix: str) -> None:
    held = PathRange.below(prefix)
    assert held.holds(prefix)
    assert held.holds(prefix + "x")
    assert not held.holds(prefix[:-1])
    assert not held.holds("")


@pytest.mark.parametrize(
    ("scope", "starts"),
    [
        (Blocks(), ["assignment/"]),
        (Blocks(4), ["assignment/ipv4/"]),
        (Affinities(), ["host/", "virtual/"]),
        (Affinities(version=6), ["host/", "virtual/"]),
        (Affinities(None, "n", 6), ["host/n/ipv6/block/", "virtual/n/ipv6/block/"]),
        (Affinities(VIRTUAL, "n"), ["virtual/n/"]),
        (Handles(), ["handle/"]),
    ],
)
def test_ranges(scope: Scope, starts: list[str]) -> None:
    assert [each.start for each in ranges_of(scope)] == ["/calico/ipam/v2/" + start for start in starts]


def test_a_scope_takes_only_its_own() -> None:
    assert within_scope(Affinities(version=4), ROW)
    assert not within_scope(Affinities(version=6), ROW)
    assert not within_scope(Affinities(VIRTUAL), ROW)
    assert not within_scope(Affinities(None, "m"), ROW)
    assert not within_scope(Blocks(), ROW)
    assert within_scope(Resources("WorkloadEndpoint", None, "w"), ResourceKey("WorkloadEndpoint", "w1", "ns"))
    assert not within_scope(Resources("WorkloadEndpoint", None, "x"), ResourceKey("WorkloadEndpoint", "w1", "ns"))


# --- blocks --------------------------------------------------------------------------------------------------


def test_integers_are_exact() -> None:
    assert block().sequence_number == 1_787_392_800_250_000_001
    assert encode(KEY, block(), ()) == compact(BLOCK)


def test_sequence_numbers_are_written_in_the_order_of_texts() -> None:
    key = BlockKey(parse_network("10.0.0.0/28"))
    text = encode(key, replace(Block.new(key.cidr, now=5), sequence_for={10: 1, 9: 2, 1: 3, 0: 4}))
    assert '"sequenceNumberForAllocation":{"0":4,"1":3,"10":1,"9":2}' in text


def test_null_and_empty_stay_apart_until_something_is_written() -> None:
    fresh = Block.new(NET, now=5)
    text = encode(KEY, fresh)
    assert '"attributes":null,' in text
    entry = read(KEY, text)
    assert encode(KEY, entry.value, entry.origin) == text
    used, _ = entry.value.assign(1, handle="h", attrs={})
    after = encode(KEY, used, entry.origin)
    back, _ = used.release_handle("h", cooldown=0, now=9)
    assert '"attributes":[],' in encode(KEY, back, rewritten(used, after))
    assert '"attributes":[],' in encode(KEY, replace(fresh, attributes=()), ())


def test_a_rewrite_remembers_the_null() -> None:
    old = read(KEY, json.dumps(BLOCK | {"attributes": None, "allocations": [None] * 4, "unallocated": [0, 1, 2, 3]}))
    text = encode(KEY, old.value, old.origin)
    assert rewritten(old.value, text) == ("attributes",)


def test_unknown_fields_follow_at_every_level() -> None:
    stored = BLOCK | {"strictAffinity": True, "attributes": [{"handle_id": "h", "new": [1]}], "HOSTAFFINITY": "n"}
    text = encode(KEY, block(**{k: stored[k] for k in ("strictAffinity", "attributes", "HOSTAFFINITY")}), ())
    assert text.endswith('"deleted":false,"hostAffinity":"n","strictAffinity":true}')
    assert '{"handle_id":"h","new":[1]}' in text
    assert "hostAffinity" not in encode(KEY, block(hostAffinity=None), ())


def test_letter_case_and_the_later_key() -> None:
    text = json.dumps({k.upper(): v for k, v in BLOCK.items()} | {"affinity": "host:later"})
    assert read(KEY, text).value == block(affinity="host:later")


@pytest.mark.parametrize(
    "changes",
    [
        {"allocations": [5, None, None, None]},
        {"allocations": [0, None]},
        {"allocations": None},
        {"unallocated": [1, 1, 9, "x"]},
        {"attributes": [None]},
        {"sequenceNumberForAllocation": {"zero": 5}},
        {"attributes": None},
    ],
    ids=lambda changes: json.dumps(changes),
)
def test_damaged_blocks_load_and_tell(changes: dict[str, Any]) -> None:
    loaded = block(**changes)
    assert loaded.problems or changes == {"attributes": [None]}
    assert loaded.size == 4
    assert loaded.allocations[0] is not None  # what may be somebody's address stays taken
    again = read(KEY, encode(KEY, loaded, ())).value
    assert again.allocations == loaded.allocations


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"cidr": ""}, "invalid CIDR address"),
        ({"cidr": "10.0.0.4/30"}, "the document says it is block 10.0.0.4/30, not 10.0.0.0/30"),
        ({"affinity": 5}, "json: cannot unmarshal number into Go struct field AllocationBlock.affinity of type string"),
        ({"sequenceNumber": -1}, "cannot unmarshal number -1"),
        ({"sequenceNumber": 2**64}, "cannot unmarshal number"),
        ({"sequenceNumber": 1.5}, "cannot unmarshal number"),
        (
            {"deleted": "false"},
            "json: cannot unmarshal string into Go struct field AllocationBlock.deleted of type bool",
        ),
        ({"attributes": ["x"]}, "cannot unmarshal string"),
        ({"attributes": [{"secondary": {"a": 1}}]}, "AllocationAttribute.secondary of type string"),
        ({"affinity_claim_time": "yesterday"}, "invalid time: yesterday"),
        ({"allocations": {}}, "cannot unmarshal object"),
    ],
)
def test_what_go_cannot_read_is_damage(changes: dict[str, Any], cause: str) -> None:
    assert cause in reason(KEY, json.dumps(BLOCK | changes))


def test_a_short_block_of_an_absurd_size_takes_no_memory() -> None:
    key = BlockKey(parse_network("::/0"))
    assert "0 allocation slots" in reason(key, '{"cidr":"::/0","allocations":[]}')


def test_times_are_whole_seconds_in_utc() -> None:
    loaded = block(affinity_claim_time="2026-08-22T12:00:00.999+02:00")
    assert '"affinity_claim_time":"2026-08-22T10:00:00Z"' in encode(KEY, loaded, ())
    cold = replace(loaded, attributes=(Attribute(released_at=1_787_392_800_999_999_999),))
    assert '"releasedAt":"2026-08-22T10:00:00Z"' in encode(KEY, cold, ())


# --- the other objects ---------------------------------------------------------------------------------------


def test_an_empty_affinity_is_an_empty_object() -> None:
    assert read(ROW, "").value == read(ROW, "{}").value == Affinity(state="")
    assert reason(HandleKey("h"), "") == "unexpected end of JSON input"


def test_handles() -> None:
    entry = read(HandleKey("h"), '{"Block":{"b/26":2,"a/26":null},"x":{"y":1}}')
    assert entry.value == Handle("h", {"b/26": 2, "a/26": 0}, extra={"x": {"y": 1}})
    assert encode(entry.key, entry.value) == '{"block":{"a/26":0,"b/26":2},"deleted":false,"x":{"y":1}}'
    assert read(HandleKey("h"), '{"block":null}').value.empty
    assert "IPAMHandle.block of type int" in reason(HandleKey("h"), '{"block":{"a":"1"}}')


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{}", IPAMConfig(auto_allocate_blocks=False, kubevirt_persistence=None)),
        (
            '{"strict_affinity":true,"maxBlocksPerHost":4,"kubeVirtVMAddressPersistence":"Disabled","ipCooldownSeconds":-5,"n":1}',
            IPAMConfig(True, False, 4, "Disabled", -5, {"n": 1}),
        ),
        (
            '{"auto_allocate_blocks":true,"kubeVirtVMAddressPersistence":"Enabled","ipCooldownSeconds":60}',
            IPAMConfig(cooldown_seconds=60),
        ),
    ],
)
def test_settings(text: str, value: IPAMConfig) -> None:
    assert read(ConfigKey(), text).value == value
    assert encode(ConfigKey(), value) == text


def test_a_resource_keeps_everything_but_what_the_store_knows() -> None:
    text = '{"spec":{"cidr":"10.0.0.0/16","n":12345678901234567890},"status":{"x":[]},"kind":"IPPool","z":1}'
    entry = read(POOL, text)
    assert entry.value.metadata == {"resourceVersion": "7"}
    assert encode(POOL, entry.value) == (
        '{"kind":"IPPool","apiVersion":"projectcalico.org/v3","metadata":{"name":"p"},'
        '"spec":{"cidr":"10.0.0.0/16","n":12345678901234567890},"status":{"x":[]},"z":1}'
    )


def test_keys_of_a_resource_are_read_in_any_letter_case() -> None:
    key = ResourceKey("IPPool", "p")
    spec = '{"CIDR":"10.0.0.0/24","BLOCKSIZE":28,"X":1}'
    text = f'{{"KIND":"IPPool","MetaData":{{"NAME":"p","Labels":{{"A":"b"}}}},"SPEC":{spec}}}'
    found = decode(key, path_of(key), text, "7")
    assert isinstance(found, Entry)
    assert found.value.labels == {"A": "b"}
    assert found.value.spec == {"cidr": "10.0.0.0/24", "blockSize": 28, "X": 1}
    later = decode(key, path_of(key), '{"spec":{"cidr":"10.0.0.0/24","CIDR":"10.0.1.0/24"}}', "7")
    assert isinstance(later, Entry)
    assert later.value.spec == {"cidr": "10.0.1.0/24"}
    for spec in ("null", "[]", '"x"'):
        odd = decode(key, path_of(key), f'{{"spec":{spec}}}', "7")
        assert isinstance(odd, Entry)
        assert odd.value.spec == {}


def test_metadata_is_written_in_gos_order() -> None:
    document = {
        "metadata": {"labels": {"b": "1", "a": "2"}, "selfLink": "/x", "odd": 1, "uid": "u", "resourceVersion": "9"}
    }
    resource = Resource("WorkloadEndpoint", "w", document, "ns")
    text = encode(ResourceKey("WorkloadEndpoint", "w", "ns"), created(resource, 1_787_392_800_000_000_000))
    assert (
        '"metadata":{"name":"w","namespace":"ns","uid":"u","creationTimestamp":"2026-08-22T10:00:00Z","labels"' in text
    )
    assert text.count("resourceVersion") == text.count("selfLink") == 0
    assert '"odd":1' in text


def test_an_update_keeps_identity_only_where_it_is_missing() -> None:
    before = Resource("IPPool", "p", {"metadata": {"uid": "u", "creationTimestamp": "t"}})
    assert updated(Resource("IPPool", "p", {"metadata": {"uid": ""}}), before).metadata == before.metadata
    assert updated(Resource("IPPool", "p", {"metadata": {"uid": "v"}}), before).metadata["uid"] == "v"
    assert at_revision(before, POOL, "8").metadata["resourceVersion"] == "8"


def test_a_resource_that_is_no_object_is_damage() -> None:
    assert reason(POOL, "[]") == "a IPPool must be a JSON object"


def test_nobody_writes_the_legacy_tree_nor_the_wrong_value() -> None:
    assert read(HostKey("n"), "").value == {}
    with pytest.raises(NotSupported):
        encode(HostKey("n"), Affinity())
    with pytest.raises(TypeError):
        encode(KEY, Affinity())
