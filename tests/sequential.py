"""A datastore that commits write by write, as the Kubernetes API does: the engine's other world, without a server."""

from __future__ import annotations

from collections.abc import Sequence

from calico_ipam.datastore.api import (
    Capabilities,
    Deadline,
    Entry,
    Loss,
    Write,
    losing,
    lost,
)
from calico_ipam.datastore.passing import PassingStore
from calico_ipam.errors import IPAMError


class SequentialStore(PassingStore):
    """Passes reads on to ``inner``; a commit of several writes is so many commits; its error says how far it came."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(atomic=False)

    @property
    def name(self) -> str:
        return f"{self.inner.name}, write by write"

    def commit(self, *writes: Write) -> Sequence[Entry]:
        done: list[Entry] = []
        for write in writes:
            try:
                done += self.inner.commit(write)
            except IPAMError as error:
                loss = lost(error)
                raise losing(error, Loss(write, tuple(done), loss.existing if loss else None)) from error
        return done

    def within(self, deadline: Deadline | None) -> SequentialStore:
        return SequentialStore(self.inner.within(deadline))
