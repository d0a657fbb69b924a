"""Rows of the tables of datastore §15 that have no file of their own: blocks, affinities, handles, pools."""

from __future__ import annotations

import json

import pytest

from calico_ipam.datastore.api import Create, Delete, Entry
from calico_ipam.datastore.documents import RawWrite
from calico_ipam.datastore.paths import key_of
from calico_ipam.engine.borrowed import list_borrowed
from calico_ipam.engine.client import IPAM
from calico_ipam.engine.resources import Resources
from calico_ipam.errors import InvalidInput, NotFound
from calico_ipam.model.addresses import address_at, ordinal_of, parse_address, parse_network
from calico_ipam.model.affinity import HOST, Affinity, BlockOwner
from calico_ipam.model.config import IPAMConfig
from calico_ipam.model.keys import Affinities, AffinityKey, ConfigKey, HandleKey, Key, ResourceKey
from calico_ipam.model.pool_rules import PoolRequest, check_changed_pool
from calico_ipam.model.resource import IP_POOL, IPAM_CONFIGURATION, Resource
from tests.memory import MemoryStore
from tests.memory_kube import MemoryKubeStore

IPAM_ROOT = "/calico/ipam/v2/"


@pytest.mark.parametrize(
    ("cidr", "size"), [("10.0.0.0/16", 65536), ("10.0.0.0/32", 1), ("10.0.0.0/31", 2), ("fd00::/112", 65536)]
)
def test_sizes(cidr: str, size: int) -> None:
    assert parse_network(cidr).num_addresses == size


@pytest.mark.parametrize(
    ("cidr", "ordinal", "address"),
    [
        ("10.0.0.64/30", 3, "10.0.0.67"),
        ("10.0.128.0/17", 256, "10.0.129.0"),
        ("10.0.128.0/17", 257, "10.0.129.1"),
        ("10.0.0.64/32", 0, "10.0.0.64"),
        ("0.0.0.0/0", 0x01000000, "1.0.0.0"),
        ("::/0", 0xF00D, "::f00d"),
        ("fd00::ff00/120", 255, "fd00::ffff"),
        ("0.0.0.0/0", 0xFFFFFFFF, "255.255.255.255"),
    ],
)
def test_ordinals_there_and_back(cidr: str, ordinal: int, address: str) -> None:
    network = parse_network(cidr)
    assert str(address_at(network, ordinal)) == address
    assert ordinal_of(network, parse_address(address)) == ordinal


@pytest.mark.parametrize(("cidr", "address"), [("10.0.0.64/30", "10.0.0.68"), ("10.0.0.64/30", "10.0.0.63")])
def test_an_address_outside_has_no_ordinal(cidr: str, address: str) -> None:
    with pytest.raises(InvalidInput):
        ordinal_of(parse_network(cidr), parse_address(address))


def test_addresses_of_others_in_a_block_of_ours() -> None:
    """Index 3 points at no attribute."""
    block = {
        "cidr": "10.0.1.0/29",
        "affinity": "host:myhost",
        "allocations": [1, 0, 2, 3, None, None, None, 2],
        "unallocated": [4, 5, 6],
        "attributes": [
            {"handle_id": f"h-{node}", "secondary": {"node": node}} for node in ("myhost", "otherhost", "anotherhost")
        ],
    }
    store = MemoryStore()
    path = f"{IPAM_ROOT}assignment/ipv4/block/10.0.1.0-29"
    store._raw_commit([RawWrite("create", path, json.dumps(block))])
    found = list_borrowed(IPAM(store, hostname="myhost")._engine)
    assert [(str(each.address), each.node) for each in found.addresses] == [
        ("10.0.1.0", "otherhost"),
        ("10.0.1.2", "anotherhost"),
        ("10.0.1.7", "anotherhost"),
    ]
    assert {each.owner for each in found.addresses} == {"myhost"}
    assert found.without_node == 1


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ('{"state":"confirmed"}', "confirmed"),
        ('{"state":"pending","deleted":false}', "pending"),
        ('{"state":"pendingDeletion"}', "pendingDeletion"),
        ('{"STATE":"confirmed","more":1}', "confirmed"),
        ('{"state":null}', ""),
        ("null", ""),
        ("{}", ""),
        ("", ""),
    ],
)
def test_states_of_an_affinity(text: str, state: str) -> None:
    store = MemoryStore()
    store._raw_commit([RawWrite("create", f"{IPAM_ROOT}host/h/ipv4/block/10.0.0.0-26", text)])
    (found,) = store.list(Affinities(HOST, "h"))
    assert found.value.state == state


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("handle/foobar", HandleKey("foobar")),
        ("handle/foobar/baz", None),
        ("handle/foobar/", None),
        ("handles/foobar", None),
        ("config", ConfigKey()),
        ("config/x", None),
    ],
)
def test_paths_of_handles(path: str, key: HandleKey | ConfigKey | None) -> None:
    assert key_of(IPAM_ROOT + path) == key


