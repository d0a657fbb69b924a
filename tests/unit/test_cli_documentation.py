"""The examples of docs/cli.md are what the commands say, run one after the other on a small cluster.

``CLI_EXAMPLES=write`` writes them anew.
"""

from __future__ import annotations

import os
import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from calico_ipam.ctl.main import cli
from calico_ipam.datastore.api import Create
from calico_ipam.engine.policy import Retry
from calico_ipam.engine.setup import ensure_cluster
from calico_ipam.engine.world import Engine
from calico_ipam.model.addresses import parse_address
from calico_ipam.model.handle import Handle
from calico_ipam.model.keys import HandleKey, ResourceKey
from calico_ipam.model.resource import WORKLOAD_ENDPOINT, Resource
from tests.cluster import Cluster, cluster
from tests.ctl import Ctl, plain
from tests.shared import REPOSITORY

DOCUMENT = REPOSITORY / "docs" / "cli.md"
EXAMPLE = re.compile(r"^```console\n\$ (ipamctl [^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: What the document calls the files of the test.
PATH, COPY, BACKUP = "/var/lib/calico/ipam.db", "/mnt/copy.db", "/mnt/backup.db"
#: What they say depends on the host: of these commands the lines are compared up to the first colon.
OF_THE_HOST = ("ipamctl doctor --node node-1",)
#: and these of their lines depend on it too
ELSEWHERE = {"plugin", "network", "node", "conflist"}


@pytest.fixture
def world() -> Iterator[Cluster]:
    with cluster() as made:
        made.nodes("node-1")
        made.nodes("node-2", labels={"zone": "b"})
        made.pool("pods", "10.0.0.0/25", 26)
        made.pool("zone-b", "10.1.0.0/24", 28, nodeSelector="zone == 'b'")
        ensure_cluster(Engine(made.store, made.clock, Retry(clock=made.clock)), "0" * 32)
        pod(made, "web", "10.0.0.1", lives=True)
        pod(made, "api", "10.0.0.2", lives=True)
        pod(made, "gone", "10.0.0.3", lives=False)
        made.put(HandleKey("k8s-pod-network.old"), Handle("k8s-pod-network.old", {"10.0.0.0/26": 1}))
        yield made


def pod(world: Cluster, name: str, ip: str, *, lives: bool) -> None:
    attrs = {"node": "node-1", "namespace": "shop", "pod": name, "timestamp": "2026-08-20 10:11:12.1 +0000 UTC"}
    handle = f"k8s-pod-network.{name}"
    world.ipam.assign_ip(parse_address(ip), handle=handle, attrs=attrs, hostname="node-1")
    if lives:
        spec = {"node": "node-1", "pod": name, "orchestrator": "k8s", "containerID": name, "ipNetworks": [f"{ip}/32"]}
        key = ResourceKey(WORKLOAD_ENDPOINT, f"node--1-k8s-{name}-eth0", "shop")
        world.store.inner.commit(Create(key, Resource.new(key.kind, key.name, spec, namespace="shop")))


def said(ctl: Ctl, command: str, folder: Path) -> str:
    places = {COPY: str(folder / "copy.db"), BACKUP: str(folder / "backup.db")}
    for name, place in places.items():
        command = command.replace(name, place)
    _, screen = ctl.on_terminal(*shlex.split(command)[1:], columns=80)
    text = plain(screen).replace(str(ctl.path), PATH).replace(str(ctl.path.parent), str(Path(PATH).parent))
    for name, place in places.items():
        text = text.replace(place, name)
    text = NOTE.sub(lambda match: wrapped(match[0]), text)  # as it is with paths of this length
    text = re.sub(r".*\r(?=.)|\x1b\[\??\d*[A-Za-z]", "", text)  # a spinner, and what wipes it
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines()) + "\n"


NOTE = re.compile(r"^(?:error|warning|note|hint):? .*(?:\n {6}\S.*)*", re.MULTILINE)


def wrapped(note: str) -> str:
    return textwrap.fill(
        " ".join(note.split()), 80, subsequent_indent=" " * 6, break_on_hyphens=False, break_long_words=False
    )


def looked_at(text: str) -> set[str]:
    """Return what a command that depends on the host has looked at."""
    return set(re.findall(r"^(?:ok|!!|XX) ([^:]+):", text, re.MULTILINE)) - ELSEWHERE


def test_examples(world: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ctl = Ctl(world.store.inner.path)  # type: ignore[attr-defined]  # the clusters of tests are files
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    text = DOCUMENT.read_text()
    found = {match[1]: (match[2], said(ctl, match[1], tmp_path)) for match in EXAMPLE.finditer(text)}
    if os.environ.get("CLI_EXAMPLES") == "write":
        now = EXAMPLE.sub(lambda match: f"```console\n$ {match[1]}\n{found[match[1]][1]}```", text)
        DOCUMENT.write_text(now)
        return
    assert found
    for command, (written, now) in found.items():
        if command in OF_THE_HOST:
            assert looked_at(now) == looked_at(written)
            continue
        assert now == written, f"{command}: CLI_EXAMPLES=write writes docs/cli.md anew"


@pytest.mark.parametrize("group", ["", "ipam", "pool", "datastore"])
def test_every_command_has_its_place(group: str) -> None:
    import click

    context = click.Context(cli)
    commands = cli.get_command(context, group) if group else cli
    assert isinstance(commands, click.Group)
    text = DOCUMENT.read_text()
    names = [f"{group} {name}".strip() for name in commands.list_commands(context)]
    assert [name for name in names if f"`ipamctl {name}" not in text and f"$ ipamctl {name}" not in text] == []
