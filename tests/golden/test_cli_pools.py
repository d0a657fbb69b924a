"""Replays how the operator program created pools: what it refused and in which words, what it stored.

Only ``create`` and ``apply`` of new pools of etcd cases. Labels and annotations are no part of this version.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from calico_ipam.engine.policy import Retry
from calico_ipam.engine.pools import create_pool
from calico_ipam.engine.world import Engine
from calico_ipam.errors import IPAMError
from calico_ipam.model.pool_rules import PoolRequest
from tests.cluster import ManualClock
from tests.golden.library_backends import DocumentBench, _sqlite
from tests.shared import golden, recordings

FOLDER = golden("cli")
CASES = [
    *recordings(FOLDER, "ippool-create*-etcd.json"),
    *recordings(FOLDER, "ippool-rules-*-etcd.json"),
    *recordings(FOLDER, "ippool-overlap-etcd.json"),
    *recordings(FOLDER, "ippool-overlap-unparsable-etcd.json"),
    *recordings(FOLDER, "ippool-blocksize-conflict-etcd.json"),
]
POOLS = "/calico/resources/v3/projectcalico.org/ippools/"


def requests(case: Mapping[str, Any]) -> Iterator[tuple[PoolRequest, Mapping[str, Any]]]:
    """Yield what each step that creates a pool asks for, and the step."""
    for step in case.get("steps") or [case]:
        if step["argv"] != ["create", "-f", "in.yaml"]:
            continue
        document = yaml.safe_load(step["files_in"]["in.yaml"])
        metadata, spec = document["metadata"], document.get("spec") or {}
        if any(" " in label for label in metadata.get("labels") or ()):
            continue  # a rule of labels
        yield (
            PoolRequest(
                name=metadata["name"],
                cidr=spec.get("cidr") or "",
                block_size=spec.get("blockSize") or 0,
                node_selector=spec.get("nodeSelector") or "all()",
                namespace_selector=spec.get("namespaceSelector") or "",
                allowed_uses=tuple(spec.get("allowedUses") or ()),
                assignment_mode=spec.get("assignmentMode") or "Automatic",
                disabled=spec.get("disabled") is True,
                nat_outgoing=spec.get("natOutgoing") is True,
                disable_bgp_export=spec.get("disableBGPExport") is True,
                ipip_mode=spec.get("ipipMode") or "Never",
                vxlan_mode=spec.get("vxlanMode") or "Never",
            ),
            step,
        )


@pytest.mark.parametrize("path", CASES)
def test_replay(path: Path, tmp_path: Path) -> None:
    case = json.loads(path.read_text())
    bench = DocumentBench("sqlite", _sqlite(tmp_path))
    clock = ManualClock()
    engine = Engine(bench.store, clock, Retry(clock=clock))
    done = 0
    try:
        for document in case["setup"]:
            bench.write(document)
        for request, step in requests(case):
            done += 1
            stored, refused = create(engine, bench, request)
            if step["exit_code"]:
                assert f"failed to create 'IPPool' resource: [{refused}]\n" == step["stderr"]
            else:
                assert refused is None
                recorded = step["datastore_changed"][POOLS + request.name]
                assert stored is not None
                assert list(stored["spec"].items()) == list(recorded["spec"].items())
                assert stored.keys() == recorded.keys()
    finally:
        bench.close()
    assert done


def create(engine: Engine, bench: DocumentBench, request: PoolRequest) -> tuple[Any, str | None]:
    """Return the stored document, or the text of the refusal."""
    try:
        create_pool(engine, request)
    except IPAMError as error:
        return None, str(error)
    return bench.state()[POOLS + request.name], None
