"""Stores that recorded scenarios are replayed on, each with a way round the library to what it holds.

A further store of texts (a real etcd) is one line in ``STORES``; one of another kind brings its own bench.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from calico_ipam.datastore.documents import DocumentStore, RawWrite
from calico_ipam.datastore.etcd import EtcdStore
from calico_ipam.datastore.paths import PathRange, path_of
from calico_ipam.model.keys import Key
from tests.cluster import memory_folder
from tests.etcd_tools import Etcd
from tests.golden.library_kube_bench import KubeBench, RealKubeStore
from tests.golden.library_scenario import State, exact_text, parsed
from tests.golden.replay import Bench
from tests.invariants import violations
from tests.kube_tools import KubeServer
from tests.memory import MemoryStore
from tests.memory_kube import MemoryKubeStore

COUNTS = re.compile(r"counts (\d+) in (\S+), which has (\d+) of it")
EVERYTHING = PathRange.below("/calico/")


def weighed(sentences: Iterable[str]) -> Counter[str]:
    """Count broken invariants, a wrong count of a handle by how much it is wrong: releases change what it counts of."""
    found: Counter[str] = Counter()
    for sentence in sentences:
        counted = COUNTS.search(sentence)
        if counted is None:
            found[sentence] += 1
            continue
        wrong = int(counted[1]) - int(counted[3])
        kind = "many" if wrong > 0 else "few"
        found[f"{sentence[: counted.start()]}{counted[2]}, too {kind}"] += abs(wrong)
    return found


def _sqlite(folder: Path) -> DocumentStore:
    from calico_ipam.datastore.sqlite import SQLiteStore

    return SQLiteStore(folder / "store" / "ipam.db")


def _memory(folder: Path) -> DocumentStore:
    return MemoryStore()


#: name of a bench -> its empty store in a folder
STORES: Mapping[str, Callable[[Path], DocumentStore]] = {"sqlite": _sqlite, "memory": _memory}

#: datastore type of a recording -> benches that it is replayed on
BENCHES: Mapping[str, tuple[str, ...]] = {
    "etcdv3": ("sqlite", "etcd"),
    "kubernetes": ("kubernetes", "kubernetes-memory"),
}
#: the same -> the quickest of its kind, where a test needs many
QUICK: Mapping[str, str] = {"etcdv3": "memory", "kubernetes": "kubernetes-memory"}


class DocumentBench:
    """A store of texts under etcd's keys."""

    def __init__(self, name: str, store: DocumentStore) -> None:
        self.name = name
        self.store = store

    def path(self, key: Key) -> str:
        return path_of(key)

    def texts(self) -> dict[str, str]:
        _, (rows,), _ = self.store._raw_read((), (EVERYTHING,))
        return {row.path: row.text for row in rows}

    def state(self) -> State:
        return {path: parsed(text) for path, text in self.texts().items()}

    def violations(self) -> Counter[str]:
        return weighed(violations(self.store))

    def write(self, document: Mapping[str, Any]) -> None:
        """Carry out a write of a recording: put, or delete when there is no value (README §1.2)."""
        if "value" in document:
            self.put_text(document["key"], exact_text(document["value"]))
        else:
            self.delete(document["key"])

    def put_text(self, key: str, text: str) -> None:
        """Store exactly this text, whatever was there."""
        revision = self._revision(key)
        kind = RawWrite("create", key, text) if revision is None else RawWrite("update", key, text, revision)
        self.store._raw_commit((kind,))

    def delete(self, key: str) -> None:
        revision = self._revision(key)
        if revision is not None:
            self.store._raw_commit((RawWrite("delete", key, expected=revision),))

    def bump(self, key: str) -> None:
        """Write what is there once more, so that its revision is another."""
        (row,), _, _ = self.store._raw_read((key,), ())
        if row is not None:
            self.put_text(key, row.text)

    def close(self) -> None:
        self.store.close()

    def _revision(self, key: str) -> str | None:
        (row,), _, _ = self.store._raw_read((key,), ())
        return None if row is None else row.revision


def quick_bench(backend: str) -> Bench:
    """Return an empty bench for a datastore type that needs no closing."""
    if backend == "kubernetes":
        return KubeBench("kubernetes-memory", MemoryKubeStore())
    return DocumentBench("memory", MemoryStore())


@contextmanager
def open_bench(name: str, fixture: Callable[[str], Any] | None = None) -> Iterator[Bench]:
    """Yield an empty bench; its files live in memory and go away. ``fixture`` gives a server by its fixture's name."""
    if name == "kubernetes-memory":
        yield KubeBench(name, MemoryKubeStore())
        return
    if name == "kubernetes":
        assert fixture is not None, "this bench needs an API server"
        running: KubeServer = fixture("kube")
        running.clear()
        bench = KubeBench(name, RealKubeStore(running.settings()))
        try:
            yield bench
        finally:
            bench.close()
        return
    if name == "etcd":
        assert fixture is not None, "this bench needs an etcd"
        etcd: Etcd = fixture("etcd")
        etcd.clear()
        documents = DocumentBench(name, EtcdStore(etcd.settings()))
        try:
            yield documents
        finally:
            documents.close()
        return
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        documents = DocumentBench(name, STORES[name](Path(folder)))
        try:
            yield documents
        finally:
            documents.close()
