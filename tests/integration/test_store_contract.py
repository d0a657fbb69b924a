"""The contract of datastores (tests/store_contract.py, tests/store_contract_live.py) against each backend."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from calico_ipam.datastore.etcd import EtcdStore
from calico_ipam.datastore.kube.store import KubernetesStore
from calico_ipam.datastore.sqlite import SQLiteStore
from tests.etcd_tools import Etcd
from tests.kube_tools import KubeServer
from tests.store_contract import Backend, StoreContract
from tests.store_contract_documents import DocumentStoreContract
from tests.store_contract_live import LiveStoreContract


class TestSQLite(StoreContract, LiveStoreContract, DocumentStoreContract):
    @pytest.fixture
    def backend(self, tmp_path: Path) -> Backend:
        path = tmp_path / "store" / "ipam.db"
        SQLiteStore(path).close()

        def put_text(key: str, text: str) -> None:
            connection = sqlite3.connect(path, timeout=10, isolation_level=None)
            connection.execute("BEGIN IMMEDIATE")
            (newest,) = connection.execute("SELECT coalesce(max(revision), 0) + 1 FROM changes").fetchone()
            connection.execute("INSERT OR REPLACE INTO objects VALUES (?, ?, ?)", (key, text, newest))
            connection.execute("INSERT INTO changes VALUES (?, ?, 'added', ?, 0)", (newest, key, text))
            connection.execute("COMMIT")
            connection.close()

        return Backend(partial(SQLiteStore, path), put_text)


@pytest.fixture(scope="module")
def etcd() -> Iterator[Etcd]:
    with Etcd() as running:
        yield running


class TestEtcd(StoreContract, LiveStoreContract, DocumentStoreContract):
    @pytest.fixture
    def backend(self, etcd: Etcd) -> Backend:
        etcd.begin_anew()  # its history is part of what a watch can tell
        return Backend(partial(EtcdStore, etcd.settings()), etcd.put)


def no_texts(key: str, text: str) -> None:
    raise AssertionError("an API server takes no texts")


class TestKubernetes(StoreContract, LiveStoreContract):
    """The group that clusters have today, ``crd.projectcalico.org/v1``."""

    @pytest.fixture
    def backend(self, kube: KubeServer) -> Backend:
        kube.clear()
        return Backend(partial(KubernetesStore, kube.settings()), no_texts)


@pytest.fixture(scope="module")
def kube_v3() -> Iterator[KubeServer]:
    with KubeServer("v3") as running:
        yield running


class TestKubernetesV3(StoreContract, LiveStoreContract):
    """The group ``projectcalico.org/v3`` stored directly, found by discovery."""

    @pytest.fixture
    def backend(self, kube_v3: KubeServer) -> Backend:
        kube_v3.clear()
        return Backend(partial(KubernetesStore, kube_v3.settings(calico_api_group="")), no_texts)
