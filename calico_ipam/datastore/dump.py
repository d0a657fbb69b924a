"""The whole of a datastore as a plain file, and from one datastore into another (design §3.3).

A dump is lines of JSON: the first says what it is, every other holds one object under etcd's key. A document is shown
as it is where that gives back the very same text, else as that text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from calico_ipam.datastore.documents import DocumentStore, RawLoss, RawWrite, Row
from calico_ipam.datastore.gojson import BadDocument, parse, serialise
from calico_ipam.datastore.paths import PathRange
from calico_ipam.errors import Conflict, InvalidInput, NotSupported, RefusedError

FORMAT, VERSION = "calico-ipam-dump", 1
EVERYTHING = PathRange.below("/calico/")
#: writes of one transaction; etcd refuses more than 128
BATCH = 100


@dataclass(frozen=True, slots=True)
class Dump:
    """What a dump file holds."""

    source: str
    objects: Mapping[str, str]  #: key to text


@dataclass(frozen=True, slots=True)
class Comparison:
    """How two datastores differ."""

    same: int
    missing: tuple[str, ...] = ()  #: keys that only the first has
    extra: tuple[str, ...] = ()  #: keys that only the second has
    different: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        return not (self.missing or self.extra or self.different)


def documents_of(store: Any) -> DocumentStore:
    """Return a store whose content is texts under keys. Raises NotSupported for the Kubernetes API."""
    if isinstance(store, DocumentStore):
        return store
    raise NotSupported(
        "Export", store.name, "a dump is made of SQLite or etcd; kubectl and velero keep custom resources"
    )


def read_all(store: DocumentStore) -> dict[str, str]:
    """Return everything of Calico's at one moment: key to text."""
    _, (rows,), _ = store._raw_read((), (EVERYTHING,))
    return {row.path: row.text for row in rows}


def lines_of(store: DocumentStore) -> Iterator[str]:
    """Yield the lines of a dump, each with its line feed."""
    objects = read_all(store)
    header = {"format": FORMAT, "version": VERSION, "source": store.name, "objects": len(objects)}
    yield json.dumps(header) + "\n"
    for key, text in objects.items():
        yield json.dumps({"key": key, **_shown(text)}, ensure_ascii=False) + "\n"


def _shown(text: str) -> dict[str, Any]:
    try:
        document = parse(text)
        if isinstance(document, dict) and serialise(document) == text:
            return {"value": document}
    except BadDocument:
        pass
    return {"text": text}


def parse_dump(lines: Iterable[str], name: str) -> Dump:
    """Return what a dump holds. Raises InvalidInput naming the line that is wrong."""
    objects: dict[str, str] = {}
    header: Mapping[str, Any] | None = None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = parse(line)
        except BadDocument as error:
            raise InvalidInput(f"{name}, line {number}: {error}", subject=name, hint="The dump is damaged.") from None
        if header is None:
            header = _header(entry, name)
            continue
        if not isinstance(entry, dict) or not isinstance(entry.get("key"), str):
            raise InvalidInput(
                f"{name}, line {number}: no object with a key", subject=name, hint="The dump is damaged."
            )
        key = entry["key"]
        if not key.startswith("/calico/"):
            raise InvalidInput(f"{name}, line {number}: {key!r} is none of Calico's keys", subject=name)
        objects[key] = serialise(entry["value"]) if "value" in entry else str(entry.get("text") or "")
    if header is None:
        raise InvalidInput(f"{name} is empty", subject=name, hint="A dump is made by 'ipamctl datastore export'.")
    if header.get("objects") != len(objects):
        raise InvalidInput(
            f"{name} says it holds {header.get('objects')} objects and holds {len(objects)}",
            subject=name,
            hint="The dump was cut off: make a new one.",
        )
    return Dump(str(header.get("source") or name), objects)


def _header(entry: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(entry, dict) or entry.get("format") != FORMAT:
        raise InvalidInput(
            f"{name} is no dump of a datastore",
            subject=name,
            hint="A dump is made by 'ipamctl datastore export'; calicoctl's own is for 'datastore migrate import'.",
        )
    if entry.get("version") != VERSION:
        raise InvalidInput(
            f"{name} is a dump of version {entry.get('version')}, and this program reads version {VERSION}",
            subject=name,
        )
    return entry


def not_empty(store: DocumentStore, number: int) -> RefusedError:
    """Return the refusal to write a dump into a datastore that holds something."""
    return RefusedError(
        f"the datastore {store.name} is not empty: it holds {number} objects",
        subject=store.name,
        hint="Import into an empty one; --merge writes the dump's objects over those that are there.",
    )


def write_all(store: DocumentStore, objects: Mapping[str, str], *, merge: bool) -> int:
    """Write objects into a datastore and return how many were written. Equal ones are left.

    Without ``merge`` the datastore must be empty. Raises RefusedError when it is not, Conflict when somebody writes at
    the same time.
    """
    _, (rows,), _ = store._raw_read((), (EVERYTHING,))
    if rows and not merge:
        raise not_empty(store, len(rows))
    there = {row.path: row for row in rows}
    writes = [write for key, text in objects.items() if (write := _write(key, text, there.get(key))) is not None]
    for start in range(0, len(writes), BATCH):
        try:
            store._raw_commit(writes[start : start + BATCH])
        except RawLoss as loss:
            raise Conflict(
                writes[start + loss.position].path, "somebody writes to the datastore at the same time"
            ) from None
    return len(writes)


def _write(key: str, text: str, there: Row | None) -> RawWrite | None:
    if there is None:
        return RawWrite("create", key, text)
    return None if there.text == text else RawWrite("update", key, text, there.revision)


def compare(first: Mapping[str, str], second: Mapping[str, str]) -> Comparison:
    """Compare two datastores by what they hold."""
    both = first.keys() & second.keys()
    return Comparison(
        same=sum(1 for key in both if first[key] == second[key]),
        missing=tuple(sorted(first.keys() - second.keys())),
        extra=tuple(sorted(second.keys() - first.keys())),
        different=tuple(sorted(key for key in both if first[key] != second[key])),
    )
