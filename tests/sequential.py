"""A datastore that commits write by write, as the Kubernetes API does: the engine's other world, without a server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from calico_ipam.datastore.api import (
    Capabilities,
    Datastore,
    Deadline,
    Entry,
    Event,
    Listing,
    Loss,
    Revision,
    Snapshot,
    Write,
    losing,
    lost,
)
from calico_ipam.errors import IPAMError
from calico_ipam.model.keys import Key, Scope


class SequentialStore(Datastore):
    """Passes reads on to ``inner``; a commit of several writes is so many commits; its error says how far it came."""

    def __init__(self, inner: Datastore) -> None:
        self.inner = inner

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(atomic=False)

    @property
    def name(self) -> str:
        return f"{self.inner.name}, write by write"

    def get(self, key: Key) -> Entry:
        return self.inner.get(key)

    def list(self, scope: Scope) -> Listing:
        return self.inner.list(scope)

    def read(self, *wanted: Key | Scope) -> Snapshot:
        return self.inner.read(*wanted)

    def commit(self, *writes: Write) -> Sequence[Entry]:
        done: list[Entry] = []
        for write in writes:
            try:
                done += self.inner.commit(write)
            except IPAMError as error:
                loss = lost(error)
                raise losing(error, Loss(write, tuple(done), loss.existing if loss else None)) from error
        return done

    def watch(self, scope: Scope, since: Revision) -> Iterator[Event]:
        return self.inner.watch(scope, since)

    def within(self, deadline: Deadline | None) -> SequentialStore:
        return SequentialStore(self.inner.within(deadline))

    def close(self) -> None:
        self.inner.close()
