"""Recorded encodings: keys, names of blocks and handles, affinity values, and whole documents byte for byte."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from calico_ipam.datastore.api import Damaged, Entry, damaged_error
from calico_ipam.datastore.codec import decode, encode
from calico_ipam.datastore.paths import key_of, path_of, ranges_of
from calico_ipam.errors import InvalidInput
from calico_ipam.model.addresses import parse_network
from calico_ipam.model.affinity import BlockOwner
from calico_ipam.model.keys import Affinities, AffinityKey, BlockKey, HandleKey
from tests.shared import golden, recordings

VECTORS = golden("library/vectors")
SCENARIOS = golden("library/etcd")

ROW = AffinityKey(BlockOwner("host", "n"), parse_network("10.0.0.0/26"))


def rows(name: str) -> list[Any]:
    """Return the rows of a table as parameters; one that skips by name where the table is absent."""
    path = VECTORS / f"{name}.json"
    if not path.is_file():
        reason = f"no recordings: {path} is absent (set CALICO_IPAM_SHARED to the folder that holds golden/)"
        return [pytest.param({}, id=f"absent:{name}", marks=pytest.mark.skip(reason=reason))]
    found = json.loads(path.read_text(encoding="utf-8"))["rows"]
    assert found, f"{path} has no rows"
    return [pytest.param(row, id=str(number)) for number, row in enumerate(found)]


@pytest.mark.parametrize("row", rows("block-roundtrip"))
def test_block_roundtrip(row: dict[str, Any]) -> None:
    stored, written = row["stored"], row["written"]
    lower = {name.lower(): value for name, value in stored.items()}
    key = BlockKey(parse_network(lower["cidr"]))
    entry = decode(key, path_of(key), json.dumps(stored), "1")
    assert isinstance(entry, Entry)
    text = encode(key, entry.value, entry.origin)
    # Upstream loses fields it does not know; ours come behind the known ones (datastore §14.12).
    known = {name.lower() for name in json.loads(written)} | {"affinity_claim_time"}
    unknown = {name: value for name, value in stored.items() if name.lower() not in known}
    extra = "".join(
        f",{json.dumps(name)}:{json.dumps(value, separators=(',', ':'))}" for name, value in unknown.items()
    )
    assert text == f"{written[:-1]}{extra}}}"


@pytest.mark.parametrize("row", rows("affinity-values"))
def test_affinity_values(row: dict[str, Any]) -> None:
    found = decode(ROW, path_of(ROW), row["stored"], "1")
    if "error" in row:
        assert isinstance(found, Damaged)
        assert found.reason == row["error"]["text"]
        told = f"failed to parse datastore entry key={path_of(ROW)}; value={row['stored']}: {found.reason}"
        assert str(damaged_error(found)) == told
        return
    assert isinstance(found, Entry)
    assert (found.value.state, found.value.deleted) == (row["state"], row["deleted"])
    assert encode(ROW, found.value, found.origin) == row["serialised"]


@pytest.mark.parametrize("row", rows("affinity-list-prefix"))
def test_affinity_list_prefix(row: dict[str, Any]) -> None:
    scope = Affinities(row["affinity_type"] or None, row["host"] or None, row["ip_version"] or None)
    starts = [each.start for each in ranges_of(scope)]
    upstream = row["prefix"].rstrip("/") + "/"
    assert starts[0] == upstream
    # Without a type upstream forgets virtual owners (datastore §14.9); ours lists them behind.
    also = [] if row["affinity_type"] else [upstream.replace("/v2/host/", "/v2/virtual/")]
    assert starts[1:] == also


@pytest.mark.parametrize("row", rows("key-paths"))
def test_key_paths(row: dict[str, Any]) -> None:
    key = key_of(row["path"])
    listed = {row[name] for name in ("as_blocks", "as_affinities", "as_handles") if name in row}
    if row["key"] is None and "/@/" in row["path"]:
        assert key is None  # a form older than any release that we can meet; upstream lists it, we report nothing
        return
    if row["key"] is None and key is not None:
        pytest.fail(f"{row['path']} is {key}")
    assert (str(key) if key is not None else None) == row["key"]
    assert listed <= {row["key"]}


@pytest.mark.parametrize("row", rows("cidr-names"))
def test_cidr_names(row: dict[str, Any]) -> None:
    if not row["valid"]:
        with pytest.raises(InvalidInput) as caught:
            parse_network(row["text"])
        assert str(caught.value) == row["error"]
        return
    if row["text"] == "":
        with pytest.raises(InvalidInput):  # upstream takes it for "no network" and fails at the key
            parse_network("")
        return
    key = BlockKey(parse_network(row["text"]))
    assert str(key.cidr) == row["canonical"]
    if "key_error" in row:
        return  # upstream cannot name an IPv4-mapped network; ours is plain IPv4
    assert str(key) == row["block_key_text"]
    assert path_of(key) == row["etcd_block_key"]
    assert key_of(path_of(key)) == key


@pytest.mark.parametrize("row", rows("affinity-names"))
def test_affinity_keys(row: dict[str, Any]) -> None:
    key = AffinityKey(BlockOwner(row["affinity_type"], row["host"]), parse_network(row["cidr"]))
    if "etcd_key" not in row:
        with pytest.raises(InvalidInput):
            path_of(key)
        return
    assert path_of(key) == row["etcd_key"]
    assert key_of(row["etcd_key"]) == key
    assert str(key) == row["key_text"]
    (held,) = ranges_of(Affinities(row["affinity_type"], row["host"], key.cidr.version))
    assert held.start == row["etcd_list_prefix"] + "/"


@pytest.mark.parametrize("row", rows("handle-names"))
def test_handle_keys(row: dict[str, Any]) -> None:
    key = HandleKey(row["handle"])
    assert path_of(key) == row["etcd_key"]
    assert str(key) == row["key_text"]
    listed = key_of(row["etcd_key"])
    assert (listed.id if isinstance(listed, HandleKey) else None) == row["listed_as"]


def texts(path: Path) -> Iterator[tuple[str, str]]:
    for key, text in json.loads(path.read_text(encoding="utf-8")).get("raw", {}).items():
        if '": ' not in text:  # what an outsider of the recording wrote, with blanks
            yield key, text


@pytest.mark.parametrize("path", recordings(SCENARIOS))
def test_recorded_texts_are_written_again_byte_for_byte(path: Path) -> None:
    for stored, text in texts(path):
        key = key_of(stored)
        if key is None or path_of(key) != stored:
            continue
        found = decode(key, stored, text, "1")
        if isinstance(found, Damaged):
            assert text == "garbage"
            continue
        if text:
            assert encode(key, found.value, found.origin) == text
