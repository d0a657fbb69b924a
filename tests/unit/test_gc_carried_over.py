"""Every row of gc §19, every limit of §17 and every invariant of §16, and the tests that show it.

A row without a test, and a test that is named here and does not exist, fails.
"""

from __future__ import annotations

import re

import pytest

from tests.shared import REPOSITORY

TESTS = REPOSITORY / "tests"
COLLECTOR, SYSTEM, HANDLES = "unit/test_gc_collector", "unit/test_gc_system", "unit/test_gc_handles"
LIVE, LOOP, KCC, ADVERSARY = "unit/test_gc_live", "unit/test_gc_loop", "unit/test_gc_kcc", "unit/test_gc_adversary"
REPLAY, SERVERS, STATE = "replay/test_reports_gc", "integration/test_gc_servers", "property/test_gc_state"
REPORT, LEADER, INVARIANTS = "unit/test_gc_report", "unit/test_gc_leader", "unit/test_gc_invariants"

#: gc §19.1, row by row
COLLECTOR_ROWS = {
    "assign then release one allocation": "an_allocation_is_in_every_map_and_then_in_none",
    "the same, confirmed": "a_confirmed_leak_that_somebody_else_releases_is_forgotten",
    "pool, reservations, deleted": "reservations_are_counted_as_their_union",
    "VM allocation, VM in cache": "whether_a_machine_lives",
    "VM allocation, neither VM nor VMI": "whether_a_machine_lives",
    "VM missing, standalone VMI present": "whether_a_machine_lives",
    "VM missing, VMI owned by VirtualMachine": "whether_a_machine_lives",
    "VM allocation with empty namespace and name": "whether_a_machine_lives",
    "KubeVirt informers absent": "whether_a_machine_lives",
    "VM missing, VM grace 1 s": "a_machines_grace_is_at_least_five_minutes",
    "VM missing, VM grace 1 h": "a_machines_grace_is_at_least_five_minutes",
    "VM missing, then VM appears": "a_machine_that_appears_clears_the_suspicion",
    "node add, change, delete, re-add as OpenStack, delete": "nodes_and_their_names",
    "empty /30 added, assigned, released, deleted": "a_block_through_its_life",
    "3 blocks: cooled, cooling, live": "only_blocks_with_ripe_addresses_are_visited",
    "cooldown IP deallocated by update": "a_block_whose_cooling_address_is_freed_by_others_is_not_cold",
    "candidate, same handle/IP, sequence 10 to 11": "same_handle_and_address_assigned_again_begins_anew",
    "blocks before and after their pools": "blocks_find_their_pools",
    "node never existed in K8s": "a_node_that_never_was_in_kubernetes",
    "ClusterInformation ready=false, true, deleted": "readiness_follows_cluster_information",
    "live node, pod missing": "live_node_missing_pod",
    "affinity to null with pod valid; then IP freed": "affinity_goes_and_then_the_address",
    "two IPs one handle": "all_of_a_handle_or_nothing",
    "grace 0, pod missing": "grace_zero_never_releases",
    "one used + one empty block": "an_empty_block_beside_a_used_one_goes",
    "one full + one empty block": "an_empty_block_beside_a_used_one_goes",
    "5 empty /24": "of_five_empty_blocks_one_stays",
    "5 empty /31": "of_five_empty_blocks_one_stays",
    "empty block of unknown dead-node": "full_scan_finds_an_empty_block_of_an_unknown_node",
    "2 nodes x 2 pods; node1 deleted, pods remain; then go": "a_node_goes_before_its_pods",
    "1000 nodes x 5 pods": "only_what_changed_is_looked_at",
    "dead node with one VXLAN tunnel IP": "a_dead_node_with_one_tunnel_goes_in_one_pass",
    "3 dead nodes, release fails for b and c": "nodes_that_fail_do_not_stop_the_others",
    "2 dead nodes with expired cold IPs, one conflicts": "a_conflict_over_cooling_addresses_stops_nobody",
    "all nodes fail": "nodes_that_fail_do_not_stop_the_others",
}
#: gc §19.2 and §19.3
SYSTEM_ROWS = {
    "ipip, vxlan, wireguard IPs on a live node": "tunnel_addresses_of_a_live_node_are_kept",
    "two blocks, IP released": "a_block_that_empties_goes_after_the_grace",
    "same with grace 5 m": "a_block_that_empties_goes_after_the_grace",
    "alloc with only node attr": "an_address_that_only_names_its_node_is_kept",
    "alloc of a missing pod": "an_address_of_a_missing_pod_is_freed_and_the_block_stays",
    "pod with podIP, with podIPs": "what_the_pod_reports",
    "pod without reported IP": "what_the_pod_reports",
    "pod reporting another IP": "what_the_pod_reports",
    "nodes A, B, C": "three_nodes_go_one_after_the_other",
    "handle with a carriage return": "a_handle_with_a_carriage_return_is_released",
    "cnode is not knode": "other_names_for_nodes",
    "Calico node without k8s reference, same name": "a_node_of_another_orchestrator_is_never_touched",
    "IP on a cnode absent from Calico, K8s node present": "a_node_that_calico_does_not_know",
    "neither present": "a_node_that_calico_does_not_know",
    "K8s node deletion removes what is the node's": "a_deleted_kubernetes_node_takes_calicos_with_it",
    "other orchestrator's or nil orchRef nodes stay": "a_deleted_kubernetes_node_takes_calicos_with_it",
    "label sync": "labels_are_copied",
    "19.4: pools + nodes … a deleted": "metrics_through_the_life_of_pools_and_nodes",
    "19.4: reservation on a fresh pool, then deleted": "reserved_addresses_come_and_go",
}
#: the rest of §19: row -> file and test
OTHER_ROWS = {
    "19.1 tombstones": (LIVE, "an_object_that_went_is_told_whatever_its_last_state_was"),
    "19.1 what vanished while nobody watched": (LOOP, "a_watch_that_expires_tells_what_vanished_meanwhile"),
    "19.1 retry controller: fires after its delay": (LOOP, "backoff_doubles_to_a_limit_and_forgets"),
    "19.1 retry controller: five calls, one firing": (LOOP, "five_wishes_to_look_again_are_one_look"),
    "19.5 defaults written when absent": (KCC, "absent_configuration_is_created_as_upstream_does"),
    "19.5 spec mirrored in status": (KCC, "status_is_what_upstream_wrote"),
    "19.5 environment wins and is listed": (KCC, "environment_wins_and_is_listed"),
    "19.5 unchanged spec, no new config": (KCC, "a_changed_level_is_news_and_an_unchanged_spec_is_none"),
    "19.5 changed log level, new config": (KCC, "a_changed_level_is_news_and_an_unchanged_spec_is_none"),
    "19.5 overridden field changed": (KCC, "a_changed_level_is_news_and_an_unchanged_spec_is_none"),
    "19.5 watch error, re-read": (LOOP, "a_watch_that_expires_tells_what_vanished_meanwhile"),
    "19.5 bad numeric environment": (KCC, "what_upstream_would_not_start_with"),
    "19.5 periods from the API": (KCC, "environment_wins_and_is_listed"),
    "19.5 status overwritten by others": (SERVERS, "absent_configuration_is_created_in_upstreams_place"),
    "19.5 KubeVirt absent, later, errors": (LIVE, "kubevirts_machines_are_known_once_they_are_all_listed"),
    "19.5 KubeVirt stopped before": (LIVE, "kubevirt_that_is_stopped_before_it_was_found_stays_unknown"),
    "19.5 cold GC": (COLLECTOR, "cooling_addresses_are_freed_in_one_write"),
    "19.5 readiness when the API server stops": (SERVERS, "it_goes_on_after_the_api_server_was_away"),
    "19.6 C1": (HANDLES, "an_orphan_is_removed_after_three_agreeing_looks"),
    "19.6 C2": (HANDLES, "an_unfinished_deletion_is_finished_whatever_blocks_say"),
    "19.6 C3": (HANDLES, "wrong_counts_are_corrected"),
    "19.6 C4": (HANDLES, "a_missing_handle_is_made"),
    "19.6 C5": (HANDLES, "an_empty_id_is_unreadable"),
    "18.1 race: ADD increments before our PUT": (HANDLES, "add_increments_before_our_delete"),
    "18.1 race: our PUT between ADD's read and write": (HANDLES, "somebody_else_removes_it_first"),
    "18.1 race: hard delete after ADD re-created": (HANDLES, "add_makes_it_anew_before_our_delete"),
    "18.1 race: block write still pending": (HANDLES, "an_add_between_its_two_writes_is_younger_than_the_grace"),
    "18.1 race: a caller that stalls": (HANDLES, "a_caller_that_stalls_longer_than_the_grace_gets_its_handle_back"),
    "18.1 race: DEL wrote block, decrement pending": (
        HANDLES,
        "a_release_between_block_and_handle_is_one_look_only",
    ),
    "18.1 race: C3 while DEL in flight": (HANDLES, "counts_that_change_while_wrong_begin_anew"),
    "18.1 race: two collectors": (HANDLES, "somebody_else_removes_it_first"),
    "18.1 race: block cache stale": (HANDLES, "a_stale_cache_does_not_decide"),
    "19.6 31 092 handles": (REPLAY, "p12_at_full_size"),
    "19.6 lease takeover": (LEADER, "a_held_lease_is_left_alone_until_it_stands_still"),
    "19.6 lost renewals mid-batch": (ADVERSARY, "leadership_is_lost_in_the_middle_of_a_batch"),
    "19.6 dry-run makes zero write calls": (REPORT, "a_dry_run_writes_nothing_at_all"),
    "19.6 report schema": (REPORT, "the_report_keeps_its_schema"),
    "19.6 GC verb": ("unit/test_cni_gc", "without_a_list_nothing_is_known"),
    "19.6 sweeper in a network namespace": (
        "netns/test_node_sweep",
        "a_link_that_nobody_lives_behind_goes_at_the_second_look",
    ),
    "19.6 random events": (STATE, "maps_hold_over_a_long_walk"),
    "20 hammer": ("integration/test_gc_hammer_run", "nothing_that_lives_is_released_and_all_that_is_dead"),
}
#: gc §17
LIMITS = {
    1: (REPLAY, "p12_handles_and_blocks_disagree"),
    2: ("unit/test_engine_limits", "l1_the_handle_counts_what_was_obtained"),
    3: (COLLECTOR, "attributes_that_change_alone_are_taken_over_and_move_the_allocation"),
    4: (COLLECTOR, "attributes_that_change_alone_are_taken_over_and_move_the_allocation"),
    5: (COLLECTOR, "handles_of_machines_that_are_gone_are_told"),
    6: (COLLECTOR, "a_pod_deletion_marks_calicos_name_of_the_node"),
    7: (ADVERSARY, "a_node_that_cannot_be_read_is_asked_less_and_less_often"),
    8: (ADVERSARY, "leaks_that_are_held_cost_no_retries"),
    9: (ADVERSARY, "an_address_that_is_given_to_another_after_the_look"),
    10: (ADVERSARY, "a_right_to_write_that_is_missing_stops_only_what_needs_it"),
    11: (COLLECTOR, "a_conflict_over_cooling_addresses_stops_nobody"),
    12: (COLLECTOR, "a_block_moves_between_owners"),
    13: (COLLECTOR, "a_pool_that_cannot_be_understood_is_left_out"),
    14: (COLLECTOR, "windows_reservations_count_only_when_asked_for"),
    15: (SYSTEM, "an_ended_pod_that_never_had_an_address"),
    16: (SYSTEM, "a_pod_on_another_node_that_reports_the_address_keeps_it"),
    17: (SYSTEM, "addresses_on_further_networks"),
    18: (KCC, "absent_grace_is_not_the_default_and_says_so"),
    19: (COLLECTOR, "the_timer_of_an_empty_block_starts_again_while_it_is_the_only_one"),
    20: (COLLECTOR, "an_unknown_handle_is_not_confirmed"),
    21: (LOOP, "only_the_newest_of_an_object_counts"),
    22: (ADVERSARY, "who_starts_again_begins_with_whole_grace_periods"),
    23: (REPLAY, "p32_fifty_nodes_went_while_nobody_looked"),
    24: (SERVERS, "of_two_collectors_one_acts_and_the_other_follows"),
    25: (SYSTEM, "a_deleted_kubernetes_node_takes_calicos_with_it"),
    26: (SYSTEM, "an_address_without_a_handle_is_told_and_kept"),
    27: (SYSTEM, "a_block_without_an_affinity_row_is_told_and_not_forgotten"),
    28: (COLLECTOR, "a_machines_grace_of_zero_turns_it_off"),
    29: (SYSTEM, "an_address_that_was_free_already_is_not_counted"),
}
ROWS = {
    **{row: (COLLECTOR, name) for row, name in COLLECTOR_ROWS.items()},
    **{row: (SYSTEM, name) for row, name in SYSTEM_ROWS.items()},
    **OTHER_ROWS,
    **{f"limit U{number}": found for number, found in LIMITS.items()},
    "16 invariants": (INVARIANTS, "every_break_of_a_map_is_found"),
}


@pytest.mark.parametrize("row", ROWS)
def test_the_test_of_a_row_exists(row: str) -> None:
    file, name = ROWS[row]
    text = (TESTS / f"{file}.py").read_text(encoding="utf-8")
    assert re.search(rf"^def test_{name}\(", text, re.MULTILINE), f"{file}.py has no test_{name}"


def test_no_limit_is_left_out() -> None:
    assert sorted(LIMITS) == list(range(1, 30))
