"""Labels on affinity rows that older releases wrote without them (cni.md §7.3, §15.13).

Only custom resources have labels. In etcd and SQLite rows are found by their key, so there is nothing to bring up to
date and the marker says no more than that somebody looked since the host started.
"""

from __future__ import annotations

from pathlib import Path

from calico_cni.errors import CNIError
from calico_cni.node import reason


def mark_upgraded(marker: Path) -> None:
    """Make the marker file unless it is there. Raises CNIError, as upstream fails the ADD then."""
    if marker.exists():
        return
    try:
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch(mode=0o644)
    except OSError as error:
        raise CNIError(f"open {marker}: {reason(error)}") from None
