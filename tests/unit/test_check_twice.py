"""A check looks twice where lists are not of one moment: at what was found, and no more is told than both looks saw."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from calico_ipam.ctl.check_text import lines
from calico_ipam.datastore.api import Create, Delete, Update
from calico_ipam.datastore.kube.api import Request
from calico_ipam.engine.check import confirmed, findings, to_read_again
from calico_ipam.engine.policy import Retry, SystemClock
from calico_ipam.engine.survey import Survey, take_survey
from calico_ipam.engine.world import Engine
from calico_ipam.model.addresses import parse_network
from calico_ipam.model.affinity import HOST, Affinity, BlockOwner
from calico_ipam.model.block import Block
from calico_ipam.model.findings import Finding
from calico_ipam.model.handle import Handle
from calico_ipam.model.keys import AffinityKey, BlockKey, HandleKey, ResourceKey
from calico_ipam.model.resource import IP_POOL, Resource
from tests.memory_kube import MemoryKubeStore

CIDR = parse_network("10.0.0.0/26")
NODE = BlockOwner(HOST, "n1")
OLD = {"pod": "p", "namespace": "ns", "node": "n1", "timestamp": "2026-08-20 10:11:12.1 +0000 UTC"}


class Watched(MemoryKubeStore):
    """Remembers what was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def _call(self, request: Request) -> dict[str, object]:
        self.asked.append(request.path.rpartition("/")[2])
        return super()._call(request)


@pytest.fixture
def store() -> Iterator[Watched]:
    with Watched() as made:
        made.add_node("n1")
        made.commit(Create(ResourceKey(IP_POOL, "pool"), Resource.new(IP_POOL, "pool", {"cidr": "10.0.0.0/24"})))
        made.commit(
            Create(AffinityKey(NODE, CIDR), Affinity()), Create(BlockKey(CIDR), Block.new(CIDR, now=1, owner=NODE))
        )
        yield made


def look(
    store: Watched, *, before: Survey | None = None, found: tuple[Finding, ...] = ()
) -> tuple[Survey, list[Finding]]:
    clock = SystemClock()
    survey = take_survey(Engine(store, clock, Retry(clock=clock)), before=before, again=to_read_again(found))
    return survey, findings(survey)


def again(store: Watched, survey: Survey, found: list[Finding]) -> tuple[Survey, list[tuple[str, str]]]:
    store.asked.clear()
    second, also = look(store, before=survey, found=tuple(found))
    return second, [(each.kind, each.subject) for each in confirmed(found, also)]


def hold(store: Watched, handle: str) -> None:
    entry = store.get(BlockKey(CIDR))
    held, _ = entry.value.assign(1, handle=handle, attrs=OLD)
    store.commit(Update(entry, held))


@pytest.mark.parametrize("kept", [True, False])
def test_handles_are_looked_at_again_with_blocks_alone(store: Watched, kept: bool) -> None:
    """A handle is written before its block is (datastore §5): a moment later both are there."""
    store.commit(Create(HandleKey("net.c1"), Handle("net.c1", {str(CIDR): 1})))
    survey, found = look(store)
    assert [(each.kind, each.subject) for each in found] == [("stray-handle", "net.c1")]
    if not kept:
        hold(store, "net.c1")
    second, sure = again(store, survey, found)
    assert sorted(store.asked) == ["ipamblocks", "ipamhandles"]
    assert sure == ([("stray-handle", "net.c1")] if kept else [])
    assert second.nodes == survey.nodes


def test_a_handle_that_was_written_again_is_another(store: Watched) -> None:
    (entry,) = store.commit(Create(HandleKey("vm"), Handle("vm", {str(CIDR): 1})))
    survey, found = look(store)
    store.commit(Delete(entry))
    store.commit(Create(HandleKey("vm"), Handle("vm", {str(CIDR): 1})))
    assert again(store, survey, found)[1] == []


def test_what_is_leaked_depends_on_who_is_there(store: Watched) -> None:
    store.commit(Create(HandleKey("net.c1"), Handle("net.c1", {str(CIDR): 1})))
    hold(store, "net.c1")
    survey, found = look(store)
    assert again(store, survey, found)[1] == [("leaked", "10.0.0.0")]
    assert sorted(store.asked) == ["ipamblocks", "nodes", "pods"]


def test_of_what_may_follow_from_anything_everything_is_read_again(store: Watched) -> None:
    survey, _ = look(store)
    again(store, survey, [Finding("settings", "IPAMConfig", "")])
    assert {"ipamblocks", "ipamhandles", "blockaffinities", "nodes", "pods", "ippools"} <= set(store.asked)


def test_the_words_tell_only_what_is_sure(store: Watched) -> None:
    """Also what calicoctl counts without looking again (limit 18.22)."""
    store.commit(Create(HandleKey("net.c1"), Handle("net.c1", {str(CIDR): 1})))
    survey, found = look(store)
    told, sure = ("\n".join(lines(survey, show_all=True, show_problems=True, found=known)) for known in (found, []))
    assert "net.c1 doesn't have any active IPs." in told
    assert "Check complete; found 1 problems." in told
    assert "net.c1" not in sure
    assert "Check complete; found 0 problems." in sure
