"""Repair of handles: every class, every race of the table, settings (gc §18.1, §19.6; public report P12)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from calico_gc.decide import Rules
from calico_gc.handles import CLASSES, Judged, Observed, classify, due, observe, truth_of
from calico_gc.handles import Rules as HandleRules
from calico_gc.options import HandleOptions, Options

from calico_ipam.datastore.api import Delete, Entry, Listing, Update
from calico_ipam.model.addresses import parse_network
from calico_ipam.model.block import Attribute
from calico_ipam.model.handle import Handle
from calico_ipam.model.keys import BlockKey, Blocks, HandleKey
from tests.gc_things import add_block, add_to_handle, block_of, has_handle, pod_attrs, put, running_pod, stored_block
from tests.gc_world import World

CIDR = "10.0.0.0/26"
GRACE = 900.0


def world_of(**handles: Any) -> World:
    """A world whose node n1 holds 10.0.0.1 (handle good) for a living pod."""
    world = World(options=Options(rules=Rules(leak_grace=GRACE), handles=HandleOptions(**{"rate": 0.0, **handles})))
    world.node("n1")
    running_pod(world, "p", "n1", "10.0.0.1", "10.0.0.2")
    add_block(world, CIDR, "n1", {1: ("good", pod_attrs("n1", "p"))})
    return world


def counts(world: World, handle: str) -> dict[str, int] | None:
    entry = world.store.read(HandleKey(handle)).entry(HandleKey(handle))
    return None if entry is None or entry.value.deleted else dict(entry.value.blocks)


def numbers(world: World) -> dict[str, int]:
    last = world.controller.handles.last
    assert last is not None
    return {kind: number for kind, number in last.numbers.items() if number}


# --- classes ------------------------------------------------------------------------------------------------------


def test_an_orphan_is_removed_after_three_agreeing_looks() -> None:
    world = world_of()
    add_to_handle(world, "orphan", CIDR)
    world.start()
    assert numbers(world) == {"good": 1, "orphan": 1}
    world.run(899)
    assert has_handle(world, "orphan")
    assert world.controller.handles.records["orphan"].observations == 2
    world.run(2)
    assert not has_handle(world, "orphan")
    assert numbers(world) == {"good": 1}
    assert counts(world, "good") == {CIDR: 1}


def test_an_unfinished_deletion_is_finished_whatever_blocks_say() -> None:
    world = world_of()
    put(world, HandleKey("stuck"), Handle("stuck", {CIDR: 1}, deleted=True))
    put(world, HandleKey("good"), Handle("good", {CIDR: 1}, deleted=True))
    world.start()
    assert numbers(world)["stuck"] == 2
    world.run(901)
    assert not has_handle(world, "stuck")
    assert not has_handle(world, "good"), "it becomes missing, with a timer of its own"
    world.run(1400)
    assert counts(world, "good") == {CIDR: 1}


@pytest.mark.parametrize("wrong", [{CIDR: 3}, {CIDR: 1, "10.9.0.0/26": 1}, {"10.9.0.0/26": 2}, {}])
def test_wrong_counts_are_corrected(wrong: dict[str, int]) -> None:
    world = world_of()
    put(world, HandleKey("good"), Handle("good", wrong))
    world.start()
    assert numbers(world) == {"skewed": 1}
    world.run(901)
    assert counts(world, "good") == {CIDR: 1}


def test_a_missing_handle_is_made() -> None:
    world = world_of()
    world.store.commit(Delete(world.store.get(HandleKey("good"))))
    world.start()
    assert numbers(world) == {"missing": 1}
    world.run(901)
    assert counts(world, "good") == {CIDR: 1}


def test_what_is_never_touched() -> None:
    """Windows' handle, kept prefixes, handles with a cooling address that still names them, leaking ones."""
    world = world_of(keep=("keep-",))
    block = block_of(
        world, CIDR, "n1", {1: ("good", pod_attrs("n1", "p")), 2: ("windows-reserved-ipam-handle", {"note": "x"})}
    )
    cooling = Attribute("cooling", released_at=world.clock.now())
    slots = list(block.allocations)
    slots[3] = len(block.attributes)
    free = tuple(o for o in block.unallocated if o != 3)
    put(
        world,
        BlockKey(block.cidr),
        replace(block, allocations=tuple(slots), attributes=(*block.attributes, cooling), unallocated=free),
    )
    for handle in ("windows-reserved-ipam-handle", "keep-me", "cooling"):
        add_to_handle(world, handle, CIDR, 5)
    from tests.gc_things import cooldown

    cooldown(world, 1200)
    world.start()
    world.run(1100)
    for handle in ("windows-reserved-ipam-handle", "keep-me", "cooling"):
        assert counts(world, handle) == {CIDR: 5}


