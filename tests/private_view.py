"""Private views of /run and /var/lib for a program: locks, markers and the node agent's files are a test's own."""

from __future__ import annotations

from pathlib import Path

#: Namespaces made meanwhile, or removed, are seen: mounts come in from outside (slave), none go out.
_SCRIPT = """
mount --rbind /run/netns "$1/run/netns" && mount --rbind "$1/run" /run && mount --bind "$1/varlib" /var/lib || exit 99
shift
exec "$@"
"""


def private_view(folder: Path) -> list[str]:
    """Return the words to put before a command; below ``folder`` its /run is ``run`` and its /var/lib ``varlib``.

    It stays one process throughout. Exit status 99: the view could not be made.
    """
    for name in ("run/netns", "varlib"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    return ["unshare", "--mount", "--propagation", "slave", "sh", "-c", _SCRIPT, "sh", str(folder)]
