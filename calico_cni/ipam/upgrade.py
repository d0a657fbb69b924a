"""Labels on affinity rows that older releases wrote without them (cni.md §7.3, §15.13).

Only custom resources have labels. In etcd and SQLite rows are found by their key, so there is nothing to bring up to
date, and the marker says no more than that somebody looked since the host started.
"""

from __future__ import annotations

from pathlib import Path

from calico_cni.context import Call
from calico_cni.errors import CNIError
from calico_cni.node import reason
from calico_ipam.engine.client import IPAM
from calico_ipam.errors import TransientError

_TRIES = 6
_FIRST_PAUSE = 0.1  # seconds; doubled each time


def upgrade_once(call: Call, ipam: IPAM) -> None:
    """Upgrade this host's rows and make the marker, unless it is there.

    Raises the datastore's error when the rows cannot be upgraded: an assignment that does not see them would claim
    blocks that it does not need. Raises CNIError when the marker cannot be made.
    """
    marker = call.context.paths.upgrade_marker
    if not marker.exists():
        _upgrade(call, ipam)
        _mark(marker)


def upgrade_before_search(call: Call, ipam: IPAM) -> None:
    """Do the same before blocks are searched, where rows have labels; a marker that cannot be made is a warning."""
    if not ipam.store.capabilities.endpoints_are_pods:
        return
    try:
        upgrade_once(call, ipam)
    except CNIError as error:
        call.log.warning("The marker of the upgrade cannot be made; every call will look again", error=error)


def _upgrade(call: Call, ipam: IPAM) -> None:
    for attempt in range(_TRIES):
        try:
            ipam.upgrade_host()
            return
        except TransientError as error:
            if attempt == _TRIES - 1:
                raise
            call.log.info("Affinities of this host could not be upgraded yet", error=error)
            call.context.clock.sleep(_FIRST_PAUSE * 2**attempt)


def _mark(marker: Path) -> None:
    try:
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch(mode=0o644)
    except OSError as error:
        raise CNIError(f"open {marker}: {reason(error)}") from None
