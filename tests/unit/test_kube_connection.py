"""Settings that stand above a kubeconfig stay there, however often the official client reads its file again."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from calico_ipam.datastore.kube.connection import connect
from calico_ipam.datastore.settings import KUBERNETES, Settings

pytest.importorskip("kubernetes")


def kubeconfig(folder: Path) -> str:
    file = folder / "kubeconfig"
    context = {"cluster": "t", "user": "t"}
    file.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "t", "cluster": {"server": "https://192.0.2.1:6443"}}],
                "users": [{"name": "t", "user": {"token": "of-the-file"}}],
                "contexts": [{"name": "t", "context": context}],
                "current-context": "t",
            }
        )
    )
    return str(file)


def test_an_api_root_outlives_the_first_request(tmp_path: Path) -> None:
    settings = Settings(KUBERNETES, kubeconfig=kubeconfig(tmp_path), k8s_api_endpoint="https://192.0.2.2:1/api/v1/")
    connection = connect(settings)
    for _ in range(3):
        assert connection.authorisation() == "Bearer of-the-file"
        assert connection.server == "https://192.0.2.2:1"


def test_a_token_of_its_own_outlives_the_first_request(tmp_path: Path) -> None:
    connection = connect(Settings(KUBERNETES, kubeconfig=kubeconfig(tmp_path), k8s_api_token="mine"))
    for _ in range(3):
        assert connection.authorisation() == "Bearer mine"


def test_a_renewed_file_is_read_for_a_new_connection(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path)
    Path(path).write_text(Path(path).read_text().replace("of-the-file", "renewed"))
    assert connect(Settings(KUBERNETES, kubeconfig=path)).authorisation() == "Bearer renewed"