def test_a_handle_with_a_suspected_address_is_left_alone() -> None:
    world = world_of()
    world.no_pod("default", "p")
    put(world, HandleKey("good"), Handle("good", {CIDR: 9}))
    world.start()
    world.run(880)
    assert ("good" in world.controller.handles.records) is False
    assert counts(world, "good") == {CIDR: 9}


def test_a_carriage_return_does_not_make_another_handle() -> None:
    world = world_of()
    put(world, BlockKey(parse_network(CIDR)), block_of(world, CIDR, "n1", {1: ("good\r\neth0", pod_attrs("n1", "p"))}))
    world.start()
    assert numbers(world) == {"good": 1}


def test_names_on_kubernetes_are_compared_in_lower_case() -> None:
    entries = [Entry(HandleKey("net.abc"), Handle("net.abc", {CIDR: 1}), "1")]
    world = world_of()
    block = block_of(world, CIDR, "n1", {1: ("net.ABC", {})})
    wrong, found = classify(entries, truth_of([block]), HandleRules(folded=True))
    assert (wrong, found["good"]) == ({}, 1)
    wrong, _ = classify(entries, truth_of([block]), HandleRules())
    assert {judged.kind for judged in wrong.values()} == {"orphan", "missing"}


@pytest.mark.parametrize("stored", [(), ("net.abc",)])
def test_two_names_of_one_object_are_left_alone(stored: tuple[str, ...]) -> None:
    """On Kubernetes: what the object has to count nobody can tell."""
    entries = [Entry(HandleKey(handle), Handle(handle, {CIDR: 2}), "1") for handle in stored]
    block = block_of(world_of(), CIDR, "n1", {1: ("net.ABC", {}), 2: ("net.abc", {})})
    wrong, _ = classify(entries, truth_of([block]), HandleRules(folded=True))
    assert wrong == {}
    wrong, _ = classify(entries, truth_of([block]), HandleRules())
    assert wrong["net.ABC"].kind == "missing"


def test_a_handle_that_may_be_in_an_unreadable_block_is_left_alone() -> None:
    entries = [Entry(HandleKey("h"), Handle("h", {CIDR: 1}), "1"), Entry(HandleKey("o"), Handle("o", {}), "1")]
    wrong, _ = classify(entries, truth_of([], {CIDR}), HandleRules())
    assert set(wrong) == {"o"}
    wrong, _ = classify(entries, truth_of([], {"?"}, blind=True), HandleRules())
    assert wrong == {}, "nobody knows which block it is"


def test_a_block_that_is_marked_as_deleted_still_refers_to_its_handles() -> None:
    """gc §18.1: whoever reads it again may finish its deletion, and counts the handle down then."""
    world = world_of()
    add_to_handle(world, "marked", "10.0.0.64/26")
    marked = replace(block_of(world, "10.0.0.64/26", "n1", {1: ("marked", pod_attrs("n1", "p"))}), deleted=True)
    world.start()
    listed = world.store.list

    def with_marked(scope: Any) -> Listing:
        found = listed(scope)
        return (
            replace(found, entries=(*found, Entry(BlockKey(marked.cidr), marked, "7"))) if scope == Blocks() else found
        )

    world.worker._list_marked = with_marked
    world.run(4 * GRACE)
    assert has_handle(world, "marked")
    world.worker._list_marked = listed
    world.run(4 * GRACE)
    assert not has_handle(world, "marked")


