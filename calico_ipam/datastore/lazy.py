"""What a long list does not hold: blocks that nobody has looked at yet, fields that nobody asked for."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar

from calico_ipam.datastore.api import Damaged, Entry, Revision, damaged_error
from calico_ipam.model.keys import BlockKey
from calico_ipam.model.resource import Resource


class LazyBlock(Entry):
    """A block that is not decoded yet. ``value`` raises StoreDamaged for a document that cannot be understood."""

    __slots__ = ("_whole",)
    _whole: Entry | Damaged | None

    def __init__(self, key: BlockKey, revision: Revision) -> None:
        object.__setattr__(self, "key", key)
        object.__setattr__(self, "revision", revision)
        object.__setattr__(self, "_whole", None)

    @abstractmethod
    def decode(self) -> Entry | Damaged:
        """Return the block as any other read would."""

    @property
    def whole(self) -> Entry | Damaged:
        """The block as any other read returns it."""
        if self._whole is None:
            object.__setattr__(self, "_whole", self.decode())
        assert self._whole is not None  # noqa: S101  # decoding returns one or the other
        return self._whole

    @property
    def _sound(self) -> Entry:
        if isinstance(self.whole, Damaged):
            raise damaged_error(self.whole)
        return self.whole

    @property
    def value(self) -> Any:
        return self._sound.value

    @property
    def uid(self) -> str:
        return self._sound.uid

    @property
    def origin(self) -> Any:
        return self._sound.origin

    @property
    def tells_owner(self) -> bool:
        """Whether ``affinity`` is known without another request; it is None otherwise."""
        return False

    @property
    def affinity(self) -> str | None:
        return None


Found = TypeVar("Found", bound=Entry | Damaged | None)


def slim(found: Found, only: Sequence[str]) -> Found | Entry:
    """Return an entry of a resource with no more than these fields of its spec; it cannot be written again."""
    if not isinstance(found, Entry) or not isinstance(found.value, Resource):
        return found
    whole = found.value
    if len(whole.document) == 1:  # it was made so
        return Entry(found.key, whole, found.revision)
    spec = {name: whole.spec[name] for name in only if name in whole.spec}
    return Entry(found.key, Resource(whole.kind, whole.name, {"spec": spec}, whole.namespace), found.revision)


def unwritable(entry: Entry) -> Entry:
    """Return an entry without what is only needed to write it again; it can be deleted."""
    return Entry(entry.key, entry.value, entry.revision, entry.uid)
