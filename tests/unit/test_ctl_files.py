"""Files that ipamctl writes: whole or not at all, and never in place of a device (limit 18.11)."""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from calico_ipam.ctl.report import write_file
from tests.clock import LONG
from tests.cluster import memory_folder
from tests.ctl import PROGRAM, Ctl


@pytest.fixture(scope="module")
def ctl() -> Iterator[Ctl]:
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        made = Ctl(Path(folder) / "ipam.db")
        made.ok("init", "--node", "node-1", "--ipv4-pool", "10.0.0.0/24")
        yield made


def test_a_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_file(str(pipe), "text")
    reader.join(LONG)
    assert read == ["text"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_link_is_followed_and_stays(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("before")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_file(str(tmp_path / "link"), "after")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "after"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "link"]


@pytest.mark.parametrize("command", [("ipam", "check", "-o"), ("datastore", "export", "--force")], ids=" ".join)
def test_standard_output_by_its_name(ctl: Ctl, command: tuple[str, ...]) -> None:
    """A private link to a copy of the descriptor stands for /dev/stdout: a defect must not break the host."""
    with tempfile.TemporaryDirectory() as folder:
        link = Path(folder) / "stdout"
        link.symlink_to("/proc/self/fd/1")
        argv = [*PROGRAM, "--datastore", ctl.url, *command, str(link)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert (done.returncode, link.is_symlink()) == (0, True), done.stderr
        assert '"clusterGUID"' in done.stdout


@pytest.mark.parametrize(
    ("place", "words"),
    [("none/x.json", "No such file or directory"), ("a-file/x.json", "Not a directory"), ("", "Is a directory")],
)
def test_a_file_that_cannot_be_written_is_named(ctl: Ctl, tmp_path: Path, place: str, words: str) -> None:
    (tmp_path / "a-file").touch()
    path = str(tmp_path / place)
    result = ctl("ipam", "check", "-o", path)
    assert result.exit_code == 1
    assert f"error: {path}: {words}" in result.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["a-file"]


def test_a_full_disk_leaves_the_old_report(ctl: Ctl, tmp_path: Path) -> None:
    """A file may be no longer than one block of 512 bytes here."""
    path = tmp_path / "r.json"
    path.write_text("before")
    line = 'ulimit -f 1; trap "" XFSZ; "$@"'
    argv = ["/bin/sh", "-c", line, "sh", *PROGRAM, "--datastore", ctl.url, "ipam", "map", "--html", str(path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr and done.stderr.startswith("error: ")
    assert [each.name for each in tmp_path.iterdir()] == ["r.json"]
    assert path.read_text() == "before"
