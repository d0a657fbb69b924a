"""How long things may take, in seconds; in one place, as cni.md §14 has them."""

from __future__ import annotations

#: ``calico -t`` and STATUS: the question whether the datastore answers.
CONNECTION_TEST = 2.0
STATUS = 2.0
#: Reading and writing the endpoint record, the profile and the cluster information; each phase of a verb gets it anew.
RECORDS = 30.0
#: Reading the IPAM settings where their default will do.
SETTINGS = 10.0
#: Taking over the addresses of a virtual machine.
REUSE = 30.0
#: Listing pools.
POOLS = 30.0
#: Waiting for the host-wide lock; longer than the lock's holder may take.
LOCK = 100.0
#: Waiting for an earlier call of the same sandbox.
TURN = 100.0
#: Assigning or releasing, once the lock is held.
ALLOCATION = 90.0
#: Taking back what a failed assignment left.
CLEAN_UP = 30.0
#: Between two looks at a readiness gate, for one look, and for all of them.
GATE_PAUSE = 5.0
GATE_REQUEST = 5.0
GATE_TOTAL = 30.0
#: An allocation or endpoint younger than this is never collected: its ADD may still be running.
COLLECT_AGE = 300.0