@pytest.mark.parametrize(
    "key",
    [
        ResourceKey(IP_POOL, ""),
        ResourceKey("Node", ""),
        ResourceKey("WorkloadEndpoint", "", "default"),
        ResourceKey("WorkloadEndpoint", "node-k8s-pod-eth0", ""),
        ResourceKey("Profile", ""),
        HandleKey(""),
    ],
)
@pytest.mark.parametrize("store", [MemoryStore(), MemoryKubeStore()], ids=["documents", "kubernetes"])
def test_what_has_no_name_is_not_asked_for(store: MemoryStore | MemoryKubeStore, key: Key) -> None:
    with pytest.raises(InvalidInput):
        store.get(key)
    with pytest.raises(InvalidInput):
        store.read(key)


@pytest.mark.parametrize("store", [MemoryStore(), MemoryKubeStore()], ids=["documents", "kubernetes"])
def test_affinities_of_two_hosts(store: MemoryStore | MemoryKubeStore) -> None:
    cidrs = [parse_network("10.0.0.0/26"), parse_network("10.0.0.64/26")]
    keys = [AffinityKey(BlockOwner(HOST, host), cidr) for host, cidr in zip(("h1", "h10"), cidrs, strict=True)]
    for key in keys:
        store.commit(Create(key, Affinity("confirmed")))
    assert [each.key for each in store.list(Affinities())] == keys
    assert [each.key for each in store.list(Affinities(HOST, "h1"))] == keys[:1]
    assert [each.key for each in store.list(Affinities(HOST, "h10", 4))] == keys[1:]
    assert store.list(Affinities(HOST, "h10", 6)).entries == ()
    (entry, _) = store.list(Affinities())
    store.commit(Delete(entry))
    with pytest.raises(NotFound):
        store.get(keys[0])


def test_the_settings_of_ipam_are_one_object_by_both_names() -> None:
    """On the Kubernetes API: by the key of the engine, and as an IPAMConfiguration."""
    store = MemoryKubeStore()
    resources = Resources(IPAM(store, hostname="h")._engine)

    def stored() -> Entry:
        return store.get(ConfigKey())

    (made,) = store.commit(Create(ConfigKey(), IPAMConfig(strict_affinity=True, auto_allocate_blocks=True)))
    spec = {"strictAffinity": True, "autoAllocateBlocks": True, "kubeVirtVMAddressPersistence": "Enabled"}
    assert resources.get(IPAM_CONFIGURATION, "default").spec == spec
    spec |= {"maxBlocksPerHost": 1000, "ipCooldownSeconds": 120}
    document = {"kind": IPAM_CONFIGURATION, "metadata": {"name": "default"}, "spec": spec}
    resources.replace(document)
    config: IPAMConfig = stored().value
    assert (config.max_blocks_per_host, config.cooldown_seconds) == (1000, 120)
    assert stored().uid == made.uid
    assert resources.get(IPAM_CONFIGURATION, "default").spec == spec


@pytest.mark.parametrize(
    ("name", "spec"),
    [("other", {}), ("default", {"maxBlocksPerHost": -1}), ("default", {"ipCooldownSeconds": -1})],
)
def test_settings_that_cannot_be(name: str, spec: dict[str, int]) -> None:
    resources = Resources(IPAM(MemoryKubeStore(), hostname="h")._engine)
    spec = {"autoAllocateBlocks": True, "strictAffinity": True, **spec}
    with pytest.raises(InvalidInput):
        resources.create({"kind": IPAM_CONFIGURATION, "metadata": {"name": name}, "spec": spec})


def changed(old: str, new: str, before: int = 0, after: int = 0) -> str:
    stored = Resource.new(IP_POOL, "p", {"cidr": old, "blockSize": before})
    document = {"kind": IP_POOL, "metadata": {"name": "p"}, "spec": {"cidr": new, "blockSize": after}}
    return str(check_changed_pool(PoolRequest.from_document(document), stored))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("2001:cafe:42::00/56", "2001:cafe:42::/56"),
        ("2001:CAFE:42::/56", "2001:cafe:42::/56"),
        ("2001:cafe:42::/56", "2001:cafe:42::/56"),
        # Upstream makes the text canonical before it compares, so what is refused there never reaches it (cli §9.2).
        ("2001:cafe:42::/56", "2001:CAFE:42::00/56"),
    ],
)
def test_the_same_network_in_other_words(old: str, new: str) -> None:
    assert changed(old, new) == "2001:cafe:42::/56"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("2001:cafe:42::/56", "2001:cafe:43::/56"),
        ("2001:cafe:42::/56", "2001:cafe:42::/57"),
        ("nonsense", "2001:cafe:42::/56"),
        ("10.0.0.0/24", "10.0.0.0/25"),
    ],
)
def test_another_network_is_refused(old: str, new: str) -> None:
    with pytest.raises(InvalidInput, match="IPPool CIDR cannot be modified"):
        changed(old, new)


@pytest.mark.parametrize(("before", "after"), [(25, 26), (25, 0), (0, 27)])
def test_another_block_size_is_refused(before: int, after: int) -> None:
    with pytest.raises(InvalidInput, match="IPPool BlockSize cannot be modified"):
        changed("10.0.0.0/16", "10.0.0.0/16", before, after)
    assert changed("10.0.0.0/16", "10.0.0.0/16", 0, 26) == "10.0.0.0/16"
