"""Where the recordings are that golden tests replay: ``$CALICO_IPAM_SHARED``, else ``../shared`` of the repository.

Use from a test module::

    FOLDER = golden("library/vectors")          # a Path; may be absent

    @pytest.mark.parametrize("case", recordings(FOLDER))
    def test_replay(case: Path) -> None: ...

A folder that is absent gives one test that skips by its name (and fails in CI), never an empty list of cases that
looks like success.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

REPOSITORY = Path(__file__).resolve().parent.parent
SHARED = (REPOSITORY / os.environ.get("CALICO_IPAM_SHARED", "../shared")).resolve()


def golden(subfolder: str) -> Path:
    """Return the path of a subfolder of golden/, there or not."""
    return SHARED / "golden" / subfolder


def recordings(folder: Path, pattern: str = "*.json") -> list[ParameterSet]:
    """Return the files of a folder in the order of their names, as parameters of a test."""
    found = [pytest.param(path, id=path.relative_to(folder).as_posix()) for path in sorted(folder.rglob(pattern))]
    if found:
        return found
    reason = f"no recordings: {folder} holds no {pattern} (set CALICO_IPAM_SHARED to the folder that holds golden/)"
    return [pytest.param(folder, id=f"absent:{folder.name}", marks=pytest.mark.skip(reason=reason))]
