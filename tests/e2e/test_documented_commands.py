"""The commands of the documents, run as they stand: all ``bash`` and ``python`` blocks of a document, in their order.

Blocks without a language are not run: they show output, or commands that would run the tests from a test.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.clock import LONG
from tests.installed import PROGRAMS, cnitool, need_root
from tests.shared import REPOSITORY

BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DOCUMENTS = [
    path for path in (*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md")) if BLOCK.search(path.read_text())
]

#: A machine to play with: the folders that the commands write are overlays whose upper layers are in memory, /tmp is
#: empty but for the repository, if that lies there.
MACHINE = """
mount -t tmpfs none "$SCRATCH"
for place in etc opt var; do
    mkdir "$SCRATCH/$place" "$SCRATCH/$place.work"
    mount -t overlay -o "lowerdir=/$place,upperdir=$SCRATCH/$place,workdir=$SCRATCH/$place.work" none "/$place"
done
mount -t tmpfs none /run
mkdir /run/netns
mount -t tmpfs none /tmp
mkdir -p "$PWD"
mount --no-canonicalize --bind /proc/self/cwd "$PWD"
cd "$PWD"
scripts/private-host
"""


def script_of(document: Path) -> str:
    """Return the blocks of a document as one shell script."""
    parts = []
    for language, text in BLOCK.findall(document.read_text()):
        parts.append(text if language == "bash" else f"python - <<'END_OF_EXAMPLE'\n{text}END_OF_EXAMPLE\n")
    return "\n".join(parts)


def test_there_are_commands_to_run() -> None:
    assert REPOSITORY / "README.md" in DOCUMENTS


@pytest.mark.timeout(300)
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_work(document: Path, tmp_path: Path) -> None:
    need_root()
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("CNI_", "SQLITE_", "DATASTORE_"))
    }
    private = ["unshare", "--mount", "--net", "--propagation=private"]
    done = subprocess.run(
        [*private, "bash", "-euxo", "pipefail", "-c", MACHINE + script_of(document)],
        cwd=REPOSITORY,
        env={**clean, "PATH": f"{PROGRAMS}:{cnitool().parent}:{os.environ['PATH']}", "SCRATCH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=4 * LONG,
        check=False,
    )
    assert done.returncode == 0, f"{done.stderr}\n{done.stdout}"
