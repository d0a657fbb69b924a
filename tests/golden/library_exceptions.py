"""Where ours differs from upstream on purpose: one table, keyed by the limit of ipam-library §23 that is beaten.

An exception is a predicate over the recorded step (never over a file name, ruling 26) and a change of what is expected:
everything that it does not change is still compared. One that a step does not need any more fails there.

Keys that are no limit: ``typed`` (addresses, sizes and choices are values, so what is malformed never reaches the
library), ``atomic`` (block, handle and affinity row change in one commit, design §3.2), ``snapshot`` (what upstream
reads piece by piece is one read, ruling 14), ``bounds`` (settings that the resource definition refuses are refused on
every store), ``fields`` (fields that are unknown or absent stay as they are, design §3.3), ``§15`` (an address
is found in a pool that is disabled or gone, too, so that a machine there can migrate), ``§13.2`` (of several blocks
that fail upstream tells of any), ``§13.4`` (what decides nothing is not read), ``§14.4`` (a pool that goes takes
virtual hosts' blocks along on every store, as upstream does on Kubernetes only), ``P…`` (a public report whose cure
differs from what upstream does).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.golden import library_document_patches as document
from tests.golden import library_kube_patches as kube
from tests.golden import library_patches as patch
from tests.golden import library_races as race
from tests.golden import library_release_patches as release
from tests.golden import library_reruns as rerun
from tests.golden.library_scenario import Expectation, Moment, State


@dataclass(frozen=True)
class Difference:
    """``ours``: what our library does instead, in a sentence. ``resync``: see :mod:`tests.golden.replay`."""

    limit: str
    ours: str
    when: Callable[[Moment, State], object]
    change: Callable[[Moment, Expectation, State], None]
    resync: bool = True

    def applies(self, moment: Moment, ours: State) -> bool:
        return bool(self.when(moment, ours))

    def expect(self, moment: Moment, expected: Expectation, ours: State) -> None:
        self.change(moment, expected, ours)


EXCEPTIONS: tuple[Difference, ...] = (
    Difference("L2", "… and so does not reach the cap by itself", race.cap_reached_by_retries, rerun.as_if_undisturbed),
    Difference("L4", "wrong families are refused before anything is assigned", patch.late_refusal, patch.nothing_done),
    Difference("L5", "a race lost while claiming is run again", race.claim_disturbed, rerun.as_if_undisturbed),
    Difference("L5", "a block that fills up while it is claimed is passed over", race.filled, race.next_block),
    Difference(
        "L8",
        "an affinity row whose block is missing or somebody else's is removed by a release",
        release.releases_stale_rows,
        release.drop_stale_rows,
    ),
    Difference("L8", "a block whose row is missing can be released", release.releases_rowless, release.give_up_rowless),
    Difference(
        "L10",
        "releasing a handle removes all of it, entries for blocks that are gone or hold nothing included",
        patch.leaves_handle,
        patch.remove_handle,
        resync=False,
    ),
    Difference("L10", "… so the handle is not there afterwards", patch.handle_is_gone, patch.no_such_handle),
    Difference("L11", "doubled free addresses cause no write", release.useless_write, release.not_written),
    Difference(
        "§13.2", "the error told is that of the block named first", rerun.told_of_another, rerun.the_other_error
    ),
    Difference(
        "L15",
        "a handle at its cap gets what it holds, with the block's prefix, whether or not a block has room",
        patch.at_cap,
        rerun.give_held,
    ),
    Difference("P07", "a tunnel address is never borrowed", rerun.tunnel_borrows, patch.do_not_borrow),
    Difference("L19", "counts are exact for pools of any size", document.saturated, document.exact_counts),
    Difference("L19", "IPv6 blocks in no pool are shown", document.hides_orphans, document.show_orphans),
    Difference("L22", "addresses mature in the order of their release", release.matures_by_ordinal, release.by_release),
    Difference("§15", "an address is found whatever became of its pool", rerun.looks_too_narrowly, rerun.as_if_pooled),
    Difference(
        "L12", "an address gets its own owner, others of the handle keep theirs", document.shared, document.unshare
    ),
    Difference("L9", "an empty block of nobody can be taken", rerun.reclaims_unowned, rerun.reclaim),
    Difference("L9", "one that empties by cooling down goes", rerun.empties_unowned, rerun.remove_emptied),
    Difference("L26", "a pool whose selector does not parse is left out", patch.bad_selector, rerun.without_bad_pools),
    Difference("L27", "AssignIP confirms the row of an own block", patch.unconfirmed, patch.confirm),
    Difference("L29", "a handle that could never be listed is refused", patch.unlistable, patch.refuse_handle),
    Difference("L30", "what cannot be read counts as taken", patch.unreadable, rerun.beside_damaged),
    Difference("L31", "a write whose answer is lost is looked up", race.answer_lost, rerun.as_if_undisturbed),
    Difference("§14.4", "a pool takes virtual hosts' blocks along", release.virtual_in_pool, release.release_virtual),
    Difference("atomic", "there is no half-claimed block to fail or race on", race.half_claim, race.without_missed),
    Difference("atomic", "a claim that fails leaves no row", race.left_pending, race.no_row),
    Difference("snapshot", "settings are read once", race.settings_reread, race.without_missed),
    Difference("L5", "a block that goes away is looked for again", race.block_gone, race.as_if_never_there),
    Difference("atomic", "a handle that fails keeps its addresses", race.handle_keeps, race.nothing_changes),
    Difference("atomic", "a release that fails leaves the row as it was", race.half_release, race.row_unchanged),
    Difference("atomic", "a block is taken from its owner whole", race.reclaim_fails, race.without_missed),
    Difference("atomic", "a handle is counted down once", race.counts_down_in_steps, race.without_missed),
    Difference("atomic", "a handle that cannot be written is a block that cannot", race.handle_fails, race.say_so),
    Difference("atomic", "an own block without a row is rewritten with it", race.lost_to_self, race.one_more_write),
    Difference("atomic", "… also when it is claimed once more", release.claims_own, release.rewrite_own),
    Difference("bounds", "settings out of bounds are refused", document.out_of_bounds, document.refuse_settings),
    Difference("fields", "unknown fields of a block survive", document.drops_fields, document.keep_fields),
    Difference("fields", "an absent map stays absent", document.makes_map, document.keep_absent),
    Difference("§13.4", "a node that decides nothing is not read", race.node_unread, race.nothing_surfaces),
    Difference("snapshot", "a prelude that cannot be read is an error", race.prelude_fails, race.store_error),
    Difference("typed", "malformed addresses do not reach the library", document.malformed, document.invalid_input),
    Difference("typed", "addresses have one spelling", document.other_spelling, document.one_spelling),
    Difference("L25", "a row of another owner of the same name stays", kube.drops_namesake, kube.keep_namesake),
    Difference("§14.3", "blocks marked as deleted are not there", kube.counts_marked, kube.without_marked),
    Difference("§14.8", "handles that would share an object are refused", kube.shares_object, kube.refuse_namesake),
    Difference("§14.8", "… and an object is only its own handle's", kube.reads_shared, kube.no_shared),
    Difference("L29", "a handle that cannot be an object's name is refused", kube.unnameable, kube.refuse_name),
    Difference("typed", "a handle has a name", kube.no_handle, kube.refuse_empty),
    Difference(
        "L17",
        "rows of blocks that are not the host's do not count towards its limit",
        rerun.counts_stale_rows,
        rerun.without_stale_rows,
    ),
    Difference(
        "L1",
        "… so a handle is at its cap only by addresses that it really holds",
        rerun.cap_reached_by_counts,
        rerun.as_if_undisturbed,
    ),
    Difference("L15", "a handle that counts too much is corrected", rerun.corrects_handle, rerun.as_if_undisturbed),
    # The last ones: they count what the others have left in the blocks.
    Difference(
        "L1",
        "the handle counts the addresses that were obtained, not those that were asked for",
        patch.miscounts("auto_assign", "release_ips"),
        patch.count_exactly,
        resync=False,
    ),
    Difference(
        "L2",
        "a lost race of AssignIP leaves no count behind",
        patch.miscounts("assign_ip"),
        patch.count_exactly,
        resync=False,
    ),
)
