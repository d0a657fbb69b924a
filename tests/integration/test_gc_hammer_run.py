"""A short hammer on a real API server: two collectors, killed in the middle of their work, and the judge watching."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from calico_ipam.datastore.kube.store import KubernetesStore
from calico_ipam.model.keys import Affinities, Blocks, Handles
from tests.kube_tools import KubeServer

SHORT = ("--nodes=6", "--pods-per-node=4", "--parallel=6", "--churn=12s", "--restart-gc-every=5s", "--leak-grace=2s")


@pytest.mark.timeout(400)
@pytest.mark.parametrize("collectors", [2])
def test_nothing_that_lives_is_released_and_all_that_is_dead(kube: KubeServer, tmp_path: Path, collectors: int) -> None:
    kube.clear()
    outcome = tmp_path / "outcome.json"
    log = tmp_path / "collectors.log"
    arguments = [
        *(sys.executable, "-m", "calico_gc.main", "hammer", *SHORT, f"--collectors={collectors}", "--orphans=20"),
        *("--leave-handles", "--timeout=180s", f"--json={outcome}", f"--collector-log={log}"),
    ]
    environ = {
        "PATH": os.environ["PATH"],
        "KUBECONFIG": str(kube.folder / "kubeconfig"),
        "DATASTORE_TYPE": "kubernetes",
        "CALICO_API_GROUP": kube.api_version,
    }
    done = subprocess.run(arguments, env=environ, capture_output=True, text=True, timeout=380, check=False)
    found = json.loads(outcome.read_text()) if outcome.exists() else {}
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-3000:]}\n{log.read_text()[-3000:]}"
    assert found["good"] and found["violations"] == []
    assert found["left"]["blocks"] == found["left"]["affinities"] == 0
    assert found["counts"]["restarts"] >= 1 and found["counts"]["looks"] >= 10
    assert min(found["counts"][name] for name in ("added", "removed", "leaked", "crashed")) > 0
    assert min(found["calls"][name] for name in ("create pods", "create nodes", "delete nodes", "create Handle")) > 0
    assert found["seconds"]["clean"] > 0
    assert "Traceback" not in log.read_text()
    with KubernetesStore(kube.settings()) as store:  # everything is cleaned up after itself
        assert [len(store.list(scope)) for scope in (Blocks(), Affinities(), Handles())] == [0, 0, 0]
    assert kube.get("/api/v1/nodes")["items"] == []
