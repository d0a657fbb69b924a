"""``ipamctl ipam gc --host``: a host without Kubernetes, whose runtime says who lives (rulings 7 and 23).

The collector is a program of its own that this one may not import; it is started for one look, and its verdict is ours.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from calico_ipam.ctl.output import document, say
from calico_ipam.model.addresses import make_address
from calico_ipam.model.keys import Blocks

if TYPE_CHECKING:
    from calico_ipam.ctl.session import Session

#: seconds between the two looks; an ADD that is under way ends within them
APART = 150
#: exit code of the collector when it found something
FOUND = 3


def collect_on_host(session: Session, *, runtime: str, apart: int, dry_run: bool) -> None:
    """Look twice, ``apart`` seconds from each other, and release what belongs to no container of this host.

    ``runtime``: command that lists the runtime's containers; it then is the one that knows, since libcni's memory of
    attachments outlives a reboot. Without it that memory counts.

    Raises RefusedError with the collector's own words when it could not.
    """
    from calico_ipam.errors import RefusedError

    if session.config is not None:
        raise RefusedError(
            "--host does not take --config", hint="Name the datastore with --datastore or in the environment."
        )
    arguments = [
        *(
            "--once",
            "--host",
            f"--leak-grace={apart}s",
            f"--vm-grace={apart}s",
            "--events=false",
            "--leader-elect=false",
        ),
        *("--handle-gc=off", "--handle-repair=off", "--listen=", "--log-level=warning"),
        *([f"--host-runtime={runtime}", "--host-cache="] if runtime else []),
        *([f"--datastore={session.datastore}"] if session.datastore else []),
        *(["--dry-run"] if dry_run else []),
    ]
    before = _held(session)
    done = subprocess.run(  # noqa: S603  # our own program
        [sys.executable, "-m", "calico_gc.main", *arguments],
        env=dict(session.environ),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode not in (0, FOUND):
        raise RefusedError(
            f"the collector ended with {done.returncode}",
            hint="What it said is above; it needs the packages of the extra [gc].",
        )
    _tell(session, json.loads(done.stdout), sorted(before - _held(session)))


def _held(session: Session) -> set[tuple[int, int, str, int]]:
    """Return (version, address, handle, sequence number) of everything that is held."""
    return {
        (block.cidr.version, int(block.address(ordinal)), attribute.clean_handle, block.sequence_of(ordinal))
        for block in (entry.value for entry in session.store.list(Blocks()))
        for ordinal, attribute in block.taken()
        if not attribute.cold
    }


def _tell(session: Session, report: dict[str, Any], released: Sequence[tuple[int, int, str, int]]) -> None:
    texts = [(str(make_address(version, value)), handle) for version, value, handle, _ in released]
    if session.wants_document:
        document({**report, "released": [{"ip": ip, "handle": handle} for ip, handle in texts]}, session.output)
        return
    for ip, handle in texts:
        say(f"  released {ip}  {handle}")
    for leak in report["leaks"]:
        say(f"  {leak['ip']}  {leak['handle']}: {leak['state']}, {leak['reason']}")
    for error in report["errors"]:
        say(f"  {error}")
    say(f"Released {len(texts)} addresses; {len(report['leaks'])} are still suspected.")