def test_a_handle_that_cannot_be_read_is_not_missing() -> None:
    world = world_of()
    path = next(path for path in world.store._rows if path.endswith("/good"))  # type: ignore[attr-defined]  # of this test's store
    row = world.store._rows[path]  # type: ignore[attr-defined]  # the same
    world.store._rows[path] = type(row)(path, "{", row.revision)  # type: ignore[attr-defined]  # the same
    world.start()
    assert numbers(world) == {"unreadable": 1}
    world.run(4 * GRACE)
    assert numbers(world) == {"unreadable": 1}
    assert world.controller.record.handle_actions == {}


def test_an_empty_id_is_unreadable() -> None:
    _, found = classify([Entry(HandleKey(""), Handle(""), "1")], truth_of([]), HandleRules())
    assert found == {**dict.fromkeys(CLASSES, 0), "unreadable": 1}


# --- observations ---------------------------------------------------------------------------------------------------


ORPHAN = Judged("h", "orphan", "uid", "7", (), ())


@pytest.mark.parametrize(
    "change",
    [{"revision": "8"}, {"uid": "other"}, {"kind": "skewed"}, {"want": ((CIDR, 2),)}],
    ids=lambda c: next(iter(c)),
)
def test_any_difference_begins_anew(change: dict[str, Any]) -> None:
    records = observe({}, {"h": ORPHAN}, 0.0)
    records = observe(records, {"h": ORPHAN}, 400.0)
    assert records["h"].observations == 2
    records = observe(records, {"h": replace(ORPHAN, **change)}, 800.0)
    assert (records["h"].observations, records["h"].first) == (1, 800.0)


def test_what_is_not_seen_any_more_is_forgotten() -> None:
    assert observe(observe({}, {"h": ORPHAN}, 0.0), {}, 400.0) == {}


@pytest.mark.parametrize(
    ("observations", "age", "confirmed"), [(1, 5000.0, False), (2, 899.0, False), (2, 900.0, True), (3, 900.0, True)]
)
def test_confirmation_needs_looks_and_time(observations: int, age: float, confirmed: bool) -> None:
    assert Observed(ORPHAN, 0.0, age, observations).confirmed(900.0, 2) is confirmed


def test_the_order_of_repair() -> None:
    records = {
        kind: Observed(Judged(kind, kind, "", "1", (), ()), 0.0, 1000.0, 3)
        for kind in ("missing", "skewed", "orphan", "stuck")
    }
    assert [r.judged.kind for r in due(records, 900.0, 2, 10)] == ["stuck", "orphan", "skewed", "missing"]
    assert len(due(records, 900.0, 2, 3)) == 3


def test_losing_leadership_forgets_everything() -> None:
    world = world_of()
    add_to_handle(world, "orphan", CIDR)
    world.start()
    world.run(880)
    world.controller.step_down()
    world.controller.active = True
    world.run(60)
    assert has_handle(world, "orphan")
    assert world.controller.handles.records["orphan"].observations == 1


# --- races (the table of §18.1) ---------------------------------------------------------------------------------------


def racing(world: World, handle: str, rival: Callable[[], object]) -> None:
    """Have ``rival`` act once, in the moment before our first write to ``handle``."""
    commit = world.store.commit
    done: list[bool] = []

    def first_the_rival(*writes: Any) -> Any:
        if not done and any(write.key == HandleKey(handle) for write in writes):
            done.append(True)
            rival()
        return commit(*writes)

    world.store.commit = first_the_rival  # type: ignore[method-assign]  # a fake in its place


def rewrite(world: World, handle: str, blocks: dict[str, int]) -> None:
    entry = world.store.get(HandleKey(handle))
    world.store.commit(Update(entry, Handle(handle, blocks)))


def assign(world: World, ordinal: int, handle: str) -> None:
    before = stored_block(world, CIDR)
    assert before is not None
    taken = {o: (a.handle or "", a.active) for o, a in before.taken()}
    taken[ordinal] = (handle, pod_attrs("n1", "p"))
    put(world, BlockKey(before.cidr), block_of(world, CIDR, "n1", taken))


