"""What the documents say of the tree is true: files, names in them, make targets, links between documents."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.shared import REPOSITORY

DOCUMENTS = sorted({*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md"), *REPOSITORY.glob("[!.]*/README.md")})
#: ``path/file.py``, ``path/file.py:name`` or ``folder/`` in backticks.
PLACE = re.compile(r"`((?:[\w.-]+/)+[\w.-]*|[\w-]+\.(?:py|md|toml))(?::(\w+))?`")
#: An API group or the name of an annotation, which is no place in the tree.
DOMAIN = re.compile(r"(?:[\w-]+\.)+(?:org|io)/")
ROOMS = ("calico_ipam", "calico_cni", "gc/calico_gc", "")


def resolve(name: str, document: Path) -> Path | None:
    """Return what a document means: relative to itself, to the repository, or to one of the packages."""
    folders = [document.parent, *(REPOSITORY / room for room in ROOMS)]
    return next((folder / name for folder in folders if (folder / name).exists()), None)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(REPOSITORY).as_posix())
def test_every_place_that_is_named_exists(document: Path) -> None:
    wrong = []
    for name, member in PLACE.findall(document.read_text()):
        if DOMAIN.match(name):
            continue
        place = resolve(name, document)
        if place is None:
            wrong.append(name)
        elif member and not re.search(rf"^\s*(?:def|class) {member}\b|^{member}\b.*=", place.read_text(), re.MULTILINE):
            wrong.append(f"{name}:{member}")
    assert not wrong


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(REPOSITORY).as_posix())
def test_every_link_leads_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\((?!https?://|#)([^)#\s]+)", document.read_text())
    assert [target for target in targets if not (document.parent / target).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(REPOSITORY).as_posix())
def test_every_make_target_exists(document: Path) -> None:
    for target in set(re.findall(r"^(?:sudo )?make ([a-z]\w*)|`(?:sudo )?make ([a-z]\w*)", document.read_text(), re.M)):
        name = "".join(target)
        done = subprocess.run(["make", "--dry-run", name], cwd=REPOSITORY, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
