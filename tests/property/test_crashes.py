"""Every public operation, cut at every write, in every world, is whole after one more call (see tests.crashes)."""

from __future__ import annotations

import inspect

import pytest

from calico_ipam.engine.client import IPAM
from tests.crashes import OPERATIONS, STORES, WORLDS, Operation, count_writes, run

#: public methods that never write
READERS = frozenset(
    {"within", "ips_by_handle", "assignment_attributes", "get_config", "get_utilization", "store", "clock"}
)
#: promotion of a migration target is set_owner_attributes per address
BY_ANOTHER = {"ensure_active_vm_owner": "set-owner-attributes", "release_block_affinity": "release-affinity"}


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: o.name)
def test_cut_at_every_write(operation: Operation, store: str) -> None:
    writes = count_writes(operation, store)
    assert writes > 0
    for write in range(1, writes + 1):
        for world in WORLDS:
            outcome = run(operation, store, write, world)
            assert not outcome.problems, outcome


def test_the_table_has_every_public_operation() -> None:
    public = {name for name, _ in inspect.getmembers(IPAM) if not name.startswith("_")} - READERS
    named = {o.name.partition(":")[0].replace("-", "_") for o in OPERATIONS}
    missing = {name for name in public if BY_ANOTHER.get(name, name).replace("-", "_") not in named}
    assert missing <= {"upgrade_host"}, missing  # it relabels rows, one by one; each write stands alone
