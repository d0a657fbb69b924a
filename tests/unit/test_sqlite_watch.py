"""Following the change log of a SQLite store costs next to nothing while nothing happens, however long the log is."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from calico_ipam.datastore.api import Create, Update
from calico_ipam.datastore.paths import PathRange
from calico_ipam.datastore.sqlite import SQLiteStore
from calico_ipam.datastore.sqlite_watch import _BOUNDS, Changes
from calico_ipam.model.keys import ResourceKey
from calico_ipam.model.resource import IP_POOL, Resource

EVERYTHING = PathRange("/", "0")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(tmp_path / "store" / "ipam.db") as opened:
        for number in range(20):
            opened.commit(Create(key(number), pool(number)))
        yield opened


def key(number: int) -> ResourceKey:
    return ResourceKey(IP_POOL, f"p{number}")


def pool(number: int, **more: object) -> Resource:
    return Resource.new(IP_POOL, f"p{number}", {"cidr": f"10.{number}.0.0/16", **more})


def test_the_ends_of_the_log_are_found_without_reading_it(store: SQLiteStore) -> None:
    def plan(connection: sqlite3.Connection) -> list[str]:
        return [str(row[3]) for row in connection.execute(f"EXPLAIN QUERY PLAN {_BOUNDS}")]

    steps = store._run("plan", plan)
    assert not [step for step in steps if step.startswith("SCAN changes")], steps


def test_at_rest_there_is_no_transaction_and_afterwards_nothing_is_missed(store: SQLiteStore) -> None:
    changes = Changes(store, [EVERYTHING], 20)
    asked: list[str] = []

    def poll() -> list[str]:
        asked.clear()

        def traced(connection: sqlite3.Connection) -> None:
            connection.set_trace_callback(asked.append)
            changes._poll(connection)
            connection.set_trace_callback(None)

        store._run("watch", traced)
        told = [change.row.path for change in changes._queue if not isinstance(change, str)]
        changes._queue.clear()
        return told

    assert poll() == []
    assert poll() == []
    assert asked == ["PRAGMA data_version"]

    store.commit(Update(store.get(key(3)), pool(3, vxlanMode="Never")))  # by the very connection that looks
    assert [path.rpartition("/")[2] for path in poll()] == ["p3"]

    another = threading.Thread(target=lambda: store.commit(Update(store.get(key(4)), pool(4, vxlanMode="Never"))))
    another.start()
    another.join()
    assert [path.rpartition("/")[2] for path in poll()] == ["p4"]
    assert poll() == []
    assert asked == ["PRAGMA data_version"]