def test_add_increments_before_our_delete() -> None:
    world = world_of()
    add_to_handle(world, "orphan", CIDR)
    racing(world, "orphan", lambda: rewrite(world, "orphan", {CIDR: 2}))
    world.start()
    world.run(901)
    assert counts(world, "orphan") == {CIDR: 2}
    assert world.controller.record.handle_actions["orphan", "conflict"] == 1
    assert "orphan" not in world.controller.handles.records, "it begins anew"


def test_somebody_else_removes_it_first() -> None:
    world = world_of()
    add_to_handle(world, "orphan", CIDR)
    racing(world, "orphan", lambda: world.store.commit(Delete(world.store.get(HandleKey("orphan")))))
    world.start()
    world.run(901)
    assert not has_handle(world, "orphan")
    assert world.controller.record.handle_actions["orphan", "error"] == 0


def test_add_makes_it_anew_before_our_delete() -> None:
    world = world_of()
    add_to_handle(world, "orphan", CIDR)

    def again() -> None:
        world.store.commit(Delete(world.store.get(HandleKey("orphan"))))
        put(world, HandleKey("orphan"), Handle("orphan", {CIDR: 1}))

    racing(world, "orphan", again)
    world.start()
    world.run(901)
    assert counts(world, "orphan") == {CIDR: 1}


def test_an_add_between_its_two_writes_is_younger_than_the_grace() -> None:
    world = world_of()
    world.start()
    world.run(880)
    add_to_handle(world, "adding", CIDR)
    world.run(120)
    assert has_handle(world, "adding")
    assign(world, 2, "adding")
    world.settle()
    world.run(5000)
    assert counts(world, "adding") == {CIDR: 1}


def test_a_caller_that_stalls_longer_than_the_grace_gets_its_handle_back() -> None:
    world = world_of()
    add_to_handle(world, "stalled", CIDR)
    world.start()
    world.run(901)
    assert not has_handle(world, "stalled")
    assign(world, 2, "stalled")
    world.settle()
    world.run(2000)
    assert counts(world, "stalled") == {CIDR: 1}


def test_a_release_between_block_and_handle_is_one_look_only() -> None:
    world = world_of()
    add_to_handle(world, "releasing", CIDR)
    world.start()
    world.run(100)
    world.store.commit(Delete(world.store.get(HandleKey("releasing"))))
    world.settle()
    world.run(2000)
    assert world.controller.record.handle_actions == {}


def test_counts_that_change_while_wrong_begin_anew() -> None:
    world = world_of()
    put(world, HandleKey("good"), Handle("good", {CIDR: 9}))
    world.start()
    world.run(880)
    rewrite(world, "good", {CIDR: 8})
    world.run(60)
    assert counts(world, "good") == {CIDR: 8}
    assert world.controller.handles.records["good"].observations == 1


def test_a_stale_cache_does_not_decide() -> None:
    """The watch has not told of an address that a fresh list of blocks shows."""
    world = world_of()
    add_to_handle(world, "quiet", CIDR)
    world.start()
    world.run(880)
    assign(world, 2, "quiet")
    world.store.pending.clear()  # type: ignore[attr-defined]  # of this test's store
    world.run(60)
    assert counts(world, "quiet") == {CIDR: 1}


def test_what_we_made_is_taken_back_when_its_addresses_went() -> None:
    world = world_of()
    world.store.commit(Delete(world.store.get(HandleKey("good"))))
    racing(world, "good", lambda: put(world, BlockKey(parse_network(CIDR)), block_of(world, CIDR, "n1")))
    world.start()
    world.run(901)
    assert not has_handle(world, "good")


