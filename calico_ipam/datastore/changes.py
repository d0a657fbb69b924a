"""The change log of an embedded datastore, oldest first (ruling 13: it is bounded)."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from calico_ipam.datastore import codec
from calico_ipam.datastore.api import Entry
from calico_ipam.datastore.gojson import BadDocument, parse
from calico_ipam.datastore.paths import key_of
from calico_ipam.datastore.sqlite import SQLiteStore
from calico_ipam.model.block import Block
from calico_ipam.model.keys import BlockKey

_QUERY = "SELECT revision, key, kind, document FROM changes WHERE instr(key, ?) > 0 ORDER BY revision"


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one object; of a deleted one the document is the last."""

    revision: int
    path: str
    kind: str  #: added, modified or deleted
    text: str

    @property
    def document(self) -> Mapping[str, Any]:
        try:
            found = parse(self.text)
        except BadDocument:
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def block(self) -> Block | None:
        """The block that the document is, if it is one that can be understood."""
        key = key_of(self.path)
        if not isinstance(key, BlockKey):
            return None
        entry = codec.decode(key, self.path, self.text, str(self.revision))
        return entry.value if isinstance(entry, Entry) else None


def changes_of(store: SQLiteStore, part: str) -> list[Change]:
    """Return the changes of objects whose key contains ``part``."""

    def work(connection: sqlite3.Connection) -> list[Change]:
        return [Change(*row) for row in connection.execute(_QUERY, (part,))]

    return store._run("read the history of", work)
