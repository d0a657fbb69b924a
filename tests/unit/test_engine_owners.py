"""Owner attributes, and where an address is looked for (ipam-library §15, §24.9)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from calico_ipam import AssignmentAttributes, Owner, OwnerPreconditions, OwnerUpdates
from calico_ipam.datastore.documents import DocumentStore, RawWrite
from calico_ipam.engine.owners import NOBODY
from calico_ipam.errors import (
    AddressInCooldown,
    AlternateOwnerEmpty,
    AlternateOwnerMismatch,
    InvalidInput,
    NotFound,
    OwnerMismatch,
    RefusedError,
)
from calico_ipam.model.addresses import Address, parse_address
from calico_ipam.model.handle_names import vm_handle
from tests.cluster import Cluster, cluster
from tests.invariants import violations

SOURCE = {"pod": "source", "namespace": "ns", "node": "node-1"}
TARGET = {"pod": "target", "namespace": "ns", "node": "node-2"}
HANDLE = vm_handle("", "ns", "vm")


@pytest.fixture
def world() -> Iterator[Cluster]:
    with cluster() as made:
        made.nodes("node-1", "node-2")
        made.pool("pool-4", "10.0.0.0/28", 30)
        made.pool("pool-6", "fd00::/124", 126)
        yield made
        assert violations(made.store.inner) == []


def held(world: Cluster, attrs: dict[str, str], version: int = 4) -> Address:
    (text,) = world.auto(1, version=version, handle=HANDLE, attrs=attrs)
    return parse_address(text.partition("/")[0])


def owners(world: Cluster, ip: Address) -> tuple[dict[str, str], dict[str, str]]:
    found = world.ipam.assignment_attributes(ip)
    return dict(found.active), dict(found.alternate)


def change(world: Cluster, ip: Address, updates: OwnerUpdates, conditions: OwnerPreconditions | None = None) -> None:
    world.ipam.set_owner_attributes(ip, HANDLE, updates, conditions)


@pytest.mark.parametrize(
    ("updates", "expected"),
    [
        (OwnerUpdates(), (SOURCE, {})),
        (OwnerUpdates(active=TARGET), (TARGET, {})),
        (OwnerUpdates(alternate=TARGET), (SOURCE, TARGET)),
        (OwnerUpdates(active=TARGET, alternate=SOURCE), (TARGET, SOURCE)),
        (OwnerUpdates(active={}), ({}, {})),
        (OwnerUpdates(active={}, alternate={}), ({}, {})),
    ],
)
def test_what_is_not_named_stays(
    world: Cluster, updates: OwnerUpdates, expected: tuple[dict[str, str], dict[str, str]]
) -> None:
    ip = held(world, SOURCE)
    change(world, ip, updates)
    assert owners(world, ip) == expected


@pytest.mark.parametrize(
    ("conditions", "holds"),
    [
        (OwnerPreconditions(active=Owner("ns", "source")), True),
        (OwnerPreconditions(active=Owner("ns", "other")), False),
        (OwnerPreconditions(active=Owner("", "source")), False),
        (OwnerPreconditions(active=NOBODY), False),
        (OwnerPreconditions(alternate=NOBODY), True),
        (OwnerPreconditions(alternate=Owner("ns", "target")), False),
        (OwnerPreconditions(active=Owner("ns", "source"), alternate=Owner("ns", "x")), False),
    ],
)
def test_a_condition_that_fails_changes_nothing(world: Cluster, conditions: OwnerPreconditions, holds: bool) -> None:
    ip = held(world, SOURCE)
    updates = OwnerUpdates(active=TARGET, alternate=SOURCE)
    if holds:
        change(world, ip, updates, conditions)
        assert owners(world, ip) == (TARGET, SOURCE)
        return
    with pytest.raises(OwnerMismatch, match=r"^cannot set A"):
        change(world, ip, updates, conditions)
    assert owners(world, ip) == (SOURCE, {})


def test_a_condition_on_what_is_not_changed_is_not_looked_at(world: Cluster) -> None:
    ip = held(world, SOURCE)
    change(world, ip, OwnerUpdates(alternate=TARGET), OwnerPreconditions(active=Owner("ns", "somebody")))
    assert owners(world, ip) == (SOURCE, TARGET)


def test_l12_addresses_that_share_an_owner_are_told_apart(world: Cluster) -> None:
    first, second = (parse_address(t.partition("/")[0]) for t in world.auto(2, handle=HANDLE, attrs=SOURCE))
    change(world, first, OwnerUpdates(active=TARGET))
    assert (owners(world, first), owners(world, second)) == ((TARGET, {}), (SOURCE, {}))


def test_a_handle_that_does_not_hold_the_address(world: Cluster) -> None:
    ip = held(world, SOURCE)
    with pytest.raises(InvalidInput, match=f"^IP {ip} is not assigned to handle other$"):
        world.ipam.set_owner_attributes(ip, "other", OwnerUpdates(active=TARGET))
    with pytest.raises(NotFound, match=r"with error: IP is unassigned$"):
        change(world, ip + 1, OwnerUpdates(active=TARGET))


# --- migration (§15.3) --------------------------------------------------------------------------------------


def promote(world: Cluster, pod: str = "target") -> None:
    world.ipam.ensure_active_vm_owner("", "ns", "vm", pod)


def test_the_target_becomes_the_owner_of_every_address(world: Cluster) -> None:
    ips = [held(world, SOURCE, version) for version in (4, 6)]
    for ip in ips:
        change(world, ip, OwnerUpdates(alternate=TARGET))
    change(world, ips[0], OwnerUpdates(active=TARGET, alternate=SOURCE))  # one was swapped already
    for _ in range(2):
        promote(world)
        assert [owners(world, ip) for ip in ips] == [(TARGET, SOURCE)] * 2


def test_a_source_that_is_gone_leaves_no_alternate(world: Cluster) -> None:
    ip = held(world, SOURCE)
    change(world, ip, OwnerUpdates(active={}, alternate=TARGET))
    promote(world)
    assert owners(world, ip) == (TARGET, {})


def test_nobody_is_promoted_by_mistake(world: Cluster) -> None:
    with pytest.raises(NotFound, match=f"^failed to get IPs for handle {HANDLE}: resource does not exist"):
        promote(world)
    ip = held(world, SOURCE)
    with pytest.raises(AlternateOwnerEmpty, match=f"^AlternateOwnerAttrs is empty for IP {ip}$"):
        promote(world)
    change(world, ip, OwnerUpdates(alternate=TARGET))
    with pytest.raises(AlternateOwnerMismatch):
        promote(world, "third")
    assert owners(world, ip) == (SOURCE, TARGET)


# --- wherever the block is ----------------------------------------------------------------------------------


def disabled(world: Cluster) -> None:
    world.pool("pool-4", "10.0.0.0/28", 30, disabled=True)


def deleted(world: Cluster) -> None:
    world.no_pool("pool-4")


def resized(world: Cluster) -> None:
    world.no_pool("pool-4")
    world.pool("wider", "10.0.0.0/24", 28)


@pytest.mark.parametrize("happened", [disabled, deleted, resized])
def test_an_address_is_found_whatever_became_of_its_pool(world: Cluster, happened: Callable[[Cluster], None]) -> None:
    """A machine that runs in a pool which is drained must migrate like any other."""
    ip = held(world, SOURCE)
    number = world.ipam.assignment_attributes(ip).sequence_number
    happened(world)
    assert world.ipam.assignment_attributes(ip) == AssignmentAttributes(HANDLE, SOURCE, {}, number)
    change(world, ip, OwnerUpdates(alternate=TARGET))
    promote(world)
    assert owners(world, ip) == (TARGET, SOURCE)
    world.configure(cooldown_seconds=30)
    world.ipam.release_by_handle(HANDLE)
    with pytest.raises(AddressInCooldown):
        world.ipam.assignment_attributes(ip)
    with pytest.raises(InvalidInput, match="is not assigned to handle"):
        change(world, ip, OwnerUpdates(active=TARGET))
    world.clock.advance(31)
    with pytest.raises(NotFound):
        world.ipam.assignment_attributes(ip)


def test_what_nobody_holds_is_refused_in_upstreams_words(world: Cluster) -> None:
    ip = held(world, SOURCE)
    disabled(world)
    for free in (ip + 1, parse_address("10.9.9.9")):
        with pytest.raises(NotFound, match=r"with error: No valid IPPool$"):
            world.ipam.assignment_attributes(free)
        with pytest.raises(InvalidInput, match=f"^the provided IP address {free} is not in a configured pool$"):
            change(world, free, OwnerUpdates(active=TARGET))
    six = parse_address("fd00::5")
    with pytest.raises(NotFound, match=r"^resource does not exist: BlockKey\(cidr=fd00::4/126\)"):
        world.ipam.assignment_attributes(six)
    with pytest.raises(NotFound, match=r"^resource does not exist: BlockKey\(cidr=fd00::4/126\)"):
        change(world, six, OwnerUpdates(active=TARGET))


def test_an_address_whose_block_cannot_be_read_is_not_free() -> None:
    path = "/calico/ipam/v2/assignment/ipv4/block/10.9.9.8-29"
    with cluster() as world:
        assert isinstance(world.store.inner, DocumentStore)
        world.store.inner._raw_commit((RawWrite("create", path, "{broken"),))
        with pytest.raises(RefusedError, match=r"block 10\.9\.9\.8/29 of address 10\.9\.9\.9 cannot be read"):
            world.ipam.assignment_attributes(parse_address("10.9.9.9"))