def test_a_list_that_fails_neither_counts_nor_resets() -> None:
    from calico_ipam.errors import StoreUnavailable
    from calico_ipam.model.keys import Handles

    world = world_of()
    add_to_handle(world, "orphan", CIDR)
    world.start()
    listing = world.store.list

    def failing(scope: Any) -> Any:
        if isinstance(scope, Handles):
            raise StoreUnavailable("no")
        return listing(scope)

    world.store.list = failing  # type: ignore[method-assign]  # a fake in its place
    world.run(460)
    assert world.controller.handles.records["orphan"].observations == 1
    assert world.controller.handles.last is not None
    assert world.controller.handles.last.error == "no"
    world.store.list = listing  # type: ignore[method-assign]  # a fake in its place
    world.run(460)
    assert not has_handle(world, "orphan")


# --- settings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "orphan", "skewed"),
    [
        ({"collect": "report"}, True, False),
        ({"repair": "report"}, False, True),
        ({"collect": "off", "repair": "off"}, True, True),
        ({"grace": None}, True, True),
    ],
)
def test_what_is_switched_off_stays(settings: dict[str, Any], orphan: bool, skewed: bool) -> None:
    world = world_of(**settings)
    add_to_handle(world, "orphan", CIDR)
    put(world, HandleKey("good"), Handle("good", {CIDR: 9}))
    world.start()
    world.run(3000)
    assert has_handle(world, "orphan") is orphan
    assert (counts(world, "good") == {CIDR: 9}) is skewed


def test_repairs_come_in_batches_at_their_pace() -> None:
    world = world_of(batch=10, rate=5.0)
    for n in range(35):
        add_to_handle(world, f"orphan-{n:02}", CIDR)
    world.start()
    world.run(900)
    began = world.clock.mono
    world.run(60)
    left = [n for n in range(35) if has_handle(world, f"orphan-{n:02}")]
    assert left == []
    assert world.controller.record.handle_actions["orphan", "ok"] == 35
    assert world.clock.mono - began >= 6, "35 writes at 5 a second"
    looks = [action.key[1] for action in world.actions if action.key[0] == "handles"]
    assert looks.count("repair") == 4


def test_a_dry_run_removes_nothing() -> None:
    options = Options(rules=Rules(leak_grace=GRACE), handles=HandleOptions(), dry_run=True)
    world = World(options=options)
    add_to_handle(world, "orphan", CIDR)
    world.start()
    world.run(2000)
    assert has_handle(world, "orphan")
    assert world.controller.handles.results == {"orphan": "dry-run"}
    assert world.controller.record.handle_actions == {("orphan", "dryrun"): 1}


# --- one bad object --------------------------------------------------------------------------------------------------


def test_a_handle_that_is_refused_does_not_stand_in_the_way_of_others(caplog: pytest.LogCaptureFixture) -> None:
    from calico_ipam.errors import StoreError

    world = world_of()
    for name in ("net.aaa", "net.bbb"):
        add_to_handle(world, name, CIDR)
    commit = world.store.commit

    def refuse(*writes: Any) -> Any:
        if any(write.key == HandleKey("net.aaa") for write in writes):
            raise StoreError("a webhook says no")
        return commit(*writes)

    world.store.commit = refuse  # type: ignore[method-assign]  # a fake in its place
    world.start()
    world.run(4 * GRACE)
    assert has_handle(world, "net.aaa") and not has_handle(world, "net.bbb")
    assert "handle net.aaa is not repaired: a webhook says no" in caplog.text
    errors = world.controller.record.handle_actions["orphan", "error"]
    assert 1 <= errors <= 4, "once in each handle grace"


def test_repairs_that_fail_are_tried_less_and_less_often() -> None:
    """Each try lists all handles and all blocks."""
    from calico_ipam.errors import StoreUnavailable

    world = world_of()
    add_to_handle(world, "net.aaa", CIDR)

    def away(*writes: Any) -> Any:
        raise StoreUnavailable("away")

    commit, world.store.commit = world.store.commit, away  # type: ignore[method-assign]  # a fake in its place
    world.start()
    world.run(GRACE + 120)
    tried = sum(action.key == ("handles", "repair") for action in world.actions)
    assert 5 < tried <= 20
    world.store.commit = commit  # type: ignore[method-assign]  # as it was
    world.run(60)
    assert not has_handle(world, "net.aaa")
